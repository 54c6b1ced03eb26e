"""The private parts of aiokafka, and of its loop, that Reprise uses; no other module uses any.

The version is pinned for them, and `tests/unit/brokers/test_client_internals.py` checks each name
against the installed version.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import aiokafka.client  # type: ignore[import-untyped]
import aiokafka.consumer.consumer  # type: ignore[import-untyped]
import aiokafka.record.default_records  # type: ignore[import-untyped]
from aiokafka.codec import zstd_encode  # type: ignore[import-untyped]
from aiokafka.consumer.fetcher import (  # type: ignore[import-untyped]
    READ_COMMITTED,
    Fetcher,
    FetchError,
)
from aiokafka.protocol.metadata import MetadataRequest  # type: ignore[import-untyped]

from brokers.client_types import Epoch, Partition
from brokers.errors import AWAY, DamagedPartitionError
from brokers.record_batches import check_batches
from schemas.limits import CLIENT_LEAVE_S, KIB

# Waits of the clients. Past any of them the broker counts as away: the condition `kafka`.
FETCH_GATHER_S: Final = 0.005  # from an answer with some records to the next fetch: latency
FETCH_GATHER_BYTES: Final = 256 * KIB  # after a larger answer there is no pause: there is more
FETCH_UNREADABLE_S: Final = 2.0  # answered without a record, though there are more: it is looked at
FETCH_UNREADABLE_TIMES: Final = 3  # and at least so many times, each within
FETCH_UNREADABLE_GAP_S: Final = 10.0  # of the one before
FETCH_PROBE_S: Final = 0.3  # for each offset that is tried behind one that cannot be read
FETCH_ERROR_PAUSE_S: Final = 0.1  # after an answer that is an error
TABLE_PRODUCER_STOP_S: Final = 15.0  # for a producer of rows to send what it has, and to close

ConsumerT = TypeVar("ConsumerT")

_LOST_PASSES: Final = 3
"""Passes of a loop from `abort` to a closed socket."""

_FETCH_KEY: Final = 1
_ZSTD_LEVEL: Final = 1

_UNREADABLE_CODES: Final = (-1, 2, 10, 43, 76, 87)
"""What a broker says of a partition that it cannot read where it was asked: unforeseen, corrupt,
too large, of another format, of an unknown compression, invalid. All else is not of the records.
"""


def forbid_topic_creation() -> None:
    """Keeps the clients of this process from asking brokers to create missing topics.

    They ask by default, for each topic that they read or write, whenever they refresh what they
    know; with Kafka's default `auto.create.topics.enable=true` a topic that is deleted beneath them
    comes back at once with the broker's partition count instead of ours. The client has no option
    for it.
    """
    aiokafka.client.MetadataRequest = partial(MetadataRequest, allow_auto_topic_creation=False)


def check_fetches() -> None:
    """Has every consumer of this process check what it fetches before it believes any of it.

    The client looks at checksums while it gives records out: one that fails loses what it had read
    of that batch's partition and of all others. It believes offsets that no checksum covers, and
    asks a broker that answers with an error again at once, and forever.
    """
    aiokafka.consumer.consumer.Fetcher = _CheckedFetcher


def compress_lightly() -> None:
    """Has the producers of this process compress with zstd's level 1, where the client has 3 and no
    option for it: for records that is about half the time and the same size, see `brokers.clients`.
    """
    builder = sys.modules[aiokafka.record.default_records.DefaultRecordBatchBuilder.__module__]
    builder.zstd_encode = zstd_encode_lightly  # type: ignore[attr-defined]


def zstd_encode_lightly(payload: Any) -> bytes:
    """Compresses with zstd's level 1."""
    return zstd_encode(payload, level=_ZSTD_LEVEL)  # type: ignore[no-any-return]


def expect_every_offset(consumer: ConsumerT) -> ConsumerT:
    """For topics that are not compacted: an offset that is missing is damage. Returns it."""
    client: Any = consumer._client  # type: ignore[attr-defined]  # noqa: SLF001
    client.expects_every_offset = True
    return consumer


@contextmanager
def probing(consumer: Any) -> Iterator[None]:
    """Has a consumer of one partition say soon that an offset cannot be read."""
    fetcher = getattr(consumer, "_fetcher", None)
    if not isinstance(fetcher, _CheckedFetcher):
        yield
        return
    fetcher.patience_s = FETCH_PROBE_S
    try:
        yield
    finally:
        fetcher.patience_s = FETCH_UNREADABLE_S


