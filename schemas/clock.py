"""The clock and chance as they are handed in: what composes a process gives its parts these, or
others.

What runs on an event loop has that loop's clock: `asyncio.sleep` and `loop.time()` are of the loop
that it runs on, which is handed in with that. So a clock is for Unix time, and for threads.
"""

import random
import time
from collections.abc import Callable
from typing import Final, NamedTuple


class Clock(NamedTuple):
    """See the module.

    Attributes:
        monotonic: seconds since some moment.
        unix: Unix seconds.
        unix_ns: Unix nanoseconds, as spans have them.
        sleep: pauses the thread that calls it for so many seconds.
        thread_cpu: seconds of CPU of the thread that calls it.
    """

    monotonic: Callable[[], float]
    unix: Callable[[], float]
    unix_ns: Callable[[], int]
    sleep: Callable[[float], None]
    thread_cpu: Callable[[], float]


REAL_CLOCK: Final = Clock(time.monotonic, time.time, time.time_ns, time.sleep, time.thread_time)
"""The machine's."""

CHANCE: Final = random.random
"""A number from 0 to 1, each as likely."""
