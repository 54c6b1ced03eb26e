"""`POST /route`, `/feedback` and `/load`: what is asked, answered, booked and refused."""

import struct
from collections import Counter
from typing import Any

import msgspec
import pytest

from routing.decisions import answers as answers_module
from routing.decisions.live_load import LiveLoad
from routing.decisions.router_settings import RouterSettings
from routing.estimates.decode import DecodeTerms
from routing.fold.fold import RoutingFold
from routing.policies.decide import DegradedPolicy
from schemas.answer_states import AnswerState, Doubt, Standing
from schemas.codec import decode_routing
from schemas.events import StoredBlocks, encode_events, extra_key, paired_key
from schemas.identities import PrefixScope
from schemas.registration import NO_EVENTS, Label, PublisherKind, Registration
from schemas.routing_records import (
    DecidedScope,
    DecisionsRecord,
    LoadSample,
    LoadSource,
    OutcomesRecord,
    Target,
    encode_routing,
)
from tests.building import prefix_hashes
from tests.fakes import FakeTable
from tests.unit.routing.http.conftest import Service

VLLM = PublisherKind("vLLM")
TOKENS = list(range(64))
PORTS = iter(range(20_000, 60_000))


def register(
    service: Service, name: str, *, blocks: int = 0, pairs: bool = False, **fields: Any
) -> None:
    """An instance that holds so many blocks of TOKENS."""
    registration = Registration(
        endpoint=f"tcp://127.0.0.1:{next(PORTS)}",
        kind=VLLM,
        model_name="m",
        instance_id=name,
        block_size=16,
        **fields,
    )
    publisher = service.table.add(registration)
    if blocks:
        ends = range(16, 16 * blocks + 1, 16)
        behind = [paired_key(b"", struct.pack("<I", TOKENS[end])) for end in ends if pairs]
        stored = StoredBlocks(
            sequence=0,
            hashes=struct.pack(f"<{blocks}Q", *range(1, blocks + 1)),
            tokens=struct.pack(f"<{16 * blocks}I", *TOKENS[: 16 * blocks]),
            block_size=16,
            extra_keys=tuple(behind),
        )
        service.table.kernel.apply(publisher, encode_events([stored]), -1)
    service.clock.now += 1.0  # so that it is looked again who is registered


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "block_size": 16, "token_ids": TOKENS, **fields}


def route(service: Service, status: int = 200, **fields: Any) -> dict[str, Any]:
    reply = service.client.post_json("/route", asked(**fields))
    assert reply.status == status, reply.body
    document: dict[str, Any] = msgspec.json.decode(reply.body)
    return document


def refused(service: Service, path: str, document: object) -> tuple[int, str, str | None]:
    reply = service.client.post_json(path, document)
    error = msgspec.json.decode(reply.body)
    return reply.status, error["reason"], error.get("field")


def test_plain_blocks_and_blocks_of_pairs_count_in_one_decision(service: Service) -> None:
    register(service, "a", blocks=3, pairs=True)
    assert route(service, reserve=False)["prefill"]["cached_tokens"] == 48
    register(service, "b", blocks=1)
    chosen = route(service, reserve=False)["prefill"]
    assert (chosen["instance_id"], chosen["cached_tokens"]) == ("a", 48)


IMAGE = {"hash": "a3f1", "offset": 20, "length": 20}


def store_image(service: Service, name: str, *keys: object) -> None:
    """TOKENS, of which an image is in the second and the third block."""
    registration = Registration(
        endpoint=f"tcp://127.0.0.1:{next(PORTS)}",
        kind=VLLM,
        model_name="m",
        instance_id=name,
        block_size=16,
    )
    publisher = service.table.add(registration)
    stored = StoredBlocks(
        sequence=0,
        hashes=struct.pack("<4Q", 1, 2, 3, 4),
        tokens=struct.pack("<64I", *TOKENS),
        block_size=16,
        extra_keys=(b"", *(extra_key([key]) for key in keys), b""),
    )
    service.table.kernel.apply(publisher, encode_events([stored]), -1)
    service.clock.now += 1.0


