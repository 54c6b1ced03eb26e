"""Engines without events, in both forms: no part of the table, and candidates all the same."""

import uuid
from itertools import count
from typing import Any

import pytest

from lab.engines.publisher import Publisher
from lab.engines.wire import BlockStored
from tests.contract.deployments import Tenant

pytestmark = pytest.mark.timeout(240)

PROMPTS = count(1_000)


class Fleet:
    """Engines of one tenant, some without events."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant

    def register(self, instance: str, **fields: object) -> tuple[int, dict[str, Any]]:
        body = {
            "type": "none",
            "modelname": "m",
            "instance_id": instance,
            "block_size": 16,
            "dp_rank": 0,
            "tenant_id": self.tenant.tenant_id,
        }
        return self.tenant.api.post("/register", body | fields)

    def add(self, *instances: str, **fields: object) -> None:
        for instance in instances:
            status, answer = self.register(instance, **fields)
            assert status == 200, answer
        self.until_candidates(*instances)

    def route(self, tokens: list[int], **fields: Any) -> tuple[int, dict[str, Any]]:
        body = {
            "model": "m",
            "block_size": 16,
            "tenant_id": self.tenant.tenant_id,
            "token_ids": tokens,
        }
        return self.tenant.api.post("/route", body | fields)

    def routed(self, tokens: list[int], **fields: Any) -> dict[str, Any]:
        status, answer = self.route(tokens, **fields)
        assert status == 200, answer
        found: dict[str, Any] = answer
        return found

    def candidates(self) -> set[str]:
        """Who may be chosen where a request names nobody."""
        _, answer = self.route([1] * 16, reserve=False, explain=True)
        return {one["instance_id"] for one in answer.get("candidates", []) if one["eligible"]}

    def until_candidates(self, *instances: str) -> None:
        """They are looked up again a quarter of a second after."""
        self.tenant.until(
            lambda: set(instances) <= self.candidates(), f"candidates {sorted(instances)}"
        )

    def tell(self, decision: dict[str, Any], event: str, **fields: Any) -> None:
        body = {"decision_id": decision["decision_id"], "event": event}
        status, answer = self.tenant.api.post("/feedback", body | fields)
        assert (status, answer["accepted"]) == (202, 1), answer

    def cached(self, tokens: list[int]) -> dict[str, int]:
        """What each candidate is taken to hold of a prompt."""
        answer = self.routed(tokens, reserve=False, explain=True)
        return {one["instance_id"]: one["cached_tokens"] for one in answer["candidates"]}


@pytest.fixture
def fleet(tenant: Tenant) -> Fleet:
    return Fleet(tenant)


def prompt(blocks: int = 8) -> list[int]:
    """Of its own: nobody has any of it."""
    first = 16 * 64 * next(PROMPTS)
    return list(range(first, first + 16 * blocks))


def blocks_of(tokens: list[int]) -> BlockStored:
    return BlockStored(
        block_hashes=list(range(1, 1 + len(tokens) // 16)),
        parent_block_hash=None,
        token_ids=tokens,
        block_size=16,
        lora_id=None,
        medium="GPU",
        lora_name=None,
    )


def test_it_is_registered_once_shown_and_followed_by_nobody(fleet: Fleet) -> None:
    own = {"role": "prefill", "labels": {"rack": "r1"}, "url": "http://a:1"}
    for _ in range(2):  # repeating one is no change
        status, answer = fleet.register("a", kv_capacity_tokens=4096, **own)
        assert (status, answer["status"]) == (200, "registered successfully")
    [shown] = fleet.tenant.services()
    expected = {
        "Endpoint": "",
        "Type": "none",
        "Role": "prefill",
        "Labels": {"rack": "r1"},
        "Url": "http://a:1",
        "KvCapacityTokens": 4096,
        "State": "unconfirmed",
        "Reason": "no_events",
        "Connected": None,
        "Activity": "",
        "Incarnation": 0,
        "Sequence": -1,
    }
    assert {name: shown[name] for name in expected} == expected
    assert fleet.tenant.deployment.followed(fleet.tenant.tenant_id) == []
    status, answer = fleet.register("a", kv_capacity_tokens=8192, **own)
    assert status == 400
    assert answer["error"].startswith("conflicting registration for service key")


def test_two_without_events_are_no_conflict_and_an_event_endpoint_is_an_error(
    fleet: Fleet,
) -> None:
    fleet.add("a", "b")
    status, answer = fleet.register("c", endpoint="tcp://10.0.0.7:5557")
    assert (status, answer["reason"], answer["field"]) == (400, "invalid_value", "endpoint")
    status, answer = fleet.register("c", http_endpoint="10.0.0.7:8000")
    assert status >= 400
    assert "http" in answer["error"]
    assert {one["InstanceID"] for one in fleet.tenant.services()} == {"a", "b"}


def test_it_is_in_no_answer_to_a_query_and_changes_no_state_and_no_digest(
    fleet: Fleet, publisher: Publisher
) -> None:
    tenant, tokens = fleet.tenant, prompt()
    tenant.connect(publisher, instance_id="e")
    publisher.publish([blocks_of(tokens)])
    tenant.await_longest(tokens, len(tokens), instance_id="e")
    tenant.until(lambda: tenant.state() == "exact", "an exact answer")
    digests, views = tenant.digests(), tenant.query(tokens)
    fleet.add("a", "b")
    for _ in range(3):
        fleet.tell(fleet.routed(prompt()), "completed")
        fleet.tell(fleet.routed(prompt(), candidates=[{"instance_id": "a"}]), "completed")
    assert tenant.digests() == digests
    assert tenant.query(tokens) == views
    assert tenant.query(prompt()).keys() == {"e"}
    tenant.until(lambda: tenant.state() == "exact", "an exact answer")
    detailed = tenant.api.post(
        "/query?detail=1",
        {"model": "m", "block_size": 16, "tenant_id": tenant.tenant_id, "token_ids": tokens},
    )
    assert detailed[1][tenant.tenant_id].keys() == {"e"}
    assert {one["InstanceID"] for one in tenant.services()} == {"a", "b", "e"}


def test_a_prompt_goes_where_it_went_and_that_is_told_as_approximate(fleet: Fleet) -> None:
    fleet.add("a", "b")
    tokens = prompt()
    first = fleet.routed(tokens, session_id="")
    chosen = first["prefill"]["instance_id"]
    assert (first["prefill"]["cached_tokens"], first["prefill"]["approximate"]) == (0, True)
    fleet.tell(first, "completed")
    again = fleet.routed([*tokens, *prompt(2)])
    assert again["prefill"]["instance_id"] == chosen
    assert (again["prefill"]["cached_tokens"], again["prefill"]["predicted_tokens"]) == (128, 128)
    assert again["prefill"]["approximate"] is True
    fleet.tell(again, "completed")


def test_a_failed_prompt_is_held_by_nobody_nor_one_that_went_elsewhere(fleet: Fleet) -> None:
    fleet.add("a", "b")
    for report in (("failed", {}), ("completed", {"instance_id": "elsewhere", "dp_rank": 0})):
        tokens = prompt()
        decision = fleet.routed(tokens)
        assert sorted(fleet.cached(tokens).values()) == [0, 128]
        fleet.tell(decision, report[0], **report[1])
        assert sorted(fleet.cached(tokens).values()) == [0, 0]


@pytest.mark.both_forms
def test_what_is_unregistered_is_no_candidate_and_is_forgotten(fleet: Fleet) -> None:
    fleet.add("a", "b")
    tokens = prompt()
    fleet.tell(fleet.routed(tokens, candidates=[{"instance_id": "a"}]), "completed")
    assert fleet.cached(tokens) == {"a": 128, "b": 0}
    status, answer = fleet.tenant.unregister(instance_id="a")
    assert (status, answer["removed_instances"]) == (200, [f"a|{fleet.tenant.tenant_id}|0"])
    fleet.tenant.until(lambda: fleet.candidates() == {"b"}, "b alone")
    fleet.add("a")
    assert fleet.cached(tokens) == {"a": 0, "b": 0}


@pytest.mark.both_forms
def test_all_of_it_survives_a_restart(fleet: Fleet) -> None:
    fleet.add("a", "b")
    tokens = prompt()
    decision = fleet.routed(tokens, request_id=uuid.uuid4().hex)
    chosen = decision["prefill"]["instance_id"]
    fleet.tell(decision, "completed")
    tenant = fleet.tenant

    def is_in_the_log() -> bool:
        return not tenant.api.get("/routing")[1]["counts"]["waiting"]

    tenant.until(is_in_the_log, "a log with all that was decided")
    tenant.deployment.restart()
    tenant.until(lambda: len(tenant.services()) == 2, "the registrations")
    fleet.until_candidates("a", "b")
    tenant.until(lambda: fleet.cached(tokens)[chosen] == 128, "what was sent where")
    again = fleet.routed(tokens)
    assert again["prefill"]["instance_id"] == chosen
    assert again["prefill"]["approximate"] is True
    fleet.tell(again, "completed")
    assert tenant.unregister(instance_id="a")[0] == 200
    assert [one["InstanceID"] for one in tenant.services()] == ["b"]
