"""`GET /decisions`: what was decided, with what came of it."""

from typing import Any

import pytest

from tests.fakes import FakeTable
from tests.unit.routing.http.conftest import Service
from tests.unit.routing.http.test_endpoint import register, route


def shown(service: Service, path: str = "/decisions") -> Any:
    reply = service.client.get(path)
    assert reply.status == 200, reply.body
    return reply.document()


def report(service: Service, answer: dict[str, Any], event: str, **fields: Any) -> None:
    body = {"decision_id": answer["decision_id"], "event": event} | fields
    assert service.client.post_json("/feedback", body).status == 202


def test_a_decision_is_shown_as_route_answered_it(service: Service) -> None:
    register(service, "a")
    register(service, "b")
    answer = route(service)
    (one,) = shown(service)["decisions"]
    assert one["decision_id"] == answer["decision_id"]
    assert one["request_id"] == answer["request_id"]
    assert one["chosen"]["instance_id"] == answer["prefill"]["instance_id"]
    assert one["policy"] == answer["policy"]
    assert one["promised_tokens"] == answer["prefill"]["cached_tokens"]
    assert (one["refused"], one["outcome"]) == ("", None)
    whole = shown(service, f"/decisions/{one['decision_id']}")
    assert {name: whole[name] for name in one} == one
    assert {held["instance_id"] for held in whole["considered"]} == {"a", "b"}
    assert all(held["terms"] for held in whole["considered"])
    assert (whole["key_unit"], whole["kept_session"]) == ("s", False)
    for held in whole["considered"]:
        assert set(held["key_terms"]) == {"wait", "load", "fetch", "prefill", "work", "others"}
        assert sum(held["key_terms"].values()) == pytest.approx(held["key"])


def test_one_that_stayed_with_its_session_is_not_the_lowest(service: Service) -> None:
    register(service, "a")
    register(service, "b")
    first = route(service, session_id="s", token_ids=[1] * 8)["prefill"]["instance_id"]
    answer = route(service, session_id="s", token_ids=[2] * 8)
    assert answer["prefill"]["instance_id"] == first
    kept = shown(service, f"/decisions/{answer['decision_id']}")
    keys = {held["instance_id"]: held["key"] for held in kept["considered"]}
    assert keys[first] > min(keys.values())
    assert kept["kept_session"]


def test_reports_are_shown_together(service: Service) -> None:
    register(service, "a")
    answer = route(service)
    report(service, answer, "first_token", ttft_ms=12.5)
    report(service, answer, "completed", prompt_tokens=9, cached_tokens=4, output_tokens=7)
    outcome = shown(service)["decisions"][0]["outcome"]
    told = (
        outcome["event"],
        outcome["ttft_ms"],
        outcome["cached_tokens"],
        outcome["output_tokens"],
    )
    assert told == ("completed", 12.5, 4, 7)


def test_a_report_of_zero_cached_tokens_is_zero_and_not_unknown(service: Service) -> None:
    register(service, "a")
    report(service, route(service), "completed", cached_tokens=0)
    assert shown(service)["decisions"][0]["outcome"]["cached_tokens"] == 0


def test_a_failure_says_why(service: Service) -> None:
    register(service, "a")
    report(service, route(service), "failed", error="out of memory")
    outcome = shown(service)["decisions"][0]["outcome"]
    assert (outcome["event"], outcome["error"]) == ("failed", "out of memory")


def test_one_that_chose_nobody_is_shown_with_its_reason(service: Service) -> None:
    register(service, "a")
    route(service, 429, token_ids=[1] * 1600, slo={"ttft_ms": 1})
    (one,) = shown(service)["decisions"]
    assert (one["chosen"], bool(one["refused"])) == (None, True)


def test_what_is_only_asked_for_is_not_shown(service: Service) -> None:
    register(service, "a")
    route(service, reserve=False)
    assert shown(service)["decisions"] == []


def test_the_latest_come_first_as_many_as_are_asked_for(service: Service) -> None:
    register(service, "a")
    answers = [route(service) for _ in range(3)]
    found = [one["decision_id"] for one in shown(service, "/decisions?limit=2")["decisions"]]
    assert found == [answers[2]["decision_id"], answers[1]["decision_id"]]


def test_they_say_since_when_they_are_known(service: Service) -> None:
    """A service that was started again has nothing of before."""
    started = service.clock.now
    register(service, "a")
    assert shown(service)["since"] == started
    service.clock.now += 60.0
    route(service)
    assert shown(service)["since"] == started


def test_those_of_a_prefix(service: Service) -> None:
    register(service, "a")
    one = route(service, token_ids=[1] * 16)
    route(service, token_ids=[2] * 16)
    marks = shown(service, f"/decisions/{one['decision_id']}")["prefixes"]
    assert [mark["tokens"] for mark in marks] == [16]
    for mark in marks:
        (found,) = shown(service, f"/decisions?prefix={mark['prefix_hash']}")["decisions"]
        assert found["decision_id"] == one["decision_id"]
    assert shown(service, "/decisions?prefix=1")["decisions"] == []


@pytest.mark.parametrize("prefix", ["-1", "x", "1" * 21, "1.5"])
def test_a_wrong_prefix_is_named(service: Service, prefix: str) -> None:
    reply = service.client.get(f"/decisions?prefix={prefix}")
    assert (reply.status, reply.document()["field"]) == (400, "prefix")


def test_those_of_other_services_come_by_the_log(service: Service) -> None:
    other = Service(FakeTable())
    register(other, "a")
    answer = route(other)
    for record in other.queue.take(other.clock.now):
        service.live.follow(service.folded.offset + 1, record, other.clock.now)
    assert shown(service)["decisions"][0]["decision_id"] == answer["decision_id"]


@pytest.mark.parametrize("limit", ["0", "many", "9999999999", "%D9%A3"])
def test_a_wrong_limit_is_named(service: Service, limit: str) -> None:
    reply = service.client.get(f"/decisions?limit={limit}")
    assert (reply.status, reply.document()["field"]) == (400, "limit")


@pytest.mark.parametrize("name", ["1-1", "x", "", "1-", "-1-1", "1" * 500, "66150c04c5ad8-fffff"])
def test_one_that_is_not_known_is_404(service: Service, name: str) -> None:
    reply = service.client.get(f"/decisions/{name}")
    assert reply.status == 404
    assert len(reply.body) < 500