def test_an_image_goes_to_who_holds_it_however_its_release_writes_it(service: Service) -> None:
    store_image(service, "a", ["a3f1", 4], ["a3f1", -12])
    store_image(service, "b", ["b7d2", 4], ["b7d2", -12])
    features = {
        "mm_hashes": {"image": ["b7d2"]},
        "mm_placeholders": {"image": [{"offset": 20, "length": 20}]},
    }
    rows = [None, [["b7d2", 4]], [["b7d2", -12]], None]
    for fields, expected in (
        ({"media": [IMAGE]}, ("a", 64)),
        ({"features": features}, ("b", 64)),
        ({"extra_keys": rows}, ("b", 64)),
    ):
        chosen = route(service, reserve=False, **fields)["prefill"]
        assert (chosen["instance_id"], chosen["cached_tokens"]) == expected
    assert route(service, reserve=False)["prefill"]["cached_tokens"] == 16
    store_image(service, "c", "c0de", "c0de")  # of vLLM 0.17
    other = [IMAGE | {"hash": "c0de"}]
    chosen = route(service, reserve=False, media=other, explain=True)
    assert (chosen["prefill"]["instance_id"], chosen["prefill"]["cached_tokens"]) == ("c", 64)
    held = {one["instance_id"]: one["cached_tokens"] for one in chosen["candidates"]}
    assert held == {"a": 16, "b": 16, "c": 64}


def test_what_an_image_was_booked_for_is_soon_held_there_alone(service: Service) -> None:
    for name in "ab":
        store_image(service, name, ["b7d2", 4], ["b7d2", -12])
    first = route(service, media=[IMAGE])["prefill"]["instance_id"]
    again = route(service, media=[IMAGE], reserve=False)["prefill"]
    assert (again["instance_id"], again["predicted_tokens"]) == (first, 48)
    for other in ([IMAGE | {"hash": "x"}], []):
        assert route(service, media=other, reserve=False)["prefill"]["predicted_tokens"] == 0


def test_keys_beside_hashes_are_refused(service: Service) -> None:
    document = {"model": "m", "block_size": 16, "block_hashes": [1, 2]}
    for name, value in (("media", [IMAGE | {"offset": 0}]), ("extra_keys", [["s"], None])):
        found = refused(service, "/route", document | {name: value})
        assert found == (400, "invalid_value", name)
    assert service.client.post_json("/route", document | {"media": []}).status != 400
    assert refused(service, "/route", asked(media=5)) == (400, "invalid_type", "media")


def test_who_holds_most_of_the_prompt_gets_it(service: Service) -> None:
    register(service, "a", blocks=1, http_endpoint="http://10.0.0.1:8000")
    register(service, "b", blocks=3, http_endpoint="http://10.0.0.2:8000")
    found = route(service, request_id="r-1")
    assert found["request_id"] == "r-1"
    assert found["policy"] == "least-delay"
    assert found["index"] == {"position": "0:1234", "state": "exact"}
    prefill = found["prefill"]
    assert prefill["instance_id"] == "b"
    assert prefill["endpoint"] == "http://10.0.0.2:8000"
    assert (prefill["prompt_tokens"], prefill["cached_tokens"], prefill["gpu"]) == (64, 48, 48)
    assert found["decode"] is None
    assert "candidates" not in found


def test_msgpack_and_hashes_say_the_same(service: Service) -> None:
    register(service, "a", blocks=1)
    register(service, "b", blocks=3)
    scope = PrefixScope("default", "m", "", 16, "")
    hashes = service.table.kernel.prefix_hashes(scope, struct.pack("<64I", *TOKENS), (), 4)
    body = {"model": "m", "block_size": 16, "block_hashes": hashes, "reserve": False}
    by_hash = msgspec.msgpack.decode(service.client.post_msgpack("/route", body).body)
    packed = {"model": "m", "block_size": 16, "token_ids": struct.pack("<64I", *TOKENS)}
    by_bin = msgspec.msgpack.decode(
        service.client.post_msgpack("/route", packed | {"reserve": False}).body
    )
    by_json = route(service, reserve=False)
    assert by_hash["prefill"] == by_bin["prefill"] == by_json["prefill"]


def test_a_booking_is_seen_by_the_next_decision(service: Service) -> None:
    register(service, "a")
    register(service, "b")
    prompts = ([1] * 64, [2] * 64)
    chosen = [route(service, token_ids=one)["prefill"]["instance_id"] for one in prompts]
    assert sorted(chosen) == ["a", "b"]


def test_without_reserve_nothing_is_booked_or_written(service: Service) -> None:
    register(service, "a")
    route(service, reserve=False)
    assert len(service.queue) == 0
    assert service.live.counts()["under_way"] == 0


