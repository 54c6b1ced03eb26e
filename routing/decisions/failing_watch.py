"""Says which engines are left out of routing since their requests fail."""

import asyncio
from collections.abc import Callable
from typing import Final

from routing.bounds import FAILING_LOOK_S
from routing.decisions.live_load import LiveLoad
from schemas.conditions import Conditions, Part

FAILING_NAMED_MAX: Final = 8  # engines that fail, in a condition

REASON = "failing"


async def watch_failing(live: LiveLoad, conditions: Conditions, clock: Callable[[], float]) -> None:
    """Looks every FAILING_LOOK_S, until it is cancelled. `clock`: Unix seconds."""
    while True:
        note_failing(live, conditions, clock())
        await asyncio.sleep(FAILING_LOOK_S)


def note_failing(live: LiveLoad, conditions: Conditions, now: float) -> None:
    """Sets or clears the condition. Cost O(engines that failed anything)."""
    failing = [target for target, _ in live.failing(now)]
    if not failing:
        conditions.clear(Part.REQUESTS)
        return
    more = ", ..." if len(failing) > FAILING_NAMED_MAX else ""
    names = [f"{one.instance_id} rank {one.dp_rank}" for one in failing[:FAILING_NAMED_MAX]]
    conditions.set(
        Part.REQUESTS,
        REASON,
        f"{len(failing)} engines fail what they are sent, as clients report, and get single"
        f" requests on trial alone: {', '.join(names)}{more}",
    )
