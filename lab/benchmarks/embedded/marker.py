"""A publisher whose every message is an event to watch: how long until an answer has it.

Times are those of one process on the system's monotonic clock.
"""

import threading
import time
from typing import Final, Self

import msgspec

from lab.benchmarks.embedded.service import Service, until
from lab.benchmarks.sizes import BLOCK_SIZE, SEED
from lab.traffic.event_load import LoadPlan, LoadPublisher, encode_load

MARKER: Final = "marker"
MARK_S: Final = 0.01
POLL_S: Final = 0.002


class Marker:
    """Sends single-block events, MARK_S apart, on a thread of its own; ends with the block.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._sent_at: list[float] = []
        self._publisher = LoadPublisher()
        self._load = encode_load(
            LoadPlan(blocks=count, blocks_per_event=1, block_size=BLOCK_SIZE, seed=SEED - 1)
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._publisher.close(0)

    def connect(self, service: Service) -> None:
        """Has the service follow it. Raises TimeoutError where that does not."""
        self._service = service
        service.register(self._publisher.endpoint, MARKER)
        if not self._publisher.wait_for_subscriber(60):
            raise TimeoutError("Expected a subscriber within 60 s")
        service.wait_folded(-1, MARKER, poll_s=POLL_S)

    def watch(self, *, poll_s: float = POLL_S) -> list[float]:
        """Sends all; the milliseconds until each was visible, by `/services` that often."""
        waits_ms: list[float] = []
        self._thread.start()

        def seen() -> bool:
            last = self._service.sequences()[MARKER]
            now = time.monotonic()
            for place in range(len(waits_ms), last + 1):
                waits_ms.append(1000 * (now - self._sent_at[place]))
            return len(waits_ms) == self._count

        until(seen, poll_s=poll_s)
        return waits_ms

    def _run(self) -> None:
        began = time.monotonic()
        for number, payload in enumerate(self._load.payloads):
            if self._stop.wait(max(0.0, began + number * MARK_S - time.monotonic())):
                return
            # Noted first: it may be visible before `send` returns.
            self._sent_at.append(time.monotonic())
            one = msgspec.structs.replace(self._load, payloads=[payload], events=1)
            self._publisher.send(one)
