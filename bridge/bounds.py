"""Bounds that several modules of `bridge/` rely on, and how they are related."""

from typing import Final

from schemas.limits import GIB, HEARTBEAT_S, LINK_HEARTBEAT_MS, MIB, STALE_S

# A 128K-token prefill is some 140,000 of them.
BATCH_VALUES_MAX: Final = 2_500_000  # reason="too_many_values"; numbers, nested ones included

BATCH_ERRORS_MAX: Final = 100  # bad events of a batch; more, and it is undecodable as a whole
BATCH_TOLERATED_MAX: Final = 2_048  # events with unknown fields in a batch; some 30 ms
EVENT_FIELDS_MAX: Final = 64  # of an event in no known form, to find its tag

REQUESTS_MAX: Final = 2**40  # that an engine may say that it has: reason="bad_number"

RECEIVE_BURST_MAX: Final = 512  # messages taken from one socket before the next one's turn
SUBSCRIBER_ERROR_PAUSE_S: Final = 0.1  # after an unexpected error, so that it does not spin
LINK_WATCH_S: Final = 0.1  # how often it is looked at what links do and bring
RELAY_REPLAYS_MAX: Final = 256  # under way of one engine; one more ends the least recent
LINK_CONNECT_MS: Final = 5_000  # for the connection, and then for the handshake
LINK_SILENT_S: Final = 1.5  # a peer of TCP that was asked and has not answered for this long
LINK_UNHEARD_S: Final = LINK_HEARTBEAT_MS / 1000 + LINK_SILENT_S  # to find that a peer is silent
LINK_DEAD_MS: Final = 10_000  # a host that has acknowledged nothing for this long: it is dead
LINK_UNANSWERED_MS: Final = 30_000  # a peer that has not answered, and whose host is there

TURN_S: Final = 0.002  # what a turn may take to be turned into records, before anything else
HELD_TURN_S: Final = 0.002  # of what waited for a repair, before others have their turn

# An engine that answers badly costs a gap, never the bridge.
RELINK_CHECK_S: Final = 0.25  # how often it is checked which links have come up again
REPLAY_CHUNK_BYTES: Final = 4 * MIB  # of batches that a replay hands on at once
REPLAYS_AT_ONCE_MAX: Final = 64  # whose replies are read; the others wait

CHECK_DOUBLINGS_MAX: Final = 16  # of a pause between two questions: by then each is at its bound
HOST_NAME_CHARS_MAX: Final = 64  # of a bridge's name
WATCH_LATE_S: Final = 1.0  # nothing is said of publishers that were not looked at for this long

MEMORY_ENTRIES_MAX: Final = 16_384  # names of the directory that are looked at: some 10 ms

WRITER_PAUSE_S: Final = 0.02  # how often the writer looks whether it may go on
SPOOL_BYTES_MAX: Final = 1 * GIB  # reason="spool_full"
SPOOL_CHANGES_MAX: Final = 4096  # entries of a spool that are deleted or replaced in one write
LAG_SILENT_S: Final = 1.0  # workers that stand still for longer hold nobody back

# A gap stands in the log for what is dropped.
LOG_WAITING_BYTES_MAX: Final = 256 * MIB  # of records behind a failed append: reason="log_full"

BRIDGE_RETRY_S: Final = 1.0  # between attempts at anything of a bridge that failed

assert REPLAYS_AT_ONCE_MAX * REPLAY_CHUNK_BYTES <= LOG_WAITING_BYTES_MAX, (
    "every replay under way may have a chunk behind a failed append"
)
assert LINK_UNHEARD_S + RELINK_CHECK_S + HEARTBEAT_S < STALE_S, (
    "who is silent is doubted before an answer is wrong"
)
assert 1000 * LINK_SILENT_S > LINK_HEARTBEAT_MS, "what else was sent may not have to be answered"
assert 1000 * LINK_SILENT_S < LINK_DEAD_MS < LINK_UNANSWERED_MS, (
    "who is silent is doubted before its link is down"
)
