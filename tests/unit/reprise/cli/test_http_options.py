"""The key `http.wire` reaches the service, by `--set` and by environment variable."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from query_api.http.wire import Wire
from reprise.cli.main import main
from reprise.roles import serve, up

COMMANDS = {
    "up": (up, "run_up", ["--data", "d"]),
    "serve": (serve, "serve_replica", ["--kafka", "127.0.0.1:9"]),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("options", "environment", "wire"),
    [
        ([], {}, Wire.JSON),
        (["--set", "http.wire=msgpack"], {}, Wire.MSGPACK),
        ([], {"REPRISE_WIRE": "msgpack"}, Wire.MSGPACK),
        (["--set", "http.wire=json"], {"REPRISE_WIRE": "msgpack"}, Wire.JSON),
    ],
)
def test_the_default_wire_is_handed_over(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
    options: list[str],
    environment: dict[str, str],
    wire: Wire,
) -> None:
    module, function, needed = COMMANDS[command]
    seen: list[Any] = []
    monkeypatch.setattr(module, function, lambda settings, *rest, **named: seen.append(settings))
    environment |= {"CONDUCTOR_CONFIG_PATH": str(tmp_path / "none")}
    result = CliRunner().invoke(main, [command, *needed, *options], env=environment)
    assert result.exit_code == 0, result.output
    assert [settings.http.default_wire for settings in seen] == [wire]


@pytest.mark.parametrize("command", COMMANDS)
def test_another_wire_is_refused(command: str) -> None:
    result = CliRunner().invoke(main, [command, *COMMANDS[command][2], "--set", "http.wire=xml"])
    assert result.exit_code == 2
    assert "'xml' is not one of 'json', 'msgpack'" in result.output
