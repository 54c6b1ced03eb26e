"""How much of the past is kept."""

from collections.abc import Mapping

from streams.history.store import HistoryStore


class HistoryRetention:
    """Drops what the log no longer reaches, and the oldest of what is above a bound.

    Args:
        bytes_max: about how much is kept, of all partitions.
    """

    def __init__(self, store: HistoryStore, bytes_max: int) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._dropped_to: dict[int, int] = {}

    def apply(self, complete_from: Mapping[int, int]) -> None:
        """To be called now and then. Cost: where something is dropped, O(contexts + publishers).

        Args:
            complete_from: by partition, from where on its log has everything.

        Raises:
            DiskError: some of it may still be there.
        """
        size_bytes = self._store.live_bytes()
        # Of each partition the same share: what it takes is not known of one alone.
        spare = max(1 - self._bytes_max / size_bytes, 0.0) if size_bytes else 0.0
        for partition, start in complete_from.items():
            floor = start - 1
            runs = self._store.runs(partition) if spare else []
            if runs:
                first, last = min(one.first for one in runs), max(one.last for one in runs)
                floor = max(floor, first + int((last - first) * spare))
            if floor > self._dropped_to.get(partition, 0):
                self._store.drop_before(floor, partition)
                self._dropped_to[partition] = floor
