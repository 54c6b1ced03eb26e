"""Who holds what by decisions alone, own decisions and reports included that are not back yet."""

from collections import deque
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
from routing.observed.predicted_blocks import (
    MarkIndex,
    MarkKey,
    PredictedMark,
    PromptMarks,
)
from routing.observed.promises import Promise, promise_of
from routing.overlay.own_records import OwnRecords, Stamps
from schemas.routing_records import (
    COMPLETED,
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
            promise = self.base.open.find(run, outcome.number)
            is_end = outcome.event is COMPLETED and outcome.instance_id is None
            if promise is None or (is_end and not promise.is_approximate):
                return  # it went as was foretold
            promise = copy(promise)
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
        present = self._holders.present
        if len(present):
            for target, blocks in present.longest(scope, prefixes, now).items():
                found[target] = max(found.get(target, 0), blocks)
        return found


class _OwnHolders:
    """What own records say that targets hold, or no more. A mark leaves with its record: until then
    it lasts as long as its decision says, and as long as without a capacity.

    Attributes:
        present: marks that an own record made.
        absent: marks of the base that an own record took away.
    """

    def __init__(self, own: OwnRecords) -> None:
        self.present = MarkIndex()
        self.absent: Stamps[MarkKey] = Stamps(own, PREDICTED_MARKS_MAX)
        self._own = own
        # By own record, in their order: its number, and the marks that it made.
        self._made: deque[tuple[int, PromptMarks]] = deque()

    def decided(
        self,
        time: float,
        target: Target,
        scope: DecidedScope,
        marks: Sequence[PrefixMark],
        *,
        lasts_s: float,
        capacity_blocks: int = 0,
    ) -> None:
        """See `PredictedHolders`; of an own record, told last."""
        until = time + lasts_s
        made = {
            prefix: PredictedMark(blocks, 0, lasts_s, until)
            for blocks, prefix in marks[:DECISION_MARKS_MAX]
        }
        prompt = PromptMarks(target, scope, lasts_s, until, made)
        self.present.put(prompt)
        if self.absent:
            for prefix in made:
                self.absent.discard((target, scope, prefix))
        self._made.append((self._own.last, prompt))
        while len(self._made) > PROMISES_OPEN_MAX or len(self.present) > PREDICTED_MARKS_MAX:
            self._leave_first()

    def failed(self, target: Target, scope: DecidedScope, marks: Sequence[PrefixMark]) -> None:
        """See `PredictedHolders`."""
        for _, prefix in marks[:DECISION_MARKS_MAX]:
            self.present.take(target, scope, prefix)
            self.absent.put((target, scope, prefix))

    def forget(self, target: Target, model_name: str) -> None:
        """See `PredictedHolders`. Cost O(own records)."""
        for _, prompt in self._made:
            if prompt.target == target and prompt.scope.model_name == model_name:
                self.present.leave(prompt)

    def leave(self) -> None:
        """Gives up what came back, or is lost."""
        while self._made and self._made[0][0] <= self._own.back:
            self._leave_first()
        self.absent.leave()

    def _leave_first(self) -> None:
        """Gives up the marks of the first record but for those that a later one made again."""
        self.present.leave(self._made.popleft()[1])
