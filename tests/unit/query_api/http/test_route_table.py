"""Routes as Starlette serves them."""

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from query_api.http.errors import RequestError
from query_api.http.route_table import Routes
from tests.fakes import AsgiClient


@pytest.fixture
def client() -> AsgiClient:
    routes, others = Routes(["some"]), Routes()

    @routes.get("/plain")
    async def plain() -> Response:
        return PlainTextResponse("plain")

    @others.delete("/{name}/{number}", include_in_schema=False)
    async def both(number: int, name: str, request: Request) -> Response:
        return PlainTextResponse(f"{request.method} {name} {number + 1}")

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        return PlainTextResponse(f"{error.field}: {error}", status_code=error.status)

    routes.include(others)
    assert routes.paths() == {"/plain"}
    return AsgiClient(Starlette(routes=routes.served(), exception_handlers={RequestError: refused}))


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("GET", "/plain", 200, b"plain"),
        ("HEAD", "/plain", 405, b"Method Not Allowed"),
        ("POST", "/plain", 405, b"Method Not Allowed"),
        ("DELETE", "/a/41", 200, b"DELETE a 42"),
        ("DELETE", "/a/b", 400, b"number: number must be a whole number, got: b"),
    ],
)
def test_method_path_and_parts_of_it(
    client: AsgiClient, method: str, path: str, status: int, said: bytes
) -> None:
    reply = client._call(method, path, [], {})
    assert reply.status == status
    assert reply.body == said
