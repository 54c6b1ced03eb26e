"""What is told of one answer while it comes: that it began, that it goes on, and how it ended."""

from typing import Final

from gateway.placement import PlacedRequest, Placement, Placer
from gateway.prompts import Prompts
from gateway.usage import Usage
from schemas.clock import Clock

GATEWAY_PROGRESS_S: Final = 60.0  # how often it is told that an answer still comes
GATEWAY_INTERVALS_MAX: Final = 4096  # between two pieces of an answer, of which times are learned


class Outcome:
    """See the module. It counts from when it is made: then the engine is asked.

    Args:
        prompts: are told how many tokens there were.
        placement: where it goes.

    Attributes:
        placement: as above; another one from when it is known that the request went elsewhere.
    """

    def __init__(
        self,
        placer: Placer,
        prompts: Prompts,
        placed: PlacedRequest,
        placement: Placement,
        clock: Clock,
    ) -> None:
        self._placer = placer
        self._prompts = prompts
        self.placement = placement
        self._placed = placed
        self._clock = clock
        self._is_stream = placed.request.is_stream
        self._asked_at = self._came_at = self._told_at = clock.monotonic()
        self._began_at: float | None = None
        self._intervals: list[float] = []

    def begin(self) -> None:
        """The first of the answer came; once."""
        if self._began_at is not None:
            return
        self._began_at = self._came_at = self._told_at = self._clock.monotonic()
        if self._is_stream:
            self._placer.began(self.placement, self._began_at - self._asked_at)

    def progress(self) -> None:
        """More of the answer came, or its end."""
        now = self._clock.monotonic()
        if self._began_at is not None and len(self._intervals) < GATEWAY_INTERVALS_MAX:
            self._intervals.append(now - self._came_at)
        self._came_at = now
        if now >= self._told_at + GATEWAY_PROGRESS_S:
            self._told_at = now
            self._placer.progressed(self.placement)

    def complete(self, status: int, usage: Usage | None) -> None:
        """The answer came whole.

        Args:
            status: of HTTP; from 400 on it says that there is none.
        """
        if status >= 400:
            self._placer.cancelled(self.placement)
            return
        ttft_s = None
        if self._is_stream and self._began_at is not None:
            ttft_s = self._began_at - self._asked_at
        tokens = self._placed.tokens
        if usage is not None and usage.response:
            self._placer.answered(self._placed, self.placement, usage.response)
        if usage is not None:
            self._placer.counted(self._placed, self.placement, usage)
        if usage is not None and (tokens.is_partial or not self._placed.request.tests_cache):
            usage = usage._replace(cached=None)  # no promise was of that
        self._placer.completed(self.placement, usage, ttft_s, _tbt_of(self._intervals))
        if usage is not None and usage.prompt is not None:
            self._prompts.counted(tokens, usage.prompt)


def _tbt_of(intervals: list[float]) -> float | None:
    """The mean of the longest tenth; None where there are none."""
    if not intervals:
        return None
    longest = sorted(intervals)[-max(len(intervals) // 10, 1) :]
    return sum(longest) / len(longest)
