"""Where outcomes contradict the index: an engine finds again and again more, or less, in its cache
than answers said that were `exact`.

No event tells that: what a release does not publish, and what others delete, only outcomes show.
Those of one publisher are judged OUTCOMES_MIN at a time. Once they contradict, it stays so until as
many agree, or the publisher is unregistered. Silence says nothing.

Most misses say nothing of the index, and are left out: by answers that were not `exact`, where
that was for the publisher's own sake or one's that concerns all; of requests that went elsewhere,
or whose blocks were to be fetched; of prompts that the engine counts otherwise than the decision,
which was about other tokens; of those that had to wait, or came to an engine that had computed
until a moment ago: what it stored may have taken the place of what was promised. A block more or
less is what engines differ by.
"""

from collections import OrderedDict
from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

import msgspec

from routing.bounds import CONTRADICTIONS_MAX
from routing.costs import Costs
from routing.observed.promise_totals import RecentTotals, Totals
from routing.observed.promises import IndexCause, Promise, PromiseTokens
from schemas.identities import PrefixScope, PublisherKey, StreamKey
from schemas.limits import OUTCOMES_MIN
from schemas.routing_records import (
    DecidedScope,
    Decision,
    FeedbackReport,
    Target,
    UnregisteredEngine,
)
from streams.table.scope_states import (
    NO_CONTRADICTIONS,
    Contradiction,
    Contradictions,
    common_scope,
    scope_of,
)

QUIET_S: Final = 0.25  # until what an engine has evicted is in the index, mostly: p99 0.11
CONTRADICTING_MIN: Final = 3  # of OUTCOMES_MIN: one long prompt is no pattern

_MINUTE: Final = 60.0

_Served = tuple[DecidedScope, Target]
"""Of a publisher, which may be one that no log has. Without an adapter."""


