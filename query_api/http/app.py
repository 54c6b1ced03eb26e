"""The HTTP service: hot routes in front, FastAPI behind, one error shape, one set of metrics."""

import logging
from typing import Final

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from query_api.http import openapi
from query_api.http.errors import (
    INTERNAL,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    ClientGoneError,
    ErrorEnvelope,
    RequestError,
)
from query_api.http.health import package_version
from query_api.http.metrics import HttpMetrics
from query_api.http.origins import check_origin
from query_api.http.query_endpoint import CLIENT_GONE, HotRoutes
from query_api.http.requests.bodies import Bodies
from query_api.http.routes import metrics_route, query_routes, registration_routes, view_routes
from query_api.http.wire import encode, encode_error, reply_wire
from query_api.ports import PublisherRegistry, View
from schemas.errors import RepriseError

_OTHER_ROUTE: Final = "other"
logger = logging.getLogger(__name__)


def create_app(view: View, registry: PublisherRegistry) -> ASGIApp:
    """The ASGI application over one table and one set of publishers.

    It keeps its metrics in `view.metrics`, so a registry serves one app; a second one raises
    ValueError.
    """
    app = FastAPI(
        title="Reprise",
        summary="Which engine holds the longest cached prefix of a prompt",
        version=package_version(),
        docs_url="/docs",
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
    )
    bodies = Bodies()
    metrics = HttpMetrics(view.metrics, bodies)
    hot = HotRoutes(view, metrics, bodies)
    app.include_router(query_routes(hot))
    app.include_router(registration_routes(registry, bodies))
    app.include_router(view_routes(view, app.version))
    app.include_router(metrics_route(view))
    # FastAPI's own handler of last resort would answer in text, and re-raise, which logs it twice.
    app.add_exception_handler(Exception, _answer_unexpected)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    app.add_exception_handler(RepriseError, _answer_error)
    app.openapi = lambda: openapi.describe_app(app)  # type: ignore[method-assign]
    return _Front(app, hot, metrics)


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RepriseError)
    if isinstance(error, ClientGoneError):
        return Response(status_code=CLIENT_GONE)
    wire = reply_wire(request.headers.raw)
    status, body = encode_error(error, wire)
    headers = error.headers if isinstance(error, RequestError) else None
    return Response(body, status_code=status, media_type=wire.value, headers=headers)


async def _answer_unexpected(request: Request, error: Exception) -> Response:
    """What no rule covers; the error goes on to `_Front`, which logs it."""
    wire = reply_wire(request.headers.raw)
    return Response(encode(INTERNAL, wire), status_code=500, media_type=wire.value)


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    """What the router itself refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    envelopes = {404: NOT_FOUND, 405: METHOD_NOT_ALLOWED}
    envelope = envelopes.get(error.status_code, ErrorEnvelope(str(error.detail)))
    wire = reply_wire(request.headers.raw)
    return Response(
        encode(envelope, wire),
        status_code=error.status_code,
        media_type=wire.value,
        headers=error.headers,
    )


class _Front:
    """Passes hot requests to the endpoint; counts all others, and answers 500 where they fail."""

    def __init__(self, app: FastAPI, hot: HotRoutes, metrics: HttpMetrics) -> None:
        self._app = app
        self._hot = hot
        self._hot_paths = hot.paths
        self._metrics = metrics
        self._paths = frozenset(app.openapi()["paths"]) | {"/docs", "/openapi.json"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] in self._hot_paths and scope["method"] == "POST":
            await self._hot.serve(scope["path"], scope, receive, send)
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            check_origin(scope["method"], scope["headers"])
            await self._app(scope, receive, watch)
        except RequestError as error:
            wire = reply_wire(scope["headers"])
            _, body = encode_error(error, wire)
            refusal = Response(body, status_code=error.status, media_type=wire.value)
            await refusal(scope, receive, watch)
        except Exception:
            logger.exception("Unexpected error in route: %s", scope["path"])
        path = scope["path"]
        self._metrics.count_request(path if path in self._paths else _OTHER_ROUTE, status)
