"""Asks engines for their load, again and again, in a thread of its own.

So neither a text of megabytes nor an engine that hangs holds up what engines publish, and what it
costs can be told: the thread's own CPU time. Where that is above LOAD_CPU_SHARE of a core, which a
thousand engines a second come to, the period is stretched until it is not.

An engine whose process is known to be away is not asked, and one that fails is asked ever more
rarely; each address is asked once for all of its ranks.
"""

import asyncio
import contextlib
import heapq
import logging
import resource
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

import uvloop

from bridge.engine_http.bounds import LOAD_CPU_SHARE
from bridge.engine_http.client import KeepAlivePool, NoAnswerError, Room, get
from bridge.engine_http.load_answers import WAYS, Loads, Way, samples_of
from bridge.engine_http.load_pace import LoadPace, pause_s
from bridge.engine_http.load_settings import check_period
from bridge.engine_http.watch import EngineWatch
from bridge.supervision import cancel
from schemas.clock import CHANCE, REAL_CLOCK, Clock
from schemas.errors import EndpointError
from schemas.identities import PublisherKey
from schemas.limits import MIB
from schemas.registration import NO_EVENTS, SGLANG, TENSORRT_LLM, VLLM, PublisherKind, Registration
from schemas.routing_records import LoadSample, LoadSource, Target

LOAD_JITTER: Final = 0.2  # of a period, by which a question is asked sooner or later
LOAD_TICK_S: Final = 0.1  # how often it is looked who is due, and samples are handed over
LOAD_IDLE_S: Final = 0.5  # how often it is looked whether anybody can be asked, while nobody can
LOAD_LOOK_S: Final = 3.0  # how often it is looked who is registered
LOAD_WAIT_S: Final = 1.0  # for a whole answer; then it counts as none: reason="silent"
LOAD_END_S: Final = 1.0  # for its thread to end
LOAD_AT_ONCE_MAX: Final = 64  # engines that are asked; a file each
LOAD_AWAY_FAILURES: Final = 2  # silences in a row, after which an engine without events is away
LOAD_SILENT_AT_ONCE_MAX: Final = 16  # that are asked, of those that failed the last time
LOAD_KEPT_MAX: Final = 1024  # connections that stay open to the next question; a file each
LOAD_FILES_SHARE: Final = 16  # of the limit of open files, these take so much at the most
LOAD_BODIES_BYTES_MAX: Final = 16 * MIB  # of all answers that have come in part; then "silent"
LOAD_PUSHED_MAX: Final = 512  # engines that say their load unasked, of which the last one is kept
LOAD_NAMED_MAX: Final = 256  # addresses that say nothing of their load, and are logged

_logger = logging.getLogger(__name__)

_NOT_FOUND: Final = (404, 405)
_NOT_ALLOWED: Final = (401, 403)  # SGLang's metrics need no key

_LOAD_REMEDIES: Final = {
    VLLM: "vLLM does at /metrics: start it without --disable-log-stats",
    SGLANG: "SGLang does at /v1/loads, or at /metrics with --enable-metrics",
    TENSORRT_LLM: "TensorRT-LLM does at /prometheus/metrics",
}
"""What makes an engine of a kind say its load."""

OnSamples = Callable[[list[LoadSample]], None]


def ignore_samples(samples: list[LoadSample]) -> None:
    """Takes none: they are counted, and the last ones kept."""


class ScrapedPublisher(Protocol):
    """A publisher as it is followed; see `bridge.publisher.publisher.Publisher`."""

    @property
    def registration(self) -> Registration:
        """As it was registered."""
        ...

    @property
    def engine(self) -> EngineWatch | None:
        """What is known of its process; None where that is not asked."""
        ...


class UnfollowedEngine(NamedTuple):
    """An engine that publishes no events: it is asked for its load, and nothing else."""

    registration: Registration
    engine: EngineWatch | None = None


def scraped(
    followed: Mapping[PublisherKey, ScrapedPublisher], registrations: Iterable[Registration]
) -> dict[PublisherKey, ScrapedPublisher]:
    """Those that are followed, and of the registrations those without events."""
    found: dict[PublisherKey, ScrapedPublisher] = dict(followed)
    for one in registrations:
        if not one.has_events:
            found[one.publisher] = UnfollowedEngine(one)
    return found


