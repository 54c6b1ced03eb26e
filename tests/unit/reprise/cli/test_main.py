"""What the command line says of itself."""

import pytest
from click.testing import CliRunner

from reprise.cli.main import main


def test_the_help_names_every_command_with_an_example() -> None:
    text = CliRunner().invoke(main, ["--help"]).output
    for name in main.commands:
        assert f"\n  reprise {name} " in text


@pytest.mark.parametrize("name", main.commands)
def test_every_command_has_a_module_of_its_name(name: str) -> None:
    callback = main.commands[name].callback
    assert callback is not None
    assert callback.__module__ == f"reprise.cli.{name.replace('-', '_')}"


def test_a_replica_takes_a_data_directory_that_only_a_history_needs() -> None:
    text = CliRunner().invoke(main, ["serve", "--help"]).output
    assert "without that a replica keeps nothing on disk" in " ".join(text.split())
    result = CliRunner().invoke(main, ["serve", "--data", "x", "--kafka", ""])
    assert "--data" not in result.output
    assert "Expected" in result.output
