"""Finds a partition that stands still although its log has more, or had more: what a consumer that
has stopped giving records, for whatever reason, looks like from outside. Pure.

Where retention has dropped all that was still to be folded, no record comes that would tell: the
table that is opened next begins where its log does, and says what it no longer proves.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from schemas.errors import RepriseError
from schemas.positions import LogBounds

WORKER_STALL_S: Final = 60.0  # a table that stands still for so long, with more in its log


class StalledWorkerError(RepriseError):
    """The consumer has given no record of a partition for too long; the app is made anew.

    Operator action: none where the worker goes on; report it, with the log.
    """


class _Progress(NamedTuple):
    place: int
    since: float


class StallWatch:
    """Of one attempt; to be told now and then."""

    def __init__(self) -> None:
        self._seen: dict[int, _Progress] = {}

    def note(
        self, places: Mapping[int, int], logs: Mapping[int, LogBounds], now: float
    ) -> StalledWorkerError | None:
        """Takes where each table stands.

        Args:
            places: by partition, the offset to be folded next.
            logs: where their logs began and ended then.
            now: monotonic seconds.

        Returns:
            What to end with, where one has stood still for WORKER_STALL_S.
        """
        seen: dict[int, _Progress] = {}
        for partition, place in places.items():
            log, before = logs[partition], self._seen.get(partition)
            if place >= log.end or before is None or before.place != place:
                before = _Progress(place, now)
            seen[partition] = before
            if now - before.since >= WORKER_STALL_S:
                return StalledWorkerError(
                    f"Partition {partition} has stood still at offset {place} for"
                    f" {now - before.since:.0f} s, and its log begins at"
                    f" {log.start} and ends at {log.end}"
                )
        self._seen = seen
        return None
