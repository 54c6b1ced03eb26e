"""Whether the other end of a link answers, and up to when all that it sent is here. Pure.

ZMTP's heartbeats ask each LINK_HEARTBEAT_MS, and the system knows when it sent something over the
link and when something came, whether this process ran then or not. So an answer that nobody has
taken yet is no silence of the peer: where this process gets no core, it comes late to look, and
finds that its peer has answered. Nor is it one where nothing was asked for as long.

Times are monotonic seconds of this process.
"""

import math
from typing import Final

from bridge.bounds import LINK_SILENT_S, LINK_UNANSWERED_MS, LINK_UNHEARD_S, LINK_WATCH_S
from bridge.sockets.received_bytes import LinkProgress

LINK_LOOK_S: Final = 2.0  # between two looks at a link that is up, whatever it brings


class LinkLife:
    """Of one link after another.

    Attributes:
        is_silent: whether something was sent over the link LINK_SILENT_S ago, and nothing has come
            since.
        is_unanswered: whether that was LINK_UNANSWERED_MS ago: the link is to be ended.
        asked_at: when the first thing was sent that was not answered yet; None for nothing.
        is_drained: whether libzmq had taken all that had come.
        known_until: all that the peer had sent by then is with libzmq, as far as can be known
            before a dead link would be found silent.
    """

    __slots__ = (
        "_drained_at",
        "_total_bytes",
        "asked_at",
        "is_drained",
        "is_silent",
        "is_unanswered",
        "known_until",
    )

    def __init__(self) -> None:
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """The link is another one now."""
        self.is_silent = self.is_unanswered = False
        self.is_drained = True
        self.asked_at: float | None = None
        self.known_until = math.inf
        self._drained_at = now
        self._total_bytes = 0

    @property
    def is_open(self) -> bool:
        """Whether it is to be looked at again soon: what was asked may not be answered, or what
        came not be taken.
        """
        return not self.is_drained or (self.asked_at is not None and not self.is_silent)

    def look_at(self, now: float) -> float:
        """When that is to be, or otherwise in LINK_LOOK_S."""
        if not self.is_open:
            return now + LINK_LOOK_S
        soon = now + LINK_WATCH_S
        if self.asked_at is None or not self.is_drained:
            return soon
        return max(self.asked_at + LINK_SILENT_S, soon)

    def look(self, before: float, after: float, seen: LinkProgress, waiting_bytes: int) -> None:
        """Takes over what the system says.

        Args:
            before: when it had not been asked yet.
            after: when it had answered; much later where this process did not run meanwhile.
            seen: see `ReceivedBytes.progress`.
            waiting_bytes: that have come, and libzmq has not taken.
        """
        total_bytes, sent_ago_s, received_ago_s = seen
        if total_bytes != self._total_bytes or received_ago_s <= sent_ago_s:
            self._total_bytes, self.asked_at = total_bytes, None
        if received_ago_s > sent_ago_s and self.asked_at is None:
            self.asked_at = after - sent_ago_s
        unanswered_s = 0.0 if self.asked_at is None else before - self.asked_at
        self.is_silent = unanswered_s >= LINK_SILENT_S
        self.is_unanswered = unanswered_s >= LINK_UNANSWERED_MS / 1000
        self.is_drained = not waiting_bytes
        if self.is_drained:
            self._drained_at = before
        self.known_until = math.inf  # of a silent one nothing is known
        if not self.is_silent:
            self.known_until = before - received_ago_s + LINK_UNHEARD_S
        if not self.is_drained:
            self.known_until = min(self.known_until, self._drained_at)
