"""How much may be done at once, so that what comes behind it does not wait long."""

from typing import Final

_KEPT: Final = 0.75  # of what is remembered, at each turn: the last four weigh most


class TurnPace:
    """What the last turns took for each message, or byte. One thread notes, any may ask.

    Args:
        seconds: that a turn may take.
        least, most: bounds on it, whatever the last ones took.
        first: the amount before anything is known; `most` where it is not given.

    Attributes:
        amount: what is done in that time.
    """

    def __init__(self, seconds: float, *, least: int, most: int, first: int | None = None) -> None:
        self.amount = most if first is None else first
        self._turn_s = seconds
        self._least, self._most = least, most
        self._done = self._took_s = 0.0

    def note(self, done: int, took_s: float) -> None:
        """So much took so long."""
        self._done = _KEPT * self._done + done
        self._took_s = _KEPT * self._took_s + took_s
        fitting = self._turn_s * self._done / max(self._took_s, 1e-9)
        self.amount = round(min(max(fitting, self._least), self._most))
