"""Bounds that several modules of `bridge/engine_http/` rely on."""

from typing import Final

from schemas.limits import MIB

# A registration names the address, so no more is read than is needed;
# reprise_bridge_http_requests_total has what came of it.
HTTP_ENGINE_WAIT_S: Final = 2.0  # for a whole answer; then it counts as none
HTTP_ENGINE_BYTES_MAX: Final = 2 * MIB  # of a head with its body, as SGLang's of many ranks

# What of an answer is left out: reprise_bridge_load_dropped_total; where nothing of it could be
# used: reprise_bridge_load_failures_total; both by reason.
LOAD_PERIOD_S: Final = 1.0  # how often an engine is asked; from 80 to 120 % of it
LOAD_PERIOD_MAX_S: Final = 60.0  # the longest period that may be set
LOAD_CPU_SHARE: Final = 0.04  # of a core, that asking may take; above it the period is stretched
LOAD_LINES_MAX: Final = 4096  # that are looked at, of one answer: "too_many"
