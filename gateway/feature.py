"""What the gateway adds to the HTTP service beside it: `GET /gateway`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from gateway.enrollment import EnrolledEngine
from gateway.metrics import GATEWAY
from query_api.http import openapi
from query_api.http.feature import Feature, HttpParts, MakeFeature
from query_api.http.route_table import Routes
from query_api.http.routes import BOTH_WIRES, respond
from query_api.http.wire import reply_wire
from schemas.metric_family import RoleCollector

if TYPE_CHECKING:
    from gateway.gateway import Gateway


DECISIONS: Final = "gateway"
"""Its decisions among the routes whose answers are counted."""


class EnrolledDocument(msgspec.Struct, frozen=True):
    """An engine that was named by its address."""

    url: str
    state: Annotated[
        str,
        Meta(description="`asked`, `silent`, `unknown`, `refused`, `by_load` or `followed`."),
    ]
    lacks: Annotated[str, Meta(description="What it lacks, and what to do; empty: nothing.")]


class AddressDocument(msgspec.Struct, frozen=True):
    """Where the gateway sends requests."""

    url: str
    dp_rank: int
    under_way: int


class GatewayDocument(msgspec.Struct, frozen=True):
    """The gateway's engines, and what it has under way."""

    address: Annotated[str, Meta(description="Where it answers; empty: nowhere.")]
    engines: Sequence[EnrolledDocument]
    under_way: int
    held_bytes: int
    addresses: Sequence[AddressDocument]
    ext_proc: Annotated[str, Meta(description="Where it picks for proxies; empty: nowhere.")]
    ext_proc_streams: Annotated[int, Meta(description="Requests of proxies under way.")]


def gateway_feature(gateway: "Gateway") -> MakeFeature:
    """Its route and its metrics."""

    def make(parts: HttpParts) -> Feature:
        collector = RoleCollector()
        collector.add(GATEWAY, lambda: gateway)
        parts.view.metrics.register(collector)
        parts.metrics.share(DECISIONS, gateway.placer.decided)
        routes = Routes(tags=["gateway"])

        @routes.get(
            "/gateway",
            summary="The engines that the gateway was given, what they lack, and what is under way",
            openapi_extra=openapi.operation(GatewayDocument, *BOTH_WIRES),
        )
        async def view(request: Request) -> Response:
            return respond(_document(gateway), reply_wire(request.headers.raw, parts.default_wire))

        return Feature(routes)

    return make


def _enrolled(gateway: "Gateway", one: EnrolledEngine) -> EnrolledDocument:
    lacks = filter(None, (one.lacks, gateway.placer.cache_reports.lacks(one.base_url)))
    return EnrolledDocument(one.base_url, one.state, "; ".join(lacks))


def _document(gateway: "Gateway") -> GatewayDocument:
    return GatewayDocument(
        address=gateway.address,
        engines=[_enrolled(gateway, one) for one in gateway.enrollment.engines],
        under_way=gateway.endpoint.under_way,
        held_bytes=gateway.held.size_bytes,
        addresses=[
            AddressDocument(url, rank, count)
            for (url, rank), count in sorted(gateway.fleet.under_way.items())
        ],
        ext_proc="" if gateway.picker is None else gateway.picker.address,
        ext_proc_streams=0 if gateway.picker is None else gateway.picker.streams,
    )