def test_the_same_request_gets_the_same_answer_and_is_booked_once(service: Service) -> None:
    register(service, "a")
    register(service, "b")
    first = route(service, request_id="r")
    service.clock.now += 59.0
    assert route(service, request_id="r") == first
    assert service.live.counts()["under_way"] == 1
    assert len(service.queue) == 1
    service.clock.now += 2.0
    assert route(service, request_id="r")["decision_id"] != first["decision_id"]


def test_what_is_kept_for_repetitions_is_bounded(
    table: FakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(table)  # the kernel keeps its own answers, as many
    monkeypatch.setattr(answers_module, "ROUTE_CANDIDATES_KEPT", 4)
    for name in "ab":
        register(service, name)
    plain = [route(service, request_id=f"p{number}") for number in range(5)]
    assert route(service, request_id="p4") == plain[4]
    assert route(service, request_id="p1") == plain[1]  # one candidate of each is kept
    full = route(service, request_id="f", explain=True)
    assert route(service, request_id="f", explain=True) == full
    assert len(full["candidates"]) == 2
    assert route(service, request_id="p1") != plain[1]


def test_one_tenant_has_no_other_tenants_answer(service: Service) -> None:
    register(service, "a")
    register(service, "t", tenant_id="other")
    assert route(service, request_id="r")["prefill"]["instance_id"] == "a"
    other = route(service, request_id="r", tenant_id="other")
    assert other["prefill"]["instance_id"] == "t"


def test_what_came_of_it_releases_the_booking(service: Service) -> None:
    register(service, "a")
    name = route(service)["decision_id"]
    for event in ("dispatched", "first_token", "completed"):
        reply = service.client.post_json("/feedback", {"decision_id": name, "event": event})
        assert (reply.status, msgspec.json.decode(reply.body)) == (
            202,
            {"accepted": 1, "repeated": 0, "unknown": 0},
        )
    assert service.live.counts()["under_way"] == 0
    again = service.client.post_json("/feedback", {"decision_id": name, "event": "completed"})
    assert msgspec.json.decode(again.body) == {"accepted": 0, "repeated": 1, "unknown": 0}


def test_reports_by_request_are_known_before_and_after_its_end(service: Service) -> None:
    register(service, "a")
    route(service, request_id="r")
    reports = [{"request_id": "r", "event": "completed"}, {"request_id": "r", "event": "completed"}]
    reply = service.client.post_json(
        "/feedback", [*reports, {"request_id": "x", "event": "failed"}]
    )
    assert msgspec.json.decode(reply.body) == {"accepted": 1, "repeated": 1, "unknown": 1}


def test_what_is_decided_and_reported_is_written_in_order(service: Service) -> None:
    register(service, "a")
    name = route(service)["decision_id"]
    service.client.post_json("/feedback", {"decision_id": name, "event": "first_token"})
    route(service)
    records = [decode_routing(encode_routing(one)) for one in service.queue.take(5.0)]
    assert [type(record) for record in records] == [
        DecisionsRecord,
        OutcomesRecord,
        DecisionsRecord,
    ]
    first = records[0]
    assert isinstance(first, DecisionsRecord)
    assert first.run == service.router.run
    assert first.decisions[0].prompt_tokens == 64
    # At 1, 2 and 4 blocks: the powers of two are its end, too.
    assert [mark.blocks for mark in first.decisions[0].marks] == [1, 2, 4]


def test_an_unknown_decision_is_counted_and_not_refused(service: Service) -> None:
    for name in ("1-2", "", "zz", "123", "-", "1--2", "01-2"):
        reply = service.client.post_json("/feedback", {"decision_id": name, "event": "failed"})
        assert reply.status == 202
        assert msgspec.json.decode(reply.body)["unknown"] == 1
    assert len(service.queue) == 0


def test_nobody_is_there(service: Service) -> None:
    found = route(service, 503)
    assert (found["reason"], found["candidates"]) == ("no_candidate", [])


def test_a_model_or_a_size_that_nobody_has_is_said_with_what_there_is(service: Service) -> None:
    register(service, "a", blocks=3)
    assert "unknown" not in route(service)["index"]
    found = route(service, block_size=128)
    assert found["index"]["unknown"] == "block_size=128; known=16"
    assert found["prefill"]["cached_tokens"] == 0
    found = route(service, 503, model="other")
    assert found["error"] == "no candidate is there: no engine has model=other; known=m"
    reply = service.client.post_json("/route", asked(model="other"))
    assert reply.headers["reprise-unknown"] == "model=other; known=m"


def test_an_engine_whose_link_is_down_is_left_out(service: Service) -> None:
    register(service, "a", blocks=3)
    register(service, "b")
    down = Standing(AnswerState.UNCONFIRMED, Doubt.LINK_DOWN, 1.0)
    service.table.standings["a"] = down
    service.clock.now += 1.0
    found = route(service, explain=True)
    assert found["prefill"]["instance_id"] == "b"
    assert [one["reasons"] for one in found["candidates"]] == [["unreachable"], []]
    service.table.standings["b"] = down
    service.clock.now += 1.0
    assert route(service, 503)["reason"] == "no_candidate"


def test_a_hybrid_one_is_used_by_its_attention(service: Service) -> None:
    register(service, "a", blocks=3)
    register(service, "b")
    service.table.standings["a"] = Standing(AnswerState.UNCONFIRMED, Doubt.ATTENTION_ONLY, 0.0)
    service.clock.now += 1.0
    found = route(service, explain=True)
    assert (found["prefill"]["instance_id"], found["prefill"]["cached_tokens"]) == ("a", 48)
    assert [one["reasons"] for one in found["candidates"]] == [[], []]


def test_a_degraded_one_counts_as_holding_nothing(service: Service) -> None:
    register(service, "a", blocks=3)
    register(service, "b", blocks=1)
    service.table.standings["a"] = Standing(AnswerState.DEGRADED, "lost_batches", 1.0)
    service.clock.now += 1.0
    found = route(service, explain=True)
    assert found["prefill"]["instance_id"] == "b"
    assert found["candidates"][0]["reasons"] == ["degraded"]
    assert found["candidates"][0]["cached_tokens"] == 48


def test_a_degraded_one_that_is_dropped_is_not_eligible(table: FakeTable) -> None:
    service = Service(table, settings=RouterSettings(degraded=DegradedPolicy.DROP))
    register(service, "a", blocks=3)
    register(service, "b")
    table.standings["a"] = Standing(AnswerState.DEGRADED, "lost_batches", 1.0)
    service.clock.now += 1.0
    found = route(service, explain=True)
    assert found["prefill"]["instance_id"] == "b"
    assert [one["eligible"] for one in found["candidates"]] == [False, True]
    assert found["candidates"][0]["key"] is None


def test_a_table_that_is_not_ready_routes_by_load(service: Service) -> None:
    register(service, "a", blocks=3)
    register(service, "b")
    service.table.ready = False
    found = route(service)
    assert found["index"]["state"] == "stale"
    assert found["prefill"]["cached_tokens"] == 0


def test_candidates_of_the_request_alone_count(service: Service) -> None:
    register(service, "a", blocks=3)
    register(service, "b")
    candidates = [{"instance_id": "b"}, {"instance_id": "z", "endpoint": "http://z"}]
    prompts = ([1] * 64, [2] * 64)
    chosen = [
        route(service, candidates=candidates, token_ids=one)["prefill"]["instance_id"]
        for one in prompts
    ]
    assert sorted(chosen) == ["b", "z"]


def test_the_load_that_a_request_tells_counts(service: Service) -> None:
    register(service, "a", blocks=3)
    register(service, "b")
    candidates = [{"instance_id": "a", "load": {"waiting": 9}}, {"instance_id": "b"}]
    found = route(service, candidates=candidates, explain=True)
    assert found["prefill"]["instance_id"] == "b"
    busy = [{"instance_id": "a", "load": {"kv_usage": 0.99}}]
    assert route(service, 429, candidates=busy)["reason"] == "overloaded"


def test_the_load_that_was_posted_counts_until_it_is_old(service: Service) -> None:
    register(service, "a", blocks=3)
    register(service, "b")
    reply = service.client.post_json("/load", {"instance_id": "a", "kv_usage": 0.99})
    assert reply.status == 202
    assert route(service, reserve=False)["prefill"]["instance_id"] == "b"
    service.clock.now += 1e9
    assert route(service, reserve=False)["prefill"]["instance_id"] == "a"


def test_a_prompt_that_waits_is_taken_to_be_there_until_it_is_computed(service: Service) -> None:
    for name in "abcd":
        register(service, name)
    load = {"waiting": 20}
    busy = [{"instance_id": name, "load": load} for name in "abcd"]
    first = route(service, candidates=busy)["prefill"]
    assert 9_000 < first["ttft_ms"]["expected"] < 12_000
    service.clock.now += 9.0
    assert route(service, policy="longest-prefix", reserve=False)["prefill"]["cached_tokens"] == 64
    service.clock.now += 9.0
    assert route(service, policy="longest-prefix", reserve=False)["prefill"]["cached_tokens"] == 0


def test_roles_are_kept_to(service: Service) -> None:
    register(service, "p", blocks=3, role="prefill")
    register(service, "d", role="decode")
    assert route(service, 503)["reason"] == "no_candidate"
    assert route(service, phase="prefill")["prefill"]["instance_id"] == "p"
    decode = route(service, phase="decode")
    assert decode["prefill"] is None
    assert decode["decode"]["instance_id"] == "d"


TBT_MS = 1000.0 * DecodeTerms().request_s  # of one request, by the prior


def test_what_decodes_is_what_is_booked_or_what_a_sample_tells(service: Service) -> None:
    register(service, "d", role="decode")
    target, at = Target("default", "d", 0), service.clock.now
    told: list[int] = []
    for running in (0, 0, 90):
        service.router.observe(
            [LoadSample(target, at + len(told), LoadSource.SCRAPED, running=running)]
        )
        told.append(round(route(service, phase="decode")["decode"]["tbt_ms"] / TBT_MS))
    assert told == [1, 2, 91]


def test_a_pair_is_one_instance_where_little_is_to_be_computed(service: Service) -> None:
    register(service, "p", role="prefill")
    register(service, "d", role="decode")
    register(service, "c")
    short = route(service, phase="pair")
    assert short["prefill"]["instance_id"] in ("d", "c")
    assert short["prefill"]["ttft_ms"]["prefill"] > 0
    assert short["decode"] is None
    long = route(service, phase="pair", token_ids=list(range(8000)))
    assert long["prefill"]["instance_id"] in ("p", "c")
    assert long["decode"] is not None


def test_an_objective_that_nobody_meets_is_refused_with_the_time_to_come_back(
    service: Service,
) -> None:
    register(service, "a")
    register(service, "b")
    service.client.post_json("/load", [{"instance_id": name, "waiting": 20} for name in "ab"])
    reply = service.client.post_json("/route", asked(slo={"ttft_ms": 500}))
    found = msgspec.json.decode(reply.body)
    assert reply.status == 429
    assert found["reason"] == "slo_unreachable"
    assert int(reply.headers["retry-after"]) == -(-found["retry_after_ms"] // 1000)
    assert found["best"]["reasons"] == ["slo"]


def test_an_objective_may_stand_in_a_header(service: Service) -> None:
    register(service, "a")
    reply = service.client.post_json("/route", asked(), x_llm_d_slo_ttft_ms="0.5")
    assert reply.status == 429
    wrong = service.client.post_json("/route", asked(), x_llm_d_slo_ttft_ms="soon")
    assert wrong.status == 400


def test_a_prompt_that_was_just_sent_somewhere_is_taken_to_be_there(service: Service) -> None:
    for name in "abcd":
        register(service, name)
    first = route(service, policy="longest-prefix")["prefill"]
    again = route(service, policy="longest-prefix")["prefill"]
    assert again["instance_id"] == first["instance_id"]
    assert (again["cached_tokens"], again["predicted_tokens"]) == (64, 64)
    service.clock.now += 3.0
    assert route(service, policy="longest-prefix", reserve=False)["prefill"]["cached_tokens"] == 0


def test_engines_without_events_are_approximate(service: Service) -> None:
    candidates = [{"instance_id": "x"}]
    first = route(service, candidates=candidates)["prefill"]
    assert (first["approximate"], first["predicted_tokens"]) == (True, 0)
    service.clock.now += 100.0
    later = route(service, candidates=candidates)["prefill"]
    assert (later["approximate"], later["predicted_tokens"]) == (True, 64)


def test_a_very_long_prompt_has_a_plan(service: Service) -> None:
    for name in "abcd":
        register(service, name)
    prompt = list(range(160_000))
    found = route(service, token_ids=prompt, reserve=False)
    plan = found["plan"]
    assert plan["single_ttft_ms"] > 30_000 > plan["expected_ttft_ms"]
    assert len(plan["nodes"]) >= 2
    assert plan["chunks"][-1] == 160_000
    refused = route(service, 429, token_ids=prompt, slo={"ttft_ms": 20_000})
    assert refused["plan"]["expected_ttft_ms"] <= 20_000
    assert route(service, token_ids=prompt[:16_000], reserve=False)["plan"] is None


def test_outcomes_teach_what_computing_takes(service: Service) -> None:
    register(service, "a", labels=(Label("class", "fast"),))
    for number in range(40):
        found = route(service, token_ids=list(range(16 * (number + 1))), request_id=str(number))
        report = {"decision_id": found["decision_id"], "event": "first_token", "queue_ms": 0}
        tokens = 16 * (number + 1)
        service.client.post_json(
            "/feedback", report | {"prefill_ms": tokens / 100, "ttft_ms": tokens / 100}
        )
        service.client.post_json("/feedback", report | {"event": "completed"})
        service.write()
        service.clock.now += 3.0
    (row,) = msgspec.json.decode(service.client.get("/models").body)["prefill"]
    assert (row["class_name"], row["is_believed"]) == ("fast", True)
    found = route(service, token_ids=list(range(800)))
    assert found["prefill"]["ttft_ms"]["prefill"] == pytest.approx(8.0, rel=0.3)


def test_every_policy_can_be_asked_for_by_name(service: Service) -> None:
    register(service, "a", blocks=3)
    register(service, "b")
    for policy in ("wait-and-work", "algorithm-1", "weighted", "blocks", "lmetric", "sticky"):
        assert route(service, policy=policy, reserve=False)["policy"] == policy
    for policy in ("least-loaded", "round-robin", "weighted:alpha=0.5"):
        assert route(service, policy=policy, reserve=False)["prefill"] is not None


@pytest.mark.parametrize(
    ("fields", "status", "reason", "field"),
    [
        ({"policy": "best"}, 400, "invalid_policy", "policy"),
        ({"policy": "weighted:alpha=-1"}, 400, "invalid_policy", "policy"),
        ({"slo": {"ttft_ms": 0}}, 400, "out_of_range", "slo.ttft_ms"),
        ({"slo": {"tbt_ms": "x"}}, 400, "invalid_type", "slo.tbt_ms"),
        ({"token_ids": [1, 2.5]}, 400, "invalid_type", "token_ids"),
        ({"token_ids": "x"}, 400, "not_array", "token_ids"),
        ({"block_hashes": [1]}, 400, "invalid_value", "block_hashes"),
        ({"block_size": 0}, 400, "out_of_range", "block_size"),
        ({"phase": "both"}, 400, "out_of_range", "phase"),
        ({"color": 1}, 400, "unknown_field", "color"),
        ({"priority": 2**40}, 400, "out_of_range", "priority"),
        (
            {"candidates": [{"instance_id": "a"}, {"instance_id": "a"}]},
            400,
            "invalid_value",
            "candidates",
        ),
        ({"candidates": [{"instance_id": ""}]}, 400, "out_of_range", "candidates[0].instance_id"),
        (
            {"candidates": [{"instance_id": "a", "load": {"kv_usage": 1.5}}]},
            400,
            "out_of_range",
            "candidates[0].load.kv_usage",
        ),
        ({"candidates": [{"dp_rank": 1}]}, 400, "missing", "candidates[0].instance_id"),
        ({"request_id": "x" * 1025}, 400, "out_of_range", "request_id"),
    ],
)
def test_what_is_wrong_is_named(
    service: Service, fields: dict[str, Any], status: int, reason: str, field: str
) -> None:
    register(service, "a")
    assert refused(service, "/route", asked(**fields)) == (status, reason, field)
    assert service.live.counts()["under_way"] == 0


def test_not_a_number_is_refused(service: Service) -> None:
    register(service, "a")
    for body in (
        asked(slo={"ttft_ms": float("nan")}),
        asked(candidates=[{"instance_id": "a", "load": {"kv_usage": float("nan")}}]),
        asked(candidates=[{"instance_id": "a", "load": {"observed_at": float("inf")}}]),
    ):
        assert service.client.post_msgpack("/route", body).status == 400
    report = {"decision_id": "1-1", "event": "completed", "ttft_ms": float("nan")}
    assert service.client.post_msgpack("/feedback", report).status == 400
    assert (
        service.client.post_msgpack("/feedback", report | {"ttft_ms": 1, "at": float("nan")}).status
        == 400
    )


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "invalid_value"),
        ([{"decision_id": "1-1", "event": "failed"}] * 1025, "too_many_elements"),
        ({"event": "failed"}, "invalid_value"),
        ({"decision_id": "1-1", "request_id": "r", "event": "failed"}, "invalid_value"),
        ({"decision_id": "1-1", "event": "started"}, "out_of_range"),
        ({"decision_id": "1-1"}, "missing"),
        ({"decision_id": "1-1", "event": "failed", "ttft_ms": -1}, "out_of_range"),
    ],
)
def test_reports_that_are_wrong_are_named(service: Service, document: object, reason: str) -> None:
    status, told, _ = refused(service, "/feedback", document)
    assert (status, told) == (400, reason)


