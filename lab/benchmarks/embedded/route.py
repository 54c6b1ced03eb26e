"""What a decision costs: `POST /route` beside `POST /query` for the same prompts.

The candidates stand in the request, so that none is away: engines that nobody has registered, which
hold what was sent to them. Each request is booked, and written into the routing log; the query
lists as many registered instances. CPU is that of the server's process.

Then many clients at once: each of 64 connections asks `/route` and reports `completed` to
`/feedback`, again as soon as it has its answer, beside engines that are followed and do nothing.
What the service waited for a core meanwhile, that thread which waited longest, is no wait of the
service: with it, and without it, both are told. CPU of reports is taken of such that come alone,
and of lists of LIST.

And a client that asks PACED times a second over one connection, and reports over another, beside as
many processes that only count as there are cores: what a busy machine makes of a decision.
"""

import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from os import cpu_count, pread
from pathlib import Path
from time import monotonic, sleep
from typing import Final, NamedTuple

import msgspec

from lab.benchmarks.embedded.http_client import Client, Server, post_of
from lab.benchmarks.embedded.instances import register_away, wait_until_listed
from lab.benchmarks.embedded.service import MODEL, Service, thread_cpu_seconds
from lab.benchmarks.report.figures import Figure, percentile, times
from lab.benchmarks.routing import world
from lab.benchmarks.sizes import BLOCK_SIZE, Sizes
from lab.traffic.index_client import OutcomeReport, RouteAnswer
from routing.costs import Costs

COUNTS: Final = (8, 64)
TOKENS: Final = (1024, 8192)
REQUESTS: Final = 1000
REPORTS: Final = 2048
LIST: Final = 64
PROMPTS: Final = 50
PREFIX_TOKENS: Final = 512  # that all prompts share
CROWD: Final = 64
"""Connections at once."""

CROWD_ENGINES: Final = 4
CROWD_TOKENS: Final = 1024
LATE_S: Final = 0.1
PACED: Final = 200
PACED_CANDIDATES: Final = 8
_LOOP: Final = "while True: pass"
_CROWD: Final = f"{CROWD} connections"


