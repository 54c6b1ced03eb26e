"""The state of a scope and of one publisher, over a clock of numbers."""

from typing import Any

import msgspec
import pytest

from schemas.answer_states import LOST_BATCHES, AnswerState, Doubt, Standing
from schemas.engine_facts import EngineFacts
from schemas.identities import OBJECTS_WAIT, UNSURE, PrefixScope, PublisherKey
from schemas.positions import SAYS_ALL_GONE, Confirmation, PublisherState
from schemas.registration import Registration
from schemas.troubles import Troubles
from streams.table.scope_states import (
    ConfirmationSource,
    Contradiction,
    Contradictions,
    FreshUntil,
    ScopeStates,
    common_scope,
)
from tests.building import SCOPE, STREAM, registration

ONE, TWO = PublisherKey(STREAM, 0), PublisherKey(STREAM, 1)
BRIDGE, OTHER = ConfirmationSource(0, "bridge-1"), ConfirmationSource(0, "bridge-2")
NOW = 50.0
FRESH: FreshUntil = {BRIDGE: NOW + 1, OTHER: NOW + 1}
LATE: FreshUntil = {BRIDGE: NOW, OTHER: NOW + 1}

EXACT, UNCONFIRMED = AnswerState.EXACT, AnswerState.UNCONFIRMED


def confirmed(reason: str = "", bridge: str = BRIDGE.bridge) -> PublisherState:
    return PublisherState(confirmation=Confirmation(bridge, reason, 40.0))


@pytest.fixture
def states() -> ScopeStates:
    """One publisher, confirmed."""
    made = ScopeStates()
    made.register(ONE, True)
    made.put(ONE, confirmed())
    return made


def test_a_scope_without_publishers_is_exact() -> None:
    assert ScopeStates().verdict(SCOPE, {}, NOW).state is EXACT
    assert ScopeStates().publishers(SCOPE) == ()
    assert not ScopeStates().is_degraded(SCOPE)


def test_a_confirmed_publisher_is_exact_while_its_bridge_is_heard_of(states: ScopeStates) -> None:
    assert states.verdict(SCOPE, FRESH, NOW).state is EXACT
    assert states.standing(ONE, FRESH, NOW) == Standing(EXACT, "", 40.0)
    for heard in (LATE, {OTHER: NOW + 1}, {}):
        assert states.verdict(SCOPE, heard, NOW).state is UNCONFIRMED
        assert states.standing(ONE, heard, NOW) == Standing(UNCONFIRMED, Doubt.NO_HEARTBEAT, 0.0)


def test_a_publisher_of_which_no_bridge_has_spoken_is_unconfirmed() -> None:
    registered, stated, listed = ScopeStates(), ScopeStates(), ScopeStates(has_registry=True)
    registered.register(ONE, True)
    stated.put(ONE, PublisherState())
    listed.list(ONE, True)
    for states in (registered, stated, listed):
        assert states.verdict(SCOPE, FRESH, NOW).state is UNCONFIRMED
        assert states.standing(ONE, FRESH, NOW) == Standing(UNCONFIRMED, Doubt.NOT_FOLLOWED, 0.0)