def test_a_sample_of_the_future_is_refused(service: Service) -> None:
    late = {"instance_id": "a", "waiting": 1, "observed_at": service.clock.now + 60}
    assert refused(service, "/load", late) == (400, "in_the_future", "observed_at")


def test_a_page_of_somebody_else_books_nothing(service: Service) -> None:
    register(service, "a")
    for path, body in (("/route", asked()), ("/load", {"instance_id": "a", "waiting": 1})):
        reply = service.client.post_json(path, body, origin="http://evil.example")
        assert reply.status == 403
    assert service.live.counts()["under_way"] == 0


def test_the_decision_names_whom_it_is_of(service: Service) -> None:
    register(service, "a")
    route(service, session_id="s")
    service.write()
    last = service.live.last_of_session("default", "s", service.clock.now)
    assert last == Target("default", "a", 0)


# Engines without events


def silent(service: Service, name: str, **fields: Any) -> Registration:
    fields = {"kind": NO_EVENTS, "endpoint": "", **fields}
    one = Registration(model_name="m", instance_id=name, block_size=16, **fields)
    service.table.registrations[one.publisher] = one
    service.clock.now += 1.0
    return one


def tell(service: Service, answer: dict[str, Any], event: str) -> None:
    body = {"decision_id": answer["decision_id"], "event": event}
    assert service.client.post_json("/feedback", body).status == 202


