"""The proof of answers: what agrees, what disagrees, and what proves nothing."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from logs.embedded import EmbeddedLog
from reprise.cli.audit import lines_of
from schemas.answer_records import encode_answer, encode_answers, end_answer
from streams.audit.log import ANSWERS
from streams.audit.verification import AnswersVerification, VerificationResult
from tests.building import (
    SCOPE,
    events_record,
    prefix_hashes,
    registered_record,
    registration,
    removed,
    stored,
    u64s,
)

TOKENS = list(range(8))
RECORDS = [
    registered_record(registration("a")),
    events_record(0, 0, [stored(0, [1, 2], TOKENS)]),
    events_record(1, 1, [removed(1, [2])]),
]
HELD = [0, 8, 4]
"""Tokens, after each record."""

Instance = tuple[object, ...]


def instance(tokens: int, name: str = "a") -> Instance:
    return (name, tokens, tokens, 0, 0, ((0, tokens, tokens, tokens, tokens),))


def answer(
    offset: int,
    instances: Sequence[Instance],
    sequence: int = 0,
    *,
    partition: int = 0,
    hits_only: bool = False,
    scope: tuple[str, str, str, int, str] = SCOPE,
) -> bytes:
    return encode_answer(
        [(partition, offset)],
        scope,
        None,
        hits_only=hits_only,
        tokens=len(TOKENS),
        hashes=u64s(prefix_hashes(TOKENS)),
        instances=instances,
    ) + end_answer(0.0, "exact", sequence)


@pytest.fixture
def answers(tmp_path: Path) -> Iterator[EmbeddedLog]:
    opened = ANSWERS.opened(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def full(log: EmbeddedLog) -> EmbeddedLog:
    log.append(RECORDS)
    return log


def record(*given: bytes, run: int = 1, seed: int = 1337) -> bytes:
    return encode_answers(run, seed, len(given), b"".join(given))


def verified(answers: EmbeddedLog, log: EmbeddedLog) -> VerificationResult:
    return AnswersVerification(answers, log, None).run()


def test_answers_agree_in_whatever_order_they_were_written(
    answers: EmbeddedLog, full: EmbeddedLog
) -> None:
    answers.append(
        [
            record(answer(2, [instance(4)], 0), answer(0, [instance(0)], 1)),
            record(answer(1, [instance(8)], 2), answer(-1, [], 3)),
            record(answer(2, [instance(4)], 0), run=2),
        ]
    )
    seen: list[tuple[int, int]] = []
    found = AnswersVerification(answers, full, None).run(lambda *at: seen.append(at))
    assert (found.answers, found.agreed, found.disagreed, found.missing) == (5, 5, 0, 0)
    assert (found.lowest, found.highest, found.is_proven) == ({0: -1}, {0: 2}, True)
    assert seen[-1] == (5, 5)
    assert lines_of(found) == [
        "answers 5, positions 0:-1 to 0:2: agreed 5, disagreed 0, beyond the log 0"
    ]


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_an_answer_of_another_position_disagrees(
    answers: EmbeddedLog, full: EmbeddedLog, offset: int
) -> None:
    answers.append([record(answer(offset, [instance(held)], held)) for held in (0, 4, 8)])
    found = verified(answers, full)
    assert (found.agreed, found.disagreed) == (1, 2)
    assert {one.answer.sequence for one in found.shown} == {0, 4, 8} - {HELD[offset]}


def test_a_disagreement_is_named(answers: EmbeddedLog, full: EmbeddedLog) -> None:
    answers.append([record(answer(2, [instance(8), instance(0, "b")], 5), run=3)])
    found = verified(answers, full)
    assert not found.is_proven
    assert lines_of(found) == [
        "disagrees: answer 3.5 at position 0:2, scope default / m /  / 4 / , instance a",
        "  said   longest 8  GPU 8 CPU 0 DISK 0  rank 0: 8 (GPU 8 CPU 8 DISK 8)",
        "  is so  longest 4  GPU 4 CPU 0 DISK 0  rank 0: 4 (GPU 4 CPU 4 DISK 4)",
        "disagrees: answer 3.5 at position 0:2, scope default / m /  / 4 / , instance b",
        "  said   longest 0  GPU 0 CPU 0 DISK 0  rank 0: 0 (GPU 0 CPU 0 DISK 0)",
        "  is so  no such instance",
        "answers 1, positions 0:2 to 0:2: agreed 0, disagreed 1, beyond the log 0",
    ]


def test_instances_that_hold_nothing_may_be_left_out(
    answers: EmbeddedLog, full: EmbeddedLog
) -> None:
    answers.append(
        [
            record(
                answer(0, [], 0, hits_only=True),
                answer(1, [instance(8)], 1, hits_only=True),
                answer(0, [], 2),
                answer(1, [], 3, scope=SCOPE._replace(block_size=2**40)),
            )
        ]
    )
    found = verified(answers, full)
    assert [one.answer.sequence for one in found.shown] == [2]
    assert found.agreed == 3


def test_what_the_log_does_not_have_proves_nothing(answers: EmbeddedLog, log: EmbeddedLog) -> None:
    log.advance_to(log.end_offset + 1)  # type: ignore[arg-type]
    log.append(RECORDS)
    answers.append([record(answer(2, [instance(8)], 0), answer(99, [instance(8)], 1))])
    found = verified(answers, log)
    assert (found.beyond, found.disagreed, found.is_proven) == (2, 0, True)
    assert "complete only from 1" in found.beyond_reason
    assert "2 answers are beyond what the log and its history have" in lines_of(found)[0]


def test_numbers_that_are_missing_are_counted(answers: EmbeddedLog, full: EmbeddedLog) -> None:
    answers.append([record(*(answer(1, [instance(8)], sequence) for sequence in (3, 4, 9)))])
    found = verified(answers, full)
    assert (found.missing, found.is_proven) == (4, True)
    assert "4 answers between these were not kept" in lines_of(found)[0]


def test_records_that_cannot_be_read_prove_nothing_and_hide_nothing(
    answers: EmbeddedLog, full: EmbeddedLog
) -> None:
    answers.append(
        [
            b"\xc1",
            record(answer(1, [instance(8)], partition=1)),
            record(answer(1, [instance(8)])),
            record(),
        ]
    )
    found = verified(answers, full)
    assert (found.answers, found.agreed, found.unreadable) == (1, 1, 2)
    assert not found.is_proven
    assert found.unreadable_reason.startswith("record 0 of the log of answers: ")


def test_a_log_without_answers(answers: EmbeddedLog, full: EmbeddedLog) -> None:
    found = verified(answers, full)
    assert lines_of(found) == ["answers 0: agreed 0, disagreed 0, beyond the log 0"]
