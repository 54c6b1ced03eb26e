"""An engine without events, and `reprise up` as a process that asks it for its load."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine_http import engine_server
from tests.processes import Service, until

pytestmark = pytest.mark.timeout(180)

TOKENS = list(range(256))
LOAD = b'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'


def register(service: Service, instance: str, **fields: object) -> None:
    body = {"type": "none", "modelname": "m", "instance_id": instance, "block_size": 16}
    status, answer = service.post("/register", body | {"dp_rank": 0} | fields)
    assert status == 200, answer


def route(service: Service, tokens: list[int], **fields: object) -> tuple[int, dict[str, Any]]:
    body = {"model": "m", "block_size": 16, "token_ids": tokens}
    return service.post("/route", body | fields)


def candidates(service: Service) -> set[str]:
    answer = route(service, TOKENS, reserve=False, explain=True)[1]
    return {one["instance_id"] for one in answer["candidates"] if one["eligible"]}


def test_it_is_asked_for_its_load_and_is_no_candidate_while_it_does_not_answer(
    tmp_path: Path,
) -> None:
    with (
        engine_server() as engine,
        Service(tmp_path / "data", "--set", "load.scrape_s=0.2") as service,
    ):
        engine.replies["/metrics"] = (200, LOAD)
        register(service, "a", http_endpoint=engine.url)
        register(service, "b")
        until(lambda: candidates(service) == {"a", "b"}, what="candidates")
        until(
            lambda: service.metric("reprise_bridge_load_samples_total") >= 2,
            what="samples of its load",
        )
        status, answer = route(service, TOKENS, candidates=[{"instance_id": "a"}])
        assert (status, answer["prefill"]["endpoint"]) == (200, engine.url)
        engine.close()
        until(lambda: candidates(service) == {"b"}, what="a is away")
        answer = route(service, TOKENS, reserve=False, explain=True)[1]
        reasons = {one["instance_id"]: one["reasons"] for one in answer["candidates"]}
        assert reasons == {"a": ["unreachable"], "b": []}
        assert {one["InstanceID"] for one in service.get("/services")[1]["services"]} == {"a", "b"}
