"""An engine without events and `reprise up` as a process, which is killed."""

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


def test_the_second_prompt_goes_where_the_first_went_also_after_a_kill(tmp_path: Path) -> None:
    with Service(tmp_path / "data") as service:
        for instance in ("a", "b", "c"):
            register(service, instance, kv_capacity_tokens=65_536)
        until(lambda: candidates(service) == {"a", "b", "c"}, what="candidates")
        first = route(service, TOKENS)[1]["prefill"]
        assert (first["cached_tokens"], first["approximate"]) == (0, True)
        promised = []
        for tail in (range(1000, 1032), range(2000, 2032)):
            until(lambda: len(candidates(service)) == 3, what="candidates")
            status, answer = route(service, [*TOKENS, *tail])
            assert status == 200, answer
            promised.append(answer["prefill"])
            counts = service.get("/routing")[1]["counts"]
            until(
                lambda: not service.get("/routing")[1]["counts"]["waiting"],
                what=f"a log with all of {counts}",
            )
            service.restart()
        for one in promised:
            assert one["instance_id"] == first["instance_id"]
            assert (one["cached_tokens"], one["approximate"]) == (256, True)
        shown = service.get("/services")[1]["services"]
        assert {(one["InstanceID"], one["State"], one["Reason"]) for one in shown} == {
            (name, "unconfirmed", "no_events") for name in ("a", "b", "c")
        }
        assert service.digest()["contexts"] == []
        assert service.query(TOKENS) == {}
        assert service.stop() == 0
        assert service.first_traceback() == ""


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
