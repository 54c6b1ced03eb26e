"""How long a worker lets records come together before it folds and writes them."""

import asyncio
import contextlib
from typing import Final, TypeVar

WORKER_GATHER_MIN_S: Final = 0.005  # records of a batch come one by one, some 15,000 in a second

T = TypeVar("T")


class Gathering:
    """Batches begin no more often than every `flush_s`; the first one after a pause at once, or
    nearly so: records come one by one from the buffer behind the fetch.

    Args:
        flush_s: a flush costs as much as folding hundreds of records, whatever it writes.
    """

    def __init__(self, flush_s: float) -> None:
        self._flush_s = flush_s
        self._least_s = min(flush_s, WORKER_GATHER_MIN_S)
        self._arrived = asyncio.Event()
        self._began_at = float("-inf")

    def note(self, value: T) -> T:
        """A record has come."""
        self._arrived.set()
        return value

    async def wait(self, full: asyncio.Event) -> None:
        """Returns when the next batch is to begin, with what has come by then.

        Args:
            full: set where the batch has no room for more.
        """
        await self._arrived.wait()
        loop = asyncio.get_running_loop()
        pause_s = max(self._least_s, self._began_at + self._flush_s - loop.time())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(full.wait(), pause_s)
        self._arrived.clear()
        self._began_at = loop.time()
