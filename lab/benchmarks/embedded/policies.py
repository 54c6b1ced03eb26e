"""Routing policies through the real service, with eight simulated engines as processes. For each a
fresh service and fresh engines get the same seeded requests at the same times, Poisson arrivals of
conversations that grow; decisions are those of `POST /route`, outcomes go to `POST /feedback`.
`/query alone` sends each to one of those that hold the longest prefix. Engines compute one prompt
after another, in real time by a cost model of which the service is told no more than half of each
coefficient; times to the first token are theirs, from the arrival at the engine. Then: loads that
are told each second, with bookings and without; refusals at 2.2 times the load; and estimates, with
engines of eight different costs that change in mid-run.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import chain
from statistics import fmean
from typing import Final

import msgspec

from lab.benchmarks.embedded.service import Service
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.routing.choosing import ByQuery, ByRoute
from lab.benchmarks.routing.drive import Events, Load, drive, load_of
from lab.benchmarks.routing.outcomes import Drive, SentRequest, figures_of, note_of, promise_errors
from lab.benchmarks.routing.world import World
from lab.benchmarks.sizes import SEED, Sizes
from lab.traffic.http_json import JsonConnection
from routing.costs import Costs

POLICIES: Final = ("least-delay", "wait-and-work")
QUERY: Final = "/query alone"
DEFAULT: Final = POLICIES[0]
ENGINES: Final = 8
COSTS: Final = Costs(fixed_s=0.24, prefill_tokens_per_s=250.0, token_squared_s=4e-8)
"""Slow, so that what the machine takes for itself is small beside it: a prompt of 1,500 tokens that
nobody holds takes 6 s, one of which nine tenths are cached 0.9 s."""

TOLD: Final = "--set=routing.costs=prefill_tokens_per_s=500,token_squared_s=1e-8"
"""What the service is told of them, as by an operator who knows about what machines they are."""

BASE_PER_S: Final = 3.5
"""At which the engines are busy for two fifths of the time, with good routing."""

POLICIES_PER_S: Final = 1.75 * BASE_PER_S
REFUSALS_PER_S: Final = 2.2 * BASE_PER_S
SLO_S: Final = 5.0
LOAD_EVERY_S: Final = 1.0
EXACT: Final = "loads as booked and reported at once"
BOOKED: Final = "loads told each second, with bookings"
UNBOOKED: Final = "loads told each second, reserve: false"

AT_ONCE: Final = 8
"""Worlds that go on beside one another, each with a service of its own: together they take some
three quarters of a core."""

ESTIMATES_PER_S: Final = 18.75
ESTIMATES_SPEED: Final = 3.0
OUTCOMES_NEEDED: Final = 100
"""Of an engine, until its times are to be known."""

SPREAD: Final = (1.0, 1.1, 0.8, 0.9, 1.25, 0.7, 1.0, 0.85)
"""By how much the costs of the engines differ."""

CHANGED: Final = (1.3, 0.8, 1.2, 1.0, 0.8, 1.1, 0.7, 1.25)
"""What they become in mid-run, times what they were."""


def measure(sizes: Sizes) -> list[Figure]:
    load = load_of(SEED, POLICIES_PER_S, sizes.routed_requests, sizes.routed_warmup)
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        # Those first that take longest.
        estimates = _begin_estimates(pool, sizes)
        refusals = _begin_refusals(pool, sizes)
        herd = _begin_herd(pool, load)
        comparison = begin_comparison(pool, load, POLICIES)
        parts = (comparison, herd, refusals, estimates)
        return list(chain.from_iterable(part() for part in parts))
    finally:
        pool.shutdown(cancel_futures=True)  # where one has failed, those that wait are not begun


Part = Callable[[], list[Figure]]
"""Waits for the worlds that were begun, and says what came of them."""


def begin_comparison(
    pool: Executor,
    load: Load,
    policies: Sequence[str],
    costs: Sequence[Costs] = (COSTS,) * ENGINES,
) -> Part:
    """Each policy, and `/query` alone: a fresh service and fresh engines for each."""

    def run(name: str) -> Drive:
        with World(costs, TOLD) as world:
            names = [engine.instance_id for engine in world.engines]
            way = ByQuery(names, SEED) if name == QUERY else ByRoute(name)
            return drive(world, load, way)

    begun = {name: pool.submit(run, name) for name in (*policies, QUERY)}
    return lambda: comparison_figures(_results(begun), load, costs)


def _results(begun: Mapping[str, Future[Drive]]) -> dict[str, Drive]:
    return {name: future.result() for name, future in begun.items()}


def comparison_figures(
    drives: Mapping[str, Drive], load: Load, costs: Sequence[Costs]
) -> list[Figure]:
    """Of all policies, the first beside `/query` alone."""
    figures = list(chain.from_iterable(figures_of(name, one) for name, one in drives.items()))
    name, first = next(iter(drives.items()))
    busy = 100 * busy_share(first, load, costs)
    ratio = first.mean_ttft_s / drives[QUERY].mean_ttft_s
    return [
        *figures,
        Figure(name=f"{name}: engines busy, on average", unit="%", runs=[busy]),
        Figure(name=f"{name}: TTFT, mean, times {QUERY}", unit="x", runs=[ratio]),
    ]


def busy_share(driven: Drive, load: Load, costs: Sequence[Costs]) -> float:
    """Of their time, what engines of equal costs took for what was done after the warm-up."""
    work = sum(
        costs[0].prefill_s(one.prompt_tokens, one.cached_tokens)
        for one in driven.served
        if one.is_done
    )
    return work / (load.at_s[-1] - load.at_s[load.warmup - 1]) / len(costs)


# Loads that are old


def _begin_herd(pool: Executor, load: Load) -> Part:
    """The service is told the engines' costs, so that only what it knows of loads differs: without
    bookings there are no outcomes that it could learn from.
    """

    def run(events: Events, reserve: bool) -> Drive:
        with World([COSTS] * ENGINES, f"--set=routing.costs={_text_of(COSTS)}") as world:
            return drive(world, load, ByRoute(DEFAULT, reserve=reserve), events)

    old = Events(told_every_s=LOAD_EVERY_S)
    begun = {
        EXACT: pool.submit(run, Events(), True),
        BOOKED: pool.submit(run, old, True),
        UNBOOKED: pool.submit(run, old, False),
    }
    return lambda: herd_figures(_results(begun))


def herd_figures(drives: Mapping[str, Drive]) -> list[Figure]:
    """Of loads that are old, beside exact ones."""
    figures = []
    for name, one in drives.items():
        mean, p99 = 1000 * one.mean_ttft_s, 1000 * one.ttft_s(99)
        figures += [
            Figure(name=f"{name}: TTFT, mean", unit="ms", runs=[mean], note=note_of(one)),
            Figure(name=f"{name}: TTFT, p99", unit="ms", runs=[p99]),
            Figure(name=f"{name}: hit rate", unit="%", runs=[100 * one.hit_rate]),
        ]
        if name != EXACT:
            ratio = one.mean_ttft_s / drives[EXACT].mean_ttft_s
            figures.append(Figure(name=f"{name}: TTFT, times exact", unit="x", runs=[ratio]))
    return figures


def _text_of(costs: Costs) -> str:
    """As the key `routing.costs` takes it."""
    names = ("fixed_s", "prefill_tokens_per_s", "token_squared_s")
    return ",".join(f"{name}={getattr(costs, name)!r}" for name in names)


# Refusals


def _begin_refusals(pool: Executor, sizes: Sizes) -> Part:
    load = load_of(SEED, REFUSALS_PER_S, sizes.routed_requests, sizes.routed_warmup)

    def run() -> Drive:
        with World([COSTS] * ENGINES, TOLD) as world:
            return drive(world, load, ByRoute(DEFAULT, slo_s=SLO_S), Events(slo_s=SLO_S))

    begun = pool.submit(run)
    return lambda: refusal_figures(begun.result())


def refusal_figures(driven: Drive) -> list[Figure]:
    """Shares of all requests, refused ones included."""
    name = f"2.2 times the load, {SLO_S:.0f} s"
    late = sum(one.is_done and one.ttft_s > SLO_S for one in driven.served) / len(driven.sent)
    shares = {
        "within it": driven.within(SLO_S),
        "refused": driven.refused(),
        "refused needlessly": driven.refused_needlessly(SLO_S),
        "sent, and late": late,
        "hit rate": driven.hit_rate,
    }
    figures = [
        Figure(name=f"{name}: {what}", unit="%", runs=[100 * share])
        for what, share in shares.items()
    ]
    figures[0] = msgspec.structs.replace(figures[0], note=note_of(driven))
    return figures


# Estimates


class ModelRow(msgspec.Struct):
    """What `GET /models` says of a class, as far as it is looked at here."""

    class_name: str
    outcomes: int
    mape: float
    promise_mape: float
    p90_coverage: float


class _Models(msgspec.Struct):
    prefill: list[ModelRow]


def _begin_estimates(pool: Executor, sizes: Sizes) -> Part:
    """Each engine is a class of its own, so that nothing is learned of one by another."""
    costs = [_times(COSTS, factor / ESTIMATES_SPEED) for factor in SPREAD]
    changed = [_times(one, factor) for one, factor in zip(costs, CHANGED, strict=True)]
    half = sizes.estimated_requests // 2
    load = load_of(SEED, ESTIMATES_PER_S, 2 * half, 0)

    def run() -> tuple[Drive, list[ModelRow]]:
        with World(costs, TOLD, alike=False) as world:
            events = Events(costs_after=half, costs=changed)
            driven = drive(world, load, ByRoute(DEFAULT), events)
            return driven, _models(world.service)

    begun = pool.submit(run)
    return lambda: estimate_figures(*begun.result(), half)


def estimate_figures(driven: Drive, rows: Sequence[ModelRow], half: int) -> list[Figure]:
    """What was promised before the request `half` and after it, and what `GET /models` says."""
    before = [one for one in driven.sent if one.number < half]
    after = [one for one in driven.sent if one.number >= half]
    return [
        *_promised("as they were", before, note_of(driven)),
        *_promised("once they have changed", after),
        *_by_models(rows),
    ]


def _promised(when: str, sent: Sequence[SentRequest], note: str = "") -> list[Figure]:
    known = _after(sent, OUTCOMES_NEEDED)
    errors = promise_errors(known)
    if not errors:
        return []
    said = f"{len(errors):,} promises, after {OUTCOMES_NEEDED} outcomes of each engine"
    return [
        Figure(
            name=f"costs {when}: TTFT, MAPE",
            unit="%",
            runs=[100 * fmean(errors)],
            note=f"{said}; {note}" if note else said,
        )
    ]


def _by_models(rows: Sequence[ModelRow]) -> list[Figure]:
    shares = {
        "MAPE of computing": fmean(row.mape for row in rows),
        "MAPE of computing, worst": max(row.mape for row in rows),
        "MAPE of the TTFT": fmean(row.promise_mape for row in rows),
        "MAPE of the TTFT, worst": max(row.promise_mape for row in rows),
        "p90 held, least": min(row.p90_coverage for row in rows),
        "p90 held, most": max(row.p90_coverage for row in rows),
    }
    figures = [
        Figure(name=f"GET /models: {what}", unit="%", runs=[100 * share])
        for what, share in shares.items()
    ]
    fewest = min(row.outcomes for row in rows)
    note = f"of each engine's last 500 outcomes; the fewest were {fewest:,}"
    figures[0] = msgspec.structs.replace(figures[0], note=note)
    return figures


def _times(costs: Costs, factor: float) -> Costs:
    return msgspec.structs.replace(
        costs,
        fixed_s=costs.fixed_s * factor,
        prefill_tokens_per_s=costs.prefill_tokens_per_s / factor,
        token_squared_s=costs.token_squared_s * factor,
    )


def _after(sent: Sequence[SentRequest], outcomes: int) -> list[SentRequest]:
    """Those that were sent to an engine after so many others."""
    seen: dict[str, int] = {}
    found = []
    for one in sent:
        seen[one.instance_id] = seen.get(one.instance_id, 0) + 1
        if seen[one.instance_id] > outcomes:
            found.append(one)
    return found


def _models(service: Service) -> list[ModelRow]:
    connection = JsonConnection("http://{}:{}".format(*service.address))
    try:
        answer = connection.request("GET", "/models")
    finally:
        connection.close()
    return msgspec.json.decode(answer.body, type=_Models).prefill
