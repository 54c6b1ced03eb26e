"""All workers of LMCache, and what is answered to each of their messages. Pure.

The answers are LMCache's own controller's, but for these:

- a worker may use its cache again as soon as its own full sync is whole, or has come to a halt; not
  once four fifths of all workers have done theirs;
- a look-up for another worker names whoever has most of the chunks at the asker's own rank, of the
  same model; not whoever is found first;
- a worker that leaves while others of its instance go on stays a worker of it, which holds nothing:
  each has a part of each chunk (`Model.sharded`), and these are of no use without one of them;
- operations that are missing make us ask for a full sync, and so does a restart of ours.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from lmcache_adapter.bounds import LMCACHE_WORKERS_MAX
from lmcache_adapter.controller.counters import LmcacheCounters
from lmcache_adapter.controller.member import (
    ENDED,
    LinkId,
    Member,
    RememberedWorker,
    WorkerAddress,
    WorkerId,
    WorkerView,
)
from lmcache_adapter.controller.peers import look_up
from lmcache_adapter.journal import Journal, NextIncarnation, WorkerReport, gone
from lmcache_adapter.settings import Models
from lmcache_adapter.wire.messages import (
    NOT_FOUND,
    BatchedKVOperation,
    BatchedP2PLookup,
    DeRegister,
    Error,
    FullSyncBatch,
    FullSyncCommand,
    FullSyncEnd,
    FullSyncStart,
    FullSyncStartRet,
    FullSyncStatus,
    Heartbeat,
    HeartbeatRet,
    KVAdmit,
    KVEvict,
    Message,
    Operation,
    Pushed,
    Register,
    RegisterRet,
    Reply,
    Request,
)
from lmcache_adapter.worker.keys import Budget
from lmcache_adapter.worker.reasons import DropReason, Reason
from lmcache_adapter.worker.worker import KeptLocation, Worker, released
from schemas.identities import PublisherKey
from schemas.registration import LMCACHE, Registration

LMCACHE_SYNCS_AT_ONCE_MAX: Final = 16  # workers asked at once: as many caches are frozen
LMCACHE_WORKER_S: Final = 300.0  # without a sign of life: forgotten, as LMCache's controller does

NOT_REGISTERED: Final = "not_registered"
TOO_MANY_WORKERS: Final = "too_many_workers"
UNEXPECTED: Final = "unexpected_message"


class Controller:
    """See the module. One thread; `now` is in monotonic seconds, `wall` in Unix seconds.

    Args:
        next_incarnation: of publishers in the log.
        clock: Unix seconds.
        known: the workers of the last run: the log says that they are registered.

    Attributes:
        on_known: called where what `known` would tell the next run has changed, before `tell` tells
            of it.
    """

    def __init__(
        self,
        models: Models,
        *,
        next_incarnation: NextIncarnation,
        clock: Callable[[], float],
        known: Iterable[RememberedWorker] = (),
    ) -> None:
        self.counters = LmcacheCounters()
        self.on_known: Callable[[], None] = lambda: None
        self._models = models
        self._next_incarnation = next_incarnation
        self._clock = clock
        self._budget = Budget()
        self._members: dict[WorkerId, Member] = {}
        self._links: dict[LinkId, dict[WorkerId, None]] = {}
        self._gone: list[WorkerReport] = []
        self._touched: dict[WorkerId, None] = {}
        self._named: dict[WorkerId, tuple[str, ...]] = {}
        self._ended = Counter[str]()
        self._strays = 0  # links that have ended, and nobody knows whose they were
        for one in known:
            member = self._join(one.registration, one.locations, one.kept)
            member.journal.register(one.registration)  # the log may have lost that
            if one.left_wall is not None:
                member.left_wall = one.left_wall
                member.worker.begin(0.0, Reason.LEFT)

    # Messages

    def answer(
        self, request: Request, link: LinkId, heartbeat_url: str, now: float, wall: float
    ) -> Reply:
        """The answer to a request that came over a link, or `ENDED`; the worker's heartbeats are to
        go to `heartbeat_url`.
        """
        self.counters.messages[type(request).__name__] += 1
        self.counters.asked += 1
        match request:
            case Heartbeat():
                return self._beat(request, link, now, wall)
            case Register():
                return self._register(request, link, heartbeat_url, now, wall)
            case FullSyncStart():
                return self._start_sync(request, link, now)
            case FullSyncStatus():
                return self._status(request, link, now)
            case BatchedP2PLookup():
                return self._look_up(request, link, now)

    def take(self, message: Message, link: LinkId, now: float) -> None:
        """Takes what a worker has pushed; a request is out of place there."""
        self.counters.messages[type(message).__name__] += 1
        self.counters.pushed += 1
        if isinstance(message, Request):
            self.counters.drop(UNEXPECTED)
            return
        member = self._present((message.instance_id, message.worker_id))
        if member is None:
            self.counters.drop(NOT_REGISTERED)
            return
        self._push(member, message, link, now)

    def _push(self, member: Member, message: Pushed, link: LinkId, now: float) -> None:
        key = (message.instance_id, message.worker_id)
        if link == member.late_by:
            self.counters.drop(DropReason.LATE)
            return
        self._touch(key, now)
        worker = member.worker
        if link != ENDED:
            if member.pushes_by != link:
                self._link(key, link)
                member.pushes_by = link
            worker.heard()
        match message:
            case BatchedKVOperation():
                self.counters.operations += len(message.operations)
                worker.operate(message.location, message.operations, now)
            case KVAdmit() | KVEvict():
                self.counters.operations += 1
                worker.operate(message.location, [_operation(message)], now)
            case FullSyncBatch():
                worker.take_batch(message, now)
            case FullSyncEnd():
                worker.end_sync(message)
            case DeRegister():
                self._leave(key, now)

    # Registration

    def _register(
        self, request: Register, link: LinkId, heartbeat_url: str, now: float, wall: float
    ) -> Reply:
        member = self._put(request, wall)
        if isinstance(member, Error):
            return member
        member.worker.begin(now)
        member.late_by, member.pushes_by = member.pushes_by, None
        member.heartbeat_at = member.heartbeat_wall = member.interval_s = 0.0
        self._ask(member, link, now)
        member.linked_wall = wall  # another process, though a link of the last one may be up
        self._forget_left(member.registration)
        return RegisterRet(extra_config={"heartbeat_url": heartbeat_url})

    def _put(self, request: Register, wall: float) -> Member | Error:
        """The worker, registered as the request has it."""
        key = (request.instance_id, request.worker_id)
        member = self._members.get(key)
        if member is None and len(self._members) >= LMCACHE_WORKERS_MAX:
            self.counters.drop(TOO_MANY_WORKERS)
            return Error(error=f"Expected at most {LMCACHE_WORKERS_MAX} workers, got one more")
        registration = self._registration(request, wall)
        if member is not None and member.registration.publisher != registration.publisher:
            self.forget(key)  # its model was configured as another one before
            member = None
        if member is not None and member.left_wall is not None:
            self.forget(key)
            member = None
        if member is None:
            member = self._join(registration)
        member.registration = registration
        member.journal.register(registration)
        self._touched[key] = None
        self.on_known()
        return member

    def _registration(self, request: Register, wall: float) -> Registration:
        model = self._models.of(request.instance_id)
        return Registration(
            endpoint=f"tcp://{request.ip}:{request.port}",
            kind=LMCACHE,
            model_name=model.modelname,
            instance_id=request.instance_id,
            block_size=model.block_size,
            dp_rank=request.worker_id,
            tenant_id=model.tenant_id,
            additional_salt=model.additionalsalt,
            hash_profile=model.hash_profile,
            peer_url=request.peer_init_url or "",
            registered_at=wall,
            is_shard=model.sharded,
        )

    def _join(
        self,
        registration: Registration,
        locations: Iterable[str] = (),
        kept: Mapping[str, KeptLocation] = MappingProxyType({}),
    ) -> Member:
        key = (registration.instance_id, registration.dp_rank)
        journal = Journal(registration.publisher, self._next_incarnation, self._clock)
        worker = Worker(
            journal,
            self._budget,
            self.counters.drop,
            strays=lambda: self._strays,
            locations=locations,
            kept=kept,
        )
        member = self._members[key] = Member(registration, worker, journal)
        self._touched[key] = None
        self._note_known(key, member)
        return member

    def _leave(self, key: WorkerId, now: float) -> None:
        """A worker is no more. One that is a part of what others are yet holds nothing from now on;
        else it is forgotten.
        """
        member = self._members[key]
        member.left_wall = self._clock() - max(0.0, now - member.alive_at)
        if not self._is_needed(member):
            self.forget(key)
            self._forget_left(member.registration)
            return
        self._unlink_all(key, member)
        member.worker.begin(now, Reason.LEFT)
        self._touched[key] = None
        self.on_known()

    def _is_needed(self, member: Member) -> bool:
        """Whether an instance goes on of which it was a worker."""
        left, registration = member.left_wall, member.registration
        return registration.is_shard and any(
            other.registration.stream == registration.stream
            and left is not None
            and other.registration.registered_at <= left
            for other in self._all_present()
        )

    def _forget_left(self, registration: Registration) -> None:
        """Forgets the workers that have left the instance of this one, and are needed no more: it
        was started again, and may have fewer.
        """
        for key, member in list(self._members.items()):
            is_its = member.registration.stream == registration.stream
            if is_its and member.left_wall is not None and not self._is_needed(member):
                self.forget(key)

    def forget(self, key: WorkerId, *, is_logged: bool = False) -> None:
        """Forgets a worker and what it holds; `is_logged`: the log says so already."""
        member = self._members.pop(key, None)
        if member is None:
            return
        self._end_counts(member)
        member.worker.end()
        journal = member.journal
        self._gone.append(gone(journal.publisher) if is_logged else journal.end())
        self._unlink_all(key, member)
        self._touched.pop(key, None)
        self._named.pop(key, None)
        self.on_known()

    def _end_counts(self, member: Member) -> None:
        worker = member.worker
        self._ended["jumps"] += worker.jumps
        self._ended["asked"] += worker.syncs_asked
        self._ended["whole"] += worker.syncs_whole

    def forget_publisher(self, publisher: PublisherKey) -> None:
        """The same of one that a client has unregistered; it comes back with its next heartbeat.
        Told as gone, known or not.
        """
        key = (publisher.stream.instance_id, publisher.dp_rank)
        member = self._members.get(key)
        if member is not None and member.registration.publisher == publisher:
            self.forget(key, is_logged=True)
        else:
            self._gone.append(gone(publisher))

    # Heartbeats and full syncs

    def _beat(self, request: Heartbeat, link: LinkId, now: float, wall: float) -> Reply:
        key = (request.instance_id, request.worker_id)
        member = self._members.get(key)
        if member is None or member.left_wall is not None or not member.is_of(request):
            found = self._put(request, wall)
            if isinstance(found, Error):
                return found
            member = found
        member.beat(now, wall)
        self._ask(member, link, now)
        member.linked_wall = min(member.linked_wall, wall)
        reason = member.worker.ask(now, may_ask=self._may_ask(now))
        return HeartbeatRet(commands=[FullSyncCommand(reason=reason)] if reason else [])

    def _may_ask(self, now: float) -> bool:
        freezing = sum(one.worker.is_freezing(now) for one in self._all_present())
        return freezing < LMCACHE_SYNCS_AT_ONCE_MAX

    def _start_sync(self, request: FullSyncStart, link: LinkId, now: float) -> Reply:
        member = self._present((request.instance_id, request.worker_id))
        refusal = "Expected a registered worker: it will be asked again after its next heartbeat"
        if member is not None:
            self._ask(member, link, now)
            refusal = member.worker.start_sync(request, now)
        return FullSyncStartRet(
            sync_id=request.sync_id, accepted=not refusal, error_msg=refusal or None
        )

    def _status(self, request: FullSyncStatus, link: LinkId, now: float) -> Reply:
        member = self._present((request.instance_id, request.worker_id))
        if member is None:
            return released(request.sync_id, self._progress)
        self._ask(member, link, now)
        return member.worker.status(request.sync_id, self._progress)

    @property
    def _progress(self) -> float:
        """The share of workers of which all is known."""
        workers = [one.worker for one in self._all_present()]
        return sum(one.is_whole for one in workers) / max(len(workers), 1)

    def _look_up(self, request: BatchedP2PLookup, link: LinkId, now: float) -> Reply:
        asker = self._present((request.instance_id, request.worker_id))
        if asker is not None:
            self._ask(asker, link, now)
        scope = self._models.of(request.instance_id).stream("")
        found = look_up(request, self._members.values(), scope)
        self.counters.lookups += 1
        self.counters.lookup_hits += found is not NOT_FOUND
        return found

    # Links and time

    def _touch(self, key: WorkerId, now: float) -> None:
        self._touched[key] = None
        self._members[key].alive_at = now

    def _ask(self, member: Member, link: LinkId, now: float) -> None:
        key = (member.registration.instance_id, member.registration.dp_rank)
        self._touch(key, now)
        if link not in (member.asks_by, ENDED):
            self._link(key, link)
            member.asks_by = link

    def _link(self, key: WorkerId, link: LinkId) -> None:
        self._links.setdefault(link, {})[key] = None

    def _unlink_all(self, key: WorkerId, member: Member) -> None:
        for link in (member.pushes_by, member.late_by, member.asks_by):
            if link is not None:
                self._unlink(key, link)
        member.pushes_by = member.late_by = member.asks_by = None

    def _unlink(self, key: WorkerId, link: LinkId) -> None:
        keys = self._links.get(link, {})
        keys.pop(key, None)
        if not keys:
            self._links.pop(link, None)

    def link_down(self, link: LinkId, now: float, *, pushes: bool = True) -> None:
        """A link has ended; `pushes`: it was one of the PULL socket. Cost O(workers that used it).

        One of which nothing had come may have been any worker's, and what it sent is lost.
        """
        users = self._links.pop(link, None)
        if users is None:
            self._strays += pushes
            return
        for key in users:
            member = self._members.get(key)
            if member is None:
                continue
            self._touched[key] = None
            if member.late_by == link:
                member.late_by = None
            if member.pushes_by == link:
                member.pushes_by = None
                member.worker.unlink(now)
            if member.asks_by == link:
                member.asks_by = None
            if not member.is_linked:
                member.linked_wall = math.inf

    def look(self, now: float) -> None:
        """Ends what takes too long, and looks who is silent; to be called now and then. Cost
        O(workers).
        """
        for key, member in list(self._members.items()):
            if member.left_wall is not None:
                continue
            member.worker.look(now)
            if member.alive_at == -math.inf:
                member.alive_at = now  # of an earlier run: it has as long as the others
            if not member.is_linked and now - member.alive_at > LMCACHE_WORKER_S:
                self._leave(key, now)
            else:
                self._touched[key] = None
        workers = [member.worker for member in self._all_present()]
        counters, ended = self.counters, self._ended
        counters.jumps = ended["jumps"] + sum(one.jumps for one in workers)
        counters.syncs_asked = ended["asked"] + sum(one.syncs_asked for one in workers)
        counters.syncs_whole = ended["whole"] + sum(one.syncs_whole for one in workers)
        counters.sizes = {
            "workers": len(workers),
            "whole": sum(one.is_whole for one in workers),
            "syncing": sum(one.is_syncing for one in workers),
            "keys": sum(len(one.keys) for one in workers),
            "missing_batches": sum(one.missing_batches for one in workers),
        }

    # What is told

    def tell(self, now: float) -> list[WorkerReport]:
        """What is new since the last call, for the log and for who reports on workers. Cost O(what
        has happened).
        """
        told, self._gone = self._gone, []
        for key in self._touched:
            member = self._members[key]
            self._note_known(key, member)
            report = member.journal.report(member.doubt_at(now))
            if report is not None:
                told.append(report)
        self._touched.clear()
        return told

    def rewrite(self, publishers: Iterable[PublisherKey]) -> None:
        """The log has lost some of what was told of these: all of it is told again."""
        for publisher in publishers:
            key = (publisher.stream.instance_id, publisher.dp_rank)
            member = self._members.get(key)
            if member is not None and member.registration.publisher == publisher:
                member.journal.register(member.registration)
                member.worker.rewrite()
                self._touched[key] = None

    # Views

    def _present(self, key: WorkerId) -> Member | None:
        member = self._members.get(key)
        return None if member is None or member.left_wall is not None else member

    def _all_present(self) -> list[Member]:
        return [one for one in self._members.values() if one.left_wall is None]

    def _note_known(self, key: WorkerId, member: Member) -> None:
        locations = tuple(member.worker.locations)
        if self._named.get(key) != locations:
            self._named[key] = locations
            self.on_known()

    def known(self, *, is_last: bool = False) -> list[RememberedWorker]:
        """What the next run is to know; `is_last`: nothing is taken any more, so that it may know
        what is where. Cost O(workers), then O(keys).
        """
        return [
            RememberedWorker(
                member.registration,
                tuple(member.worker.locations),
                member.left_wall,
                member.worker.keep() if is_last else {},
            )
            for member in self._members.values()
        ]

    def reachable(self, instance_id: str) -> dict[int, WorkerAddress]:
        """Where the workers of an instance take commands, by rank. Cost O(workers)."""
        return {
            member.registration.dp_rank: WorkerAddress(
                member.registration.endpoint, member.is_linked, member.linked_wall
            )
            for member in self._all_present()
            if member.registration.instance_id == instance_id
        }

    def workers(self) -> list[WorkerView]:
        """All of them, sorted. Cost O(workers)."""
        views = [
            WorkerView(member.registration, member.heartbeat_wall, len(member.worker.keys))
            for member in self._all_present()
        ]
        return sorted(views, key=lambda view: view.registration.publisher)


def _operation(message: KVAdmit | KVEvict) -> Operation:
    is_admitted = isinstance(message, KVAdmit)
    return Operation(
        op_type="admit" if is_admitted else "evict", key=message.key, seq_num=message.seq_num
    )
