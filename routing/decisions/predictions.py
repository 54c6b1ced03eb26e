"""Who holds what by decisions alone, as far as this service knows: see `LiveLoad`, which locks."""

from collections.abc import Callable, Iterable
from copy import copy

from routing.observed import sent
from routing.observed.observations import Observations
from routing.observed.open_promises import OpenPromises
from routing.observed.predicted import PredictedHolders
from routing.observed.promises import promise_of
from schemas.routing_records import DecidedScope, Decision, Outcome, Target, Unregistered


class LivePredictions:
    """The same rules as the fold's, of decisions that the log has yet to bring, too."""

    def __init__(self) -> None:
        self._holders = PredictedHolders()
        self._open = OpenPromises()

    def merge(self, observations: Observations) -> None:
        """Takes what a fold of the log knows. Cost O(marks + open promises)."""
        self._holders.restore(observations.predicted.state())
        for promise in observations.open.state().promises:
            self._open.add(copy(promise))  # the fold goes on with its own

    def decided(
        self,
        run: int,
        now: float,
        decision: Decision,
        is_under_way: Callable[[int, int], bool],
    ) -> None:
        """Somebody was chosen; by the time of records, Unix seconds. See `OpenPromises.expire`."""
        self._open.expire(now, is_under_way)
        promise = promise_of(run, now, decision)
        if promise is not None:
            sent.hold(self._holders, now, promise)
            self._open.add(promise)

    def reported(self, run: int, now: float, outcome: Outcome) -> None:
        """Something new was reported of a decision."""
        promise = self._open.find(run, outcome.number)
        if promise is None:
            return
        is_moved = promise.note_place(outcome)
        sent.follow(self._holders, now, promise, outcome, is_moved=is_moved)
        if outcome.event.is_end:
            self._open.close(promise)

    def forget(self, engines: Iterable[Unregistered]) -> None:
        """These serve their model no more. Cost O(marks) each."""
        for one in engines:
            self._holders.forget(*one)

    def longest(self, scope: DecidedScope, prefixes: bytes, now: float) -> dict[Target, int]:
        """See `PredictedHolders.longest`."""
        return self._holders.longest(scope, prefixes, now)
