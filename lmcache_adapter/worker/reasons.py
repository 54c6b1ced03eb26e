"""Words of the log, of metrics and of LMCache's own log."""

from typing import Final, Protocol


class Reason:
    """Why an incarnation begins, what is missing, or why a full sync is asked for."""

    REGISTERED: Final = "registered"
    LEFT: Final = "left"
    FULL_SYNC: Final = "full_sync"
    RESTARTED: Final = "controller_restart"
    REWRITTEN: Final = "log_lost_records"
    OPERATIONS: Final = "operations_missed"
    NOT_SYNCED: Final = "not_synced"
    NO_ROOM: Final = "too_many_keys"
    LOCATION: Final = "location_not_synced"
    UNSOUND: Final = "full_sync_unsound"
    UNHEARD: Final = "nothing_pushed"


class DropReason:
    """Why something that came is not used: labels of reprise_lmcache_dropped_total."""

    NO_ROOM: Final = "too_many_keys"
    LOCATIONS: Final = "too_many_locations"
    LATE: Final = "late_message"
    BATCH: Final = "unexpected_batch"


class Count(Protocol):
    """Counts what happens, by a word."""

    def __call__(self, reason: str, count: int = 1, /) -> None:
        """It has happened so often."""
        ...
