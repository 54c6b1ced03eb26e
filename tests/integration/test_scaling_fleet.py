"""The simulated fleet, small: real services, real sockets."""

import pytest

from lab.benchmarks.scaling.fleet import run
from lab.benchmarks.scaling.fleet_report import FleetPlan
from streams.kernel import native_available


@pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")
def test_a_small_fleet_is_followed_by_two_services_and_all_is_found() -> None:
    plan = FleetPlan(
        publishers=20,
        seconds=6,
        period_s=1.0,
        held=2,
        idle_s=0.2,
        sample_s=2.0,
        found_s=60.0,
        told_per_s=5.0,
    )
    said: list[str] = []
    summary = run(plan, 2, said.append)
    assert said[0].startswith("20 publishers registered in ")
    assert summary.messages == 120
    assert summary.blocks == 480
    assert summary.asked >= 20
    assert (summary.missed, summary.wrong, summary.removed_shown) == (0, 0, 0)
    assert summary.behind == 0
    assert sum(summary.states.values()) == 20
    assert len(summary.samples) == 4
