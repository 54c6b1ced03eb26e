"""The live page of a replica round Kafka, under load, while a bridge and replicas die."""

import time
from collections import defaultdict, deque
from collections.abc import Iterator

import pytest

from tests.browser import Tab, opened_browser
from tests.deployment import Deployment
from tests.load import Load
from tests.roles import Role

pytestmark = pytest.mark.timeout(1500)

RUN_S = 300.0
"""Seconds under load, times `--fuzz-scale`: ten minutes with 2."""
OLD_S = 8.0
"""The page shows what the API said at some time in these last seconds."""


class Seen:
    """What a replica's API has said of each instance, of late."""

    def __init__(self, replica: Role) -> None:
        self._replica = replica
        self._said: deque[tuple[float, dict[str, tuple[str, int]]]] = deque()

    def look(self) -> None:
        """Asks once more."""
        at = time.monotonic()
        states = {
            one["InstanceID"]: one["State"] for one in self._replica.get("/services")["services"]
        }
        blocks: dict[str, int] = defaultdict(int)
        for one in self._replica.get("/digest")["contexts"]:
            blocks[one["instance_id"]] += one["entries"]
        self._said.append((at, {name: (states[name], blocks[name]) for name in states}))
        while self._said[0][0] < at - OLD_S:
            self._said.popleft()

    def permits(self, name: str, state: str, blocks: int) -> bool:
        """Whether the page's numbers lie among those that the API has given."""
        found = [said[name] for _, said in self._said if name in said]
        return state in {one for one, _ in found} and min(
            count for _, count in found
        ) <= blocks <= max(count for _, count in found)

    def last(self) -> dict[str, tuple[str, int]]:
        return self._said[-1][1]


@pytest.fixture
def tab(deployment: Deployment, load: Load) -> Iterator[Tab]:
    deployment.start(load)
    with opened_browser() as browser:
        opened = Tab(browser.new_context(), deployment.replicas[0].base_url)
        opened.open()
        yield opened


def shown(tab: Tab) -> dict[str, tuple[str, int]]:
    rows = tab.told(
        "[...reprise.rows.values()].map((one) => [one.instance_id, one.state, one.blocks])"
    )
    return {name: (state, blocks) for name, state, blocks in rows}


def check_for(seconds: float, tab: Tab, seen: Seen) -> int:
    """Compares until the time is over; how often."""
    end, compared = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        seen.look()
        tab.page.wait_for_timeout(150)
        seen.look()
        for name, (state, blocks) in shown(tab).items():
            assert seen.permits(name, state, blocks), (name, state, blocks, seen._said)
            compared += 1
    return compared


def test_its_numbers_are_those_of_the_api_while_a_bridge_and_a_replica_die(
    tab: Tab, deployment: Deployment, load: Load, pytestconfig: pytest.Config
) -> None:
    scale: float = pytestconfig.getoption("--fuzz-scale")
    part_s = RUN_S * scale / 4
    seen = Seen(deployment.replicas[0])

    def is_seen() -> bool:
        """The page may show for a while what the API said before it was looked at here."""
        seen.look()
        tab.page.wait_for_timeout(100)
        seen.look()
        return all(seen.permits(name, *one) for name, one in shown(tab).items())

    deployment.until(is_seen, what="the page shows what the API has said since")
    compared = check_for(part_s, tab, seen)
    for victim in (deployment.bridges[0], deployment.replicas[1], deployment.bridges[1]):
        victim.kill()
        compared += check_for(part_s / 2, tab, seen)
        victim.start()
        compared += check_for(part_s / 2, tab, seen)
    load.stop()

    def agrees() -> bool:
        seen.look()
        tab.page.wait_for_timeout(100)
        return shown(tab) == seen.last() and {state for state, _ in shown(tab).values()} == {
            "exact"
        }

    deployment.until(agrees, what="the page shows what the API answers, and all is exact")
    assert compared > 30 * scale
    assert tab.complaints == []
    assert tab.elsewhere == []
