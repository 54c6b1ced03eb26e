"""The routes of routing, declared; the hot ones for the document."""

from starlette.requests import Request
from starlette.responses import Response

from query_api.http import openapi
from query_api.http.caller import access_of
from query_api.http.post_endpoint import PostEndpoint
from query_api.http.route_table import Routes
from query_api.http.routes import BOTH_WIRES, Handoff, LargeAnswers, respond
from query_api.http.wire import Wire, reply_wire
from routing.decisions.router import Router
from routing.http.documents import (
    FeedbackDocument,
    LoadDocument,
    RefusalDocument,
    RouteDocument,
    RoutingDocument,
    routing_document,
)
from routing.http.endpoint import FEEDBACK, LOAD, ROUTE
from routing.http.requests import FeedbackBody, LoadBody, RouteBody

_ROUTE_EXAMPLE = {
    "model": "deepseek",
    "block_size": 16,
    "token_ids": [101, 15, 100, 55, 89, 7, 42, 3, 9, 12, 13, 14, 15, 16, 17, 18],
    "request_id": "r-1",
    "slo": {"ttft_ms": 2000},
    "candidates": [{"instance_id": "a", "load": {"waiting": 2, "running": 5}}],
}
_FEEDBACK_EXAMPLE = {
    "decision_id": "5f0e9c1a2b3c4-1f",
    "event": "completed",
    "ttft_ms": 412.0,
    "prompt_tokens": 8000,
    "cached_tokens": 6000,
    "output_tokens": 210,
}
_LOAD_EXAMPLE = {"instance_id": "a", "dp_rank": 0, "waiting": 2, "running": 5, "kv_usage": 0.4}
_REFUSED = (400, 413, 503)


def routing_routes(hot: PostEndpoint, deciding: Router, default_wire: Wire) -> Routes:
    """The hot routes, whose requests come here only under a prefix, where the app is mounted; and
    the one that shows what is under way.
    """
    router = Routes(tags=["routing"])
    large = LargeAnswers()

    @router.get(
        "/routing",
        summary="What is under way where, as of a position of the routing log",
        openapi_extra=openapi.operation(RoutingDocument, *BOTH_WIRES),
    )
    async def routing(request: Request) -> Response:
        wire = reply_wire(request.headers.raw, default_wire)
        admits = access_of(request).admits
        return await large.make(lambda: respond(routing_document(deciding, admits), wire))

    @router.post(
        ROUTE,
        summary="Who gets a request; booked at once, unless `reserve` is false",
        openapi_extra=openapi.operation(
            {200: RouteDocument, 429: RefusalDocument},
            *BOTH_WIRES,
            body=RouteBody,
            example=_ROUTE_EXAMPLE,
            refused=_REFUSED,
        ),
    )
    async def route() -> Response:
        return Handoff(hot, ROUTE)

    @router.post(
        FEEDBACK,
        summary="What came of a decision: one report or a list",
        openapi_extra=openapi.operation(
            {202: FeedbackDocument},
            *BOTH_WIRES,
            body=FeedbackBody,
            example=_FEEDBACK_EXAMPLE,
            refused=_REFUSED,
        ),
    )
    async def feedback() -> Response:
        return Handoff(hot, FEEDBACK)

    @router.post(
        LOAD,
        summary="What an instance carries: one sample or a list",
        openapi_extra=openapi.operation(
            {202: LoadDocument},
            *BOTH_WIRES,
            body=LoadBody,
            example=_LOAD_EXAMPLE,
            refused=_REFUSED,
        ),
    )
    async def load() -> Response:
        return Handoff(hot, LOAD)

    return router
