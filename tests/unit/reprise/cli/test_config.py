"""`reprise config show`: each key of a role, its value, and where that comes from."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from reprise.cli.main import main
from reprise.cli.service_command import ROLES, role_command

ROOT = Path(__file__).parents[4]
KEY = r"`([a-z_.]+)`"


def shown(*arguments: str, **environment: str) -> dict[str, tuple[str, str]]:
    done = CliRunner().invoke(main, ["config", "show", *arguments], env=environment)
    assert done.exit_code == 0, done.output
    rows = [re.split(r"  +", line.strip()) for line in done.output.splitlines()[1:]]
    return {row[0]: (row[1] if len(row) > 2 else "", row[-1]) for row in rows}


@pytest.mark.parametrize("role", ROLES)
def test_every_key_of_a_role_is_shown_and_nothing_is_needed_for_that(role: str) -> None:
    assert shown(role).keys() == {one.key for one in role_command(role).settings()}


def test_each_value_says_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    file.write_text("seed = 7\n[load]\nscrape_s = 5\n[streams]\nflush_ms = 3\n")
    given = ("up", "--settings", str(file), "--port", "5", "--set", "log.retention_gib=2")
    found = shown(*given, REPRISE_POLICY="round-robin")
    assert found["load.scrape_s"] == ("5.0", f"file, {file}")
    assert found["seed"] == ("7", f"file, {file}")
    assert found["port"] == ("5", "flag")
    assert found["log.retention_gib"] == ("2", "flag")
    assert found["routing.policy"] == ("round-robin", "environment, REPRISE_POLICY")
    assert found["memory.prefix"] == ("kvcached_", "default")


def test_a_password_is_not_shown() -> None:
    found = shown("bridge", "--set", "kafka.sasl_password=hush")
    assert found["kafka.sasl_password"] == ("(not shown)", "flag")


def test_a_command_has_a_dozen_flags() -> None:
    for role in ROLES:
        flags = [one for one in role_command(role).params if not getattr(one, "hidden", False)]
        assert len(flags) <= 17, [one.name for one in flags]


def test_the_document_names_every_key_with_the_roles_that_have_it_and_no_other() -> None:
    text = (ROOT / "docs" / "run.md").read_text()
    table = text.partition("## Settings")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    named = {
        key: set(roles.split()) for _, keys, roles, *_ in rows for key in re.findall(KEY, keys)
    }
    found: dict[str, set[str]] = {}
    for role, letter in zip(ROLES, ("U", "B", "W", "R"), strict=True):
        for one in role_command(role).settings():
            found.setdefault(one.key, set()).add(letter)
    assert named == found
