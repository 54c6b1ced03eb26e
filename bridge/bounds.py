"""Bounds of the bridge with Kafka as its log, and the relations between them.

Whatever a bound makes the bridge drop is counted under the reason beside it.
"""

from typing import Final

from schemas.kafka import MESSAGE_MAX
from schemas.limits import GIB, KIB, MIB, RECORD_BYTES_MAX, SHUTDOWN_S

# A publisher's live batches, while the ones before them are asked for: reason="held_full".
HELD_BATCHES_MAX: Final = 65_536
HELD_BYTES_MAX: Final = 256 * MIB  # of all publishers

# The engine's replay.
REPLAY_IDLE_S: Final = 2.0  # without a reply for this long, what is missing is asked for again
REPLAY_MESSAGES_MAX: Final = 65_536  # waiting in one socket; the engine drops what is above
REPLAY_CHUNK_BATCHES: Final = 256
REPLAY_CHUNK_BYTES: Final = 4 * MIB
REPLAY_BARREN_MAX: Final = 4  # requests in a row that bring nothing new
REPLAY_REQUESTS_MAX: Final = 256
REPLAYS_AT_ONCE_MAX: Final = 16

# Between the intake and the broker.
QUEUE_BYTES_MAX: Final = 64 * MIB  # above it, records go to the spool
SPOOL_AFTER_S: Final = 1.0  # a record that is not acknowledged by then makes the next ones spool
KAFKA_BATCH_BYTES: Final = 1 * MIB
RECORD_SEND_MAX: Final = MESSAGE_MAX - 64 * KIB  # reason="record_too_large": a gap stands for it
SPOOL_BYTES_MAX: Final = 1 * GIB  # reason="spool_full": a gap stands for them
SPOOL_REOPEN: Final = 0.9  # of the bound: below it, records are taken again

# Cursors.
NOTE_S: Final = 1.0
NOTE_BEHIND_RECORDS_MAX: Final = 20_000  # a note that is older than that costs a takeover time

# Waits.
WINDOW_MS: Final = 50
SESSION_S: Final = 10.0
RETRY_S: Final = 1.0
FLUSH_S: Final = 4.0  # on a rebalance and at the end
LEAVE_S: Final = 2.0
INTAKE_TURN_MESSAGES_MAX: Final = 4096
REGISTERED_AGAIN_S: Final = 24 * 3600.0  # well below the retention of the events

assert RECORD_BYTES_MAX < RECORD_SEND_MAX, "a record of the usual size must fit a message"
assert FLUSH_S + 2 * LEAVE_S < SHUTDOWN_S, "a bridge that is stopped must flush and leave in time"
assert SPOOL_REOPEN < 1.0, "a full spool must be drained before it is filled again"
