"""Logs skipped records without flooding the service's log.

Two bridges that follow one publisher write everything twice, and a rebuild skips all of that once
more. Every record is counted; only the first of each reason in each minute are logged.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from schemas.clock import REAL_CLOCK
from schemas.identities import (
    COPIES_UNKNOWN,
    GROUPS_DIFFER,
    OBJECTS_WAIT,
    POOL_REMOVED,
    Offset,
    PublisherKey,
)

# All of it is counted: reprise_fold_records and reprise_worker_records for records,
# reprise_table_rows for rows, by outcome.
SKIPPED_RECORDS_NAMED_MAX: Final = 100  # logged in each window, of each reason
SKIPPED_RECORDS_WINDOW_S: Final = 60.0  # of which each begins to count again

logger = logging.getLogger(__name__)


class SkippedRecord(NamedTuple):
    """A record that was not folded: where it is, and why; `error` of an unexpected one."""

    offset: Offset
    reason: str
    detail: str
    error: Exception | None = None


class SkipLog:
    """See the module. Not thread-safe; `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = REAL_CLOCK.monotonic) -> None:
        self._clock = clock
        self._begun_at = clock()
        self._logged: dict[str, int] = {}

    def log(self, place: object, skipped: SkippedRecord) -> None:
        """Logs where the record is and why it was skipped.

        Args:
            place: what the offset is of: a partition, or "".
        """
        now = self._clock()
        if now - self._begun_at > SKIPPED_RECORDS_WINDOW_S:
            self._begun_at = now
            self._logged.clear()
        count = self._logged[skipped.reason] = self._logged.get(skipped.reason, 0) + 1
        if count <= SKIPPED_RECORDS_NAMED_MAX:
            at = f"{place}:{skipped.offset}" if place != "" else f"offset {skipped.offset}"
            text = "Cannot use the record at %s (%s): %s. It is left out"
            logger.warning(text, at, skipped.reason, skipped.detail, exc_info=skipped.error)
        elif count == SKIPPED_RECORDS_NAMED_MAX + 1:
            logger.warning(
                "More records cannot be used (%s); they are only counted for %.0f s",
                skipped.reason,
                SKIPPED_RECORDS_WINDOW_S,
            )


def log_left_out(publisher: PublisherKey, blocks: Mapping[str, int]) -> None:
    """Logs that the first blocks of a publisher are left out, and what to do."""
    stream, dp_rank = publisher
    for reason, count in blocks.items():
        if reason in (GROUPS_DIFFER, OBJECTS_WAIT, POOL_REMOVED):
            continue  # as groups evict one after the other, and a pool is heard before its engine
        if reason == COPIES_UNKNOWN:
            logger.warning(
                "Instance %s, rank %d, model %s of tenant %s, has removed blocks that it had"
                " announced more often: these were copies, of which some are left, or reports of"
                " hits (kv_cache_report_mode=full). It is unconfirmed until it shows which, and"
                " whenever it does so again: register it with the kv_cache_report_mode that its"
                " requests ask for, `incremental` where none does",
                stream.instance_id,
                dp_rank,
                stream.model_name,
                stream.tenant_id,
            )
            continue
        kind, _, size = reason.partition(":")
        remedy = "`/explain` and LeftOut of `/services` say more"
        if kind == "block_size":
            remedy = f"its blocks have {size} tokens: register it with that block_size"
        logger.warning(
            "Of instance %s, rank %d, model %s of tenant %s (registered with block_size %d), %d"
            " blocks are left out (%s); it is degraded (further ones are only counted): %s",
            stream.instance_id,
            dp_rank,
            stream.model_name,
            stream.tenant_id,
            stream.block_size,
            count,
            reason,
            remedy,
        )