@pytest.mark.parametrize(
    ("kind", "fields", "due"),
    [
        ("vLLM", {}, ""),
        ("vLLM", {"kv_offloading": "native"}, ""),
        ("vLLM", {"kv_offloading": "lmcache"}, Doubt.NEVER_REMOVED),
        ("vLLM", {"kv_cache_groups": "several"}, Doubt.GROUPS_UNKNOWN),
        ("SGLang", {}, ""),
        ("SGLang", {"kv_cache_groups": "several"}, Doubt.GROUPS_UNKNOWN),
        ("Dynamo", {}, Doubt.GROUPS_UNKNOWN),
        ("Dynamo", {"kv_cache_groups": "one"}, Doubt.PARTIAL_REUSE),
        ("Dynamo", {"kv_cache_groups": "one", "kv_partial_reuse": "none"}, ""),
        ("TensorRT-LLM", {}, Doubt.PARTIAL_REUSE),
        ("TensorRT-LLM", {"kv_partial_reuse": "none"}, ""),
        ("Mooncake", {}, Doubt.DROPS_UNSAID),
        ("Mooncake", {"kv_offloading": "native"}, ""),
        ("LMCache", {}, ""),
        ("LMCache-MP", {}, Doubt.DROPS_UNSAID),
        ("LMCache-MP", {"kv_offloading": "native"}, ""),
        ("of a newer version", {}, ""),
    ],
)
def test_what_a_kind_is_known_to_do_without_an_event_is_doubted_until_it_is_ruled_out(
    states: ScopeStates, kind: str, fields: Any, due: str
) -> None:
    one = msgspec.structs.replace(registration(kind=kind), **fields)
    state = msgspec.structs.replace(confirmed(), incarnation=1, sequence=3)
    states.put(ONE, state)
    states.register(ONE, True, one)
    said = UNCONFIRMED if due else EXACT
    assert states.standing(ONE, FRESH, NOW) == Standing(said, due, 40.0)
    assert states.verdict(SCOPE, FRESH, NOW).state is said
    adapter = UNCONFIRMED if kind == "SGLang" else said
    assert states.verdict(SCOPE._replace(lora_name="x"), FRESH, NOW).state is adapter
    states.put(ONE, msgspec.structs.replace(state, left_out={OBJECTS_WAIT: 1}))
    assert states.standing(ONE, FRESH, NOW).reason == OBJECTS_WAIT, "what is known is said first"
    states.put(ONE, state)
    states.register(ONE, True, registration())
    assert states.verdict(SCOPE, FRESH, NOW).state is EXACT


def test_a_pool_that_says_all_or_has_said_nothing_has_dropped_nothing_unsaid(
    states: ScopeStates,
) -> None:
    states.register(ONE, True, registration(kind="Mooncake"))
    assert states.standing(ONE, FRESH, NOW).state is EXACT
    said = msgspec.structs.replace(confirmed(), incarnation=1, sequence=3)
    states.put(ONE, said)
    assert states.standing(ONE, FRESH, NOW).reason == Doubt.DROPS_UNSAID
    states.put(ONE, msgspec.structs.replace(said, media=SAYS_ALL_GONE))
    assert states.standing(ONE, FRESH, NOW).state is EXACT
    states.put(ONE, said)
    states.put(ONE, None)
    assert states.standing(ONE, FRESH, NOW).reason == Doubt.NOT_FOLLOWED


def test_adapters_of_an_engine_that_may_load_them_anew_are_doubted_alone(
    states: ScopeStates,
) -> None:
    adapter = SCOPE._replace(lora_name="x")
    states.register(ONE, True, registration(kind="SGLang"))
    assert states.verdict(SCOPE, FRESH, NOW).state is EXACT
    assert states.standing(ONE, FRESH, NOW).state is EXACT
    assert states.verdict(adapter, FRESH, NOW).state is UNCONFIRMED
    never = msgspec.structs.replace(registration(kind="SGLang"), lora_reload="none")
    states.register(ONE, True, never)
    assert states.verdict(adapter, FRESH, NOW).state is EXACT


def test_why_a_publisher_is_doubted_is_told_and_since_when(states: ScopeStates) -> None:
    for doubt in (Doubt.LINK_DOWN, Doubt.COPIES_UNKNOWN):  # that of a worker of LMCache
        states.put(ONE, confirmed(doubt))
        assert states.verdict(SCOPE, FRESH, NOW).state is UNCONFIRMED
        assert states.standing(ONE, FRESH, NOW) == Standing(UNCONFIRMED, doubt, 40.0)
    states.put(ONE, confirmed("a reason of a newer bridge"))
    assert states.standing(ONE, FRESH, NOW).reason == Doubt.CATCHING_UP


