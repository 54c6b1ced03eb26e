"""Of which engines nothing is doubted, whatever of others."""

import asyncio

import msgspec
import pytest

from routing.decisions.interface import RouteRequest
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.router import Router
from schemas.answer_states import LOST_BATCHES, AnswerState, Doubt, Standing
from schemas.identities import PrefixScope
from schemas.positions import SHARES, PublisherState
from schemas.registration import MOONCAKE, SGLANG, LoraReload, PublisherKind, Registration
from schemas.routing_records import Decision
from tests.fakes import FakeTable, registration

SCOPE = PrefixScope("default", "m", "", 16, "")
DEAD = Standing(AnswerState.UNCONFIRMED, Doubt.LINK_DOWN, 0.0)
CONTRADICTED = Standing(AnswerState.UNCONFIRMED, Doubt.OUTCOMES_DIFFER, 0.0)


def _table(*others: Registration) -> FakeTable:
    """One with `a`, and others."""
    table = FakeTable()
    for one in (registration("a", block_size=16), *others):
        asyncio.run(table.register(one))
    return table


def _pool(model_name: str = "m") -> Registration:
    one = registration("pool", model_name=model_name, block_size=16)
    return msgspec.structs.replace(one, kind=PublisherKind(MOONCAKE))


def _decided(table: FakeTable) -> Decision:
    router = Router(table, RoutingQueue(), LiveLoad())
    decision = router.route(RouteRequest("", SCOPE, 100, [])).decision
    assert decision.target(decision.chosen).instance_id == "a"
    return decision


def test_neighbour_without_a_link_leaves_a_decision_sure() -> None:
    table = _table(registration("b", block_size=16))
    table.answer_state = DEAD.state
    table.standings = {"a": Standing(AnswerState.EXACT, "", 0.0), "b": DEAD}
    decision = _decided(table)
    assert (decision.state, decision.is_sure) == ("unconfirmed", True)


@pytest.mark.parametrize(
    ("standing", "is_sure"),
    [
        (Standing(AnswerState.EXACT, "", 0.0), True),
        (CONTRADICTED, True),  # its outcomes may end that
        (Standing(AnswerState.UNCONFIRMED, Doubt.NEVER_REMOVED, 0.0), False),
        (Standing(AnswerState.DEGRADED, LOST_BATCHES, 0.0), False),
    ],
)
def test_decision_is_sure_by_what_is_doubted_of_the_chosen_one(
    standing: Standing, is_sure: bool
) -> None:
    table = _table()
    table.standings["a"] = standing
    assert _decided(table).is_sure is is_sure


@pytest.mark.parametrize("said", ["", "none"])
@pytest.mark.parametrize("lora_name", ["", "x"])
def test_decision_about_an_adapter_that_may_be_loaded_again_is_not_sure(
    lora_name: str, said: LoraReload
) -> None:
    one = msgspec.structs.replace(
        registration("a", block_size=16), kind=PublisherKind(SGLANG), lora_reload=said
    )
    table = FakeTable()
    asyncio.run(table.register(one))
    request = RouteRequest("", SCOPE._replace(lora_name=lora_name), 100, [])
    decision = Router(table, RoutingQueue(), LiveLoad()).route(request).decision
    assert decision.is_sure is (said == "none" or not lora_name)


@pytest.mark.parametrize(
    ("model", "of", "is_sure"), [("m", "", False), ("m", "x", True), ("other", "", True)]
)
def test_nor_about_one_that_it_may_not_have_loaded_of_a_pools_blocks(
    model: str, of: str, is_sure: bool
) -> None:
    one = msgspec.structs.replace(registration("a", block_size=16), lora_name=of)
    table = FakeTable()
    for each in (one, _pool(model)):
        asyncio.run(table.register(each))
    request = RouteRequest("", SCOPE._replace(lora_name="x"), 100, [])
    decision = Router(table, RoutingQueue(), LiveLoad()).route(request).decision
    assert decision.is_sure is is_sure


@pytest.mark.parametrize(
    ("model", "standing", "is_sure"),
    [
        ("m", Standing(AnswerState.UNCONFIRMED, Doubt.LENDER_GONE, 0.0), False),
        ("m", CONTRADICTED, True),
        ("other", Standing(AnswerState.UNCONFIRMED, Doubt.LENDER_GONE, 0.0), True),
    ],
)
def test_what_is_doubted_of_a_pool_is_doubted_of_all(
    model: str, standing: Standing, is_sure: bool
) -> None:
    table = _table(_pool(model))
    table.standings["pool"] = standing
    assert _decided(table).is_sure is is_sure


@pytest.mark.parametrize(("media", "is_sure"), [(SHARES, False), (0, True)])
def test_doubts_of_who_stores_for_all_are_doubts_of_all(media: int, is_sure: bool) -> None:
    other = registration("b", block_size=16)
    table = _table(other)
    table.standings["b"] = DEAD
    table.states[other.publisher] = PublisherState(media=media)
    assert _decided(table).is_sure is is_sure


@pytest.mark.parametrize(
    ("reads", "is_sure"), [((), True), (("b",), False), (("pool",), False), (("c", "d"), True)]
)
def test_but_of_those_that_read_it(reads: tuple[str, ...], is_sure: bool) -> None:
    other = registration("b", block_size=16)
    table = _table(other, _pool())
    one = registration("a", block_size=16)
    table.registrations[one.publisher] = msgspec.structs.replace(one, reads=reads)
    table.standings |= {"pool": DEAD, "b": DEAD}
    table.states[other.publisher] = PublisherState(media=SHARES)
    assert _decided(table).is_sure is is_sure
