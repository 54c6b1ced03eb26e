"""`GET /doctor`: what is wrong with the service and its instances, in words, with the remedy."""

from collections.abc import Callable, Mapping
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from doctor.doctor import doctor_document
from doctor.document import DoctorDocument
from doctor.examination import NOTHING_UNSAID, examine
from query_api.http import openapi
from query_api.http.caller import access_of
from query_api.http.feature import Feature, HttpParts, MakeFeature
from query_api.http.route_table import Routes
from query_api.http.routes import BOTH_WIRES, LargeAnswers, respond
from query_api.http.wire import reply_wire
from routing.decisions.router import Router
from schemas.clock import REAL_CLOCK
from tokens.engine_questions import EngineQuestions


class CacheReports(Protocol):
    """Knows which engines leave out of their answers what they found in their caches."""

    def unsaid(self) -> Mapping[str, int]:
        """See `examine`. To be called on the loop."""
        ...


def doctor_feature(
    router: Router | None,
    reports: CacheReports | None = None,
    questions: EngineQuestions | None = None,
    *,
    clock: Callable[[], float] = REAL_CLOCK.unix,
) -> MakeFeature:
    """What the doctor adds to the HTTP service.

    Args:
        router: knows what was promised; None: nothing was.
        reports: of the gateway; None: there is none.
        questions: of the tokenizer; likewise.
        clock: Unix seconds.
    """

    def make(parts: HttpParts) -> Feature:
        return Feature(_doctor_routes(parts, router, reports, questions, clock))

    return make


def _doctor_routes(
    parts: HttpParts,
    router: Router | None,
    reports: CacheReports | None,
    questions: EngineQuestions | None,
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
        wire = reply_wire(request.headers.raw, parts.default_wire)
        access = access_of(request)
        sees_all = access.tenants is None
        unsaid = NOTHING_UNSAID if reports is None else reports.unsaid()
        now = clock()
        unanswered = () if questions is None else questions.unanswered(now)

        def document() -> Response:
            examined = examine(
                parts.view, router, now, access.admits, parts.unknown, unsaid, unanswered
            )
            return respond(doctor_document(examined, sees_all=sees_all), wire)

        return await large.make(document)

    return routes
