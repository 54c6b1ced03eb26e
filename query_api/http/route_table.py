"""The routes: Starlette serves them, and FastAPI documents them once somebody asks for that.

To import FastAPI, and to make its document, takes a third of what a service needs to start.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from query_api.http.errors import RequestError

if TYPE_CHECKING:
    from fastapi import FastAPI

Handler = Callable[..., Awaitable[Response]]
"""Takes the request as `request`, and parts of the path by their names; either may be left out."""

_REQUEST: Final = "request"
_EXTRA: Final = "openapi_extra"


class RouteEntry(NamedTuple):
    """One of them; `documented` is for FastAPI's `add_api_route`."""

    path: str
    method: str
    handler: Handler
    documented: dict[str, Any]


class Routes:
    """Some of them.

    Args:
        tags: under which they are documented.

    Attributes:
        entries: in the order in which they are looked at.
    """

    def __init__(self, tags: Sequence[str] = ()) -> None:
        self._tags = list(tags)
        self.entries: list[RouteEntry] = []

    def get(self, path: str, **documented: Any) -> Callable[[Handler], Handler]:
        """Has a function answer GET; `documented` is for FastAPI's `add_api_route`."""
        return partial(self._add, path, "GET", documented)

    def post(self, path: str, **documented: Any) -> Callable[[Handler], Handler]:
        """The same of POST."""
        return partial(self._add, path, "POST", documented)

    def patch(self, path: str, **documented: Any) -> Callable[[Handler], Handler]:
        """The same of PATCH."""
        return partial(self._add, path, "PATCH", documented)

    def delete(self, path: str, **documented: Any) -> Callable[[Handler], Handler]:
        """The same of DELETE."""
        return partial(self._add, path, "DELETE", documented)

    def _add(self, path: str, method: str, documented: dict[str, Any], handler: Handler) -> Handler:
        self.entries.append(RouteEntry(path, method, handler, {"tags": self._tags} | documented))
        return handler

    def include(self, other: "Routes") -> None:
        """Adds those of another one behind these."""
        self.entries += other.entries

    def paths(self) -> frozenset[str]:
        """Those that are documented."""
        return frozenset(
            entry.path for entry in self.entries if entry.documented.get("include_in_schema", True)
        )

    def served(self) -> list[Route]:
        """For a Starlette app."""
        found = []
        for entry in self.entries:
            route = Route(entry.path, _endpoint(entry.handler), methods=[entry.method])
            assert route.methods is not None
            route.methods.discard("HEAD")  # Starlette adds it to GET
            found.append(route)
        return found

    def fragments(self) -> list[Any]:
        """What they say of requests and answers, with models where their schemas go."""
        return [entry.documented.get(_EXTRA) for entry in self.entries]

    def document(self, app: "FastAPI", with_schemas: Callable[[Any], Any]) -> None:
        """Adds them to an app that is asked for its document."""
        for entry in self.entries:
            documented = entry.documented | {_EXTRA: with_schemas(entry.documented.get(_EXTRA))}
            app.add_api_route(entry.path, entry.handler, methods=[entry.method], **documented)


def _endpoint(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """The handler as Starlette calls it."""
    wanted = inspect.signature(handler).parameters
    numbers = [name for name, one in wanted.items() if one.annotation is int]

    async def endpoint(request: Request) -> Response:
        given: dict[str, Any] = dict(request.path_params)
        for name in numbers:
            given[name] = _number(name, given[name])
        if _REQUEST in wanted:
            given[_REQUEST] = request
        return await handler(**given)

    return endpoint


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise RequestError(
            "invalid_value", f"{name} must be a whole number, got: {text}", field=name
        ) from None
