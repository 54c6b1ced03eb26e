"""Who holds what by decisions alone, own decisions and reports included that are not back yet."""

from collections.abc import Iterable, Sequence
from copy import copy

from routing.bounds import (
    DECISION_MARKS_MAX,
    LOAD_TARGETS_MAX,
    PREDICTED_MARKS_MAX,
    PROMISES_OPEN_MAX,
)
from routing.fold.booking import DecisionKey
from routing.observed import prediction_rules
from routing.observed.observations import Observations
from routing.observed.predicted_blocks import MarkKey, PredictedHolders, PredictedMark
from routing.observed.promises import Promise, promise_of
from routing.overlay.own_records import OwnRecords, Stamps
from schemas.routing_records import (
    DecidedScope,
    Decision,
    FeedbackReport,
    PrefixMark,
    Target,
    UnregisteredEngine,
)


class OverlaidPredictions:
    """The same rules as the fold's (`routing.observed.prediction_rules`), for own records alone.

    Attributes:
        base: of the fold: its holders, and its promises of which more may be told.
    """

    def __init__(self, own: OwnRecords) -> None:
        """Args:
        own: records of this process.
        """
        self.base = Observations()
        self._holders = _OwnHolders(own)
        self._promises: dict[DecisionKey, Promise] = {}
        self._stamps: Stamps[DecisionKey] = Stamps(own, PROMISES_OPEN_MAX)
        self._unregistered: Stamps[UnregisteredEngine] = Stamps(own, LOAD_TARGETS_MAX)

    def decided(self, run: int, now: float, decision: Decision) -> None:
        """An own decision, told last."""
        promise = promise_of(run, now, decision)
        if promise is not None:
            prediction_rules.hold(self._holders, now, promise)
            self._keep(promise)

    def reported(self, run: int, now: float, outcome: FeedbackReport) -> None:
        """Something new was reported here, and told last."""
        promise = self._promises.get((run, outcome.number))
        if promise is None:
            promise = copy(self.base.open.find(run, outcome.number))
        if promise is None:
            return
        is_moved = promise.note_place(outcome)
        prediction_rules.follow(self._holders, now, promise, outcome, is_moved=is_moved)
        self._keep(promise)

    def _keep(self, promise: Promise) -> None:
        key = (promise.run, promise.number)
        if len(self._promises) < PROMISES_OPEN_MAX or key in self._promises:
            self._promises[key] = promise
            self._stamps.put(key)

    def forget(self, engines: Iterable[UnregisteredEngine]) -> None:
        """These serve their model no more; the log has yet to say so."""
        for one in engines:
            self._holders.forget(*one)
            self._unregistered.put(one)

    def forgotten(self, engines: Iterable[UnregisteredEngine]) -> None:
        """The log says so."""
        for one in engines:
            self._unregistered.discard(one)

    def leave(self) -> None:
        """Gives up what came back, or is lost."""
        self._holders.leave()
        self._unregistered.leave()
        for key in self._stamps.leaving():
            self._promises.pop(key, None)

    def longest(self, scope: DecidedScope, prefixes: bytes, now: float) -> dict[Target, int]:
        """See `PredictedHolders.longest`."""
        found = self.base.predicted.longest(scope, prefixes, now, but=self._holders.absent)
        if self._unregistered:
            model, gone = scope.model_name, self._unregistered
            found = {one: found[one] for one in found if UnregisteredEngine(one, model) not in gone}
        if len(self._holders):
            for target, blocks in self._holders.longest(scope, prefixes, now).items():
                found[target] = max(found.get(target, 0), blocks)
        return found


class _OwnHolders(PredictedHolders):
    """What own records say that targets hold, or no more.

    Attributes:
        absent: marks of the base that an own record took away.
    """

    def __init__(self, own: OwnRecords) -> None:
        super().__init__()
        self.absent: Stamps[MarkKey] = Stamps(own, PREDICTED_MARKS_MAX)
        self._present: Stamps[MarkKey] = Stamps(own, PREDICTED_MARKS_MAX)

    def failed(self, target: Target, scope: DecidedScope, marks: Sequence[PrefixMark]) -> None:
        super().failed(target, scope, marks)
        for _, prefix in marks[:DECISION_MARKS_MAX]:
            self.absent.put((target, scope, prefix))

    def leave(self) -> None:
        """Gives up what came back, or is lost."""
        for key in self._present.leaving():
            self._drop(key)
        self.absent.leave()

    def _note(self, key: MarkKey, mark: PredictedMark) -> None:
        super()._note(key, mark)
        for gone in self._present.put(key):
            self._drop(gone)
        self.absent.discard(key)
