"""What is told of a body that is not of its form, in words of ours: a decoder's reach nobody."""

import msgspec
import pytest

from query_api.http.errors import RequestError, describe
from query_api.http.requests.refusals import REFUSED_BYTES_SHOWN_MAX, body_refusal
from query_api.http.wire import Wire
from routing.http.requests import (
    CANDIDATES_BYTES_MAX,
    FEEDBACK_BYTES_MAX,
    LoadBody,
    RouteBody,
    read_feedback,
    read_load,
)
from tests.unit.routing.http.conftest import Service
from tests.unit.routing.http.test_endpoint import register

EVENTS = "dispatched, first_token, progress, completed, failed, cancelled"
PROMPT: dict[str, object] = {"model": "m", "block_size": 16, "token_ids": [1]}


def told(form: object, body: dict[str, object], wire: Wire = Wire.JSON) -> str:
    module = msgspec.json if wire is Wire.JSON else msgspec.msgpack
    encoded = module.encode(body)
    with pytest.raises(msgspec.ValidationError) as caught:
        module.decode(encoded, type=form)
    return describe(body_refusal(form, caught.value, encoded, wire), in_full=True)[1].error


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"block_size": "16"}, 'block_size must be an integer of at least 1, got: "16"'),
        ({"block_size": 0}, "block_size must be an integer of at least 1, got: 0"),
        ({"phase": "both"}, 'phase must be one of combined, prefill, decode, pair, got: "both"'),
        ({"reserve": 1}, "reserve must be true or false, got: 1"),
        ({"model": ""}, 'model must be a string that is not empty, got: ""'),
        ({"lora_name": 5}, "lora_name must be a string or null, got: 5"),
        ({"slo": 5}, "slo must be an object or null, got: 5"),
        (
            {"slo": {"ttft_ms": "5"}},
            'slo.ttft_ms must be a number from 0 to 1000000000 or null, got: "5"',
        ),
        (
            {"candidates": [{"instance_id": "a"}, {"instance_id": 5}]},
            "candidates[1].instance_id must be a string that is not empty, got: 5",
        ),
        ({"candidates": [{}]}, "candidates[0].instance_id is required: a string that is not empty"),
        ({"slo": {"x": 1}}, "unsupported request field: slo.x; expected: tbt_ms, ttft_ms"),
    ],
)
def test_the_place_what_is_expected_and_what_came_are_named(
    body: dict[str, object], text: str
) -> None:
    assert told(RouteBody, PROMPT | body) == text


def test_msgpack_has_the_same_words() -> None:
    text = "block_size must be an integer of at least 1, got: '16'"
    assert told(RouteBody, {**PROMPT, "block_size": "16"}, Wire.MSGPACK) == text


def test_a_list_of_bodies_has_the_words_of_its_elements() -> None:
    body: object = [{"instance_id": "a"}, {"instance_id": "a", "running": "3"}]
    encoded = msgspec.json.encode(body)
    with pytest.raises(RequestError, match=r"^\[1\].running must be .*, got: \"3\"$"):
        read_load(encoded, Wire.JSON, 0.0)
    with pytest.raises(
        RequestError, match=f'event must be one of {EVENTS}, got: "finished"'
    ) as caught:
        read_feedback(b'{"request_id":"r","event":"finished"}', Wire.JSON)
    assert (caught.value.reason, caught.value.field) == ("out_of_range", "event")


@pytest.mark.parametrize("body", [b"[]", b"5", b'"a"', b"null"])
def test_a_body_that_is_no_object_is_named(body: bytes) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(body, type=LoadBody)
    refusal = body_refusal(LoadBody, caught.value, body, Wire.JSON)
    assert refusal.message == f"the body must be an object, got: {body.decode()}"
    assert refusal.field is None


def test_what_came_is_cut() -> None:
    text = told(RouteBody, {**PROMPT, "block_size": "x" * 5000})
    assert len(text) < 200
    assert text.endswith("...")


@pytest.mark.parametrize("path", ["/feedback", "/load"])
def test_more_bytes_than_reports_can_take_are_refused_before_they_are_objects(
    service: Service, path: str
) -> None:
    body = b"[" + b"1," * (FEEDBACK_BYTES_MAX // 2) + b"1]"
    reply = service.client.post(path, body)
    assert reply.status == 413
    assert "send them in several requests" in reply.document()["error"]


def test_more_bytes_than_candidates_can_take_are_refused_before_they_are_objects(
    service: Service,
) -> None:
    body = b'{"candidates":[' + b"{}," * (CANDIDATES_BYTES_MAX // 3) + b"{}]}"
    reply = service.client.post("/route", body)
    assert reply.status == 413
    assert reply.document()["field"] == "candidates"


def test_of_a_large_body_a_refusal_does_not_look_for_what_came() -> None:
    large = [{"instance_id": "a"}] * (REFUSED_BYTES_SHOWN_MAX // 20) + [1]
    text = told(RouteBody, {**PROMPT, "candidates": large})
    assert "must be an object" in text
    assert "got" not in text


def test_the_model_may_be_named_as_in_register(service: Service) -> None:
    register(service, "a", blocks=2)
    body = {"modelname": "m", "block_size": 16, "token_ids": list(range(32))}
    for reply in (
        service.client.post_json("/route", body),
        service.client.post_msgpack("/route", body),
    ):
        assert reply.status == 200
    reply = service.client.post_json("/route", {"block_size": 16, "token_ids": [1]})
    assert reply.document()["error"].startswith("model is required: the name by which engines")


def test_where_no_engine_can_be_chosen_the_reasons_are_counted(service: Service) -> None:
    register(service, "a")
    body = {"model": "m", "block_size": 16, "token_ids": [1], "candidates": []}
    text = service.client.post_json("/route", body).document()["error"]
    assert text == "no candidate is there: no engine fits"


def test_more_cached_tokens_than_the_prompt_has_are_refused() -> None:
    body = b'[{"request_id":"r","event":"completed","prompt_tokens":64,"cached_tokens":%d}]'
    (told,) = read_feedback(body % 64, Wire.JSON)
    assert told.outcome.cached_tokens == 64
    with pytest.raises(RequestError, match="at most prompt_tokens, which is 64") as raised:
        read_feedback(body % 65, Wire.JSON)
    assert (raised.value.field, raised.value.index) == ("cached_tokens", 0)


@pytest.mark.parametrize("part", ["queue_ms", "prefill_ms"])
def test_no_part_of_the_time_to_the_first_token_is_longer_than_that(part: str) -> None:
    body = '{"request_id":"r","event":"completed","ttft_ms":20,"%s":%s}'
    (told,) = read_feedback((body % (part, 20)).encode(), Wire.JSON)
    assert told.outcome.ttft_s == 0.02
    with pytest.raises(RequestError, match="at most ttft_ms, which is 20") as raised:
        read_feedback((body % (part, 20.5)).encode(), Wire.JSON)
    assert (raised.value.reason, raised.value.field) == ("out_of_range", part)


@pytest.mark.parametrize("field", ["queue_ms", "prefill_ms", "ttft_ms", "tbt_ms"])
@pytest.mark.parametrize("value", [-1.0, 86_400_001.0, float("nan"), float("inf")])
def test_times_that_cannot_be_are_refused(field: str, value: float) -> None:
    body = msgspec.msgpack.encode({"request_id": "r", "event": "completed", field: value})
    with pytest.raises(
        RequestError, match=f"{field} must be a number from 0 to 86400000"
    ) as raised:
        read_feedback(body, Wire.MSGPACK)
    assert (raised.value.reason, raised.value.field) == ("out_of_range", field)
