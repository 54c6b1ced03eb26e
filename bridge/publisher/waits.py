"""For what the frames of a publisher wait between its socket and the log: every place, why a frame
is there, and what ends that.

A frame is a message in the inbox until its turn, then a batch, then records. So it waits in one of
four places: as a message in the inbox; as a batch in `held_batches`; as a large message in
`Publisher.bulk`; as large records in `Publisher.paced`. What frames of a publisher wait for now is
`Publisher.waits_for`. Its batches wait for exactly one thing:

    Wait            because                                              until
    NOTHING         they do not wait
    PLACE           where the log ends with the publisher is not known   the follower's `begin`
    GAP             batches before them are missing, or may be           the follower's `repair`
    CHECK           the engine is asked whether any are missing          it does, or `patience_s`
    REPAIR          the engine is asked for those that are               it has said all it has
    HELD_BATCHES    what was held follows, a turn's worth at a time      all of that has followed
    ENDING          they do not wait, and nothing is asked: the end      -
    GONE            they are dropped: nobody follows the publisher       -

Its messages wait for any of these:

    HELD_RECORDS    the records of what was held are being handed on     the last one is
    LARGE_MESSAGE   one that came before is decoded beside the turns     its records are written
    LARGE_RECORDS   records go to the sink one at a time                 the last one has
    WORKERS         the sink holds the publisher back               workers follow; a full inbox

What lets all publishers wait is not named here: the socket, while a turn of its thread is full
(`bridge.sockets.subscriber`); the inbox, until the sink is ready and the turn comes
(`bridge.pump`); and behind all this the disk, or Kafka (`bridge.delivery`).
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

from bridge.sockets.inbox import Inbox
from schemas.identities import PublisherKey


class Wait(Enum):
    """What is waited for; see the module."""

    NOTHING = "nothing"
    PLACE = "place"
    GAP = "gap"
    CHECK = "check"
    REPAIR = "repair"
    HELD_BATCHES = "held batches"
    ENDING = "ending"
    GONE = "gone"

    HELD_RECORDS = "held records"
    LARGE_MESSAGE = "large message"
    LARGE_RECORDS = "large records"
    WORKERS = "workers"


class WaitChange(Enum):
    """What changes the wait of the batches."""

    PLACED = "placed"  # the place in the log is known
    MISSED = "missed"  # batches are missing, or may be, and nobody is asked for them now
    CHECKED = "checked"  # the engine is asked whether any are
    REPAIRED = "repaired"  # the engine is asked for them
    FOLLOWING = "following"  # of what was held some has followed
    FOLLOWED = "followed"  # all of it has
    UNPLACED = "unplaced"  # the place in the log is no longer known
    STOPPED = "stopped"  # this process ends
    LEFT = "left"  # the publisher is followed no more


HELD: Final = frozenset({Wait.PLACE, Wait.GAP, Wait.CHECK, Wait.REPAIR, Wait.HELD_BATCHES})
"""For what batches are held; else they follow at once."""

UNPLACED: Final = frozenset({Wait.PLACE, Wait.ENDING, Wait.GONE})
"""While nothing is asked of the engine."""

_RESTING: Final = (Wait.NOTHING, Wait.PLACE, Wait.GAP, Wait.ENDING)  # no task is under way

AFTER: Final[Mapping[WaitChange, Mapping[Wait, Wait]]] = {
    WaitChange.PLACED: {Wait.PLACE: Wait.GAP, Wait.ENDING: Wait.NOTHING},
    WaitChange.MISSED: dict.fromkeys(
        (Wait.NOTHING, Wait.GAP, Wait.CHECK, Wait.REPAIR, Wait.HELD_BATCHES), Wait.GAP
    )
    | {Wait.ENDING: Wait.PLACE},
    WaitChange.CHECKED: dict.fromkeys((Wait.NOTHING, Wait.GAP), Wait.CHECK),
    WaitChange.REPAIRED: dict.fromkeys((Wait.NOTHING, Wait.GAP, Wait.CHECK), Wait.REPAIR),
    WaitChange.FOLLOWING: dict.fromkeys(
        (Wait.GAP, Wait.REPAIR, Wait.HELD_BATCHES), Wait.HELD_BATCHES
    ),
    WaitChange.FOLLOWED: dict.fromkeys(
        (Wait.NOTHING, Wait.GAP, Wait.REPAIR, Wait.HELD_BATCHES), Wait.NOTHING
    ),
    WaitChange.UNPLACED: dict.fromkeys(_RESTING, Wait.PLACE),
    WaitChange.STOPPED: {Wait.NOTHING: Wait.ENDING, Wait.PLACE: Wait.PLACE, Wait.GAP: Wait.PLACE},
    WaitChange.LEFT: dict.fromkeys(_RESTING, Wait.GONE),
}
"""For what batches wait after each change, by what they waited for before. No other is possible."""


class WaitOrderError(AssertionError):
    """A change that `AFTER` does not have: an error of the program."""


class BatchWait:
    """For what the batches of one publisher wait. One owner, its sequencer, of which whatever
    changes it is a method.

    Args:
        now: for what they wait at first.

    Attributes:
        now: for what they wait.
        holds: whether they are held.
    """

    __slots__ = ("holds", "now")

    def __init__(self, now: Wait) -> None:
        self.now = now
        self.holds = now in HELD

    def change(self, change: WaitChange) -> None:
        """They wait for another thing now; see `AFTER`, which has the order.

        Raises:
            WaitOrderError: it has no such change; they wait for the same as before.
        """
        after = AFTER[change].get(self.now)
        if after is None:
            raise WaitOrderError(f"{change} while it waits for {self.now}")
        self.now = after
        self.holds = after in HELD


class MessageWaits:
    """For what the messages of one publisher wait in the inbox. One owner, the publisher.

    Args:
        publisher, inbox: whose messages wait where; None: it has no messages.

    Attributes:
        now: for what they wait, the first one first.
    """

    __slots__ = ("_inbox", "_publisher", "now")

    def __init__(self, publisher: PublisherKey, inbox: Inbox | None = None) -> None:
        self.now: dict[Wait, None] = {}
        self._publisher = publisher
        self._inbox = inbox

    def begin(self, wait: Wait) -> None:
        """They wait for this, too."""
        self.now[wait] = None
        if self._inbox is not None:
            self._inbox.pause(self._publisher)

    def end(self, wait: Wait) -> None:
        """They wait for this no longer; they go on where they wait for nothing else."""
        if wait not in self.now:
            return
        del self.now[wait]
        if not self.now and self._inbox is not None:
            self._inbox.resume(self._publisher)
