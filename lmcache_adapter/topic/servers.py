"""All servers of LMCache's multi-process mode: whose batch counts, and what they hold. Pure.

Their batches come by LMCache's topic, or by HTTP (`lmcache_adapter.coordinator`).

A batch counts by its incarnation and number, as in LMCache's own coordinator, but for gaps. What
these show is said by `bridge.publisher.tracker`; what follows from it for a server, here:

    stale      dropped: of a process that has been replaced
    duplicate  dropped
    restart    a new process: its memory (`l1`) is empty, its storage is not
    gap        a gap in the log of every publisher of the server; the batch is applied. They are
               degraded until a new process begins, and beyond it where the server has storage, of
               which something may have been missed, too
    dropped    the same, where the count of events rises that its process has dropped
    departed   of a server that has left, dropped where it is of its memory: what that had is gone.
               It counts again once it is admitted again, or of a later incarnation

One server has chunks of several models, salts and ranks; each of these is a publisher of its own.

What is held is a set: a chunk is on a tier while any backend or object group of it there has it,
and the log is told of the first and the last of these alone. Storage that instances share is told
of by whichever stored it, and ended by whichever deletes it.

Nothing is written before `begin`: the topic is read from its beginning in each run of ours, or what
was kept of the run before, and then all that is known is written at once.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from bridge.publisher.tracker import IncarnationTracker, SequenceOutcome
from lmcache_adapter.bounds import LMCACHE_WORKERS_MAX
from lmcache_adapter.journal import Journal, NextIncarnation, WorkerReport
from lmcache_adapter.topic.batches import Batch, BatchHead, ChunkEntry, UnreadableBatch
from lmcache_adapter.wire.locations import Tier
from lmcache_adapter.worker.keys import Budget
from lmcache_adapter.worker.reasons import Count
from schemas.answer_states import Doubt
from schemas.errors import StorageError
from schemas.identities import Medium, PublisherKey
from schemas.positions import NO_CURSOR, Cursor
from schemas.registration import LMCACHE_TOPIC, Registration

LMCACHE_TOPIC_PLACES_MAX: Final = 16  # backends and groups of one chunk that are told apart
LMCACHE_SERVER_SILENT_S: Final = 60.0  # without a batch, a server is not known to be there

NO_ROOM: Final = "too_many_keys"
TOO_MANY: Final = "too_many_publishers"
MALFORMED: Final = "malformed_batch"

DEPARTED: Final = "departed_instance"
NOT_KEPT: Final = "not_kept"

DROPS: Final = {
    SequenceOutcome.STALE: "stale_incarnation",
    SequenceOutcome.DUPLICATE: "duplicate_batch",
}
"""Why a batch does not count."""

MISSED: Final = "batches_missed"
BEGINNING: Final = "beginning_missed"
DROPPED: Final = "events_dropped"
LEFT: Final = "left"
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


_CHANGES: Final = ("store", "delete")
"""Batches that say what is held."""


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


class ServerState(msgspec.Struct, kw_only=True):
    """What is known of one instance, beside what it holds.

    Attributes:
        incarnation, sequence: of its last batch that counted, numbered from 0.
        dropped: how many events its process had dropped by then; None where that is not known.
        lost: why what it holds is not known, or "".
        has_storage: whether it has ever named storage: a new process does not empty that.
        departed: the incarnation in which it has left; None: it is there.
        memories: the number of its memory, which is another one each time that is found empty: what
            it stored there before is gone. No two servers or memories ever have the same.
    """

    incarnation: int = 0
    sequence: int = -1
    dropped: int | None = None
    lost: str = ""
    has_storage: bool = False
    departed: int | None = None
    memories: int = 0


class _Server:
    """One instance.

    Attributes:
        seen_at: its last sign of life, monotonic seconds.
        is_unheard: whether it is restored, and no batch of this run has counted: so that its number
            has not told yet whether anything is missing.
    """

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self.tracker = IncarnationTracker(Cursor(state.incarnation, state.sequence))
        self.seen_at = 0.0
        self.is_unheard = False
        self.streams: dict[PublisherKey, _Stream] = {}

    @property
    def is_new(self) -> bool:
        """Whether no batch of it has counted yet."""
        return self.tracker.cursor == NO_CURSOR


Keep = Callable[["BatchHead", ServerState], None]
"""See `Servers`. Raises StorageError."""


class Servers:
    """See the module. One thread; `now` is in monotonic seconds.

    Args:
        source: the address of where their batches come from, without the instance.
        model_of: by the model's name.
        next_incarnation: of publishers in the log.
        clock: Unix seconds.
        known: the publishers of the run before: those that are not found again are ended.
        keep: is given each batch that counts, and what is known of its server behind it, before it
            is applied; a batch for which it raises StorageError is missed.
        silent_s: without a sign of life for so long, a server is not known to be there.

    Attributes:
        batches, gaps: how many counted, and how often some were missing.
        is_current: whether all that the topic had was applied, a moment ago.
        has_news: whether there is a publisher that `known` has not told; who reads it clears it.
    """

    def __init__(
        self,
        source: str,
        *,
        model_of: Callable[[str], ModelOf],
        next_incarnation: NextIncarnation,
        clock: Callable[[], float],
        dropped: Count,
        known: Iterable[Registration] = (),
        keep: Keep = lambda batch, state: None,
        silent_s: float = LMCACHE_SERVER_SILENT_S,
    ) -> None:
        self.batches = self.gaps = 0
        self.is_current = False
        self.has_news = False
        self._source = source
        self._keep = keep
        self._silent_s = silent_s
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
        self._memory = 0  # the last number of one

    # Batches

    def take(self, batch: Batch | UnreadableBatch, now: float) -> SequenceOutcome | None:
        """Takes one batch: what it is beside those before it; None where there is no room for one
        more server. Cost O(entries).
        """
        if isinstance(batch, UnreadableBatch):
            self._dropped(MALFORMED)
            if batch.head is None:
                return None
            server, outcome = self._admit(batch.head, now)
            if server is not None:
                self._lose(server, UNDECODABLE)
                self._note(server, batch.head)
            return outcome
        gaps = self.gaps
        server, outcome = self._admit(batch, now)
        is_after_gap = self.gaps > gaps
        if server is None:
            return outcome
        if self._has_dropped(server, batch.dropped_events) and not is_after_gap:
            self._lose(server, DROPPED)
        server.state.has_storage |= batch.event_type in _CHANGES and batch.tier == "l2"
        if not self._note(server, batch):
            return outcome
        self.batches += 1
        if batch.event_type in _CHANGES:
            for entry in batch.entries:
                self._apply(server, batch, entry)
        return outcome

    def _note(self, server: _Server, batch: BatchHead) -> bool:
        """Has what counts kept, for the next run; False where that fails, and it is missed."""
        state = server.state
        state.incarnation, state.sequence = server.tracker.cursor
        try:
            self._keep(batch, state)
        except StorageError:
            self._dropped(NOT_KEPT)
            self._lose(server, NOT_KEPT)
            return False
        return True

    @staticmethod
    def _has_dropped(server: _Server, dropped: int) -> bool:
        """Whether its process has dropped more than it had; a post that was lost is a gap, too."""
        state = server.state
        before, state.dropped = state.dropped, dropped
        return before is not None and dropped > before

    def _server(self, instance_id: str) -> _Server | None:
        server = self._servers.get(instance_id)
        if server is None:
            if len(self._servers) >= LMCACHE_WORKERS_MAX and not self._forget_departed():
                self._dropped(TOO_MANY)
                return None
            state = ServerState(memories=self._new_memory())
            server = self._servers[instance_id] = _Server(state)
        return server

    def _new_memory(self) -> int:
        self._memory += 1
        return self._memory

    def _forget_departed(self) -> bool:
        """Makes room for one server where one has left that holds nothing."""
        for instance_id, server in self._servers.items():
            if server.state.departed is not None and not server.streams:
                del self._servers[instance_id]
                return True
        return False

    def _admit(self, head: BatchHead, now: float) -> tuple[_Server | None, SequenceOutcome | None]:
        """The server, where the batch counts, and what the batch is; see the module."""
        server = self._server(head.instance_id)
        if server is None:
            return None, None
        if server.state.departed is not None:
            if head.incarnation > server.state.departed:
                server.state.departed = None
            elif isinstance(head, Batch) and head.tier == "l1":
                self._dropped(DEPARTED)
                return None, SequenceOutcome.STALE
        was_new = server.is_new
        outcome, gap = server.tracker.observe(head.cursor)
        if outcome in DROPS:
            self._dropped(DROPS[outcome])
            return None, outcome
        if outcome is SequenceOutcome.RESTART:
            # Of a process that was there before us it is not known what it had dropped.
            server.state.dropped = None if was_new and gap is not None else 0
            self._empty_memory(server, NEW_PROCESS)
        if gap is not None:
            self._lose(server, MISSED if gap.first else BEGINNING)
        server.seen_at = now
        server.is_unheard = False
        for publisher in server.streams:
            self._touched[publisher] = None
        return server, outcome

    def _empty_memory(self, server: _Server, reason: str) -> None:
        """A new process, or none: nothing is in its memory."""
        server.state.memories = self._new_memory()
        if not server.state.has_storage:
            server.state.lost = ""
        for stream in server.streams.values():
            for tier in list(stream.held):
                if tier.medium is Medium.CPU:
                    self._drop(stream, tier)
            stream.lost = server.state.lost
            self._rewrite(stream, reason)

    # Who is there, where that is told

    def hear(self, instance_id: str, now: float) -> None:
        """A sign of life without a batch."""
        server = self._servers.get(instance_id)
        if server is not None:
            server.seen_at = now
            self._touched.update(dict.fromkeys(server.streams))

    def depart(self, instance_id: str) -> ServerState | None:
        """It has left: its memory is gone, and any incarnation of it counts that comes now, but for
        the memory of this one. Of its streams those end that hold nothing. What is known of it
        then; None where nothing is.
        """
        server = self._servers.get(instance_id)
        if server is None:
            return None
        if not server.is_new:
            server.state.departed = server.tracker.incarnation
            server.tracker = IncarnationTracker()
            server.state.incarnation, server.state.sequence = server.tracker.cursor
        self._empty_memory(server, LEFT)
        for publisher, stream in list(server.streams.items()):
            self._touched[publisher] = None
            if not any(stream.held.values()):
                self._end(server, publisher)
        return server.state

    def readmit(self, instance_id: str, now: float) -> ServerState | None:
        """It has registered again: its memory counts. What is known of it then; None where it had
        not left.
        """
        server = self._servers.get(instance_id)
        if server is None or server.state.departed is None:
            return None
        server.state.departed = None
        server.seen_at = now
        self._touched.update(dict.fromkeys(server.streams))
        return server.state

    def _end(self, server: _Server, publisher: PublisherKey) -> None:
        stream = server.streams.pop(publisher)
        del self._streams[publisher]
        self._touched.pop(publisher, None)
        if stream.is_written:
            self._gone.append(stream.journal.end())
        self.has_news = True

    # What was kept of the run before

    def restore(self, instance_id: str, state: ServerState, now: float) -> None:
        """A server as the last run knew it; before `begin`. It is not confirmed before a batch: it
        may have ended since, or told what nobody has kept.
        """
        server = self._servers[instance_id] = _Server(state)
        server.seen_at = now
        server.is_unheard = True

    def restore_memory(self, last: int) -> None:
        """Up to this one, numbers of memories have been used; before `begin`."""
        self._memory = max(self._memory, last)

    def restore_chunk(self, batch: Batch) -> None:
        """What a server that is restored has stored; before `begin`."""
        for entry in batch.entries:
            self._apply(self._servers[batch.instance_id], batch, entry)

    def _lose(self, server: _Server, reason: str) -> None:
        self.gaps += 1
        server.state.lost = reason
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
            endpoint=f"{self._source}/{batch.instance_id}",
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
        stream.lost = server.state.lost
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
        is_away = server.state.departed is not None or now - server.seen_at > self._silent_s
        return Doubt.WORKER_SILENT if is_away or server.is_unheard else None

    # Views

    @property
    def room(self) -> int:
        """How many more chunks they may hold."""
        return self._budget.left

    @property
    def instances(self) -> list[str]:
        """All of them, those that have left included."""
        return list(self._servers)

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
