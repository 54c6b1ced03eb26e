"""The bounded queue of answers, of both kernels: alike in every call."""

from collections.abc import Callable

import msgspec
import pytest

from schemas.answer_records import encode_answers
from streams.audit.queue import PythonAuditQueue
from streams.kernel import native_audit_queue
from streams.kernel.interface import AuditQueue

Make = Callable[..., AuditQueue]
CHUNK_BYTES = 1500

QUEUES = (
    [PythonAuditQueue] if native_audit_queue is None else [PythonAuditQueue, native_audit_queue]
)


@pytest.fixture(params=QUEUES)
def make(request: pytest.FixtureRequest) -> Make:
    found: Make = request.param
    return found


def taken(queue: AuditQueue) -> list[list[object]]:
    """All that it has, each answer as its fields; a pushed one is `array of 10` and 7 fields."""
    found = []
    for count, chunk in queue.take():
        record = msgspec.msgpack.decode(encode_answers(0, 0, count, chunk))
        found += record["answers"]
    return found


def answer(number: int) -> bytes:
    return b"\x9a" + bytes([number % 128] * 7)


@pytest.mark.parametrize(
    ("rate", "least", "most"), [(0.0, 0, 0), (1.0, 4096, 4096), (0.1, 340, 480)]
)
def test_the_share_that_is_drawn(make: Make, rate: float, least: int, most: int) -> None:
    queue = make(rate, 1024, CHUNK_BYTES)
    assert least <= sum(queue.draw() for _ in range(4096)) <= most


def test_the_same_answers_are_drawn_in_every_run_and_by_every_queue(make: Make) -> None:
    queue, other = make(0.3, 1024, CHUNK_BYTES), PythonAuditQueue(0.3, 1024, CHUNK_BYTES)
    assert [queue.draw() for _ in range(1000)] == [other.draw() for _ in range(1000)]


def test_answers_come_out_in_order_with_their_numbers(make: Make) -> None:
    queue = make(1.0, 1024, CHUNK_BYTES)
    assert taken(queue) == []
    for number in range(3):
        queue.push(answer(number), 0.5 * number, "exact")
    assert taken(queue) == [[n] * 7 + [0.5 * n, "exact", n] for n in range(3)]
    queue.push(answer(7), 2.0, "stale")
    assert taken(queue) == [[7] * 7 + [2.0, "stale", 3]]
    assert queue.counts() == (4, 0, 0)


def test_what_finds_no_room_is_counted_and_its_number_is_missing(make: Make) -> None:
    queue = make(1.0, 200, CHUNK_BYTES)
    for number in range(20):
        queue.push(answer(number), 0.0, "exact")
    kept, dropped, _ = queue.counts()
    assert kept + dropped == 20
    assert dropped > 0
    assert [fields[-1] for fields in taken(queue)] == list(range(kept))
    queue.note_unsettled()
    queue.push(answer(1), 0.0, "exact")
    assert [fields[-1] for fields in taken(queue)] == [21], "there is room again"
    assert queue.counts() == (kept + 1, dropped, 1)


def test_an_answer_larger_than_the_queue_is_dropped(make: Make) -> None:
    queue = make(1.0, 1024, CHUNK_BYTES)
    queue.push(bytes(1024), 0.0, "exact")
    assert queue.counts() == (0, 1, 0)
    assert queue.take() == []


def test_a_chunk_is_about_as_large_as_one_record_may_be(make: Make) -> None:
    queue = make(1.0, 10 * CHUNK_BYTES, CHUNK_BYTES)
    size = CHUNK_BYTES // 3
    for _ in range(9):
        queue.push(bytes(size), 0.0, "exact")
    chunks = queue.take()
    assert [count for count, _ in chunks] == [3, 3, 3]
    assert all(len(chunk) < 2 * CHUNK_BYTES for _, chunk in chunks)
