"""Which logs of answers and decisions are verified, and what is said of decisions."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from brokers.broker_settings import KafkaSettings
from logs.embedded import EmbeddedLog
from reprise.cli.main import main
from routing.audit import VerifiedDecisions
from routing.decisions.interface import OfferedCandidate, RouteRequest
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.router import Router
from schemas.identities import PrefixScope
from schemas.routing_records import CostModel, DecisionsRecord, LoadRecord, encode_routing
from streams.audit.source import ANSWERS_TOPIC
from streams.audit.verification import VerificationResult
from tests.fakes import FakeTable


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[object]:
    """What was verified: a directory, or the servers and the topic of answers."""
    found: list[object] = []

    def of_data(data: Path, tell: Callable[[int, int], None]) -> VerificationResult:
        found.append(data)
        return VerificationResult()

    def of_topics(kafka: KafkaSettings, tell: Callable[[int, int], None]) -> VerificationResult:
        found.append((kafka.bootstrap, kafka.topic(ANSWERS_TOPIC).name))
        return VerificationResult()

    def no_decisions(kafka: KafkaSettings, tell: Callable[[int, int], None]) -> VerifiedDecisions:
        return VerifiedDecisions()

    monkeypatch.setattr("routing.audit_topic.verify_routing_topic", no_decisions)
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


def routing_log(data: Path, *records: bytes) -> None:
    with closing(EmbeddedLog(data / "routing" / "log")) as log:
        log.append(list(records))


def decided(**changes: Any) -> bytes:
    """The record of one decision, of which one thing may be wrong."""
    clock = 1000.0
    router = Router(
        FakeTable(),
        RoutingQueue(),
        LiveLoad(),
        clock=lambda: clock,
        random_bytes=lambda size: (0xACA00).to_bytes(size, "big"),  # the run is 0x3b9aca00
    )
    candidates = (OfferedCandidate("a", 0), OfferedCandidate("b", 0))
    scope = PrefixScope("default", "m", "", 16, "")
    decision = router.route(RouteRequest("r", scope, 160, [], candidates=candidates)).decision
    changed = msgspec.structs.replace(decision, **changes)
    return encode_routing(DecisionsRecord(run=router.run, time=clock, decisions=(changed,)))


def test_decisions_are_proven_where_no_answers_were_kept(tmp_path: Path) -> None:
    routing_log(tmp_path, decided(), encode_routing(LoadRecord(run=0, time=1.0, samples=())))
    result = verify("--data", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert result.output == (
        "decisions 1: agreed 1, disagreed 0; who decodes is taken as it stands in 0\n"
    )


def test_a_decision_that_disagrees_is_shown_with_its_values(tmp_path: Path) -> None:
    routing_log(tmp_path, decided(), decided(chosen=-1, predicted_s=0.5), b"\xc1")
    result = verify("--data", str(tmp_path))
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0] == (
        "disagrees: decision 3b9aca00-0 in record 1 of the routing log, policy least-delay"
    )
    assert lines[1].startswith("  predicted_s: said 0.5, is so 0.020")
    assert lines[2].startswith("  chosen: said -1, is so ")
    assert lines[3].startswith("1 records of the routing log cannot be read: record 2 of")
    assert lines[4].startswith("decisions 2: agreed 1, disagreed 1;")


def test_where_no_record_can_be_read_that_is_counted_and_named(tmp_path: Path) -> None:
    routing_log(tmp_path, b"\xc1", b"\xc1")
    result = verify("--data", str(tmp_path))
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith("2 records of the routing log cannot be read: record 0 of")


def test_a_decision_of_impossible_numbers_disagrees(tmp_path: Path) -> None:
    costs = (CostModel(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),)
    routing_log(tmp_path, decided(costs=costs), decided())
    result = verify("--data", str(tmp_path))
    assert result.exit_code == 1
    assert "decisions 2: agreed 1, disagreed 1;" in result.output


def test_where_there_is_neither_it_says_so(tmp_path: Path) -> None:
    result = verify("--data", str(tmp_path))
    assert result.exit_code == 1
    assert "Error" in result.output
