"""`GET /doctor`: what is wrong with the service and its instances, in words, with the remedy."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from doctor.doctor import doctor_document
from doctor.document import DoctorDocument
from doctor.examination import examine
from query_api.http import openapi
from query_api.http.caller import access_of
from query_api.http.feature import Feature, HttpParts, MakeFeature
from query_api.http.route_table import Routes
from query_api.http.routes import BOTH_WIRES, LargeAnswers, respond
from query_api.http.wire import Wire, reply_wire
from query_api.ports import View
from query_api.unknown_scopes import UnknownScopes
from routing.decisions.router import Router
from schemas.clock import REAL_CLOCK


def doctor_feature(
    router: Router | None, *, clock: Callable[[], float] = REAL_CLOCK.unix
) -> MakeFeature:
    """What the doctor adds to the HTTP service; `router` knows what was promised, and
    the clock Unix seconds.
    """

    def make(parts: HttpParts) -> Feature:
        routes = _doctor_routes(parts.view, router, parts.unknown, parts.default_wire, clock)
        return Feature(routes)

    return make


def _doctor_routes(
    view: View,
    router: Router | None,
    unknown: UnknownScopes,
    default_wire: Wire,
    clock: Callable[[], float],
) -> Routes:
    """The route. Who sees which instances is as of `/services`."""
    routes = Routes(tags=["views"])
    large = LargeAnswers()

    @routes.get(
        "/doctor",
        summary="What is wrong with the service and its instances, and what to do",
        openapi_extra=openapi.operation(DoctorDocument, *BOTH_WIRES),
    )
    async def doctor(request: Request) -> Response:
        wire = reply_wire(request.headers.raw, default_wire)
        access = access_of(request)
        sees_all = access.tenants is None

        def document() -> Response:
            examined = examine(view, router, clock(), access.admits, unknown)
            return respond(doctor_document(examined, sees_all=sees_all), wire)

        return await large.make(document)

    return routes
