"""Each command as a process that inherits ignored signals, as from `nohup` or a shell's background
job: SIGINT and SIGTERM end it all the same, in order and without a traceback.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devtools.broker import free_ports
from logs.embedded import EmbeddedLog
from schemas.limits import SHUTDOWN_S
from tests.building import events_record, registered_record, registration, removed
from tests.processes import until

SLACK_S = 5.0
"""Beyond the time within which a role promises to end: these machines are shared."""

PUBLISHERS = 1000
"""It takes a start some time to follow them."""

DEAF = ("/bin/sh", "-c", 'trap "" INT TERM; exec "$@"', "sh")
"""Runs a command with both signals ignored."""


@contextmanager
def started(directory: Path, *arguments: str, says: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has both signals ignored when it starts, once it has said something."""
    output = directory / "output"
    with (
        output.open("wb") as to,
        subprocess.Popen(
            [*DEAF, sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=to,
            stderr=to,
        ) as process,
    ):

        def ready() -> bool:
            assert process.poll() is None, output.read_text()
            return says in output.read_text()

        try:
            until(ready, what=f"`{says}` by {arguments}")
            yield process
        finally:
            process.kill()


def ended_by(process: subprocess.Popen[bytes], number: signal.Signals, directory: Path) -> int:
    """The exit code after a signal; fails where there is a traceback."""
    process.send_signal(number)
    code = process.wait(SHUTDOWN_S + SLACK_S)
    assert "Traceback" not in (directory / "output").read_text()
    return code


@pytest.mark.parametrize(
    ("role", "says"),
    [
        ("bridge", "Bridging to Kafka"),
        ("streams", "Metrics on"),
        ("serve", "Reprise answers on"),
    ],
)
def test_a_role_that_waits_for_kafka_ends(tmp_path: Path, role: str, says: str) -> None:
    """By SIGINT; by SIGTERM in `test_outages`."""
    (port,) = free_ports(1)
    where = ["--kafka", f"127.0.0.1:{port}", "--data", str(tmp_path / "data")]
    listens = ["--port", "0"] if role == "serve" else ["--metrics-port", "0"]
    with started(tmp_path, "reprise", role, *where, *listens, says=says) as process:
        assert ended_by(process, signal.SIGINT, tmp_path) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.smoke
def test_the_embedded_service_ends(tmp_path: Path, number: signal.Signals) -> None:
    arguments = ["reprise", "up", "--data", str(tmp_path / "data"), "--port", "0"]
    with started(tmp_path, *arguments, says="Reprise answers on") as process:
        assert ended_by(process, number, tmp_path) == 0


@pytest.mark.parametrize("after_s", [0.0, 0.2])
def test_the_embedded_service_ends_while_it_recovers(tmp_path: Path, after_s: float) -> None:
    log = EmbeddedLog(tmp_path / "data" / "log")
    followed = [registration(f"i{number}", port=number + 1) for number in range(PUBLISHERS)]
    log.append(list(map(registered_record, followed)))
    log.close()
    arguments = ["reprise", "up", "--data", str(tmp_path / "data"), "--port", "0"]
    with started(tmp_path, *arguments, says="Reprise answers on") as process:
        time.sleep(after_s)
        assert ended_by(process, signal.SIGTERM, tmp_path) == 0
        said = (tmp_path / "output").read_text()
        assert "ERROR" not in said
        assert "No trouble" not in said, "it ends; what it waited for did not come"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_tail_ends(tmp_path: Path, number: signal.Signals, code: int) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.append([events_record(0, 0, [removed(0, [0])])])
    log.close()
    arguments = ["reprise", "tail", "--data", str(tmp_path), "--follow", "--from-beginning"]
    with started(tmp_path, *arguments, says="\n") as process:
        assert ended_by(process, number, tmp_path) == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_simulated_engine_ends(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path, "lab.engines.engine", "--instance-id", "e", says="tcp://") as process:
        assert ended_by(process, number, tmp_path) == 0
