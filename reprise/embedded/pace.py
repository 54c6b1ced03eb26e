"""How much may be folded at once, so that what comes behind it does not wait long."""

from typing import Final

from schemas.limits import FOLD_TURN_BYTES_MAX, FOLD_TURN_BYTES_MIN, FOLD_TURN_S

_KEPT: Final = 0.75  # of what is remembered, at each turn: the last four weigh most


class Pace:
    """What the last turns took to fold, for each byte: a removed block has nine of them, a stored
    one of 16 tokens some seventy. One thread notes, any may ask.

    Attributes:
        turn_bytes: of records that are folded in FOLD_TURN_S, within FOLD_TURN_BYTES_MIN and
            FOLD_TURN_BYTES_MAX.
    """

    def __init__(self) -> None:
        self.turn_bytes = FOLD_TURN_BYTES_MAX
        self._bytes = 0.0
        self._seconds = 0.0

    def note(self, size_bytes: int, seconds: float) -> None:
        """So many bytes of records took so many seconds, flushes between them included."""
        self._bytes = _KEPT * self._bytes + size_bytes
        self._seconds = _KEPT * self._seconds + seconds
        fitting = FOLD_TURN_S * self._bytes / max(self._seconds, 1e-9)
        self.turn_bytes = round(min(max(fitting, FOLD_TURN_BYTES_MIN), FOLD_TURN_BYTES_MAX))
