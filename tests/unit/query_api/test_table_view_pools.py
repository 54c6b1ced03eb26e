"""What a pool is to whoever asks: one service, no instance, a part of what every instance has."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import pytest

from query_api.ports import Positions
from query_api.table_view import TableView
from schemas.answer_states import AnswerState, Doubt
from schemas.events import encode_events
from schemas.identities import Medium, PublisherKey
from schemas.positions import POOL_CLEARED, SHARES, Confirmation, PublisherState
from schemas.registration import Registration
from streams.kernel import open_kernel
from streams.kernel.interface import ReadOnlyKernel
from streams.table.scope_states import (
    NO_CONTRADICTIONS,
    ConfirmationSource,
    Contradiction,
    Contradictions,
    FreshUntil,
    ScopeStates,
    common_scope,
)
from tests.building import SCOPE, registration, stored

POOL = msgspec.structs.replace(
    registration("pool", kind="Mooncake", port=7000), kv_offloading="native"
)
MEMBERS = [
    msgspec.structs.replace(POOL, instance_id=f"pool#{number}", pool="pool") for number in range(3)
]
ENGINE = registration("a")


class ShownView(TableView):
    """The view of what `Shown` has."""

    def __init__(self, shown: "Shown", registrations: Sequence[Registration]) -> None:
        super().__init__(clock=lambda: 1.0)
        self._shown = shown
        self._registered = registrations
        self.kernel_in_use: ReadOnlyKernel = open_kernel(1, name="reference")

    @property
    def kernel(self) -> ReadOnlyKernel:
        return self.kernel_in_use

    def positions(self) -> Positions:
        return ()

    def _publishers(self) -> Mapping[PublisherKey, PublisherState]:
        return self._shown.publishers

    def _registrations(self) -> Iterable[Registration]:
        return self._registered

    def _states(self) -> ScopeStates:
        return self._shown.states

    def _fresh_until(self) -> FreshUntil:
        return {ConfirmationSource(0, "bridge"): 10.0}

    def _stale_at(self) -> float:
        return 10.0


class Shown:
    """A table in which these are registered, and confirmed where nothing else is said."""

    def __init__(self, *registrations: Registration) -> None:
        self.states = ScopeStates()
        self.publishers: dict[PublisherKey, PublisherState] = {}
        self.view = ShownView(self, registrations)
        for one in registrations:
            self.states.register(one.publisher, True, one)
            self.states.list(one.publisher, True)
            self.put(one, sequence=7)

    def put(
        self, one: Registration, *, sequence: int, degraded: int | None = None, media: int = 0
    ) -> None:
        said = Confirmation("bridge", "", 0.5)
        state = PublisherState(
            incarnation=1,
            sequence=sequence,
            degraded_since=degraded,
            confirmation=said,
            media=media,
        )
        self.publishers[one.publisher] = state
        self.states.put(one.publisher, state)


@pytest.fixture
def shown() -> Shown:
    return Shown(ENGINE, *MEMBERS)


def test_a_pool_is_one_service_as_it_was_registered(shown: Shown) -> None:
    found = {one.registration.instance_id: one.registration for one in shown.view.services()}
    assert found == {"a": ENGINE, "pool": POOL}


def test_a_pool_is_as_far_as_the_member_that_is_least_far(shown: Shown) -> None:
    shown.put(MEMBERS[1], sequence=3)
    [service] = [one for one in shown.view.services() if one.registration == POOL]
    assert (service.state.sequence, service.standing.state) == (3, AnswerState.EXACT)


def test_a_pool_is_as_bad_as_its_worst_member(shown: Shown) -> None:
    shown.put(MEMBERS[1], sequence=3)
    shown.put(MEMBERS[2], sequence=9, degraded=2)
    [service] = [one for one in shown.view.services() if one.registration == POOL]
    assert (service.state.sequence, service.standing.state) == (9, AnswerState.DEGRADED)


def test_a_pool_is_no_instance_and_what_it_lacks_every_instance_lacks(shown: Shown) -> None:
    def standings() -> dict[str, AnswerState]:
        found = shown.view.instance_standings(SCOPE)
        return {name: one.state for name, one in found.items()}

    assert standings() == {"a": AnswerState.EXACT}
    shown.put(MEMBERS[0], sequence=9, degraded=2)
    assert standings() == {"a": AnswerState.DEGRADED}
    assert shown.view.verdict(SCOPE).state is AnswerState.DEGRADED


def contradict(shown: Shown, one: Registration, *, is_below_gpu: bool) -> None:
    found = {one.publisher: Contradiction(9.0, is_below_gpu)}
    shown.view.contradict(Contradictions(found, frozenset([common_scope(SCOPE)])))


def doubted(shown: Shown) -> dict[str, float]:
    """Since when, by who is doubted for that."""
    standings = {one.registration.instance_id: one.standing for one in shown.view.services()}
    return {
        name: one.since
        for name, one in standings.items()
        if (one.state, one.reason) == (AnswerState.UNCONFIRMED, Doubt.OUTCOMES_DIFFER)
    }


@pytest.mark.parametrize(("is_below_gpu", "whose"), [(False, "a"), (True, "pool")])
def test_what_outcomes_contradict_is_doubted_and_what_lies_below_a_gpu_of_the_pool(
    shown: Shown, is_below_gpu: bool, whose: str
) -> None:
    told: list[AnswerState] = []
    shown.view.notify(lambda: told.append(shown.view.verdict(SCOPE).state))
    assert doubted(shown) == {}
    contradict(shown, ENGINE, is_below_gpu=is_below_gpu)
    assert doubted(shown) == {whose: 9.0}
    assert shown.view.instance_standings(SCOPE)["a"].reason == Doubt.OUTCOMES_DIFFER
    assert shown.view.verdict(SCOPE._replace(lora_name="x")).state is AnswerState.UNCONFIRMED
    assert shown.view.verdict(SCOPE._replace(tenant_id="t")).state is AnswerState.EXACT
    shown.view.contradict(NO_CONTRADICTIONS)
    assert doubted(shown) == {}
    assert told == [AnswerState.UNCONFIRMED, AnswerState.EXACT]


def test_without_a_pool_the_engine_is_doubted_whatever_it_did_not_find() -> None:
    shown = Shown(ENGINE, registration("b", port=7001))
    contradict(shown, ENGINE, is_below_gpu=True)
    assert doubted(shown) == {"a": 9.0}


def test_what_is_known_to_be_lost_or_doubted_by_events_is_said_first(shown: Shown) -> None:
    contradict(shown, ENGINE, is_below_gpu=False)
    shown.put(ENGINE, sequence=9, media=POOL_CLEARED)
    assert shown.view.standing(ENGINE.publisher).reason == Doubt.POOL_CLEARED
    shown.put(ENGINE, sequence=9, degraded=2)
    assert shown.view.verdict(SCOPE).state is AnswerState.DEGRADED


def test_who_could_use_an_adapters_blocks_in_a_pool_is_not_known() -> None:
    shown = Shown(ENGINE, registration("b", port=7001))
    kernel = open_kernel(1, name="reference")
    shown.view.kernel_in_use = kernel
    for one in shown.view.registered():
        kernel.register(kernel.open_publisher(*one.publisher), "", True)
    adapted = SCOPE._replace(lora_name="x")
    assert shown.view.verdict(adapted).state is AnswerState.EXACT
    engine = kernel.open_publisher(*ENGINE.publisher)
    for shared in (False, True):
        event = stored(0, [1], range(4), lora_name="x", medium=Medium.CPU, shared=shared)
        kernel.apply(engine, encode_events([event]), -1)
    assert shown.view.verdict(SCOPE).state is AnswerState.EXACT
    assert shown.view.verdict(adapted).state is AnswerState.UNCONFIRMED
    found = shown.view.instance_standings(adapted)
    reasons = {name: one.reason for name, one in found.items()}
    assert reasons == {"a": "", "b": Doubt.ADAPTER_UNKNOWN}
    shown.put(registration("b", port=7001), sequence=1, degraded=1)
    assert shown.view.instance_standings(adapted)["b"].state is AnswerState.DEGRADED


def test_who_may_have_loaded_an_adapter_anew_is_doubted_about_adapters_alone() -> None:
    shown = Shown(registration("a", kind="SGLang"), registration("b", port=7001))
    shown.view.kernel_in_use = open_kernel(1, name="reference")

    def reasons(lora_name: str) -> dict[str, str]:
        found = shown.view.instance_standings(SCOPE._replace(lora_name=lora_name))
        return {name: one.reason for name, one in found.items()}

    assert reasons("") == {"a": "", "b": ""}
    assert reasons("x") == {"a": Doubt.ADAPTER_RELOADED, "b": ""}
    assert shown.view.verdict(SCOPE).state is AnswerState.EXACT
    assert shown.view.verdict(SCOPE._replace(lora_name="x")).state is AnswerState.UNCONFIRMED


def test_what_an_engine_has_stored_for_all_is_as_well_known_as_the_engine() -> None:
    other = registration("b", port=7001)
    shown = Shown(ENGINE, other)

    def standings() -> dict[str, tuple[AnswerState, str]]:
        found = shown.view.instance_standings(SCOPE)
        return {name: (one.state, one.reason) for name, one in found.items()}

    shown.put(ENGINE, sequence=9, degraded=2)
    assert standings()["b"] == (AnswerState.EXACT, ""), "its own blocks only"
    shown.put(ENGINE, sequence=9, media=SHARES)
    assert standings() == dict.fromkeys("ab", (AnswerState.EXACT, ""))
    shown.put(ENGINE, sequence=9, media=SHARES | POOL_CLEARED)
    assert standings() == dict.fromkeys("ab", (AnswerState.UNCONFIRMED, Doubt.POOL_CLEARED))
    assert shown.view.verdict(SCOPE).state is AnswerState.UNCONFIRMED


def test_what_a_pool_lacks_those_lack_that_read_it() -> None:
    kinds = {"a": None, "b": (), "c": ("pool",), "d": ("pool#0",)}
    engines = [
        msgspec.structs.replace(registration(name, port=place), reads=reads)
        for place, (name, reads) in enumerate(kinds.items(), 7001)
    ]
    shown = Shown(*engines, *MEMBERS)
    shown.put(MEMBERS[0], sequence=9, degraded=2)

    def lacking() -> list[str]:
        found = shown.view.instance_standings(SCOPE)
        return [name for name, one in found.items() if one.state is not AnswerState.EXACT]

    assert lacking() == ["a", "c"]
    shown.put(MEMBERS[0], sequence=10)
    shown.put(engines[1], sequence=9, media=SHARES | POOL_CLEARED)
    assert lacking() == list("abc"), "where c reads the pool, b may have removed what is there"
    shown.put(MEMBERS[0], sequence=10, degraded=2)
    shown.put(engines[1], sequence=9, media=SHARES)
    shown.put(engines[3], sequence=9, media=SHARES, degraded=2)
    assert lacking() == list("acd")
