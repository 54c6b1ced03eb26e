"""Which engines fail what they are sent, as clients report: a fold of decisions and outcomes.

An engine is left out once FAILING_RUN requests in a row have failed there, before their first token
or behind it. Where requests fail at the other engines of the model, too, it takes as many in a row
as chance alone would give once in a thousand: what fails everywhere is a client's, or a prompt's,
and no engine's.

It is tried again by one request, after a second; where that fails or is not told of, after twice as
long, and so on, up to FAILING_BACKOFF_MAX_S. A first token or a `completed` of one that was sent
since brings it back; so does a minute in which no failure was reported. What was sent before it was
left out counts neither for nor against it. Left out again within a minute, it goes on with the
back-off that it had.

All of it is of a target, so of one tenant: what its clients report leaves out nothing of others. A
client that makes requests fail on its own account keeps an engine from others of its tenant for
FAILING_BACKOFF_MAX_S at most between two trials, and not at all once it fails at the others, too.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from routing.bounds import FAILING_ENDS_KEPT, LOAD_MODELS_MAX
from routing.by_target import ByTarget
from routing.fold.booking import Booking
from schemas.routing_records import (
    COMPLETED,
    FAILED,
    FIRST_TOKEN,
    Decision,
    OutcomeEvent,
    Target,
    UnregisteredEngine,
)

FAILING_RUN: Final = 3  # requests that fail in a row, at least, before an engine is left out
FAILING_CHANCE: Final = 0.001  # or as many as are as seldom, where they fail at the others, too
FAILING_BACKOFF_FIRST_S: Final = 1.0  # until it is tried again; doubled with each trial that fails
FAILING_BACKOFF_MAX_S: Final = 30.0  # until the next trial, at the most
FAILING_DOUBLINGS_MAX: Final = 16  # so that no power of two overflows
FAILING_QUIET_S: Final = 60.0  # without a failure, and it is as others are

ModelKey = tuple[str, str]
"""Tenant and model."""


class FailureState(msgspec.Struct, array_like=True):
    """What is remembered of a target that failed.

    Attributes:
        run: requests in a row that failed before their first token.
        broken: the same behind their first token; of those, only an end in good order ends a run.
        failed_at: when that was last, Unix seconds.
        since: it is left out since; 0 where it is not.
        until: then one request may be tried.
        times: that it was left out or tried, without a minute in good order between.
    """

    run: int = 0
    broken: int = 0
    failed_at: float = 0.0
    since: float = 0.0
    until: float = 0.0
    times: int = 0

    @property
    def backoff_s(self) -> float:
        """Until the next trial."""
        doubled = FAILING_BACKOFF_FIRST_S * 2.0 ** min(
            max(self.times - 1, 0), FAILING_DOUBLINGS_MAX
        )
        return min(doubled, FAILING_BACKOFF_MAX_S)

    def is_known(self, now: float) -> bool:
        """Whether a failure was reported lately: else it is as others are."""
        return now - self.failed_at < FAILING_QUIET_S

    def is_failing(self, now: float) -> bool:
        """Whether it is given nothing but trials."""
        return bool(self.since) and self.is_known(now)


class End(NamedTuple):
    """How a request ended that was not to tell whether its engine is back."""

    target: Target
    has_failed: bool


class Failures:
    """See the module. Cost O(1) a decision and a report, O(FAILING_ENDS_KEPT) a failure.

    Attributes:
        left_out: how often a target was.
    """

    def __init__(self) -> None:
        self.left_out = 0
        self._known: ByTarget[FailureState] = ByTarget()
        self._ends: OrderedDict[ModelKey, deque[End]] = OrderedDict()

    def decided(self, now: float, decision: Decision) -> None:
        """A request was sent somewhere: where it is a trial, no other one is, for a while. What is
        sent to one that is left out, as all others are, too, is none.
        """
        if not len(self):
            return
        for place in {decision.chosen, decision.decode} - {-1}:
            target = decision.target(place)
            one = self._find(target)
            if one is not None and one.is_failing(now) and now >= one.until:
                one = self._change(target, one)
                one.times += 1
                one.until = now + one.backoff_s

    def reported(self, now: float, booking: Booking, event: OutcomeEvent) -> None:
        """Something new was reported of a request; `now` by the time of records."""
        places = booking.targets
        if event is FIRST_TOKEN:
            self._worked(now, booking.time, places[0], is_end=False)
        elif event is FAILED:
            has_begun = booking.has_begun
            target = places[-1] if has_begun else places[0]
            model = (booking.tenant_id, booking.model_name)
            self._failed(now, booking.time, target, model, has_begun=has_begun)
        elif event is COMPLETED:
            for target in places:
                self._worked(now, booking.time, target, is_end=True)
                self._note_end(now, (target[0], booking.model_name), End(target, False))

    def _failed(
        self, now: float, sent_at: float, target: Target, model: ModelKey, *, has_begun: bool
    ) -> None:
        one = self._find(target)
        if one is None or not one.is_known(now):
            one = FailureState()
        is_trial = one.is_failing(now)
        if is_trial and sent_at < one.since:
            return
        one = self._change(target, one)
        if has_begun:
            one.broken += 1
        else:
            one.run += 1
        one.failed_at = now
        self._known.put(target, one)
        if not self._is_worse(now, one, target, model):
            one.since = 0.0  # the others fail likewise
        elif not is_trial:
            one.since = now
            one.times += 1
            self.left_out += 1
        if one.since:
            one.until = now + one.backoff_s
        if not is_trial:
            self._note_end(now, model, End(target, has_failed=True))

    def _worked(self, now: float, sent_at: float, target: Target, *, is_end: bool) -> None:
        one = self._find(target)
        if one is None or (one.is_failing(now) and sent_at < one.since):
            return
        if not one.is_known(now):
            self._drop(target)
            return
        one = self._change(target, one)
        if one.since:
            one.times = max(one.times - 1, 0)  # this trial was none that failed
        one.run, one.since = 0, 0.0
        if is_end:
            one.broken = 0

    def _is_worse(self, now: float, one: FailureState, target: Target, model: ModelKey) -> bool:
        """Whether it fails more in a row than by chance, by how often the model's others fail."""
        run = max(one.run, one.broken)
        if run < FAILING_RUN:
            return False
        others = [
            end.has_failed
            for end in self._ends_of(model)
            if end.target != target and not self.is_failing(end.target, now)
        ]
        share, chance = sum(others) / (len(others) + 1), 1.0
        for _ in range(run):
            chance *= share
            if chance <= FAILING_CHANCE:
                return True
        return False

    def _note_end(self, now: float, model: ModelKey, end: End) -> None:
        if self.is_failing(end.target, now):
            return
        ends = self._ends[model] = self._ends_of(model)
        ends.append(end)
        self._ends.move_to_end(model)
        if len(self._ends) > LOAD_MODELS_MAX:
            self._ends.popitem(last=False)

    def forget(self, engines: Iterable[UnregisteredEngine]) -> None:
        """Whoever has their names next are others."""
        for target, _ in engines:
            self._drop(target)

    # What an overlay does otherwise: see `routing.overlay.failures`

    def _find(self, target: Target) -> FailureState | None:
        return self._known.get(target)

    def _change(self, target: Target, one: FailureState) -> FailureState:
        """What is to be changed of a target."""
        return one

    def _drop(self, target: Target) -> None:
        self._known.pop(target)

    def _ends_of(self, model: ModelKey) -> deque[End]:
        """How the last requests of a model ended, to be changed."""
        ends = self._ends.get(model)
        return deque(maxlen=FAILING_ENDS_KEPT) if ends is None else ends

    # What is asked

    def find(self, target: Target) -> FailureState | None:
        """What is remembered of a target; not to be changed."""
        return self._find(target)

    def ends_of(self, model: ModelKey) -> Iterable[End]:
        """How the last requests of a model ended."""
        return self._ends.get(model, ())

    @property
    def dropped(self) -> int:
        """Targets that had to go for others."""
        return self._known.dropped

    def __len__(self) -> int:
        """How many targets have failed something."""
        return len(self._known)

    def is_failing(self, target: Target, now: float) -> bool:
        """Whether it is left out, but for trials."""
        one = self._find(target)
        return one is not None and one.is_failing(now)

    def is_left_out(self, target: Target, now: float) -> bool:
        """Whether it may be sent nothing now, not even a trial."""
        one = self._find(target)
        return one is not None and now < one.until and one.is_failing(now)

    def failing(self, now: float) -> list[tuple[Target, FailureState]]:
        """Those that are left out, but for trials, sorted. Cost O(targets that failed)."""
        found = [(target, one) for target, one in self._known.items() if one.is_failing(now)]
        return sorted(found, key=lambda item: item[0])

    # Checkpoints

    def state(self) -> "FailuresState":
        """All of it, as it stands: to be encoded before anything else is folded."""
        return FailuresState(
            self.left_out,
            tuple(self._known.items()),
            tuple((model, tuple(ends)) for model, ends in self._ends.items()),
        )

    def restore(self, state: "FailuresState") -> None:
        """The inverse of `state`, in place of what is known."""
        self._known = ByTarget()
        for target, one in state.targets:
            self._known.put(target, msgspec.structs.replace(one))
        self._ends = OrderedDict(
            (model, deque(ends, maxlen=FAILING_ENDS_KEPT)) for model, ends in state.ends
        )
        self.left_out = state.left_out


class FailuresState(msgspec.Struct, frozen=True, array_like=True):
    """See `Failures.state`; its encoding is canonical."""

    left_out: int = 0
    targets: tuple[tuple[Target, FailureState], ...] = ()
    ends: tuple[tuple[ModelKey, tuple[End, ...]], ...] = ()
