"""The OpenAPI document is complete and says what the service does."""

import asyncio
import re
from typing import Any

import msgspec
import pytest
from starlette.types import ASGIApp, Message

from bridge.wire import KINDS
from doctor.document import DoctorDocument
from query_api.gaps import GapsDocument
from query_api.http import memory_models, models, openapi
from query_api.http.errors import ErrorEnvelope
from query_api.http.openapi import Documentation
from query_api.http.requests.options import OPTION_NAMES, AnswerOptions, read_options
from query_api.http.requests.queries import read_hash_query, read_query
from query_api.http.requests.registrations import read_registration, read_unregistration
from query_api.http.route_table import Routes
from query_api.http.wire import Wire, encode
from schemas.answer_states import AnswerState
from schemas.memory_segments import SegmentKey, SegmentState
from schemas.registration import Label
from streams.table.ledger import Account, Incarnation, Interval, Ledger
from tests.fakes import AsgiClient, FakeTable, registration

PATHS = {
    "/query": "post",
    "/query_by_hash": "post",
    "/register": "post",
    "/unregister": "post",
    "/services": "get",
    "/doctor": "get",
    "/gaps": "get",
    "/global_view": "get",
    "/memory": "get",
    "/health": "get",
    "/ready": "get",
    "/digest": "get",
    "/explain": "get",
    "/lookup": "post",
    "/query_instance": "post",
    "/query_worker_info": "post",
    "/clear": "post",
    "/pin": "post",
    "/move": "post",
    "/compress": "post",
    "/decompress": "post",
    "/check_finish": "post",
    "/commands": "post",
    "/commands/{command_id}": "get",
    "/controller/workers": "get",
    "/controller/key-stats": "get",
    "/metrics": "get",
    "/events": "get",
    "/ui/heatmap": "get",
    "/ui/instances": "get",
}


@pytest.fixture
def document(client: AsgiClient) -> dict[str, Any]:
    reply = client.get("/openapi.json")
    assert reply.status == 200
    found: dict[str, Any] = reply.document()
    return found


def references(node: object) -> list[str]:
    if isinstance(node, dict):
        found = [node["$ref"]] if "$ref" in node else []
        return found + [name for value in node.values() for name in references(value)]
    if isinstance(node, list):
        return [name for value in node for name in references(value)]
    return []


def test_it_is_made_once_however_many_ask_at_once() -> None:
    made: list[None] = []

    class Counted(Documentation):
        def _made(self) -> ASGIApp:
            made.append(None)
            return super()._made()

    client = AsgiClient(Counted(Routes(), "1", {}))

    async def ask() -> list[list[Message]]:
        asked = (client._exchange("GET", "/openapi.json", [], {}, complete=True) for _ in range(5))
        return await asyncio.gather(*asked)

    assert {sent[0]["status"] for sent in asyncio.run(ask())} == {200}
    assert len(made) == 1


