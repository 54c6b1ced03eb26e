"""What the command line says of itself."""

import pytest
from click.testing import CliRunner

from reprise.cli.main import COMMANDS, main


def test_the_help_names_every_command_with_an_example() -> None:
    text = CliRunner().invoke(main, ["--help"]).output
    for name in COMMANDS:
        assert f"\n  reprise {name} " in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_how_it_is_used(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: main {name} ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sub", "No such command 'sub'"),
        ("ups", "Expected a command, got: ups. Did you mean: up?"),
        ("docter", "Expected a command, got: docter. Did you mean: doctor?"),
        ("help", "Expected a command, got: help. Try `main -h`"),
    ],
)
def test_a_name_that_is_none_is_refused_with_those_that_are_near(name: str, text: str) -> None:
    result = CliRunner().invoke(main, [name])
    assert result.exit_code == 2
    assert text in result.output


def test_a_replica_takes_a_data_directory_that_only_a_history_needs() -> None:
    text = CliRunner().invoke(main, ["serve", "--help"]).output
    assert "without that a replica keeps nothing on disk" in " ".join(text.split())
    result = CliRunner().invoke(main, ["serve", "--data", "x", "--kafka", ""])
    assert "--data" not in result.output
    assert "Expected" in result.output
