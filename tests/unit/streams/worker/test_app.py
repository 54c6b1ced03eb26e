"""The worker's app where no broker is. It gets a process of its own: Faust makes event loops that
it does not close, and threads.
"""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, threading
from brokers.availability import quiet_client
from brokers.options import client_options
from brokers.broker_settings import KafkaSettings
from streams.worker.app import WorkerApp, quiet_logs

class Owner:
    async def assign(self, partitions):
        raise AssertionError("nobody assigns")

    async def release(self):
        print("released")

async def main():
    options = client_options(KafkaSettings(bootstrap="127.0.0.1:1"))
    threads = threading.active_count()
    for _ in range({attempts}):
        stopping = asyncio.Event()
        app = WorkerApp(
            options, Owner(), group="g", topic="t", flush_s=0.05, session_timeout_s=6
        )
        {before}
        try:
            await app.run(stopping)
        except Exception as error:
            print(type(error).__name__, app.outcome.crashed_by)
        else:
            print("stopped", app.outcome.crashed_by)
        assert asyncio.all_tasks() == {{asyncio.current_task()}}
        assert threading.active_count() == threads
        assert app.outcome.has_left

quiet_client()
quiet_logs(0)
asyncio.run(main())
"""


def run(directory: Path, *, attempts: int = 1, before: str = "") -> list[str]:
    """What it prints; its working directory stays empty."""
    program = PROGRAM.format(attempts=attempts, before=before)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert list(directory.iterdir()) == []
    return done.stdout.splitlines()


def test_a_broker_that_is_away_ends_each_attempt_in_order(tmp_path: Path) -> None:
    assert run(tmp_path, attempts=3) == ["released", "KafkaConnectionError None"] * 3


def test_what_has_failed_first_is_what_is_raised(tmp_path: Path) -> None:
    before = "app.outcome.fail(OSError('first')); app.outcome.fail(ValueError('second'))"
    assert run(tmp_path, before=before) == ["released", "OSError None"]


def test_an_app_that_is_stopped_while_it_starts_ends_in_order(tmp_path: Path) -> None:
    assert run(tmp_path, before="stopping.set()") == ["released", "stopped None"]
