"""Requests by their own ids: of which tenant, asked again, asked otherwise, failed."""

from typing import Any

import msgspec

from schemas.routing_records import OutcomeEvent, OutcomesRecord
from tests.unit.routing.http.conftest import Service
from tests.unit.routing.http.test_endpoint import register, route


def tell(service: Service, **fields: Any) -> dict[str, int]:
    reply = service.client.post_json("/feedback", fields)
    assert reply.status == 202, reply.body
    counts: dict[str, int] = msgspec.json.decode(reply.body)
    return counts


def under_way(service: Service) -> int:
    return service.live.counts()["under_way"]


def test_another_question_of_that_id_is_decided_anew_and_booked_alone(service: Service) -> None:
    register(service, "a")
    register(service, "b", blocks=4)
    first = route(service, request_id="r")
    assert first["prefill"]["instance_id"] == "b"
    other = route(service, request_id="r", candidates=[{"instance_id": "a"}])
    assert other["prefill"]["instance_id"] == "a"
    assert other["decision_id"] != first["decision_id"]
    assert under_way(service) == 1
    told = [one for one in service.queue.take(0.0) if isinstance(one, OutcomesRecord)]
    events = [one.event for record in told for one in record.outcomes]
    assert events == [OutcomeEvent.CANCELLED], "every reader of the log takes it back, too"


def test_a_request_that_failed_is_decided_anew(service: Service) -> None:
    register(service, "a")
    first = route(service, request_id="r")
    assert tell(service, request_id="r", event="failed")["accepted"] == 1
    assert route(service, request_id="r")["decision_id"] != first["decision_id"]
    assert under_way(service) == 1


def test_a_report_is_of_its_tenants_request(service: Service) -> None:
    register(service, "a")
    register(service, "t", tenant_id="other")
    route(service, request_id="r")
    route(service, request_id="r", tenant_id="other")
    assert tell(service, request_id="r", event="completed")["unknown"] == 1, "whose of both?"
    counts = tell(service, request_id="r", event="completed", tenant_id="other")
    assert counts == {"accepted": 1, "repeated": 0, "unknown": 0}
    loads = {target.tenant_id: load.requests for target, load in service.router.carried()}
    assert {name: count for name, count in loads.items() if count} == {"default": 1}
    assert tell(service, request_id="r", event="completed", tenant_id="none")["unknown"] == 1
    service.write()
    assert under_way(service) == 1


def test_a_report_of_a_decision_that_was_not_made_is_unknown(service: Service) -> None:
    register(service, "a")
    run, _, number = route(service)["decision_id"].rpartition("-")
    assert tell(service, decision_id=f"{run}-{int(number) + 1}", event="completed")["unknown"] == 1
    route(service)
    assert under_way(service) == 2


def test_a_request_that_failed_leaves_no_prefix_where_it_was_sent(service: Service) -> None:
    register(service, "a")
    first = route(service)
    assert route(service, reserve=False)["prefill"]["predicted_tokens"] == 64
    tell(service, decision_id=first["decision_id"], event="failed")
    assert route(service, reserve=False)["prefill"]["predicted_tokens"] == 0


def test_a_request_that_went_elsewhere_leaves_no_prefix_where_it_was_to_go(
    service: Service,
) -> None:
    register(service, "a")
    register(service, "b")
    first = route(service)
    chosen = first["prefill"]["instance_id"]
    other = {"a": "b", "b": "a"}[chosen]
    tell(service, decision_id=first["decision_id"], event="dispatched", instance_id=other)
    only = [{"instance_id": chosen}]
    assert route(service, reserve=False, candidates=only)["prefill"]["predicted_tokens"] == 0


def test_tokens_that_an_engine_has_yet_to_compute_are_wait_for_whoever_looks(
    service: Service,
) -> None:
    register(service, "a")
    load = {"instance_id": "a", "waiting": 8, "prefill_tokens": 100_000}
    assert service.client.post_json("/load", load).status == 202
    (of_model,) = service.router.instances("default", "m")
    ((_, carried),) = service.router.carried()
    asked = route(service, reserve=False)["prefill"]["ttft_ms"]["queue"]
    assert of_model.wait_s == carried.wait_s > 10
    assert asked / 1000 == carried.wait_s
