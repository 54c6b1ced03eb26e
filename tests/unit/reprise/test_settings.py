"""Settings that cannot be used are named, with what was expected and what came."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.engine_http.bounds import LOAD_PERIOD_MAX_S
from bridge.engine_http.load_settings import LoadSettings
from reprise import conductor_config
from reprise.cli.main import main
from reprise.settings import (
    LOG_LEVELS,
    Settings,
    config_path_from,
    log_level_from,
)
from schemas.errors import ConfigurationError
from schemas.limits import LOG_SEGMENT_BYTES
from schemas.setting import changed
from streams.index_settings import DEFAULT_SEED, seed_from

MANY_DIGITS = "7" * 5000


def test_the_defaults_can_be_used_and_cannot_be_changed() -> None:
    settings = Settings()
    assert (settings.host, settings.port, settings.seed) == ("127.0.0.1", 13333, DEFAULT_SEED)
    with pytest.raises(AttributeError):
        settings.port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "good"),
    [
        ("port", [0, 65_535]),
        ("seed", [0, 2**64 - 1]),
        ("log_level", list(LOG_LEVELS)),
        ("log_retention_bytes", [LOG_SEGMENT_BYTES]),
        ("log_retention_s", [0.0, 1e9]),
    ],
)
def test_values_at_the_bounds_can_be_used(field: str, good: list[object]) -> None:
    for value in good:
        assert getattr(changed(Settings(), **{field: value}), field) == value


@pytest.mark.parametrize(
    ("field", "bad", "expected"),
    [
        ("port", -1, "Expected a port from 0 to 65535, got: -1"),
        ("port", 65_536, "Expected a port from 0 to 65535, got: 65536"),
        ("seed", -1, r"Expected a seed from 0 to 2\*\*64-1, got: -1"),
        ("seed", 2**64, r"Expected a seed from 0 to 2\*\*64-1, got: 18446744073709551616"),
        ("log_level", "LOUD", "Expected a log level of DEBUG, INFO, WARNING, ERROR, got: LOUD"),
        ("log_retention_bytes", LOG_SEGMENT_BYTES - 1, "Expected a log retention of at least"),
        ("log_retention_s", -1.0, "Expected a log retention of at least 0 seconds, got: -1.0"),
        ("log_retention_s", float("nan"), "Expected a log retention of at least 0 .* got: nan"),
        ("log_retention_s", float("inf"), "Expected a log retention of at least 0 .* got: inf"),
    ],
)
def test_values_beyond_them_are_refused(field: str, bad: object, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        Settings(**{field: bad})  # type: ignore[arg-type]


def test_a_period_of_load_has_bounds() -> None:
    for period_s in (0.0, 0.1, LOAD_PERIOD_MAX_S):
        assert LoadSettings(scrape_s=period_s).scrape_s == period_s
    for period_s, shown in ((-1.0, "-1"), (float("nan"), "nan")):
        with pytest.raises(ConfigurationError, match=f"load from 0 to 60 s, got: {shown}"):
            LoadSettings(scrape_s=period_s)


# The environment


@pytest.mark.parametrize(
    ("text", "seed"),
    [
        ("", DEFAULT_SEED),
        ("0", 0),
        ("0042", 42),
        ("0" * 6000 + "7", 7),
        (str(2**64 - 1), 2**64 - 1),
    ],
)
def test_a_seed_is_a_decimal_number(text: str, seed: int) -> None:
    assert seed_from({"CONDUCTOR_SEED": text}) == seed
    assert seed_from({}) == DEFAULT_SEED


@pytest.mark.parametrize("text", ["-1", "1.5", "0x10", "1_000", " 1", "\u0663", str(2**64), "nan"])
def test_another_seed_is_refused_by_the_name_of_its_variable(text: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        seed_from({"CONDUCTOR_SEED": text})
    assert str(raised.value) == (
        f"Expected CONDUCTOR_SEED to be a decimal number from 0 to 2**64-1, got: {text}"
    )


def test_a_seed_of_thousands_of_digits_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConfigurationError, match=r"got: 7{40}\.\.\. \(5000 characters\)$"):
        seed_from({"CONDUCTOR_SEED": MANY_DIGITS})


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("", "INFO"),
        ("debug", "DEBUG"),
        ("Warn", "WARNING"),
        ("trace", "DEBUG"),
        ("critical", "ERROR"),
        ("FATAL", "ERROR"),
        ("loud", "LOUD"),
    ],
)
def test_a_log_level_is_taken_in_any_case_and_by_other_names(text: str, level: str) -> None:
    assert log_level_from({"CONDUCTOR_LOG_LEVEL": text}) == level


def test_a_configuration_that_is_no_file_or_is_too_deep_is_refused_at_once(tmp_path: Path) -> None:
    pipe, deep = tmp_path / "pipe", tmp_path / "deep"
    os.mkfifo(pipe)
    deep.write_bytes(b'{"kvevent_instance":' + b'{"a":' * 50_000)
    for path in (pipe, Path("/dev/zero"), deep):
        with pytest.raises(ConfigurationError, match=str(path)):
            conductor_config.load(path, required=True)


def test_a_configuration_file_that_nobody_named_and_nobody_can_read_says_why_it_is_read(
    tmp_path: Path,
) -> None:
    text = "unless --config or CONDUCTOR_CONFIG_PATH names another file"
    with pytest.raises(ConfigurationError, match=text) as caught:
        conductor_config.load(tmp_path, required=False)
    assert str(caught.value).startswith(f"Cannot read {tmp_path}: Is a directory. ")
    assert conductor_config.load(tmp_path / "none", required=False).registrations == ()
    with pytest.raises(ConfigurationError, match="--config"):
        conductor_config.load(tmp_path / "none", required=True)


def test_the_configuration_file_is_where_the_variable_or_mooncake_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert config_path_from({"CONDUCTOR_CONFIG_PATH": "/etc/c.json"}) == Path("/etc/c.json")
    expected = Path("/home/someone/.mooncake/conductor_config.json")
    assert config_path_from({}) == config_path_from({"CONDUCTOR_CONFIG_PATH": ""}) == expected


# The command line


BRIDGE = ["bridge", "--kafka", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (["up"], "log.retention_gib"),
        (["up"], "log.retention_hours"),
        (["up"], "load.scrape_s"),
        (BRIDGE, "load.scrape_s"),
        (BRIDGE, "bridge.spool_gib"),
        (BRIDGE, "kafka.session_timeout_s"),
        (["streams", "--kafka", "127.0.0.1:1"], "kafka.session_timeout_s"),
    ],
)
@pytest.mark.parametrize("value", ["nan", "1e+308", "-1"])
def test_an_amount_that_is_none_is_refused_by_the_name_of_its_key(
    command: list[str], key: str, value: str
) -> None:
    assert_is_refused(command, key, value)


@pytest.mark.parametrize("value", ["-nan", "inf", "many"])
def test_an_amount_is_a_finite_number(value: str) -> None:
    assert_is_refused(["up"], "load.scrape_s", value)


def assert_is_refused(command: list[str], key: str, value: str) -> None:
    done = CliRunner().invoke(main, [*command, "--set", f"{key}={value}"])
    assert done.exit_code == 2
    assert f"Invalid value for --set {key}: " in done.output
    assert value.strip("-") in done.output


@pytest.mark.parametrize("command", [["up"], ["streams", "--kafka", "127.0.0.1:1"]])
def test_a_seed_that_is_none_ends_the_start_in_one_line(command: list[str]) -> None:
    done = CliRunner().invoke(main, command, env={"CONDUCTOR_SEED": MANY_DIGITS})
    assert done.exit_code == 1
    assert done.output.startswith("Error: Expected CONDUCTOR_SEED to be a decimal number")
    assert len(done.output.splitlines()) == 1
