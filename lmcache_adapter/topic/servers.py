"""All servers that write LMCache's topic: whose batch counts, and what they hold. Pure.

A batch counts by its incarnation and number, as in LMCache's own coordinator, but for gaps. What
these show is said by `bridge.publisher.tracker`; what follows from it for a server, here:

    stale      dropped: of a process that has been replaced
    duplicate  dropped
    restart    a new process: its memory (`l1`) is empty, its storage is not
    gap        a gap in the log of every publisher of the server; the batch is applied. They are
               degraded until a new process begins, and beyond it where the server has storage, of
               which something may have been missed, too

One server has chunks of several models, salts and ranks; each of these is a publisher of its own.

What is held is a set: a chunk is on a tier while any backend or object group of it there has it,
and the log is told of the first and the last of these alone. Storage that instances share is told
of by whichever stored it, and ended by whichever deletes it.

Nothing is written before `begin`: the topic is read from its beginning in each run of ours, and
then all that is known is written at once.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from bridge.publisher.tracker import IncarnationTracker, SequenceOutcome
from lmcache_adapter.bounds import LMCACHE_WORKERS_MAX
from lmcache_adapter.journal import Journal, NextIncarnation, WorkerReport
from lmcache_adapter.topic.batches import Batch, BatchHead, ChunkEntry, UnreadableBatch
from lmcache_adapter.wire.locations import Tier
from lmcache_adapter.worker.keys import Budget
from lmcache_adapter.worker.reasons import Count
from schemas.answer_states import Doubt
from schemas.identities import Medium, PublisherKey
from schemas.registration import LMCACHE_TOPIC, Registration

LMCACHE_TOPIC_PLACES_MAX: Final = 16  # backends and groups of one chunk that are told apart
LMCACHE_SERVER_SILENT_S: Final = 60.0  # without a batch, a server is not known to be there

NO_ROOM: Final = "too_many_keys"
TOO_MANY: Final = "too_many_publishers"
MALFORMED: Final = "malformed_batch"

DROPS: Final = {
    SequenceOutcome.STALE: "stale_incarnation",
    SequenceOutcome.DUPLICATE: "duplicate_batch",
}
"""Why a batch does not count."""

MISSED: Final = "batches_missed"
BEGINNING: Final = "beginning_missed"
UNDECODABLE: Final = "undecodable"
RESTARTED: Final = "topic_read_again"
NEW_PROCESS: Final = "new_process"
REWRITTEN: Final = "log_lost_records"

_MEDIA: Final = {"l1": Medium.CPU, "l2": Medium.DISK}
_TIERS: Final = {
    (name, shared): Tier(medium, shared)
    for name, medium in _MEDIA.items()
    for shared in (False, True)
}


class _ChunkLocation(NamedTuple):
    """Where a chunk is, on one tier."""

    backend: str
    group: int


ChunkTiers = dict[Tier, dict[int, set[_ChunkLocation]]]


class ModelOf(NamedTuple):
    """What the topic does not say of a model.

    Attributes:
        tenant_id: whose it is.
        block_size: tokens of a chunk.
        says_all: whether no event of it is dropped before it is numbered.
    """

    tenant_id: str
    block_size: int
    says_all: bool = False


class _Stream:
    """One publisher: the chunks of one model, salt and rank at one server.

    Attributes:
        lost: why it is degraded, or "".
        is_written: whether the log knows it.
    """

    def __init__(self, registration: Registration, journal: Journal) -> None:
        self.registration = registration
        self.journal = journal
        self.held: ChunkTiers = {}
        self.lost = ""
        self.is_written = False


class _Server:
    """One instance.

    Attributes:
        seen_at: when its last batch came, monotonic seconds.
        lost: why what it holds is not known, or "".
        has_storage: whether it has ever named storage: a new process does not empty that.
    """

    def __init__(self) -> None:
        self.tracker = IncarnationTracker()
        self.seen_at = 0.0
        self.lost = ""
        self.has_storage = False
        self.streams: dict[PublisherKey, _Stream] = {}


class Servers:
    """See the module. One thread; `now` is in monotonic seconds.

    Args:
        model_of: by the model's name.
        next_incarnation: of publishers in the log.
        clock: Unix seconds.
        known: the publishers of the run before: those that the topic does not have are ended.

    Attributes:
        batches, gaps: how many counted, and how often some were missing.
        is_current: whether all that the topic had was applied, a moment ago.
        has_news: whether there is a publisher that `known` has not told; who reads it clears it.
    """

    def __init__(
        self,
        topic: str,
        *,
        model_of: Callable[[str], ModelOf],
        next_incarnation: NextIncarnation,
        clock: Callable[[], float],
        dropped: Count,
        known: Iterable[Registration] = (),
    ) -> None:
        self.batches = self.gaps = 0
        self.is_current = False
        self.has_news = False
        self._topic = topic
        self._model_of = model_of
        self._next_incarnation = next_incarnation
        self._clock = clock
        self._dropped = dropped
        self._budget = Budget()
        self._servers: dict[str, _Server] = {}
        self._streams: dict[PublisherKey, _Stream] = {}
        self._shared: dict[tuple[object, ...], _Stream] = {}
        self._before = {one.publisher: one for one in known}
        self._touched: dict[PublisherKey, None] = {}
        self._gone: list[WorkerReport] = []
        self._begun = False

    # Batches

    def take(self, batch: Batch | UnreadableBatch, now: float) -> None:
        """Takes one batch. Cost O(entries)."""
        if isinstance(batch, UnreadableBatch):
            self._dropped(MALFORMED)
            if batch.head is not None and (server := self._admit(batch.head, now)) is not None:
                self._lose(server, UNDECODABLE)
            return
        server = self._admit(batch, now)
        if server is None:
            return
        self.batches += 1
        if batch.event_type in ("store", "delete"):
            server.has_storage |= batch.tier == "l2"
            for entry in batch.entries:
                self._apply(server, batch, entry)

    def _admit(self, head: BatchHead, now: float) -> _Server | None:
        """The server, where the batch counts; see the module."""
        server = self._servers.get(head.instance_id)
        if server is None:
            if len(self._servers) >= LMCACHE_WORKERS_MAX:
                self._dropped(TOO_MANY)
                return None
            server = self._servers[head.instance_id] = _Server()
        outcome, gap = server.tracker.observe(head.cursor)
        if outcome in DROPS:
            self._dropped(DROPS[outcome])
            return None
        if outcome is SequenceOutcome.RESTART:
            self._renew(server)
        if gap is not None:
            self._lose(server, MISSED if gap.first else BEGINNING)
        server.seen_at = now
        for publisher in server.streams:
            self._touched[publisher] = None
        return server

    def _renew(self, server: _Server) -> None:
        """A new process: nothing is in its memory."""
        if not server.has_storage:
            server.lost = ""
        for stream in server.streams.values():
            for tier in list(stream.held):
                if tier.medium is Medium.CPU:
                    self._drop(stream, tier)
            stream.lost = server.lost
            self._rewrite(stream, NEW_PROCESS)

    def _lose(self, server: _Server, reason: str) -> None:
        self.gaps += 1
        server.lost = reason
        for stream in server.streams.values():
            self._degrade(stream, reason)

    def _degrade(self, stream: _Stream, reason: str) -> None:
        if not stream.lost and stream.is_written:
            stream.journal.gap(reason)
        stream.lost = reason
        self._touched[stream.registration.publisher] = None

    def _apply(self, server: _Server, batch: Batch, entry: ChunkEntry) -> None:
        stream = self._stream(server, batch, entry)
        if stream is None:
            return
        tier = _TIERS[batch.tier, batch.shared]
        place = _ChunkLocation(batch.backend, entry.key.object_group_id)
        chunk = entry.key.chunk
        name: tuple[object, ...] = ()
        if batch.shared:
            scope = stream.registration.stream._replace(instance_id="")
            name = (scope, entry.key.rank, tier, place, chunk)
            stream = self._shared.get(name, stream)
        if batch.event_type == "store":
            self._store(stream, tier, place, chunk)
            if name:
                self._shared[name] = stream
        else:
            self._delete(stream, tier, place, chunk)
            self._shared.pop(name, None)
        self._touched[stream.registration.publisher] = None

    def _store(self, stream: _Stream, tier: Tier, place: _ChunkLocation, chunk: int) -> None:
        held = stream.held.setdefault(tier, {})
        places = held.get(chunk)
        if places is not None and (place in places or len(places) >= LMCACHE_TOPIC_PLACES_MAX):
            return
        if not self._budget.take():
            self._dropped(NO_ROOM)
            self._degrade(stream, NO_ROOM)
            return
        if places is not None:
            places.add(place)
            return
        held[chunk] = {place}
        if stream.is_written:
            stream.journal.put(tier, chunk, is_stored=True)

    def _delete(self, stream: _Stream, tier: Tier, place: _ChunkLocation, chunk: int) -> None:
        held = stream.held.get(tier, {})
        places = held.get(chunk)
        if places is None or place not in places:
            return
        places.remove(place)
        self._budget.give_back()
        if not places:
            del held[chunk]
            if stream.is_written:
                stream.journal.put(tier, chunk, is_stored=False)

    def _drop(self, stream: _Stream, tier: Tier) -> None:
        held = stream.held.pop(tier)
        self._budget.give_back(sum(map(len, held.values())))
        if tier.shared:
            scope = stream.registration.stream._replace(instance_id="")
            rank = stream.registration.dp_rank
            for chunk, places in held.items():
                for place in places:
                    self._shared.pop((scope, rank, tier, place, chunk), None)

    def _stream(self, server: _Server, batch: Batch, entry: ChunkEntry) -> _Stream | None:
        key = entry.key
        model = self._model_of(key.model_name)
        registration = Registration(
            endpoint=f"kafka://{self._topic}/{batch.instance_id}",
            kind=LMCACHE_TOPIC,
            model_name=key.model_name,
            instance_id=batch.instance_id,
            block_size=model.block_size,
            dp_rank=key.rank,
            tenant_id=model.tenant_id,
            additional_salt=key.cache_salt,
            kv_offloading="native" if model.says_all else "",
            registered_at=self._clock(),
        )
        publisher = registration.publisher
        stream = server.streams.get(publisher)
        if stream is not None:
            if self._begun and not stream.is_written:  # a client has unregistered it
                self._write(stream, RESTARTED)
            return stream
        if len(self._streams) >= LMCACHE_WORKERS_MAX:
            self._dropped(TOO_MANY)
            return None
        journal = Journal(publisher, self._next_incarnation, self._clock)
        stream = server.streams[publisher] = _Stream(registration, journal)
        self._streams[publisher] = stream
        stream.lost = server.lost
        self.has_news = True
        if self._begun:
            self._write(stream, NEW_PROCESS)
        return stream

    # What is written

    def begin(self) -> None:
        """All that the topic had was taken: writes it, and what comes from then on."""
        self._begun = True
        for stream in self._streams.values():
            self._write(stream, RESTARTED)
        for publisher in self._before:
            if publisher not in self._streams:
                journal = Journal(publisher, self._next_incarnation, self._clock)
                self._gone.append(journal.end())
        self._before.clear()
        self.has_news = True

    def _write(self, stream: _Stream, reason: str) -> None:
        stream.is_written = True
        stream.journal.register(stream.registration)
        self._rewrite(stream, reason)

    def _rewrite(self, stream: _Stream, reason: str) -> None:
        if not stream.is_written:
            return
        stream.journal.rewrite(reason, stream.held.items(), stream.lost)
        self._touched[stream.registration.publisher] = None

    def rewrite(self, publishers: Iterable[PublisherKey]) -> None:
        """The log has lost some of what was told of these: all of it is told again."""
        for publisher in publishers:
            stream = self._streams.get(publisher)
            if stream is not None and stream.is_written:
                self._write(stream, REWRITTEN)

    def forget(self, publisher: PublisherKey) -> None:
        """A client has unregistered it; its next batch brings it back, with all that it holds."""
        stream = self._streams.get(publisher)
        if stream is not None:
            stream.is_written = False
            stream.journal.take()
            self._touched.pop(publisher, None)

    def tell(self, now: float) -> list[WorkerReport]:
        """What is new since the last call. Cost O(publishers that something has happened to)."""
        told, self._gone = self._gone, []
        for publisher in self._touched:
            stream = self._streams[publisher]
            if stream.is_written:
                report = stream.journal.report(self._doubt(stream, now))
                if report is not None:
                    told.append(report)
        self._touched.clear()
        return told

    def look(self) -> None:
        """Has the next `tell` look at all of them; to be called now and then."""
        self._touched.update(dict.fromkeys(self._streams))

    def _doubt(self, stream: _Stream, now: float) -> Doubt | None:
        if not self.is_current:
            return Doubt.CATCHING_UP
        server = self._servers[stream.registration.instance_id]
        is_silent = now - server.seen_at > LMCACHE_SERVER_SILENT_S
        return Doubt.WORKER_SILENT if is_silent else None

    # Views

    def known(self) -> list[Registration]:
        """What the next run is to know."""
        return [stream.registration for stream in self._streams.values()]

    @property
    def sizes(self) -> dict[str, int]:
        """Of now, by name."""
        return {
            "servers": len(self._servers),
            "publishers": len(self._streams),
            "degraded": sum(bool(stream.lost) for stream in self._streams.values()),
            "keys": self._budget.used,
        }