def test_it_is_a_candidate_of_its_model_by_what_it_is_called(service: Service) -> None:
    silent(service, "a", url="http://router-calls-it/", kv_capacity_tokens=640)
    answer = route(service)["prefill"]
    assert (answer["instance_id"], answer["approximate"]) == ("a", True)
    assert answer["endpoint"] == "http://router-calls-it/"
    service.write()
    again = route(service)["prefill"]
    assert (again["cached_tokens"], again["predicted_tokens"]) == (64, 64)


@pytest.mark.parametrize("by_the_log", [False, True])
@pytest.mark.parametrize(
    ("event", "held"), [("failed", 0), ("cancelled", 0), ("completed", 64), ("first_token", 64)]
)
def test_a_failed_prompt_is_not_held_here_nor_by_who_reads_the_log(
    service: Service, event: str, held: int, by_the_log: bool
) -> None:
    silent(service, "a")
    tell(service, route(service), event)
    if by_the_log:
        service.write()
        service.live.rebase(RoutingFold.load(service.folded.read_all(RoutingFold.dump)))
    assert route(service, reserve=False)["prefill"]["cached_tokens"] == held


def test_another_service_learns_what_became_of_a_decision_by_the_log(service: Service) -> None:
    silent(service, "a")
    tell(service, route(service), "failed")
    other = LiveLoad()
    fold = RoutingFold()
    for offset, record in enumerate(service.queue.take(service.clock.now)):
        other.follow(offset, record, service.clock.now)
        fold.apply(offset, record)
    assert len(fold.observations.predicted) == 0
    restarted = LiveLoad(fold)
    for live in (other, restarted):
        assert prefix_of_tokens(live, service) == 0


