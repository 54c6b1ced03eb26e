"""Decisions, and what comes of them, in both forms of the service."""

import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest

from lab.engines.publisher import Publisher
from streams.kernel import native_available
from tests.contract.deployments import Tenant

PROMPTS = count()
"""Each of its own: where one went, the next with its prefix would go, too."""


class Routing:
    """Requests of one tenant, to candidates that nobody has registered."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant

    def route(self, *instances: str, **fields: Any) -> dict[str, Any]:
        body = {
            "model": "m",
            "block_size": 16,
            "tenant_id": self.tenant.tenant_id,
            "token_ids": [next(PROMPTS)] * 64,
            "candidates": [{"instance_id": one} for one in instances or ("a", "b")],
        }
        status, answer = self.tenant.api.post("/route", body | fields)
        assert status == 200, answer
        decided: dict[str, Any] = answer
        return decided

    def tell(self, decision: dict[str, Any], event: str, **fields: Any) -> dict[str, int]:
        body = {"decision_id": decision["decision_id"], "event": event}
        status, answer = self.tenant.api.post("/feedback", body | fields)
        assert status == 202, answer
        taken: dict[str, int] = answer
        return taken

    def shown(self) -> dict[str, Any]:
        status, answer = self.tenant.api.get("/routing")
        assert status == 200, answer
        shown: dict[str, Any] = answer
        return shown

    def requests(self) -> dict[str, int]:
        """Under way at each instance of the tenant, as the service decides by."""
        return {
            one["instance_id"]: one["requests"]
            for one in self.shown()["targets"]
            if one["tenant_id"] == self.tenant.tenant_id and one["requests"]
        }

    def until(self, holds: Callable[[], object], what: str) -> None:
        self.tenant.until(holds, what)

    def await_log(self) -> None:
        """Until all that was decided and told is in the log, and folded."""

        def is_there() -> bool:
            shown = self.shown()
            return (
                not shown["counts"]["waiting"]
                and shown["under_way"] == shown["counts"]["under_way"]
            )

        self.until(is_there, "a log with all that was decided")


@pytest.fixture
def routing(tenant: Tenant) -> Routing:
    return Routing(tenant)


def test_a_decision_is_booked_at_once_and_the_next_one_goes_elsewhere(routing: Routing) -> None:
    # They take a second each, so that the first still waits when the second comes.
    first, second = (routing.route(token_ids=[next(PROMPTS)] * 8192) for _ in range(2))
    chosen = {one["prefill"]["instance_id"] for one in (first, second)}
    assert chosen == {"a", "b"}
    assert routing.requests() == {"a": 1, "b": 1}
    for one in (first, second):
        routing.tell(one, "cancelled")
    assert routing.requests() == {}


def test_a_request_that_comes_again_gets_the_same_answer_and_is_booked_once(
    routing: Routing,
) -> None:
    name = uuid.uuid4().hex
    asked: dict[str, Any] = {"request_id": name, "token_ids": [next(PROMPTS)] * 64}
    first, again = routing.route(**asked), routing.route(**asked)
    assert first == again
    assert sum(routing.requests().values()) == 1
    routing.tell(first, "completed")


def test_one_that_only_asks_books_nothing(routing: Routing) -> None:
    routing.route(reserve=False)
    assert routing.requests() == {}


def test_the_first_token_releases_the_prompt_and_the_end_releases_all(routing: Routing) -> None:
    decision = routing.route("a")
    assert routing.tell(decision, "first_token", ttft_ms=12.0)["accepted"] == 1
    (target,) = (
        one for one in routing.shown()["targets"] if one["tenant_id"] == routing.tenant.tenant_id
    )
    assert (target["requests"], target["decoding"], target["pending_tokens"]) == (1, 1, 0)
    assert routing.tell(decision, "first_token")["repeated"] == 1
    assert routing.tell(decision, "completed")["accepted"] == 1
    assert routing.tell(decision, "completed")["repeated"] == 1
    assert routing.requests() == {}


def test_what_a_client_says_of_an_instance_counts(routing: Routing) -> None:
    sample = {
        "tenant_id": routing.tenant.tenant_id,
        "instance_id": "a",
        "dp_rank": 0,
        "waiting": 3,
    }
    status, answer = routing.tenant.api.post("/load", sample)
    assert (status, answer) == (202, {"accepted": 1})
    decision = routing.route()
    assert decision["prefill"]["instance_id"] == "b"
    routing.tell(decision, "completed")


@pytest.mark.both_forms
def test_what_is_under_way_survives_a_restart_and_so_do_its_reports(routing: Routing) -> None:
    ended, left = routing.route("a"), routing.route("a")
    routing.tell(ended, "completed")
    routing.await_log()
    before = routing.shown()
    routing.tenant.deployment.restart()
    routing.until(lambda: routing.shown()["position"] >= before["position"], "the log read again")
    routing.until(lambda: routing.requests() == {"a": 1}, "what was under way")
    after = routing.shown()
    if after["position"] == before["position"]:
        assert after["digest"] == before["digest"]
    assert routing.tell(ended, "completed")["accepted"] == 0
    assert routing.tell(left, "first_token")["accepted"] == 1
    assert routing.tell(left, "completed")["accepted"] == 1
    assert routing.requests() == {}
    routing.await_log()


def test_the_log_is_shown_as_msgpack_to_whoever_asks_for_that(routing: Routing) -> None:
    wanted = {"Accept": "application/msgpack"}
    status, body, headers = routing.tenant.api.request("GET", "/routing", headers=wanted)
    assert (status, headers["content-type"]) == (200, "application/msgpack")
    assert msgspec.msgpack.decode(body).keys() == routing.shown().keys()


@pytest.mark.both_forms
def test_every_decision_is_proven_from_the_log_of_them(routing: Routing) -> None:
    for policy in ("wait-and-work", "blocks", "algorithm-1:fetch=off"):
        routing.route("a", "b", policy=policy, session_id="s")
    routing.await_log()
    command = [sys.executable, "-m", "reprise", "audit", "verify"]
    command += routing.tenant.deployment.events()
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    found = re.search(r"decisions (\d+): agreed (\d+), disagreed 0;", result.stdout)
    assert found is not None, result.stdout + result.stderr
    assert result.returncode == 0, result.stdout
    assert found[1] == found[2]
    assert int(found[1]) >= 3


@pytest.mark.both_forms
@pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")
def test_what_the_kernel_decides_is_known_as_all_else_is(
    tenant: Tenant, publisher: Publisher, routing: Routing
) -> None:
    tenant.connect(publisher)  # an index that has nobody to ask is Python's to say
    before = tenant.deployment.metric("reprise_routing_kernel_decisions_total", outcome="decided")
    decided: list[dict[str, Any]] = []

    def runs() -> set[str]:
        decided.append(routing.route())
        return {one["decision_id"].partition("-")[0] for one in decided}

    routing.until(lambda: len(runs()) > 1, "a decision of the kernel behind one of Python")
    decided += [routing.route() for _ in range(20)]
    after = tenant.deployment.metric("reprise_routing_kernel_decisions_total", outcome="decided")
    assert after > before
    for one in decided:
        status, shown = tenant.api.get(f"/decisions/{one['decision_id']}")
        assert (status, shown["request_id"]) == (200, one["request_id"])
    assert sum(routing.requests().values()) == len(decided)
    routing.await_log()
    assert sum(routing.requests().values()) == len(decided)
    assert all(routing.tell(one, "completed")["accepted"] == 1 for one in decided)
    assert routing.requests() == {}
    routing.await_log()
