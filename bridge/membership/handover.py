"""One publisher that passes to another bridge, as its keeper and as its successor see it; see
`handovers`. Pure.
"""

import math
from dataclasses import dataclass
from typing import Final

from bridge.link_numbers import NO_LINK, LinkNumber
from bridge.membership.bounds import HANDOVER_FINISH_S, HANDOVER_IDLE_S, HANDOVER_OVERLAP_S
from bridge.publisher.anchor import Joint
from schemas.limits import LINK_SETTLE_S
from schemas.topics import Handover

HANDOVER_MATCH_S: Final = 1.0  # for the next owner to receive what the last one has received


@dataclass(slots=True)
class Departure:
    """A publisher that is kept for another bridge.

    Attributes:
        is_departing: whether it is known that it is another bridge's.
        home: its partition of the registry.
        link: that was up when it was kept.
        until: its keeper may write of it before then, monotonic seconds.
        successor: that has linked; "" for none yet.
        linked_at: when that was read.
        messages: that had been decoded by then.
    """

    home: int
    link: LinkNumber
    until: float
    successor: str = ""
    linked_at: float = 0.0
    messages: int = 0
    is_departing: bool = False

    def is_late(self, now: float) -> bool:
        """Whether it is to be given up, however far it is."""
        return now >= self.until - HANDOVER_FINISH_S

    def common_at(self, *, is_linked: bool, messages: int) -> float:
        """What has come by then has come to the successor, too, or nothing has, and the link was
        alive after the successor had linked; monotonic seconds.

        Args:
            is_linked: whether the link is still the same, and up.
            messages: that have been decoded by now.
        """
        if not self.successor:
            return math.inf
        is_idle = is_linked and messages == self.messages
        return self.linked_at + (HANDOVER_IDLE_S if is_idle else HANDOVER_OVERLAP_S)


@dataclass(slots=True)
class Arrival:
    """A publisher that another bridge keeps for us.

    Attributes:
        home: its partition of the registry.
        keeper: that bridge.
        is_whole: as that bridge has noted, see `Joint`.
        until: it is waited for until then, monotonic seconds.
        link: that is up.
        up_at: since when.
        told_link: the one that was up when it was noted that we have linked; 0: not yet.
        done: what the keeper has noted last; None before.
        done_at: when that was read.
        ready: what its keeper knew, once it can be taken over; None before.
    """

    home: int
    keeper: str
    is_whole: bool
    until: float
    link: LinkNumber = NO_LINK
    up_at: float = 0.0
    told_link: LinkNumber = NO_LINK
    done: Handover | None = None
    done_at: float = 0.0
    ready: Joint | None = None

    def look(self, now: float, link: LinkNumber) -> None:
        """Takes over which link is up."""
        if link != self.link:
            self.link, self.up_at = link, now

    def is_to_tell(self, now: float) -> bool:
        """Whether it is to be noted that we have linked."""
        is_settled = self.link > NO_LINK and now >= self.up_at + LINK_SETTLE_S
        return is_settled and not self.told_link and self.done is None

    def joint(self, name: str) -> Joint:
        """What the keeper knows. Of a publisher that has sent nothing since we had linked, what is
        proven of its link is proven of ours.
        """
        done = self.done
        is_proven = done is not None and done.is_proven and done.successor == name
        is_same = is_proven and done is not None and done.is_idle and self.link == self.told_link
        return Joint(self.link if is_same else NO_LINK, self.is_whole or is_proven)

    def is_over(self, now: float, *, is_common: bool) -> bool:
        """Whether it can be taken over.

        Args:
            now: monotonic seconds.
            is_common: whether the log's last batch has come to us, too.
        """
        if self.done is None:
            return now >= self.until
        return is_common or self.done.is_idle or now >= self.done_at + HANDOVER_MATCH_S