class LoadServer(NamedTuple):
    """An address that is asked, and how."""

    kind: PublisherKind
    url: str


def servers_of(followed: Iterable[ScrapedPublisher]) -> dict[LoadServer, tuple[Target, ...]]:
    """Whom to ask, and for whom, each target once: that of the first registration counts.

    Left out is who has no HTTP address, is of a kind that says nothing of its load, or is away.
    """
    targets: dict[Target, LoadServer] = {}
    for one in followed:
        registration = one.registration
        if not registration.http_url or registration.kind not in WAYS:
            continue
        if one.engine is not None and one.engine.is_away:
            continue
        target = Target(registration.tenant_id, registration.instance_id, registration.dp_rank)
        targets.setdefault(target, LoadServer(registration.kind, registration.http_url))
    servers: dict[LoadServer, list[Target]] = {}
    for target, server in targets.items():
        servers.setdefault(server, []).append(target)
    return {server: tuple(its) for server, its in servers.items()}


def _kept_max() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = soft == resource.RLIM_INFINITY
    return LOAD_KEPT_MAX if unlimited else min(soft // LOAD_FILES_SHARE, LOAD_KEPT_MAX)


class _ServerState:
    """What is known of a server: whose it is, which way it understands, when it is due."""

    def __init__(self, server: LoadServer) -> None:
        self.server = server
        self.targets: tuple[Target, ...] = ()
        self.way = self.failures = 0
        self.read_s = 0.0
        self.is_gone = False


class LoadWatch:
    """See the module.

    Args:
        followed: the publishers; called in the thread, so it copies what others change.
        on_samples: takes samples, at most one of a target, on the loop of `run`.
        wait_s: for each answer.
        chance: a number from 0 to 1.

    Attributes:
        on_samples: see above; may be replaced.
        failures: questions that brought nothing, by reason: `silent`, `refused` (a status that is
            an error), `no_load` (nothing in it says how much it carries).
        dropped: what was left out of answers, by reason; see `read_series` and `samples_of`.
        cpu_s: of the thread.
        last: the last sample of each target that is asked for, or pushes its load.
    """

    def __init__(
        self,
        period_s: float,
        followed: Callable[[], Mapping[PublisherKey, ScrapedPublisher]],
        on_samples: OnSamples = ignore_samples,
        *,
        wait_s: float = LOAD_WAIT_S,
        clock: Clock = REAL_CLOCK,
        chance: Callable[[], float] = CHANCE,
    ) -> None:
        self._clock = clock
        self._chance = chance
        check_period(period_s)
        self.samples = self.faults = 0
        self.failures: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.cpu_s = 0.0
        self.last: dict[Target, LoadSample] = {}
        self._wanted_s = period_s
        self._followed = followed
        self.on_samples = on_samples
        self._wait_s = wait_s
        self._pace = LoadPace(period_s)
        self._questions = 0
        self._is_stretched = False
        self._asked: dict[LoadServer, _ServerState] = {}
        self._due: list[tuple[float, int, _ServerState]] = []
        self._number = 0  # what puts equal times in order
        self._ready: dict[Target, LoadSample] = {}
        self._named: set[tuple[LoadServer, str]] = set()
        self._targets: frozenset[Target] = frozenset()
        self._pushed: dict[Target, None] = {}  # a set, in order
        self._under_way: set[asyncio.Task[None]] = set()

    @property
    def period_s(self) -> float:
        """How often each is asked now, seconds."""
        return self._pace.period_s(len(self._asked))

    @property
    def servers(self) -> int:
        """How many addresses are asked."""
        return len(self._asked)

    async def run(self) -> None:
        """Asks until it is cancelled; may be called again then, and after an unexpected error.

        Where nobody can be asked it waits, without a thread and the files of its loop.
        """
        while not servers_of(self._followed().values()):  # noqa: ASYNC110 -- changed by others
            await asyncio.sleep(LOAD_IDLE_S)
        loop = asyncio.get_running_loop()
        own = uvloop.new_event_loop()
        stop = asyncio.Event()
        ended: asyncio.Future[None] = loop.create_future()
        thread = threading.Thread(
            target=self._run_thread, args=(own, stop, loop, ended), name="load", daemon=True
        )
        thread.start()
        try:
            await ended
        finally:
            with contextlib.suppress(RuntimeError):  # its loop has been closed
                own.call_soon_threadsafe(stop.set)
            thread.join(LOAD_END_S)

    # The thread

    def _run_thread(
        self,
        own: asyncio.AbstractEventLoop,
        stop: asyncio.Event,
        loop: asyncio.AbstractEventLoop,
        ended: asyncio.Future[None],
    ) -> None:
        try:
            own.run_until_complete(self._ask_often(stop, loop))
        except Exception as error:  # noqa: BLE001
            failure = error  # the name ends with this block

            def fail() -> None:
                if not ended.done():
                    ended.set_exception(failure)

            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(fail)
        finally:
            own.close()

    async def _ask_often(self, stop: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        self._room = Room(LOAD_BODIES_BYTES_MAX)
        self._kept = KeepAlivePool(_kept_max())
        self._places = asyncio.Semaphore(LOAD_AT_ONCE_MAX)
        self._failed_places = asyncio.Semaphore(LOAD_SILENT_AT_ONCE_MAX)
        look_at, cpu_before = 0.0, self._clock.thread_cpu() - self.cpu_s
        try:
            while not stop.is_set():
                now = self._clock.monotonic()
                if now >= look_at:
                    look_at = now + LOAD_LOOK_S
                    self._look(now)
                self._begin_due(now)
                self._hand_over(loop)
                self.cpu_s = self._clock.thread_cpu() - cpu_before
                self._pace.note(now, self.cpu_s, self._questions)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), LOAD_TICK_S)
        finally:
            await cancel(*self._under_way)
            self._kept.close()
            self._asked.clear()
            self._due.clear()

    def _look(self, now: float) -> None:
        servers = servers_of(self._followed().values())
        for server in self._asked.keys() - servers.keys():
            self._asked.pop(server).is_gone = True
            self._kept.forget(server.url)
        added = servers.keys() - self._asked.keys()
        for server in added:
            self._asked[server] = _ServerState(server)
        for server in added:  # all of them are known now, and so how often they are asked
            self._put(self._asked[server], now + self._chance() * self.period_s)
        for server, targets in servers.items():
            self._asked[server].targets = targets
        self._targets = frozenset(target for its in servers.values() for target in its)
        self._tell_period()

    def _put(self, asked: _ServerState, at: float) -> None:
        self._number += 1
        heapq.heappush(self._due, (at, self._number, asked))

    def _begin_due(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            asked = heapq.heappop(self._due)[2]
            if not asked.is_gone:
                task = asyncio.get_running_loop().create_task(self._ask(asked))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)

    def _tell_period(self) -> None:
        is_stretched = self.period_s > self._wanted_s
        if is_stretched and not self._is_stretched:
            _logger.debug(
                "Asking %d engines for their load every %.1f s, not every %g s as configured: so"
                " many would take more than %g %% of a core",
                self.servers,
                self.period_s,
                self._wanted_s,
                100 * LOAD_CPU_SHARE,
            )
        self._is_stretched = is_stretched

    async def _ask(self, asked: _ServerState) -> None:
        begun = self._clock.monotonic()
        try:
            async with self._failed_places if asked.failures else self._places:
                reason = await self._ask_each_way(asked)
        except Exception:
            self.faults += 1
            _logger.exception(
                "Unexpected error while %s was asked for its load; asking it again later",
                asked.server.url,
            )
            reason = "internal_error"
        if reason:
            self.failures[reason] += 1
            self._name(asked, reason)
        asked.failures = asked.failures + 1 if reason else 0
        if reason == "silent" and asked.failures >= LOAD_AWAY_FAILURES:
            self._note_away(asked)
        if not asked.is_gone:
            jitter = 1 + LOAD_JITTER * (2 * self._chance() - 1)
            self._put(asked, begun + jitter * pause_s(self.period_s, asked.failures, asked.read_s))

    async def _ask_each_way(self, asked: _ServerState) -> str:
        """Why nothing was found, or ""."""
        ways = WAYS[asked.server.kind]
        reason = "no_load"
        asked.read_s = 0.0
        for _ in ways:
            way = ways[asked.way]
            self._questions += 1
            try:
                reply = await get(
                    asked.server.url,
                    way.path,
                    with_body=True,
                    wait_s=self._wait_s,
                    bytes_max=way.bytes_max,
                    cut=way.cut,
                    room=self._room,
                    kept=self._kept,
                )
            except (NoAnswerError, EndpointError) as error:
                _logger.debug("No answer to %s: %s", way.path, error)
                asked.way = 0  # what comes next may be another process
                return "silent"
            if reply.status == 200 and self._take(asked, self._read(asked, way, reply.body)):
                return ""
            if reply.status not in (200, *_NOT_FOUND):
                reason = "refused"
                if reply.status not in _NOT_ALLOWED:
                    return reason
            asked.way = (asked.way + 1) % len(ways)
        return reason

    def _read(self, asked: _ServerState, way: Way, body: bytes) -> Loads:
        begun = self._clock.thread_cpu()
        loads = way.read(body)
        asked.read_s += self._clock.thread_cpu() - begun
        return loads

    def _take(self, asked: _ServerState, loads: Loads) -> bool:
        """Whether it says anything."""
        samples, missing = samples_of(loads, asked.targets, self._clock.unix())
        self.dropped.update(loads.dropped)
        if loads.by_rank:
            self.dropped.update(missing)
        for sample in samples:
            self._ready[sample.target] = sample
        return bool(loads.by_rank)

    def _note_away(self, asked: _ServerState) -> None:
        """Nobody else says so of an engine without events."""
        if asked.server.kind == NO_EVENTS:
            now = self._clock.unix()
            for target in asked.targets:
                self._ready[target] = LoadSample(target, now, LoadSource.SCRAPED, is_away=True)

    def _name(self, asked: _ServerState, reason: str) -> None:
        """What does not pass by itself is logged once."""
        server = asked.server
        if reason == "silent" or len(self._named) >= LOAD_NAMED_MAX:
            return
        if (server, reason) not in self._named:
            self._named.add((server, reason))
            _logger.warning(
                "The %s engine at %s does not say its load (%s); it is routed to by what this"
                " service has sent there. %s",
                server.kind,
                server.url,
                reason,
                _remedy(asked, reason),
            )

    # To the loop

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._ready:
            ready, self._ready = self._ready, {}
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(self._tell, list(ready.values()))

    def note_pushed(self, samples: list[LoadSample]) -> None:
        """Engines have said their load unasked, in their streams; on the loop of `run`."""
        for sample in samples:
            self._pushed.pop(sample.target, None)
            self._pushed[sample.target] = None
        while len(self._pushed) > LOAD_PUSHED_MAX:
            del self._pushed[next(iter(self._pushed))]
        self._tell(samples)

    def _tell(self, samples: list[LoadSample]) -> None:
        try:
            self.on_samples(samples)
        except Exception:
            self.faults += 1
            _logger.exception("Unexpected error while samples of load were taken; dropping them")
            return
        self.samples += len(samples)
        self.last.update({sample.target: sample for sample in samples})
        if len(self.last) > len(self._targets) + len(self._pushed):
            kept = self._targets.union(self._pushed)
            self.last = {target: one for target, one in self.last.items() if target in kept}


def _remedy(asked: _ServerState, reason: str) -> str:
    """What makes it say its load."""
    if reason == "refused":
        return "It answers by an error status: let its metrics be read without a key"
    if reason == "internal_error":
        return "Its answer could not be read: the line before says why"
    ranks = len(asked.targets)
    if ranks > 1:
        return (
            f"{ranks} ranks are registered at that address, and its answer names none of them:"
            " register each with its own `http_endpoint`"
        )
    paths = " or ".join(way.path.partition("?")[0] for way in WAYS[asked.server.kind])
    known = _LOAD_REMEDIES.get(asked.server.kind, f"It was asked for {paths}")
    return f"{known}; POST /load says it in its place"
