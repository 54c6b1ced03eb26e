"""What came of one publisher live: how much of it, when, and how late. Pure."""

from math import inf

from bridge.publisher.lateness import Lateness


class Arrivals:
    """Of one stream of batches; one owner.

    Attributes:
        received_at: when the last one came, monotonic seconds.
        engine_time: of the last batch that has one, in seconds of the engine's clock.
        lateness: of the batches of one process of the engine.
    """

    __slots__ = ("_apart_most", "engine_time", "lateness", "messages", "received_at")

    def __init__(self) -> None:
        self._apart_most = inf
        self.messages = 0
        self.received_at = self.engine_time = 0.0
        self.lateness = Lateness()

    def begin_link(self) -> None:
        """The engine may be another one, with another clock."""
        self.lateness = Lateness(self._apart_most)

    def note_clock(self, apart_most: float) -> None:
        """See `Lateness.note_clock`."""
        self._apart_most = apart_most
        self.lateness.note_clock(apart_most)

    def end_turn(self) -> None:
        """The messages of a turn have come."""
        self.lateness.note(self.engine_time, self.received_at)
