"""The time, and pauses, as the bridge's objects are handed them: a test or a simulation hands in
others.
"""

import asyncio
import time
from typing import Final, Protocol


class Clock(Protocol):
    """What tells the time."""

    def monotonic(self) -> float:
        """Seconds since some moment; steps of the system's clock do not change them."""
        ...

    def time(self) -> float:
        """Unix seconds."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Returns after so long."""
        ...


class SystemClock:
    """The clocks of this machine, and pauses of the running loop."""

    def monotonic(self) -> float:
        """See `Clock`."""
        return time.monotonic()

    def time(self) -> float:
        """See `Clock`."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        await asyncio.sleep(seconds)


SYSTEM_CLOCK: Final[Clock] = SystemClock()
