"""One file of settings: what may be in it, and what wins over it."""

from enum import StrEnum
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from console.settings import RoleCommand, part_settings, read_settings, role_settings
from schemas.errors import ConfigurationError
from schemas.setting import part, setting


@part
class LinkSettings:
    wait_s: float = setting("link.wait_s", "Wait.", flag="--wait", bounds=(0, None), default=2.0)
    strict: bool = setting("link.strict", "Be so.", flag="--strict", default=False)
    allow: tuple[str, ...] = setting("link.allow", "Whom.", flag="--allow", default=())


@part
class RoleSettings:
    port: int = setting(
        "port", "Where.", is_usual=True, variable="R_PORT", bounds=(0, 9), default=1
    )
    link: LinkSettings = LinkSettings()
    secret: str = setting(
        "secret", "Hush.", is_usual=True, variable="R_SECRET", is_secret=True, default=""
    )


@click.command(cls=RoleCommand)
@role_settings(RoleSettings)
@click.pass_context
def role(context: click.Context, settings: RoleSettings) -> None:
    link = settings.link
    click.echo(f"{settings.port} {link.wait_s} {link.strict} {link.allow}")
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
        ("link.wait_s=x", "Invalid value for --set link.wait_s: 'x' is not a valid amount"),
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


# What is made of it


class Speed(StrEnum):
    SLOW = "very slow"
    FAST = "very fast"


@part
class DoorSettings:
    key: Path = setting("door.key", "Which.", path="file")
    lock: str = setting("door.lock", "Of it.")
    guests: tuple[str, ...] = setting("door.guests", "Who.", needs_part=True, default=())
    rooms: str = setting("door.rooms", "Behind it.", default="all")

    def __post_init__(self) -> None:
        if self.rooms == "none":
            raise ConfigurationError("Expected rooms, got none")


@part
class BaseSettings:
    base: int = setting("base", "Below.", bounds=(0, None), default=1)


@part
class HouseSettings(BaseSettings):
    size_bytes: int = setting(
        "house.size_kib", "Of it.", unit=1024, given=float, bounds=(0.5, 8), default=2048
    )
    speed: Speed = setting("house.speed", "Of it.", default=Speed.SLOW)
    number: int = setting("house.number", "Of it.", given=str, read=int, default=7)
    door: DoorSettings | None = None

    def __post_init__(self) -> None:
        if self.base > 100:
            raise ConfigurationError("Expected a house, got a tower")


@click.command(cls=RoleCommand)
@role_settings(HouseSettings)
def house(settings: HouseSettings) -> None:
    click.echo(repr(settings))


@click.command()
@part_settings(DoorSettings, "door", required=False, without=("door.rooms",))
def at_the_door(door: DoorSettings | None) -> None:
    click.echo(repr(door))


def built(*given: str) -> tuple[int, str, BaseException | None]:
    arguments = [text for one in given for text in ("--set", one)]
    done = CliRunner().invoke(house, arguments)
    return done.exit_code, " ".join(done.output.split()), done.exception


def test_a_field_has_the_type_and_the_default_and_the_key_its_own_unit() -> None:
    plain = HouseSettings()
    assert built()[1] == repr(plain)
    made = HouseSettings(base=3, size_bytes=1536, speed=Speed.FAST, number=9)
    given = ("base=3", "house.size_kib=1.5", "house.speed=fast", "house.number=9")
    assert built(*given)[1] == repr(made)
    found = {one.key: one for one in house.settings()}
    assert (found["house.size_kib"].default, found["house.size_kib"].kind) == (2.0, float)
    assert found["house.speed"].default == "slow"


def test_a_role_s_own_settings_come_before_those_of_its_base() -> None:
    keys = [one.key for one in house.settings()]
    assert keys[0] == "house.size_kib"
    assert keys[-1] == "base"


def test_a_part_is_off_until_it_is_given_what_it_cannot_do_without() -> None:
    assert "door=None" in built()[1]
    assert "door=None" in built("door.rooms=two")[1], "the rest of it alone means nothing"
    door = DoorSettings(key=Path("k"), lock="l", guests=("a", "b"))
    assert repr(door) in built("door.key=k", "door.lock=l", "door.guests=a,b")[1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("door.key=k",), "Expected --door-key and --door-lock together, got one of them"),
        (("door.lock=l",), "Expected --door-key and --door-lock together, got one of them"),
        (
            ("door.guests=a",),
            "Expected --door-key and --door-lock beside --door-guests, got it alone",
        ),
        (("door.key=k", "door.lock=l", "door.rooms=none"), "Expected rooms, got none"),
        (("house.number=x",), "Invalid value for --set house.number: invalid literal for int()"),
    ],
)
def test_what_a_part_cannot_use_is_told_with_the_usage(given: tuple[str, ...], said: str) -> None:
    code, output, _ = built(*given)
    assert code == 2
    assert said in output
    assert output.startswith("Usage: ")


def test_what_a_role_cannot_use_ends_its_command() -> None:
    code, output, error = built("base=101")
    assert (code, output) == (1, "")
    assert str(error) == "Expected a house, got a tower"


def test_a_command_takes_one_part_by_flags_or_does_without() -> None:
    def run(*arguments: str) -> str:
        return CliRunner().invoke(at_the_door, arguments).output.strip()

    assert run() == "None"
    assert run("--door-key", "k", "--door-lock", "l") == repr(DoorSettings(key=Path("k"), lock="l"))
    assert "No such option: --door-rooms" in run("--door-rooms", "x")
    help_text = run("--help")
    assert "REPRISE_DOOR_KEY" in help_text


def test_what_a_role_cannot_do_without_is_required() -> None:
    @part
    class NeedySettings:
        door: DoorSettings

    @click.command(cls=RoleCommand)
    @role_settings(NeedySettings)
    def needy(settings: NeedySettings) -> None:
        click.echo(repr(settings))

    assert "Missing option --set door.key" in CliRunner().invoke(needy, []).output