class _CheckedFetcher(Fetcher):  # type: ignore[misc]
    """Raises `DamagedPartitionError`, as the client raises what concerns one partition: nothing is
    lost of the others, and the partition stays where it is until the consumer is sought elsewhere.
    """

    def __init__(self, client: Any, *args: Any, **options: Any) -> None:
        super().__init__(_Answers(client, self._checked), *args, **{**options, "check_crcs": False})
        self.patience_s = FETCH_UNREADABLE_S
        self._contiguous = getattr(client, "expects_every_offset", False)
        self._damaged: dict[Partition, DamagedPartitionError] = {}
        self._nothing: dict[Partition, _EmptyAnswers] = {}

    async def _proc_fetch_request(self, assignment: Any, node_id: Any, request: Any) -> bool:
        needs_wakeup: bool = await super()._proc_fetch_request(assignment, node_id, request)
        for topic, partitions in request.topics:
            for number, offset, _ in partitions:
                part = Partition(topic, number)
                error = self._damaged.pop(part, None)
                if error is not None and part not in self._records and assignment.active:
                    state = assignment.state_value(part)
                    self._records[part] = _Damaged(error, offset, state, self._prefetch_backoff)
                    needs_wakeup = True
        return needs_wakeup

    async def _checked(self, request: Any, response: Any) -> Any:
        """The answer, without what cannot be believed."""
        wanted = {
            Partition(topic, number): offset
            for topic, partitions in request.topics
            for number, offset, _ in partitions
        }
        failed = False
        has_bytes = False  # of those that the broker served first
        topics = []
        for topic, partitions in response.topics:
            checked = []
            for number, code, highwater, *rest in partitions:
                part = Partition(topic, number)
                if code == 0:
                    end = highwater
                    if self._is_committed and rest[0] >= 0:
                        end = min(highwater, rest[0])
                    fetched = rest[-1] or b""
                    rest[-1] = self._check(
                        part, fetched, wanted[part], end, is_served=not has_bytes
                    )
                    has_bytes = has_bytes or bool(fetched)
                else:
                    failed = True
                    if code in _UNREADABLE_CODES:
                        self._note_nothing(part, wanted[part])
                checked.append((number, code, highwater, *rest))
            topics.append((topic, checked))
        response.topics = topics
        if failed and not has_bytes:
            await asyncio.sleep(FETCH_ERROR_PAUSE_S)
        return response

    @property
    def _is_committed(self) -> bool:
        return bool(self._isolation_level == READ_COMMITTED)

    def _check(
        self, part: Partition, fetched: bytes, wanted: int, end: int, *, is_served: bool
    ) -> bytes:
        """`is_served`: the broker must give the partition a batch, whatever its size, since it has
        given none to those before it.
        """
        found = check_batches(fetched, wanted, end, contiguous=self._contiguous)
        if found.damaged:
            self._damaged[part] = DamagedPartitionError(
                part, wanted, found.readable_from, is_proven=True
            )
        elif not found.batches and wanted < end:
            if is_served:
                self._note_nothing(part, wanted)
            return found.batches
        self._nothing.pop(part, None)
        return found.batches

    def _note_nothing(self, part: Partition, offset: int) -> None:
        """Told after some of them in a row: it may be the broker that cannot read for a moment."""
        now = asyncio.get_running_loop().time()
        seen = self._nothing.get(part)
        if seen is None or seen.offset != offset or now - seen.last > FETCH_UNREADABLE_GAP_S:
            seen = _EmptyAnswers(offset, now, now, 0)
        seen = seen._replace(last=now, times=seen.times + 1)
        if now - seen.since > self.patience_s and seen.times >= FETCH_UNREADABLE_TIMES:
            self._damaged[part] = DamagedPartitionError(part, offset, None)
            seen = _EmptyAnswers(offset, now, now, 0)
        self._nothing[part] = seen


class _EmptyAnswers(NamedTuple):
    """Answers in a row that had no record of a partition, though it has more."""

    offset: int
    since: float
    last: float
    times: int


class _Damaged(FetchError):  # type: ignore[misc]
    """In the place of records: raised once they are asked for, unless the consumer was sought
    elsewhere meanwhile.
    """

    def __init__(
        self, error: DamagedPartitionError, offset: int, state: Any, backoff: float
    ) -> None:
        super().__init__(error=error, backoff=backoff)
        self._offset = offset
        self._state = state

    def check_raise(self) -> None:
        if self._state.has_valid_position and self._state.position == self._offset:
            super().check_raise()