@pytest.mark.parametrize("reason", UNSURE)
def test_who_may_hold_blocks_or_not_is_doubted_and_not_degraded(
    states: ScopeStates, reason: str
) -> None:
    unsure = confirmed()
    unsure.left_out, unsure.left_out_at = {reason: 2}, 30.0
    states.put(ONE, unsure)
    assert states.verdict(SCOPE, FRESH, NOW).state is UNCONFIRMED
    assert states.standing(ONE, FRESH, NOW) == Standing(UNCONFIRMED, reason, 30.0)
    also = confirmed()
    also.left_out, also.left_out_at = {reason: 2, "unresolved": 1}, 30.0
    states.put(ONE, also)
    assert states.standing(ONE, FRESH, NOW) == Standing(AnswerState.DEGRADED, "unresolved", 30.0)
    states.put(ONE, confirmed())
    assert states.verdict(SCOPE, FRESH, NOW).state is EXACT


def test_a_degraded_publisher_is_degraded_whatever_else_is_so(states: ScopeStates) -> None:
    lost = confirmed()
    lost.degraded_since, lost.degraded_at = 3, 30.0
    states.put(TWO, lost)
    assert states.is_degraded(SCOPE)
    assert states.verdict(SCOPE, {}, NOW).state is AnswerState.DEGRADED
    assert states.standing(TWO, FRESH, NOW) == Standing(AnswerState.DEGRADED, LOST_BATCHES, 30.0)
    assert states.standing(ONE, FRESH, NOW).state is EXACT
    states.put(TWO, None)
    assert not states.is_degraded(SCOPE)
    assert states.verdict(SCOPE, FRESH, NOW).state is EXACT


def test_a_loss_counts_though_its_bridge_says_what_it_said(states: ScopeStates) -> None:
    said = confirmed()
    states.put(ONE, said)
    states.put(ONE, msgspec.structs.replace(said, degraded_since=3, degraded_at=30.0))
    assert states.verdict(SCOPE, FRESH, NOW).state is AnswerState.DEGRADED
    states.put(ONE, said)
    assert states.verdict(SCOPE, FRESH, NOW).state is EXACT


def test_the_worst_publisher_counts(states: ScopeStates) -> None:
    states.register(TWO, True)
    assert states.verdict(SCOPE, FRESH, NOW).state is UNCONFIRMED
    states.put(TWO, confirmed())
    assert states.verdict(SCOPE, FRESH, NOW).state is EXACT
    states.put(TWO, confirmed(bridge=OTHER.bridge))
    assert states.verdict(SCOPE, {OTHER: NOW + 1}, NOW).state is UNCONFIRMED
    assert states.verdict(SCOPE, {BRIDGE: NOW + 1}, NOW).state is UNCONFIRMED


def test_a_bridge_that_confirms_nobody_any_more_need_not_be_heard_of(states: ScopeStates) -> None:
    states.put(ONE, confirmed(bridge=OTHER.bridge))
    assert states.verdict(SCOPE, {OTHER: NOW + 1}, NOW).state is EXACT


def test_the_same_bridge_in_another_partition_is_another_source(states: ScopeStates) -> None:
    states.put(ONE, None)
    states.put(ONE, confirmed(), partition=7)
    assert states.verdict(SCOPE, FRESH, NOW).state is UNCONFIRMED
    assert (
        states.verdict(SCOPE, {ConfirmationSource(7, BRIDGE.bridge): NOW + 1}, NOW).state is EXACT
    )


def test_lora_shares_the_scope_and_a_salt_does_not(states: ScopeStates) -> None:
    states.register(TWO, True)
    lora = SCOPE._replace(lora_name="x")
    assert isinstance(lora, PrefixScope)
    assert states.verdict(lora, FRESH, NOW).state is UNCONFIRMED
    assert states.verdict(SCOPE._replace(additional_salt="x"), FRESH, NOW).state is EXACT


def test_what_is_gone_leaves_nothing_behind_and_may_come_back(states: ScopeStates) -> None:
    states.register(TWO, True)
    states.put(ONE, None)
    states.register(ONE, False)
    assert states.publishers(SCOPE) == (TWO,)
    states.register(TWO, False)
    assert states.publishers(SCOPE) == ()
    assert states.verdict(SCOPE, {}, NOW).state is EXACT
    assert (states._known, states._publishers, states._summaries) == ({}, {}, {})
    states.register(ONE, True)
    assert states.verdict(SCOPE, FRESH, NOW).state is UNCONFIRMED
    states.put(ONE, confirmed())
    assert states.verdict(SCOPE, FRESH, NOW).state is EXACT


