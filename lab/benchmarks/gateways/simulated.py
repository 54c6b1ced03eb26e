"""The gateway beside vLLM's router and SMG, before simulated engines, in turn.

The conversations of `conversations` (187 of 8 turns, 40 requests/s, four engines of 3,500 blocks of
16 tokens, 5 ms and 1/20,000 s for each token that is not cached) come as chats of OpenAI's API, by
HTTP. Each router has fresh engines, its defaults, and the same chats at the same times; of each
seed one router follows the other. What is cached is what engines say in `usage`; the time to the
first token is that of the client, and beside it that of the engines' clock, which does not count
what routers and machine add. SMG follows events of engines that speak gRPC alone.

Then a shorter run of ours in which an engine is killed in the middle, and one in which the gateway
is: it is started again at once, and clients ask again while nobody is at its port, as OpenAI's do.
"""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from devtools.routers import SMG, VLLM_ROUTER, routers
from lab.benchmarks.embedded.conversations import CACHE
from lab.benchmarks.gateways.chats import MODEL, Chat, chats_of
from lab.benchmarks.gateways.clients import (
    BROKEN_OFF,
    AnsweredChats,
    Interruption,
    ask,
    cached_share,
)
from lab.benchmarks.gateways.engines import GrpcEngines, HttpEngines, SimulatedEngines
from lab.benchmarks.gateways.routers import (
    KvAware,
    Reprise,
    RoundRobin,
    Router,
    ShepherdGateway,
)
from lab.benchmarks.report.figures import Figure, percentile
from lab.benchmarks.routing.outcomes import LATE_S
from lab.benchmarks.sizes import SEED, Sizes
from lab.engines import words

RIVALS: Final = (KvAware.name, ShepherdGateway.name)
"""Those that follow the engines' events, too."""

INTERRUPTED: Final = 3
"""Runs with an interruption have the conversations of others by so much."""


class RouterRun(NamedTuple):
    """Of one router.

    Attributes:
        engine_s: to the first token of each prompt, by the engines' clock.
        cpu_s, engines_cpu_s: of the router, and of the engines.
    """

    answered: AnsweredChats
    engine_s: Sequence[float]
    cpu_s: float
    engines_cpu_s: float