class OutcomeWindow(msgspec.Struct, array_like=True):
    """Outcomes of a publisher that are not judged yet, and what those before them said.

    Attributes:
        found: that they contradict; None where they do not.
        busy_until: it computes prompts, Unix seconds.
        totals: of those that are not judged.
        began: in that minute.
        contradicting: how many contradict what was said.
        below_gpu: of these, those that found all that was promised on a GPU.
    """

    found: Contradiction | None = None
    busy_until: float = 0.0
    totals: Totals = msgspec.field(default_factory=Totals)
    began: int = 0
    contradicting: int = 0
    below_gpu: int = 0

    def note(self, minute: int, promise: Promise, tokens: PromiseTokens) -> None:
        """One more outcome."""
        if not self.totals.reported:
            self.began = minute
        block = promise.scope.block_size
        missing = max(tokens.index - tokens.not_predicted - block, 0)
        # What only decisions promised, and the index should have had long before.
        hidden = min(tokens.actual, tokens.promised, promise.overdue)
        hidden = max(hidden - (tokens.promised - tokens.predicted), 0)
        unpromised = max(tokens.unpromised + hidden - block, 0)
        tokens = msgspec.structs.replace(
            tokens, index=missing, not_predicted=0, unpromised=unpromised
        )
        self.totals.note_tokens(tokens, promise.cause)
        if not (missing or unpromised or tokens.promised == tokens.predicted):
            return  # as nearly all
        one = Totals()
        one.note_tokens(tokens, promise.cause)
        if one.has_misses or one.has_surprises or one.has_silent_hits:
            self.contradicting += 1
            is_below = promise.cached - promise.predicted > promise.gpu
            on_gpu = min(promise.gpu, promise.usable)
            self.below_gpu += one.has_misses and is_below and tokens.actual + block >= on_gpu

    def judge(self, now: float) -> None:
        """Finds whether they contradict, once there are enough, and begins again."""
        if self.totals.reported < OUTCOMES_MIN:
            return
        # Whole minutes: in a burst of new prompts the index has promised nothing, either.
        recent = RecentTotals(self.totals, int(now // _MINUTE) - self.began)
        if recent.minutes < 2 and self.totals.has_silent_hits and not recent.contradict:
            return
        if not recent.contradict or self.contradicting < CONTRADICTING_MIN:
            self.found = None
        elif self.found is None:
            self.found = Contradiction(now, self.below_gpu == self.contradicting)
        self.totals, self.contradicting, self.below_gpu = Totals(), 0, 0


class ContradictionsState(msgspec.Struct, frozen=True, array_like=True):
    """See `OutcomeContradictions.state`; its encoding is canonical."""

    windows: tuple[tuple[_Served, OutcomeWindow], ...] = ()
    forgotten: int = 0


class OutcomeContradictions:
    """See the module. Cost O(1) a decision and an outcome, O(windows) where one is judged otherwise
    than before.

    Attributes:
        current: as states of answers take it; replaced whole.
        forgotten: windows that were given up for want of room: none that contradicts.
    """

    def __init__(self, most: int = CONTRADICTIONS_MAX) -> None:
        self.current: Contradictions = NO_CONTRADICTIONS
        self.forgotten = 0
        self._most = most
        self._windows: OrderedDict[_Served, OutcomeWindow] = OrderedDict()

    def decided(self, now: float, promise: Promise, decision: Decision) -> None:
        """A decision, which may test the index: its promise says whether it does."""
        served = _served(promise)
        window = self._windows.get(served)
        if window is None:
            window = self._windows[served] = OutcomeWindow()
        self._windows.move_to_end(served)
        if len(self._windows) > self._most:
            # The last one is new; the others may all be contradicted.
            self._windows.pop(next(one for one, its in self._windows.items() if its.found is None))
            self.forgotten += 1
        is_exact = promise.cause is IndexCause.EVICTED
        # Else for the sake of another one, or for what outcomes contradict.
        is_own = decision.is_sure and promise.cause is not IndexCause.STALE
        if promise.scope.lora_name:  # what is unknown of its adapter may be why
            is_own &= common_scope(PrefixScope(*promise.scope)) in self.current.scopes
        one = decision.candidates[decision.chosen]
        is_idle = not one.wait_s and now >= window.busy_until + QUIET_S
        is_plain = not (promise.fetched or promise.decode or promise.is_approximate)
        if (is_exact or is_own) and is_idle and is_plain and decision.costs:
            whole_s = Costs(**decision.costs[one.costs]._asdict()).prefill_s(promise.prompt, 0)
            promise.test_s = max(2 * whole_s, QUIET_S)
        window.busy_until = max(window.busy_until, now + promise.ttft_s)

    def begun(self, now: float, promise: Promise) -> None:
        """An engine has computed a prompt."""
        window = self._windows.get(_served(promise))
        if window is not None:
            window.busy_until = max(window.busy_until, now)

    def told(
        self, now: float, promise: Promise, tokens: PromiseTokens, outcome: FeedbackReport
    ) -> None:
        """An engine has told its hits of a prompt; passed over where that says nothing."""
        window = self._windows.get(_served(promise))
        is_test = (outcome.ttft_s or 0.0) < promise.test_s and not promise.moved
        is_same = outcome.prompt_tokens in (None, promise.prompt)  # as that of the decision
        if window is not None and is_test and is_same and (tokens.promised or tokens.actual):
            window.note(int(now // _MINUTE), promise, tokens)
            before = window.found
            window.judge(now)
            if window.found is not before:
                self._renew()

    def forget(self, gone: Iterable[UnregisteredEngine]) -> None:
        """Engines that are registered no more. Cost O(windows)."""
        engines = set(gone)
        for scope, target in list(self._windows):
            if UnregisteredEngine(target, scope.model_name) in engines:
                del self._windows[scope, target]
        self._renew()

    def state(self) -> ContradictionsState:
        """All of it, as it stands: to be encoded before anything else is folded."""
        return ContradictionsState(tuple(self._windows.items()), self.forgotten)

    def restore(self, state: ContradictionsState) -> None:
        """The inverse of `state`, into one that is empty."""
        self.forgotten = state.forgotten
        self._windows.update(state.windows)
        self._renew()

    def _renew(self) -> None:
        found = {
            _publisher_of(served): window.found
            for served, window in self._windows.items()
            if window.found is not None
        }
        if found != self.current.publishers:
            scopes = frozenset(scope_of(one.stream) for one in found)
            self.current = Contradictions(MappingProxyType(found), scopes)


def _served(promise: Promise) -> _Served:
    scope = promise.scope
    return scope._replace(lora_name="") if scope.lora_name else scope, promise.target


def _publisher_of(served: _Served) -> PublisherKey:
    (tenant_id, model_name, _, block_size, additional_salt), target = served
    stream = StreamKey(tenant_id, model_name, block_size, additional_salt, target.instance_id)
    return PublisherKey(stream, target.dp_rank)
