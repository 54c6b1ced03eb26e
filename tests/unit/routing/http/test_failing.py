"""An engine whose requests fail is left out, tried again, and comes back; and it is seen."""

import random
import time
from collections import Counter
from typing import Any

import msgspec
import pytest

from routing.audit import differences_of
from routing.decisions.failing_watch import note_failing
from routing.decisions.router_settings import RouterSettings
from routing.fold.failures import FAILING_RUN
from schemas.codec import decode_routing
from schemas.conditions import Conditions, Part
from schemas.routing_records import DecisionsRecord, encode_routing
from tests.fakes import FakeTable
from tests.unit.routing.http.conftest import Service
from tests.unit.routing.http.test_endpoint import asked, register, route

NAMES = "abcd"


def told(service: Service, answer: dict[str, Any], event: str) -> None:
    body = {"decision_id": answer["decision_id"], "event": event}
    assert service.client.post_json("/feedback", body).status == 202


def served(service: Service, requests: int, dead: str = "", **fields: Any) -> Counter[str]:
    """Ten requests a second, of which those that were sent to the dead fail."""
    chosen: Counter[str] = Counter()
    chance = random.Random(requests)
    for _ in range(requests):
        service.clock.now += 0.1
        answer = route(service, token_ids=[chance.randrange(9999) for _ in range(64)], **fields)
        name = answer["prefill"]["instance_id"]
        chosen[name] += 1
        told(service, answer, "failed" if name == dead else "completed")
    service.write()
    return chosen


@pytest.mark.parametrize("policy", ["wait-and-work", "least-loaded", "blocks", "sticky", "lmetric"])
def test_it_gets_trials_alone_and_comes_back(service: Service, policy: str) -> None:
    for name in NAMES:
        register(service, name)
    served(service, 20, policy=policy)
    while_dead = served(service, 600, dead="a", policy=policy)
    assert FAILING_RUN < while_dead["a"] <= FAILING_RUN + 6, "a minute: 1, 2, 4, 8, 16, 30 s"
    service.clock.now += 30.0
    back = served(service, 100, policy=policy)
    assert min(back[name] for name in NAMES) > 10


def test_explain_and_routing_say_so(service: Service) -> None:
    for name in NAMES:
        register(service, name)
    served(service, 20, dead="a")
    found = route(service, explain=True)
    reasons = {one["instance_id"]: one["reasons"] for one in found["candidates"]}
    assert reasons == {"a": ["failing"], "b": [], "c": [], "d": []}
    document = msgspec.json.decode(service.client.get("/routing").body)
    failing = {one["instance_id"]: one["failing"] for one in document["targets"]}
    assert failing["a"]["since"] <= service.clock.now < failing["a"]["until"]
    assert [name for name in failing if failing[name] is not None] == ["a"]


def test_a_condition_says_so_until_it_is_back(service: Service) -> None:
    for name in NAMES:
        register(service, name)
    conditions = Conditions(time.time)
    served(service, 20, dead="a")
    note_failing(service.live, conditions, service.clock.now)
    [one] = conditions.all()
    assert (one.part, one.reason) == (Part.REQUESTS, "failing")
    assert "a rank 0" in one.message
    service.clock.now += 30.0
    served(service, 30)
    note_failing(service.live, conditions, service.clock.now)
    assert not conditions.all()


def test_where_all_fail_all_are_tried(service: Service) -> None:
    for name in NAMES[:2]:
        register(service, name)
    for _ in range(20):
        told(service, route(service), "failed")
    assert route(service)["prefill"]["instance_id"] in NAMES


def test_one_tenants_reports_leave_out_nothing_of_anothers(table: FakeTable) -> None:
    service = Service(table, settings=RouterSettings())
    for name in "ab":
        for tenant in ("t", "u"):
            register(service, name, tenant_id=tenant)
    for _ in range(10):
        both = [{"instance_id": "a"}]
        told(service, route(service, tenant_id="t", candidates=both), "failed")
    for tenant, expected in (("t", ["failing"]), ("u", [])):
        found = route(service, tenant_id=tenant, explain=True, reserve=False)
        assert found["candidates"][0]["reasons"] == expected


def test_decisions_without_it_are_derived_again(service: Service) -> None:
    for name in NAMES:
        register(service, name)
    for _ in range(FAILING_RUN):
        told(service, route(service, candidates=[{"instance_id": "a"}]), "failed")
    service.client.post_json("/route", asked())
    for record in service.queue.take(service.clock.now):
        read = decode_routing(encode_routing(record))
        if isinstance(read, DecisionsRecord):
            for decision in read.decisions:
                assert differences_of(read.run, decision) == []
    assert "failing" in decision.candidates[0].reasons
