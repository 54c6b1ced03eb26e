"""Who executes what is advised."""

import pytest

from lmcache_adapter.acting.workers import executor_of, model_of, workers_of
from query_api.ports import ServiceView
from routing.advice.acting import ActRules, PastActs, SuppressionReason
from routing.advice.advice import AdvisedAction
from schemas.answer_states import AnswerState, Doubt, Standing
from schemas.limits import COMMAND_TOKENS_MAX
from schemas.routing_records import DecidedScope
from tests.fakes import FakeTable
from tests.unit.lmcache_adapter.acting.test_actor import advice
from tests.unit.lmcache_adapter.http.test_command_routes import join

MODEL = ("default", "m", "")
NOTHING_YET = PastActs([], 0.0, ActRules())


def services(*ranks: tuple[str, int, str]) -> list[ServiceView]:
    table = FakeTable()
    for name, rank, peer in ranks:
        join(table, name, rank, peer)
    return table.services()


def test_an_instance_is_able_where_all_its_workers_are_linked() -> None:
    found = services(("a", 0, "x:1"), ("a", 1, "x:2"), ("b", 0, "x:3"))
    assert workers_of(found).able == {MODEL: {"a", "b"}}
    for reason in (Doubt.LINK_DOWN, Doubt.WORKER_SILENT, Doubt.NOT_FOLLOWED):
        away = found[1]._replace(standing=Standing(AnswerState.UNCONFIRMED, reason, 0.0))
        workers = workers_of([found[0], away, found[2]])
        assert workers.able == workers.takes == {MODEL: {"b"}}
        assert len(workers.registrations) == 3
    assert workers_of([found[0]._replace(connected=False), *found[1:]]).able == {MODEL: {"b"}}
    unsynced = found[0]._replace(standing=Standing(AnswerState.DEGRADED, Doubt.NOT_SYNCED, 0.0))
    assert workers_of([unsynced, *found[1:]]).able == {MODEL: {"a", "b"}}


def test_an_instance_takes_blocks_where_all_its_workers_have_a_peer_url() -> None:
    workers = workers_of(services(("a", 0, "x:1"), ("a", 1, ""), ("b", 0, "x:3")))
    assert workers.able == {MODEL: {"a", "b"}}
    assert workers.takes == {MODEL: {"b"}}


def test_a_scope_of_an_adapter_or_of_another_tenant_has_no_workers() -> None:
    scope = DecidedScope("default", "m", "", 4, "")
    assert model_of(scope) == MODEL
    for other in (
        scope._replace(lora_name="l"),
        scope._replace(tenant_id="t"),
        scope._replace(additional_salt="s"),
    ):
        assert model_of(other) != MODEL


@pytest.mark.parametrize(
    ("action", "target", "expected"),
    [
        (AdvisedAction.COPY, "b", "a"),
        (AdvisedAction.PIN, "a", "a"),
        (AdvisedAction.PIN, "x", SuppressionReason.NO_WORKER),
        (AdvisedAction.COPY, "a", SuppressionReason.NO_WORKER),  # its only holder
    ],
)
def test_a_holder_executes_a_copy_and_the_target_a_pin(
    action: AdvisedAction, target: str, expected: str
) -> None:
    workers = workers_of(services(("a", 0, "x:1"), ("b", 0, "x:2")))
    assert executor_of(advice(action=action, target=target), NOTHING_YET, workers) == expected


def test_what_no_command_has_room_for_is_too_long() -> None:
    workers = workers_of(services(("a", 0, "x:1"), ("b", 0, "x:2")))
    for blocks, expected in (
        (COMMAND_TOKENS_MAX // 4, "a"),
        (COMMAND_TOKENS_MAX // 4 + 1, SuppressionReason.TOO_LONG),
    ):
        assert executor_of(advice(blocks=blocks), NOTHING_YET, workers) == expected
