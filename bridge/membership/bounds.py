"""Bounds that several modules of `bridge/membership/` rely on, and how they are related."""

from typing import Final

from bridge.bounds import LINK_UNHEARD_S
from schemas.limits import BRIDGE_LEAVE_S, CLIENT_LEAVE_S, SHUTDOWN_S

HANDOVER_S: Final = 5.0  # a publisher that may be another bridge's is kept so long, at most
HANDOVER_WAIT_S: Final = 6.5  # its next owner waits so long for what is kept, at most
HANDOVER_OVERLAP_S: Final = 0.25  # both receive from the publisher for so long, at least
HANDOVER_IDLE_S: Final = LINK_UNHEARD_S  # the same of a silent publisher, whose link is alive
HANDOVER_LOOK_S: Final = 0.05  # how often it is looked how far handovers are
HANDOVER_FLUSH_S: Final = 1.0  # for the queue to be acknowledged, before its bridge leaves
HANDOVER_FINISH_S: Final = 0.5  # for what is left of a handover to be acknowledged

assert HANDOVER_S + 2 * BRIDGE_LEAVE_S + CLIENT_LEAVE_S < SHUTDOWN_S, (
    "a bridge that leaves hands over in time"
)
assert HANDOVER_S < HANDOVER_WAIT_S, "one bridge at a time writes of a publisher"
assert HANDOVER_OVERLAP_S + HANDOVER_IDLE_S < HANDOVER_S, "an idle publisher is handed over, too"
