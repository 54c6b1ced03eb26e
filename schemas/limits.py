"""Bounds that two rooms share, or that relate one room to another, and these relations.

A bound protects memory, time or the neighbours of what misbehaves. What one room alone relies on
stands there: in its module, or in the `bounds.py` of its package. Beside each bound stands what it
protects, what it costs where that is not obvious, and the counter of what it makes us drop. The
relations at the end are asserted when a process starts.

Formats (versions, sizes of fields, status codes) stay in the modules that define them. Names end in
their unit; `_MAX` and `_MIN` come last where the name says which side of the bound is meant.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# ========================================================================================== schemas

# What more than one room relies on.

# Names and numbers. What comes back from a log, a topic or a disk and is above them is refused as
# it is decoded (RecordError, EntryError), so nothing behind the decoder meets a number that does
# not fit its format.
NAME_BYTES_MAX: Final = 1024  # any string of a registration, a query or an event
PUBLISHERS_MAX: Final = 4096  # of one process: sockets, windows, 32 KiB of DUPLICATE_WINDOW each
BLOCK_SIZE_MAX: Final = 65_536  # tokens
DP_RANK_MAX: Final = 2**31 - 1  # of a data-parallel rank: an i32
LABELS_MAX: Final = 16  # of a registration; 400 `out_of_range`, as what follows
LABEL_BYTES_MAX: Final = 128  # of a label's name, and of its value
READS_MAX: Final = 64  # publishers that a registration names in `reads`, of NAME_BYTES_MAX each
KV_TOKEN_BYTES_MAX: Final = 1 * GIB  # of one token in a KV cache; 320 KiB for 70B parameters
KV_TOKENS_MAX: Final = 2**40  # that a KV cache has room for
SEQUENCES_AT_ONCE_MAX: Final = 2**20  # that an engine computes
PORT_MAX: Final = 65_535  # of TCP
SEQUENCE_MAX: Final = 2**63 - 1  # of a batch: reason="sequence_range"
OFFSET_MAX: Final = 2**63 - 2  # the one after it is still an i64
INCARNATION_MAX: Final = 2**62  # far above any real one; counting on from it still fits an i64
ERROR_DETAIL_CHARS_MAX: Final = 300  # of hostile bytes in an error's text, and so in the log

# What a topic can make a reader remember: reprise_bridge_unusable_entries_total and
# reprise_registry_skipped_total, both with reason="too_many".
REGISTRY_ENTRIES_MAX: Final = 4 * PUBLISHERS_MAX  # some hundred bytes to some KiB each
ENTRIES_NAMED_MAX: Final = 100  # unusable ones logged, for each reason; all are counted

# Topics. Tombstones: a reader that was away for longer may miss one, and must read from the start.
EVENTS_RETENTION_MS: Final = 7 * 24 * 3600 * 1000  # how far back `as_of` reads the events topic
ANSWERS_PARTITION_BYTES: Final = 1 * GIB  # the oldest answers of a partition go first
TOMBSTONE_RETENTION_MS: Final = 24 * 3600 * 1000  # of a compacted topic, for readers that were away

# Commands to LMCache's workers: what one may be, and how long it takes.
COMMAND_TOKENS_MAX: Final = 262_144  # of one command, 1 MiB of its record: status="413"
COMMAND_WORKERS_MAX: Final = 1024  # of one command: all of an instance

# Memory segments of engines: kvcached's. What is above a bound is no segment: reason="bad_numbers"
# of reprise_memory_files_skipped.
MEMORY_BYTES_MAX: Final = 2**60  # of memory; no machine has so much
MEMORY_STALE_S: Final = 90.0  # since a segment was read: it is shown as `stale`

# Health: how soon after one line about a condition another, with another reason, is logged.
CONDITION_REPEAT_S: Final = 10.0

# Tracing: a collector that is slow or away costs spans, and nothing else:
# reprise_spans_dropped_total by reason.
SPAN_LINKS_MAX: Final = 128  # of a span; the further ones are left out
TRACESTATE_CHARS_MAX: Final = 512  # of a request's `tracestate`; a longer one is left out

SHUTDOWN_S: Final = 10.0  # of every role, from the signal to the exit

DATABASE_OPENING_BYTES: Final = 4 * MIB  # of free disk, beside what the write-ahead log has

# ========================================================================================== brokers

# Messages, batches and fetches.
KAFKA_MESSAGE_MAX_BYTES: Final = 8 * MIB  # of every topic; records and rows are split well below it
KAFKA_BATCH_BYTES: Final = 1 * MIB  # packed into one request of a partition

# Waits of the clients. Past any of them the broker counts as away: the condition `kafka`.
KAFKA_ATTEMPT_MS: Final = 5_000  # one connection or request of a start, which is then retried
KAFKA_REQUEST_MS: Final = 15_000  # one request of a producer or a reader
REGISTRY_ENTRY_MS: Final = 8_000  # a registry entry is given up: it seldom takes effect later
READ_POLL_MS: Final = 1_000  # of one fetch without a message, before the reader looks around
CLIENT_LEAVE_S: Final = 0.9  # for a client that is cut short to end its start, or its connections
READ_STALLED_POLLS_MAX: Final = 60  # in a row without a message, though there are more

# Groups. A member that sends no heartbeat for a session loses its partitions to the others.
SESSION_MIN_S: Final = 1.0  # the shortest that can be configured
SESSION_S_MAX: Final = 300.0  # a dead role's publishers or partitions wait as long as its session
GATHER_MS_MAX: Final = 10_000  # bridge.window_ms and streams.flush_ms: the latency that each adds
HEARTBEATS_PER_SESSION: Final = 4  # and commits that renew a bridge's lease

# Reaching brokers.
KAFKA_RETRY_FIRST_S: Final = 0.1  # before a broker is tried again; doubled with each failure
KAFKA_RETRY_MAX_S: Final = 2.0  # between two attempts at a broker

# =========================================================================================== bridge

# wire: one ZMQ message of an engine. A 128K-token prefill is about 0.6 MB. What is above a bound is
# dropped: reprise_bridge_dropped_total with the reason that is given.
MESSAGE_BYTES_MAX: Final = 16 * MIB  # reason="message_too_large"
MESSAGE_FRAMES_MAX: Final = 4  # reason="frame_count"; what follows is not read: the link is dropped
BULK_BYTES: Final = 64 * KIB  # a larger message is decoded beside the loop, and counted before
BATCH_EVENTS_MAX: Final = 65_536  # reason="too_many_events"
EVENT_BLOCKS_MAX: Final = 1_000_000  # reason="too_many_blocks"
LORA_NAMES_MAX: Final = 4096  # of a publisher; each makes a context, of some KB
PACKED_BATCH_BYTES_MAX: Final = 32 * MIB  # reason="batch_too_large"
OTHER_RANKS_MAX: Final = 1_024  # of one stream, about so many are remembered of each publisher
GROUP_NUMBER_MAX: Final = 2**31 - 1  # reason="bad_group"

# sockets: from the engines to the inbox.
PUBLISHER_FILES_SHARE: Final = 8  # so much of the limit of open files is left to clients and disks
PUBLISHER_FILES_LEFT_MAX: Final = 1024  # but no more than so many
LINK_GROWTH_LOOK_S: Final = 0.01  # between two looks whether the process has grown
LINK_GROWTH_BYTES: Final = 4 * MIB  # between two looks: a link may bring an endless message
LINK_HEARTBEAT_MS: Final = 1_000  # of ZMTP, asked of the engine's socket
LINK_HEARTBEAT_WAIT_MS: Final = 1_500  # of other links, and of LMCache's workers
LINK_SETTLE_S: Final = 0.25  # from a link that comes up to the subscription at the engine

# sequencing: order, windows, gaps.
DUPLICATE_WINDOW: Final = 4096  # sequences back to which a duplicate can be proven; 32 KiB each
RECORD_WINDOW_MS: Final = 50  # whose batches share a record; the latency that it adds
RECORD_BYTES_MAX: Final = 64 * KIB  # a fuller window is split, and a larger batch; 1 to 7 ms
TURN_MESSAGES_MAX: Final = 1024  # of a turn, where they take little
TURN_BYTES_MAX: Final = 512 * KIB  # of a turn's messages, but for one that is larger by itself

# sequencing: replay. An engine that answers badly costs a gap, never the bridge.
REPLAY_IDLE_S: Final = 2.0  # without a reply for this long, what is missing is asked for again
REPLAY_BARREN_S: Final = 10.0  # of replies that bring nothing new; then as if none had come
REPLAY_TOTAL_S: Final = 600.0  # of one repair; what is missing by then is a gap
REPLAY_MESSAGES_MAX: Final = 65_536  # waiting in one socket; the engine drops what is above
REPLAY_OVERLAP_BATCHES: Final = 16  # before the log's last, where a reply may have lost that one

# confirmation: by the replay socket that nothing is missing; see schemas/answer_states.py.
CHECK_LATE_S: Final = 3.0  # since what was heard last, and its engine has not answered since
ENGINE_MODELS_MAX: Final = 8  # names that an engine serves; further ones are not told
ENGINE_RANKS_MAX: Final = 64  # ranks of an engine that publish; further ones are not told
TOKENIZE_WAIT_S: Final = 0.25  # for an engine's tokens: what they are for saves no more
UNREACHED_S: Final = 3.0  # without a link, since it is followed: condition `engines`
UNREACHED_NAMED_MAX: Final = 3  # without a link, by their addresses; the others are counted
HEARTBEAT_S: Final = 1.0  # of a bridge in each partition of the log where it has publishers

# memory: segments of a directory. What is left out: reprise_memory_files_skipped by reason.
MEMORY_PERIOD_S: Final = 1.0  # between two looks at the directory: some 15 us a segment
OUTCOMES_MIN: Final = 20  # reported requests of an instance, to judge its matches by
REPEATS_DOUBTED: Final = 2  # batches after the first under one number: no restart, but a constant
MEMORY_SEGMENTS_READ_MAX: Final = 256  # of one directory: reason="too_many"
MEMORY_REPEAT_S: Final = 30.0  # a segment that does not change is written again

# delivery: to Kafka, with the spool behind it. A gap stands in the log for what is dropped.
RECORD_SEND_BYTES_MAX: Final = KAFKA_MESSAGE_MAX_BYTES - 64 * KIB  # reason="record_too_large"
BRIDGE_FLUSH_S: Final = 3.0  # for the queue to be acknowledged, on a rebalance and at the end

# delivery: to the embedded log.
LOG_RETRY_S: Final = 0.5  # how often a failed append is retried

# membership: who follows which publisher, and from where.
BRIDGE_SESSION_S: Final = 10.0  # after it other bridges take over; a takeover costs as much
BRIDGE_LEAVE_S: Final = 2.0  # for one farewell: to the group, of a producer, of the cursors
HOUSEKEEPING_S: Final = 0.25  # how often late records are spooled and conditions are checked

# ========================================================================================== streams

# log: the embedded one.
LOG_SEGMENT_BYTES: Final = 64 * MIB  # the unit of retention

# log: `reprise tail`, and reading past what is corrupt.
TAIL_REACH_S: Final = 10.0  # without an answer from Kafka for this long, it gives up

# table: flushes and rows.
TABLE_FLUSH_CHANGES_MAX: Final = 131_072  # changes of a table between two flushes
DUMP_CHUNK_ENTRIES_MAX: Final = 32_768  # of one row of a dump
MAINTAINED_ENTRIES: Final = 4096  # released or rewritten at a time where nothing waits: 1 ms

# table: its topic.
TABLE_COPY_AGE_MAX_S: Final = 6 * 3600.0  # an older copy may miss tombstones: all rows are reread

# kernel.
HOLD_COUNT_MAX: Final = 65_535  # kernel counter `hold_count_overflow`

# worker: the Faust app, its end and its restart.
WORKER_FLUSH_S: Final = 0.02  # batches begin no more often: latency, for larger flushes
WORKER_SESSION_S: Final = 10.0  # after it others take over its partitions

# history: what `as_of` is answered from.
HISTORY_ANSWER_S: Final = 30.0  # for one answer: reason="as_of_takes_too_long"

# audit: the log of answers.
AUDIT_QUEUE_BYTES: Final = 16 * MIB  # of answers not written yet: reprise_audit_dropped_total
AUDIT_BYTES: Final = 4 * GIB  # the oldest goes first; an answer of 4,096 tokens has 2 KiB of hashes
AUDIT_FILES_BYTES: Final = 5 * GIB  # on the disk: what was dropped goes a file at a time
AUDIT_SHOWN_MAX: Final = 100  # answers that disagree and are named; all are counted

# routing: what decisions and their outcomes show. It is a fold, so these bounds are the same for
# every reader. What is dropped: reprise_routing_forgotten_total, of what is given.
APPROXIMATE_S: Final = 600.0  # that a prediction holds where the engine publishes nothing

# acting on advice: what it may cost engines; what that holds back is counted by
# reprise_acting_suppressed_total with the reason that is given.
ACT_PERIOD_S: Final = 10.0  # between two looks at what is advised
ACT_PERIOD_MIN_S: Final = 0.5  # the least that may be set
ACT_PERIOD_MAX_S: Final = 300.0  # the most: the horizon of an advice
ACT_COMMANDS_MAX: Final = 4  # commands of advice that have not ended: reason="at_once"
ACT_RATE_S: Final = 60.0  # within which at most ACT_RATE_MAX commands of advice are begun
ACT_RATE_MAX: Final = 24  # commands of advice that are begun within ACT_RATE_S: reason="rate"
ACT_HORIZON_S: Final = 300.0  # the same is not done again within it: reason="repeated"
ACT_REMEMBERED_S: Final = 1800.0  # how far back what was done counts
ACT_UNKNOWN_S: Final = 30.0  # without an end, a command of advice counts as failed

# ======================================================================================== query_api

# commands: status="503", reason="too_many_commands".
COMMANDS_WAITING_MAX: Final = 256  # issued here, and not ended yet
COMMAND_REQUEST_S: Final = 5.9  # that a request waits for its command's end: status="504"

# http: `POST` bodies. 1M tokens are about 7 MB of JSON.
BODY_BYTES_MAX: Final = 32 * MIB  # reprise_http_requests_total{status="413"}
BODY_READ_S: Final = 30.0  # a request whose body takes longer is ended: status="408"

QUERY_TOKENS_MAX: Final = 4 * MIB  # status="413"

# routing: decisions.
RECENT_DECISIONS_MAX: Final = 200  # shown by `GET /decisions`; the oldest go

# replica: `stale` where the table is behind its log by more than either, or cannot reach it.
STALE_RECORDS: Final = 100_000  # table rows and source records together
STALE_S: Final = 5.0  # behind its log: a table's answers are `stale`
LAG_CHECK_S: Final = 0.5  # how often the ends of the logs are asked for
LAG_CHECK_WAIT_S: Final = 3.0  # without an answer for this long, Kafka is away

# replica: its reader of the topics, and what it writes.
REPLICA_POLL_MS: Final = 250  # of one fetch without rows: how late it sees compacted offsets
REPLICA_RETRY_S: Final = 1.0  # the pause after reading failed, by which answers get older
REPLICA_AWAY_S: Final = 12 * 3600.0  # after so long a deletion may be gone: the table is reread

# =========================================================================================== replay

# traces: what a line may hold, and a file. What is above ends the reading with the line's number.
TRACE_BLOCKS_MAX: Final = 1_048_576  # of one prompt
TRACE_TOKENS_MAX: Final = 2**31 - 1  # of one prompt, and of one answer
TRACE_LOOK_LINES: Final = 1024  # between two steps of the progress bar

# ======================================================================================= simulation

# whatif: what one run may be.
WHATIF_NODES_MAX: Final = 4096  # engines of one run

# ========================================================================================== reprise

# cli: what options take.
SETTING_SHOWN_CHARS_MAX: Final = 40  # of a wrong environment variable, in the error

# embedded.
FOLD_TURN_BYTES_MAX: Final = 128 * KIB  # of a turn, however fast: the next one may take longer
LOG_RETENTION_CHECK_S: Final = 10.0  # how often old segments are dropped

# What one connection may do: reprise_http_refused_total, with the reason that is given.
HTTP_IDLE_S: Final = 120  # between two requests; clients' pools give a connection up sooner

OPTION_GIB_MAX: Final = 2.0**33  # a file system has no more bytes than 64 bits can count
SETTINGS_FILE_BYTES_MAX: Final = 64 * MIB  # of a file that an option names: settings, PEM, a token
REFUSALS_LOG_S: Final = 60.0  # one line for all that was refused meanwhile
OPEN_FILES_MAX: Final = 65_536  # asked of the system; a publisher takes about five, a client one

# ======================================================================================== relations

# wire -> inbox -> turn -> record -> log
assert BULK_BYTES <= FOLD_TURN_BYTES_MAX, "what is decoded within a turn fits it"
assert FOLD_TURN_BYTES_MAX <= TURN_BYTES_MAX, "a turn is as small as the fold needs it"
assert RECORD_BYTES_MAX <= PACKED_BATCH_BYTES_MAX, "one batch may fill a record"
assert PACKED_BATCH_BYTES_MAX <= LOG_SEGMENT_BYTES, "a batch too large to split is one record"
assert RECORD_BYTES_MAX <= LOG_SEGMENT_BYTES, "a record never spans segments"
assert RECORD_BYTES_MAX < RECORD_SEND_BYTES_MAX, "a record of the usual size must fit a message"
assert KAFKA_BATCH_BYTES < KAFKA_MESSAGE_MAX_BYTES, "the broker must take a batch of small records"

# commands
assert 4 * COMMAND_TOKENS_MAX + MIB < KAFKA_MESSAGE_MAX_BYTES, "a command must fit a message"

# acting on advice
assert ACT_PERIOD_MIN_S <= ACT_PERIOD_S <= ACT_PERIOD_MAX_S, "the default must be allowed"
assert COMMAND_REQUEST_S < ACT_UNKNOWN_S < ACT_HORIZON_S, "who is asked has time to answer"
assert ACT_COMMANDS_MAX * ACT_RATE_S <= ACT_RATE_MAX * ACT_PERIOD_S, "each look may use its share"
assert ACT_RATE_S <= ACT_REMEMBERED_S, "what was begun within it is remembered"
assert ACT_HORIZON_S <= ACT_REMEMBERED_S, "what was done within the horizon is remembered"
assert ACT_COMMANDS_MAX < COMMANDS_WAITING_MAX, "people's own commands have room"

# memory
assert MEMORY_PERIOD_S + MEMORY_REPEAT_S <= MEMORY_STALE_S, (
    "a segment that is read is not stale, however seldom it is"
)

# sessions
assert BRIDGE_FLUSH_S + 3 * BRIDGE_LEAVE_S + CLIENT_LEAVE_S < SHUTDOWN_S, (
    "a bridge flushes, leaves its group and drops its producer in time, whatever the broker does"
)
assert KAFKA_RETRY_FIRST_S <= KAFKA_RETRY_MAX_S, "the pauses grow"

# options and stops
assert SESSION_MIN_S <= BRIDGE_SESSION_S <= SESSION_S_MAX, "the default must be allowed"
assert SESSION_MIN_S <= WORKER_SESSION_S <= SESSION_S_MAX, "the default must be allowed"
assert RECORD_WINDOW_MS <= GATHER_MS_MAX, "the default must be allowed"
assert 1000 * WORKER_FLUSH_S <= GATHER_MS_MAX, "the default must be allowed"
assert OPEN_FILES_MAX >= 10 * PUBLISHERS_MAX, "every publisher's sockets, and as many clients"

# retention
assert 1000 * REPLICA_AWAY_S < TOMBSTONE_RETENTION_MS, "a replica must not miss a tombstone"
assert 2000 * TABLE_COPY_AGE_MAX_S <= TOMBSTONE_RETENTION_MS, "nor may a worker's copy"
assert AUDIT_BYTES + GIB <= AUDIT_FILES_BYTES, "no file goes before its records were dropped"
assert AUDIT_QUEUE_BYTES < ANSWERS_PARTITION_BYTES, "what waited for Kafka is not gone at once"
assert AUDIT_QUEUE_BYTES < AUDIT_BYTES, "a window of answers is a small part of their log"

# table
assert DUMP_CHUNK_ENTRIES_MAX <= TABLE_FLUSH_CHANGES_MAX, "a dump chunk is at most one flush"

# queries
assert BODY_BYTES_MAX >= 6 * QUERY_TOKENS_MAX, "the largest query must fit a body"
assert LAG_CHECK_S + LAG_CHECK_WAIT_S < STALE_S, "one late check makes no answer stale"
assert REPLICA_RETRY_S < STALE_S, "one failure of the reader alone makes no answer stale"
KV_USAGE_MAX: Final = 0.95  # of a candidate's KV cache; above it is left out: `memory`
