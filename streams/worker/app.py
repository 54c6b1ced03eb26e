"""The worker's Faust app: an agent folds a topic, the events or, in an app of its own
(`routing.worker.worker`), the routing log. The only module that imports Faust.

Faust 0.15.3 assigns, fetches, delivers, acknowledges and commits; `streams.worker.tables` owns the
tables, of which Faust knows nothing. One agent, not isolated, takes batches (`take_events`) of all
partitions:

- an isolated agent is cancelled at each rebalance, which its supervisor counts as a crash, and ends
  the process by `SystemExit` beyond a few; a shared one is left alone, and what is queued for it is
  dropped where it is of another generation of the group;
- its batch has a buffer that a rebalance does not clear: the body compares generations itself;
- the batch is acknowledged after the body, however that ends. No exception may leave it, for the
  actor would be restarted and the batch be lost: it goes to `AttemptOutcome.fail`, and the app
  ends.

What is overridden, most of it private (`tests/unit/streams/worker/test_seams.py` compares names and
parameters with the pinned versions):

    `_create_worker_consumer`, `_new_consumer_thread`, `_new_transport`
        our options: TLS and SASL, the sticky assignor that all versions of a worker share, read
        committed, messages of 8 MiB.
    `seek_to_committed`
        the position is what the table covers, never what the group committed: that only shows lag.
        It is asked for while partitions are away or being opened, too: those are skipped.
    `TableManager.on_rebalance` (a setting)
        opens the tables before anything flows: the signal `on_partitions_assigned` is sent when
        records flow already. It returns at once, and hands on to Faust, which then seeks and lets
        records flow, when the tables are open: no heartbeat is sent while the callback of a
        rebalance runs, and a worker that loads for longer than its session would be expelled.
        Where they do not open it does not hand on: nothing flows, and the app ends.
    `TableManager.on_start`
        does not sleep for a second, in which partitions of a worker that restarts would wait.
    signal `on_partitions_revoked`
        the group waits for it; so the flush under way ends before others have the partitions.
    `_getmany`
        records that came together become one message, for Faust's work on each takes several times
        as long as to fold it; a batch that is damaged is read past; any other error of the client
        ends the app in order, where Faust would crash.
    `commit`, `_commit`
        what the tables cover, after each batch, too; a commit that fails, or takes long, is left to
        the next one, where Faust would crash, or wait for a thread that has crashed.
    `on_start`, `on_thread_stop`, `_gather_remaining_tasks`, `on_crash` of the thread
        a broker that is away at the start, or at the end, ends the app in order; no connection is
        left open; nothing is printed.
    `Worker` of the thread
        a process that has to end does not wait for a consumer whose broker is away.
    `Stream.wait_for_stopped`
        how long a batch gathers: `take_events` would wait from the end of the last one, also where
        it has taken long, and look for records that often while there are none.
    `on_buffer_full`
        nothing: the fetch waits for room. Faust would leave the partition out of the next fetch,
        and sleep for a second where that leaves none.
    `_add_gap`, `_new_offset`
        messages are of many records each, which Faust would take for gaps, and sort trees of. What
        was acked only says of which partitions there is something to commit.
    `verify_event_path`
        nothing: it only logs, and reads what the consumer's thread may just take away.
    `_create_directories`
        none are needed.
    `_crash`
        passed to `AttemptOutcome.crash`.

Tables of Faust's own are not used: their recovery waits for the last offset of the changelog, and a
transaction ends in a record that no consumer is given; nor do they fence, or write rows and offset
as one.

A partition that stands still although its log has more ends the app (`stall_watch`): that nothing
comes is what every fault between the broker and the agent looks like. So does a table topic that
was lost meanwhile, which a partition of which nothing comes would never write to.

A stopped app cannot be started again: each attempt makes a new one.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import faust
from faust.app.base import BootStrategy
from faust.streams import Stream
from faust.tables.manager import TableManager
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, StreamT
from faust.types.transports import TransportT
from mode.threads import ServiceThread, WorkerThread
from yarl import URL

from brokers.client_internals import abort_connections
from brokers.client_types import Partition
from brokers.clients import Clients
from brokers.errors import DamagedPartitionError, KafkaError
from brokers.options import ClientOptions
from brokers.reading import log_bounds, stop_consumer
from logs.interface import LogEntry, TracedEntry
from schemas.folded_work import encode_work
from schemas.identities import Offset
from schemas.limits import CLIENT_LEAVE_S, GIB, KAFKA_MESSAGE_MAX_BYTES, KIB
from schemas.topics import TRACEPARENT_HEADER
from schemas.tracing import read_traceparent
from streams.bounds import WORKER_POLL_S, WORKER_STALL_CHECK_S
from streams.worker.gathering import Gathering
from streams.worker.outcome import AttemptOutcome
from streams.worker.owner import PartitionOwner
from streams.worker.stall_watch import StallWatch

# Between its consumer and its fold, in messages, since Faust counts no bytes. Above them the worker
# fetches no more. It has a poll, a buffer and a batch in memory at once: some 80 MiB while it
# catches up with busy engines, and 3 GiB if each record were as large as one may be. Fetched and
# not polled there are 32 MiB more, compressed.
WORKER_POLL_RECORDS_MAX: Final = 256  # of one poll
WORKER_MESSAGE_BYTES: Final = 512 * KIB  # of records that are one message, or a single record
WORKER_BUFFER_MESSAGES_MAX: Final = 64  # polled, and not yet in a batch
WORKER_BATCH_MESSAGES_MAX: Final = 64  # folded and written at once

WORKER_DAMAGE_PAUSE_S: Final = 0.05  # between two fetches, while damage is read past
WORKER_COMMIT_S: Final = 2.0  # how often the offset is committed, which only tells lag
WORKER_APP_STOP_S: Final = 30.0  # for Faust's services to end after a failure

assert (
    KAFKA_MESSAGE_MAX_BYTES
    * (WORKER_POLL_RECORDS_MAX + WORKER_BUFFER_MESSAGES_MAX + WORKER_BATCH_MESSAGES_MAX)
    <= 3 * GIB
), "a worker that catches up must fit a machine, however large its records are"

_NEVER: Final = 2**31 - 1


class _Daemon(WorkerThread):
    def __init__(self, service: ServiceThread, **options: Any) -> None:
        super().__init__(service, **options)
        self.daemon = True


class _Thread(driver.AIOKafkaConsumerThread):
    """Faust's consumer, in a thread with a loop of its own: heartbeats wait for nothing of ours."""

    app: "WorkerApp"
    Worker = _Daemon

    def _create_worker_consumer(self, transport: driver.Transport) -> Any:
        return self.app.new_consumer()

    async def on_start(self) -> None:
        self.app.outcome.enter_consumer_thread()
        try:
            await super().on_start()
        except (KafkaError, OSError) as error:
            self.app.outcome.fail(error)
            await self.wait_until_stopped()

    async def on_thread_stop(self) -> None:
        # Of the base's base: its own stops the consumer, whose fetcher may end that call, and with
        # it this thread, by the cancellation of a fetch.
        await super(driver.AIOKafkaConsumerThread, self).on_thread_stop()
        if self._consumer is not None:
            await stop_consumer(self._consumer)

    async def _gather_remaining_tasks(self) -> None:
        await super()._gather_remaining_tasks()
        await abort_connections()

    async def commit(self, offsets: Mapping[TP, int]) -> bool:
        """Returns though the thread has crashed, or the broker is away: Faust's last commit, for
        which its end waits, would be answered by nobody.
        """
        if self.crashed:
            return False
        try:
            return await asyncio.wait_for(super().commit(offsets), WORKER_COMMIT_S)
        except TimeoutError:
            return False

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        """Commits what the tables cover, which is what bridges look at: a batch that was dropped is
        acked, too, and one that is being folded is not. Beside it, what was folded last.
        """
        covered: dict[Partition, tuple[int, str]] = {}  # the client takes none of Faust's own
        for tp in self.assignment() & offsets.keys():
            offset = self.app.owner.covered(tp.partition)
            if offset is not None:
                work = self.app.owner.last_work(tp.partition)
                said = "" if work is None else encode_work(work)
                covered[Partition(tp.topic, tp.partition)] = (offset, said)
        if not covered:
            return False  # all of them are being opened; the client refuses to commit nothing
        try:
            await self._ensure_consumer().commit(covered)
        except (KafkaError, OSError):  # a rebalance or an outage is under way
            return False
        return True

    def on_crash(self, msg: str, *fmt: Any, **kwargs: Any) -> None:
        """Nothing is printed: `WorkerApp.failed` has the reason."""


