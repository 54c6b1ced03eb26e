"""Routing, errors of the router, and that no input whatever makes a 5xx."""

from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise.application import create_app
from schemas.registration import Registration, Unregistration
from tests.fakes import AsgiClient, FakeTable, registration

POSTS = ["/query", "/query_by_hash", "/register", "/unregister"]
REFUSALS = {
    "/query": {400},
    "/query_by_hash": {400},
    "/register": {400},
    "/unregister": {400, 404},
}
GETS = ["/services", "/global_view", "/health", "/ready", "/metrics", "/digest"]


def test_unknown_paths_are_404_in_the_wire_form_of_the_request(client: AsgiClient) -> None:
    reply = client.get("/nowhere")
    text = "404 Not Found: nothing is at /nowhere. GET /docs lists what there is"
    assert (reply.status, reply.document()) == (404, {"error": text})
    for path in ("/v2", "/query/", "/query/x"):
        reply = client.post_msgpack(path, {})
        assert reply.headers["content-type"] == "application/msgpack"
        assert (reply.status, reply.document()) == (404, {"error": "404 Not Found"})


@pytest.mark.parametrize("path", POSTS)
def test_get_of_a_post_route_is_405(client: AsgiClient, path: str) -> None:
    reply = client.get(path)
    text = f"Method not allowed: {path} takes POST. GET /docs lists what there is"
    assert (reply.status, reply.document()) == (405, {"error": text})
    assert reply.headers["allow"] == "POST"


@pytest.mark.parametrize("path", [path for path in GETS if path != "/health"])
def test_post_to_a_get_route_is_405(client: AsgiClient, path: str) -> None:
    reply = client.post_msgpack(path, {})
    assert (reply.status, reply.document()) == (405, {"error": "Method not allowed"})


def test_a_request_that_the_end_of_the_service_cuts_off_is_told_so(
    table: FakeTable, caplog: pytest.LogCaptureFixture
) -> None:
    """A cancelled handler's traceback was logged at each stop on a busy machine."""
    import asyncio

    sent: list[Any] = []
    body = msgspec.json.encode({"instance_id": "a", "dp_rank": 0})
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "method": "POST", "path": "/unregister", "headers": head}

    async def forever(target: Unregistration) -> list[Registration]:
        await asyncio.Event().wait()
        return []

    async def run() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        table.unregister = forever  # type: ignore[method-assign]
        app = create_app(table, table)
        whole = {**scope, "query_string": b"", "root_path": "", "raw_path": b"/unregister"}
        task = asyncio.ensure_future(app(whole, receive, send))
        await asyncio.sleep(0.1)
        task.cancel()
        await task

    asyncio.run(run())
    assert sent[0]["status"] == 503
    assert b"repeat it once the service runs again" in sent[1]["body"]
    assert not caplog.records


def test_lifespan_goes_to_starlette(table: FakeTable) -> None:
    import asyncio

    incoming = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[str] = []

    async def run() -> None:
        async def receive() -> dict[str, Any]:
            return incoming.pop(0)

        async def send(message: Any) -> None:
            sent.append(message["type"])

        app = create_app(table, table)
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)

    asyncio.run(run())
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
names = st.sampled_from(
    [
        "model",
        "block_size",
        "token_ids",
        "seq_hashes",
        "tenant_id",
        "lora_name",
        "lora_id",
        "cache_salt",
        "additional_salt",
        "instance_id",
        "endpoint",
        "type",
        "modelname",
        "dp_rank",
        "hash_profile",
        "cache_group",
        "replay_endpoint",
        "additionalsalt",
        "http_endpoint",
        "role",
        "labels",
        "kv_bytes_per_token",
        "max_num_seqs",
        "kv_capacity_tokens",
        "curve_server_key",
        "reads",
    ]
)
likely = st.sampled_from(
    [
        "m",
        "a",
        "vLLM",
        "tcp://a:1",
        4,
        0,
        [1, 2, 3, 4, 5],
        [2**31],
        [-1],
        b"\1\0\0\0" * 4,
        "",
        {"a": "b"},
    ]
)
documents = st.dictionaries(names | st.text(max_size=4), likely | values, max_size=8)


@cache
def shared_client() -> AsgiClient:
    """One app for all examples: whatever they register may stay."""
    table = FakeTable()
    table.store(table.add(registration("a")), range(8), hashes=[1, 2])
    return AsgiClient(create_app(table, table))


def check(path: str, body: bytes, content_type: str) -> None:
    """Whatever is sent is answered, or refused with one of the statuses that the path has."""
    client = shared_client()
    reply = client.post(path, body, content_type=content_type)
    document = reply.document()
    assert isinstance(document, dict)
    if reply.status == 200:
        assert "error" not in document
    elif reply.status == 500:  # Mooncake's answer to an endpoint that cannot be connected to
        assert path == "/register"
        assert document["error"].startswith("Failed to subscribe: ")
    else:
        assert reply.status in REFUSALS[path], reply
        assert isinstance(document["error"], str)
        assert document["error"]
    assert client.get("/health").status == 200


@settings(max_examples=100)
@given(path=st.sampled_from(POSTS), body=st.binary(max_size=64))
def test_random_bytes_never_make_a_5xx(path: str, body: bytes) -> None:
    check(path, body, "application/json")
    check(path, body, "application/msgpack")


@settings(max_examples=150)
@given(path=st.sampled_from(POSTS), document=documents | values)
def test_random_documents_never_make_a_5xx(path: str, document: Any) -> None:
    check(path, msgspec.json.encode(document), "application/json")
    check(path, msgspec.msgpack.encode(document), "application/msgpack")


@settings(max_examples=100)
@given(path=st.sampled_from(POSTS), document=documents, cut=st.integers(0, 40), flip=st.binary())
def test_damaged_documents_never_make_a_5xx(
    path: str, document: Any, cut: int, flip: bytes
) -> None:
    for module, kind in ((msgspec.json, "json"), (msgspec.msgpack, "msgpack")):
        body: bytes = module.encode(document)
        check(path, body[:cut] + flip + body[cut + 1 :], f"application/{kind}")