def measure(sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    for count in COUNTS:
        with Service() as service:
            register_away(service, count)
            server = Server(service.address, service.pid)
            wait_until_listed(server, count)
            for tokens in TOKENS:
                figures += _figures(server, count, tokens, sizes.runs)
            if count == PACED_CANDIDATES:
                figures += _paced_figures(server, sizes)
                figures += _report_figures(server, sizes.runs)
    return figures + _crowd_figures(sizes)


def _figures(server: Server, count: int, tokens: int, runs: int) -> list[Figure]:
    asked = {
        "/query": _bodies(b"/query", tokens),
        "/route": _bodies(b"/route", tokens, candidates=_candidates(count)),
    }
    asked = {path: _in_turn(bodies) for path, bodies in asked.items()}
    cpu: dict[str, list[float]] = {
        path: [server.busy(requests, settles=path == "/route") for _ in range(runs)]
        for path, requests in asked.items()
    }
    what = f"{count} candidates, {tokens:,} tokens"
    return [
        Figure(name=f"{what}: CPU of /query", unit="us", runs=cpu["/query"]),
        Figure(name=f"{what}: CPU of /route", unit="us", runs=cpu["/route"]),
        times(f"{what}: /route, times /query", cpu["/route"], cpu["/query"]),
    ]


def _candidates(count: int) -> tuple[dict[str, str], ...]:
    return tuple({"instance_id": f"engine-{number}"} for number in range(count))


def _bodies(path: bytes, tokens: int, model: str = MODEL, **fields: object) -> list[bytes]:
    shared = list(range(PREFIX_TOKENS))
    bodies = []
    for number in range(PROMPTS):
        own = [100_000 * (number + 1) + token for token in range(tokens - PREFIX_TOKENS)]
        prompt = {"model": model, "block_size": BLOCK_SIZE, "token_ids": shared + own}
        bodies.append(post_of(path, msgspec.json.encode(prompt | fields)))
    return bodies


def _in_turn(bodies: list[bytes]) -> list[bytes]:
    return [bodies[number % PROMPTS] for number in range(REQUESTS)]


# Reports


def _report_figures(server: Server, runs: int) -> list[Figure]:
    """CPU of a report, all that it causes included."""
    cpu: dict[int, list[float]] = {1: [], LIST: []}
    for size, of_size in cpu.items():
        for _ in range(runs):
            told = [report_of(one) for one in _decided(server, REPORTS)]
            lists = [told[start : start + size] for start in range(0, REPORTS, size)]
            bodies = [post_of(b"/feedback", msgspec.json.encode(one)) for one in lists]
            of_size.append(server.busy(bodies, settles=True, expected=(202,)) / size)
    return [
        Figure(name="/feedback, one report: CPU", unit="us", runs=cpu[1]),
        Figure(name=f"/feedback, {LIST} reports, each: CPU", unit="us", runs=cpu[LIST]),
    ]


def _decided(server: Server, count: int) -> Iterator[RouteAnswer]:
    """As many decisions, of which nothing has been reported."""
    bodies = _bodies(b"/route", CROWD_TOKENS, candidates=_candidates(PACED_CANDIDATES))
    decode = msgspec.json.Decoder(RouteAnswer).decode
    with server.connected(1) as (client,):
        for body in islice(cycle(bodies), count):
            client.send(body)
            yield decode(client.receive())


def report_of(routed: RouteAnswer) -> OutcomeReport:
    """That it has ended."""
    return OutcomeReport(decision_id=routed.decision_id, event="completed", ttft_ms=20.0)


# Beside a busy machine


def _paced_figures(server: Server, sizes: Sizes) -> list[Figure]:
    bodies = _bodies(b"/route", CROWD_TOKENS, candidates=_candidates(PACED_CANDIDATES))
    with busy_cores():
        runs = [paced(server, bodies, sizes.crowd_s) for _ in range(sizes.runs)]
    rows = _times_of("/route", runs)
    what = f"{PACED} a second beside busy cores, {PACED_CANDIDATES} candidates"
    return [Figure(name=f"{what}: {row}", unit=unit, runs=values) for row, unit, values in rows]


@contextmanager
def busy_cores(count: int = 0) -> Iterator[None]:
    """So many processes that only count; 0 for as many as there are cores."""
    loops = [
        subprocess.Popen([sys.executable, "-c", _LOOP]) for _ in range(count or cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def paced(server: Server, bodies: list[bytes], seconds: float) -> list[float]:
    """How long each took of PACED requests a second, of which each is reported over another
    connection.
    """
    took_s: list[float] = []
    prompts, decode = cycle(bodies), msgspec.json.Decoder(RouteAnswer).decode
    with server.connected(2) as (asking, reporting):
        began_s = monotonic()
        while (now := monotonic()) < began_s + seconds:
            sleep(max(began_s + len(took_s) / PACED - now, 0.0))
            sent_s = monotonic()
            asking.send(next(prompts))
            answer = asking.receive((200,))
            took_s.append(monotonic() - sent_s)
            if len(took_s) > 1:
                reporting.receive((202,))
            reporting.send(_post_report(decode(answer)))
        reporting.receive((202,))
    return took_s


# Many at once


class CrowdResult(NamedTuple):
    """What came of one run.

    Attributes:
        route_s, feedback_s: how long each call took.
        without_core_s: how long each call of `/route` took, but for what one thread of the service
            waited for a core meanwhile: the one that waited longest.
        cpu_s: of the service, for each call.
    """

    route_s: list[float]
    feedback_s: list[float]
    without_core_s: list[float]
    cpu_s: float


class _Caller:
    """A client of one connection, which has one call under way."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.reports = False
        self.began_s = 0.0
        self.waited_s: list[float] = []

    def send(self, request: bytes, waited_s: list[float]) -> None:
        self.began_s, self.waited_s = monotonic(), waited_s
        self.client.send(request)

    def without_core_s(self, took_s: float, waited_s: list[float]) -> float:
        """Of a call: but for the wait of the thread that has waited longest since it was sent."""
        longest = max(now - then for now, then in zip(waited_s, self.waited_s, strict=True))
        return max(took_s - longest, 0.0)


def crowd(server: Server, pid: int, bodies: list[bytes], seconds: float) -> CrowdResult:
    """Asks for so long over new connections, all at once.

    Args:
        server: the service.
        pid: of its process.
        bodies: calls of `/route`, sent in turn.
        seconds: for how long.
    """
    route_s: list[float] = []
    feedback_s: list[float] = []
    without_core_s: list[float] = []
    prompts, decode = cycle(bodies), msgspec.json.Decoder(RouteAnswer).decode
    with (
        server.connected(CROWD) as clients,
        selectors.DefaultSelector() as ready,
        _waits(pid) as waits,
    ):
        for client in clients:
            ready.register(client, selectors.EVENT_READ, _Caller(client))
        cpu_s, end_s = thread_cpu_seconds(pid), monotonic() + seconds
        for key in ready.get_map().values():
            key.data.send(next(prompts), waits())
        while ready.get_map():
            came, waited_s = ready.select(), waits()
            for key, _ in came:
                caller: _Caller = key.data
                answer = caller.client.receive((200, 202))
                now = monotonic()
                took_s = now - caller.began_s
                if caller.reports:
                    feedback_s.append(took_s)
                    request = next(prompts)
                else:
                    route_s.append(took_s)
                    without_core_s.append(caller.without_core_s(took_s, waited_s))
                    request = _post_report(decode(answer))
                caller.reports = not caller.reports
                if now < end_s:
                    caller.send(request, waited_s)
                else:
                    ready.unregister(caller.client)
        cpu_s = thread_cpu_seconds(pid) - cpu_s
    return CrowdResult(route_s, feedback_s, without_core_s, cpu_s / len(route_s + feedback_s))


def _post_report(routed: RouteAnswer) -> bytes:
    return post_of(b"/feedback", msgspec.json.encode(report_of(routed)))


@contextmanager
def _waits(pid: int) -> Iterator[Callable[[], list[float]]]:
    """Says how long each thread of a process was ready to run and had no core, since it began."""
    paths = sorted(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    with ExitStack() as opened:
        files = [opened.enter_context(path.open("rb", buffering=0)).fileno() for path in paths]
        yield lambda: [_waited_s(file) for file in files]


def _waited_s(schedstat: int) -> float:
    try:
        return int(pread(schedstat, 64, 0).split()[1]) / 1e9
    except ProcessLookupError:  # a thread that has ended waits no more
        return 0.0


def _crowd_figures(sizes: Sizes) -> list[Figure]:
    bodies = _bodies(b"/route", CROWD_TOKENS, world.MODEL)
    with world.World([Costs()] * CROWD_ENGINES) as running:
        service = running.service
        server = Server(service.address, service.pid)
        runs = [crowd(server, service.pid, bodies, sizes.crowd_s) for _ in range(sizes.runs)]
    return crowd_figures(runs)


def crowd_figures(runs: list[CrowdResult]) -> list[Figure]:
    """Of the same, run after run."""
    rows = [
        ("CPU of a call", "us", [1e6 * one.cpu_s for one in runs]),
        *_times_of("/route", [one.route_s for one in runs]),
        *_times_of("/feedback", [one.feedback_s for one in runs]),
        *_times_of("/route, but for waits for a core", [one.without_core_s for one in runs]),
    ]
    note = f"{sum(len(one.route_s) for one in runs):,} calls of /route in all"
    return [
        Figure(name=f"{_CROWD}: {what}", unit=unit, runs=values, note="" if place else note)
        for place, (what, unit, values) in enumerate(rows)
    ]


def _times_of(what: str, runs: list[list[float]]) -> list[tuple[str, str, list[float]]]:
    late = [100 * sum(took_s > LATE_S for took_s in one) / len(one) for one in runs]
    return [
        (f"{what}, p50", "ms", [1000 * percentile(one, 50) for one in runs]),
        (f"{what}, p99", "ms", [1000 * percentile(one, 99) for one in runs]),
        (f"{what}, longest", "ms", [1000 * max(one) for one in runs]),
        (f"{what}, over {1000 * LATE_S:.0f} ms", "%", late),
    ]
