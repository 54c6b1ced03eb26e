"""What `make run` looks at before it builds anything."""

import socket
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def port(number: int) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["make", "--no-print-directory", "port", f"PORT={number}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_port_that_is_taken_is_told_with_another_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        told = port(number)
        assert told.returncode != 0
        assert told.stdout.startswith(f"Port {number} of 127.0.0.1 is taken")
        assert "make run PORT=14333" in told.stdout
    assert port(number).returncode == 0
