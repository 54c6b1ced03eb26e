"""The part of `query_api.ports.View` that every form answers from its table in the same way."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

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
from schemas.memory import SegmentKey, SegmentState
from schemas.positions import SHARES, PublisherState
from schemas.registration import Registration
from streams.kernel.interface import ReadOnlyKernel
from streams.table.ledger import NO_LEDGERS, Ledger
from streams.table.scope_states import FreshUntil, ScopeStates

WITHOUT_EVENTS: Final = Standing(AnswerState.UNCONFIRMED, Doubt.NO_EVENTS, 0.0)
"""Of an engine that publishes none: nothing of it is in the table, whose answers it changes not."""


class TableView:
    """A table as the HTTP API reads it; `health` is the form's own.

    The arguments are called each time, because recovery and a new snapshot replace the table.

    Args:
        kernel: the index that answers queries.
        publishers: what is folded of each publisher.
        registrations: who is registered, in a collection that is never changed.
        positions: what the table has folded, by rising partition.
        states: of the answers, by scope.
        fresh_until: see `ScopeStates`.
        stale_at: from when on the table is behind its log, by the clock; -inf where it is.
        is_damaged: whether something of a scope is missing for another reason than lost batches.
        connected: whether the link to a publisher is up; None where this process cannot know.
        ledgers: what became of each publisher's batches.
        clock: of `fresh_until`.
        acting: what a publisher does, and since when; None where only its bridge knows, which has
            written it into the log.
        segments: what is known of segments of memory.
        wall_clock: of these, Unix seconds.
    """

    _notify: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        *,
        kernel: Callable[[], ReadOnlyKernel],
        publishers: Callable[[], Mapping[PublisherKey, PublisherState]],
        registrations: Callable[[], Iterable[Registration]],
        positions: Callable[[], Positions],
        states: Callable[[], ScopeStates],
        fresh_until: Callable[[], FreshUntil],
        stale_at: Callable[[], float],
        is_damaged: Callable[[PrefixScope], bool] = lambda scope: False,
        clock: Callable[[], float] = REAL_CLOCK.monotonic,
        connected: Callable[[PublisherKey], bool | None] = lambda publisher: None,
        acting: Callable[[PublisherKey], tuple[str, float] | None] = lambda publisher: None,
        ledgers: Callable[[], Mapping[PublisherKey, Ledger]] = lambda: NO_LEDGERS,
        segments: Callable[[], Mapping[SegmentKey, SegmentState]] = dict,
        wall_clock: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        self._kernel = kernel
        self._publishers = publishers
        self._registrations = registrations
        self._positions = positions
        self._states = states
        self._fresh_until = fresh_until
        self._stale_at = stale_at
        self._is_damaged = is_damaged
        self._now = clock
        self._connected = connected
        self._acting = acting
        self._ledgers = ledgers
        self._segments = segments
        self._wall_clock = wall_clock

    @property
    def kernel(self) -> ReadOnlyKernel:
        """See `query_api.ports.View`."""
        return self._kernel()

    def positions(self) -> Positions:
        """See `query_api.ports.View`."""
        return self._positions()

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
        state, until = self._states().verdict(scope, self._fresh_until(), now)
        return Verdict(state, min(until, stale_at))

    def notify(self, changed: Callable[[], None]) -> None:
        """See `query_api.ports.View`."""
        self._notify = changed

    def changed(self) -> None:
        """Something that verdicts depend on is another than before."""
        self._notify()

    def instance_standings(self, scope: PrefixScope) -> dict[str, Standing]:
        """See `query_api.ports.View`."""
        pools = {one.publisher for one in self._registrations() if one.is_pool}
        known = self._publishers()
        worst: dict[str, Standing] = {}
        shared: list[Standing] = []
        for publisher in self._states().publishers(scope):
            name, standing = publisher.stream.instance_id, self.standing(publisher)
            state = known.get(publisher)
            if publisher in pools or (state is not None and state.media & SHARES):
                shared.append(standing)
            if publisher not in pools:
                worst[name] = _worse(worst.get(name, standing), standing)
        for standing in shared:  # what every instance holds
            worst = {name: _worse(one, standing) for name, one in worst.items()}
        return worst

    def standing(self, publisher: PublisherKey) -> Standing:
        """See `query_api.ports.View`."""
        if self._now() >= self._stale_at():
            return Standing(AnswerState.STALE, BEHIND_LOG, 0.0)
        if self._is_damaged(_scope_of(publisher)):
            return Standing(AnswerState.DEGRADED, DAMAGED_ROWS, 0.0)
        return self._states().standing(publisher, self._fresh_until(), self._now())

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
        acting = self._acting(publisher)
        if acting is None:
            said = state.confirmation
            acting = ("", 0.0) if said is None else (said.activity, said.activity_since)
        connected, standing = self._connected(publisher), self.standing(publisher)
        return ServiceView(registration.as_registered, state, connected, standing, acting)


def _worse(one: Standing, other: Standing) -> Standing:
    return other if badness(other.state) > badness(one.state) else one


def _badness(view: ServiceView) -> tuple[int, int, int]:
    return badness(view.standing.state), -view.state.incarnation, -view.state.sequence


def _scope_of(publisher: PublisherKey) -> PrefixScope:
    tenant_id, model_name, block_size, additional_salt, _ = publisher.stream
    return PrefixScope(tenant_id, model_name, "", block_size, additional_salt)
