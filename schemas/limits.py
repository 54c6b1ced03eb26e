"""Every bound, in one place, with the relations between bounds that the code relies on.

A bound protects memory, time or the neighbours of whoever is misbehaving. Whatever a bound makes
the code drop is counted under a name; the counter's name is given beside the bound.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# HTTP: `POST` bodies. 1M tokens are about 7 MB of JSON.
BODY_BYTES_MAX: Final = 32 * MIB
QUERY_TOKENS_MAX: Final = 4 * MIB
NAME_BYTES_MAX: Final = 1024  # any string of a registration or a query

# Registrations.
PUBLISHERS_MAX: Final = 4096
BLOCK_SIZE_MAX: Final = 65_536
DP_RANK_MAX: Final = 2**31 - 1

# What comes back from a log, a topic or a disk: a number above these is refused as it is decoded,
# so that nothing behind the decoder meets one that does not fit its format.
OFFSET_MAX: Final = 2**63 - 2  # the one after it still is an i64
INCARNATION_MAX: Final = 2**62  # far above any, and what counts on from it still is an i64
GENERATION_MAX: Final = 2**31 - 1  # of a context's rows; u32 in their keys
ERROR_DETAIL_CHARS_MAX: Final = 300  # of hostile bytes, in an error's text and so in the log

# What a topic can make a reader remember; beyond, reprise_bridge_unusable_entries_total and
# reprise_registry_skipped_total.
REGISTRY_ENTRIES_MAX: Final = 4 * PUBLISHERS_MAX  # some hundred bytes to some KiB each
CURSOR_NOTES_MAX: Final = 262_144  # of all publishers that ever were; some hundred bytes each
ENTRIES_NAMED_MAX: Final = 100  # unusable ones said in the log, of each reason; all are counted

# Wire: one ZMQ message of an engine. A 128K-token prefill is about 0.6 MB.
MESSAGE_BYTES_MAX: Final = 64 * MIB  # reprise_bridge_dropped_total{reason="message_too_large"}
BATCH_EVENTS_MAX: Final = 1_000_000
EVENT_BLOCKS_MAX: Final = 1_000_000
PACKED_BATCH_BYTES_MAX: Final = 32 * MIB  # reason="batch_too_large"; a batch is never split
SEQUENCE_MAX: Final = 2**63 - 1  # reason="sequence_range"
GROUP_NUMBER_MAX: Final = 2**31 - 1  # reason="bad_group"
DUPLICATE_WINDOW: Final = 4096  # sequences back to which a duplicate can be proven; 32 KiB each

# Between the bridge's sockets and the log: reprise_bridge_dropped_total{reason="inbox_full"}.
INBOX_MESSAGES_MAX: Final = 262_144
INBOX_BYTES_MAX: Final = 512 * MIB
FOLD_QUEUE_BYTES_MAX: Final = 64 * MIB  # appended and not yet folded; appending waits above it
RECEIVE_BURST_MAX: Final = 512  # messages taken from one socket before the next one's turn

# The embedded form's log, and who writes it.
EMBEDDED_TURN_MESSAGES_MAX: Final = 1024  # smaller turns: the fold of one overlaps with the next
LOG_RETRY_S: Final = 0.5  # how often an append that failed is tried again
LOG_WAITING_BYTES_MAX: Final = 256 * MIB  # of records behind one that failed: reason="log_full"
COMMANDS_MAX: Final = 2 * PUBLISHERS_MAX  # that wait for their turn: reprise_refused_commands_total

# Records: a window's batches of one publisher.
RECORD_BYTES_MAX: Final = 4 * MIB  # a fuller window is split; one larger batch still is one record
RECORD_EVENTS_MAX: Final = 65_536

# Durability and flushing.
LOG_SYNC_S: Final = 0.05
TABLE_FLUSH_S: Final = 0.25
TABLE_FLUSH_CHANGES_MAX: Final = 262_144
STORE_GENERATION_MIN_BYTES: Final = 1 * MIB  # deltas of a context before it is rewritten: its own
TOPIC_GENERATION_MIN_BYTES: Final = 64 * KIB  # the same in a topic, which many small contexts share
DUMP_CHUNK_ENTRIES_MAX: Final = 32_768

# A table that was built from a log without its beginning: publishers seen unregistered since, which
# are proven empty when they register again. 150 bytes each, in one row. Whoever is forgotten is
# degraded at its registration: reprise_fold_records{outcome="unregistered_forgotten"}.
UNREGISTERED_REMEMBERED_MAX: Final = 256

# Retention of the embedded log.
LOG_RETENTION_BYTES: Final = 8 * GIB
LOG_RETENTION_S: Final = 7 * 24 * 3600.0
LOG_SEGMENT_BYTES: Final = 64 * MIB

# The kernel.
HOLD_COUNT_MAX: Final = 65_535  # kernel counter `hold_count_overflow`
GROUP_MAX: Final = 63  # cache groups above it are not remembered as skipped
RANKS_PER_INSTANCE_MAX: Final = 1024

# The monitor of a bridge or a worker: nobody who asks it can hold it up.
MONITOR_REQUEST_S: Final = 5.0  # a connection lasts no longer, answered or not
MONITOR_CONNECTIONS_MAX: Final = 64  # at once; the next one is answered 503

# Health: how soon after a line about a condition another one of it, with another reason, is logged.
CONDITION_REPEAT_S: Final = 10.0

# An answer is `stale` where the table is behind its log by more than either of these, or for as
# long as the log cannot be reached.
STALE_RECORDS: Final = 100_000  # table rows and source records together
STALE_S: Final = 5.0
LAG_CHECK_S: Final = 0.5  # how often the ends of the logs are asked for
LAG_CHECK_WAIT_S: Final = 3.0  # without an answer for this long, Kafka is away
LAG_NOTES_MAX: Final = 1024  # ends remembered until they are reached
REPLICA_FETCH_BYTES_MAX: Final = 16 * MIB  # read from Kafka and not applied yet
REPLICA_ROWS_PER_TURN_MAX: Final = 512
REPLICA_STALL_S: Final = 30.0  # behind for this long without one row: the consumer is made anew
REPLICA_AWAY_S: Final = 12 * 3600.0  # after so long a deletion may be compacted away: read anew

# Waits.
SHUTDOWN_S: Final = 10.0
SUBSCRIBE_WARN_S: Final = 5.0
RECONNECT_S: Final = 5.0  # a link that has been down for this long is made anew
SUBSCRIBER_TURN_S: Final = 0.005  # a turn looks at every socket, so some messages share one
LINK_WATCH_S: Final = 0.1  # how often the state of the links is looked at
BODY_READ_S: Final = 30.0  # a request whose body takes longer is ended

KAFKA_MESSAGE_MAX_BYTES: Final = 8 * MIB  # records and rows are split well below it
KAFKA_FETCH_BYTES_MAX: Final = 32 * MIB  # of one answer to a consumer, all partitions together

# Rows of a partition's table that count together: keys and values, before compression.
TABLE_BATCH_BYTES_MAX: Final = KAFKA_MESSAGE_MAX_BYTES - 128 * KIB  # the codec may add a little
TABLE_TRANSACTION_BYTES_MAX: Final = 1 * GIB  # TableTooLargeError; a broker must take it in 120 s

# Between a worker's consumer and its fold, in records, since Faust counts no bytes. Above them the
# worker fetches no more. What it has in memory at once is a poll, a buffer and a batch: 32 MiB of
# records of 44 KiB, which is a busy engine's, and WORKER_MEMORY_BYTES_MAX if each were as large as
# a message may be. Fetched and not polled there are 32 MiB more, compressed.
WORKER_POLL_RECORDS_MAX: Final = 256
WORKER_BUFFER_RECORDS_MAX: Final = 256
WORKER_BATCH_RECORDS_MAX: Final = 256  # folded and written at once
WORKER_MEMORY_BYTES_MAX: Final = KAFKA_MESSAGE_MAX_BYTES * (
    WORKER_POLL_RECORDS_MAX + WORKER_BUFFER_RECORDS_MAX + WORKER_BATCH_RECORDS_MAX
)

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

# Between the sequencer and the broker.
QUEUE_BYTES_MAX: Final = 64 * MIB  # above it, records go to the spool
SPOOL_AFTER_S: Final = 1.0  # a record that is not acknowledged by then makes the next ones spool
KAFKA_BATCH_BYTES: Final = 1 * MIB
RECORD_SEND_MAX: Final = (
    KAFKA_MESSAGE_MAX_BYTES - 64 * KIB
)  # reason="record_too_large": a gap stands for it
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
TURN_MESSAGES_MAX: Final = 4096  # turned into records at once, before anything else has its turn
TURN_BYTES_MAX: Final = 64 * MIB  # of them; a turn takes one message at least
REGISTERED_AGAIN_S: Final = 24 * 3600.0  # well below the retention of the events

# streams: log
TAIL_REACH_S: Final = 10.0  # `reprise tail` gives up a Kafka that does not answer for this long
TAIL_POLL_S: Final = 0.25  # between two looks for new records: the age of what it prints
TAIL_RECORDS_MAX: Final = 500  # printed at once: memory, at most one fetch more
TAIL_KEY_NESTING_MAX: Final = 8  # of extra keys shown as values; deeper ones are shown as hex
CORRUPT_READ_RECORDS_MAX: Final = 4096  # read one by one past a corrupt batch, before going on

# streams: table
ROW_LOAD_STEP_BYTES: Final = 4 * MIB  # loaded before the reader's loop has its turn: some 10 ms
STORE_BATCH_BYTES_MAX: Final = 8 * MIB  # a WriteBatch of rows that do not count yet: memory
SKIPPED_ROWS_NAMED_MAX: Final = 100  # waiting to be logged; all: reprise_table_rows{outcome}
SKIPPED_RECORDS_NAMED_MAX: Final = 100  # logged of each reason in each window; all are counted in
SKIPPED_RECORDS_WINDOW_S: Final = 60.0  # reprise_fold_records and reprise_worker_records
TABLE_RETAKE_S: Final = 6 * 3600.0  # an owner proves itself this often; costs two round trips
TABLE_PRODUCER_STOP_S: Final = 15.0  # for a producer of rows to send what it has, and close
TABLE_COPY_AGE_MAX_S: Final = 6 * 3600.0  # an older copy is read again: costs the whole partition
TOMBSTONE_RETENTION_MS: Final = (
    24 * 3600 * 1000
)  # of the compacted topics: the table and the registry

# streams: worker
WORKER_FLUSH_S: Final = 0.05  # records are gathered for this long: latency for fewer, larger rows
WORKER_SESSION_S: Final = 10.0  # a silent worker's partitions go to others after this long
WORKER_POLL_S: Final = 0.01  # between two looks whether Faust knows the agent's topic, at the start
WORKER_COMMIT_S: Final = 2.0  # the committed offset, which only tells lag, is at most this old
WORKER_RETRY_S: Final = 0.5  # the pause after an app that failed; doubled up to the next one:
WORKER_RETRY_MAX_S: Final = 5.0  # partitions of a worker that waits for this long move to others
WORKER_SETTLED_S: Final = 30.0  # an app that ran for this long did not fail at its start
WORKER_STOP_S: Final = SHUTDOWN_S - 2.0  # for the last flush and commit, and to leave the group
WORKER_APP_STOP_S: Final = 30.0  # for Faust's services to end after a failure
WORKER_CLEAN_S: Final = 5.0  # for the tasks that a crash of Faust left; then the process ends

# query_api: http
QUERY_COUNTS_MAX: Final = 1024  # queries not yet sorted into the histograms: memory, 1 ms at once
BODY_DRAIN_BYTES_MAX: Final = 2 * BODY_BYTES_MAX  # of a body that is too large, so that its client
# reads the 413; reprise_http_requests_total{status="413"}

# query_api: replica
REPLICA_RETRY_S: Final = 1.0  # the pause after reading failed; answers get older by it
REPLICA_POLL_MS: Final = 250  # of one fetch without rows: how soon positions move past compaction
REGISTRY_WRITE_S: Final = 10.0  # a registration waits this long for Kafka, then is answered 503

# reprise
OPTION_GIB_MAX: Final = 2.0**33  # a file system has no more bytes than 64 bits can count
OPTION_HOURS_MAX: Final = 24.0 * 365 * 10_000  # of retention; dates must stay computable
GATHER_MS_MAX: Final = 10_000  # --window-ms and --flush-ms: above it answers would look broken
SESSION_MIN_S: Final = 1.0  # --session-timeout-s: below it a pause of the machine is a takeover
SESSION_S_MAX: Final = 300.0  # above it a dead role's publishers or partitions wait for too long
SETTING_SHOWN_CHARS_MAX: Final = 40  # of a wrong environment variable, in the error
EMBEDDED_COMMAND_S: Final = 10.0  # a registration waits this long for the log, then gets a 503
LOG_RETENTION_CHECK_S: Final = 10.0  # how far the log may outgrow its retention; costs one lookup
REGISTER_RETRY_S: Final = 1.0  # before the configured publishers of a replica are tried once more
MONITOR_STOP_S: Final = 2.0  # for the monitor to end with its role
HTTP_BACKLOG: Final = 2048  # connections not accepted yet; the kernel refuses further ones
HTTP_GRACE_S: Final = 3  # whole seconds for the requests under way, at the end
OPEN_FILES_MAX: Final = 65_536  # asked of the system; a publisher takes about five, a client one

assert BODY_BYTES_MAX >= 6 * QUERY_TOKENS_MAX, "the largest query must fit into a body"
assert MESSAGE_BYTES_MAX <= INBOX_BYTES_MAX, "one message of the largest size must fit the inbox"
assert LOG_SYNC_S <= TABLE_FLUSH_S, "a table row may not cover a record that is not yet durable"
assert DUMP_CHUNK_ENTRIES_MAX <= TABLE_FLUSH_CHANGES_MAX, "a dump chunk is at most one flush"
assert LAG_CHECK_S + LAG_CHECK_WAIT_S < STALE_S, "one late check makes no answer stale"
assert PACKED_BATCH_BYTES_MAX <= LOG_SEGMENT_BYTES, "a batch too large to split is one record"
assert RECORD_BYTES_MAX <= LOG_SEGMENT_BYTES, "a record never spans segments"
assert DUMP_CHUNK_ENTRIES_MAX * 64 < TABLE_BATCH_BYTES_MAX, "a row of a table must fit a batch"
assert RECORD_BYTES_MAX < RECORD_SEND_MAX, "a record of the usual size must fit a message"
assert FLUSH_S + 2 * LEAVE_S < SHUTDOWN_S, "a bridge that is stopped must flush and leave in time"
assert MESSAGE_BYTES_MAX <= TURN_BYTES_MAX, "one message of the largest size fits into a turn"
assert REPLAYS_AT_ONCE_MAX * REPLAY_CHUNK_BYTES <= LOG_WAITING_BYTES_MAX, (
    "every replay under way may have a chunk behind an append that failed"
)
assert WORKER_MEMORY_BYTES_MAX <= 6 * GIB, "a worker that catches up must fit a machine"
assert SPOOL_REOPEN < 1.0, "a full spool must be drained before it is filled again"
assert 2000 * TABLE_COPY_AGE_MAX_S <= TOMBSTONE_RETENTION_MS, (
    "a worker's copy of the table topic may not miss a deletion"
)
assert 2000 * REPLICA_AWAY_S <= TOMBSTONE_RETENTION_MS, "nor may a replica that was without Kafka"
assert TABLE_RETAKE_S <= 12 * 3600, "brokers fence an older owner for a day after it was in use"
assert WORKER_RETRY_MAX_S < WORKER_SESSION_S, "a restarting worker should keep its partitions"
assert WORKER_FLUSH_S < WORKER_SESSION_S, "gathering records may not look like a silent worker"
assert WORKER_STOP_S < SHUTDOWN_S, "a worker must have left the group before it is killed"
assert WORKER_CLEAN_S < WORKER_SESSION_S, "a spoiled process should end before its session does"
assert BODY_DRAIN_BYTES_MAX > BODY_BYTES_MAX, "a body a little too large is read to its end"
assert REPLICA_RETRY_S < STALE_S, "one failure of the reader alone should not make answers stale"
assert REPLICA_POLL_MS < 1000 * REPLICA_STALL_S, "one empty fetch is not a stall"
assert SESSION_MIN_S <= WORKER_SESSION_S <= SESSION_S_MAX, "the default must be allowed"
assert SESSION_MIN_S <= SESSION_S <= SESSION_S_MAX, "the default must be allowed"
assert WINDOW_MS <= GATHER_MS_MAX, "the default must be allowed"
assert OPEN_FILES_MAX >= 10 * PUBLISHERS_MAX, "every publisher's sockets, and as many clients"
assert HTTP_BACKLOG < OPEN_FILES_MAX, "every connection that waits takes a descriptor"
assert HTTP_GRACE_S + MONITOR_STOP_S < SHUTDOWN_S, "a stop must end before the process is killed"
assert TAIL_KEY_NESTING_MAX < 100, "showing extra keys may not reach Python's recursion limit"