class Contest:
    """The routers that are installed, and what they need."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._installed = routers()
        words.write_model(folder)
        self.names = [
            *([RoundRobin.name, KvAware.name] if self._installed.has(VLLM_ROUTER) else []),
            *([ShepherdGateway.name] if self._installed.has(SMG) else []),
            Reprise.name,
        ]

    def engines(self, name: str) -> SimulatedEngines:
        """Fresh ones, as that router talks to them."""
        if name == ShepherdGateway.name:
            return GrpcEngines(self._folder, self._installed)
        return HttpEngines(self._folder)

    def router(self, name: str, engines: SimulatedEngines) -> Router:
        """One, before these engines."""
        common = (engines.targets, MODEL, self._folder, CACHE.block_size)
        if name == Reprise.name:
            return Reprise(*common)
        kind = next(one for one in (RoundRobin, KvAware, ShepherdGateway) if one.name == name)
        return kind(*common, self._installed)

    def run(self, name: str, chats: Sequence[Chat]) -> RouterRun:
        """All chats by one of them."""
        with self.engines(name) as engines, self.router(name, engines) as router:
            cpu_s, engines_cpu_s = router.cpu_s(), engines.cpu_s()
            answered = asyncio.run(ask(router.url, chats))
            cpu_s, engines_cpu_s = router.cpu_s() - cpu_s, engines.cpu_s() - engines_cpu_s
            return RouterRun(answered, engines.ttft_s(), cpu_s, engines_cpu_s)

    def without_engine(self, name: str, chats: Sequence[Chat]) -> AnsweredChats:
        """All chats; an engine is killed in the middle."""
        with self.engines(name) as engines, self.router(name, engines) as router:

            async def kill() -> None:
                await asyncio.to_thread(engines.kill, 0)

            return asyncio.run(ask(router.url, chats, Interruption(len(chats) // 2, kill)))

    def restarted(self, name: str, chats: Sequence[Chat]) -> AnsweredChats:
        """All chats; the router is killed in the middle, and started again."""
        with self.engines(name) as engines, self.router(name, engines) as router:

            def restart() -> None:
                router.kill()
                router.start()

            async def happen() -> None:
                await asyncio.to_thread(restart)

            return asyncio.run(ask(router.url, chats, Interruption(len(chats) // 2, happen)))


def measure(sizes: Sizes) -> list[Figure]:
    """See the module."""
    with tempfile.TemporaryDirectory(prefix="reprise-bench-") as folder:
        contest = Contest(Path(folder))
        runs: dict[str, list[RouterRun]] = {name: [] for name in contest.names}
        for seed in range(sizes.seeds):
            chats = chats_of(SEED + seed, sizes.conversations)
            for name in contest.names:
                runs[name].append(contest.run(name, chats))
        figures = [figure for name, of_name in runs.items() for figure in _figures(name, of_name)]
        figures += _compared(figures, [one for one in contest.names if one in RIVALS])
        chats = chats_of(SEED, max(sizes.conversations // INTERRUPTED, 8))
        figures += _interrupted(Reprise.name, contest.without_engine(Reprise.name, chats))
        restarted = contest.restarted(Reprise.name, chats)
        figures += _restarted(Reprise.name, restarted, len(chats) // 2)
    return figures


def _figures(name: str, runs: Sequence[RouterRun]) -> list[Figure]:
    """A run of each is a seed."""
    answered = [one.answered for one in runs]
    sent = [len(one.chats) for one in answered]
    late = [one.late_s for one in answered]
    later = sum(one.refused > 0 for run in answered for one in run.chats)
    note = (
        f"{sent[0]:,} requests; sent late by {1000 * max(late):,.0f} ms at the most; told to come"
        f" later: {later}"
    )
    rows = (
        ("TTFT, mean", "ms", [1000 * one.mean_s for one in answered]),
        ("TTFT, p99", "ms", [1000 * one.ttft_s(99) for one in answered]),
        ("TTFT at the engine, mean", "ms", [1000 * fmean(one.engine_s) for one in runs]),
        ("TTFT at the engine, p99", "ms", [1000 * percentile(one.engine_s, 99) for one in runs]),
        ("failed", "requests", [float(one.failed) for one in answered]),
        ("CPU of a request", "ms", [1000 * one.cpu_s / len(one.answered.chats) for one in runs]),
        (
            "CPU of a request, engines",
            "ms",
            [1000 * one.engines_cpu_s / len(one.answered.chats) for one in runs],
        ),
    )
    return [
        Figure(
            name=f"{name}: cached",
            unit="%",
            runs=[100 * one.cached for one in answered],
            note=note,
            limited=sum(one > LATE_S for one in late),
        ),
        *(Figure(name=f"{name}: {what}", unit=unit, runs=found) for what, unit, found in rows),
    ]


def _compared(figures: Sequence[Figure], rivals: Sequence[str]) -> list[Figure]:
    """Beside the best of the others that follow events, seed by seed."""
    known = {figure.name: figure.runs for figure in figures}

    def beside(what: str, name: str, best: Callable[[Sequence[float]], float]) -> Figure:
        seeds = zip(*(known[f"{one}: {what}"] for one in rivals), strict=True)
        ratios = [
            ours / best(theirs)
            for ours, theirs in zip(known[f"{Reprise.name}: {what}"], seeds, strict=True)
        ]
        return Figure(name=f"{Reprise.name}: {name}", unit="x", runs=ratios)

    if not rivals:
        return []
    return [
        beside("cached", "cached, times the best other", max),
        beside("TTFT, mean", "TTFT, mean, times the best other", min),
        beside("TTFT, p99", "TTFT, p99, times the best other", min),
        beside("TTFT at the engine, mean", "TTFT at the engine, mean, times the best other", min),
        beside("TTFT at the engine, p99", "TTFT at the engine, p99, times the best other", min),
    ]


def _interrupted(name: str, answered: AnsweredChats) -> list[Figure]:
    p99 = 1000 * answered.ttft_s(99)
    problems = sorted({one.problem for one in answered.chats if one.problem})
    note = f"{len(answered.chats):,} requests; {'; '.join(problems)[:200]}"
    return [
        Figure(
            name=f"{name}, an engine is killed: failed",
            unit="requests",
            runs=[float(answered.failed)],
            note=note,
        ),
        Figure(name=f"{name}, an engine is killed: TTFT, p99", unit="ms", runs=[p99]),
    ]


def _restarted(name: str, answered: AnsweredChats, killed: int) -> list[Figure]:
    """`killed`: the number of the request before which the router was."""
    killed_s = answered.chats[killed].at_s
    before = [one for one in answered.answered if killed_s / 2 <= one.at_s < killed_s]
    after = [one for one in answered.answered if one.at_s >= killed_s]
    waited = [one.at_s + one.ttft_s for one in answered.answered if one.refused]
    under_way = sum(one.problem.startswith(BROKEN_OFF) for one in answered.chats)
    row = f"{name}, the router is killed"
    return [
        Figure(
            name=f"{row}: failed",
            unit="requests",
            runs=[float(answered.failed)],
            note=f"{under_way} of them were broken off; {len(waited)} waited, and were answered",
        ),
        Figure(
            name=f"{row}: failed that were not under way",
            unit="requests",
            runs=[float(answered.failed - under_way)],
        ),
        Figure(name=f"{row}: away", unit="s", runs=[min(waited, default=killed_s) - killed_s]),
        Figure(name=f"{row}: cached before it", unit="%", runs=[100 * cached_share(before)]),
        Figure(name=f"{row}: cached after it", unit="%", runs=[100 * cached_share(after)]),
    ]
