"""`reprise relay` with what it cannot begin with: keys, lists and addresses."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reprise.cli import relay
from reprise.cli.main import main


@pytest.fixture(autouse=True)
def begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What concerns the whole process is left out, and files are named as seen from here."""
    monkeypatch.setattr(relay, "begin_service", lambda _: None)
    monkeypatch.chdir(tmp_path)


def make_keys(name: Path) -> None:
    assert CliRunner().invoke(main, ["curve-key", str(name)]).exit_code == 0


def start(tmp_path: Path, *options: str) -> Result:
    return CliRunner().invoke(main, options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"--curve-key": "none"}, "none, as `reprise curve-key` makes them: "),
        ({"--curve-key": "relay.key"}, "it has the public one alone"),
        ({"--curve-key": "mixed"}, "two keys of 40 characters that belong together"),
        ({"--bridge-keys": "none"}, "public keys of bridges, one a line, in none"),
        ({"--bridge-keys": "relay.key"}, "line 7 does not begin with one"),
        ({"--listen": "tcp://127.0.0.1:0"}, "as --listen, got: tcp://127.0.0.1:0"),
        ({"--listen": "ipc://here"}, "as --listen, got: ipc://here"),
        ({"--engine": "127.0.0.1:5557"}, "--engine and --replay: Expected an address"),
        ({"--replay": "tcp://127.0.0.1:1"}, "Expected one --listen-replay for each --replay"),
        ({"--metrics-host": "0.0.0.0", "--metrics-port": "0"}, "--metrics-host"),
    ],
)
def test_a_relay_that_cannot_be_says_why(
    tmp_path: Path, options: dict[str, str], said: str
) -> None:
    make_keys(tmp_path / "relay")
    make_keys(tmp_path / "other")
    mine = (tmp_path / "relay.key_secret").read_text()
    others = (tmp_path / "other.key_secret").read_text()
    secret = mine.partition("secret-key")[2]
    (tmp_path / "mixed").write_text(others.partition("secret-key")[0] + "secret-key" + secret)
    (tmp_path / "bridges.txt").write_text("")
    given = {
        "--engine": "tcp://127.0.0.1:5557",
        "--listen": "tcp://127.0.0.1:16557",
        "--curve-key": "relay.key_secret",
        "--bridge-keys": "bridges.txt",
    } | options
    done = start(tmp_path, "relay", *[text for pair in given.items() for text in pair])
    assert done.exit_code == 1, done.output
    assert said in done.output
    assert "Traceback" not in done.output
    assert secret.strip().strip('= "') not in done.output


def test_an_address_that_is_taken_is_named(tmp_path: Path) -> None:
    make_keys(tmp_path / "relay")
    (tmp_path / "bridges.txt").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        both = ["--engine", "tcp://127.0.0.1:5557", "--listen", address]
        files = ["--curve-key", "relay.key_secret", "--bridge-keys", "bridges.txt"]
        done = start(tmp_path, "relay", *both, *files)
    assert done.exit_code == 1
    assert address.removeprefix("tcp://") in done.output
    assert "--listen" in done.output
