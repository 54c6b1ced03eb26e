"""The routes of Dynamo's select service, over the router. In JSON only, as there."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from query_api.http.errors import RequestError
from query_api.http.requests.bodies import Bodies
from query_api.http.requests.options import read_parameters
from query_api.http.route_table import Routes
from query_api.http.routes import read_request, respond
from query_api.http.traces import context_of
from query_api.http.wire import Headers, Wire, encode
from query_api.ports import PublisherRegistry, View, positions_text
from query_api.traces import query_attributes
from routing.bounds import ROUTE_REPEAT_S
from routing.decisions.interface import OfferedCandidate, RoutedDecision, RouteRequest
from routing.decisions.router import ClientReport, Router
from routing.http.documents import refusal_document, retry_after
from routing.http.traces import note_route, take_traced
from routing.select.bodies import (
    OutputBlockBody,
    PromptBody,
    ReservationBody,
    SelectBody,
    WorkerBody,
    read_body,
    to_request,
    unsupported,
    with_computed,
)
from routing.select.documents import (
    ModelLoads,
    load_rows,
    overlaps_document,
    reservation_document,
    selection_document,
)
from routing.select.workers import Catalogue, Partition
from schemas.clock import REAL_CLOCK
from schemas.limits import MIB
from schemas.routing_records import FeedbackReport, OutcomeEvent, Refusal
from schemas.tracing import NO_SPAN, NO_TRACER, Span, SpanName, Tracer

SELECTIONS_MAX: Final = 4096  # that are not booked yet; a forgotten one gets 404: of="selections"
SELECTIONS_BYTES_MAX: Final = 32 * MIB  # of their prefix hashes; likewise

Key = tuple[str, str, str]
"""Model, routing group and name of a selection."""

_OK: Final[dict[str, object]] = {"status": "ok"}


class OpenSelection(NamedTuple):
    """What was selected and is not booked yet: the request, to the one that was chosen alone."""

    request: RouteRequest
    partition: Partition
    at: float


class SelectService:
    """Selections, reservations and what is known of them. On the loop that decides.

    Selections that are given up for want of room before they are booked are counted as `selections`
    of `LiveLoad.forgotten`.
    """

    def __init__(
        self,
        view: View,
        registry: PublisherRegistry,
        router: Router,
        *,
        tracer: Tracer = NO_TRACER,
        monotonic: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        """Args:
        registry: that registers workers.
        """
        self.catalogue = Catalogue(view, registry, monotonic)
        self._view = view
        self._router = router
        self._tracer = tracer
        self._monotonic = monotonic
        self._kept: OrderedDict[Key, OpenSelection] = OrderedDict()
        self._kept_bytes = 0  # of prefix hashes

    def select(self, body: bytes, headers: Headers = (), *, reserve: bool) -> Response:
        """Who gets a request; booked or not."""
        with self._tracer.begin(SpanName.ROUTE, context_of(headers)) as span:
            return self._select(body, span, reserve=reserve)

    def _select(self, body: bytes, span: Span, *, reserve: bool) -> Response:
        asked = read_body(body, SelectBody)
        partition = self.catalogue.partition(asked.model_name, asked.routing_group)
        request = self._request(asked, partition, _allowed(asked, partition), reserve=reserve)
        request = _in_trace(request, span)
        carried = dict(self._router.carried(partition.targets))
        routed = self._decide(request, span)
        if routed.decision.refused is not Refusal.NO:
            return _refusal(routed)
        if not reserve and request.request_id:
            self._keep((*partition[:2], request.request_id), request, partition, routed)
        name = routed.decision.request_id if reserve else request.request_id
        found = selection_document(routed, partition, request.matches, carried, selection_id=name)
        return respond(found, Wire.JSON)

    def _keep(
        self, key: Key, request: RouteRequest, partition: Partition, routed: RoutedDecision
    ) -> None:
        decision = routed.decision
        one = decision.candidates[decision.chosen]
        only = OfferedCandidate(
            one.instance_id, one.dp_rank, endpoint=routed.endpoints[decision.chosen]
        )
        request = request._replace(candidates=(only,), reserve=True, is_placed=True)
        now = self._monotonic()
        self._forget(key)
        self._kept[key] = OpenSelection(request, partition, now)
        self._kept_bytes += len(request.prefixes)
        while self._kept:
            oldest, kept = next(iter(self._kept.items()))
            is_old = now - kept.at > ROUTE_REPEAT_S
            full = len(self._kept) > SELECTIONS_MAX or self._kept_bytes > SELECTIONS_BYTES_MAX
            if not is_old and not full:
                break
            self._forget(oldest)
            self._router.live.forgotten["selections"] += not is_old

    def _forget(self, key: Key) -> OpenSelection | None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._kept_bytes -= len(kept.request.prefixes)
        return kept

    def _decide(self, request: RouteRequest, span: Span) -> RoutedDecision:
        routed = self._router.route(request)
        if span.is_recorded:
            note_route(span, request, routed)
        return routed

    def reserve(self, body: bytes, headers: Headers = ()) -> Response:
        """Books what was selected under that name, or what the body says where it was sent."""
        asked = read_body(body, ReservationBody)
        key = (asked.model_name, asked.routing_group, asked.selection_id)
        kept = self._kept.get(key)  # it stays: the reservation may be asked for again
        selected = "" if kept is None else kept.request.context
        parent = context_of(headers) or selected
        with self._tracer.begin(SpanName.ROUTE, parent, [selected]) as span:
            return self._reserve(asked, kept, span)

    def _reserve(self, asked: ReservationBody, kept: OpenSelection | None, span: Span) -> Response:
        if asked.worker_id is None:
            if kept is None or self._monotonic() - kept.at > ROUTE_REPEAT_S:
                text = f"Expected a selection of the last {ROUTE_REPEAT_S:g} s, got:"
                text += f" {asked.selection_id[:80]}"
                raise RequestError("not_found", text, field="selection_id", status=404)
            request, partition = kept.request, kept.partition
        else:
            partition = self.catalogue.partition(asked.model_name, asked.routing_group)
            request = self._explicit(asked, partition, (str(asked.worker_id), asked.dp_rank or 0))
        request = _in_trace(request, span)
        routed = self._decide(request, span)
        if routed.decision.refused is not Refusal.NO:
            return _refusal(routed)
        (only,) = request.candidates or ()
        chosen = routed.decision.candidates[routed.decision.chosen]
        if (chosen.instance_id, chosen.dp_rank) != (only.instance_id, only.dp_rank):
            text = f"Expected a new selection_id: this one is booked at {chosen.instance_id}"
            raise RequestError("conflict", text, field="selection_id", status=409)
        return respond(reservation_document(routed, partition), Wire.JSON, 201)

    def _explicit(
        self, asked: ReservationBody, partition: Partition, target: tuple[str, int]
    ) -> RouteRequest:
        only = tuple(
            one
            for one in partition.offered([int(target[0])])
            if (one.instance_id, one.dp_rank) == target
        )
        if not only:
            text = f"Expected a worker of the catalogue, got: {target[0]}, rank {target[1]}"
            raise RequestError("not_found", text, field="worker_id", status=404)
        request = self._request(asked, partition, only, reserve=True)._replace(is_placed=True)
        computed = asked.effective_prefill_tokens
        if asked.track_prefill_tokens is False:
            computed = 0
        return request if computed is None else with_computed(request, computed, target)

    def report(self, selection_id: str, event: OutcomeEvent, headers: Headers = ()) -> Response:
        """What became of a reservation."""
        told = [ClientReport(None, selection_id, FeedbackReport(0, event, 0.0), None)]
        taken = take_traced(self._tracer, self._router, told, headers)
        if taken.unknown:
            raise _unknown(selection_id)
        return respond(_OK, Wire.JSON)

    def output_block(self, selection_id: str, body: bytes) -> Response:
        """Nothing: all of the expected output was booked with the reservation."""
        if body:
            read_body(body, OutputBlockBody)
        if not self._router.knows_request(selection_id):
            raise _unknown(selection_id)
        return respond(_OK, Wire.JSON)

    def loads(self, model_name: str | None, routing_group: str | None) -> list[ModelLoads]:
        """What all ranks carry."""
        return [
            ModelLoads(*one[:2], load_rows(one, dict(self._router.carried(one.targets))))
            for one in self.catalogue.partitions(model_name, routing_group)
        ]

    def potential_loads(self, body: bytes, headers: Headers = ()) -> Response:
        """What all ranks would carry with a prompt; nothing is booked."""
        asked = read_body(body, PromptBody)
        partition = self.catalogue.partition(asked.model_name, asked.routing_group)
        with self._begin_query(headers) as span:
            request = self._request(asked, partition, partition.offered(), reserve=False)
            self._note(span, request)
        decision = self._router.route(request).decision
        rows = load_rows(partition, dict(self._router.carried(partition.targets)), decision)
        return Response(encode(rows, Wire.JSON), media_type=Wire.JSON.value)

    def overlap_scores(self, body: bytes, headers: Headers = ()) -> Response:
        """What all ranks hold of a prompt."""
        asked = read_body(body, PromptBody)
        partition = self.catalogue.partition(asked.model_name, asked.routing_group)
        with self._begin_query(headers) as span:
            request = self._request(asked, partition, (), reserve=False)
            self._note(span, request)
        blocks = len(request.prefixes) // 8
        return respond(overlaps_document(partition, request.matches, blocks), Wire.JSON)

    def _begin_query(self, headers: Headers) -> Span:
        """Of what only looks; as of `POST /query` unrecorded without a `traceparent`."""
        parent = context_of(headers)
        return self._tracer.begin(SpanName.QUERY, parent) if parent else NO_SPAN

    def _note(self, span: Span, request: RouteRequest) -> None:
        if span.is_recorded:
            scope, view = request.scope, self._view
            longest = max((match.longest for match in request.matches), default=0)
            of_index = (positions_text(view.positions()), view.state(scope).value)
            span.note(query_attributes(scope, request.prompt_tokens, longest, *of_index))

    def _request(
        self,
        asked: PromptBody,
        partition: Partition,
        candidates: tuple[OfferedCandidate, ...],
        *,
        reserve: bool,
    ) -> RouteRequest:
        view = self._view
        return to_request(
            asked,
            partition.block_size,
            view.kernel,
            candidates,
            is_ready=view.ready,
            reserve=reserve,
        )


def _in_trace(request: RouteRequest, span: Span) -> RouteRequest:
    """The request, as part of the span; kept with the decision whether tracing is on or not."""
    return request._replace(context=span.context)


def _allowed(asked: SelectBody, partition: Partition) -> tuple[OfferedCandidate, ...]:
    pinned = asked.pinned_worker
    found = partition.offered(asked.allowed_worker_ids)
    if pinned is None:
        return found
    target = (str(pinned.worker_id), pinned.dp_rank)
    return tuple(one for one in found if (one.instance_id, one.dp_rank) == target)


def _refusal(routed: RoutedDecision) -> Response:
    """503 where nobody is there, 429 where nobody has room."""
    document = refusal_document(routed)
    if routed.decision.refused is Refusal.NO_CANDIDATE:
        return respond(document, Wire.JSON, 503)
    answer = respond(document, Wire.JSON, 429)
    answer.headers["retry-after"] = str(retry_after(routed))
    return answer


def _unknown(selection_id: str) -> RequestError:
    text = f"Expected the selection_id of a reservation, got: {selection_id[:80]}"
    return RequestError("not_found", text, field="selection_id", status=404)


def select_routes(
    view: View,
    registry: PublisherRegistry,
    router: Router,
    bodies: Bodies,
    *,
    tracer: Tracer = NO_TRACER,
) -> Routes:
    """All of them."""
    routes = Routes(tags=["select service"])
    service = SelectService(view, registry, router, tracer=tracer)
    _selection_routes(routes, service, bodies)
    _reservation_routes(routes, service, bodies)
    _worker_routes(routes, service.catalogue, bodies)
    _absent_routes(routes)
    return routes


async def _read(request: Request, bodies: Bodies) -> bytes:
    body, wire = await read_request(request, bodies, Wire.JSON)
    if wire is not Wire.JSON:
        text = "Content-Type must be application/json: the select service has no other form"
        raise RequestError("unsupported_content_type", text, status=415)
    return body


def _filter(request: Request) -> tuple[str | None, str | None]:
    given = dict(read_parameters(request.scope["query_string"], errors="strict"))
    return given.get("model_name"), given.get("routing_group")


def _selection_routes(routes: Routes, service: SelectService, bodies: Bodies) -> None:
    @routes.post("/select", summary="Dynamo: who gets a request; nothing is booked")
    async def select(request: Request) -> Response:
        body = await _read(request, bodies)
        return service.select(body, request.headers.raw, reserve=False)

    @routes.post("/select_and_reserve", summary="Dynamo: who gets a request; booked at once")
    async def select_and_reserve(request: Request) -> Response:
        body = await _read(request, bodies)
        return service.select(body, request.headers.raw, reserve=True)

    @routes.get("/loads", summary="Dynamo: what all workers carry")
    async def loads(request: Request) -> Response:
        found = service.loads(*_filter(request))
        return Response(encode(found, Wire.JSON), media_type=Wire.JSON.value)

    @routes.post("/potential_loads", summary="Dynamo: what they would carry with a prompt")
    async def potential_loads(request: Request) -> Response:
        return service.potential_loads(await _read(request, bodies), request.headers.raw)

    @routes.post("/overlap_scores", summary="Dynamo: what they hold of a prompt")
    async def overlap_scores(request: Request) -> Response:
        return service.overlap_scores(await _read(request, bodies), request.headers.raw)


def _reservation_routes(routes: Routes, service: SelectService, bodies: Bodies) -> None:
    @routes.post("/reservations", summary="Dynamo: book what was selected, or sent somewhere")
    async def reserve(request: Request) -> Response:
        return service.reserve(await _read(request, bodies), request.headers.raw)

    @routes.post("/reservations/{selection_id}/prefill_complete", summary="Dynamo: it is computed")
    async def prefill_complete(selection_id: str, request: Request) -> Response:
        return service.report(selection_id, OutcomeEvent.FIRST_TOKEN, request.headers.raw)

    @routes.post("/reservations/{selection_id}/output_block", summary="Dynamo: it has grown")
    async def output_block(selection_id: str, request: Request) -> Response:
        return service.output_block(selection_id, await _read(request, bodies))

    @routes.delete("/reservations/{selection_id}", summary="Dynamo: it has ended")
    async def free(selection_id: str, request: Request) -> Response:
        return service.report(selection_id, OutcomeEvent.COMPLETED, request.headers.raw)


def _worker_routes(routes: Routes, catalogue: Catalogue, bodies: Bodies) -> None:
    @routes.post("/workers", summary="Dynamo: register a worker")
    async def add(request: Request) -> Response:
        asked = read_body(await _read(request, bodies), WorkerBody)
        return respond(await catalogue.add(asked), Wire.JSON, 201)

    @routes.get("/workers", summary="Dynamo: all workers")
    async def workers(request: Request) -> Response:
        found = catalogue.documents(*_filter(request))
        return Response(encode(found, Wire.JSON), media_type=Wire.JSON.value)

    @routes.patch("/workers/{worker_id}", summary="Dynamo: change a worker; not implemented")
    async def change(worker_id: int) -> Response:
        catalogue.worker(worker_id)
        text = "Expected DELETE and POST of a worker, got PATCH: a registration cannot be changed"
        raise RequestError("unsupported", text, status=501)

    @routes.delete("/workers/{worker_id}", summary="Dynamo: forget a worker")
    async def remove(worker_id: int) -> Response:
        return respond(await catalogue.remove(worker_id), Wire.JSON)


def _absent_routes(routes: Routes) -> None:
    async def absent(request: Request) -> Response:
        raise unsupported(request.url.path)

    for path in ("/dump", "/replica_sync/peers"):
        routes.get(path, include_in_schema=False)(absent)
    for path in ("/replica_sync/register_peer", "/replica_sync/deregister_peer"):
        routes.post(path, include_in_schema=False)(absent)
