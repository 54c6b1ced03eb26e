"""A worker with its links and its signs of life, and what is told of it. Pure."""

import math
from typing import Final, NamedTuple

import msgspec

from lmcache_adapter.journal import Journal
from lmcache_adapter.wire.messages import Register
from lmcache_adapter.worker.worker import KeptLocation, Worker
from schemas.answer_states import Doubt
from schemas.registration import Registration

LMCACHE_BEATS_LATE: Final = 3.0  # of a worker's own interval; then it is silent
LMCACHE_BEAT_LATE_MIN_S: Final = 5.0  # and no less, however short the interval is

WorkerId = tuple[str, int]
"""Instance and rank: LMCache's name of a worker."""

LinkId = int
"""A link of one of the sockets; no two have the same."""

ENDED: Final = 0
"""A link that is no more, whichever it was: what it has brought is taken late."""


class RememberedWorker(msgspec.Struct, frozen=True):
    """What one run of the bridge tells the next of a worker.

    Attributes:
        registration: that the log has.
        left_wall: see `Member`.
        kept: what is at some of the locations, where the run has ended in order.
    """

    registration: Registration
    locations: tuple[str, ...] = ()
    left_wall: float | None = None
    kept: dict[str, KeptLocation] = {}


class WorkerView(NamedTuple):
    """One worker, for people. Times are Unix seconds; 0.0: never."""

    registration: Registration
    heartbeat_at: float
    keys: int


class WorkerAddress(NamedTuple):
    """Where a worker takes commands, and whether its link to the controller is up.

    `linked_at`: since when, Unix seconds; infinite while it has only pushed, or is not linked.
    """

    endpoint: str
    is_linked: bool
    linked_at: float = math.inf


class Member:
    """A worker with what is known of its process.

    Attributes:
        alive_at: its last sign of life, monotonic seconds.
        heartbeat_at: its last heartbeat; `heartbeat_wall` the same in Unix seconds, 0.0 for none.
        interval_s: between its last two heartbeats; 0.0 before the second one.
        pushes_by, asks_by: the links of its messages; None where they are down.
        linked_wall: when it first asked over links that are up since, Unix seconds; infinite
            before.
        left_wall: when it left its instance, whose other workers go on; None while it is there. It
            holds nothing since, and so nothing of the instance can be used.
        late_by: the link by which the process before it has pushed, if that is still there: what
            comes by it is not of this process.
    """

    def __init__(self, registration: Registration, worker: Worker, journal: Journal) -> None:
        self.registration = registration
        self.worker = worker
        self.journal = journal
        self.alive_at = -math.inf
        self.heartbeat_at = 0.0
        self.heartbeat_wall = 0.0
        self.interval_s = 0.0
        self.pushes_by: LinkId | None = None
        self.late_by: LinkId | None = None
        self.asks_by: LinkId | None = None
        self.linked_wall = math.inf
        self.left_wall: float | None = None

    @property
    def is_linked(self) -> bool:
        """Whether any of its links is up."""
        return self.pushes_by is not None or self.asks_by is not None

    def is_of(self, request: Register) -> bool:
        """Whether the request is of the process that was registered, as far as addresses tell."""
        registration = self.registration
        return (
            registration.endpoint == f"tcp://{request.ip}:{request.port}"
            and registration.peer_url == (request.peer_init_url or "")
        )

    def beat(self, now: float, wall: float) -> None:
        """A heartbeat has come; `wall` in Unix seconds."""
        if self.heartbeat_at:
            self.interval_s = now - self.heartbeat_at
        self.heartbeat_at, self.heartbeat_wall = now, wall

    def doubt_at(self, now: float) -> Doubt | None:
        """Why it is not confirmed, or None."""
        if self.left_wall is not None:
            return None
        if self.asks_by is None:
            return Doubt.LINK_DOWN
        late_s = max(LMCACHE_BEATS_LATE * self.interval_s, LMCACHE_BEAT_LATE_MIN_S)
        if self.interval_s and now - self.heartbeat_at > late_s:
            return Doubt.WORKER_SILENT
        if not self.worker.is_whole:
            return Doubt.NOT_SYNCED
        return Doubt.COPIES_UNKNOWN if self.worker.copies.are_unknown else None
