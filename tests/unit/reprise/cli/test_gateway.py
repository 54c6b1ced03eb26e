"""`reprise gateway` is `reprise up` with an address for the gateway."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.settings import GatewaySettings
from reprise.cli.main import main
from reprise.settings import Settings

ENGINES = ("http://10.0.0.7:8000", "http://10.0.0.8:8000")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    found: list[Settings] = []
    # That of the demonstration first, which takes the other one's name as it is imported.
    for place in ("reprise.demo.run_up", "reprise.roles.up.run_up"):
        monkeypatch.setattr(place, lambda settings, *_, **__: found.append(settings))
    monkeypatch.setattr("reprise.cli.up.begin_service", lambda level: None)
    return found


def given(run: list[Settings], *arguments: str) -> tuple[Settings, GatewaySettings]:
    named = [part for one in ENGINES for part in ("--engine", one)]
    result = CliRunner().invoke(main, ["gateway", *named, *arguments])
    assert result.exit_code == 0, result.output
    [settings] = run
    assert settings.gateway is not None
    return settings, settings.gateway


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        ((), ("127.0.0.1", 8080)),
        (("--listen", "0.0.0.0:9000"), ("0.0.0.0", 9000)),
        (("--set", "gateway.listen=:9001"), ("127.0.0.1", 9001)),
        (("--gateway", "9002"), ("127.0.0.1", 9002)),
        (("--set", "gateway.listen=:9001", "--listen", "9003"), ("127.0.0.1", 9003)),
    ],
)
def test_it_answers_where_it_is_told(
    run: list[Settings], arguments: tuple[str, ...], address: tuple[str, int]
) -> None:
    _, gateway = given(run, *arguments)
    assert gateway.listen == address
    assert gateway.engines == ENGINES


def test_it_takes_the_options_of_up(run: list[Settings], tmp_path: Path) -> None:
    settings, _ = given(run, "--data", str(tmp_path), "--port", "7")
    assert (settings.data, settings.port) == (tmp_path, 7)


def test_what_up_does_not_know_is_refused(run: list[Settings]) -> None:
    result = CliRunner().invoke(main, ["gateway", "--bad"])
    assert (result.exit_code, run) == (2, [])
    assert "No such option: --bad" in result.output


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("--listen", "bad"), "--listen"),
        (("--gateway", "bad"), "--gateway"),
        (("--gateway", "9002", "--listen", "bad"), "--listen"),
    ],
)
def test_error_of_an_address_names_its_option(
    run: list[Settings], arguments: tuple[str, ...], option: str
) -> None:
    result = CliRunner().invoke(main, ["gateway", *arguments])
    assert (result.exit_code, run) == (1, [])
    assert f"Expected {option} to be HOST:PORT, [IPV6]:PORT or PORT, got: bad" in result.output


@pytest.mark.parametrize(
    ("arguments", "option"), [((), "--listen"), (("--gateway", "9002"), "--gateway")]
)
def test_settings_know_the_option_of_their_address(
    run: list[Settings], arguments: tuple[str, ...], option: str
) -> None:
    _, gateway = given(run, *arguments)
    assert gateway.option == option


@pytest.mark.parametrize(
    ("arguments", "warns"),
    [((), True), (("--engine", ENGINES[0]), False), (("--demo",), False)],
)
def test_it_warns_where_it_has_no_engine(
    run: list[Settings], arguments: tuple[str, ...], warns: bool
) -> None:
    result = CliRunner().invoke(main, ["gateway", *arguments])
    assert (result.exit_code, len(run)) == (0, 1), result.output
    assert ("no --engine is given" in result.output) is warns
