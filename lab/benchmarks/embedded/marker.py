"""A publisher whose every message is an event to watch: how long until an answer has it.

Times are those of one process on the system's monotonic clock.
"""

import threading
import time
from collections.abc import Callable

from lab.benchmarks.embedded.service import until
from lab.benchmarks.sizes import BLOCK_SIZE, SEED
from lab.traffic.event_load import LoadPlan, LoadPublisher, encode_load


class Marker:
    """Sends single-block events at a steady rate, on a thread of its own.

    Args:
        count: how many.
        every_s: seconds between them.
    """

    def __init__(self, count: int, *, every_s: float) -> None:
        self.count = count
        self.sent_at: list[float] = []
        self._every_s = every_s
        self._publisher = LoadPublisher()
        self._load = encode_load(
            LoadPlan(blocks=count, blocks_per_event=1, block_size=BLOCK_SIZE, seed=SEED - 1)
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.endpoint = self._publisher.endpoint
        self._stop = threading.Event()

    def wait_for_subscriber(self) -> None:
        """Raises TimeoutError where none comes."""
        if not self._publisher.wait_for_subscriber(60):
            raise TimeoutError("Expected a subscriber within 60 s")

    def watch(self, sequence: Callable[[], int], *, poll_s: float) -> list[float]:
        """Sends all; the milliseconds until each was visible.

        Args:
            sequence: the last one that an answer shows; -1 for none.
            poll_s: how often that is asked.
        """
        waits_ms: list[float] = []
        self._thread.start()

        def seen() -> bool:
            last = sequence()
            now = time.monotonic()
            for place in range(len(waits_ms), last + 1):
                waits_ms.append(1000 * (now - self.sent_at[place]))
            return len(waits_ms) == self.count

        until(seen, poll_s=poll_s)
        return waits_ms

    def close(self) -> None:
        """Ends sending."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._publisher.close(0)

    def _run(self) -> None:
        began = time.monotonic()
        for number, payload in enumerate(self._load.payloads):
            if self._stop.wait(max(0.0, began + number * self._every_s - time.monotonic())):
                return
            # Noted first: it may be visible before `send` returns.
            self.sent_at.append(time.monotonic())
            one = type(self._load)(payloads=[payload], events=1, stored_blocks=1, removed_blocks=0)
            self._publisher.send(one)
