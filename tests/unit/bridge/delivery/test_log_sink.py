"""The sink over a log whose disk fails when it is told to."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from bridge.delivery import log_sink
from bridge.delivery.log_sink import LOG_FULL, LogSink
from logs import waiting_appends
from schemas.codec import decode_record
from schemas.errors import StorageError
from schemas.identities import Offset
from schemas.records import Record, UnregisteredRecord
from schemas.tracing import NO_TRACER, Tracer
from tests.building import memory_record
from tests.spans import KeptSpans
from tests.unit.bridge.messages import registration

PUBLISHERS = [registration(dp_rank=rank).publisher for rank in range(8)]


def record(number: int) -> Record:
    """Told from the others by its rank."""
    stream, dp_rank = PUBLISHERS[number]
    return UnregisteredRecord(stream=stream, dp_rank=dp_rank, bridge_time=0.0)


class FakeLog:
    """Keeps what it is given.

    Attributes:
        full: every write fails.
        late: a write that fails has reached the disk all the same; it shows after `reopen`.
        broken: it cannot be reopened.
    """

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.full = False
        self.late = False
        self.broken = False
        self._hidden: list[bytes] = []

    @property
    def end_offset(self) -> Offset:
        return Offset(len(self.values))

    def append(self, values: Sequence[bytes], *, now: float = 0.0) -> Offset:
        if self.late:
            self._hidden = list(values)
        if self.full or self.late:
            raise StorageError("no space left, for a test")
        first = self.end_offset
        self.values += values
        return first

    def reopen(self) -> None:
        if self.broken:
            raise StorageError("cannot be opened, for a test")
        self.values += self._hidden
        self._hidden = []


class Bench:
    def __init__(self, tracer: Tracer = NO_TRACER) -> None:
        self.traces: list[str] = []
        self.log = FakeLog()
        self.folded: list[tuple[int, int]] = []
        self.failures: list[StorageError] = []
        self.recoveries = 0
        self.is_idle = True
        self.sink = LogSink(
            cast(Any, self.log),
            on_appended=self.fold,
            on_failure=self.failures.append,
            on_recovered=self.recover,
            is_idle=lambda: self.is_idle,
            tracer=tracer,
        )

    def fold(self, first: Offset, encoded: Sequence[bytes]) -> None:
        self.traces.append(self.sink.appends.traceparent)
        assert self.log.values[first : first + len(encoded)] == list(encoded), "not in the log"
        self.folded += [
            (first + place, decode_record(value).dp_rank) for place, value in enumerate(encoded)
        ]

    def recover(self) -> None:
        self.recoveries += 1

    def append(self, *numbers: int) -> None:
        self.sink.append([record(number) for number in numbers])

    def numbers(self) -> list[int]:
        """Of the log's records, each of which has been folded under its offset."""
        assert [offset for offset, _ in self.folded] == list(range(len(self.log.values)))
        return [number for _, number in self.folded]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_records_are_appended_as_one_write_and_folded_under_their_offsets(bench: Bench) -> None:
    bench.append(0, 1)
    bench.append(2)
    bench.sink.append([])
    assert bench.numbers() == [0, 1, 2]
    assert bench.sink.is_ready


def test_what_cannot_be_appended_waits_in_order_and_is_not_folded(bench: Bench) -> None:
    bench.append(0)
    bench.log.full = True
    bench.append(1, 2)
    bench.append(3)
    bench.sink.appends.retry()
    assert (bench.numbers(), bench.sink.is_ready, len(bench.failures)) == ([0], False, 2)
    bench.log.full = False
    bench.append(4)
    assert bench.numbers() == [0]
    bench.sink.appends.retry()
    assert (bench.numbers(), bench.sink.is_ready) == ([0, 1, 2, 3, 4], True)
    assert (bench.sink.appends.waiting_bytes, bench.recoveries) == (0, 1)
    bench.append(5)
    assert bench.numbers() == [0, 1, 2, 3, 4, 5]


def test_a_write_that_had_reached_the_disk_before_its_error_is_not_repeated(bench: Bench) -> None:
    bench.append(0)
    bench.log.late = True
    bench.append(1, 2)
    bench.append(3)
    bench.log.late = False
    bench.sink.appends.retry()
    assert bench.numbers() == [0, 1, 2, 3]