class _Reading(NamedTuple):
    """What is read past damage: from where, and what will be found."""

    start: int
    entries: "asyncio.Future[list[LogEntry]]"


class _Consumer(driver.Consumer):
    app: "WorkerApp"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reading: dict[TP, _Reading] = {}

    async def on_stop(self) -> None:
        readings = [reading.entries for reading in self._reading.values()]
        for reading in readings:
            reading.cancel()
        if readings:
            await asyncio.wait(readings, timeout=CLIENT_LEAVE_S)  # each closes its connections
        await super().on_stop()

    def _new_consumer_thread(self) -> _Thread:
        return _Thread(self, loop=self.loop, beacon=self.beacon)

    async def commit_covered(self, partitions: Iterable[int]) -> None:
        """Commits what the tables of these partitions cover, now."""
        topic = self.app.events_topic
        await self._thread.commit(dict.fromkeys((TP(topic, one) for one in partitions), 0))

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """The positions that the tables have, which are sought first."""
        offsets = {}
        for tp in self.assignment():
            offset = self.app.owner.next_offset(tp.partition)
            if offset is not None:
                offsets[tp] = offset
        await self.seek_wait(offsets)
        return offsets

    async def _getmany(
        self,
        active_partitions: set[TP] | None,
        timeout: float,  # noqa: ASYNC109 -- Faust's parameter
    ) -> Mapping[TP, list[Any]]:
        try:
            for tp in active_partitions or ():  # Faust drops what it is given of others
                reading = self._reading.get(tp)
                if reading is not None and reading.entries.done():
                    return await self._take_read(tp)
            try:
                found = await super()._getmany(active_partitions, timeout)
                return {tp: _together(tp, map(_entry, records)) for tp, records in found.items()}
            except DamagedPartitionError as error:
                await self._read_past(TP(*error.partition), error.offset)
                return {}
        except (KafkaError, OSError) as error:
            self.app.outcome.fail(error)
            return {}

    async def _read_past(self, tp: TP, start: int) -> None:
        """Has a reader of its own find out what can be read there; the others go on meanwhile."""
        reading = self._reading.get(tp)
        if reading is not None and reading.start != start:
            reading.entries.cancel()
            reading = None
        if reading is None:
            entries = asyncio.ensure_future(self.app.owner.read_past(tp.partition, start))
            reading = self._reading[tp] = _Reading(start, entries)
        # The client finds the same again at once.
        await asyncio.wait((reading.entries,), timeout=WORKER_DAMAGE_PAUSE_S)

    async def _take_read(self, tp: TP) -> Mapping[TP, list[Any]]:
        start, entries = self._reading.pop(tp)
        found = [] if entries.cancelled() else entries.result()
        if not found or tp not in self.assignment() or await self.position(tp) != start:
            return {}
        await self.seek_wait({tp: found[-1].offset + 1})
        self._read_offset[tp] = start  # which the seek has set beyond what comes now
        return {tp: _together(tp, found)}

    async def _add_gap(self, tp: TP, offset_from: int, offset_to: int) -> None:
        """No gap: the message before is of these records, too."""

    def _new_offset(self, tp: TP) -> int | None:
        """Behind what was acked, and forgets it: `_Thread._commit` asks the tables how far they
        are.
        """
        acked = self._acked[tp]
        if not acked:
            return None
        last = max(acked)
        acked.clear()
        self._acked_index[tp].clear()
        return last + 1

    def on_buffer_full(self, tp: TP) -> None:
        """The next record waits for room."""

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Does nothing; see the module."""


class _Transport(driver.Transport):
    Consumer = _Consumer


class _Tables(TableManager):
    app: "WorkerApp"

    async def on_start(self) -> None:
        """Waits until the agent's topic is known, for which Faust sleeps a second.

        A topic that came after the subscription would be subscribed 45 s later.
        """
        while not self.app.topics and not self.should_stop:
            await self.sleep(WORKER_POLL_S)
        await self._update_channels()
        await self.recovery.start()

    async def on_rebalance(
        self,
        assigned: set[TP],
        revoked: set[TP],
        newly_assigned: set[TP],
        generation_id: int = 0,
    ) -> None:
        """Begins to open the tables, and returns."""
        self.add_future(self._open(assigned, revoked, newly_assigned, generation_id))

    async def _open(
        self, assigned: set[TP], revoked: set[TP], newly_assigned: set[TP], generation_id: int
    ) -> None:
        if await self.app.open_tables({tp.partition for tp in assigned}):
            await super().on_rebalance(assigned, revoked, newly_assigned, generation_id)


class _Stream(Stream[Any]):
    app: "WorkerApp"

    async def wait_for_stopped(
        self,
        *coros: Any,
        timeout: Any = None,  # noqa: ASYNC109 -- Faust's parameter
    ) -> bool:
        """`take_events` waits here for its buffer to be full, or so long: that is ours to say."""
        (full,) = coros
        return await super().wait_for_stopped(self.app.gathering.wait(full))


class _Boot(BootStrategy):
    """Neither a web server nor Faust's producer: flushes have producers of their own."""

    enable_web = False
    enable_kafka_producer = False


