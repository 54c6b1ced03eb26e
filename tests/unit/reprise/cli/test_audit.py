"""Which log of answers is verified."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from brokers.settings import KafkaSettings
from reprise.cli.main import main
from streams.audit.verification import Verified


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[object]:
    """What was verified: a directory, or the servers and the topic of answers."""
    found: list[object] = []

    def of_data(data: Path, tell: Callable[[int, int], None]) -> Verified:
        found.append(data)
        return Verified()

    def of_topics(kafka: KafkaSettings, tell: Callable[[int, int], None]) -> Verified:
        found.append((kafka.bootstrap, kafka.answers.name))
        return Verified()

    monkeypatch.setattr("streams.audit.verification.verify_answers", of_data)
    monkeypatch.setattr("streams.audit.topics_verification.verify_topics", of_topics)
    monkeypatch.chdir(tmp_path)
    return found


def verify(*options: str, **environment: str) -> Result:
    return CliRunner().invoke(main, ["audit", "verify", *options], env=environment)


def test_the_topics_are_those_of_the_prefix(taken: list[object]) -> None:
    result = verify("--kafka", "k:1", "--topic-prefix", "p")
    assert (result.exit_code, taken) == (0, [("k:1", "p.answers")])
    assert result.output == "answers 0: agreed 0, disagreed 0, beyond the log 0\n"


def test_a_directory_that_is_named_goes_before_a_variable(
    taken: list[object], tmp_path: Path
) -> None:
    verify("--data", str(tmp_path), REPRISE_KAFKA="k:1")
    verify(REPRISE_KAFKA="k:1")
    assert taken == [tmp_path, ("k:1", "reprise.answers")]


def test_where_nothing_is_named_it_is_the_directory_data(
    taken: list[object], tmp_path: Path
) -> None:
    result = verify()
    assert result.exit_code == 2
    assert "Expected --data or --kafka, got neither" in result.output
    (tmp_path / "data").mkdir()
    assert verify().exit_code == 0
    assert taken == [Path("data")]


def test_both_are_refused(taken: list[object], tmp_path: Path) -> None:
    result = verify("--data", str(tmp_path), "--kafka", "k:1")
    assert (result.exit_code, taken) == (2, [])
    assert "Expected one of --data and --kafka" in result.output
