"""An installation without LMCache's room, the gateway or the lab has all of the rest."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.processes import until

HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {room!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name={room!r})

sys.meta_path.insert(0, Hidden())
"""
"""Hides a room from a process, as an installation that leaves it out."""

RUN = "from reprise.cli import main; main()"
ROLES = (
    "reprise.cli.main",
    "reprise.cli.up",
    "reprise.cli.bridge",
    "reprise.cli.streams",
    "reprise.cli.serve",
    "reprise.roles.up",
    "reprise.roles.bridge",
    "reprise.roles.streams",
    "reprise.roles.serve",
    "reprise.roles.relay",
    "reprise.roles.replay",
    "reprise.discovery.run",
)
LMCACHE, GATEWAY, LAB = "lmcache_adapter", "gateway", "lab"


def program(room: str, then: str) -> list[str]:
    return [sys.executable, "-c", HIDDEN.format(room=room) + then]


def said(room: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What the command line says of these arguments, without a room."""
    command = [*program(room, RUN), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("room", [LMCACHE, GATEWAY, LAB])
def test_every_role_is_imported_without_the_room(room: str) -> None:
    imports = "\n".join(f"import {module}" for module in ROLES)
    check = f"\nassert not any(name.partition('.')[0] == {room!r} for name in sys.modules)"
    subprocess.run(program(room, imports + check), check=True, timeout=60)


def test_no_service_imports_the_lab_that_is_there() -> None:
    imports = "import sys\n" + "\n".join(f"import {module}" for module in ROLES)
    check = "\nassert 'lab' not in sys.modules"
    subprocess.run([sys.executable, "-c", imports + check], check=True, timeout=60)


@pytest.mark.parametrize("command", ["up", "bridge", "serve"])
def test_options_of_a_missing_room_are_not_offered(command: str) -> None:
    text = said(LMCACHE, command, "--help").stdout
    assert text.startswith("Usage: ")
    assert "--lmcache" not in text
    assert "--act" not in text


@pytest.mark.parametrize("command", ["up", "serve"])
def test_options_of_a_missing_gateway_are_not_offered(command: str) -> None:
    assert "--gateway" in said(LAB, command, "--help").stdout
    text = said(GATEWAY, command, "--help").stdout
    assert text.startswith("Usage: ")
    assert "--gateway" not in text
    assert "--engine" not in text


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["simulate", "trace.jsonl"], "reprise simulate"),
        (["miss-ratio", "trace.jsonl"], "reprise miss-ratio"),
        (["export", "one.capture"], "reprise export"),
        (["up", "--demo"], "reprise up --demo"),
    ],
)
def test_what_needs_the_lab_says_so_in_one_line(
    arguments: list[str], what: str, tmp_path: Path
) -> None:
    result = said(LAB, *arguments, *(["--data", str(tmp_path)] if "up" in arguments else []))
    assert result.returncode == 1
    assert result.stderr == (
        f"Error: Expected the package lab for `{what}`, but this installation leaves it out."
        " Install Reprise with all of its packages: `pip install --force-reinstall` its wheel\n"
    )


def test_the_gateway_says_that_it_is_left_out() -> None:
    result = said(GATEWAY, "gateway", "--engine", "http://127.0.0.1:1")
    assert result.returncode == 1
    assert result.stderr.startswith("Error: Expected the package gateway for `reprise gateway`,")


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(("room", "workers"), [(LMCACHE, 404), (GATEWAY, 200), (LAB, 200)])
def test_the_service_runs_without_the_room(room: str, workers: int, tmp_path: Path) -> None:
    output = tmp_path / "output"
    with output.open("w") as file:
        service = subprocess.Popen(
            [*program(room, RUN), "up", "--port", "0", "--data", str(tmp_path / "data")],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | {"CONDUCTOR_CONFIG_PATH": str(tmp_path / "none")},
        )
    try:
        until(lambda: "Reprise answers on " in output.read_text(), what="the service")
        url = output.read_text().partition("Reprise answers on ")[2].split()[0]
        until(lambda: _status(f"{url}/ready") == 200, what="its recovery")
        assert _status(f"{url}/services") == 200
        assert _status(f"{url}/metrics") == 200
        assert _status(f"{url}/controller/workers") == workers
        assert (_status(f"{url}/commands") == 404) == (workers == 404)
    finally:
        service.send_signal(signal.SIGTERM)
        assert service.wait(30) == 0
