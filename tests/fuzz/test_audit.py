"""Kept answers and decisions with anything in them: each is proven, refused or unreadable, and the
proof goes on to the next.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from unicodedata import category

import msgspec
import pytest

from console.terminal import printable
from logs.embedded import EmbeddedLog
from logs.interface import LogEntry
from reprise.cli.audit import decision_lines, lines_of
from routing.audit import VerifiedDecisions
from schemas.identities import Offset
from schemas.routing_records import DecisionsRecord, encode_routing
from streams.audit.log import ANSWERS
from streams.audit.verification import AUDIT_SEEDS_MAX, AnswersVerification
from tests.fuzz.mutation import Base, Mutator
from tests.unit.routing.observed.records import RUN, a_decision
from tests.unit.streams.audit.test_verification import RECORDS, answer, instance, record

pytestmark = pytest.mark.smoke  # a seed decides, without a process, in half a second

CASES = 2_000


def moves_a_cursor(line: str) -> bool:
    return any(category(character) in ("Cc", "Cf", "Zl", "Zp") for character in printable(line))


@pytest.fixture
def answers(tmp_path: Path) -> Iterator[EmbeddedLog]:
    opened = ANSWERS.opened(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def mutator(seed: int) -> Mutator:
    return Mutator(Random(seed))


def test_answers_of_any_bytes_are_proven_refused_or_unreadable(
    answers: EmbeddedLog, log: EmbeddedLog, mutator: Mutator
) -> None:
    log.append(RECORDS)
    good = record(answer(1, [instance(8)], 1), answer(2, [instance(4)], 2))
    base = Base(msgspec.msgpack.decode(good))
    hostile = [mutator.encoded(base) for _ in range(CASES)]
    answers.append([*hostile, good])
    found = AnswersVerification(answers, log, None).run()
    assert found.unreadable > 0
    assert found.agreed >= 2
    assert found.done == found.answers
    assert not any(map(moves_a_cursor, lines_of(found)))


def test_decisions_of_any_bytes_are_proven_refused_or_unreadable(mutator: Mutator) -> None:
    good = encode_routing(DecisionsRecord(time=1.0, run=RUN, decisions=(a_decision(1),)))
    base = Base(msgspec.msgpack.decode(good))
    found = VerifiedDecisions()
    for number in range(CASES):
        found.take(LogEntry(Offset(number), mutator.encoded(base)))
    assert found.unreadable > 0
    assert found.decisions == found.agreed + found.disagreed
    assert not any(map(moves_a_cursor, decision_lines(found)))


def test_answers_of_many_seeds_cost_no_fold_of_the_log_each(
    answers: EmbeddedLog, log: EmbeddedLog
) -> None:
    log.append(RECORDS)
    values = [record(answer(2, [instance(4)], 1), seed=seed) for seed in range(1_000)]
    answers.append([record(answer(2, [instance(4)], 1)), *values])
    found = AnswersVerification(answers, log, None).run()
    assert found.unreadable == 1_001 - AUDIT_SEEDS_MAX
    assert "seeds" in found.unreadable_reason
