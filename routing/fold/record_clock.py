"""What time it is in a fold: by its records, whose writers may have clocks that are wrong."""

from routing.bounds import RECORD_STEP_S


class RecordClock:
    """Follows whoever writes.

    One who writes alone is believed whatever its time, after idleness; so is a service that has
    begun after the last record (its run says when) with its first one. While others write, too
    (within RECORD_STEP_S), a writer whose clock is wrong costs no more than that each time: the
    clock follows a leap in such steps, and goes back with the next record of one whose clock is
    right.

    Attributes:
        now: Unix seconds; 0 before the first record.
    """

    def __init__(self) -> None:
        self.now = 0.0
        # Who wrote last, and until when, by this clock, another one had.
        self._writer = 0
        self._others_at = float("-inf")

    def follow(self, time: float, run: int | None, *, is_known: bool) -> bool:
        """A record of that time. Returns whether the clock went on.

        Args:
            time: Unix seconds.
            run: of its writer, 0 for none; None: it is known to be that time.
            is_known: whether the run has made decisions before.
        """
        step = time - self.now
        is_believed = run is None or not self.now
        if run:
            if run != self._writer and self._writer:
                self._others_at = self.now
            self._writer = run
            has_begun = not is_known and run / 1e6 > self.now
            is_alone = self.now - self._others_at > RECORD_STEP_S
            is_believed = is_believed or has_begun or is_alone
        if step <= 0.0:
            if step < -RECORD_STEP_S:
                self.now = time
                self._others_at = min(self._others_at, time)
            return False
        self.now = time if is_believed else self.now + min(step, RECORD_STEP_S)
        return True

    def state(self) -> tuple[int, float]:
        """All of it but `now`."""
        return self._writer, max(self._others_at, 0.0)

    def restore(self, now: float, state: tuple[int, float]) -> None:
        """The inverse of `state`."""
        self.now = now
        self._writer, others_at = state
        self._others_at = others_at or float("-inf")
