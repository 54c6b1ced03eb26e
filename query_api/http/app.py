"""The HTTP service: hot routes in front, Starlette behind, one error shape, one set of metrics."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from query_api.access.errors import AccessError
from query_api.access.guard import Guard
from query_api.http.access_metrics import AccessMetrics
from query_api.http.audit import AnswerAudit
from query_api.http.caller import admit
from query_api.http.errors import (
    INTERNAL,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    ClientGoneError,
    ErrorEnvelope,
    RequestError,
    shown,
    stopping,
)
from query_api.http.explain_answer import past_routes
from query_api.http.feature import HttpParts, MakeFeature, Streams
from query_api.http.health import package_version
from query_api.http.http_settings import HttpSettings
from query_api.http.metrics import HttpMetrics
from query_api.http.openapi import Documentation
from query_api.http.origins import check_origin
from query_api.http.plain_listener import PlainAnswers, plain_answers
from query_api.http.post_endpoint import CLIENT_GONE, PostEndpoint
from query_api.http.query_endpoint import HotRoutes
from query_api.http.requests.bodies import Bodies
from query_api.http.route_table import Routes
from query_api.http.routes import metrics_route, query_routes, registration_routes, view_routes
from query_api.http.text_bodies import TextBodies
from query_api.http.wire import Headers, Wire, encode, encode_error, reply_wire
from query_api.ports import History, PublisherRegistry, View
from query_api.unknown_scopes import UnknownScopes
from schemas.errors import RepriseError
from schemas.tracing import NO_TRACER, Tracer
from streams.kernel.interface import AuditQueue
from tokens.interface import PromptTokenizer

_OTHER_ROUTE: Final = "other"
_CONDUCTOR_METHODS: Final = frozenset({"GET", "POST"})
logger = logging.getLogger(__name__)


def create_app(
    view: View,
    registry: PublisherRegistry,
    features: Sequence[MakeFeature] = (),
    *,
    settings: HttpSettings = HttpSettings(),  # noqa: B008 -- immutable
    history: History | None = None,
    audit: AuditQueue | None = None,
    guard: Guard | None = None,
    tracer: Tracer = NO_TRACER,
    tokenizer: PromptTokenizer | None = None,
) -> ASGIApp:
    """The ASGI application over one table and one set of publishers.

    Args:
        view: what is answered from.
        registry: what registrations change.
        features: what other rooms add, in the order in which their routes are looked at.
        settings: what holds where a request does not say it.
        history: answers `?as_of=...`; None where no past is kept.
        audit: keeps a share of the answers to queries; the kernels of the view know it, too.
        guard: who may ask; None: everybody.
        tracer: makes spans of requests; where it is on, queries that have a `traceparent` are
            answered here, never by the plain listener.
        tokenizer: makes tokens of text; None: bodies with text are refused.

    It keeps its metrics in `view.metrics`, so a registry serves one app; a second one raises
    ValueError.
    """
    bodies, version = Bodies(), package_version()
    default_wire, only_exact = settings.default_wire, settings.only_exact
    metrics = HttpMetrics(view.metrics, bodies)
    text = None if tokenizer is None else TextBodies(tokenizer)
    parts = HttpParts(
        view, registry, bodies, metrics, UnknownScopes(view), default_wire, tracer, version, text
    )
    kept = None if audit is None else AnswerAudit(audit)
    hot = HotRoutes(parts, only_exact=only_exact, history=history, audit=kept)
    added = [make(parts) for make in features]
    routes = Routes()
    for each in added:
        routes.include(each.routes)
    routes.include(query_routes(hot))
    routes.include(registration_routes(registry, bodies, default_wire))
    routes.include(view_routes(view, version, default_wire))
    routes.include(past_routes(view, history, bodies, default_wire, text))
    routes.include(metrics_route(view))
    refusals = _Refusals(default_wire)
    handlers = refusals.handlers()
    app = Starlette(routes=routes.served(), exception_handlers=handlers)
    app.router.redirect_slashes = False
    documentation = Documentation(routes, version, handlers)
    guard = _closed(guard)
    if guard is not None:
        view.metrics.register(AccessMetrics(guard))
    decisions = [each.decisions for each in added if each.decisions is not None]
    plain = plain_answers(
        view,
        metrics,
        only_exact=only_exact,
        guard=guard,
        is_traced=tracer.is_on,
        decisions=decisions[0] if decisions else None,
    )
    endpoints = [hot, *(one for each in added for one in each.endpoints)]
    streams = [one for each in added for one in each.streams]
    return _Front(app, documentation, endpoints, metrics, refusals, plain, guard, streams)


def _closed(guard: Guard | None) -> Guard | None:
    """The guard, or None where it lets everybody pass."""
    return None if guard is None or guard.is_open else guard


class _Refusals:
    """Answers what no route does: errors, unknown paths and unknown methods.

    Args:
        default_wire: for requests that name none. Where it is msgpack, an unknown path has
            Conductor's answer, which is text, and so has a method that Conductor has on no path.
    """

    def __init__(self, default_wire: Wire) -> None:
        self._default_wire = default_wire

    def handlers(self) -> dict[Any, Any]:
        """For Starlette, whose handler of last resort would answer in text, and re-raise the error,
        which logs it twice.
        """
        return {
            Exception: self.unexpected,
            HTTPException: self.by_router,
            RepriseError: self.error,
        }

    async def error(self, request: Request, error: Exception) -> Response:
        """An error of ours, by `errors.describe`."""
        assert isinstance(error, RepriseError)
        if isinstance(error, ClientGoneError):
            return Response(status_code=CLIENT_GONE)
        return self.refuse(request.headers.raw, error)

    def refuse(self, headers: Headers, error: RepriseError) -> Response:
        """The same, for a request whose headers these are."""
        wire = reply_wire(headers, self._default_wire)
        status, body = encode_error(error, wire)
        own = error.headers if isinstance(error, RequestError | AccessError) else None
        return Response(body, status_code=status, media_type=wire.value, headers=own)

    async def unexpected(self, request: Request, error: Exception) -> Response:
        """What no rule covers; the error goes on to `_Front`, which logs it."""
        wire = reply_wire(request.headers.raw, self._default_wire)
        return Response(encode(INTERNAL, wire), status_code=500, media_type=wire.value)

    async def by_router(self, request: Request, error: Exception) -> Response:
        """What the router itself refuses: unknown paths and methods."""
        assert isinstance(error, HTTPException)
        wire = reply_wire(request.headers.raw, self._default_wire)
        status, headers = error.status_code, error.headers
        if self._default_wire is Wire.MSGPACK and wire is Wire.MSGPACK:
            if status == 405 and request.method not in _CONDUCTOR_METHODS:
                status, headers = 404, None
            if status == 404:
                return Response(NOT_FOUND.error, status_code=404)
        envelopes = {404: NOT_FOUND, 405: METHOD_NOT_ALLOWED}
        envelope = envelopes.get(status, ErrorEnvelope(str(error.detail)))
        if wire is Wire.JSON and status in envelopes:
            path, allowed = shown(request.url.path), (headers or {}).get("Allow", "")
            more = f"{path} takes {allowed}" if allowed else f"nothing is at {path}"
            if path in _OF_ENGINES:
                more += ", since Reprise forwards no requests: ask POST /route, and send the"
                more += " request to the engine that its answer names"
            envelope = ErrorEnvelope(f"{envelope.error}: {more}. GET /docs lists what there is")
        body = encode(envelope, wire)
        return Response(body, status_code=status, media_type=wire.value, headers=headers)


_OF_ENGINES: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/generate")
"""Paths of requests that are for an engine."""


class _Front:
    """Passes hot requests to the endpoint; counts all others, and answers 500 where they fail.

    Attributes:
        plain: what a server may have answered without Python.
    """

    def __init__(
        self,
        app: ASGIApp,
        documentation: Documentation,
        endpoints: Sequence[PostEndpoint],
        metrics: HttpMetrics,
        refusals: _Refusals,
        plain: PlainAnswers | None,
        guard: Guard | None,
        streams: Sequence[Streams],
    ) -> None:
        self.plain = plain
        self._streams = streams
        self._app = app
        self._documentation = documentation
        self._hot = {path: endpoint for endpoint in endpoints for path in endpoint.paths}
        self._metrics = metrics
        self._refusals = refusals
        self._guard = guard
        self._paths = documentation.paths()

    def begin(self) -> None:
        """To be called, on the loop, once the server serves."""
        for one in self._streams:
            one.begin()

    def end_streams(self) -> None:
        """To be called, on the loop, when the server stops: answers that never end do."""
        for one in self._streams:
            one.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._guard is not None:
            try:
                admit(self._guard, scope)
            except AccessError as error:
                await self._refuse(error, scope, receive, send)
                return
        hot = self._hot.get(scope["path"]) if scope["method"] == "POST" else None
        if hot is not None:
            await hot.serve(scope["path"], scope, receive, send)
        else:
            await self._serve(scope, receive, send)

    async def _refuse(self, error: AccessError, scope: Scope, receive: Receive, send: Send) -> None:
        await self._refusals.refuse(scope["headers"], error)(scope, receive, send)
        path = scope["path"]
        self._metrics.count_request(path if path in self._paths else _OTHER_ROUTE, error.status)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            check_origin(scope["method"], scope["headers"])
            documents = self._documentation.has(scope["path"])
            await (self._documentation if documents else self._app)(scope, receive, watch)
        except (RequestError, AccessError) as error:
            refusal = self._refusals.refuse(scope["headers"], error)
            await refusal(scope, receive, watch)
        except asyncio.CancelledError:  # the server stops, and has waited for it
            if status == 0:
                await self._refusals.refuse(scope["headers"], stopping())(scope, receive, watch)
        except Exception:
            logger.exception(
                "Unexpected error in route %s; its client is answered 500", scope["path"]
            )
        path = scope["path"]
        self._metrics.count_request(path if path in self._paths else _OTHER_ROUTE, status)
