"""What is said of a scope that nobody has."""

import asyncio

import pytest

from query_api.unknown_scopes import (
    KNOWN_SCOPES_S,
    UNKNOWN_SCOPES_MAX,
    UNKNOWN_SCOPES_S,
    ScopeMismatch,
    UnknownScopes,
)
from schemas.identities import PrefixScope
from schemas.registration import Unregistration
from tests.fakes import FakeTable, registration

SCOPE = PrefixScope("default", "m", "", 16, "")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def unknown(table: FakeTable, clock: Clock) -> UnknownScopes:
    return UnknownScopes(table, monotonic=clock, clock=clock)


def register(table: FakeTable) -> None:
    for size in (128, 16, 32):
        table.add(registration(f"a{size}", block_size=size))
    table.add(registration("b", model_name="other/model-7b", block_size=64))
    table.add(registration("c", model_name="salted", block_size=16, additional_salt="pepper"))
    table.add(registration("d", tenant_id="acme", model_name="secret", block_size=8))


def test_the_first_part_that_differs_is_said_with_what_there_is(
    table: FakeTable, unknown: UnknownScopes
) -> None:
    register(table)
    cases = [
        (SCOPE, None),
        (SCOPE._replace(block_size=8), "block_size=8; known=16,32,128"),
        (
            SCOPE._replace(model_name="M, really"),
            "model=M%2C%20really; known=m,other/model-7b,salted",
        ),
        (SCOPE._replace(model_name="salted"), "additional_salt=; known=pepper"),
        (SCOPE._replace(lora_name="adapter"), "lora_name=adapter; known="),
        (SCOPE._replace(tenant_id="nobody"), "tenant_id=nobody; known="),
    ]
    for scope, text in cases:
        why = unknown.why(scope)
        assert (None if why is None else why.text) == text


def test_other_tenants_are_not_named(table: FakeTable, unknown: UnknownScopes) -> None:
    register(table)
    for scope in (
        SCOPE._replace(model_name="x"),
        SCOPE._replace(tenant_id="x"),
        SCOPE._replace(block_size=1),
    ):
        why = unknown.why(scope)
        assert why is not None
        assert "secret" not in why.text
        assert "acme" not in why.text


def test_what_is_registered_is_known_within_a_second(
    table: FakeTable, unknown: UnknownScopes, clock: Clock
) -> None:
    assert unknown.why(SCOPE) == ScopeMismatch("tenant_id", "default", ())
    register(table)
    assert unknown.why(SCOPE) is not None
    clock.now += KNOWN_SCOPES_S
    assert unknown.why(SCOPE) is None


def test_what_was_asked_is_kept_for_a_while_and_while_it_is_unknown(
    table: FakeTable, unknown: UnknownScopes, clock: Clock
) -> None:
    for _ in range(3):
        unknown.note(SCOPE)
    ((asked, why),) = unknown.asked(lambda tenant_id: True)
    assert (asked.times, asked.at, why.field) == (3, 1000.0, "tenant_id")
    assert unknown.asked(lambda tenant_id: tenant_id == "acme") == []
    register(table)
    clock.now += KNOWN_SCOPES_S
    assert unknown.asked(lambda tenant_id: True) == []
    unknown.note(SCOPE._replace(block_size=8))
    clock.now += UNKNOWN_SCOPES_S
    assert len(unknown.asked(lambda tenant_id: True)) == 1
    clock.now += 1.0
    assert unknown.asked(lambda tenant_id: True) == []


def test_a_model_that_was_unregistered_since_was_known_when_it_was_asked_for(
    table: FakeTable, unknown: UnknownScopes, clock: Clock
) -> None:
    register(table)
    assert unknown.note(SCOPE._replace(lora_name="adapter")) is not None
    assert len(unknown.asked(lambda tenant_id: True)) == 1
    for one in table.registered():
        if one.model_name == "m":
            asyncio.run(table.unregister(Unregistration.of(one)))
    clock.now += KNOWN_SCOPES_S
    why = unknown.why(SCOPE)
    assert why is not None
    assert why.field == "model"
    assert unknown.asked(lambda tenant_id: True) == []


def test_only_so_many_are_kept(unknown: UnknownScopes) -> None:
    for number in range(2 * UNKNOWN_SCOPES_MAX):
        unknown.note(SCOPE._replace(block_size=number + 1))
    found = unknown.asked(lambda tenant_id: True)
    assert len(found) == UNKNOWN_SCOPES_MAX
    assert found[0][0].scope.block_size == 2 * UNKNOWN_SCOPES_MAX