def test_a_repeated_write_that_had_reached_the_disk_is_not_repeated_once_more(
    bench: Bench,
) -> None:
    bench.log.full = True
    bench.append(0)
    bench.append(1)
    bench.log.full, bench.log.late = False, True
    bench.sink.appends.retry()
    bench.log.late = False
    bench.sink.appends.retry()
    assert bench.numbers() == [0, 1]


def test_a_log_that_cannot_be_reopened_is_tried_again(bench: Bench) -> None:
    bench.log.full = True
    bench.append(0)
    bench.log.broken, bench.log.full = True, False
    bench.sink.appends.retry()
    assert (bench.numbers(), len(bench.failures)) == ([], 2)
    bench.log.broken = False
    bench.sink.appends.retry()
    assert bench.numbers() == [0]


def test_more_than_the_bound_does_not_wait_and_is_counted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.log.full = True
    bench.append(0, 1)
    monkeypatch.setattr(
        log_sink, "LOG_WAITING_BYTES_MAX", bench.sink.appends.waiting_bytes * 3 // 2
    )
    bench.append(2, 3)
    bench.append(4)
    assert bench.sink.dropped == {(PUBLISHERS[3], LOG_FULL): 1, (PUBLISHERS[4], LOG_FULL): 1}
    bench.log.full = False
    bench.sink.appends.retry()
    assert bench.numbers() == [0, 1, 2]


def test_who_has_something_to_append_waits_until_nothing_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting_appends, "LOG_RETRY_S", 1e-6)
    bench = Bench()

    async def run() -> None:
        await bench.sink.ready()
        bench.log.full = True
        running = asyncio.create_task(bench.sink.appends.run())
        bench.append(0)
        waiting = [
            asyncio.create_task(bench.sink.ready()),
            asyncio.create_task(bench.sink.room(PUBLISHERS[0])),
        ]
        while len(bench.failures) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not any(one.done() for one in waiting)
        bench.log.full = False
        await asyncio.gather(*waiting)
        running.cancel()

    asyncio.run(run())
    assert bench.numbers() == [0]


def test_who_would_delay_others_waits_until_nothing_waits_but_not_for_ever(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waits() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await bench.sink.idle()
        return loop.time() - began

    async def folded_meanwhile() -> None:
        bench.is_idle = False
        waiting = asyncio.create_task(bench.sink.idle())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        bench.is_idle = True
        await waiting

    monkeypatch.setattr(log_sink, "BULK_IDLE_WAIT_S", 60.0)
    asyncio.run(waits())
    asyncio.run(folded_meanwhile())
    monkeypatch.setattr(log_sink, "BULK_IDLE_WAIT_S", 0.05)
    bench.is_idle = False
    assert asyncio.run(waits()) >= 0.04


def test_publishers_that_lost_records_are_named_once_nothing_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_sink, "LOG_WAITING_BYTES_MAX", 1)
    bench.append(0)
    assert bench.sink.take_lost() == []
    bench.log.full = True
    bench.append(1, 2)
    bench.append(3)
    assert bench.sink.take_lost() == [], "others wait for the disk"
    bench.log.full = False
    bench.sink.appends.retry()
    lost = {publisher for publisher, reason in bench.sink.dropped if reason == LOG_FULL}
    assert lost
    assert set(bench.sink.take_lost()) == lost
    assert bench.sink.take_lost() == []


def test_what_is_of_no_publisher_is_not_kept_behind_a_failed_write(bench: Bench) -> None:
    bench.log.full = True
    bench.append(0)
    bench.sink.append([memory_record()])
    bench.append(1)
    bench.log.full = False
    bench.sink.appends.retry()
    assert bench.numbers() == [0, 1]


def test_each_write_that_has_a_span_hands_its_context_to_the_fold() -> None:
    spans = KeptSpans()
    bench = Bench(spans.tracer)
    bench.append(0, 1)
    (kept,) = spans.take()
    assert (kept.name, kept.parent) == ("bridge.append", "")
    assert kept.attributes == {
        "messaging.batch.message_count": 2,
        "reprise.log": "events",
        "reprise.position": "0:1",
    }
    bench.append(2)  # so soon after, of no trace
    bench.log.full = True
    bench.append(3)
    bench.log.full = False
    bench.sink.appends.retry()
    assert bench.traces == [kept.traceparent, "", ""]
    assert bench.numbers() == [0, 1, 2, 3]