class WorkerApp(faust.App):
    """One attempt: it joins the group, and folds until it is stopped or fails. To be run once.

    Attributes:
        owner: who has the tables; to be closed by whoever made it, after the app.
    """

    BootStrategy = _Boot

    def __init__(
        self,
        options: ClientOptions,
        owner: PartitionOwner,
        *,
        group: str,
        topic: str,
        flush_s: float,
        session_timeout_s: float,
    ) -> None:
        """Must be called on the running loop."""
        self.owner = owner
        self.outcome = AttemptOutcome()
        self._options = options
        self._group = group
        self._session_timeout_s = session_timeout_s
        self._folded: dict[int, None] = {}  # partitions, since the last commit; a set
        self._has_folded = asyncio.Event()
        self.gathering = Gathering(flush_s)
        self.events_topic = topic
        super().__init__(
            group,
            broker=[URL(f"kafka://{server}") for server in options["bootstrap_servers"]],
            store="memory://",
            broker_commit_interval=WORKER_COMMIT_S,
            broker_commit_every=_NEVER,  # the fetch would wait for it
            broker_session_timeout=session_timeout_s,
            stream_buffer_maxsize=WORKER_BUFFER_MESSAGES_MAX,
            stream_wait_empty=False,
            table_standby_replicas=0,
            topic_allow_declare=False,
            topic_disable_leader=True,
            autodiscover=False,
            Stream=_Stream,
            TableManager=_Tables,
        )
        events = self.topic(
            topic,
            key_type=bytes,
            value_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
        )

        async def fold(stream: StreamT[bytes]) -> None:
            taking = cast("Stream[bytes]", stream)
            taking.add_processor(self.gathering.note)
            async for batch in taking.take_events(WORKER_BATCH_MESSAGES_MAX, within=flush_s):
                await self._fold(event.message for event in batch)

        async def release(*_: object, **__: object) -> None:
            await owner.release()

        self.agent(events, concurrency=1, isolated_partitions=False)(fold)
        self._release = release  # of which Faust keeps a weak reference
        self.on_partitions_revoked.connect(release)

    # What the seams ask for

    def new_consumer(self) -> Any:
        """The group's member; to be made on the loop that it works on."""
        return Clients(self._options).worker_consumer(
            self._group,
            session_s=self._session_timeout_s,
            poll_records_max=WORKER_POLL_RECORDS_MAX,
        )

    async def open_tables(self, partitions: Iterable[int]) -> bool:
        """Whether these tables are open, so that records may flow."""
        try:
            return await self.owner.assign(partitions)
        except Exception as error:  # noqa: BLE001 -- raised by `run`
            self.outcome.fail(error)
            return False

    async def _fold(self, messages: Iterable[Any]) -> None:
        if self.outcome.failed.done():
            return
        records: defaultdict[int, list[LogEntry]] = defaultdict(list)
        for message in messages:
            if message.generation_id == self.consumer_generation_id:
                records[message.partition] += message.value
        try:
            await self.owner.fold(records)
        except Exception as error:  # noqa: BLE001 -- none may leave the agent
            self.outcome.fail(error)
        else:
            self._folded.update(dict.fromkeys(records))
            self._has_folded.set()

    async def _tell_folded(self) -> None:
        """Commits after each batch: bridges look at it, and hold back who is far ahead of it.

        Faust's own commits go on beside it, for what these could not commit.
        """
        while True:
            await self._has_folded.wait()
            self._has_folded.clear()
            partitions, self._folded = self._folded, {}
            try:
                await cast("_Consumer", self.consumer).commit_covered(partitions)
            except Exception as error:  # noqa: BLE001 -- raised by `run`
                self.outcome.fail(error)

    # Its end

    def _crash(self, reason: BaseException) -> None:
        self.outcome.crash(reason)
        super()._crash(reason)

    async def run(self, stopping: asyncio.Event) -> None:
        """Folds until stopped; then commits and leaves the group.

        Raises:
            FaustCrashedError: see there.
            Exception: why it cannot go on.
        """
        starting = asyncio.ensure_future(self.start())
        starting.add_done_callback(self._started_or_failed)
        entered = asyncio.ensure_future(self.outcome.entered.wait())
        stopped = asyncio.ensure_future(stopping.wait())
        watching = asyncio.ensure_future(self._watch())
        telling = asyncio.ensure_future(self._tell_folded())
        try:
            await asyncio.wait((entered, starting), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((stopped, self.outcome.failed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            entered.cancel()
            stopped.cancel()
            watching.cancel()
            telling.cancel()
            try:
                await self._end()
            finally:
                starting.cancel()
                await asyncio.wait((starting,))
        if not stopping.is_set():
            self.outcome.failed.result()

    async def _watch(self) -> None:
        """Ends the app where it stands still: the next one joins the group anew."""
        watch, loop = StallWatch(), asyncio.get_running_loop()
        while not self.outcome.failed.done():
            await asyncio.sleep(WORKER_STALL_CHECK_S)
            try:
                places = self._places()
                logs = await log_bounds(self._options, self.events_topic, places) if places else {}
                await self.owner.check()
            except (KafkaError, OSError):
                continue  # Kafka is away, which others tell
            except Exception as error:  # noqa: BLE001 -- raised by `run`
                self.outcome.fail(error)
                return
            if (stalled := watch.note(places, logs, loop.time())) is not None:
                self.outcome.fail(stalled)

    def _places(self) -> dict[int, int]:
        """Where the tables that are open stand."""
        if not self.outcome.entered.is_set():
            return {}
        partitions = [tp.partition for tp in self.consumer.assignment()]
        found = {partition: self.owner.next_offset(partition) for partition in partitions}
        return {partition: place for partition, place in found.items() if place is not None}

    def _started_or_failed(self, starting: "asyncio.Future[None]") -> None:
        error = None if starting.cancelled() else starting.exception()
        if error is not None:
            self.outcome.fail(error)

    async def _end(self) -> None:
        try:
            await self.owner.release()  # the agent is cancelled where it stands
            await asyncio.wait_for(self.stop(), WORKER_APP_STOP_S)
        except RuntimeError:
            if self.outcome.crashed_by is None:  # else the loop of its consumer is closed
                raise

    def _new_transport(self) -> TransportT:
        return _Transport(self.conf.broker_consumer, self)

    def _create_directories(self) -> None:
        """None: in a container the working directory may be read-only."""


def _entry(record: Any) -> LogEntry:
    place = Offset(record.offset), record.value or b""
    traceparent = _traceparent_of(record.headers) if record.headers else ""
    if not traceparent:
        return LogEntry(*place)
    entry = TracedEntry(*place)
    entry.traceparent = traceparent
    return entry


def _traceparent_of(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """What wrote the record, as `bridge.delivery.traced_batch` says it; "" where nothing does."""
    for name, value in headers:
        if name == TRACEPARENT_HEADER:
            return read_traceparent((value or b"").decode("latin-1"))
    return ""


def _together(tp: TP, entries: Iterable[LogEntry]) -> list[SimpleNamespace]:
    """Records that came together as few messages, each with those of up to WORKER_MESSAGE_BYTES."""
    messages: list[SimpleNamespace] = []
    taken: list[LogEntry] = []
    size_bytes = 0
    for entry in entries:
        if taken and size_bytes + len(entry.value) > WORKER_MESSAGE_BYTES:
            messages.append(_message(tp, taken, size_bytes))
            taken, size_bytes = [], 0
        taken.append(entry)
        size_bytes += len(entry.value)
    if taken:
        messages.append(_message(tp, taken, size_bytes))
    return messages


def _message(tp: TP, entries: list[LogEntry], size_bytes: int) -> SimpleNamespace:
    """Records as the client would give one that stands where the first of them does."""
    return SimpleNamespace(
        topic=tp.topic,
        partition=tp.partition,
        offset=entries[0].offset,
        timestamp=None,
        timestamp_type=None,
        headers=(),
        key=None,
        value=entries,
        checksum=None,
        serialized_key_size=0,
        serialized_value_size=size_bytes,
    )


def quiet_logs(level: int) -> None:
    """Silences Faust: whoever runs the app logs why it ended."""
    for name in ("faust", "mode", __name__):  # an app logs under its module
        logging.getLogger(name).setLevel(max(level, logging.CRITICAL))