def test_every_route_is_listed(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    assert {path: next(iter(found)) for path, found in document["paths"].items()} == PATHS


def test_every_reference_is_to_something(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    found = references(document)
    assert len(found) > 20
    assert {name.removeprefix("#/components/schemas/") for name in found} <= set(schemas)


@pytest.mark.parametrize("path", ["/query", "/query_by_hash", "/register", "/unregister"])
def test_posts_have_schemas_and_examples_in_both_wire_forms(
    document: dict[str, Any], path: str
) -> None:
    operation = document["paths"][path]["post"]
    contents = [operation["requestBody"]["content"]]
    contents += [answer["content"] for answer in operation["responses"].values()]
    assert {"200", "400", "413"} <= set(operation["responses"])
    octets = contents[0].pop("application/octet-stream", None)
    assert (octets is not None) == path.startswith("/query"), "only there a body may be numbers"
    for content in contents:
        assert set(content) == {"application/json", "application/msgpack"}
        assert all("schema" in form and "example" in form for form in content.values())
    assert operation["requestBody"]["required"]


def test_hot_routes_document_their_headers(document: dict[str, Any]) -> None:
    for path in ("/query", "/query_by_hash"):
        headers = document["paths"][path]["post"]["responses"]["200"]["headers"]
        assert set(headers) == {
            *("Reprise-Position", "Reprise-State", "Reprise-Unknown", "X-Request-Id")
        }
        assert headers["Reprise-State"]["schema"]["enum"] == [state.value for state in AnswerState]
        assert all(
            f"`{state.value}`" in headers["Reprise-State"]["description"] for state in AnswerState
        )


def test_hot_routes_document_what_a_url_may_ask(document: dict[str, Any]) -> None:
    for path in ("/query", "/query_by_hash"):
        parameters = document["paths"][path]["post"]["parameters"]
        assert {found["name"] for found in parameters} == set(OPTION_NAMES)
        for found in parameters:
            for value in found["schema"].get("enum", [found.get("example")]):
                read_options(f"{found['name']}={value}".encode(), AnswerOptions())


def test_detailed_answers_match_their_models(table: FakeTable, client: AsgiClient) -> None:
    table.store(table.add(registration("a")), range(8), hashes=[1, 2])
    example = {**openapi.QUERY_EXAMPLE, "model": "m", "token_ids": list(range(8))}
    published = client.post_json("/query?detail=1", example)
    matches = msgspec.json.decode(
        published.body, type=dict[str, dict[str, models.DetailedMatch]], strict=True
    )
    packed = client.post_msgpack("/query?detail=1", example)
    walks = msgspec.msgpack.decode(packed.body, type=models.DetailedConductorMatches)
    assert matches["default"]["a"].state == walks.instances["a"].state


@pytest.mark.parametrize("wire", list(Wire))
def test_request_examples_are_accepted(wire: Wire) -> None:
    read_query(encode(openapi.QUERY_EXAMPLE, wire), wire)
    read_hash_query(encode(openapi.HASH_QUERY_EXAMPLE, wire), wire)
    read_unregistration(encode(openapi.UNREGISTER_EXAMPLE, wire), wire)
    if wire is Wire.JSON:
        read_registration(encode(openapi.REGISTER_EXAMPLE, wire), wire, KINDS)


@pytest.mark.parametrize(
    ("example", "model"),
    [
        (openapi.QUERY_EXAMPLE, models.QueryRequest),
        (openapi.HASH_QUERY_EXAMPLE, models.HashQueryRequest),
        (openapi.PUBLISHED_EXAMPLE, models.PublishedMatches),
        (openapi.CONDUCTOR_EXAMPLE, models.ConductorMatches),
        (openapi.REGISTER_EXAMPLE, models.RegisterRequest),
        (openapi.REGISTERED_EXAMPLE, models.RegisterResponse),
        (openapi.UNREGISTER_EXAMPLE, models.UnregisterRequest),
        (openapi.UNREGISTERED_EXAMPLE, models.UnregisterResponse),
        (openapi.ERROR_EXAMPLE, ErrorEnvelope),
    ],
)
def test_examples_match_their_models(example: object, model: Any) -> None:
    converted = msgspec.to_builtins(msgspec.convert(example, model))
    assert isinstance(example, dict)
    assert converted.items() <= example.items()


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/services", models.Services),
        ("/doctor", DoctorDocument),
        ("/gaps", GapsDocument),
        ("/global_view", models.GlobalView),
        ("/memory", memory_models.MemoryView),
        ("/health", models.Alive),
        ("/ready", models.Ready),
        ("/digest", models.TableDigest),
    ],
)
def test_answers_match_their_models(
    table: FakeTable, client: AsgiClient, path: str, model: type[msgspec.Struct]
) -> None:
    one = registration("a")
    table.store(table.add(one), range(8), hashes=[1, 2])
    table.registrations[one.publisher] = msgspec.structs.replace(
        one, memory_segment="s", labels=(Label("host", "h"),), reads=("pool",)
    )
    lost = Account(1, (Interval(0, 0, "missed", 1.0, 2.0),))
    known = Ledger(incarnations=(Incarnation(number=1, lost=lost),), lost={"missed": 1})
    table.known[one.publisher] = known
    table.segments[SegmentKey("host", "s")] = SegmentState(
        bridge="b", inode=1, total=9, used=1, preallocated=0,
        observed_at=1.0, changed_at=1.0, since=1.0,
    )  # fmt: skip
    answer = client.get(path)
    decoded = msgspec.json.decode(answer.body, type=model)
    assert msgspec.json.decode(msgspec.json.encode(decoded)) == answer.document()


def test_query_answers_match_their_models(table: FakeTable, client: AsgiClient) -> None:
    table.store(table.add(registration("a")), range(8), hashes=[1, 2])
    example = {**openapi.QUERY_EXAMPLE, "model": "m", "token_ids": list(range(8))}
    published = client.post_json("/query", example)
    assert (
        msgspec.json.decode(published.body, type=models.PublishedMatches)["default"]["a"].GPU == 8
    )
    packed = client.post_msgpack("/query", example)
    walk = msgspec.msgpack.decode(packed.body, type=models.ConductorMatches)
    assert walk.instances["a"].rank_matches["0"].disk == 8


def test_the_documentation_page_is_served(client: AsgiClient) -> None:
    reply = client.get("/docs")
    assert reply.status == 200
    assert b"/openapi.json" in reply.body


def test_the_documentation_page_needs_no_other_host(client: AsgiClient) -> None:
    text = client.get("/docs").body.decode()
    named = re.findall(r"""(?:src|href)=["']([^"']+)""", text)
    assert len(named) == 3, "a script, a style sheet, an icon"
    for address in named:
        assert address.startswith("/docs/files/")
        assert client.get(address).status == 200
    assert "://" not in text
