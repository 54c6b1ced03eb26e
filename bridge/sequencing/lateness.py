"""How late batches come, by the engine's own clock. Pure.

A link that is slower than what is sent over it is up and never silent, and nothing waits here: only
the batches' own times tell that they are old. The engine's clock may be any time apart from ours,
so the batch that came soonest after it was made shows how far; of the latest ones only, for clocks
drift and are set. One that seems to have come much sooner than any before was made after the
engine's clock was set forward: what is on its way is no less late than before. Ours is the
monotonic clock: a step of the other one would make all that is on its way look late.
"""

from typing import Final

from schemas.limits import CLOCK_STEP_S, LATENESS_COMPARED, UNIX_SECONDS_MIN

_NONE: Final = float("inf")


class Lateness:
    """Of one publisher."""

    __slots__ = ("_before", "_count", "_last_time", "_least", "late_s")

    def __init__(self) -> None:
        self._before = self._least = _NONE
        self._count = 0
        self._last_time = 0.0
        self.late_s = 0.0

    def behind_s(self, since_epoch: float) -> float:
        """How far the engine's clock is behind ours, seconds, as the batch says that came soonest;
        0 where none has come, or the engine has no clock of Unix seconds.
        """
        least = min(self._before, self._least)
        if self._last_time < UNIX_SECONDS_MIN or least == _NONE:
            return 0.0
        return least + since_epoch

    def note(self, engine_time: float, received_at: float) -> None:
        """A batch of this engine time, in seconds of its clock, was received then, in those of our
        monotonic one. A time that is not above the last one says nothing: not every engine has a
        clock.
        """
        if engine_time <= self._last_time:
            self._last_time = engine_time
            return
        self._last_time = engine_time
        apart = received_at - engine_time
        if self._count == LATENESS_COMPARED:
            self._before, self._least, self._count = self._least, apart, 0
        self._count += 1
        least = min(self._before, self._least)
        if apart < least - CLOCK_STEP_S:
            self._before, self._least = _NONE, apart - self.late_s
        elif apart < self._least:
            self._least = apart
        self.late_s = apart - min(self._before, self._least)
