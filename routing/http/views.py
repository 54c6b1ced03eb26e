"""What is known of decisions: `GET /models`, `/promises`, `/prefixes` and `/advice`."""

import math
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from query_api.access.rights import Access
from query_api.http import openapi
from query_api.http.caller import access_of
from query_api.http.errors import RequestError
from query_api.http.requests.options import read_parameters
from query_api.http.route_table import Routes
from query_api.http.routes import BOTH_WIRES, LargeAnswers, respond
from query_api.http.wire import Wire, reply_wire
from query_api.ports import View
from routing.advice.advice_context import AdviceActor, advised, hot_scopes
from routing.decisions.router import Router
from routing.estimates.estimates import EstimateRows
from routing.fold.fold import RoutingFold
from routing.http.models import (
    AdvicesDocument,
    PrefixesDocument,
    PromisesDocument,
)
from routing.http.prefix_holders import holders_in
from routing.http.views_documents import (
    advice_document,
    prefixes_document,
    promises_document,
)
from routing.observed.promise_totals import GroupBy

PREFIXES_SHOWN: Final = 100  # hot ones of each scope, where a request does not say
HOT_PREFIXES_SHOWN_MAX: Final = 1024  # of each scope, whatever a request says


class ModelsDocument(EstimateRows, frozen=True, kw_only=True):
    """What outcomes have taught of each model and class, and what could not be used."""

    counts: dict[str, int]


def routing_views(
    view: View, router: Router, default_wire: Wire, acting: AdviceActor | None = None
) -> Routes:
    """The routes that only read; `acting` where advice is acted on."""
    routes = Routes(tags=["routing"])
    large = LargeAnswers()
    folded = router.folded

    @routes.get(
        "/models",
        summary="What outcomes have taught of times, by model and class of instances",
        openapi_extra=openapi.operation(ModelsDocument, *BOTH_WIRES),
    )
    async def models(request: Request) -> Response:
        wire = reply_wire(request.headers.raw, default_wire)
        return await large.make(lambda: respond(folded.read_all(_models), wire))

    @routes.get(
        "/promises",
        summary="What decisions promised, what came of it, and why tokens were computed anew",
        openapi_extra=openapi.operation(PromisesDocument, *BOTH_WIRES),
    )
    async def promises(request: Request) -> Response:
        wire = reply_wire(request.headers.raw, default_wire)
        access = access_of(request)
        given = _parameters(request, ("by", "since", "tenant_id"))
        by = _group_by(given.get("by", GroupBy.INSTANCE.value))
        since = _number("since", given.get("since", "0"))
        admits = _wanted(given, access)

        def document() -> Response:
            found = folded.read_all(
                lambda fold: promises_document(fold.observations, by, since, admits)
            )
            return respond(_shown(found, access), wire)

        return await large.make(document)

    @routes.get(
        "/prefixes",
        summary="The prefixes that are asked for most, who holds them, and what became of hits",
        openapi_extra=openapi.operation(PrefixesDocument, *BOTH_WIRES),
    )
    async def prefixes(request: Request) -> Response:
        wire = reply_wire(request.headers.raw, default_wire)
        given = _parameters(request, ("hot", "depth", "instance", "tenant_id"))
        hot = int(_number("hot", given.get("hot", str(PREFIXES_SHOWN))))
        depth = int(_number("depth", given.get("depth", "0")))
        kernel = view.kernel
        admits = _wanted(given, access_of(request))

        def document() -> Response:
            scopes = folded.read_all(lambda fold: hot_scopes(fold, router.now()))
            found = prefixes_document(
                scopes,
                holders_in(kernel),
                hot=min(hot, HOT_PREFIXES_SHOWN_MAX),
                depth_tokens=depth,
                instance_id=given.get("instance", ""),
                admits=admits,
            )
            return respond(found, wire)

        return await large.make(document)

    @routes.get(
        "/advice",
        summary="Which prefixes should be copied to other instances, or pinned; and what was done",
        openapi_extra=openapi.operation(AdvicesDocument, *BOTH_WIRES),
    )
    async def advice(request: Request) -> Response:
        wire = reply_wire(request.headers.raw, default_wire)

        access = access_of(request)

        def document() -> Response:
            found = _advice_document(view, router, acting)
            if access.tenants is not None:  # what was done names no tenant
                own = [one for one in found.advice if access.admits(one.tenant_id)]
                found = msgspec.structs.replace(found, advice=own, acted=[])
            return respond(found, wire)

        return await large.make(document)

    return routes


def _wanted(given: Mapping[str, str], access: Access) -> Callable[[str], bool]:
    """Which tenants are asked for: the one that is named, or all that the caller may see."""
    named = given.get("tenant_id", "")
    if not named:
        return access.admits
    named = access.tenant_of(named)
    return lambda tenant_id: tenant_id == named


def _shown(found: PromisesDocument, access: Access) -> PromisesDocument:
    """Without what is counted of all tenants, for who sees some."""
    if access.tenants is None:
        return found
    return msgspec.structs.replace(found, open=0, forgotten=0, crowded_out=0)


def _models(fold: RoutingFold) -> ModelsDocument:
    rows = msgspec.structs.asdict(fold.estimates.rows())
    return ModelsDocument(**rows, counts=fold.estimates.counters())


def _advice_document(view: View, router: Router, acting: AdviceActor | None) -> AdvicesDocument:
    if acting is None:
        return advice_document(advised(view, router))
    found = advised(view, router, acting.done())
    return advice_document(found, acting.acts(), acting.held_back())


def _parameters(request: Request, names: tuple[str, ...]) -> dict[str, str]:
    given = dict(read_parameters(request.scope["query_string"], errors="strict"))
    for name in given:
        if name not in names:
            text = f"expected parameters of {', '.join(names)}, got: {name[:80]}"
            raise RequestError("unknown_parameter", text, field=name[:80])
    return {name: value for name, value in given.items() if value}


def _group_by(text: str) -> GroupBy:
    try:
        return GroupBy(text)
    except ValueError as error:
        known = ", ".join(GroupBy)
        text = f"expected by one of {known}, got: {text[:80]}"
        raise RequestError("invalid_value", text, field="by") from error


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 2**53:
        text = f"expected {name} to be a number of at least 0, got: {text[:80]}"
        raise RequestError("invalid_value", text, field=name)
    return value
