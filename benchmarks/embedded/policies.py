"""Routing policies through the real service, with eight simulated engines as processes. For each a
fresh service and fresh engines get the same seeded requests at the same times, Poisson arrivals of
conversations that grow; decisions are those of `POST /route`, outcomes go to `POST /feedback`.
`/query alone` sends each to one of those that hold the longest prefix. Engines compute one prompt
after another, in real time by a cost model that the service is not told; times to the first token
are theirs, from the arrival at the engine. Then: loads that are told each second, with bookings and
without; refusals at 2.2 times the load; and estimates, with engines of eight different costs that
change in mid-run.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Final

import msgspec

from benchmarks.embedded.service import Service
from benchmarks.report.figures import Figure
from benchmarks.routing.choosing import ByQuery, ByRoute
from benchmarks.routing.drive import Events, Load, drive, load_of
from benchmarks.routing.outcomes import Drive, Sent, figures_of, promise_errors
from benchmarks.routing.world import World
from benchmarks.sizes import SEED, KernelName, Sizes
from simulation.traffic.http_json import JsonConnection
from streams.routing.costs import Costs

POLICIES: Final = (
    "wait-and-work",
    "algorithm-1:fetch=off",
    "algorithm-1",
    "weighted",
    "blocks",
    "lmetric",
    "sticky",
    "least-loaded",
    "round-robin",
)
QUERY: Final = "/query alone"
DEFAULT: Final = POLICIES[0]
ENGINES: Final = 8
COSTS: Final = Costs(fixed_s=0.06, prefill_tokens_per_s=1_000.0, token_squared_s=1e-8)
BASE_PER_S: Final = 12.5
"""At which the engines are busy for a third of the time, with good routing."""

POLICIES_PER_S: Final = 1.76 * BASE_PER_S
REFUSALS_PER_S: Final = 2.2 * BASE_PER_S
SLO_S: Final = 5.0
LOAD_EVERY_S: Final = 1.0

ESTIMATES_PER_S: Final = 25.0
OUTCOMES_NEEDED: Final = 200
"""Of an engine, until its times are to be known."""

SPREAD: Final = (1.0, 1.1, 0.8, 0.9, 1.25, 0.7, 1.0, 0.85)
"""By how much the costs of the engines differ."""

CHANGED: Final = (1.3, 0.8, 1.2, 1.0, 0.8, 1.1, 0.7, 1.25)
"""What they become in mid-run, times what they were."""


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    load = load_of(SEED, POLICIES_PER_S, sizes.routed_requests, sizes.routed_warmup)
    return [
        *compare(kernel, load, POLICIES),
        *_herd(kernel, load),
        *_refusals(kernel, sizes),
        *_estimates(kernel, sizes),
    ]


def compare(
    kernel: KernelName,
    load: Load,
    policies: Sequence[str],
    costs: Sequence[Costs] = (COSTS,) * ENGINES,
) -> list[Figure]:
    """Each policy, then `/query` alone: a fresh service and fresh engines for each."""
    figures: list[Figure] = []
    means: dict[str, float] = {}
    for name in (*policies, QUERY):
        with World(kernel, costs) as world:
            names = [engine.instance_id for engine in world.engines]
            way = ByQuery(names, SEED) if name == QUERY else ByRoute(name)
            driven = drive(world, load, way)
        means[name] = driven.mean_ttft_s
        figures += figures_of(name, driven)
        if name == policies[0]:
            share = _busy(driven, load, len(costs))
            figures.append(
                Figure(name=f"{name}: engines busy, on average", unit="%", runs=[100 * share])
            )
    ratio = means[policies[0]] / means[QUERY]
    name = f"{policies[0]}: TTFT, mean, times {QUERY}"
    return [*figures, Figure(name=name, unit="x", runs=[ratio])]


def _busy(driven: Drive, load: Load, engines: int) -> float:
    """Share of the time for which the engines have computed what was done, after the warm-up."""
    work = sum(
        COSTS.prefill_s(one.prompt_tokens, one.cached_tokens)
        for one in driven.served
        if one.is_done
    )
    return work / (load.at_s[-1] - load.at_s[load.warmup - 1]) / engines


# Loads that are old


def _herd(kernel: KernelName, load: Load) -> list[Figure]:
    """The service is told the engines' costs, so that only what it knows of loads differs: without
    bookings there are no outcomes that it could learn from.
    """
    costs = f"--costs={_text_of(COSTS)}"
    old = Events(told_every_s=LOAD_EVERY_S)
    cases = (
        ("bookings alone", True, Events()),
        ("loads each second, with bookings", True, old),
        ("loads each second, reserve: false", False, old),
    )
    means = []
    figures = []
    for name, reserve, events in cases:
        with World(kernel, [COSTS] * ENGINES, costs) as world:
            driven = drive(world, load, ByRoute(DEFAULT, reserve=reserve), events)
        means.append(driven.mean_ttft_s)
        figures += [
            Figure(name=f"{name}: TTFT, mean", unit="ms", runs=[1000 * driven.mean_ttft_s]),
            Figure(name=f"{name}: TTFT, p99", unit="ms", runs=[1000 * driven.ttft_s(99)]),
            Figure(name=f"{name}: hit rate", unit="%", runs=[100 * driven.hit_rate]),
        ]
    for (name, _, _), mean in zip(cases[1:], means[1:], strict=True):
        ratio = mean / means[0]
        figures.append(Figure(name=f"{name}: TTFT, times exact", unit="x", runs=[ratio]))
    return figures


def _text_of(costs: Costs) -> str:
    """As `--costs` takes it."""
    names = ("fixed_s", "prefill_tokens_per_s", "token_squared_s")
    return ",".join(f"{name}={getattr(costs, name)!r}" for name in names)


# Refusals


def _refusals(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    load = load_of(SEED, REFUSALS_PER_S, sizes.routed_requests, sizes.routed_warmup)
    with World(kernel, [COSTS] * ENGINES) as world:
        way = ByRoute(DEFAULT, slo_s=SLO_S)
        driven = drive(world, load, way, Events(slo_s=SLO_S))
    name = f"2.2 times the load, {SLO_S:.0f} s"
    late = sum(one.is_done and one.ttft_s > SLO_S for one in driven.served) / len(driven.sent)
    shares = (
        ("within it, of all requests", driven.within(SLO_S)),
        ("refused", driven.refused()),
        ("refused needlessly", driven.refused_needlessly(SLO_S)),
        ("sent, and late", late),
    )
    note = f"{len(driven.sent):,} requests, hit rate {driven.hit_rate:.1%}"
    return [
        Figure(name=f"{name}: {what}", unit="%", runs=[100 * share], note="" if at else note)
        for at, (what, share) in enumerate(shares)
    ]


# Estimates


class _PrefillRow(msgspec.Struct):
    class_name: str
    outcomes: int
    mape: float
    promise_mape: float
    p90_coverage: float


class _Models(msgspec.Struct):
    prefill: list[_PrefillRow]


def _estimates(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    """Each engine is a class of its own, so that nothing is learned of one by another."""
    costs = [_times(COSTS, factor) for factor in SPREAD]
    changed = [_times(one, factor) for one, factor in zip(costs, CHANGED, strict=True)]
    half = sizes.estimated_requests // 2
    load = load_of(SEED, ESTIMATES_PER_S, 2 * half, 0)
    with World(kernel, costs, alike=False) as world:
        events = Events(costs_after=half, costs=changed)
        driven = drive(world, load, ByRoute(DEFAULT), events)
        rows = _models(world.service)
    figures = []
    for when, sent in (
        ("as they were", [one for one in driven.sent if one.number < half]),
        ("once they have changed", [one for one in driven.sent if one.number >= half]),
    ):
        known = _after(sent, OUTCOMES_NEEDED)
        errors = promise_errors(known)
        if errors:
            note = f"{len(errors):,} promises, after {OUTCOMES_NEEDED} outcomes of the engine"
            name = f"costs {when}: error of the TTFT promised"
            figures.append(Figure(name=name, unit="%", runs=[100 * fmean(errors)], note=note))
    fewest = min(row.outcomes for row in rows)
    note = f"of each engine's last 500 outcomes, the fewest {fewest:,}"
    by_models = (
        ("MAPE of computing, mean", fmean(row.mape for row in rows)),
        ("MAPE of computing, worst", max(row.mape for row in rows)),
        ("MAPE of the TTFT, mean", fmean(row.promise_mape for row in rows)),
        ("MAPE of the TTFT, worst", max(row.promise_mape for row in rows)),
        ("p90 held, least", min(row.p90_coverage for row in rows)),
        ("p90 held, most", max(row.p90_coverage for row in rows)),
    )
    return figures + [
        Figure(name=f"GET /models: {what}", unit="%", runs=[100 * share], note="" if at else note)
        for at, (what, share) in enumerate(by_models)
    ]


def _times(costs: Costs, factor: float) -> Costs:
    return msgspec.structs.replace(
        costs,
        fixed_s=costs.fixed_s * factor,
        prefill_tokens_per_s=costs.prefill_tokens_per_s / factor,
        token_squared_s=costs.token_squared_s * factor,
    )


def _after(sent: Sequence[Sent], outcomes: int) -> list[Sent]:
    """Those that were sent to an engine after so many others."""
    seen: dict[str, int] = {}
    found = []
    for one in sent:
        seen[one.instance_id] = seen.get(one.instance_id, 0) + 1
        if seen[one.instance_id] > outcomes:
            found.append(one)
    return found


def _models(service: Service) -> list[_PrefillRow]:
    connection = JsonConnection("http://{}:{}".format(*service.address))
    try:
        answer = connection.request("GET", "/models")
    finally:
        connection.close()
    return msgspec.json.decode(answer.body, type=_Models).prefill
