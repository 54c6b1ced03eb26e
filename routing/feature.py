"""What routing adds to the HTTP service."""

from query_api.http.feature import Feature, HttpParts, MakeFeature
from routing.advice.advice_context import AdviceActor
from routing.decisions.router import Router
from routing.http import decisions, routes, views
from routing.http.endpoint import RoutingEndpoint


def routing_feature(router: Router, *, acting: AdviceActor | None = None) -> MakeFeature:
    """Its routes.

    Args:
        router: decides who gets a request.
        acting: acts on advice; None where nobody does.
    """

    def make(parts: HttpParts) -> Feature:
        view, wire = parts.view, parts.default_wire
        endpoint = RoutingEndpoint(parts, router)
        found = routes.routing_routes(endpoint, router, wire)
        found.include(views.routing_views(view, router, wire, acting))
        found.include(decisions.decision_routes(router, wire))
        if router.settings.select_service:
            from routing.select.routes import select_routes  # few services are asked so

            found.include(
                select_routes(view, parts.registry, router, parts.bodies, tracer=parts.tracer)
            )
        return Feature(found, (endpoint,), decisions=endpoint)

    return make
