"""The simulated fleet, small: real services, real sockets."""

import pytest

from lab.benchmarks.scaling.fleet import FleetPlan, run
from streams.kernel import native_available


@pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")
def test_a_small_fleet_is_followed_by_two_services_and_all_is_found() -> None:
    said: list[str] = []
    plan = FleetPlan(publishers=20, seconds=8, period_s=0.5, idle_s=0.2)
    rows = run(plan, 2, said.append)
    assert said[0].startswith("20 publishers followed after ")
    assert rows["messages"] == "320"
    assert rows["asked for, found in time"] == "8, 8"
    assert rows["new links, lost batches"] == "0, 0"
    assert rows["publishers behind in the end"] == "0"
    assert rows["states in the end"].split()[0] == "21"
