"""What a bridge that leaves waits for. All else of handovers is in tests/simulation."""

import asyncio
import itertools
import math
from typing import Any

import pytest

from bridge.delivery.lease import Lease
from bridge.link_numbers import NO_LINK, LinkNumber
from bridge.membership.handover import Arrival
from bridge.membership.handovers import Handovers
from schemas.clock import REAL_CLOCK
from tests.unit.bridge.messages import registration

LINK = LinkNumber(7)


@pytest.mark.parametrize(
    ("linked", "looks"),
    [([], 1), ([NO_LINK], 1), ([LINK], 10), ([NO_LINK, LINK], 10)],
)
def test_what_we_have_linked_to_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, linked: list[LinkNumber], looks: int
) -> None:
    monkeypatch.setattr("bridge.membership.handovers.HANDOVER_LOOK_S", 0.0)
    monkeypatch.setattr("bridge.membership.handovers.HANDOVER_FLUSH_S", 10.0)
    seconds = itertools.count()
    nobody: Any = None
    made = Handovers(
        name="b",
        lease=Lease(REAL_CLOCK._replace(monotonic=lambda: float(next(seconds)))),
        follower=nobody,
        writer=nobody,
        producer=nobody,
        cursors=nobody,
        when_changed=nobody,
        unfollow=nobody,
    )
    for number, link in enumerate(linked):
        arrival = Arrival(0, "a", is_whole=True, until=math.inf, told_link=link)
        made._passing[registration(instance_id=f"w-{number}").publisher] = arrival
    asyncio.run(made.joined())
    assert next(seconds) == 1 + looks
