"""Processes that only count, beside a fleet: what becomes of links when nobody has enough CPU."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from lab.benchmarks.scaling.fleet_report import BusyLoopResult, FleetPlan

EXACT_POLL_S: Final = 0.5
_LOOP: Final = "import os\nwhile os.getppid() == {parent}:\n    for _ in range(10**6): pass"


class Counts(NamedTuple):
    """Of all services.

    Attributes:
        links: that have come up.
        lost_batches: that are known to be lost.
    """

    links: int
    lost_batches: int


class WatchedServices(Protocol):
    """The services, for one thread."""

    def counts(self) -> Counts:
        """As of now."""
        ...

    def states(self) -> dict[str, int]:
        """Publishers by what answers say of them."""
        ...

    def cpu_s(self) -> float:
        """User and system time of all of them."""
        ...


class BusyLoops(threading.Thread):
    """Runs the loops of a plan once, while the fleet sends.

    Args:
        plan: with at least one loop.
        known: nothing else calls it meanwhile.
        start: when the fleet begins to send, monotonic seconds.
        say: is told what happens.

    Attributes:
        beside: what came of it, once the thread has ended; None where it failed.
    """

    def __init__(
        self, plan: FleetPlan, known: WatchedServices, start: float, say: Callable[[str], None]
    ) -> None:
        super().__init__(name="busy-loops", daemon=True)
        self._plan = plan
        self._known = known
        self._start = start
        self._say = say
        self.beside: BusyLoopResult | None = None

    def run(self) -> None:
        """Of the thread."""
        plan = self._plan
        _sleep_until(self._start + plan.busy_after_s)
        before, cpu_s, began = self._known.counts(), self._known.cpu_s(), time.monotonic()
        self._say(f"{plan.busy_loops} busy loops; so far {self._known.states()}")
        self._spin()
        cores = (self._known.cpu_s() - cpu_s) / (time.monotonic() - began)
        ended = time.monotonic()
        states = self._known.states()
        self._say(f"the busy loops have ended: {states}")
        exact_after_s = self._wait_exact(ended)
        after = self._known.counts()
        self.beside = BusyLoopResult(
            new_links=after.links - before.links,
            lost_batches=after.lost_batches - before.lost_batches,
            cores=cores,
            exact_after_s=exact_after_s,
            states=states,
        )
        self._say(f"{self.beside}")

    def _spin(self) -> None:
        """Returns when the loops have ended."""
        code = _LOOP.format(parent=os.getpid())
        loops = [
            subprocess.Popen([sys.executable, "-c", code]) for _ in range(self._plan.busy_loops)
        ]
        try:
            time.sleep(self._plan.busy_s)
        finally:
            for loop in loops:
                loop.kill()
            for loop in loops:
                loop.wait()

    def _wait_exact(self, since: float) -> float | None:
        until = self._start + self._plan.seconds
        while (now := time.monotonic()) < until:
            if set(self._known.states()) == {"exact"}:
                return now - since
            time.sleep(EXACT_POLL_S)
        return None


def _sleep_until(at: float) -> None:
    time.sleep(max(at - time.monotonic(), 0.0))