def prefix_of_tokens(live: LiveLoad, service: Service) -> int:
    scope = DecidedScope("default", "m", "", 16, "")
    hashes = struct.pack("<4Q", *prefix_hashes(TOKENS, 16))
    return max(live.predicted(scope, hashes, service.clock.now).values(), default=0)


def test_what_was_sent_to_one_that_is_unregistered_is_forgotten(service: Service) -> None:
    one = silent(service, "a")
    route(service)
    assert prefix_of_tokens(service.live, service) == 4
    service.write()
    service.router.forget([one, msgspec.structs.replace(one, model_name="other")])
    assert prefix_of_tokens(service.live, service) == 0
    service.write()
    assert service.folded.read(lambda fold: len(fold.observations.predicted)) == 0


def test_one_whose_address_does_not_answer_is_no_candidate_until_it_does(service: Service) -> None:
    silent(service, "a")
    target = Target("default", "a", 0)
    sample = LoadSample(target, service.clock.now, LoadSource.SCRAPED, is_away=True)
    service.router.observe([sample])
    assert route(service, 503)["error"] == "no candidate is there: of 1 engines, 1 unreachable"
    service.write()
    service.clock.now += 1.0
    service.router.observe([LoadSample(target, service.clock.now, LoadSource.SCRAPED, running=1)])
    assert route(service)["prefill"]["instance_id"] == "a"


