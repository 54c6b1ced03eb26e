"""Requests that name no wire form, where msgpack is the default: answered as Conductor does."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import msgpack
import pytest

from query_api.http.http_settings import HttpSettings
from query_api.http.wire import Wire
from reprise.application import create_app
from tests.fakes import FakeTable, registration

METHOD_NOT_ALLOWED = {"error": "Method not allowed"}
MSGPACK = "application/msgpack"
JSON = "application/json"
Ask = Callable[..., httpx.Response]


def asker(table: FakeTable, wire: Wire) -> Ask:
    """Sends one request as a client's library does, which accepts everything."""
    app = create_app(table, table, settings=HttpSettings(default_wire=wire))

    async def run(method: str, path: str, **options: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://conductor") as client:
            return await client.request(method, path, **options)

    return lambda method, path, **options: asyncio.run(run(method, path, **options))


@pytest.fixture
def conductor(table: FakeTable) -> Ask:
    table.add(registration("a"))
    return asker(table, Wire.MSGPACK)


@pytest.fixture
def usual(table: FakeTable) -> Ask:
    table.add(registration("a"))
    return asker(table, Wire.JSON)


@pytest.mark.parametrize("path", ["/services", "/global_view"])
def test_views_are_msgpack_unless_json_is_accepted(conductor: Ask, path: str) -> None:
    answer = conductor("GET", path)
    assert answer.headers["content-type"] == MSGPACK
    accepted = conductor("GET", path, headers={"Accept": JSON})
    assert accepted.headers["content-type"] == JSON
    assert msgpack.unpackb(answer.content) == accepted.json()


@pytest.mark.parametrize("path", ["/services", "/global_view"])
def test_views_are_json_by_default(usual: Ask, path: str) -> None:
    assert usual("GET", path).headers["content-type"] == JSON


@pytest.mark.parametrize("path", ["/health", "/ready", "/digest"])
def test_routes_that_conductor_has_not_stay_json(conductor: Ask, path: str) -> None:
    assert conductor("GET", path).headers["content-type"] == JSON


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/query"),
        ("GET", "/register"),
        ("POST", "/services"),
    ],
)
def test_get_for_post_and_post_for_get_are_405_in_msgpack(
    conductor: Ask, method: str, path: str
) -> None:
    answer = conductor(method, path)
    assert (answer.status_code, answer.headers["content-type"]) == (405, MSGPACK)
    assert msgpack.unpackb(answer.content) == METHOD_NOT_ALLOWED
    json = conductor(method, path, headers={"Accept": JSON})
    assert json.status_code == 405
    allowed = {"GET": "POST", "POST": "GET"}[method]
    assert json.json()["error"].startswith(f"Method not allowed: {path} takes {allowed}. ")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nowhere"),
        ("POST", "/v2"),
        ("POST", "/query/"),
        ("PUT", "/query"),
        ("OPTIONS", "/register"),
    ],
)
def test_unknown_paths_and_other_methods_are_404_in_text(
    conductor: Ask, method: str, path: str
) -> None:
    for headers in ({}, {"Content-Type": MSGPACK}):
        answer = conductor(method, path, headers=headers)
        assert (answer.status_code, answer.content) == (404, b"404 Not Found")
        assert "content-type" not in answer.headers
        assert "allow" not in answer.headers
    json = conductor(method, path, headers={"Accept": JSON})
    assert json.json().keys() == {"error"}


def test_other_methods_are_405_by_default(usual: Ask) -> None:
    answer = usual("PUT", "/query", headers={"Content-Type": MSGPACK})
    assert (answer.status_code, msgpack.unpackb(answer.content)) == (405, METHOD_NOT_ALLOWED)


@pytest.mark.parametrize("path", ["/query", "/register"])
def test_a_body_without_a_content_type_is_msgpack(conductor: Ask, path: str) -> None:
    answer = conductor("POST", path, content=b"\xc1")
    assert (answer.status_code, answer.headers["content-type"]) == (400, MSGPACK)
    assert msgpack.unpackb(answer.content)["reason"] == "invalid_msgpack"


@pytest.mark.parametrize("path", ["/query", "/register"])
def test_errors_have_the_form_of_the_request(conductor: Ask, path: str) -> None:
    other = conductor("POST", path, content=b"{}", headers={"Content-Type": "text/plain"})
    assert msgpack.unpackb(other.content)["reason"] == "unsupported_content_type"
    for content_type in (JSON, "application/vnd.api+json"):
        answer = conductor("POST", path, content=b"{", headers={"Content-Type": content_type})
        assert answer.json()["reason"] == "invalid_json"