def with_other_rank(*, is_in_log: bool) -> PublisherState:
    """Its batches say so, or its bridge, where that rank's batches have numbers of their own."""
    state = confirmed()
    if is_in_log:
        return msgspec.structs.replace(state, other_ranks=(1,))
    assert state.confirmation is not None
    said = msgspec.structs.replace(state.confirmation, troubles=Troubles(other_ranks=(1,)))
    return msgspec.structs.replace(state, confirmation=said)


@pytest.mark.parametrize("is_in_log", [False, True])
def test_a_publisher_is_unconfirmed_while_a_rank_of_its_stream_is_not_registered(
    is_in_log: bool,
) -> None:
    """Whichever bridge follows that one, and whoever has heard of it."""
    states = ScopeStates(has_registry=True)
    for known in (states.register, states.list):
        known(ONE, True)
    states.put(ONE, with_other_rank(is_in_log=is_in_log))
    for known in (states.register, states.list):
        assert states.standing(ONE, FRESH, NOW).reason == Doubt.RANK_MISSING
        assert states.verdict(SCOPE, FRESH, NOW).state is UNCONFIRMED
        known(TWO, True)
    assert states.standing(ONE, FRESH, NOW).state is EXACT
    states.put(TWO, confirmed(bridge=OTHER.bridge))
    assert states.verdict(SCOPE, FRESH, NOW).state is EXACT
    states.put(TWO, None)
    states.list(TWO, False)
    assert states.standing(ONE, FRESH, NOW).reason == Doubt.RANK_MISSING
    states.put(ONE, confirmed())
    assert states.standing(ONE, FRESH, NOW).state is EXACT
    assert not states._sharing


def saying(**facts: Any) -> PublisherState:
    """Confirmed, and its engine says that over HTTP."""
    state = confirmed()
    assert state.confirmation is not None
    said = msgspec.structs.replace(state.confirmation, facts=EngineFacts(**facts))
    return msgspec.structs.replace(state, confirmation=said)


@pytest.mark.parametrize("said", ["", "one", "several"])
def test_an_engine_that_calls_its_model_hybrid_is_doubted_unless_it_is_said_to_have_one_group(
    said: Any,
) -> None:
    states = ScopeStates()
    states.register(ONE, True, msgspec.structs.replace(registration(), kv_cache_groups=said))
    for is_hybrid in (None, True, True, False, True):
        states.put(ONE, saying(is_hybrid=is_hybrid))
        is_due = said == "several" or (said == "" and is_hybrid)
        reason = states.standing(ONE, FRESH, NOW).reason
        assert reason == (Doubt.GROUPS_UNKNOWN if is_due else "")
        assert (states.verdict(SCOPE, FRESH, NOW).state is UNCONFIRMED) == bool(is_due)


def test_a_rank_that_an_engine_names_over_http_is_missing_until_it_is_registered_there() -> None:
    """By the name of the instance, or by any other with the engine's URL."""
    states = ScopeStates()
    said = saying(ranks=(0, 1))

    def register(publisher: PublisherKey, url: str) -> None:
        name = publisher.stream.instance_id
        one = registration(name, dp_rank=publisher.dp_rank)
        states.register(publisher, True, msgspec.structs.replace(one, http_endpoint=url))

    def is_missing() -> bool:
        return states.standing(ONE, FRESH, NOW).reason == Doubt.RANK_MISSING

    register(ONE, "http://e:1")
    states.put(ONE, confirmed())
    assert not is_missing()
    states.put(ONE, said)
    assert is_missing()
    assert states.verdict(SCOPE, FRESH, NOW).state is UNCONFIRMED
    other = PublisherKey(ONE.stream._replace(instance_id="named-otherwise"), 1)
    twin = PublisherKey(ONE.stream._replace(instance_id="and-again"), 1)
    for added in (other, twin):
        register(added, "http://e:1")
        assert not is_missing()
    states.register(other, False)
    assert not is_missing()
    register(twin, "http://e:2")
    assert is_missing()
    register(ONE._replace(dp_rank=1), "")
    assert not is_missing()
    states.register(ONE._replace(dp_rank=1), False)
    assert is_missing()
    register(ONE, "http://e:2")
    assert not is_missing()
    register(ONE, "http://e:1")
    assert is_missing()
    states.put(ONE, confirmed())
    assert not is_missing()
    states.put(ONE, None)
    for one in (ONE, twin):
        states.register(one, False)
    assert (states._sharing, states._ranks_at, states._known) == ({}, {}, {})


