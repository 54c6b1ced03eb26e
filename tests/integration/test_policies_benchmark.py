"""The comparison of policies, small: a real service and two engines as processes, some seconds."""

from concurrent.futures import ThreadPoolExecutor

from lab.benchmarks.embedded import policies
from lab.benchmarks.routing.choosing import ByRoute
from lab.benchmarks.routing.drive import Events, drive, load_of
from lab.benchmarks.routing.world import World
from routing.costs import Costs

QUICK = Costs(fixed_s=0.01, prefill_tokens_per_s=20_000.0, token_squared_s=0.0)


def test_two_policies_and_the_longest_prefix() -> None:
    load = load_of(1, 20.0, 40, 10)
    with ThreadPoolExecutor(1) as pool:
        begun = policies.begin_comparison(pool, load, ("wait-and-work", "round-robin"), [QUICK] * 2)
        values = {figure.name: figure.value for figure in begun()}
    assert values["wait-and-work: hit rate"] > values["round-robin: hit rate"] > 0
    for name in ("wait-and-work", "round-robin", policies.QUERY):
        assert 0 < values[f"{name}: TTFT, p50"] <= values[f"{name}: TTFT, p99"]
    assert values["wait-and-work: hit rate, promised"] > 0


def test_loads_are_told_costs_change_and_what_cannot_be_in_time_is_refused() -> None:
    slow = [Costs(fixed_s=1.0), Costs(fixed_s=1.0)]
    load = load_of(1, 50.0, 40, 0)
    events = Events(told_every_s=0.2, slo_s=2.5, costs_after=20, costs=[QUICK, QUICK])
    with World(slow, "--set", "routing.costs=fixed_s=1") as world:
        driven = drive(world, load, ByRoute("", slo_s=2.5), events)
    assert 0 < driven.refused() < 1
    assert len(driven.served) == sum(one.is_done for one in driven.served)
    assert all(one.would_have_had_s > 0 for one in driven.sent if one.refused)
    # What was begun before they changed took its second, whatever the machine did meanwhile.
    assert max(one.ttft_s for one in driven.served) >= 1.0