def test_what_only_decisions_say_another_holds_is_lost_to_routing(service: Service) -> None:
    """Neither engine publishes events; `a` was given the prompt a moment ago."""
    asked: dict[str, Any] = {"token_ids": [3] * 161, "policy": "least-loaded"}
    route(service, candidates=[{"instance_id": "a"}], **asked)
    busy = {"waiting": 500, "running": 1}
    both = [{"instance_id": "a", "load": busy}, {"instance_id": "b"}]
    answer = route(service, candidates=both, **asked)
    assert answer["prefill"]["instance_id"] == "b"
    report = {"decision_id": answer["decision_id"], "event": "completed", "cached_tokens": 0}
    service.client.post_json("/feedback", report)
    service.write()
    document = msgspec.json.decode(service.client.get("/promises").body)
    assert document["by"] == "instance"
    (row,) = [one for one in document["rows"] if one["name"] == "b"]
    lost = {cause: row["lost"][cause]["tokens"] for cause in row["lost"]}
    assert lost == {"workload": 1, "routing": 160, "index": 0}


def test_what_is_to_be_there_soon_is_no_more_than_the_prompt(service: Service) -> None:
    hashes = {"block_size": 2**40, "block_hashes": [5, 6], "prompt_tokens": 30}
    body = {"model": "m", "candidates": [{"instance_id": "a"}], **hashes}
    for _ in range(2):
        reply = service.client.post_json("/route", body)
        assert reply.status == 200, reply.body
    assert msgspec.json.decode(reply.body)["prefill"]["cached_tokens"] == 30
    (record,) = service.queue.take(0.0)
    assert decode_routing(encode_routing(record)) == record