def test_where_there_is_a_registry_both_must_say_that_it_is_registered() -> None:
    states = ScopeStates(has_registry=True)
    states.put(ONE, confirmed())
    states.list(ONE, True)
    assert states.standing(ONE, FRESH, NOW).reason == Doubt.NOT_FOLLOWED
    states.register(ONE, True)
    assert states.verdict(SCOPE, FRESH, NOW).state is EXACT
    states.list(ONE, False)
    assert states.standing(ONE, FRESH, NOW).reason == Doubt.NOT_FOLLOWED
    assert states.verdict(SCOPE, FRESH, NOW).state is UNCONFIRMED


POOL = registration("pool", kind="Mooncake", port=7000)


def reads(instance_id: str, names: tuple[str, ...] | None) -> Registration:
    return msgspec.structs.replace(registration(instance_id), reads=names)


def enter(states: ScopeStates, one: Registration, state: PublisherState | None = None) -> None:
    states.register(one.publisher, True, one)
    states.put(one.publisher, state or confirmed())


@pytest.mark.parametrize("first", ["pool", "engine"])
def test_a_pool_is_in_no_answer_where_nobody_reads_it(first: str) -> None:
    states = ScopeStates()
    member = msgspec.structs.replace(POOL, instance_id="pool#1", pool="pool")
    lost = msgspec.structs.replace(confirmed(), degraded_since=1)

    def verdict() -> AnswerState:
        return states.verdict(SCOPE, FRESH, NOW).state

    if first == "pool":
        enter(states, member, lost)
        assert verdict() is AnswerState.DEGRADED, "of those to come"
    enter(states, reads("a", ()))
    if first == "engine":
        enter(states, member, lost)
    assert verdict() is EXACT
    assert states.standing(member.publisher, FRESH, NOW).state is AnswerState.DEGRADED
    for names, state in (
        (("b", "pool"), AnswerState.DEGRADED),
        (("b", "pool#1"), EXACT),
        (None, AnswerState.DEGRADED),
        ((), EXACT),
    ):
        enter(states, reads("a", names))
        assert verdict() is state, names
        assert states.is_degraded(SCOPE) is (state is AnswerState.DEGRADED)
    enter(states, registration("b", port=2))
    assert verdict() is AnswerState.DEGRADED, "that one reads all"
    states.put(registration("b").publisher, None)
    states.register(registration("b").publisher, False)
    assert verdict() is EXACT
    states.put(member.publisher, None)
    states.register(member.publisher, False)
    states.put(reads("a", ()).publisher, None)
    states.register(reads("a", ()).publisher, False)
    assert states.publishers(SCOPE) == ()


def test_what_an_instance_did_not_find_below_its_gpu_is_of_a_pool_that_it_reads() -> None:
    states = ScopeStates()
    for one in (POOL, reads("a", ()), reads("b", ("pool",))):
        enter(states, one, msgspec.structs.replace(confirmed(), media=SAYS_ALL_GONE))

    def doubted(instance_id: str) -> list[str]:
        of_it = {registration(instance_id).publisher: Contradiction(9.0, is_below_gpu=True)}
        found = Contradictions(of_it, frozenset([common_scope(SCOPE)]))
        known = (one.publisher for one in (POOL, registration("a"), registration("b")))
        standings = {one: states.standing(one, FRESH, NOW, found) for one in known}
        return [one.stream.instance_id for one, said in standings.items() if said.reason]

    assert doubted("a") == ["a"]
    assert doubted("b") == ["pool"]
