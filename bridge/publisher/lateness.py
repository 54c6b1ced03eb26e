"""How late batches come, by the engine's own clock. Pure.

A link that is slower than what is sent over it is up and never silent, and nothing waits here: only
the batches' own times tell that they are old. The engine's clock may be any time apart from ours,
so the batch that came soonest after it was made shows how far; of the latest ones only, for clocks
drift and are set. One that seems to have come much sooner than any before was made after the
engine's clock was set forward: what is on its way is no less late than before. Ours is the
monotonic clock: a step of the other one would make all that is on its way look late.

Where nothing has come soon, as over a link that was slow from the first batch on, that is not how
far it is apart: an engine that is asked over HTTP says the time by its clock.
"""

from typing import Final

LATENESS_COMPARED: Final = 1024  # turns with batches of a publisher, to find its clock
CLOCK_STEP_S: Final = 1.0  # a batch that comes so much sooner than any before: a clock was set
CLOCK_TOLD_S: Final = 3.0  # by which its clock may be ahead of what its answers tell
UNIX_SECONDS_MIN: Final = 1e9  # of September 2001: a smaller number is of another clock
UNIX_SECONDS_MAX: Final = 1e11  # likewise a larger one, as of milliseconds

_NONE: Final = float("inf")


class Lateness:
    """Of one publisher."""

    __slots__ = (
        *("_apart_most", "_before", "_count", "_last_time", "_least", "_most", "_most_before"),
        "late_s",
    )

    def __init__(self, apart_most: float = _NONE) -> None:
        """Args:
        apart_most: see `note_clock`.
        """
        self._apart_most = apart_most
        self._before = self._least = _NONE
        self._most_before = self._most = -_NONE
        self._count = 0
        self._last_time = 0.0
        self.late_s = 0.0

    def behind_s(self, since_epoch: float) -> float:
        """How far the engine's clock is behind ours, seconds, as the batch says by which it is the
        least apart: neither a link that was slow nor one batch of a wrong time makes a clock wrong.
        0 where none has come, or the engine has no clock of Unix seconds.
        """
        if not self._count or self._last_time < UNIX_SECONDS_MIN:
            return 0.0
        soonest = min(self._before, self._least) + since_epoch
        latest = max(self._most_before, self._most) + since_epoch
        return soonest if soonest > 0 else min(latest, 0.0)

    def note_clock(self, apart_most: float) -> None:
        """Our monotonic clock is ahead of the engine's by so much at the most, as that has said.
        Infinite where it has not.
        """
        self._apart_most = apart_most

    def note(self, engine_time: float, received_at: float) -> None:
        """A batch of this engine time, in seconds of its clock, was received then, in those of our
        monotonic one. A time that is not above the last one says nothing, nor one that is no Unix
        time: not every engine has a clock.
        """
        if engine_time > UNIX_SECONDS_MAX:
            return
        last, self._last_time = self._last_time, engine_time
        if engine_time <= last:
            return
        apart = received_at - engine_time
        if self._count == LATENESS_COMPARED:
            self._before, self._least, self._count = self._least, apart, 0
            self._most_before, self._most = self._most, apart
        self._count += 1
        told = self._apart_most if engine_time >= UNIX_SECONDS_MIN else _NONE
        least = min(self._before, self._least)
        if apart < least - CLOCK_STEP_S:
            is_soon = apart >= told - CLOCK_TOLD_S  # by its clock as it tells it: no step
            self._before, self._least = _NONE, apart if is_soon else apart - self.late_s
            self._most_before, self._most = -_NONE, apart
        elif apart < self._least:
            self._least = apart
        self._most = max(self._most, apart)
        self.late_s = apart - min(self._before, self._least, told)
