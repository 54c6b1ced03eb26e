"""What the controller counts."""

from collections import Counter
from collections.abc import Mapping


class LmcacheCounters:
    """What has happened; read by other threads, written by one."""

    def __init__(self) -> None:
        self.messages: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.pushed = self.asked = 0  # of the messages: to the PULL socket, and requests
        self.operations = 0
        self.jumps = 0
        self.syncs_asked = self.syncs_whole = 0
        self.lookups = self.lookup_hits = 0
        self.sizes: Mapping[str, int] = {}  # now: workers, whole, syncing, keys,
        # missing_batches; replaced whole

    def drop(self, reason: str, count: int = 1, /) -> None:
        """Counts what was dropped."""
        self.dropped[reason] += count