def test_labels_of_a_candidate_count_in_place_of_those_registered(service: Service) -> None:
    register(service, "a", labels=(Label("class", "slow"),))
    offered = [
        {"instance_id": "a", "labels": {"class": "fast"}},
        {"instance_id": "b", "labels": {"class": "fast"}},
    ]
    for number in range(40):
        answer = route(service, candidates=[offered[number % 2]], token_ids=[number] * 1600)
        report = {"decision_id": answer["decision_id"], "event": "completed", "ttft_ms": 77}
        service.client.post_json("/feedback", report | {"queue_ms": 0})
    service.write()
    (row,) = msgspec.json.decode(service.client.get("/models").body)["prefill"]
    assert (row["class_name"], row["outcomes"]) == ("fast", 40)
    service.clock.now += 100.0
    times = {
        name: route(service, candidates=[one], token_ids=[77] * 1600, reserve=False)["prefill"][
            "ttft_ms"
        ]["prefill"]
        for name, one in (("fast", offered[1]), ("other", {"instance_id": "b"}))
    }
    assert times["fast"] == pytest.approx(77, rel=0.2)
    assert times["other"] == pytest.approx(77, rel=0.2), "nobody knows that it differs"


def test_equals_get_equal_shares_whatever_is_known_of_them(service: Service) -> None:
    """Whoever had 30 outcomes first was believed, looked faster than the prior, and got the rest:
    of 400 cold prompts an engine with 29 outcomes got none, and so did one that came later.
    """
    seconds_per_token = 1 / 20_000

    def turn(number: int, candidates: list[dict[str, str]]) -> str:
        tokens = [number] * 1600
        answer = route(service, candidates=candidates, token_ids=tokens)
        name: str = answer["prefill"]["instance_id"]
        ms = 1000 * seconds_per_token * len(tokens)
        report = {"decision_id": answer["decision_id"], "event": "completed", "ttft_ms": ms}
        service.client.post_json("/feedback", report | {"queue_ms": 0, "prefill_ms": ms})
        service.write()
        service.clock.now += 1.0
        return name

    for name in "abc":
        register(service, name)
    for at, (name, outcomes) in enumerate((("a", 40), ("b", 40), ("c", 29))):
        for number in range(outcomes):
            turn(1000 * at + number, [{"instance_id": name}])
    register(service, "d")
    everybody = [{"instance_id": name} for name in "abcd"]
    shares = Counter(turn(10_000 + number, everybody) for number in range(400))
    assert all(85 <= shares[name] <= 115 for name in "abcd"), shares
