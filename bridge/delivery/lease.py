"""Until when a bridge may write of its publishers: another bridge may own them afterwards.

The registry reader writes until when what the group has given us is ours; the handovers write until
when what we keep for its next owner may still be written. The writers read both. A writer to which
no group gives anything always may write.
"""

import math

from schemas.clock import REAL_CLOCK, Clock
from schemas.identities import PublisherKey


class Lease:
    """See the module. One loop."""

    def __init__(self, clock: Clock = REAL_CLOCK) -> None:
        self.clock = clock
        self._monotonic = clock.monotonic
        self._is_shared = False  # the group has given us something
        self._until = 0.0
        self._kept_until: dict[PublisherKey, float] = {}
        self._first_until = math.inf  # no later than the first of them

    @property
    def is_held(self) -> bool:
        """Whether no other bridge can own what is ours; also where nothing is."""
        return not self._is_shared or self._monotonic() < self._until

    @property
    def may_write(self) -> bool:
        """Whether no other bridge can write of what we may write of."""
        return self.is_held and not self._is_overdue

    @property
    def _is_overdue(self) -> bool:
        """Whether something of a kept publisher may not be written any more, and may wait to be."""
        now = self._monotonic()
        if now >= self._first_until:
            self._first_until = min(self._kept_until.values(), default=math.inf)
        return now >= self._first_until

    # The registry reader

    def begin(self, *, owns: bool) -> None:
        """The group has given us all that is ours; nothing is proven of that yet."""
        self._is_shared = owns

    def renew(self, until: float) -> None:
        """What the group has given us is ours until then, monotonic seconds."""
        self._until = until

    def end(self) -> None:
        """Nothing is ours any more."""
        self._is_shared, self._until = False, 0.0

    # The handovers

    def keep(self, publisher: PublisherKey, until: float) -> None:
        """What a publisher's next owner waits for may be written until then, monotonic seconds."""
        self._kept_until[publisher] = until
        self._first_until = min(self._first_until, until)

    def give_up(self, publisher: PublisherKey) -> None:
        """Nothing of the publisher is yet to be written for its next owner."""
        self._kept_until.pop(publisher, None)
