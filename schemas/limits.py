"""Every bound, in one place, in sections by room, and the relations that the code relies on.

A bound protects memory, time or the neighbours of whoever misbehaves. Beside each stands what it
protects, what it costs where that is not obvious, and the counter of what it makes us drop. The
relations at the end are asserted when a process starts.

Formats (versions, sizes of fields, status codes) stay in the modules that define them. Names end in
their unit; `_MAX` and `_MIN` come last where the name says which side of the bound is meant.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# ====================================================================================== schemas
# What more than one room relies on.

# Names and numbers. What comes back from a log, a topic or a disk and is above them is refused as
# it is decoded (RecordError, EntryError), so nothing behind the decoder meets a number that does
# not fit its format.
NAME_BYTES_MAX: Final = 1024  # any string of a registration, a query or an event
PUBLISHERS_MAX: Final = 4096  # of one process: sockets, windows, 32 KiB of DUPLICATE_WINDOW each
BLOCK_SIZE_MAX: Final = 65_536  # tokens
DP_RANK_MAX: Final = 2**31 - 1
KIND_CHARS_MAX: Final = 64  # the name of a wire protocol
LABELS_MAX: Final = 16  # of a registration; 400 `out_of_range`, as what follows
LABEL_BYTES_MAX: Final = 128  # of a label's name, and of its value
KV_TOKEN_BYTES_MAX: Final = 1 * GIB  # of one token in a KV cache; 320 KiB for 70B parameters
KV_TOKENS_MAX: Final = 2**40  # that a KV cache has room for
REQUESTS_MAX: Final = 2**40  # that an engine may say that it has: reason="bad_number"
SEQUENCES_AT_ONCE_MAX: Final = 2**20  # that an engine computes
PORT_MAX: Final = 65_535
SEQUENCE_MAX: Final = 2**63 - 1  # of a batch: reason="sequence_range"
OFFSET_MAX: Final = 2**63 - 2  # the one after it is still an i64
INCARNATION_MAX: Final = 2**62  # far above any real one; counting on from it still fits an i64
GENERATION_MAX: Final = 2**31 - 1  # of a context's rows; u32 in their keys
ERROR_DETAIL_CHARS_MAX: Final = 300  # of hostile bytes in an error's text, and so in the log

# What a topic can make a reader remember: reprise_bridge_unusable_entries_total and
# reprise_registry_skipped_total, both with reason="too_many".
REGISTRY_ENTRIES_MAX: Final = 4 * PUBLISHERS_MAX  # some hundred bytes to some KiB each
ENTRIES_NAMED_MAX: Final = 100  # unusable ones logged, for each reason; all are counted

# Topics. Tombstones: a reader that was away for longer may miss one, and must read from the start.
EVENTS_RETENTION_MS: Final = 7 * 24 * 3600 * 1000
ANSWERS_RETENTION_MS: Final = EVENTS_RETENTION_MS  # an older answer can be proven no more
ANSWERS_PARTITION_BYTES: Final = 1 * GIB  # the oldest answers of a partition go first
ROUTING_RETENTION_MS: Final = EVENTS_RETENTION_MS  # what is under way is in a checkpoint by then
ROUTING_PARTITION_BYTES: Final = 16 * GIB  # of the routing log; the oldest goes first
TOMBSTONE_RETENTION_MS: Final = 24 * 3600 * 1000
COMPACTED_SEGMENT_MS: Final = 10 * 60 * 1000  # only closed segments are compacted
COMPACTED_SEGMENT_BYTES: Final = 8 * MIB  # what is being written is never compacted

# Commands to LMCache's workers: what one may be, how long it takes, and how long it is kept.
COMMAND_TOKENS_MAX: Final = 262_144  # of one command, 1 MiB of its record: status="413"
COMMAND_WORKERS_MAX: Final = 1024  # of one command: all of an instance
COMMAND_ANSWER_S: Final = 5.0  # for a worker's answer, its turn behind others included: `timeout`
COMMAND_CLOSE_S: Final = 5.4  # from the command to its end, whoever has not answered by then
COMMAND_OTHERS_S: Final = 1.0  # more, before a replica ends the command of another one
COMMANDS_RETENTION_MS: Final = 30 * 24 * 3600 * 1000

# Memory segments of engines: kvcached's. What is above a bound is no segment: reason="bad_numbers"
# of reprise_memory_files_skipped.
MEMORY_BYTES_MAX: Final = 2**60  # of memory; no machine has so much
MEMORY_STALE_S: Final = 90.0  # since a segment was read: it is shown as `stale`

# Health: how soon after one line about a condition another, with another reason, is logged.
CONDITION_REPEAT_S: Final = 10.0

# Tracing: a collector that is slow or away costs spans, and nothing else:
# reprise_spans_dropped_total by reason.
SPAN_QUEUE_MAX: Final = 8192  # that wait for the collector, some KiB each; reason="queue_full"
SPAN_EXPORT_MAX: Final = 512  # in one request to it
SPAN_EXPORT_S: Final = 1.0  # that the first one waits for others
SPAN_LEAVE_S: Final = 2.0  # for the last ones, at the end; reason="stopping"
SPAN_LINKS_MAX: Final = 128  # of a span; the further ones are left out
SPAN_TEXT_CHARS_MAX: Final = 256  # of a text in a span; the rest is cut off
TRACESTATE_CHARS_MAX: Final = 512  # of a request's `tracestate`; a longer one is left out
TRACESTATE_MEMBERS_MAX: Final = 32  # W3C's own bound; likewise
SPAN_ALONE_S: Final = 0.1  # between two spans of a name, of batches that belong to no trace

SHUTDOWN_S: Final = 10.0  # of every role, from the signal to the exit

# ====================================================================================== storage

DATABASE_WRITE_BUFFER_BYTES: Final = 32 * MIB  # of a log or a table, in memory until it is flushed
SPOOL_WRITE_BUFFER_BYTES: Final = 16 * MIB  # a spool is mostly empty
DATABASE_OPENING_BYTES: Final = 4 * MIB  # of free disk, beside what the write-ahead log has
SALVAGE_BATCH_BYTES: Final = 8 * MIB  # copied in one write from a damaged database: memory
COPY_BATCH_BYTES: Final = 8 * MIB  # copied in one write into a backup: memory
SNAPSHOT_ATTEMPTS: Final = 5  # to open a database that another process is writing
SNAPSHOT_RETRY_S: Final = 0.05
BACKUP_ATTEMPTS: Final = 3  # to find the parts of a data directory beside each other
ROCKSDB_JOBS_MAX: Final = 2  # threads that flush and compact, for each database
ROCKSDB_LOG_FILES_MAX: Final = 3  # of RocksDB's own text log, kept for each database
ROCKSDB_LOG_FILE_BYTES_MAX: Final = 4 * MIB

# ====================================================================================== brokers

# Messages, batches and fetches.
KAFKA_MESSAGE_MAX_BYTES: Final = 8 * MIB  # of every topic; records and rows are split well below it
KAFKA_BATCH_BYTES: Final = 1 * MIB  # packed into one request of a partition
KAFKA_FETCH_BYTES_MAX: Final = 32 * MIB  # of one answer to a consumer, all partitions together

# Waits of the clients. Past any of them the broker counts as away: the condition `kafka`.
KAFKA_ATTEMPT_MS: Final = 5_000  # one connection or request of a start, which is then retried
KAFKA_REQUEST_MS: Final = 15_000  # one request of a producer or a reader
KAFKA_METADATA_MS: Final = 30_000  # how often a client asks who leads, where no error makes it
REGISTRY_ENTRY_MS: Final = 8_000  # a registry entry is given up: it seldom takes effect later
REPLICA_REQUEST_MS: Final = 10_000  # shorter: by then the answers say that they are stale
READ_POLL_MS: Final = 1_000
CLIENT_LEAVE_S: Final = 0.9  # for a client that is cut short to end its start, or its connections
READ_STALLED_POLLS_MAX: Final = 60  # in a row without a message, though there are more
COMMAND_ENTRY_MS: Final = 3_000  # a command or its result is given up: so late nobody executes it
READ_FETCH_WAIT_MS: Final = 100  # at the end of a partition a fetch waits in vain for this long
LOG_FETCH_WAIT_MS: Final = 5  # the same, where another stretch is asked for next
FETCH_GATHER_S: Final = 0.005  # from an answer with some records to the next fetch: latency
FETCH_GATHER_BYTES: Final = 256 * KIB  # after a larger answer there is no pause: there is more
FETCH_UNREADABLE_S: Final = 2.0  # answered without a record, though there are more: it is looked at
FETCH_UNREADABLE_TIMES: Final = 3  # and at least so often, each within
FETCH_UNREADABLE_GAP_S: Final = 10.0  # of the one before
FETCH_LOST_S: Final = (
    30.0  # none behind it can be read either: the broker may have a fault, and mend
)
FETCH_PROBE_S: Final = 0.3  # so for each offset that is tried behind it
FETCH_ERROR_PAUSE_S: Final = 0.1  # after an answer that is an error

# Groups. A member that sends no heartbeat for a session loses its partitions to the others.
SESSION_MIN_S: Final = 1.0  # the shortest that can be configured
HEARTBEATS_PER_SESSION: Final = 4  # and commits that renew a bridge's lease
HEARTBEAT_MIN_MS: Final = 100
BRIDGE_HEARTBEAT_MAX_MS: Final = 500  # a member that joins or leaves is noticed within this
BRIDGE_POLL_INTERVAL_MS: Final = 300_000  # a bridge that polls less often leaves its group
BRIDGE_REBALANCE_MIN_MS: Final = 10_000  # for the other bridges to flush and hand over
BRIDGE_REQUEST_MIN_MS: Final = 20_000  # a join waits for the others' rebalance
WORKER_REBALANCE_MS: Final = 300_000  # for the workers of a group to open their tables
WORKER_REQUEST_MIN_MS: Final = 40_000
TABLE_TRANSACTION_MS: Final = 120_000  # after it the broker itself ends a transaction

# Reaching brokers.
KAFKA_WATCH_S: Final = 1.0  # how often a role asks whether Kafka is there
KAFKA_RETRY_FIRST_S: Final = 0.1
KAFKA_RETRY_MAX_S: Final = 2.0
ERROR_CAUSES_MAX: Final = 8  # of a chain of errors that is searched for its first cause
TOPIC_SETTLE_S: Final = 20.0  # until all brokers know a topic that was just created
TOPIC_SETTLE_PAUSE_S: Final = 0.05

# ====================================================================================== bridge

# wire: one ZMQ message of an engine. A 128K-token prefill is about 0.6 MB. What is above a bound is
# dropped: reprise_bridge_dropped_total with the reason that is given.
MESSAGE_BYTES_MAX: Final = 16 * MIB  # reason="message_too_large"
MESSAGE_FRAMES_MAX: Final = 4  # reason="frame_count"; what follows is not read: the link is dropped
BULK_BYTES: Final = 64 * KIB  # a larger message is decoded beside the loop, and counted before
BULK_IDLE_WAIT_S: Final = 0.02  # each part of it goes when the fold has nothing to do, or then
BULK_IDLE_LOOK_S: Final = 0.001
BULK_HELD_BACK_MAX: Final = 4  # large messages that wait, decoded, for the workers
BATCH_VALUES_MAX: Final = 2_500_000  # reason="too_many_values"; numbers, nested ones included
BATCH_EVENTS_MAX: Final = 65_536  # reason="too_many_events"
BATCH_APART_EVENTS_MAX: Final = 16_384  # with a bad one among them, looked at one by one
BATCH_APART_VALUES_MAX: Final = 262_144  # the same in values; some 30 ms of the interpreter's lock
SINGLE_EVENTS_BYTES_MAX: Final = 4 * MIB  # JSON and envelopes, read in Python: some 30 ms of it
BATCH_ERRORS_MAX: Final = 100  # bad events of a batch; more, and it is undecodable as a whole
EVENT_DEPTH_MAX: Final = 16  # of maps and arrays in an event with unknown fields
BATCH_TOLERATED_MAX: Final = 2_048  # the same of events with unknown fields; some 30 ms likewise
EVENT_FIELDS_MAX: Final = 64  # of an event in no known form, to find its tag
EVENT_BLOCKS_MAX: Final = 1_000_000  # reason="too_many_blocks"
LORA_NAMES_MAX: Final = 4096  # of a publisher; each makes a context, of some KB
PACKED_BATCH_BYTES_MAX: Final = 32 * MIB  # reason="batch_too_large"
OTHER_RANKS_MAX: Final = 1_024  # of one stream, about so many are remembered of each publisher
GROUP_NUMBER_MAX: Final = 2**31 - 1  # reason="bad_group"

# sockets: from the engines to the inbox.
INBOX_MESSAGES_MAX: Final = 262_144  # reason="inbox_full"
HEAD_BYTES_MAX: Final = 1024  # of a dropped message's topic and number, kept to tell what is lost
INBOX_BYTES_MAX: Final = 512 * MIB  # reason="inbox_full"
INBOX_HELD_BACK_RATIO: Final = 0.75  # who is held back goes on from there, into the spool
INBOX_SHARE_MESSAGES: Final = 64  # taken of one publisher before it is the next one's turn
INBOX_SHARE_BYTES: Final = 128 * KIB  # the same in bytes; one message is taken whatever its size
PUBLISHER_FILES_SHARE: Final = 8  # so much of the limit of open files is left to clients and disks
PUBLISHER_FILES_LEFT_MAX: Final = 1024  # but no more than so many
RECEIVE_BURST_MAX: Final = 512  # messages taken from one socket before the next one's turn
RECEIVE_BURST_BYTES: Final = 256 * KIB  # the same in bytes; so 50 MB/s of one publisher at most
RECEIVE_BURST_S: Final = 0.004  # the same in time
SUBSCRIBER_TURN_S: Final = 0.005  # a turn looks at every socket, so several messages share one
SUBSCRIBER_ERROR_PAUSE_S: Final = 0.1  # after an unexpected error, so that it does not spin
LINK_WATCH_S: Final = 0.1  # how often it is looked at what links do and bring
LINKS_WATCHED_MAX: Final = 256  # of them at once; of those that are up as many as it takes
LINK_LOOK_S: Final = 2.0  # so often at one that is up whatever it brings
LINK_LOOK_BYTES: Final = 64 * KIB  # or as soon as it has brought so much since the look before
LINK_GROWTH_LOOK_S: Final = 0.01  # so often it is looked at whether the process has grown
LINK_GROWTH_BYTES: Final = 4 * MIB  # by more than this: a link may bring a message without an end
LINK_UNFINISHED_BYTES: Final = 1 * MIB  # of a message: from there on it is looked what it takes
LINK_GROWN_BYTES_MAX: Final = 128 * MIB  # of memory, by which the process may grow meanwhile
LINK_WARN_S: Final = 5.0  # a publisher that is not there by then is logged, once
LINK_BUFFER_BYTES: Final = 16 * MIB  # received by a link beyond a message: the kernel's, libzmq's
LINK_QUEUE_BYTES: Final = 512 * MIB  # of a link in libzmq, not taken yet; beyond, it is dropped
LINK_MESSAGE_BYTES: Final = 192  # of memory, that libzmq takes for a message beside its bytes
MESSAGE_HEADERS_BYTES: Final = 36  # of ZMTP: 9 for each of four frames, at most
CURVE_FRAME_BYTES: Final = 35  # of a frame that is encrypted, beside what is in it
CURVE_HEADERS_BYTES: Final = 4 * 33  # of a message that is, beside MESSAGE_HEADERS_BYTES
LINK_HEARTBEAT_BYTES: Final = 128  # of what heartbeats bring in LINK_HEARTBEAT_MS, at most
RELAY_ENGINES_MAX: Final = 64  # of one relay: the ranks of the engines on its host
RELAY_BRIDGES_MAX: Final = 1024  # public keys in its list
RELAY_KEYS_BYTES_MAX: Final = 1 * MIB
RELAY_KEYS_CHECK_S: Final = 1.0  # how often it is looked whether the list has changed
RELAY_PROBE_S: Final = 0.25  # an engine that is away, and on the same host, is asked for so often
RELAY_LINGER_S: Final = 2.0  # for what an engine said before its link ended to reach the bridges
RELAY_WARN_S: Final = 5.0  # an address that cannot be bound is logged then, and so often
RELAY_QUEUE_MESSAGES_MAX: Final = 65_536  # that wait for one bridge; what is above is lost to it
RELAY_WAITING_BYTES_MAX: Final = 256 * MIB  # the same in bytes; beyond, it loses its link
RELAY_REPLAYS_MAX: Final = 256  # under way of one engine; one more ends the least recent
RELAY_REPLIES_WAITING_MAX: Final = 256  # for one bridge; more are not taken of the engine's
RELAY_REPLAY_IDLE_S: Final = 30.0  # a replay of which so long nothing came is over
RELAY_REPLAY_DONE_S: Final = 1.0  # so long after the end marker: whoever asks again may
RELAY_HELD_LOOK_S: Final = 0.005  # how often it is looked whether a bridge has room again
RELAY_REQUEST_BYTES_MAX: Final = 1 * KIB  # of a frame of a bridge: a request has 8
LOOKUPS_AT_ONCE_MAX: Final = 8  # of host names; a silent name server holds a place each
LINK_BREACH_S: Final = 5.0  # a link that was dropped for what it sent is down for this long
LINK_REPLACE_S: Final = 5.0  # a link that has been down for this long is given up by libzmq, and
LINK_PROBE_S: Final = 3.0  # so often it is asked then whether somebody listens: 20 us each time
LINK_AWAY_S: Final = 60.0  # a link that has been down for this long is asked for
LINK_PROBE_AWAY_S: Final = 5.0  # so often
LINK_PROBE_WAIT_S: Final = 3.0  # for the answer of a host
LINK_RETRY_FIRST_MS: Final = 100  # libzmq's own attempts, each twice the one before
LINK_RETRY_MAX_MS: Final = 3_000
LINK_QUIET_S: Final = 0.05  # a link is not replaced when libzmq's next attempt is closer than this
LINK_CONNECT_MS: Final = 5_000  # for the connection, and then for the handshake
LINK_HEARTBEAT_MS: Final = 1_000  # of ZMTP, asked of the engine's socket
LINK_SILENT_S: Final = 1.5  # a peer of TCP that was asked and has not answered for this long
LINK_UNHEARD_S: Final = LINK_HEARTBEAT_MS / 1000 + LINK_SILENT_S  # to find that a peer is silent
LINK_DEAD_MS: Final = 10_000  # a host that has acknowledged nothing for this long: it is dead
LINK_UNANSWERED_MS: Final = 30_000  # a peer that has not answered, and whose host is there
LINK_HEARTBEAT_WAIT_MS: Final = 1_500  # of other links, and of LMCache's workers
LINK_RESUME_S: Final = 1.0  # from the end of a silence until what was held up is seen to be late
LINKS_LOOK_S: Final = 1.0  # all that are up are looked at within this
LINK_SETTLE_S: Final = 0.25  # from a link that comes up to the subscription at the engine
LINK_KEEPALIVE_IDLE_S: Final = 30  # a dead host is noticed after this, and probes * interval
LINK_KEEPALIVE_INTERVAL_S: Final = 10
LINK_KEEPALIVE_PROBES_MAX: Final = 3

# sequencing: order, windows, gaps.
DUPLICATE_WINDOW: Final = 4096  # sequences back to which a duplicate can be proven; 32 KiB each
RECORD_WINDOW_MS: Final = 50  # whose batches share a record; the latency that it adds
RECORD_BYTES_MAX: Final = 64 * KIB  # a fuller window is split, and a larger batch; 1 to 7 ms
TURN_S: Final = 0.002  # what a turn may take to be turned into records, before anything else
TURN_MESSAGES_MAX: Final = 1024  # of it, where they take little
TURN_MESSAGES_MIN: Final = 2  # of it, where they take long: bad events are read one by one
RUN_MESSAGES_MAX: Final = 64  # decoded together, where they simply follow on
TURN_BYTES_MAX: Final = 512 * KIB  # of them, but for one that is larger by itself
HELD_BATCHES_MAX: Final = 65_536  # of a publisher during a repair: reason="held_full"
HELD_TURN_S: Final = 0.002  # of what waited becomes records at once; then others have their turn
HELD_BYTES_MAX: Final = 256 * MIB  # of all publishers: reason="held_full"

# sequencing: replay. An engine that answers badly costs a gap, never the bridge.
RELINK_CHECK_S: Final = 0.25  # how often it is checked which links have come up again
REPLAY_IDLE_S: Final = 2.0  # without a reply for this long, what is missing is asked for again
REPLAY_BARREN_S: Final = 10.0  # of replies that bring nothing new; then as if none had come
REPLAY_TOTAL_S: Final = 600.0  # of one repair; what is missing by then is a gap
REPLAY_MESSAGES_MAX: Final = 65_536  # waiting in one socket; the engine drops what is above
REPLAY_CHUNK_BATCHES: Final = 64  # handed on at once
REPLAY_CHUNK_BYTES: Final = 4 * MIB
REPLAY_OVERLAP_BATCHES: Final = 16  # before the log's last, where a reply may have lost that one
REPLAY_BARREN_MAX: Final = 4  # requests in a row that bring nothing new
REPLAY_REQUESTS_MAX: Final = 256  # of one repair
REPLAY_SKIPS_MAX: Final = 64  # batches of one repair at which replies break off; each is a gap
REPLAY_SKIPS_BARREN_MAX: Final = 8  # of them, one behind the other
REPLAY_BREAK_LOOK_S: Final = 0.25  # how often it is looked whether a reply has broken off
REPLAYS_AT_ONCE_MAX: Final = 64  # whose replies are read; the others wait
PROBES_AT_ONCE_MAX: Final = 192  # engines that are asked whether they answer; three files each

# engine_http: what an engine's HTTP address is asked for; reprise_bridge_http_requests_total has
# what came of it. A registration names the address, so no more is read than is needed.
HTTP_ENGINE_WAIT_S: Final = 2.0  # for a whole answer; then it counts as none
HTTP_ENGINE_BYTES_MAX: Final = 2 * MIB  # of a head with its body, as SGLang's of many ranks
HTTP_METRICS_BYTES: Final = 256 * KIB  # of metrics: what tells of the process stands first
HTTP_BODIES_BYTES_MAX: Final = 32 * MIB  # of all answers that have come in part; then as silent
HTTP_STARTUP_BYTES_MAX: Final = 16 * KIB  # of what took how long at an engine's start
HTTP_ENGINE_VALUES_MAX: Final = 4096  # ranks of one engine that it may name
HTTP_RANKS_NAMED_MAX: Final = 16  # of those that it names, in the log
HTTP_ENGINE_READ_BYTES: Final = 64 * KIB  # at once
HTTP_ENGINES_AT_ONCE_MAX: Final = 64  # that are asked; a file each
HTTP_SILENT_AT_ONCE_MAX: Final = 16  # likewise, of those that did not answer the last time
FIND_AGAIN_S: Final = 3.0  # how often an engine without a link is asked where it publishes
FIND_REFUSED_S: Final = 30.0  # where it said what cannot be used: it is to be registered otherwise
PROBE_AGAIN_S: Final = 10.0  # how often a silent engine is asked whether it is there
PROBE_RETRY_S: Final = 1.0  # after an attempt without an answer
PROBE_FAILURES_MAX: Final = 2  # in a row; then it counts as away
PROCESS_RETRY_S: Final = 5.0  # how often it is asked which process it is, where it has not said
PROCESS_RETRY_DOUBLINGS_MAX: Final = 5  # of that pause: not every release says it
PROCESS_AGAIN_S: Final = 60.0  # how often it is asked again over the same link: it must not change
PROCESS_SETTLE_S: Final = 0.25  # from the end of a process to the end of its link, as we see it
PROCESS_CLOCK_S: Final = 2.0  # how much its start time and its batches' times may be apart

# engine_http: what engines carry. What of an answer is left out: reprise_bridge_load_dropped_total;
# where nothing of it could be used: reprise_bridge_load_failures_total; both by reason.
LOAD_PERIOD_S: Final = 1.0  # how often an engine is asked; from 80 to 120 % of it
LOAD_PERIOD_MAX_S: Final = 60.0
LOAD_JITTER: Final = 0.2
LOAD_CPU_SHARE: Final = 0.04  # of a core; above it the period is stretched
LOAD_SERVER_CPU_SHARE: Final = 0.003  # likewise, that reading the answers of one may take
LOAD_QUESTION_S: Final = 0.0004  # of CPU, what a question is taken to cost until it is measured
LOAD_COST_S: Final = 5.0  # over which it is measured
LOAD_TICK_S: Final = 0.1  # how often it is looked who is due, and samples are handed over
LOAD_IDLE_S: Final = 0.5  # how often it is looked whether anybody can be asked, while nobody can
LOAD_LOOK_S: Final = 3.0  # how often it is looked who is registered
LOAD_WAIT_S: Final = 1.0  # for a whole answer; then it counts as none: reason="silent"
LOAD_BACKOFF_MAX_S: Final = 30.0  # a period is doubled with each failure in a row, up to this
LOAD_END_S: Final = 1.0  # for its thread to end
LOAD_AT_ONCE_MAX: Final = 64  # engines that are asked; a file each
LOAD_AWAY_FAILURES: Final = 2  # silences in a row, after which an engine without events is away
LOAD_SILENT_AT_ONCE_MAX: Final = 16  # likewise, of those that failed the last time
LOAD_KEPT_MAX: Final = 1024  # connections that stay open to the next question; a file each
LOAD_FILES_SHARE: Final = 16  # of the limit of open files, these take so much at the most
LOAD_METRICS_BYTES: Final = 2 * MIB  # of metrics; what stands behind it is not read: "cut"
LOAD_RANKS_BYTES: Final = 512 * KIB  # of SGLang's `/v1/loads`: some 500 bytes a rank
LOAD_BODIES_BYTES_MAX: Final = 16 * MIB  # of all answers that have come in part; then "silent"
LOAD_LINE_BYTES_MAX: Final = 16 * KIB  # of a line of metrics: "long_line"
LOAD_HEADS_MAX: Final = 4096  # of lines, with their labels, that are remembered: 24 MiB at the most
LOAD_HEAD_BYTES_MAX: Final = 2 * KIB  # a longer one is read each time
LOAD_LINES_MAX: Final = 4096  # that are looked at, of one answer: "too_many"
LOAD_USAGE_ROUNDING: Final = 0.05  # above a usage of 1, which counts as 1: else "bad_number"
LOAD_NAMED_MAX: Final = 256  # addresses that say nothing of their load, and are logged

# confirmation: by the replay socket that nothing is missing; see schemas/answer_states.py.
LOOK_REST_S: Final = 4.0  # who is silent, or away, is looked at so often if nothing happens
CHECK_SILENCE_S: Final = 2.0  # after its last message an engine is asked whether there is more
CHECK_AGAIN_S: Final = 30.0  # and again this often while it is silent
CHECK_LATE_S: Final = 3.0  # since what was heard last, and its engine has not answered since
CHECK_RETRY_S: Final = 1.0  # after an answer that confirms nothing; doubled with each further one
CHECK_RETRY_MAX_S: Final = 10.0
CHECK_DOUBLINGS_MAX: Final = 16  # of a pause: by then each is at its bound
CHECK_FAILURES_MAX: Final = 2  # in a row; then a publisher that was confirmed is so no more
CHECK_HOLD_S: Final = 0.5  # a batch that comes meanwhile waits no longer: the question is dropped
CHECK_HOLD_MAX_S: Final = 4.0  # it is doubled with each check that was dropped, up to this
CHECKS_AT_ONCE_MAX: Final = 16  # of those whose last one failed; as many of the others
LATENESS_COMPARED: Final = 1024  # turns with batches of a publisher, to find its clock
CLOCK_STEP_S: Final = 1.0  # a batch that comes so much sooner than any before: a clock was set
RECEIVED_LATE_S: Final = 2.0  # messages that have waited for longer: `unconfirmed`
FACTS_AGAIN_S: Final = 5.0  # how often an engine is asked what it is: four requests
FACTS_RETRY_S: Final = 2.0  # likewise, one that has not answered
FACTS_LOOK_S: Final = 1.0  # how often it is looked who is to be asked
FACTS_PAUSE_S: Final = 0.1  # from one engine to the next: more than 50 are asked more rarely
FACTS_AT_ONCE_MAX: Final = 4  # that are asked; a file each
ENGINE_MODELS_MAX: Final = 8  # names that an engine serves; further ones are not told
ENGINE_RANKS_MAX: Final = 64  # likewise of the ranks that publish
CLOCK_FAR_S: Final = 30.0  # a clock that is nearer is right
CLOCK_STEP_SAID_S: Final = 10.0  # in such steps it is said how far a clock is off
UNIX_SECONDS_MIN: Final = 1e9  # of September 2001: a smaller number is of another clock
UNIX_SECONDS_MAX: Final = 1e11  # likewise a larger one, as of milliseconds
UNREACHED_S: Final = 3.0  # without a link, since it is followed: condition `engines`
UNREACHED_LOOK_S: Final = 1.0
UNREACHED_NAMED_MAX: Final = 3  # by their addresses; the others are counted
HEARTBEAT_S: Final = 1.0  # of a bridge in each partition of the log where it has publishers
HEARTBEAT_COMPLETE_S: Final = 15.0  # how often one names all publishers: what was lost is healed
HOST_NAME_CHARS_MAX: Final = 64  # of a bridge's name
BRIDGE_NAME_RANDOM_BYTES: Final = 4  # of it: no other run of a bridge has the same
ARRIVED_WAIT_S: Final = 1.0  # a takeover asks the engine after this, whatever still waits
ARRIVED_LOOK_S: Final = 0.02  # how often it is looked whether what had arrived has been decoded
WATCH_LATE_S: Final = 1.0  # nothing is said of publishers that were not looked at for this long
PAUSE_SETTLE_S: Final = 4.0  # after such a pause, until what the system has kept has been received
WATCH_PAUSED_S: Final = 5.0  # not looked at for this long: the process was paused; all are asked

# memory: segments of a directory. What is left out: reprise_memory_files_skipped by reason.
MEMORY_PERIOD_S: Final = 1.0  # between two looks at the directory: some 15 us a segment
MEMORY_PERIOD_MIN_S: Final = 0.25
MEMORY_PERIOD_MAX_S: Final = 60.0
TOP_PERIOD_S: Final = 2.0  # between two looks of `reprise top`: seven requests to a service
TOP_PERIOD_MIN_S: Final = 0.25
TOP_PERIOD_MAX_S: Final = 60.0
TOP_PROMISES_S: Final = 60.0  # its hits are of decisions since then
TOP_STALE_S: Final = 5.0  # longer without an answer is said
TOP_TURN_S: Final = 0.1  # until a key, or a newer answer, shows
DOCTOR_OUTCOMES_MIN: Final = 20  # reported requests of an instance, to judge its matches by
DOCTOR_OUTCOMES_S: Final = 900.0  # older ones say nothing
DOCTOR_SHARE: Final = 0.1  # of the tokens of prompts: matches that are wrong by less are right
DOCTOR_SETTLE_S: Final = 10.0  # a doubt that is younger may pass by itself
KNOWN_SCOPES_S: Final = 1.0  # how old what is known may be, where an unknown scope is asked
KNOWN_NAMES_SHOWN_MAX: Final = 8  # models, sizes and so on that are named in their place
UNKNOWN_SCOPES_MAX: Final = 256  # that were asked and are kept for the doctor; the oldest go
UNKNOWN_SCOPES_S: Final = 300.0  # for so long
OUTCOMES_LOOK_S: Final = 5.0  # how often it is looked whether outcomes contradict: `outcomes`
DOCTOR_OVERFULL: Final = 1.5  # times what an engine has room for: it says not what it removes
DOCTOR_ENTRIES_MAX: Final = 65_536  # that are looked at of a context, to tell its tiers apart
MEMORY_SEGMENTS_READ_MAX: Final = 256  # of one directory: reason="too_many"
MEMORY_ENTRIES_MAX: Final = 16_384  # names of the directory that are looked at: some 10 ms
MEMORY_NAMES_SHOWN_MAX: Final = 32  # files that were left out and are named; all are counted
MEMORY_CHANGE_RATIO: Final = 0.01  # of the limit, by which a number changes before it is written
MEMORY_LEVEL_MARGIN: Final = 0.005  # below a level of pressure, before it counts as left
MEMORY_REPEAT_S: Final = 30.0  # a segment that does not change is written again
MEMORY_STUCK_S: Final = (
    30.0  # without a look that has ended, beyond a period: the condition says so
)

# delivery: to Kafka, with the spool behind it. A gap stands in the log for what is dropped.
QUEUE_BYTES_MAX: Final = 64 * MIB  # records not yet acknowledged; above it they go to the spool
RECORD_SEND_BYTES_MAX: Final = KAFKA_MESSAGE_MAX_BYTES - 64 * KIB  # reason="record_too_large"
WRITER_PAUSE_S: Final = 0.02  # how often the writer looks whether it may go on
SPOOL_AFTER_S: Final = 1.0  # a record not acknowledged by then makes the next ones go to the spool
SPOOL_BYTES_MAX: Final = 1 * GIB  # reason="spool_full"
SPOOL_REOPEN_RATIO: Final = 0.9  # of the bound: below it, records are taken again
SPOOL_CHANGES_MAX: Final = 4096  # deleted or replaced in one write
LAG_S: Final = 0.05  # a bridge keeps no more before the workers than they fold in this time
LAG_BYTES_FIRST: Final = 1 * MIB  # of it, before it is known how fast they are
LAG_BYTES_MIN: Final = 128 * KIB  # of it, however slow they are
LAG_BYTES_MAX: Final = 64 * MIB  # of it, however fast
LAG_RECORD_BYTES: Final = 512  # that a record counts beside its bytes: a gap takes time, too
LAG_RECORDS_MAX: Final = 65_536  # of a partition that are remembered until they are folded
LAG_LOOK_S: Final = 0.01  # how often it is looked how far the workers are, while some may wait
LAG_LOOK_MAX_S: Final = 0.08  # the same where they have not got on; a look is 0.5 ms of CPU
LAG_SILENT_S: Final = 1.0  # workers that stand still for longer hold nobody back
BRIDGE_FLUSH_S: Final = 3.0  # for the queue to be acknowledged, on a rebalance and at the end

# delivery: to the embedded log.
LOG_RETRY_S: Final = 0.5  # how often a failed append is retried
LOG_WAITING_BYTES_MAX: Final = 256 * MIB  # of records behind a failed append: reason="log_full"

# membership: who follows which publisher, and from where.
BRIDGE_SESSION_S: Final = 10.0  # after it other bridges take over; a takeover costs as much
BRIDGE_LEAVE_S: Final = 2.0  # for one farewell: to the group, of a producer, of the cursors
BRIDGE_RETRY_S: Final = 1.0  # between attempts at anything of a bridge that failed
HOUSEKEEPING_S: Final = 0.25  # how often late records are spooled and conditions are checked
REGISTRY_POLL_MS: Final = 200
LOG_START_LOOK_S: Final = 10.0  # how often it is looked whose registration the log has dropped
HANDOVER_FLUSH_S: Final = 1.0  # for the queue to be acknowledged, before its bridge leaves
HANDOVER_S: Final = 5.0  # a publisher that may be another bridge's is kept so long, at most
HANDOVER_WAIT_S: Final = 6.5  # its next owner waits so long for what is kept, at most
HANDOVER_OVERLAP_S: Final = 0.25  # both receive from the publisher for so long, at least
HANDOVER_IDLE_S: Final = LINK_UNHEARD_S  # or so, if it sends nothing: its link is known to be alive
HANDOVER_MATCH_S: Final = 1.0  # for the next owner to receive what the last one has received
HANDOVER_FINISH_S: Final = 0.5  # for what is left of it to be acknowledged
HANDOVER_LOOK_S: Final = 0.05  # how often it is looked how far handovers are
CURSOR_NOTE_S: Final = 1.0  # how often the stored cursors are written
CURSOR_NOTE_BEHIND_RECORDS_MAX: Final = 20_000  # an older one makes a takeover slow
CURSOR_NOTES_MAX: Final = 262_144  # of all publishers ever; reason="too_many"
COMMANDS_MAX: Final = 2 * PUBLISHERS_MAX  # waiting for their turn: reprise_refused_commands_total

# lmcache: the controller's sockets, which anybody who reaches them may write to. What is above a
# bound is dropped: reprise_lmcache_dropped_total with the reason that is given.
LMCACHE_MESSAGE_BYTES_MAX: Final = 16 * MIB  # of one frame; libzmq drops the link of a larger one
LMCACHE_PARTS_MAX: Final = 1024  # of a PUSH message; a worker sends 50: reason="too_many_parts"
LMCACHE_OPERATIONS_MAX: Final = 262_144  # of one message: reason="too_many_operations"
LMCACHE_HASHES_MAX: Final = 65_536  # of one look-up; the rest of a prompt counts as a miss
LMCACHE_QUEUE_MESSAGES: Final = 64  # of a link in libzmq; beyond, its worker keeps them
LMCACHE_LINKS_MAX: Final = 2048  # of each socket: the newest is closed, reason="too_many_links"
LMCACHE_LINK_BYTES: Final = 32 * MIB  # of a link in libzmq: it is closed, "endless_message"
LMCACHE_WORKERS_MAX: Final = 1024  # an ErrorMsg; reason="too_many_workers"
LMCACHE_LOCATIONS_MAX: Final = 16  # of a worker: reason="too_many_locations"
LMCACHE_KEYS_MAX: Final = 4_194_304  # of all workers, some 80 bytes each: reason="too_many_keys"
LMCACHE_FULL_RATIO: Final = 0.9  # of them: then nobody is asked for a full sync
LMCACHE_WORKER_KEYS_MAX: Final = 2_097_152  # of one full sync, which is refused above it
LMCACHE_SYNC_BATCHES_MAX: Final = 65_536  # the same
LMCACHE_SYNCS_AT_ONCE_MAX: Final = 16  # workers asked at once: as many caches are frozen
LMCACHE_MISSING_NAMED_MAX: Final = 1024  # batches that one answer names as missing
LMCACHE_SYNC_START_S: Final = 15.0  # for a worker to begin, which it delays by up to 5 s
LMCACHE_SYNC_AGAIN_MAX_S: Final = 300.0  # between two requests; it doubles with each that failed
LMCACHE_SYNC_IDLE_S: Final = 20.0  # without a batch: the cache is released, whole or not
LMCACHE_HELD_S: Final = 60.0  # what a worker sends waits so long for its full sync
LMCACHE_UNHEARD_S: Final = 15.0  # a worker that has pushed nothing for so long since its link is
LMCACHE_WORKER_S: Final = 300.0  # without a sign of life: forgotten, as LMCache's controller does
LMCACHE_BEATS_LATE: Final = 3.0  # of a worker's own interval, and then it is silent
LMCACHE_BEAT_LATE_MIN_S: Final = 5.0  # however short that is
LMCACHE_TURN_MESSAGES: Final = 256  # pushed, before requests are looked at again
LMCACHE_TURN_S: Final = 0.005  # the same in time: what an answer may wait
LMCACHE_TURN_REQUESTS: Final = 256  # answered before what was pushed is looked at
LMCACHE_LOOK_S: Final = 0.1  # between two looks at links, silences and time-outs
LMCACHE_HANDSHAKE_MS: Final = 5_000  # of ZMTP, for whoever connects
LMCACHE_BATCH_KEYS: Final = 4096  # of one batch in the log: 32 KiB of a record
LMCACHE_WAITING_BYTES_MAX: Final = 64 * MIB  # of records on their way to the log's loop
LMCACHE_NOTE_S: Final = 1.0  # between two notes of who is there, for the next run
LMCACHE_STOP_S: Final = 2.0  # for the sockets' thread to end, or to answer
# Commands: what is above a bound is `refused`; reprise_lmcache_commands_refused_total by reason.
LMCACHE_COMMANDS_MAX: Final = 512  # that a bridge has under way: reason="too_many_commands"
LMCACHE_COMMAND_TOKENS_MAX: Final = 8_388_608  # of all of them: the same reason
LMCACHE_WORKER_WAITING_MAX: Final = 64  # for one worker's turn: reason="worker_busy"
LMCACHE_LINKS_USED_MAX: Final = 1024  # workers that are being asked: reason="too_many_asked"
LMCACHE_LINKS_KEPT_MAX: Final = 128  # to workers, between commands; the oldest is closed
LMCACHE_REPLY_BYTES_MAX: Final = 64 * KIB  # of a worker's answer; libzmq drops the link
LMCACHE_COMMAND_LATE_S: Final = COMMAND_ANSWER_S  # since it was issued: reason="late"
LMCACHE_COMMANDS_POLL_MS: Final = 500  # of the topic of commands without one
LMCACHE_TOPIC_BATCHES_MAX: Final = 4096  # of one value of LMCache's topic: reason="malformed"
LMCACHE_TOPIC_HASH_CHARS: Final = 256  # of a chunk's hash in it: reason="malformed_batch"
LMCACHE_TOPIC_PLACES_MAX: Final = 16  # backends and groups of one chunk that are told apart
LMCACHE_TOPIC_VALUES: Final = 64  # taken of the topic before others have their turn
LMCACHE_TOPIC_POLL_MS: Final = 200  # for more of them to come
LMCACHE_TOPIC_END_S: Final = 1.0  # so often it is asked where the topic ends
LMCACHE_TOPIC_RETRY_S: Final = 5.0  # at most, between two attempts to reach its brokers
LMCACHE_SERVER_SILENT_S: Final = 60.0  # without a batch, a server is not known to be there
LMCACHE_STATE_BYTES_MAX: Final = 64 * MIB  # of the file that names the workers of the last run

# ====================================================================================== streams

# log: the embedded one.
LOG_SYNC_S: Final = 0.05  # what a power cut may cost
LOG_SEGMENT_BYTES: Final = 64 * MIB  # the unit of retention
LOG_RETENTION_BYTES: Final = 8 * GIB
LOG_RETENTION_S: Final = 7 * 24 * 3600.0

# log: `reprise tail`, and reading past what is corrupt.
TAIL_REACH_S: Final = 10.0  # without an answer from Kafka for this long, it gives up
TAIL_POLL_S: Final = 0.25  # between two looks for new records: the age of what it prints
TAIL_RECORDS_MAX: Final = 500  # read at once and printed, before the next ones
TAIL_KEY_NESTING_MAX: Final = 8  # of extra keys shown as values; deeper ones are shown as hex
OTHER_LOG_RECORDS_MAX: Final = 1024  # looked at to tell whether a log is still the same
CORRUPT_READ_RECORDS_MAX: Final = 4096  # read one by one past a corrupt batch, and held in memory

# table: flushes and rows.
TABLE_FLUSH_S: Final = 0.25
TABLE_SYNC_S: Final = 5.0  # of the embedded table; its log may drop only what is synced there
TABLE_FLUSH_CHANGES_MAX: Final = 131_072  # and no longer than it takes to write them
STORE_GENERATION_MIN_BYTES: Final = 1 * MIB  # deltas of a context before it is rewritten: its own
TOPIC_GENERATION_MIN_BYTES: Final = 64 * KIB  # the same in a topic, which many small contexts share
STORE_GENERATION_DELTAS: Final = 2.0  # times the live state, of deltas before it is rewritten
TOPIC_GENERATION_DELTAS: Final = (
    1.25  # in a topic; above 1: a context that only grows is left alone
)
DUMP_CHUNK_ENTRIES_MAX: Final = 32_768
MAINTAINED_ENTRIES: Final = 4096  # released or rewritten at a time where nothing waits: 1 ms
RELEASED_AT_ONCE: Final = 2048  # of them, before the time is looked at
MAINTAINED_S: Final = 0.002  # after which no more is released
REWRITE_AFTER_BYTES: Final = 64 * KIB  # folded, then so many entries are rewritten beside it
FLUSH_STEP_BYTES: Final = 256 * KIB  # of rows, written between two records: some 2 ms
ROWS_AT_ONCE_MAX: Final = 128  # the same where they are small: some 2 ms
STORE_BATCH_BYTES_MAX: Final = 8 * MIB  # of rows that do not count yet, in one WriteBatch: memory
ROW_LOAD_STEP_BYTES: Final = 4 * MIB  # loaded before the reader's loop has its turn
# Rows of a partition's table that count together: keys and values, before compression.
TABLE_BATCH_BYTES_MAX: Final = KAFKA_MESSAGE_MAX_BYTES - 128 * KIB  # the codec may add a little
TABLE_TRANSACTION_BYTES_MAX: Final = 1 * GIB  # TableTooLargeError; within TABLE_TRANSACTION_MS
# A table that was built from a log without its beginning: publishers seen unregistered since, which
# are proven empty when they register again. 150 bytes each, in one row. Whoever is forgotten is
# degraded at its registration: reprise_fold_records{outcome="unregistered_forgotten"}.
UNREGISTERED_REMEMBERED_MAX: Final = 256
BRIDGES_REMEMBERED_MAX: Final = 32  # by their last heartbeat; publishers of others are unconfirmed
# Memory segments of all hosts. What is above goes, first those that are gone, then those not heard
# of for the longest: reprise_fold_records{outcome="segments_forgotten"}.
MEMORY_SEGMENTS_MAX: Final = 1024  # 300 bytes each, in a row of its own
MEMORY_GONE_S: Final = 3600.0  # one that is gone is remembered for so long, by the records' time
MEMORY_FORGOTTEN_S: Final = 24 * 3600.0  # one that nobody has read for so long, too

# ledger: what is remembered of each publisher's losses and repairs, in one row of 10 KB at most.
# What is older stays in the totals, and `forgotten` of /gaps counts it. Each kind of interval has a
# share of its own, so that many repairs push no loss out.
LEDGER_INCARNATIONS_MAX: Final = 8
LEDGER_INTERVALS_MAX: Final = 64  # of one kind, in all incarnations of a publisher
LEDGER_BATCHES_MAX: Final = 2**64 - 1  # of one cause; what a row can have
LEDGER_CAUSES_MAX: Final = 32  # of one kind; batches of any further cause count as `other`
UNUSABLE_RUNS_MAX: Final = 1024  # named in one record; a further one begins the next record

# table: its topic.
TABLE_RETAKE_S: Final = 6 * 3600.0  # an owner takes its partition again this often: a new producer
TABLE_PRODUCER_STOP_S: Final = 15.0  # for a producer of rows to send what it has, and to close
TABLE_COPY_AGE_MAX_S: Final = 6 * 3600.0  # an older copy may miss tombstones: all rows are reread

# table: what was skipped. All of it is counted: reprise_fold_records and reprise_worker_records for
# records, reprise_table_rows for rows, by outcome.
SKIPPED_RECORDS_NAMED_MAX: Final = 100  # logged in each window, of each reason
SKIPPED_RECORDS_WINDOW_S: Final = 60.0
SKIPPED_ROWS_NAMED_MAX: Final = 100  # waiting to be logged; the latest ones are kept

# kernel.
HOLD_COUNT_MAX: Final = 65_535  # kernel counter `hold_count_overflow`
GROUP_MAX: Final = 63  # cache groups above it are not remembered as skipped, nor more as prefixes
POOL_NAMES_TRIED: Final = 100  # by partition, for the members of a pool: each of them gets one
LEFT_OUT_BLOCKS_MAX: Final = (
    65_536  # of one publisher, that the index cannot use, some 60 bytes each
)
LEFT_OUT_REASON_BYTES_MAX: Final = 64  # of its name; what is longer is `other`
LEFT_OUT_REASONS_MAX: Final = 16  # of one publisher; beyond either: `left_out_overflow`
COPIES_KEPT_SHARE: Final = 64  # of them, one in so many may be of blocks that answers count all
# the same, since a copy may be left (`copies_unknown`); of further ones none is counted
WAITING_MAX: Final = 2**20
"""Objects of one pool, by adapter, that may wait for an engine to announce their blocks: some 70
bytes each; reprise_kernel_blocks_total{outcome="waiting_overflow"}.
"""

# worker: between its consumer and its fold, in messages, since Faust counts no bytes. Above them it
# fetches no more. It has a poll, a buffer and a batch in memory at once: some 40 MiB while it
# catches up with busy engines, and 3 GiB if each record were as large as one may be. Fetched and
# not polled there are 32 MiB more, compressed.
WORKER_POLL_RECORDS_MAX: Final = 256
WORKER_MESSAGE_BYTES: Final = 256 * KIB  # of records that are one message, or a single record
WORKER_BUFFER_MESSAGES_MAX: Final = 64
WORKER_BATCH_MESSAGES_MAX: Final = 64  # folded and written at once

# worker: the Faust app, its end and its restart.
WORKER_FLUSH_S: Final = 0.02  # batches begin no more often: latency, for larger flushes
WORKER_GATHER_MIN_S: Final = 0.005  # records of a batch come one by one, some 15,000 in a second
WORKER_SESSION_S: Final = 10.0  # after it others take over its partitions
WORKER_DAMAGE_PAUSE_S: Final = 0.05  # between two fetches, while damage is read past
WORKER_POLL_S: Final = 0.01  # between two looks whether Faust knows the agent's topic, at the start
WORKER_COMMIT_S: Final = 2.0  # how often the offset is committed, which only tells lag
WORKER_RETRY_S: Final = 0.5  # the pause after an app failed; doubled with each further failure
WORKER_RETRY_MAX_S: Final = 5.0  # up to this
WORKER_SETTLED_S: Final = 30.0  # an app that ran for this long resets the pause
WORKER_STOP_S: Final = SHUTDOWN_S - 2.0  # for the last flush and commit, and to leave the group
ROUTING_FOLD_S: Final = 0.2  # routing records are gathered before they are folded: nobody waits
ROUTING_LEAVE_S: Final = 2.0  # for the last checkpoint, before the partition is given away
ROUTING_REFUSED_S: Final = 30.0  # after which topics of routing are tried again that cannot be used
WORKER_STALL_CHECK_S: Final = 10.0  # how often it is looked whether records are missing
WORKER_STALL_S: Final = 60.0  # a table that stands still for so long, with more in its log
WORKER_APP_STOP_S: Final = 30.0  # for Faust's services to end after a failure
WORKER_CLEAN_S: Final = 5.0  # for the tasks that a crash of Faust left; then the process ends

# history: what `as_of` is answered from.
HISTORY_BATCH_BYTES: Final = 512 * KIB  # of rows, written at once
HISTORY_FLUSH_S: Final = 1.0  # how often a flush is marked: what lies behind is folded from the log
HISTORY_RETRY_S: Final = 10.0  # after it could not be written: reprise_history_recording
HISTORY_BYTES: Final = 4 * GIB  # the oldest goes first
HISTORY_TAIL_BYTES_MAX: Final = GIB  # of records for one answer: reason="as_of_takes_too_long"
HISTORY_RECORDS_MAX: Final = 1_000_000  # folded to find the one that changed a block
HISTORY_ANSWER_S: Final = 30.0  # for one answer: the same
HISTORY_ANSWERS_MAX: Final = 8  # that wait for their turn: reason="as_of_busy"
HISTORY_RECORDS_PER_TURN_MAX: Final = 4096  # of the events topic, folded at once
HISTORY_PAUSED_S: Final = 45.0  # stood still for so long, it opens its tables anew
HISTORY_RETAIN_S: Final = 60.0  # how often what is old is dropped, in the distributed form
LOG_READ_RECORDS_MAX: Final = 4096  # of the events topic, given to one that reads it as a log
EXPLAINED_CHANGES_MAX: Final = 16  # of one block; each takes a fold of one flush
HISTORY_FOLDS_KEPT: Final = 2  # of the last answers: each may take the memory of its scope

# logs beside that of the events: of answers, and of routing.
WINDOW_LOG_S: Final = 0.05  # of what comes, written at once; what a kill may cost
WINDOW_LOG_SYNC_S: Final = 1.0  # what a power cut may cost
WINDOW_LEAVE_S: Final = 2.0  # for Kafka to take what is left when a replica stops
WINDOW_LOG_RETRY_S: Final = 10.0  # after it could not be written; what comes meanwhile is dropped
# routing: what is learnt of outcomes. What is above a bound goes, the class first that had no
# outcome for the longest: counter `classes_forgotten` of the estimates; `outcomes_unusable`.
ESTIMATED_CLASSES_MAX: Final = 1024  # of models and instances; some 4 KiB each, in one row
ESTIMATED_MODELS_MAX: Final = 1024  # of which outputs are remembered, 100 bytes each
ESTIMATED_TENANTS_MAX: Final = 1024  # whose speeds of paths are remembered, 2 KiB each
ESTIMATED_OUTCOMES_REMEMBERED: Final = 500  # of a class, by which errors are told: 1 KiB
ESTIMATED_OUTCOME_S_MAX: Final = 24 * 3600.0  # nothing takes longer; one that says so is not used

# routing: what is answered.
PLANNED_CHUNKS_MAX: Final = 1024  # of one prompt; beyond that its chunks grow
REFUSED_RETRY_S_MAX: Final = 60  # after which a client that was refused is told to come again

# audit: the log of answers.
AUDIT_QUEUE_BYTES: Final = 16 * MIB  # of answers not written yet: reprise_audit_dropped_total
AUDIT_RECORD_BYTES: Final = 256 * KIB  # of answers in one record, and the last of them
AUDIT_BYTES: Final = 4 * GIB  # the oldest goes first; an answer of 4,096 tokens has 2 KiB of hashes
AUDIT_FILES_BYTES: Final = 5 * GIB  # on the disk: what was dropped goes a file at a time
AUDIT_SEEDS_MAX: Final = 8  # of the prefix hash, each of which costs a fold of the log: unreadable
AUDIT_SHOWN_MAX: Final = 100  # answers that disagree and are named; all are counted

# routing: what is under way where. It is a fold, so these bounds are the same for every reader.
BOOKINGS_MAX: Final = 65_536  # some 300 bytes each: reprise_routing_dropped_total{reason="no_room"}
BOOKINGS_BYTES_MAX: Final = 64 * MIB  # of them, with their names: likewise
BOOKING_EXPIRY_S: Final = 300.0  # without a report: reprise_routing_expired_total
BOOKING_ESTIMATES: Final = 10.0  # or so many times what it was expected to take, if that is longer
BOOKING_EXPIRY_MAX_S: Final = (
    4 * 3600.0
)  # and no longer: who never reports holds no place for a day
EXPIRIES_KEPT: Final = 1024  # of bookings that have ended, beside as many as are open: memory
BOOKING_LIFE_S: Final = 1.0  # a report that only says again that it lives counts this often at most
ROUTING_BYTES: Final = 2 * GIB  # of the embedded routing log; the oldest goes first
ROUTING_CHECKPOINT_S: Final = (
    10.0  # how often what was folded of it is kept; the rest is read again
)
ROUTING_PIECE_BYTES: Final = (
    64 * KIB
)  # of a checkpoint, encoded at once: 0.2 ms without other threads
ROUTING_CHUNK_BYTES: Final = 512 * KIB  # of a checkpoint in one message
ROUTING_CHUNKS_MAX: Final = 1024  # of one checkpoint; a larger state is not kept, which is said
RECORD_STEP_S: Final = 60.0  # that one record advances the clock of a fold: others' may be wrong
EARLY_OUTCOMES_MAX: Final = 4096  # decisions that are reported of before the log has them
EARLY_OUTCOME_S: Final = 60.0  # for such a decision to come: reason="unknown_decision"
ROUTING_RUNS_MAX: Final = 1024  # services whose last decision is remembered; some 100 bytes each
FAILING_RUN: Final = 3  # requests that fail in a row, at least, before an engine is left out
FAILING_CHANCE: Final = 0.001  # or as many as are as seldom, where they fail at the others, too
FAILING_ENDS_KEPT: Final = 64  # of a model's requests, by which it is told how often they fail
FAILING_BACKOFF_FIRST_S: Final = 1.0  # until it is tried again; doubled with each trial that fails
FAILING_BACKOFF_MAX_S: Final = 30.0
FAILING_DOUBLINGS_MAX: Final = 16  # so that no power of two overflows
REQUEST_STAY_S: Final = 2.0  # that others are decoded for, where no outcome says so yet
FAILING_QUIET_S: Final = 60.0  # without a failure, and it is as others are
FAILING_LOOK_S: Final = 1.0  # how often it is looked who is failing
FAILING_NAMED_MAX: Final = 8  # of them, in a condition
LOAD_TARGETS_MAX: Final = 4 * PUBLISHERS_MAX  # with a load sample; the oldest goes: of="samples"
LOAD_MODELS_MAX: Final = 1024  # whose requests' work is known; the least recent goes, 200 bytes
LOAD_SAMPLE_S: Final = 60.0  # an older sample says nothing any more
LOAD_FUTURE_S: Final = 5.0  # a clock may run ahead by so much: reason="in_the_future"
CANDIDATES_MAX: Final = 4096  # of one request: status="400"
CANDIDATES_BYTES_MAX: Final = 2 * MIB  # of the same, before they are objects: status="413"
QUEUE_WAIT_MAX_S: Final = 30.0  # a candidate that would begin later is left out: `queue_full`
QUEUE_WAITING_MAX: Final = 1024  # or one with more requests that wait
KV_USAGE_MAX: Final = 0.95  # of a candidate's KV cache; above it is left out: `memory`
RETRY_AFTER_MAX_S: Final = 60  # what a refused client is told at the most
# routing: what decisions and their outcomes show. It is a fold, so these bounds are the same for
# every reader. What is dropped: reprise_routing_forgotten_total, of what is given.
PROMISES_OPEN_MAX: Final = 32_768  # of which more may be told; 2 KiB each: of="promises"
PROMISES_OPEN_BYTES_MAX: Final = 128 * MIB  # of them, with their names and prefixes: likewise
PROMISE_OPEN_S: Final = 900.0  # for that to come: such a decision counts as `unreported`
PROMISE_ROWS_MAX: Final = 16_384  # of sums, 1 KiB each: of="promise_rows", "promises_crowded"
DECISION_MARKS_MAX: Final = 64  # prefixes of one decision; a prompt has no use for more
PROMISE_TTFT_S_MAX: Final = 100_000.0  # a longer time counts as this: sums must fit 64 bits
HOT_COUNTERS_MAX: Final = 1024  # prefixes of one scope that are counted, 600 bytes each
HOT_SCOPES_MAX: Final = 64  # the one that is asked for least goes: of="hot_scopes"
HOT_HALF_LIFE_S: Final = 300.0  # after it a request counts half
HOT_RATE_S: Final = 60.0  # the least time that a rate is of: a few prompts at once make none
PREDICTED_MARKS_MAX: Final = 262_144  # 400 bytes each; the oldest go: of="predicted"
PREDICTED_BYTES_MAX: Final = 192 * MIB  # of them, with their names: likewise
PREDICTED_S: Final = 2.0  # until the engine's events should have come; longer where it has to wait
APPROXIMATE_S: Final = 600.0  # the same where it publishes none, and its capacity is not known
SESSIONS_MAX: Final = 65_536  # 300 bytes each; the least recent goes: of="sessions"
SESSIONS_BYTES_MAX: Final = 64 * MIB  # of them, with their names: likewise
ADVICE_PREFIXES_MAX: Final = 256  # hot ones of one scope that are looked at, the hottest first
AFFINITY_S: Final = 900.0  # without a request, after which a session is forgotten
# acting on advice: what it may cost engines; what that holds back is counted by
# reprise_acting_suppressed_total with the reason that is given.
ACT_PERIOD_S: Final = 10.0  # between two looks at what is advised
ACT_PERIOD_MIN_S: Final = 0.5  # the least that may be set
ACT_PERIOD_MAX_S: Final = 300.0  # the most: the horizon of an advice
ACT_COMMANDS_MAX: Final = 4  # commands of advice that have not ended: reason="at_once"
ACT_RATE_S: Final = 60.0  # within which are begun at most
ACT_RATE_MAX: Final = 24  # commands of advice: reason="rate"
ACT_HORIZON_S: Final = 300.0  # the same is not done again within it: reason="repeated"
ACT_BACKOFF_FIRST_S: Final = 60.0  # after a failure at an instance, and twice that after the next:
ACT_BACKOFF_MAX_S: Final = 960.0  # up to this: reason="backing_off"
ACT_REMEMBERED_S: Final = 1800.0  # how far back what was done counts
ACT_UNKNOWN_S: Final = 30.0  # without an end, a command of advice counts as failed

# commands: their history. What is older is forgotten: reprise_commands_forgotten_total.
COMMANDS_KEPT_MAX: Final = 10_000  # some 1 KiB each
COMMANDS_EARLY_MAX: Final = 4096  # results whose command was not read yet: the oldest are dropped

# ====================================================================================== query_api

# commands: status="503", reason="too_many_commands".
COMMANDS_WAITING_MAX: Final = 256  # issued here, and not ended yet
COMMANDS_WAITING_TOKENS_MAX: Final = 8_388_608  # of all of them
COMMAND_REQUEST_S: Final = 5.9  # that a request waits for its command's end: status="504"
COMMAND_WRITE_S: Final = 4.0  # that it waits for the log to have it: status="503"
COMMANDS_FOLLOWED_S: Final = 24 * 3600.0  # how far back a replica that starts reads them
COMMANDS_POLL_MS: Final = 250  # of their topics without a record
COMMANDS_CATCH_UP_S: Final = 2.0  # that a look at a command waits for them to be read

# acting on advice: the tokens that a command needs, of prompts that begin with the prefix.
ACT_PREFIXES_MAX: Final = 64  # whose tokens are waited for or kept: reason="no_tokens"
ACT_TOKENS_MAX: Final = 4_194_304  # of all of them, 4 bytes each: the same reason
COMMANDS_SHOWN: Final = 100  # of the last commands in an answer, where no limit is asked for
COMMANDS_LISTED_MAX: Final = 1000  # the most that may be asked for
ACTS_SHOWN_MAX: Final = 256  # of the last ones, in an answer

# http: `POST` bodies. 1M tokens are about 7 MB of JSON.
BODY_BYTES_MAX: Final = 32 * MIB  # reprise_http_requests_total{status="413"}
BODY_FIELDS_MAX: Final = 1024  # of a map in msgpack; each costs 1 us of the loop: status="400"
BODY_COLONS_MAX: Final = 32_768  # the same in JSON, where colons of names count, too
BODY_DRAIN_BYTES_MAX: Final = 2 * BODY_BYTES_MAX  # of a larger one, which is read for its 413
LISTENER_CONNECTIONS_MIN: Final = 256  # with fewer, where few files may be opened, there is none
LISTENER_THREADS_MAX: Final = 4  # that answer plain queries; fewer where there are fewer cores
PLAIN_BODY_BYTES_MAX: Final = 2 * MIB  # of a plain query in part; the app has larger ones
PLAIN_BODIES_BYTES_MAX: Final = 64 * MIB  # of all of them; the app has what is beyond
PLAIN_REQUEST_S: Final = 1.0  # for a plain query to come; a slower one goes to the app
PLAIN_STATE_S: Final = 0.25  # after this it is asked again how far answers can be trusted
BODY_READ_S: Final = 30.0  # a request whose body takes longer is ended: status="408"
BODY_PIECE_BYTES: Final = 256 * KIB  # of an unfinished body: so much more, or its end, is to come
BODY_PIECE_S: Final = 5.0  # within this time, or the request is ended: status="408"
# Of all bodies that have come in part, by reprise_http_bodies_refused_total{reason="no_room"} and
# status="503". What has come whole at once is read as it comes. A body of up to BODY_SMALL_BYTES is
# taken as long as there is any room, a larger one up to BODIES_LARGE_BYTES_MAX.
BODIES_BYTES_MAX: Final = 256 * MIB
BODIES_LARGE_BYTES_MAX: Final = 192 * MIB
BODY_SMALL_BYTES: Final = 64 * KIB
BODY_RETRY_AFTER_S: Final = 1  # what a client is told whose body had no room
QUERY_TOKENS_MAX: Final = 4 * MIB  # status="413"
AS_OF_CHARS_MAX: Final = 32_768  # of a position: some 20 for each partition
URL_PARAMETERS_MAX: Final = 16  # of a query: status="400"
QUERY_COUNTS_MAX: Final = 1024  # queries that are not in the histograms yet: memory

# routing: decisions.
TARGETS_KEPT_S: Final = 0.25  # after this it is looked again who is registered, and how it is
ROSTERS_KEPT: Final = 256  # lists of candidates that requests have named, for as long
ROUTE_TOKENS_MAX: Final = 2**31 - 1  # of one prompt or output, by a client: reason="out_of_range"
ROUTE_WEIGHT_MAX: Final = 1e6  # of a term of a policy: sums of them stay finite: status="400"
QUEUED_SUMMED_MAX: Final = 1024  # prompts of one target that a report looks at: its time
LOAD_SUM_MAX: Final = 2**40  # of what is booked at one target; what is above it, is not told apart
ROUTE_REPEAT_S: Final = 60.0  # a request id that comes again within this gets the same answer
ROUTE_ANSWERS_MAX: Final = 16_384  # kept for that, about 1 KiB each; the oldest goes:
# reprise_routing_forgotten_total{of="answers"}
ROUTE_CANDIDATES_KEPT: Final = 65_536  # with them, some 500 bytes each; likewise
ROUTE_ANSWERS_BYTES_MAX: Final = 64 * MIB  # of them, with all names: likewise
SELECTIONS_MAX: Final = (
    4096  # of the select service, not booked yet; forgotten: 404, of="selections"
)
SELECTIONS_BYTES_MAX: Final = 32 * MIB  # of their prefix hashes; likewise
PREFIXES_SHOWN: Final = 100  # hot ones of each scope, where a request does not say
HOT_PREFIXES_SHOWN_MAX: Final = 1024  # of each scope, whatever a request says
RECENT_DECISIONS_MAX: Final = 200  # shown by `GET /decisions`; the oldest go
RECENT_CANDIDATES_MAX: Final = 65_536  # of these decisions, some 300 bytes each; likewise
HEATMAP_ROWS_MAX: Final = 1_024  # instances of it; further ones are counted: `left_out`
EVENT_STREAMS_OF_KEY_MAX: Final = 8  # of them with one key that is for some tenants
EVENT_STREAMS_MAX: Final = 32  # clients of `GET /events`: reason="too_many_streams"
EVENTS_WAITING_MAX: Final = 64  # for one client that reads slowly; the oldest go: `dropped`
EVENTS_PERIOD_S: Final = 1.0  # between two looks; longer where a look takes more of a core than:
EVENTS_CPU_SHARE: Final = 0.05
EVENTS_COMMENT_S: Final = 15.0  # without an event, before a comment shows that it is alive
EVENTS_STREAM_S: Final = 600.0  # of one stream; then the client asks again, and shows its key
EVENTS_DECISIONS_MAX: Final = 10  # in one period; further ones are counted: `skipped`
HISTORY_PERIOD_S: Final = 10.0  # between two points of the live page's charts
HISTORY_POINTS_MAX: Final = 360  # kept, some 300 bytes each: an hour; the oldest go
HISTORY_HIT_RATES_S: Final = 60.5  # hit rates of a point are of the last minute, and a little
ROUTE_EXPLAINED_MAX: Final = 256  # candidates of an answer that is given again with all of them
ROUTE_POLICIES_MAX: Final = 256  # with their parameters, kept as they were read
ROUTING_QUEUE_ITEMS: Final = 65_536  # decisions, reports and samples that are not written yet:
# reprise_routing_dropped_total{reason="queue_full"}
ROUTING_QUEUE_BYTES_MAX: Final = 128 * MIB  # of these, with all their candidates: likewise
ROUTING_RECORD_BYTES: Final = 512 * KIB  # of a record, which has one decision at the least
FEEDBACK_MAX: Final = 1024  # reports or samples of one request: status="400"
FEEDBACK_BYTES_MAX: Final = 2 * MIB  # of these, before they are objects: status="413"
REFUSED_BYTES_SHOWN_MAX: Final = 256 * KIB  # of a larger body a refusal does not say what came
# grpc: what routers ask, and what they may cost: reprise_grpc_refused_total with the reason that is
# given. grpc itself ends a connection beyond its number, and a call whose message is too large.
GRPC_MESSAGE_BYTES_MAX: Final = 8 * MIB  # 1M hashes; SGLang's router sends no more
GRPC_TEXT_BYTES_MAX: Final = 1 * MIB  # of hashes as text, each an object: reason="too_large"
GRPC_HASHES_MAX: Final = 32_768  # of a prompt, the first: reprise_grpc_hashes_ignored_total
GRPC_NAME_CHARS_MAX: Final = NAME_BYTES_MAX  # of a holder in an update: reason="malformed"
GRPC_STREAMS_MAX: Final = 256  # that are open: reason="too_many_streams"
GRPC_CONNECTIONS_MAX: Final = 256
GRPC_CONNECTION_CALLS_MAX: Final = 64  # at once, of one connection; more wait with the client
GRPC_CALLS_MAX: Final = 320  # at once, of all connections, streams too: with a message each, memory
GRPC_WRITE_S: Final = 10.0  # an answer of a stream that nobody reads: reason="answer_not_read"
GRPC_KEEPALIVE_S: Final = 60.0  # without a message; a peer that answers no ping is gone
GRPC_IDLE_S: Final = 600.0  # a connection without a call is closed
GRPC_GRACE_S: Final = 1.0  # for the calls under way, at the end
GRPC_START_S: Final = 10.0  # for the thread to bind, and to end
GRPC_URLS_S: Final = 1.0  # how old the routers' names of engines may be

# replica: `stale` where the table is behind its log by more than either, or cannot reach it.
STALE_RECORDS: Final = 100_000  # table rows and source records together
STALE_S: Final = 5.0
LAG_CHECK_S: Final = 0.5  # how often the ends of the logs are asked for
LAG_CHECK_WAIT_S: Final = 3.0  # without an answer for this long, Kafka is away
HEARTBEATS_COMPARED: Final = 64  # of a bridge, to find how its clock differs: a minute of them
LAG_SAMPLES_MAX: Final = 1024  # ends of a partition that are not reached yet; the oldest is dropped

# replica: its reader of the topics, and what it writes.
REPLICA_FETCH_BYTES_MAX: Final = 16 * MIB  # read from Kafka and not applied yet
REPLICA_ROWS_PER_TURN_MAX: Final = 512
ROUTING_RECORDS_PER_TURN_MAX: Final = 64  # folded before others have their turn
ROUTING_READ_WAIT_S: Final = 0.02  # until it is looked again whether a long question is answered
REPLICA_POLL_MS: Final = 250  # of one fetch without rows: how late it sees compacted offsets
REPLICA_RETRY_S: Final = 1.0  # the pause after reading failed, by which answers get older
REPLICA_STALL_S: Final = 30.0  # behind for this long without one row: the consumer is replaced
REPLICA_AWAY_S: Final = 12 * 3600.0  # after so long a deletion may be gone: the table is reread
REGISTRY_WRITE_S: Final = 10.0  # a registration waits this long for Kafka: status="503"

# ====================================================================================== replay

# traces: what a line may hold, and a file. What is above ends the reading with the line's number.
TRACE_LINE_BYTES_MAX: Final = 16 * MIB
TRACE_REQUESTS_MAX: Final = 16_000_000  # some 200 bytes each, and 30 for each block
TRACE_BLOCKS_MAX: Final = 1_048_576  # of one prompt
TRACE_TOKENS_MAX: Final = 2**31 - 1  # of one prompt, and of one answer
TRACE_MS_MAX: Final = 1e13  # three hundred years
TRACE_WRITE_BYTES: Final = 65_536  # of lines between two writes
TRACE_LOOK_LINES: Final = 1024  # between two steps of the progress bar

# capture: the file. A block is what an interruption may cost, and what is compressed at once.
CAPTURE_BLOCK_BYTES: Final = 1 * MIB  # of entries, before it is compressed
CAPTURE_BLOCK_ENTRIES_MAX: Final = 16_384
CAPTURE_WAITING_BYTES_MAX: Final = 64 * MIB  # of all lanes' blocks that are not full yet: memory
CAPTURE_ENTRY_BYTES_MAX: Final = 64 * MIB  # above every message and every record
CAPTURE_BLOCK_RAW_BYTES_MAX: Final = 80 * MIB  # of a block that is read: memory
CAPTURE_MERGED_BYTES_MAX: Final = 1 * GIB  # of blocks that are decoded at once: memory
CAPTURE_HEADER_BYTES_MAX: Final = 16 * MIB
CAPTURE_LANES_MAX: Final = 65_536  # partitions, or publishers
CAPTURE_TOLD_RECORDS: Final = 256  # between two looks whether it is to end
CAPTURE_LOOK_S: Final = 0.25  # the same in time, while nothing comes
CAPTURE_STALLED_S: Final = 60.0  # without a record of Kafka, though there are more: it ends
CAPTURE_TAKEN_MAX: Final = 1024  # messages between two looks at everything else
CAPTURE_FLUSH_S: Final = 1.0  # of live frames: what a kill may cost

# replay: what captures are folded into, or sent out as.
REPLAY_WAIT_S: Final = 0.25  # between two looks whether a paced replay is to end
PUBLISHED_BUFFER_BATCHES: Final = 10_000  # that can be replayed, as vLLM's `buffer_steps`
PUBLISHED_BUFFER_BYTES: Final = 256 * MIB  # of them
PUBLISHED_QUEUE_MESSAGES: Final = 10_000  # that a subscriber has not taken; then it is waited for
PUBLISHED_LINGER_MS: Final = 2_000  # for what is queued to leave, at the end
PUBLISHED_REPLIES_MAX: Final = 64  # replay requests that are answered before what is live goes on
LOAD_RECORDS: Final = 256  # appended to an embedded log in one write
REPLAY_SPEED_MAX: Final = 1e6  # of --speed; faster is as fast as it goes
REPLAYED_FAULTS_NAMED_MAX: Final = 5  # records that were skipped and are printed; all are counted

# analysis and exports: what one pass over a capture or a trace holds in memory.
CHAINED_BLOCKS_MAX: Final = 2_097_152  # engine hashes that are known; the oldest go: `forgotten`
CURVE_BLOCKS_MAX: Final = 2_097_152  # blocks of all curves; above, half of them are sampled
CURVE_GROUPS_MAX: Final = 1024  # tenants and models of one command; further ones: `other_groups`
ORDER_SLOTS_MIN: Final = 1024  # of the order of uses; renumbered when all are taken
CURVE_POINTS: Final = 121  # of a curve in a file, at most; sizes in equal ratios
CURVE_SIZES_MAX: Final = 1024  # that one command names
REGRET_BLOCKS_MAX: Final = 2_097_152  # removed and waited for; the oldest go: `forgotten`
REGRET_WINDOWS_MAX: Final = 16
EXPORT_ROWS: Final = 65_536  # of a row group, and of what is held
EXPORT_TOKEN_BYTES: Final = 32 * MIB  # the same in tokens
EXPORT_JOIN_S: Final = 10.0  # --join: what goes on so soon is of the same request
EXPORT_REQUESTS_OPEN_MAX: Final = 65_536  # that wait for their end, or for their turn

# ================================================================================== simulation

# traffic: requests of an engine that exists in memory only, some 30 KB each.
SHADOW_WAITING_MAX: Final = 256

# whatif: what one run may be.
WHATIF_NODES_MAX: Final = 4096
WHATIF_RUNS_MAX: Final = 10_000  # of one command
WHATIF_CHANGES_MAX: Final = 65_536  # of the index that wait to be dropped: nobody writes them

# ====================================================================================== reprise

# cli: what options take.
OPTION_GIB_MAX: Final = 2.0**33  # a file system has no more bytes than 64 bits can count
OPTION_HOURS_MAX: Final = 24.0 * 365 * 10_000
GATHER_MS_MAX: Final = 10_000  # --window-ms and --flush-ms: the latency that each adds
PROGRESS_LINE_S: Final = 2.0  # between two lines of progress on a terminal without a bar
PROGRESS_ELSEWHERE_S: Final = 10.0  # the same where there is no terminal
SLOTS_MAX: Final = 256  # --slots: files that are tried as a role starts
SESSION_S_MAX: Final = 300.0  # a dead role's publishers or partitions wait as long as its session
SETTING_SHOWN_CHARS_MAX: Final = 40  # of a wrong environment variable, in the error
VALUE_SHOWN_CHARS_MAX: Final = 80  # of a wrong value in a request, in the refusal
ELEMENTS_PASSED_MAX: Final = 1024  # of an array, to find the wrong one that the refusal shows

# leaving: a replica that got SIGTERM, with --leave-to.
LEAVE_S: Final = 30.0  # it answers no longer than that; stop_grace_period is more
LEAVE_UNSEEN_S: Final = 8.0  # the same where no other one is even being started
LEAVE_SETTLE_S: Final = 2.0  # until those who ask know of the other one
LEAVE_LOOK_S: Final = 0.3  # between two looks

# interpreter: its threads and its garbage.
SWITCH_INTERVAL_S: Final = 0.001  # a thread that waits for the interpreter gets it after that
GC_AFTER_OBJECTS: Final = 10_000  # new ones; most are gone by then without a collection
GC_FREEZE_S: Final = 5.0  # after the start; what there is then stays

# memory: freed by a spike, and kept by the C library.
MEMORY_LOOK_S: Final = 5.0
MEMORY_GROWTH_BYTES: Final = 32 * MIB  # of a process, before it is asked to give back
MEMORY_TRIMS: Final = 12  # looks at which it is asked then
MEMORY_TRIM_LOOKS: Final = 12  # after so many looks without, one that stays grown is asked again

# embedded.
FOLD_TURN_S: Final = 0.002  # what one turn may take to fold; as much again may wait, appended
FOLD_TURN_BYTES_MIN: Final = 4 * KIB  # of a turn, however long the last ones took
FOLD_TURN_BYTES_MAX: Final = 128 * KIB  # of one, however fast they were: the next may take longer
FOLD_FLUSH_CONTEXTS_MAX: Final = 512  # with changes: a flush is due then; some 8 ms
EMBEDDED_COMMAND_S: Final = 10.0  # a registration waits this long for the log: status="503"
LOG_RETENTION_CHECK_S: Final = 10.0  # how often old segments are dropped
COMMANDS_LOG_BYTES: Final = 64 * MIB  # of commands and results on the disk; the oldest go first
COMMANDS_SEGMENT_BYTES: Final = 1 * MIB  # of that log: so much goes at once
COMMANDS_SYNC_S: Final = 0.5  # what a power cut may cost of it

# roles: the HTTP server, and the start of a replica.
HTTP_BACKLOG: Final = 2048  # connections that are not accepted yet; the system refuses more
HTTP_GRACE_S: Final = 3  # for the requests under way, at the end; whole seconds
HTTP_STOP_S: Final = 0.4  # for the rest of one that has come in part; then to read why it got none
# What one connection may do: reprise_http_refused_total, with the reason that is given.
HTTP_HEAD_BYTES_MAX: Final = 64 * KIB  # reason="head_too_large", also of trailers
HTTP_HEAD_FIELDS_MAX: Final = 128  # reason="too_many_fields", trailers included
HTTP_URL_BYTES_MAX: Final = 8 * KIB  # reason="url_too_long"
HTTP_HEAD_S: Final = 10.0  # from the connection or the first byte: reason="head_too_slow"
HTTP_IDLE_S: Final = 120  # between two requests; clients' pools give a connection up sooner
HTTP_PIPELINED_MAX: Final = 16  # requests behind one that is not answered: reason="pipelined"
HTTP_ANSWER_S: Final = 30.0  # an answer that nobody reads: reason="answer_not_read"
HTTP_ANSWERS_BYTES_MAX: Final = 128 * MIB  # of all of them; the largest go first: the same reason
HTTP_LINGER_S: Final = 2.0  # after a refusal, so that a client that still writes can read it
HTTP_LINGER_BYTES_MAX: Final = 1 * MIB  # of what it still writes
# What all of them may do. Each takes up to 320 KiB before the app reads: 64 that uvicorn gathers,
# and the 256 of uvloop's one read.
HTTP_CONNECTIONS_MAX: Final = 4096  # reason="too_many"; half of the free files where those are few
HTTP_FILES_SHARE: Final = 16  # so much of the limit of open files is left to the disks
HTTP_FILES_LEFT_MAX: Final = 512  # but no more than so many
HTTP_TAKEN_OVER_MAX: Final = 64  # of them that the listener hands over, in one turn of the loop
HTTP_SCAN_PAUSE_S: Final = 0.1  # between two looks for idle ones, where so few are found:
HTTP_SCAN_IDLE_SHARE: Final = 32  # less than one of so many
ALLOWED_ENGINES_MAX: Final = 1_000  # networks and names that may be registered
KEYS_MAX: Final = 10_000  # in a file of keys
KEY_FILE_BYTES_MAX: Final = 16 * MIB
BACKUP_MANIFEST_BYTES_MAX: Final = 256 * MIB  # with a digest of each context and file
PATH_BYTES_MAX: Final = 4095  # of a file's name with its directories, as Linux has it
SETTINGS_FILE_BYTES_MAX: Final = 64 * MIB  # of a file that an option names: settings, PEM, a token
KEY_FILE_CHECK_S: Final = 1.0  # between two looks whether it has changed
KEY_ADMITTED_S: Final = 5.0  # a header is let through without Python, unless the file changes
KEY_SECRET_BYTES: Final = 32  # random; so many need no slow hash
KEY_TENANTS_MAX: Final = 1_000  # of one key
KEY_RATE_MAX: Final = 1e9  # requests/s
KEYS_VERIFIED_MAX: Final = 4_096  # headers whose secret need not be hashed again
KEYS_SHOWN_MAX: Final = 1_000  # as labels of a metric; all others are one more
KEY_FAILURES_PER_S: Final = 5.0  # requests of one address without a key that is known
KEY_FAILURES_BURST: Final = 50.0  # so many at once
RATE_BURST_S: Final = 1.0  # what a bucket holds, in seconds of its rate
RATE_BUCKETS_MAX: Final = 65_536  # names whose rate is known
TLS_HANDSHAKE_S: Final = 10.0
TLS_HANDSHAKES_MAX: Final = 256  # at once; each holds some 40 KiB
TLS_PEEKED_BYTES: Final = 8  # looked at, to tell plain HTTP from a handshake
TLS_ACCEPTS_AT_ONCE_MAX: Final = 64  # in one turn of the loop
TLS_FILES_CHECK_S: Final = 10.0  # between two looks whether a certificate has changed
CERTIFICATE_NAMES_MAX: Final = 32  # of a client that are looked for among the keys
REFUSALS_LOG_S: Final = 60.0  # one line for all that was refused meanwhile
OPEN_FILES_MAX: Final = 65_536  # asked of the system; a publisher takes about five, a client one
REGISTER_RETRY_S: Final = 1.0  # between attempts to register what the configuration file names

# monitor: of a bridge or a worker; no client can hold it up.
MONITOR_REQUEST_S: Final = 5.0  # a connection lasts no longer, answered or not
MONITOR_CONNECTIONS_MAX: Final = 64  # at once; the oldest idle one makes room for the next
MONITOR_STOP_S: Final = 2.0  # for it to end with its role

MEMORY_ASK_S: Final = 10.0  # that `reprise memory` waits for an answer
EXPLAIN_S: Final = 60.0  # that commands wait for a whole answer, as of `reprise explain`
SERVICE_ANSWER_BYTES_MAX: Final = 256 * MIB  # of a service that a command asks, with its head
REFUSAL_CHARS_MAX: Final = 2_000  # of what a service says with an error status
TOP_ASK_S: Final = 10.0  # that `reprise top` waits for all documents of a look

# ==================================================================================== discovery

DISCOVERED_RANKS_MAX: Final = 1_024  # of one pod: an error in its annotation is refused and named
DISCOVERED_PODS_MAX: Final = (
    65_536  # of a listing; beyond it nothing is changed, and the log says so
)
DISCOVERED_DELETED_MAX: Final = 4_096  # objects that are known to be gone; the oldest are forgotten
KUBERNETES_TEXT_CHARS_MAX: Final = 1_024  # of an annotation that is used
API_ANSWER_BYTES_MAX: Final = 64 * MIB  # of a list, or an event, of Kubernetes' API server
ENGINE_ANSWER_BYTES_MAX: Final = 4 * MIB  # of an engine that is asked for its model or block size
ENGINE_ASK_S: Final = 5.0  # and how long it may take
DISCOVERY_LOOK_S: Final = 30.0  # between two comparisons with what is registered, without a change
DISCOVERY_GATHER_S: Final = 0.2  # that changes are gathered for
DISCOVERY_RETRY_S: Final = (
    0.5  # before the next attempt at a server; twice as long each time, up to
)
DISCOVERY_RETRY_MAX_S: Final = 30.0  # between two attempts at a server that does not answer
API_SERVER_S: Final = 30.0  # of a list; and beyond the end of a watch
WATCH_S: Final = 300  # of one watch, before it is asked for anew
LIST_PAGE: Final = 500  # objects

# ====================================================================================== relations

# wire -> inbox -> turn -> record -> log
assert MESSAGE_BYTES_MAX <= INBOX_BYTES_MAX, "the largest message must fit the inbox"
assert BULK_BYTES <= FOLD_TURN_BYTES_MAX, "what is decoded within a turn fits it"
assert FOLD_TURN_BYTES_MAX <= TURN_BYTES_MAX, "a turn is as small as the fold needs it"
assert RECORD_BYTES_MAX <= PACKED_BATCH_BYTES_MAX, "one batch may fill a record"
assert PACKED_BATCH_BYTES_MAX <= LOG_SEGMENT_BYTES, "a batch too large to split is one record"
assert RECORD_BYTES_MAX <= LOG_SEGMENT_BYTES, "a record never spans segments"
assert RECORD_BYTES_MAX < RECORD_SEND_BYTES_MAX, "a record of the usual size must fit a message"
assert KAFKA_BATCH_BYTES < KAFKA_MESSAGE_MAX_BYTES, "the broker must take a batch of small records"
assert KAFKA_MESSAGE_MAX_BYTES <= KAFKA_FETCH_BYTES_MAX, "the largest message must be fetchable"
assert KAFKA_BATCH_BYTES < QUEUE_BYTES_MAX, "one batch must not fill the queue"
assert QUEUE_BYTES_MAX < SPOOL_BYTES_MAX, "the spool takes the whole queue when Kafka goes away"
assert REPLAYS_AT_ONCE_MAX * REPLAY_CHUNK_BYTES <= LOG_WAITING_BYTES_MAX, (
    "every replay under way may have a chunk behind a failed append"
)
assert REPLAY_BREAK_LOOK_S < REPLAY_IDLE_S, "a reply that has broken off is not taken for silence"
assert CHECK_SILENCE_S < CHECK_LATE_S, "an engine that has fallen silent has time to answer"
assert max(CHECK_LATE_S, RECEIVED_LATE_S) + HEARTBEAT_S < STALE_S, (
    "who is late is doubted before all publishers of its partition are"
)
assert SPOOL_REOPEN_RATIO < 1.0, "a full spool must be drained before it is filled again"
assert PUBLISHERS_MAX <= REGISTRY_ENTRIES_MAX <= CURSOR_NOTES_MAX, "all publishers are remembered"

# commands
assert COMMAND_ANSWER_S < COMMAND_CLOSE_S < COMMAND_REQUEST_S < 6.0, "a command ends within 6 s"
assert 4 * COMMAND_TOKENS_MAX + MIB < KAFKA_MESSAGE_MAX_BYTES, "a command must fit a message"
assert COMMANDS_KEPT_MAX > COMMANDS_WAITING_MAX, "what is under way is not forgotten"

# commands
assert COMMAND_ANSWER_S < COMMAND_CLOSE_S < COMMAND_REQUEST_S < 6.0, "a command ends within 6 s"
assert 4 * COMMAND_TOKENS_MAX + MIB < KAFKA_MESSAGE_MAX_BYTES, "a command must fit a message"
assert COMMANDS_KEPT_MAX > COMMANDS_WAITING_MAX, "what is under way is not forgotten"
assert COMMANDS_LOG_BYTES > COMMANDS_SEGMENT_BYTES, "some of the log of commands is kept"

assert HOT_RATE_S < HOT_HALF_LIFE_S, "what is new is told from what is old"

# acting on advice
assert ACT_PERIOD_MIN_S <= ACT_PERIOD_S <= ACT_PERIOD_MAX_S, "the default must be allowed"
assert COMMAND_REQUEST_S < ACT_UNKNOWN_S < ACT_HORIZON_S, "who is asked has time to answer"
assert ACT_COMMANDS_MAX * ACT_RATE_S <= ACT_RATE_MAX * ACT_PERIOD_S, "each look may use its share"
assert ACT_RATE_S <= ACT_REMEMBERED_S, "what was begun within it is remembered"
assert ACT_BACKOFF_FIRST_S <= ACT_BACKOFF_MAX_S < ACT_REMEMBERED_S, "a back-off is remembered"
assert ACT_REMEMBERED_S < COMMANDS_FOLLOWED_S, "what was done before a restart is read"
assert ACT_HORIZON_S <= ACT_REMEMBERED_S, "what was done within the horizon is remembered"
assert ACT_COMMANDS_MAX < COMMANDS_WAITING_MAX, "people's own commands have room"
assert COMMAND_TOKENS_MAX <= ACT_TOKENS_MAX, "the longest prefix of a command has room"

# memory
assert TOP_PERIOD_MIN_S <= TOP_PERIOD_S <= TOP_PERIOD_MAX_S, "the default must be allowed"
assert MEMORY_PERIOD_MIN_S <= MEMORY_PERIOD_S <= MEMORY_PERIOD_MAX_S, "the default must be allowed"
assert MEMORY_PERIOD_MAX_S + MEMORY_REPEAT_S <= MEMORY_STALE_S, (
    "a segment that is read is not stale, however seldom it is"
)
assert MEMORY_GONE_S <= MEMORY_FORGOTTEN_S, "what is known to be gone goes first"
assert MEMORY_SEGMENTS_READ_MAX <= MEMORY_SEGMENTS_MAX, "a table holds all that one bridge reads"

# links
assert LINK_RETRY_FIRST_MS <= LINK_RETRY_MAX_MS, "the pauses grow"
assert LINK_RETRY_MAX_MS < 1000 * LINK_REPLACE_S, "libzmq's own attempts come first"
assert LINK_PROBE_WAIT_S <= LINK_PROBE_S <= LINK_PROBE_AWAY_S, "one probe of a publisher at a time"
assert 1000 * LINK_QUIET_S < LINK_RETRY_FIRST_MS, "there must be a time in which nothing is tried"

assert LINK_UNHEARD_S + RELINK_CHECK_S + HEARTBEAT_S < STALE_S, (
    "who is silent is doubted before an answer is wrong"
)
assert 1000 * LINK_SILENT_S > LINK_HEARTBEAT_MS, "what else was sent may not have to be answered"
assert 1000 * LINK_SILENT_S < LINK_DEAD_MS < LINK_UNANSWERED_MS, (
    "who is silent is doubted before its link is down"
)

# sessions
assert 1000 * SESSION_MIN_S / HEARTBEATS_PER_SESSION > HEARTBEAT_MIN_MS, (
    "a member must send several heartbeats in the shortest session"
)
assert 1000 * SESSION_MIN_S / HEARTBEATS_PER_SESSION > REGISTRY_POLL_MS, (
    "a bridge must come to renew its lease between two polls"
)
assert SESSION_MIN_S <= BRIDGE_SESSION_S <= SESSION_S_MAX, "the default must be allowed"
assert SESSION_MIN_S <= WORKER_SESSION_S <= SESSION_S_MAX, "the default must be allowed"
assert 1000 * (BRIDGE_FLUSH_S + 2 * BRIDGE_LEAVE_S) < BRIDGE_REBALANCE_MIN_MS, (
    "a bridge flushes, and drops what it could not, within a rebalance"
)
assert BRIDGE_FLUSH_S + 3 * BRIDGE_LEAVE_S + CLIENT_LEAVE_S < SHUTDOWN_S, (
    "a bridge flushes, leaves its group and drops its producer in time, whatever the broker does"
)
assert HANDOVER_S + 2 * BRIDGE_LEAVE_S + CLIENT_LEAVE_S < SHUTDOWN_S, (
    "a bridge that leaves hands over in time"
)
assert HANDOVER_S < HANDOVER_WAIT_S, "one bridge at a time writes of a publisher"
assert HANDOVER_OVERLAP_S + HANDOVER_IDLE_S < HANDOVER_S, "an idle publisher is handed over, too"
assert WORKER_REBALANCE_MS > TABLE_TRANSACTION_MS, (
    "a table is opened within a rebalance, and may wait for a dead worker's transaction"
)
assert WORKER_CLEAN_S < WORKER_SESSION_S, "a process that cannot be cleaned up ends soon"
assert KAFKA_RETRY_FIRST_S <= KAFKA_RETRY_MAX_S, "the pauses grow"
assert WORKER_RETRY_S <= WORKER_RETRY_MAX_S, "the pauses grow"

# options and stops
assert RECORD_WINDOW_MS <= GATHER_MS_MAX, "the default must be allowed"
assert 1000 * WORKER_FLUSH_S <= GATHER_MS_MAX, "the default must be allowed"
assert LOG_RETENTION_BYTES <= OPTION_GIB_MAX * GIB, "the default must be allowed"
assert LOG_RETENTION_S <= 3600 * OPTION_HOURS_MAX, "the default must be allowed"
assert SPAN_LEAVE_S < SHUTDOWN_S, "a collector that is away keeps no process from ending"
assert WORKER_STOP_S < SHUTDOWN_S, "a worker leaves the group before it is killed"
assert HTTP_GRACE_S + MONITOR_STOP_S < SHUTDOWN_S, "servers end before their process is killed"
assert OPEN_FILES_MAX >= 10 * PUBLISHERS_MAX, "every publisher's sockets, and as many clients"
assert 2 * HTTP_STOP_S < 1, "what came in part is refused within the shortest grace, a monitor's"
assert HTTP_FILES_SHARE > PUBLISHER_FILES_SHARE, "clients find files beside all publishers"
assert HTTP_FILES_LEFT_MAX < PUBLISHER_FILES_LEFT_MAX, "clients find files beside all publishers"
assert HTTP_CONNECTIONS_MAX < OPEN_FILES_MAX // 2, "clients leave files for the publishers"
assert HTTP_BACKLOG < OPEN_FILES_MAX, "every connection that waits takes a descriptor"

# retention
assert 1000 * REPLICA_AWAY_S < TOMBSTONE_RETENTION_MS, "a replica must not miss a tombstone"
assert 2000 * TABLE_COPY_AGE_MAX_S <= TOMBSTONE_RETENTION_MS, "nor may a worker's copy"
assert TABLE_RETAKE_S <= 12 * 3600, "brokers fence an older owner for a day after it last wrote"
assert KAFKA_MESSAGE_MAX_BYTES <= COMPACTED_SEGMENT_BYTES, "brokers refuse what no segment holds"
assert COMPACTED_SEGMENT_MS < TOMBSTONE_RETENTION_MS, "a segment is closed before it is cleaned"

assert AUDIT_BYTES + GIB <= AUDIT_FILES_BYTES, "no file goes before its records were dropped"
assert ROUTING_CHUNK_BYTES + KIB < KAFKA_BATCH_BYTES, "a chunk of a checkpoint fits a batch"
assert AUDIT_RECORD_BYTES < KAFKA_BATCH_BYTES, "a batch has some records of answers"
assert AUDIT_QUEUE_BYTES < ANSWERS_PARTITION_BYTES, "what waited for Kafka is not gone at once"
assert 2 * WINDOW_LEAVE_S + 2 * CLIENT_LEAVE_S < SHUTDOWN_S, (
    "a replica stops in time, Kafka away or not"
)
assert AUDIT_QUEUE_BYTES < AUDIT_BYTES, "a window of answers is a small part of their log"

# table
assert LOG_SYNC_S <= TABLE_FLUSH_S, "a table row may not cover a record that is not yet durable"
assert DUMP_CHUNK_ENTRIES_MAX <= TABLE_FLUSH_CHANGES_MAX, "a dump chunk is at most one flush"
assert DUMP_CHUNK_ENTRIES_MAX * 64 < TABLE_BATCH_BYTES_MAX, "a row of a table must fit a batch"
assert TABLE_BATCH_BYTES_MAX < KAFKA_MESSAGE_MAX_BYTES, "a flush of one batch must fit a message"
assert TABLE_BATCH_BYTES_MAX < TABLE_TRANSACTION_BYTES_MAX, "a larger flush needs a transaction"
assert KAFKA_REQUEST_MS < TABLE_TRANSACTION_MS, "one slow request must not end a transaction"
assert (
    KAFKA_MESSAGE_MAX_BYTES
    * (WORKER_POLL_RECORDS_MAX + WORKER_BUFFER_MESSAGES_MAX + WORKER_BATCH_MESSAGES_MAX)
    <= 3 * GIB
), "a worker that catches up must fit a machine, however large its records are"

# captures
assert MESSAGE_BYTES_MAX + KIB <= CAPTURE_ENTRY_BYTES_MAX, "the largest message fits an entry"
assert PACKED_BATCH_BYTES_MAX + KIB <= CAPTURE_ENTRY_BYTES_MAX, "the largest record fits an entry"
assert (
    CAPTURE_BLOCK_BYTES + CAPTURE_ENTRY_BYTES_MAX + 21 * CAPTURE_BLOCK_ENTRIES_MAX
    <= CAPTURE_BLOCK_RAW_BYTES_MAX
), "what is written can be read"

# queries
assert GRPC_STREAMS_MAX + GRPC_CONNECTION_CALLS_MAX <= GRPC_CALLS_MAX, (
    "streams keep nobody from asking"
)
assert 8 * GRPC_HASHES_MAX < GRPC_TEXT_BYTES_MAX < GRPC_MESSAGE_BYTES_MAX, "all hashes have room"
assert BODY_BYTES_MAX >= 6 * QUERY_TOKENS_MAX, "the largest query must fit a body"
assert BODY_COLONS_MAX > 22 * NAME_BYTES_MAX + 2 * LABELS_MAX * LABEL_BYTES_MAX, (
    "a registration whose names are nothing but colons is taken"
)
assert LAG_CHECK_S + LAG_CHECK_WAIT_S < STALE_S, "one late check makes no answer stale"
assert BODY_BYTES_MAX <= BODIES_LARGE_BYTES_MAX < BODIES_BYTES_MAX, "the largest body has room"
assert BODY_PIECE_S < BODY_READ_S, "a body that stalls is ended before one that is slow"
assert HTTP_URL_BYTES_MAX < HTTP_HEAD_BYTES_MAX, "a URL is part of a head"
assert BODY_DRAIN_BYTES_MAX > BODY_BYTES_MAX, "a body a little too large is read to its end"
assert REPLICA_RETRY_S < STALE_S, "one failure of the reader alone makes no answer stale"
assert REPLICA_POLL_MS < 1000 * REPLICA_STALL_S, "one empty fetch is not a stall"
assert TAIL_KEY_NESTING_MAX < 100, "extra keys are shown within Python's recursion limit"
