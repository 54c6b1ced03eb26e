"""The routes of routing, declared; the hot ones for the document."""

from typing import Any

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

    def hot_route(path: str, summary: str, answers: Any, body: Any, example: object) -> None:
        async def hand_off() -> Response:
            return Handoff(hot, path)

        hand_off.__name__ = path.strip("/")  # the document names the operation by it
        operation = openapi.operation(
            answers, *BOTH_WIRES, body=body, example=example, refused=_REFUSED
        )
        router.post(path, summary=summary, openapi_extra=operation)(hand_off)

    summary = "Who gets a request; booked at once, unless `reserve` is false"
    answers = {200: RouteDocument, 429: RefusalDocument}
    hot_route(ROUTE, summary, answers, RouteBody, _ROUTE_EXAMPLE)
    summary = "What came of a decision: one report or a list"
    hot_route(FEEDBACK, summary, {202: FeedbackDocument}, FeedbackBody, _FEEDBACK_EXAMPLE)
    summary = "What an instance carries: one sample or a list"
    hot_route(LOAD, summary, {202: LoadDocument}, LoadBody, _LOAD_EXAMPLE)
    return router
