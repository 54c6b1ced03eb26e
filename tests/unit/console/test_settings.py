"""One file of settings: what may be in it, and what wins over it."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from console.settings import RoleCommand, Setting, read_settings
from schemas.errors import ConfigurationError


@click.command(cls=RoleCommand)
@click.option(
    "--port", cls=Setting, key="port", envvar="R_PORT", type=click.IntRange(0, 9), default=1
)
@click.option(
    "--wait",
    cls=Setting,
    key="link.wait_s",
    is_seldom_set=True,
    type=click.FloatRange(0),
    default=2.0,
)
@click.option("--strict", cls=Setting, key="link.strict", is_seldom_set=True, is_flag=True)
@click.option("--allow", cls=Setting, key="link.allow", is_seldom_set=True, multiple=True)
@click.option("--secret", cls=Setting, key="secret", is_secret=True, envvar="R_SECRET", default="")
@click.pass_context
def role(
    context: click.Context,
    port: int,
    wait: float,
    strict: bool,
    allow: tuple[str, ...],
    secret: str,
) -> None:
    click.echo(f"{port} {wait} {strict} {allow}")
    command = context.command
    assert isinstance(command, RoleCommand)
    for key, (value, source) in command.found(context).items():
        click.echo(f"{key}: {value} ({source})")


def run(*arguments: str, **environment: str) -> str:
    return CliRunner().invoke(role, arguments, env=environment).output


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_file_of_the_working_directory_is_read_and_another_by_name(here: Path) -> None:
    assert run().splitlines()[0] == "1 2.0 False ()"
    (here / "reprise.toml").write_text("port = 3\n[link]\nstrict = true\nallow = ['a', 'b']\n")
    assert run().splitlines()[0] == "3 2.0 True ('a', 'b')"
    (here / "other.toml").write_text("[link]\nwait_s = 4\n")
    assert run("--settings", "other.toml").splitlines()[0] == "1 4.0 False ()"
    assert run(REPRISE_SETTINGS="other.toml").splitlines()[0] == "1 4.0 False ()"


def test_a_whole_number_may_be_written_as_helm_writes_it(here: Path) -> None:
    (here / "reprise.toml").write_text("port = 3.0\n")
    assert run().splitlines()[0] == "3 2.0 False ()"


@pytest.mark.parametrize(
    ("arguments", "environment", "port", "source"),
    [
        ((), {}, 3, "file, reprise.toml"),
        ((), {"R_PORT": "4"}, 4, "environment, R_PORT"),
        (("--set", "port=5"), {"R_PORT": "4"}, 5, "flag"),
        (("--port", "6", "--set", "port=5"), {"R_PORT": "4"}, 6, "flag"),
    ],
)
def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    here: Path, arguments: tuple[str, ...], environment: dict[str, str], port: int, source: str
) -> None:
    (here / "reprise.toml").write_text("port = 3\n")
    assert f"port: {port} ({source})" in run(*arguments, **environment)


def test_a_default_says_that_it_is_one_and_a_secret_is_not_shown() -> None:
    said = run(R_SECRET="hush")
    assert "link.wait_s: 2.0 (default)" in said
    assert "secret: (not shown) (environment, R_SECRET)" in said
    assert "hush" not in said


def test_a_flag_of_before_is_named_with_the_key_that_replaces_it() -> None:
    for arguments in (("--wait", "3"), ("--strict",), ("--allow", "a")):
        assert f"{arguments[0]} is no flag: set link." in run(*arguments)
    assert "Error: --wait is no flag: set link.wait_s in reprise.toml, or give --set" in run(
        "--wait", "3"
    )


def test_what_is_set_seldom_is_given_by_its_key() -> None:
    said = run("--set", "link.wait_s=3", "--set", "link.strict=true", "--set", "link.allow=a")
    assert said.splitlines()[0] == "1 3.0 True ('a',)"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("link.wait=3", "got: link.wait. Did you mean link.wait_s?"),
        ("nothing=3", "expected a key of `reprise role`, got: nothing"),
        (
            "memory.period_s=3",
            "got: memory.period_s. It is no setting any more: segments of memory are looked at",
        ),
        ("port", "expected KEY=VALUE, got: port"),
        ("link.wait_s=-1", "Invalid value for --set link.wait_s: -1.0 is not in the range"),
        ("link.wait_s=x", "Invalid value for --set link.wait_s: 'x' is not a valid float"),
    ],
)
def test_a_key_or_a_value_that_is_none_is_refused(given: str, said: str) -> None:
    assert said in " ".join(run("--set", given).split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "prot = 3",
            "Expected keys that Reprise knows in reprise.toml, got: prot. Did you mean port?",
        ),
        ("[link]\nwait = 3", "got: link.wait. Did you mean link.wait_s?"),
        (
            "[memory]\nperiod_s = 3",
            "got: memory.period_s. It is no setting any more: segments of memory are looked at",
        ),
        ("[lnk]\nwait_s = 3", "Expected keys that Reprise knows in reprise.toml, got: lnk"),
        ("link = 3", "Expected keys that Reprise knows in reprise.toml, got: link"),
        ("port = '3'", "Cannot use port in reprise.toml: it must be an integer, got a string"),
        ("[link]\nallow = 'a'", "Cannot use link.allow in reprise.toml: it must be an array"),
        ("port = 10", "Invalid value for port in reprise.toml: 10 is not in the range"),
        ("port =", "Expected settings as TOML in reprise.toml, but they cannot be read: Invalid"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(here: Path, text: str, said: str) -> None:
    (here / "reprise.toml").write_text(text)
    assert said in " ".join(run().split())


def test_a_file_that_is_not_there_is_refused_where_it_was_named() -> None:
    assert "Expected settings as TOML in none.toml, but they cannot be read" in run(
        "--settings", "none.toml"
    )


def test_reading_says_what_is_wrong_with_bytes(here: Path) -> None:
    (here / "r.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_settings(here / "r.toml", role.settings())
