"""What the span of a request says of decisions."""

from collections.abc import Sequence

from query_api.http.traces import context_of
from query_api.http.wire import Headers
from query_api.traces import (
    CACHED_TOKENS,
    MATCHED,
    MODEL,
    POSITION,
    PROMPT_TOKENS,
    STATE,
    TENANT,
)
from routing.decisions.interface import RoutedDecision, RouteRequest
from routing.decisions.router import ClientReport, FeedbackCounts, Router
from schemas.routing_records import Refusal, decision_id
from schemas.tracing import Attribute, Span, SpanName, Tracer


def route_attributes(routed: RoutedDecision) -> dict[str, Attribute]:
    """What the span of a decision says. Cost O(partitions)."""
    decision = routed.decision
    attributes: dict[str, Attribute] = {
        MODEL: decision.scope.model_name,
        TENANT: decision.scope.tenant_id,
        PROMPT_TOKENS: decision.prompt_tokens,
        MATCHED: decision.held,
        POSITION: decision.position,
        STATE: decision.state,
        "reprise.decision_id": decision_id(routed.run, decision.number),
        "reprise.policy": decision.policy,
        "reprise.candidates": len(decision.candidates),
    }
    if decision.chosen >= 0:
        one = decision.candidates[decision.chosen]
        attributes[CACHED_TOKENS] = one.prefix
        attributes["reprise.instance"] = one.instance_id
        attributes["reprise.dp_rank"] = one.dp_rank
    if decision.decode >= 0:
        attributes["reprise.decode.instance"] = decision.candidates[decision.decode].instance_id
    if routed.load_age_s is not None:
        attributes["reprise.load.age_s"] = routed.load_age_s
    if decision.refused:
        attributes["reprise.refused"] = decision.refused.value
    return attributes


def note_route(span: Span, asked: RouteRequest, routed: RoutedDecision) -> None:
    """Has the span of a decision say what was decided; a refusal has a name of its own."""
    decision = routed.decision
    span.note(route_attributes(routed))
    if decision.refused is not Refusal.NO:
        span.rename(SpanName.REFUSED)
    if decision.context != asked.context:
        span.link(decision.context)  # the same request was decided before


def take_traced(
    tracer: Tracer, router: Router, told: Sequence[ClientReport], headers: Headers
) -> FeedbackCounts:
    """Has the router take reports, in a span that is linked to the decision of each.

    Args:
        headers: of the request, whose trace it is part of; without one, of the first decision's.
    """
    if not tracer.is_on:
        return router.take(told)
    decided = router.traces_of(told)
    parent = context_of(headers) or next(iter(decided), "")
    with tracer.begin(SpanName.FEEDBACK, parent, decided) as span:
        taken = router.take(told)
        span.note({f"reprise.reports.{name}": n for name, n in taken._asdict().items()})
        return taken
