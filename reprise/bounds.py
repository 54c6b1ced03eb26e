"""Bounds that several modules of `reprise/` rely on, and how they are related."""

from typing import Final

from schemas.limits import GIB, KIB, OPTION_GIB_MAX, SHUTDOWN_S

LOG_RETENTION_BYTES: Final = 8 * GIB  # of the embedded log, by default; the oldest goes first
LOG_RETENTION_S: Final = 7 * 24 * 3600.0  # of the embedded log, by default

HISTORY_BYTES: Final = 4 * GIB  # the oldest goes first

OPTION_HOURS_MAX: Final = 24.0 * 365 * 10_000  # ten thousand years: a time in ns still fits 64 bits

LEAVE_S: Final = 30.0  # a replica that leaves answers no longer; stop_grace_period is more

HTTP_GRACE_S: Final = 3  # for the requests under way, at the end; whole seconds

# What one connection may do: reprise_http_refused_total, with the reason that is given.
HTTP_HEAD_BYTES_MAX: Final = 64 * KIB  # reason="head_too_large", also of trailers
HTTP_URL_BYTES_MAX: Final = 8 * KIB  # reason="url_too_long"

# No client can hold the monitor up.
MONITOR_STOP_S: Final = 2.0  # for a monitor to end with its role

WATCH_S: Final = 300  # of one watch, before it is asked for again

assert LOG_RETENTION_BYTES <= OPTION_GIB_MAX * GIB, "the default must be allowed"
assert LOG_RETENTION_S <= 3600 * OPTION_HOURS_MAX, "the default must be allowed"
assert HTTP_GRACE_S + MONITOR_STOP_S < SHUTDOWN_S, "servers end before their process is killed"
assert HTTP_URL_BYTES_MAX < HTTP_HEAD_BYTES_MAX, "a URL is part of a head"
