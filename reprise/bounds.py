"""Bounds that several modules of `reprise/` rely on, and how they are related."""

from typing import Final

from schemas.limits import (
    BRIDGE_SESSION_S,
    GIB,
    KIB,
    RECORD_WINDOW_MS,
    SESSION_MIN_S,
    SHUTDOWN_S,
    WORKER_FLUSH_S,
    WORKER_SESSION_S,
)

LOG_RETENTION_BYTES: Final = 8 * GIB  # of the embedded log, by default; the oldest goes first
LOG_RETENTION_S: Final = 7 * 24 * 3600.0  # of the embedded log, by default

HISTORY_BYTES: Final = 4 * GIB  # the oldest goes first

OPTION_GIB_MAX: Final = 2.0**33  # a file system has no more bytes than 64 bits can count
OPTION_HOURS_MAX: Final = 24.0 * 365 * 10_000  # ten thousand years: a time in ns still fits 64 bits
GATHER_MS_MAX: Final = 10_000  # --window-ms and --flush-ms: the latency that each adds
SESSION_S_MAX: Final = 300.0  # a dead role's publishers or partitions wait as long as its session

LEAVE_S: Final = 30.0  # a replica that leaves answers no longer; stop_grace_period is more

HTTP_GRACE_S: Final = 3  # for the requests under way, at the end; whole seconds

# What one connection may do: reprise_http_refused_total, with the reason that is given.
HTTP_HEAD_BYTES_MAX: Final = 64 * KIB  # reason="head_too_large", also of trailers
HTTP_URL_BYTES_MAX: Final = 8 * KIB  # reason="url_too_long"

# No client can hold the monitor up.
MONITOR_STOP_S: Final = 2.0  # for a monitor to end with its role

WATCH_S: Final = 300  # of one watch, before it is asked for again

assert SESSION_MIN_S <= BRIDGE_SESSION_S <= SESSION_S_MAX, "the default must be allowed"
assert SESSION_MIN_S <= WORKER_SESSION_S <= SESSION_S_MAX, "the default must be allowed"
assert RECORD_WINDOW_MS <= GATHER_MS_MAX, "the default must be allowed"
assert 1000 * WORKER_FLUSH_S <= GATHER_MS_MAX, "the default must be allowed"
assert LOG_RETENTION_BYTES <= OPTION_GIB_MAX * GIB, "the default must be allowed"
assert LOG_RETENTION_S <= 3600 * OPTION_HOURS_MAX, "the default must be allowed"
assert HTTP_GRACE_S + MONITOR_STOP_S < SHUTDOWN_S, "servers end before their process is killed"
assert HTTP_URL_BYTES_MAX < HTTP_HEAD_BYTES_MAX, "a URL is part of a head"
