"""All that decisions and outcomes show beside bookings, in one fold.

Whoever folds the routing log calls `advance` with the time of each record, `decided` with each of
its decisions and `reported` with each outcome of a known one, in the order of the log.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from routing.incremental_encoding import array_header, pieces_of
from routing.observed import prediction_rules
from routing.observed.contradictions import ContradictionsState, OutcomeContradictions
from routing.observed.hot_prefixes import HotPrefixes, HotState
from routing.observed.open_promises import OpenPromises, OpenState
from routing.observed.predicted_blocks import (
    PredictedHolders,
    PredictedState,
)
from routing.observed.promise_totals import PromiseKey, PromiseTotals, TotalsState
from routing.observed.promises import Promise, kept, promise_of
from routing.observed.sessions import Sessions, SessionsState
from schemas.codec import check_state_version
from schemas.errors import RecordFormatError
from schemas.routing_records import (
    ENDS,
    FIRST_TOKEN,
    Decision,
    FeedbackReport,
    UnregisteredEngine,
)

OBSERVATIONS_VERSION: Final = 1

_LAST_TIME: Final = 2.0**40
"""A record that says a later one counts as of this, so that minutes and steps stay numbers."""


class ObservationsState(msgspec.Struct, frozen=True, array_like=True):
    """A checkpoint; its encoding is canonical.

    Attributes:
        version: of this form; a newer one is refused.
        clock: the largest time seen, Unix seconds.
    """

    version: int
    clock: float
    open: OpenState
    totals: TotalsState
    hot: HotState
    predicted: PredictedState
    sessions: SessionsState
    contradictions: ContradictionsState = ContradictionsState()


_decoder = msgspec.msgpack.Decoder(ObservationsState)


class Observations:
    """See the module. Cost O(marks log(counters)) a decision.

    Attributes:
        clock: the largest time of a record, Unix seconds.
        open: promises of which more may be told.
        totals: promise against outcome.
        hot: the prefixes that are asked for.
        predicted: who will hold what.
        sessions: where their last requests went.
        contradictions: where outcomes contradict the index.
    """

    def __init__(self) -> None:
        self.clock = 0.0
        self.open = OpenPromises()
        self.totals = PromiseTotals()
        self.hot = HotPrefixes()
        self.predicted = PredictedHolders()
        self.sessions = Sessions()
        self.contradictions = OutcomeContradictions()

    def advance(
        self, time: float, is_under_way: Callable[[int, int], bool] = lambda run, number: False
    ) -> None:
        """It is that time, or later; what was not told of in time is taken not to be known, but
        for requests that are under way, by run and number.
        """
        if time <= self.clock:
            return
        self.clock = min(time, _LAST_TIME)
        for promise in self.open.expire(self.clock, is_under_way):
            self.totals.note_end(self.clock, promise, None)

    def decided(self, run: int, decision: Decision) -> None:
        """A decision, once.

        Args:
            decision: new to this fold.
        """
        now = self.clock
        promise = promise_of(run, now, decision)
        instance = promise.target.instance_id if promise is not None else ""
        scope = decision.scope
        key = PromiseKey(scope.tenant_id, scope.model_name, decision.policy, instance)
        self.totals.note_decision(now, key)
        self.sessions.decided(now, decision)
        if promise is None:
            self.hot.asked(now, scope, decision.marks)
            return
        self.hot.decided(now, promise)
        promise.overdue = prediction_rules.overdue(self.predicted, now, promise)
        prediction_rules.hold(self.predicted, now, promise)
        self.contradictions.decided(now, promise, decision)
        for gone in self.open.add(promise):
            self.totals.note_end(now, gone, None)

    def reported(self, run: int, outcome: FeedbackReport) -> None:
        """What came of a decision; what was told before, and of one that has ended, is passed over.

        Args:
            run: of the service that decided.
        """
        promise = self.open.find(run, outcome.number)
        if promise is None:
            return
        is_moved = promise.note_place(outcome)
        if is_moved:
            self.totals.note_moved(self.clock, promise)
        prediction_rules.follow(self.predicted, self.clock, promise, outcome, is_moved=is_moved)
        if outcome.cached_tokens is not None and not promise.has_cached:
            self._note_cached(promise, outcome, outcome.cached_tokens)
        if outcome.event is FIRST_TOKEN:
            self.contradictions.begun(self.clock, promise)
        if outcome.ttft_s is not None:
            self._note_ttft(promise, outcome.ttft_s)
        if outcome.event in ENDS:
            self.totals.note_end(self.clock, promise, outcome.event)
            self.open.close(promise)

    def forget(self, gone: Iterable[UnregisteredEngine]) -> None:
        """Engines that are registered no more: nothing is known of what they hold."""
        gone = list(gone)
        self.contradictions.forget(gone)
        for one in gone:
            self.predicted.forget(*one)

    @property
    def forgotten(self) -> dict[str, int]:
        """What was given up for want of room, by the reason under which it is counted."""
        return {
            "promises": self.open.forgotten,
            "promise_rows": self.totals.forgotten,
            "promises_crowded": self.totals.crowded_out,
            "hot_scopes": self.hot.forgotten,
            "predicted": self.predicted.forgotten,
            "sessions": self.sessions.forgotten,
            "outcome_windows": self.contradictions.forgotten,
        }

    def dump(self) -> bytes:
        """The state as a checkpoint. Cost O(state)."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """The same in pieces; nothing may be folded meanwhile."""
        yield array_header(len(ObservationsState.__struct_fields__))
        yield from pieces_of(OBSERVATIONS_VERSION)
        yield from pieces_of(self.clock)
        parts = (self.open, self.totals, self.hot, self.predicted, self.sessions)
        for part in (*parts, self.contradictions):
            yield from pieces_of(part.state())

    @classmethod
    def load(cls, encoded: bytes) -> "Observations":
        """The inverse of `dump`.

        Raises:
            NewerVersionError: a newer Reprise wrote it.
            RecordFormatError: no checkpoint.
        """
        try:
            check_state_version(encoded, "a checkpoint of observations", OBSERVATIONS_VERSION)
            state = _decoder.decode(encoded)
        except (msgspec.DecodeError, ValueError) as error:
            raise RecordFormatError(detail=f"no checkpoint of observations: {error}") from error
        one = cls()
        one.clock = state.clock
        one.open.restore(state.open)
        one.totals.restore(state.totals)
        one.hot.restore(state.hot)
        one.predicted.restore(state.predicted)
        one.sessions.restore(state.sessions)
        one.contradictions.restore(state.contradictions)
        return one

    def _note_cached(self, promise: Promise, outcome: FeedbackReport, cached: int) -> None:
        promise.has_cached = True
        prompt = outcome.prompt_tokens
        if prompt is not None:  # an engine has no more of a prompt than all of it
            cached = min(cached, prompt)
        tokens = kept(promise, cached)
        self.totals.note_cached(self.clock, promise, tokens, prompt)
        self.hot.confirmed(promise, tokens.actual)
        self.contradictions.told(self.clock, promise, tokens, outcome)

    def _note_ttft(self, promise: Promise, ttft_s: float) -> None:
        if promise.has_ttft or not promise.ttft_s or promise.moved:
            return
        promise.has_ttft = True
        self.totals.note_ttft(self.clock, promise, ttft_s)
