"""The cold routes through the whole app."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client import Metric, parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from reprise.application import create_app
from schemas.errors import AddressRefusedError, RegistrationError, StorageError
from schemas.positions import PublisherState
from schemas.registration import HashProfile, Label, PublisherKind, Registration
from tests.fakes import AsgiClient, FakeTable, registration

BODY: dict[str, Any] = {
    "endpoint": "tcp://a:1",
    "type": "vLLM",
    "modelname": "m",
    "instance_id": "a",
    "block_size": 4,
    "dp_rank": 0,
}
PROFILE = {
    "strategy": "vllm_v1",
    "algorithm": "sha256_cbor",
    "python_hash_seed": "0",
    "index_projection": "low64_be",
}


def test_a_registration_is_echoed_and_may_be_repeated(table: FakeTable, client: AsgiClient) -> None:
    expected = {"status": "registered successfully", "instance_id": "a"}
    for _ in range(2):
        reply = client.post_json("/register", BODY)
        assert (reply.status, reply.document()) == (200, expected)
    assert [service.registration.instance_id for service in table.services()] == ["a"]
    packed = client.post_msgpack("/register", {**BODY, "instance_id": "b", "endpoint": "tcp://b:1"})
    assert (packed.status, packed.document()["reason"]) == (400, "missing")
    document = {**BODY, "instance_id": "b", "endpoint": "tcp://b:1", "hash_profile": PROFILE}
    packed = client.post_msgpack("/register", document)
    assert packed.headers["content-type"] == "application/msgpack"
    assert packed.document() == {"status": "registered successfully", "instance_id": "b"}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"endpoint": "tcp://a:2"}, "conflicting registration for service key: a|default|0"),
        ({"instance_id": "b"}, "conflicting active registration for endpoint: tcp://a:1"),
    ],
)
def test_conflicting_registrations_have_conductors_texts_and_a_remedy_in_json(
    client: AsgiClient, changes: dict[str, str], error: str
) -> None:
    body = {**BODY, "hash_profile": PROFILE}
    client.post_json("/register", body)
    for reply, text in (
        (client.post_json("/register", body | changes), f"{error}. GET /services shows the other"),
        (client.post_msgpack("/register", body | changes), error),
    ):
        found = reply.document()
        assert (reply.status, found["reason"]) == (400, "invalid_registration")
        assert found["error"].startswith(text)


def test_an_endpoint_that_cannot_be_connected_to_is_a_500_to_conductors_clients_alone(
    client: AsgiClient,
) -> None:
    body = {**BODY, "endpoint": "nonsense", "hash_profile": PROFILE}
    reply = client.post_msgpack("/register", body)
    assert reply.status == 500
    prefix = "Failed to subscribe: failed to start ZMQ client: initial connection failed: "
    assert reply.document() == {"error": prefix + "Expected a ZMQ address, got: nonsense"}
    reply = client.post_json("/register", body)
    assert reply.status == 400
    assert reply.document() == {
        "error": "Expected a ZMQ address, got: nonsense",
        "reason": "invalid_value",
        "field": "endpoint",
    }


@pytest.mark.parametrize(
    ("path", "failure", "status", "document"),
    [
        ("/register", StorageError("disk full"), 503, {"error": "disk full", "reason": "storage"}),
        (
            "/unregister",
            RegistrationError("no"),
            400,
            {"error": "no", "reason": "invalid_registration"},
        ),
        ("/register", RuntimeError("boom"), 500, {"error": "Internal server error"}),
        ("/unregister", RuntimeError("boom"), 500, {"error": "Internal server error"}),
        (
            "/register",
            AddressRefusedError("not there"),
            403,
            {"error": "not there", "reason": "address_refused"},
        ),
    ],
)
def test_failures_of_the_registry_are_answered(
    table: FakeTable,
    client: AsgiClient,
    path: str,
    failure: Exception,
    status: int,
    document: dict[str, str],
) -> None:
    table.failure = failure
    body = BODY if path == "/register" else {"instance_id": "a", "dp_rank": 0}
    reply = client.post_json(path, body)
    assert (reply.status, reply.document()) == (status, document)
    if path == "/unregister":
        packed = client.post_msgpack(path, body)
        assert (packed.status, packed.document()) == (status, document)


def test_an_unexpected_error_is_logged_once(
    table: FakeTable, client: AsgiClient, caplog: pytest.LogCaptureFixture
) -> None:
    table.failure = RuntimeError("boom")
    assert client.post_json("/register", BODY).status == 500
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is not None
    table.failure = None
    assert client.post_json("/register", BODY).status == 200


def test_malformed_bodies_have_the_same_envelope_on_every_route(client: AsgiClient) -> None:
    for path in ("/register", "/unregister", "/query", "/query_by_hash"):
        reply = client.post(path, b"{", content_type="application/json")
        assert reply.status == 400
        text = "Invalid JSON object: it ends at byte 1, within a value"
        assert reply.document() == {"error": text, "reason": "invalid_json"}
        reply = client.post(path, b"\xc1", content_type="application/msgpack")
        assert reply.status == 400
        expected = {"error": "Invalid msgpack object", "reason": "invalid_msgpack"}
        assert reply.document() == expected
        reply = client.post(path, b"{}", content_type="text/plain")
        assert reply.document()["reason"] == "unsupported_content_type"


def test_a_large_registration_is_refused(client: AsgiClient) -> None:
    reply = client.post("/register", [b" " * 2**20] * 34, content_type="application/json")
    assert (reply.status, reply.document()["reason"]) == (413, "body_too_large")
    assert client.abandon("/register", b"{")[0]["status"] == 499


def test_unregistering_forgets_what_matches(table: FakeTable, client: AsgiClient) -> None:
    table.add(registration("a", endpoint="tcp://a:1"))
    table.add(registration("a", block_size=8, endpoint="tcp://a:2"))
    table.add(registration("a", dp_rank=1, endpoint="tcp://a:3"))
    target = {"instance_id": "a", "dp_rank": 0}
    narrow = client.post_json("/unregister", {**target, "modelname": "m", "block_size": 8})
    expected = {"status": "unregistered successfully", "removed_instances": ["a|default|0"]}
    assert (narrow.status, narrow.document()) == (200, expected)
    assert client.get("/services").document()["count"] == 2
    assert client.post_msgpack("/unregister", target).document() == expected
    gone = client.post_json("/unregister", target)
    text = "service not found: a|default|0"
    more = ". GET /services lists what is registered"
    assert (gone.status, gone.document()) == (404, {"error": text + more})
    gone = client.post_msgpack("/unregister", target)
    assert (gone.status, gone.document()) == (404, {"error": text}), "as Conductor says it"
    packed = client.post_msgpack("/unregister", target)
    assert (packed.status, packed.document()) == (404, gone.document())


def test_services_have_conductors_names_and_ours(table: FakeTable, client: AsgiClient) -> None:
    known = Registration(
        endpoint="tcp://a:1",
        kind=PublisherKind("SGLang"),
        model_name="m",
        instance_id="a",
        block_size=4,
        dp_rank=2,
        tenant_id="t",
        lora_name="l",
        additional_salt="s",
        replay_endpoint="tcp://a:2",
        http_endpoint="http://a:3",
        hash_profile=HashProfile(**PROFILE),
        role="decode",
        labels=(Label("host", "h7"), Label("rack", "r1")),
        kv_bytes_per_token=327_680,
        max_num_seqs=256,
        kv_capacity_tokens=400_000,
        lora_reload="none",
        reads=("b", "pool"),
        curve_server_key="k" * 40,
    )
    table.add(known)
    state = PublisherState(
        incarnation=3, sequence=7, degraded_since=5, left_out={"block_size:8": 2}
    )
    table.states[known.publisher] = state
    reply = client.get("/services")
    assert reply.headers["content-type"] == "application/json"
    services = reply.document()["services"]
    digest = services[0]["HashProfile"].pop("root_digest")
    assert digest.startswith("4e1195df")
    assert digest.endswith("1c3e")
    assert reply.document()["count"] == 1
    assert services == [
        {
            "Endpoint": "tcp://a:1",
            "ReplayEndpoint": "tcp://a:2",
            "HttpEndpoint": "http://a:3",
            "Type": "SGLang",
            "ModelName": "m",
            "LoraName": "l",
            "TenantID": "t",
            "InstanceID": "a",
            "BlockSize": 4,
            "DPRank": 2,
            "CacheGroup": None,
            "HashProfile": PROFILE,
            "AdditionalSalt": "s",
            "MemorySegment": "",
            "Role": "decode",
            "Labels": {"host": "h7", "rack": "r1"},
            "KvBytesPerToken": 327_680,
            "MaxNumSeqs": 256,
            "KvCapacityTokens": 400_000,
            "KvOffloading": "",
            "KvPartialReuse": "",
            "KvCacheGroups": "",
            "LoraReload": "none",
            "Reads": ["b", "pool"],
            "Url": "",
            "CurveServerKey": "k" * 40,
            "Incarnation": 3,
            "Sequence": 7,
            "DegradedSince": 5,
            "LeftOut": {"block_size:8": 2},
            "Connected": True,
            "State": "exact",
            "Reason": "",
            "Since": 0.0,
            "Activity": "silent",
            "ActivitySince": 8.0,
        }
    ]


def test_the_global_view_lists_scopes(table: FakeTable, client: AsgiClient) -> None:
    publisher = table.add(registration("a"))
    table.store(publisher, range(8), hashes=[1, 2])
    table.add(registration("a", dp_rank=1))
    assert client.get("/global_view").document() == {
        "context_count": 1,
        "contexts": [
            {
                "model_name": "m",
                "lora_name": "",
                "block_size": 4,
                "tenant_id": "default",
                "additional_salt": "",
                "prefix_count": 2,
                "hash_profile": None,
                "instances": {"a": [0, 1]},
            }
        ],
    }


def test_the_global_view_shows_the_scopes_hash_profile(
    table: FakeTable, client: AsgiClient
) -> None:
    profile = {**PROFILE, "algorithm": "sha256"}
    client.post_json("/register", {**BODY, "hash_profile": profile})
    shown = client.get("/global_view").document()["contexts"][0]["hash_profile"]
    assert shown["root_digest"].startswith("1973e238")
    assert shown["root_digest"].endswith("aa7c")


@pytest.mark.parametrize("path", ["/services", "/global_view"])
def test_views_are_answered_in_msgpack_where_accepted(
    table: FakeTable, client: AsgiClient, path: str
) -> None:
    table.add(registration("a"))
    packed = client.get(path, accept="application/msgpack")
    assert packed.headers["content-type"] == "application/msgpack"
    assert packed.document() == client.get(path, accept="*/*").document()


@pytest.mark.parametrize("accept", ["", "text/plain", "text/plain;version=x", "a,b;;=,"])
def test_metrics_are_prometheus_text(client: AsgiClient, accept: str) -> None:
    client.post_json("/query", {"model": "m", "block_size": 4, "token_ids": [1, 2]})
    client.get("/nowhere")
    reply = client.get("/metrics", accept=accept)
    assert reply.headers["content-type"].startswith("text/plain; version=")
    families = {
        family.name: family for family in parser.text_string_to_metric_families(reply.body.decode())
    }
    requests = {
        (sample.labels["route"], sample.labels["status"]): sample.value
        for sample in families["reprise_http_requests"].samples
    }
    assert requests == {("/query", "200"): 1, ("other", "404"): 1}
    assert "reprise_query_seconds" in families


@pytest.mark.parametrize("version", ["", "; version=1.0.0", "; version=zero"])
def test_metrics_are_openmetrics_where_accepted(client: AsgiClient, version: str) -> None:
    client.post_json("/query", {"model": "m", "block_size": 4, "token_ids": [1, 2]})
    reply = client.get("/metrics", accept="application/openmetrics-text" + version)
    text = reply.body.decode()
    if version == "; version=zero":
        assert reply.headers["content-type"].startswith("text/plain")
        return
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    parse: Callable[[str], Iterator[Metric]] = openmetrics_parser.text_string_to_metric_families
    names = {family.name for family in parse(text)}
    assert {"reprise_query_tokens", "reprise_query_hit_tokens"} <= names


def test_one_registry_serves_one_app(table: FakeTable) -> None:
    create_app(table, table)
    with pytest.raises(ValueError, match="reprise_http_requests"):
        create_app(table, table)


PROMPT = {"model": "m", "block_size": 16, "token_ids": [1]}
BASE = {**BODY, "endpoint": "tcp://127.0.0.1:5557"}


@pytest.mark.parametrize(
    ("path", "body", "error", "field"),
    [
        # Conductor's text, and behind it what came and what could have
        ("/register", {**BASE, "block_size": "16"}, 'must be an integer, got: "16"', "block_size"),
        ("/register", {**BASE, "block_size": 0}, "greater than zero, got: 0", "block_size"),
        ("/register", {**BASE, "dp_rank": -1}, "of at most 2147483647, got: -1", "dp_rank"),
        ("/register", {**BASE, "cache_group": 3}, "zero is supported, got: 3", "cache_group"),
        ("/register", {**BASE, "type": "foo"}, " or none, got: foo", "type"),
        ("/register", {**BASE, "role": "both"}, "prefill or decode, got: both", "role"),
        (
            "/register",
            {**BASE, "labels": {"a": 1}},
            "labels.a must be a string, got: 1",
            "labels.a",
        ),
        ("/register", {**BASE, "replace": "yes"}, 'true or false, got: "yes"', "replace"),
        (
            "/register",
            {**BASE, "instance_id": " "},
            'must not be empty, got: " "',
            "instance_id",
        ),
        (
            "/register",
            {**BASE, "blocksize": 1},
            "blocksize; expected: additionalsalt, block_size",
            "blocksize",
        ),
        ("/register", {**BASE, "endpoint": "nonsense"}, "got: nonsense", "endpoint"),
        ("/query", {**PROMPT, "token_ids": "a"}, 'an array of integers, got: "a"', "token_ids"),
        ("/query", {**PROMPT, "token_ids": [1, "a,b"]}, 'got "a,b" at index 1', "token_ids"),
        ("/query", {**PROMPT, "token_ids": [2**33]}, "got 8589934592 at index 0", "token_ids"),
        ("/query", {**PROMPT, "model": ""}, 'model must not be empty, got: ""', "model"),
        (
            "/query",
            {**PROMPT, "blocksize": 1},
            "expected: additional_salt, block_size",
            "blocksize",
        ),
        (
            "/query",
            {"model": "m", "block_size": 16},
            "required: the tokens of the prompt",
            "token_ids",
        ),
        ("/query?only=some", PROMPT, "only must be exact or all, got: some", "only"),
        ("/query?as_of=yesterday", PROMPT, "got: yesterday", "as_of"),
    ],
)
def test_a_refusal_in_json_says_what_came_and_what_could_have(
    client: AsgiClient, path: str, body: dict[str, object], error: str, field: str
) -> None:
    document = client.post_json(path, body).document()
    assert error in document["error"]
    assert document["field"] == field


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "the body is empty"),
        (b'{"a":1,}', "at byte 7"),
        (b'{"a":', "it ends at byte 5, within a value"),
        (b"[1]", "expected an object, as {...}, got an array"),
        (b'"a"', "expected an object, as {...}, got a string"),
        (b'{"a":' + b"[" * 100_000, "nested too deep"),
    ],
)
@pytest.mark.parametrize("path", ["/query", "/register"])
def test_a_body_that_is_no_json_object_is_told_where(
    client: AsgiClient, path: str, body: bytes, error: str
) -> None:
    reply = client.post(path, body, content_type="application/json")
    assert (reply.status, reply.document()["reason"]) == (400, "invalid_json")
    assert reply.document()["error"].startswith("Invalid JSON object: ")
    assert error in reply.document()["error"]


def test_the_model_has_two_names_in_json_and_one_in_msgpack(client: AsgiClient) -> None:
    body = {"modelname": "m", "block_size": 16, "token_ids": [1]}
    assert client.post_json("/query", body).status == 200
    packed = client.post_msgpack("/query", body)
    assert packed.document()["error"] == "unsupported request field: modelname"
    octets = client.post(
        "/query?modelname=m&block_size=16", bytes(4), content_type="application/octet-stream"
    )
    assert octets.status == 200


def test_a_request_that_is_for_an_engine_is_told_where_to_go(client: AsgiClient) -> None:
    answer = client.post_json("/v1/chat/completions", {"model": "m", "messages": []})
    assert answer.status == 404
    assert "Reprise forwards no requests: ask POST /route" in answer.document()["error"]
    answer = client.post_json("/query", {"model": "m", "block_size": 4, "prompt": "Hello"})
    assert (answer.status, answer.document()["field"]) == (400, "prompt")
    assert "Reprise takes token ids: tokenise first" in answer.document()["error"]
    assert "POST /tokenize" in answer.document()["error"]


def test_a_type_that_is_missing_is_told_with_those_that_there_are(client: AsgiClient) -> None:
    body = {"endpoint": "tcp://a:1", "model": "m", "instance_id": "a", "block_size": 16}
    answer = client.post_json("/register", body)
    assert answer.document()["error"].startswith("type is required: vLLM or ")
    assert answer.document()["error"].endswith(" or none")
