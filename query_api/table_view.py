"""The part of `query_api.ports.View` that every form answers from its table in the same way."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from query_api.change_signal import ChangeSignal
from query_api.gaps import LedgerView
from query_api.ports import Positions, SegmentView, ServiceView
from query_api.segments import segment_views
from schemas.answer_states import (
    BEHIND_LOG,
    DAMAGED_ROWS,
    AnswerState,
    Doubt,
    Standing,
    Verdict,
    badness,
)
from schemas.clock import REAL_CLOCK
from schemas.identities import PrefixScope, PublisherKey
from schemas.memory_segments import SegmentKey, SegmentState
from schemas.positions import PublisherState
from schemas.registration import Registration
from streams.kernel.interface import ReadOnlyKernel
from streams.table.ledger import NO_LEDGERS, Ledger
from streams.table.scope_states import (
    NO_CONTRADICTIONS,
    Contradictions,
    FreshUntil,
    ScopeStates,
)

WITHOUT_EVENTS: Final = Standing(AnswerState.UNCONFIRMED, Doubt.NO_EVENTS, 0.0)
"""Of an engine that publishes none: nothing of it is in the table, whose answers it changes not."""


_WITHOUT_ADAPTER: Final = Standing(AnswerState.UNCONFIRMED, Doubt.ADAPTER_UNKNOWN, 0.0)
_RELOADED: Final = Standing(AnswerState.UNCONFIRMED, Doubt.ADAPTER_RELOADED, 0.0)


class TableView(ABC):
    """A table as the HTTP API reads it; `health` is the form's own.

    A form says what its table has now by the methods below; each is called each time, because
    recovery and a new snapshot replace the table.

    Args:
        changes: what verdicts depend on is told there; None: to the view alone.
        clock: of `_fresh_until` and `_stale_at`.
        wall_clock: of segments of memory, Unix seconds.
    """

    def __init__(
        self,
        *,
        changes: ChangeSignal | None = None,
        clock: Callable[[], float] = REAL_CLOCK.monotonic,
        wall_clock: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        self._changes = ChangeSignal() if changes is None else changes
        self._contradictions = NO_CONTRADICTIONS
        self._now = clock
        self._wall_clock = wall_clock

    # What a form says of its table

    @property
    @abstractmethod
    def kernel(self) -> ReadOnlyKernel:
        """See `query_api.ports.View`: the index that answers queries."""

    @abstractmethod
    def positions(self) -> Positions:
        """See `query_api.ports.View`: what the table has folded, by rising partition."""

    @abstractmethod
    def _publishers(self) -> Mapping[PublisherKey, PublisherState]:
        """What is folded of each publisher."""

    @abstractmethod
    def _registrations(self) -> Iterable[Registration]:
        """Who is registered, in a collection that is never changed."""

    @abstractmethod
    def _states(self) -> ScopeStates:
        """States of the answers, by scope."""

    @abstractmethod
    def _fresh_until(self) -> FreshUntil:
        """See `ScopeStates`."""

    @abstractmethod
    def _stale_at(self) -> float:
        """From when on the table is behind its log, by the clock; -inf where it is."""

    def _is_damaged(self, scope: PrefixScope) -> bool:
        """Whether something of a scope is missing for another reason than lost batches."""
        return False

    def _connected(self, publisher: PublisherKey) -> bool | None:
        """Whether the link to a publisher is up; None where this process cannot know."""
        return None

    def _activity(self, publisher: PublisherKey) -> tuple[str, float] | None:
        """What a publisher does, and since when; None where only its bridge knows, which has
        written it into the log.
        """
        return None

    def _ledgers(self) -> Mapping[PublisherKey, Ledger]:
        """What became of each publisher's batches."""
        return NO_LEDGERS

    def _segments(self) -> Mapping[SegmentKey, SegmentState]:
        """What is known of segments of memory."""
        return {}

    # View

    def state(self, scope: PrefixScope) -> AnswerState:
        """See `query_api.ports.View`."""
        return self.verdict(scope).state

    def verdict(self, scope: PrefixScope) -> Verdict:
        """See `query_api.ports.View`."""
        now, stale_at = self._now(), self._stale_at()
        if now >= stale_at:
            return Verdict(AnswerState.STALE)
        if self._is_damaged(scope):
            return Verdict(AnswerState.DEGRADED)
        state, until = self._states().verdict(scope, self._fresh_until(), now, self._contradictions)
        if state is AnswerState.EXACT and scope.lora_name and self.kernel.without_adapter(scope):
            return Verdict(AnswerState.UNCONFIRMED)
        return Verdict(state, min(until, stale_at))

    def notify(self, changed: Callable[[], None]) -> None:
        """See `query_api.ports.View`."""
        self._changes.tell(changed)

    def changed(self) -> None:
        """Something that verdicts depend on is another than before."""
        self._changes.changed()

    def contradict(self, contradictions: Contradictions) -> None:
        """Outcomes contradict this and nothing else of what the table says. From any thread."""
        self._contradictions = contradictions
        self.changed()

    def instance_standings(self, scope: PrefixScope) -> dict[str, Standing]:
        """See `query_api.ports.View`."""
        registered = {one.publisher: one for one in self._registrations()}
        known = self._publishers()
        worst: dict[str, Standing] = {}
        readers: dict[str, list[Registration | None]] = {}
        shared: list[tuple[str, bool, Standing]] = []
        for publisher in self._states().publishers(scope):
            name, standing = publisher.stream.instance_id, self.standing(publisher)
            state, one = known.get(publisher), registered.get(publisher)
            is_pool = one is not None and one.is_pool
            if is_pool or (state is not None and state.concerns_all):
                called = name if one is None else one.shared_as
                shared.append((called, state is not None and state.doubts_others, standing))
            if scope.lora_name and self._states().reloads_adapters(publisher):
                standing = _worse(standing, _RELOADED)
            if not is_pool:
                worst[name] = _worse(worst.get(name, standing), standing)
                readers.setdefault(name, []).append(one)
        for name, ranks in readers.items():
            read = [
                any(rank is None or rank.can_read(called) for rank in ranks)
                for called, _, _ in shared
            ]
            for (_, doubts_others, standing), is_read in zip(shared, read, strict=True):
                if is_read or (doubts_others and any(read)):
                    worst[name] = _worse(worst[name], standing)
        for name in self.kernel.without_adapter(scope) if scope.lora_name else ():
            if name in worst:
                worst[name] = _worse(worst[name], _WITHOUT_ADAPTER)
        return worst

    def standing(self, publisher: PublisherKey) -> Standing:
        """See `query_api.ports.View`."""
        if self._now() >= self._stale_at():
            return Standing(AnswerState.STALE, BEHIND_LOG, 0.0)
        if self._is_damaged(_scope_of(publisher)):
            return Standing(AnswerState.DEGRADED, DAMAGED_ROWS, 0.0)
        return self._states().standing(
            publisher, self._fresh_until(), self._now(), self._contradictions
        )

    def standings(self) -> dict[PublisherKey, Standing]:
        """Of every registered publisher of events. Cost O(publishers)."""
        return {
            one.publisher: self.standing(one.publisher)
            for one in self._registrations()
            if one.has_events
        }

    def services(self) -> list[ServiceView]:
        """See `query_api.ports.View`."""
        views: dict[Registration, ServiceView] = {}
        for view in map(self._view, self._registrations()):
            # Of the members of a pool, the one that is worst, and the one that is least far.
            known = views.get(view.registration, view)
            views[view.registration] = max(known, view, key=_badness)
        return sorted(views.values(), key=lambda view: view.registration.service_key)

    def registered(self) -> list[Registration]:
        """See `query_api.ports.View`."""
        return list(self._registrations())

    def ledgers(self) -> list[LedgerView]:
        """See `query_api.ports.View`."""
        states = self._publishers()
        known = list(self._ledgers().items())
        return [LedgerView(one, ledger, states.get(one)) for one, ledger in known]

    def memory(self) -> list[SegmentView]:
        """See `query_api.ports.View`."""
        return segment_views(dict(self._segments()), self._registrations(), now=self._wall_clock())

    def _view(self, registration: Registration) -> ServiceView:
        publisher = registration.publisher
        if not registration.has_events:
            return ServiceView(registration, PublisherState(), None, WITHOUT_EVENTS)
        state = self._publishers().get(publisher, PublisherState())
        activity = self._activity(publisher)
        if activity is None:
            said = state.confirmation
            activity = ("", 0.0) if said is None else (said.activity, said.activity_since)
        connected, standing = self._connected(publisher), self.standing(publisher)
        return ServiceView(registration.as_registered, state, connected, standing, activity)


def _worse(one: Standing, other: Standing) -> Standing:
    return other if badness(other.state) > badness(one.state) else one


def _badness(view: ServiceView) -> tuple[int, int, int]:
    return badness(view.standing.state), -view.state.incarnation, -view.state.sequence


def _scope_of(publisher: PublisherKey) -> PrefixScope:
    tenant_id, model_name, block_size, additional_salt, _ = publisher.stream
    return PrefixScope(tenant_id, model_name, "", block_size, additional_salt)
