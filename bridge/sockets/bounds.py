"""Bounds that several modules of `bridge/sockets/` rely on, and how they are related."""

from typing import Final

SUBSCRIBER_TURN_S: Final = 0.005  # a turn looks at every socket, so several messages share one
LINK_REPLACE_S: Final = 5.0  # a link that has been down for this long is given up by libzmq
LINK_PROBE_S: Final = 3.0  # between two probes whether somebody listens at a link that is down
LINK_PROBE_AWAY_S: Final = 5.0  # between two probes of a link that is away
LINK_PROBE_WAIT_S: Final = 3.0  # for the answer of a host
LINK_RETRY_FIRST_MS: Final = 100  # libzmq's own attempts, each twice the one before
LINK_RETRY_MAX_MS: Final = 3_000  # between two of libzmq's own attempts
LINK_QUIET_S: Final = 0.05  # a link is not replaced when libzmq's next attempt is closer than this

assert LINK_RETRY_FIRST_MS <= LINK_RETRY_MAX_MS, "the pauses grow"
assert LINK_RETRY_MAX_MS < 1000 * LINK_REPLACE_S, "libzmq's own attempts come first"
assert LINK_PROBE_WAIT_S <= LINK_PROBE_S <= LINK_PROBE_AWAY_S, "one probe of a publisher at a time"
assert 1000 * LINK_QUIET_S < LINK_RETRY_FIRST_MS, "there must be a time in which nothing is tried"