class _Answers:
    """The client of a fetcher, whose answers to fetches are checked.

    A broker answers a fetch as soon as it has a batch of one partition. Where others are about to
    have some, too, each would be a fetch of its own, which costs more than to apply what it brings:
    so the next fetch waits for FETCH_GATHER_S after an answer that was small, and no other.
    """

    def __init__(self, client: Any, check: Any) -> None:
        self._client = client
        self._check = check
        self._gather_until: dict[Any, float] = {}  # by node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def send(self, node_id: Any, request: Any, **options: Any) -> Any:
        if request.API_KEY != _FETCH_KEY:
            return await self._client.send(node_id, request, **options)
        pause_s = self._gather_until.pop(node_id, 0.0) - asyncio.get_running_loop().time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        answer = await self._client.send(node_id, request, **options)
        if 0 < _fetched_bytes(answer) < FETCH_GATHER_BYTES:
            self._gather_until[node_id] = asyncio.get_running_loop().time() + FETCH_GATHER_S
        return await self._check(request, answer)


def _fetched_bytes(answer: Any) -> int:
    return sum(len(fetched or b"") for _, partitions in answer.topics for *_, fetched in partitions)


def epoch_of(producer: Any) -> Epoch:
    """The epoch that its start gave a transactional producer."""
    transactions = producer._txn_manager  # noqa: SLF001
    return Epoch(transactions.producer_id, transactions.producer_epoch)


def adopt_epoch(producer: Any, epoch: Epoch) -> None:
    """Lets an idempotent producer that was not started write under another one's epoch."""
    producer._txn_manager.set_pid_and_epoch(*epoch)  # noqa: SLF001


async def start_client(client: Any) -> None:
    """Starts a consumer or producer; a cancellation waits for that to end, CLIENT_LEAVE_S at most.

    Cut short in the middle, aiokafka forgets a connection that is open.

    Raises:
        KafkaError, OSError: as its `start`.
    """
    starting = asyncio.ensure_future(client.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait((starting,), timeout=CLIENT_LEAVE_S)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise


async def abandon_producer(producer: Any, timeout_s: float) -> None:
    """Stops a producer at once: what it has not sent yet, or wants to send again, is never sent.

    Args:
        producer: started.
        timeout_s: for each of two steps, in seconds.
    """
    producer._closed = True  # noqa: SLF001 -- else it warns of itself
    with suppress(*AWAY):
        await _close_producer(producer, timeout_s)


async def stop_producer(producer: Any) -> None:
    """Stops a producer of table rows; drops what it has not written, where the broker does not take
    it within TABLE_PRODUCER_STOP_S for each of three steps: that is refused once the next producer
    has started.
    """
    with suppress(*AWAY):
        try:
            async with asyncio.timeout(TABLE_PRODUCER_STOP_S):
                await producer.stop()
        except TimeoutError:  # it waits for a broker; a second `stop` would do nothing
            await _close_producer(producer, TABLE_PRODUCER_STOP_S)


async def close_connections(consumer: Any, timeout_s: float) -> None:
    """Closes the connections of a consumer whose `stop` was cut short before it did.

    Args:
        consumer: stopped.
        timeout_s: give up after it.
    """
    with suppress(*AWAY):
        async with asyncio.timeout(timeout_s):
            await consumer._client.close()  # noqa: SLF001


async def abort_connections() -> None:
    """Closes what is open on the running loop, which is about to be closed; its tasks have ended.

    A client that is cancelled while it connects forgets the connection, and may connect once more
    after its `stop`. It takes a connection for open, and warns of it, as long as something is left
    of what was received.
    """
    loop = asyncio.get_running_loop()
    for transport in list(getattr(loop, "_transports", {}).values()):
        reader = getattr(transport.get_protocol(), "_stream_reader", None)
        if reader is not None:
            reader._buffer.clear()  # noqa: SLF001
        transport.abort()
    for _ in range(_LOST_PASSES):
        await asyncio.sleep(0)


async def _close_producer(producer: Any, timeout_s: float) -> None:
    # `asyncio.wait_for` would swallow a cancellation that comes just as its work ends.
    try:
        async with asyncio.timeout(timeout_s):
            await producer._sender.close()  # noqa: SLF001 -- waits for what a silent broker owes
    finally:
        async with asyncio.timeout(timeout_s):
            await producer.client.close()
