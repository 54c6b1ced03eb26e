"""The proof of answers of replicas: positions are vectors, and no broker is needed to compare."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from logs.interface import LogEntry
from reprise.cli.audit import lines_of
from schemas.answer_records import encode_answer, encode_answers, end_answer
from schemas.identities import Medium, Offset, StreamKey
from schemas.positions import LogBounds
from streams.audit.topics_verification import TopicsVerification
from streams.audit.verification import VerificationResult
from streams.kernel import open_kernel
from streams.kernel.interface import InstanceMatch
from streams.table.fold import Fold
from tests.building import (
    BLOCK,
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
A, B, POOL = (StreamKey("default", "m", BLOCK, "", name) for name in ("a", "b", "pool"))
EVENTS = [
    [  # partition 0: `a`, and blocks come and go
        registered_record(registration("a")),
        events_record(0, 0, [stored(0, [1], TOKENS[:4])], stream=A),
        events_record(1, 1, [removed(1, [1])], stream=A),
    ],
    [  # partition 1: `b`
        registered_record(registration("b")),
        events_record(0, 0, [stored(0, [1, 2], TOKENS)], stream=B),
        b"no record",
        events_record(1, 1, [removed(1, [2])], stream=B),
    ],
    [  # partition 2: a pool that both can read
        events_record(
            0, 0, [stored(0, [1, 2], TOKENS, shared=True, medium=Medium.CPU)], stream=POOL
        ),
    ],
]
VECTORS = [
    (a, b, pool)
    for a in range(-1, len(EVENTS[0]))
    for b in range(-1, len(EVENTS[1]))
    for pool in range(-1, len(EVENTS[2]))
]
"""All that a replica may have been at."""


class Entries:
    """A partition in memory; `start` is what retention has left."""

    def __init__(self, values: Sequence[bytes], start: int = 0) -> None:
        self.bounds = LogBounds(start, len(values))
        self.reads = 0
        self._values = values
        self._next = start

    def seek(self, offset: Offset) -> None:
        self._next = offset

    async def entries(self, last: Offset) -> AsyncIterator[LogEntry]:
        while self._next <= min(last, len(self._values) - 1):
            offset = Offset(self._next)
            self._next += 1
            self.reads += 1
            yield LogEntry(offset, self._values[offset])


def truth(vector: Sequence[int]) -> list[InstanceMatch]:
    """What a fold of just that gives."""
    kernel = open_kernel(1337, name="reference")
    for partition, offset in enumerate(vector):
        fold = Fold(kernel)
        for at, value in enumerate(EVENTS[partition][: offset + 1]):
            fold.apply(Offset(at), value)
    return kernel.query_by_hash(SCOPE, u64s(prefix_hashes(TOKENS)), None)


def answer(
    vector: Sequence[int], sequence: int, said: Sequence[InstanceMatch] | None = None
) -> bytes:
    return encode_answer(
        enumerate(vector),
        SCOPE,
        None,
        hits_only=False,
        tokens=len(TOKENS),
        hashes=u64s(prefix_hashes(TOKENS)),
        instances=truth(vector) if said is None else said,
    ) + end_answer(0.0, "exact", sequence)


def record(*given: bytes, run: int = 1, replica: str = "one:1", seed: int = 1337) -> bytes:
    return encode_answers(run, seed, len(given), b"".join(given), replica=replica)


def verified(
    answers: Sequence[Sequence[bytes]], *, starts: Sequence[int] = (0, 0, 0)
) -> tuple[VerificationResult, TopicsVerification]:
    events = [Entries(values, start) for values, start in zip(EVENTS, starts, strict=True)]
    verification = TopicsVerification([Entries(values) for values in answers], events)
    return asyncio.run(verification.run()), verification


def test_a_pool_of_another_partition_counts_for_every_instance() -> None:
    (a, b) = truth((1, 1, 0))
    assert (a.longest, b.longest) == (8, 8)
    assert truth((1, 1, -1))[0].longest == 4


def test_answers_agree_at_every_vector_in_whatever_order_and_partition() -> None:
    """One record each, of as many replicas: nothing follows on anything."""
    answers = [
        record(answer(vector, 0), replica=f"replica:{number}")
        for number, vector in enumerate(VECTORS)
    ]
    found, _ = verified([answers[::3], answers[1::3], answers[2::3]])
    assert (found.answers, found.agreed, found.disagreed) == (len(VECTORS), len(VECTORS), 0)
    assert (found.missing, found.is_proven) == (0, True)


def test_one_record_may_have_answers_of_which_neither_is_the_later_one() -> None:
    """As where a table was built again in between."""
    found, _ = verified([[record(*(answer(vector, n) for n, vector in enumerate(VECTORS)))]])
    assert (found.agreed, found.disagreed) == (len(VECTORS), 0)


def test_one_replica_takes_one_fold_and_two_at_the_same_time_take_two() -> None:
    one = [(0, -1, -1), (1, -1, -1), (1, 1, -1), (1, 1, 0)]
    other = [(-1, 0, -1), (-1, 1, -1), (1, 1, -1), (2, 1, 0)]
    records = [record(answer(vector, n)) for n, vector in enumerate(one)]
    found, verification = verified([records])
    assert (found.agreed, verification.folds) == (4, 1)
    records += [record(answer(vector, n), replica="other:1") for n, vector in enumerate(other)]
    found, verification = verified([records])
    assert (found.agreed, verification.folds) == (8, 2)
    assert (found.lowest, found.highest) == ({0: -1, 1: -1, 2: -1}, {0: 2, 1: 1, 2: 0})


def test_a_disagreement_is_named_with_its_replica() -> None:
    said = [one._replace(longest=4) if one.instance_id == "b" else one for one in truth((1, 1, -1))]
    found, _ = verified([[record(answer((1, 1, -1), 0), answer((1, 1, -1), 1, said), run=7)]])
    assert not found.is_proven
    assert lines_of(found) == [
        "disagrees: answer 7.1 of one:1 at position 0:1,1:1,2:-1, scope default / m /  / 4 / ,"
        " instance b",
        "  said   longest 4  GPU 8 CPU 0 DISK 0  rank 0: 8 (GPU 8 CPU 8 DISK 8)",
        "  is so  longest 8  GPU 8 CPU 0 DISK 0  rank 0: 8 (GPU 8 CPU 8 DISK 8)",
        "answers 2, positions 0:1,1:1,2:-1 to 0:1,1:1,2:-1: agreed 1, disagreed 1, beyond the log"
        " 0",
    ]


def test_an_answer_of_another_vector_disagrees_where_it_differs() -> None:
    said = truth((1, 1, 0))
    records = [record(answer(vector, n, said)) for n, vector in enumerate(VECTORS)]
    found, _ = verified([records])
    wrong = {vector for vector in VECTORS if truth(vector) != said}
    assert (found.agreed, found.disagreed) == (len(VECTORS) - len(wrong), len(wrong))
    shown = {tuple(at for _, at in one.answer.positions) for one in found.shown}
    assert shown
    assert shown <= wrong


def test_what_the_log_has_no_more_or_not_yet_is_counted_and_proves_nothing() -> None:
    answers = [
        record(
            answer((1, -1, -1), 0),
            answer((1, 1, -1), 1),  # partition 1 has lost its beginning
            answer((1, -1, 1), 2, []),  # partition 2 ends before
        )
    ]
    found, _ = verified([answers], starts=(0, 1, 0))
    assert (found.answers, found.agreed, found.disagreed, found.beyond) == (3, 1, 0, 2)
    assert found.is_proven
    assert "partition 1 has them only from 1 on" in found.beyond_reason


def test_numbers_that_are_missing_are_counted_for_each_run_of_each_replica() -> None:
    first = record(answer((0, 0, 0), 3), answer((0, 0, 0), 6))
    second = record(answer((0, 0, 0), 0), answer((0, 0, 0), 2), replica="two:1")
    found, _ = verified([[first], [second]])
    assert (found.agreed, found.missing) == (4, 3)


def test_what_is_no_record_of_this_log_is_counted_and_named() -> None:
    found, _ = verified([[b"no record", record(answer((0, 0), 0)), record(answer((0, 0, 0), 0))]])
    assert (found.answers, found.agreed, found.unreadable, found.is_proven) == (1, 1, 2, False)
    assert "record 0:0 of the topic of answers" in found.unreadable_reason


def test_seeds_are_verified_apart() -> None:
    hit = answer((1, 1, -1), 0)
    found, _ = verified([[record(hit), record(hit, seed=1)]])
    assert (found.agreed, found.disagreed) == (1, 1)  # no such prefix with another seed
