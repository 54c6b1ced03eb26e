"""Engines to which no link has ever come up: said within seconds, with what is the likeliest cause.

A registration is accepted before its engine is there, which may come at any time; so what is wrong
with an address shows only in that nobody ever answers at it.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from bridge.pump import Pump
from schemas.clock import REAL_CLOCK
from schemas.conditions import Conditions, Part
from schemas.limits import UNREACHED_NAMED_MAX, UNREACHED_S

UNREACHED_LOOK_S: Final = 1.0  # between two looks who has no link

_HELP: Final = (
    "is it up, and does it listen there? vLLM binds only wildcard and ipc endpoints"
    " (tcp://*:5557), and connects to any other"
)


async def watch_unreached(
    pump: Pump, conditions: Conditions, *, clock: Callable[[], float] = REAL_CLOCK.unix
) -> None:
    """Looks every UNREACHED_LOOK_S, until it is cancelled; the clock has Unix seconds. Cost
    O(publishers).
    """
    while True:
        note_unreached(pump, conditions, clock=clock)
        await asyncio.sleep(UNREACHED_LOOK_S)


def note_unreached(
    pump: Pump, conditions: Conditions, *, clock: Callable[[], float] = REAL_CLOCK.unix
) -> None:
    """Sets or clears the condition of the engines that were never reached; the clock has Unix
    seconds.
    """
    before = clock() - UNREACHED_S
    unreached = [
        followed.registration
        for followed in pump.followed.values()
        if followed.is_unreached(before)
    ]
    if not unreached:
        conditions.clear(Part.ENGINES)
        return
    more = ", ..." if len(unreached) > UNREACHED_NAMED_MAX else ""
    named = unreached[:UNREACHED_NAMED_MAX]
    shown = ", ".join(f"{one.endpoint or one.http_url} of {one.service_key}" for one in named)
    message = f"{len(unreached)} of {len(pump.followed)} publishers have never answered: {_HELP}"
    conditions.set(Part.ENGINES, "unreached", f"{message}. {shown}{more}")
