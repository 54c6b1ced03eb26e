"""The app around a worker's task. It needs no Kafka; it gets a process of its own, because Faust
makes event loops that it does not close.
"""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio
from brokers.options import client_options
from brokers.settings import KafkaSettings
from streams.worker.app import run_app

async def work():
    print("at work")
    {last}

options = client_options(KafkaSettings(bootstrap="127.0.0.1:1"))
asyncio.run(run_app(options, group="test.streams", work=work))
"""


def run(directory: Path, last: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM.format(last=last)]
    return subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=60, check=False
    )


def test_an_app_leaves_nothing_in_the_working_directory(tmp_path: Path) -> None:
    done = run(tmp_path, "return")
    assert (done.returncode, done.stdout) == (0, "at work\n"), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_the_work_raises_is_what_the_app_raises(tmp_path: Path) -> None:
    done = run(tmp_path, "raise OSError('no more work')")
    assert (done.returncode, done.stdout) == (1, "at work\n"), done.stderr
    assert done.stderr.endswith("OSError: no more work\n")
