"""Routes: the cold ones are served here, the hot ones declared for the document."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from query_api.gaps import GapsDocument, PublisherFilter, gaps_document
from query_api.http import memory_models, models, openapi
from query_api.http.answers import Document, services_document, view_document
from query_api.http.caller import access_of
from query_api.http.errors import ErrorEnvelope, RequestError, unsupported_content_type
from query_api.http.health import digest_document, health_document, ready_document
from query_api.http.memory_answer import memory_document, shown_segments
from query_api.http.metrics import Exposition
from query_api.http.post_endpoint import PostEndpoint
from query_api.http.query_endpoint import HotRoutes
from query_api.http.requests.bodies import Bodies
from query_api.http.requests.options import read_parameters
from query_api.http.requests.registrations import read_register_command, read_unregistration
from query_api.http.route_table import Routes
from query_api.http.wire import Wire, body_wire, encode, header, reply_wire
from query_api.ports import PublisherRegistry, View, positions_text
from schemas.errors import (
    AddressRefusedError,
    EndpointError,
    NotRegisteredError,
    RegistrationConflictError,
    RepriseError,
)
from schemas.identities import PrefixScope
from schemas.registration import Registration

BOTH_WIRES: Final = (Wire.JSON, Wire.MSGPACK)
_PUBLISHER_FILTER: Final = [
    openapi.parameter(name, description=f"Only publishers of this {name.removesuffix('_id')}.")
    for name in PublisherFilter._fields
]


def respond(document: Document | msgspec.Struct, wire: Wire, status: int = 200) -> Response:
    """One document as a response."""
    return Response(encode(document, wire), status_code=status, media_type=wire.value)


class LargeAnswers:
    """Makes answers that are as long as the table has contexts, one at a time, beside the loop:
    queries go on.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def make(self, answer: Callable[[], Response]) -> Response:
        """Calls it in a thread; it reads nothing that changes on the loop."""
        async with self._turn:
            return await asyncio.to_thread(answer)


async def read_request(request: Request, bodies: Bodies, default_wire: Wire) -> tuple[bytes, Wire]:
    """The body of a POST, and its wire form.

    Raises:
        RequestError: another Content-Type, or as `Bodies.read` has it.
    """
    headers = request.headers.raw
    content_type = header(headers, b"content-type")
    wire = body_wire(content_type, default_wire)
    if wire is None:
        raise unsupported_content_type(content_type)
    return await bodies.read(request.receive, headers), wire


def registration_routes(registry: PublisherRegistry, bodies: Bodies, default_wire: Wire) -> Routes:
    """The routes that change what is followed."""
    router = Routes(tags=["registrations"])

    @router.post(
        "/register",
        summary="Follow a publisher of events",
        openapi_extra=openapi.operation(
            models.RegisterResponse,
            *Wire,
            body=models.RegisterRequest,
            example=openapi.REGISTER_EXAMPLE,
            answer_example=openapi.REGISTERED_EXAMPLE,
            refused=(400, 413, 500, 503),
        ),
    )
    async def register(request: Request) -> Response:
        body, wire = await read_request(request, bodies, default_wire)
        command = read_register_command(body, wire, registry.kinds, access_of(request))
        del body  # what follows may wait for the disk
        try:
            await registry.register(command.registration, replace=command.replace)
        except RegistrationConflictError as error:
            raise _with_remedy(error, wire, replace=command.replace) from error
        except AddressRefusedError:
            raise
        except EndpointError as error:
            if wire is not Wire.JSON:  # Conductor's clients know it as an error of the server
                raise
            field = _field_at_fault(str(error), command.registration)
            raise RequestError("invalid_value", str(error), field=field) from error
        status = "registered successfully"
        instance_id = command.registration.instance_id
        return respond({"status": status, "instance_id": instance_id}, wire)

    @router.post(
        "/unregister",
        summary="Forget a publisher, with its blocks",
        openapi_extra=openapi.operation(
            models.UnregisterResponse,
            *Wire,
            body=models.UnregisterRequest,
            example=openapi.UNREGISTER_EXAMPLE,
            answer_example=openapi.UNREGISTERED_EXAMPLE,
            refused=(400, 404, 413, 503),
        ),
    )
    async def unregister(request: Request) -> Response:
        body, wire = await read_request(request, bodies, default_wire)
        target = read_unregistration(body, wire, access_of(request))
        del body
        try:
            removed = await registry.unregister(target)
        except NotRegisteredError as error:
            if wire is not Wire.JSON:
                raise
            text = f"{error}. GET /services lists what is registered"
            return respond(ErrorEnvelope(text), wire, 404)
        keys = sorted({registration.service_key for registration in removed})
        return respond({"status": "unregistered successfully", "removed_instances": keys}, wire)

    return router


def _field_at_fault(text: str, registration: Registration) -> str:
    """Which address a refusal is about: the one that it repeats, as far as it does."""
    for field in ("replay_endpoint", "http_endpoint", "curve_server_key"):
        given = getattr(registration, field)
        if given and given != registration.endpoint and given[:80] in text:
            return field
    return "curve_server_key" if "curve_server_key" in text else "endpoint"


def _with_remedy(error: RegistrationConflictError, wire: Wire, *, replace: bool) -> RepriseError:
    """Conductor's text alone for its own clients; others are told what differs."""
    if wire is not Wire.JSON:
        return error
    differs = f": {error.differs}" if error.differs else ""
    text = f"{error}{differs}. GET /services shows the other one; POST /unregister ends it"
    if not replace:
        text += '. Or send "replace": true: it replaces the one of the same instance_id and dp_rank'
    return RequestError("invalid_registration", text)


def view_routes(view: View, version: str, default_wire: Wire) -> Routes:
    """The routes that show what is there; `default_wire` for requests that name none."""
    router = Routes(tags=["views"])
    large = LargeAnswers()

    @router.get(
        "/services",
        summary="All registered publishers",
        openapi_extra=openapi.operation(models.Services, *BOTH_WIRES),
    )
    async def services(request: Request) -> Response:
        wire = reply_wire(request.headers.raw, default_wire)
        admits = access_of(request).admits
        shown = [one for one in view.services() if admits(one.registration.tenant_id)]
        return respond(services_document(shown), wire)

    @router.get(
        "/gaps",
        summary="What became of every batch: seen, repaired or lost, when and why",
        openapi_extra=openapi.operation(GapsDocument, *BOTH_WIRES, parameters=_PUBLISHER_FILTER),
    )
    async def gaps(request: Request) -> Response:
        wire = reply_wire(request.headers.raw, default_wire)
        given = dict(read_parameters(request.scope["query_string"], errors="strict"))
        if "modelname" in given:
            given.setdefault("model", given["modelname"])
        wanted = PublisherFilter(
            **{name: given[name] for name in PublisherFilter._fields if name in given}
        )
        admits = access_of(request).admits
        found = [one for one in view.ledgers() if admits(one.publisher.stream.tenant_id)]
        position = positions_text(view.positions())
        return await large.make(lambda: respond(gaps_document(found, position, wanted), wire))

    @router.get(
        "/memory",
        summary="What engines' KV caches take of their memory",
        openapi_extra=openapi.operation(memory_models.MemoryView, *BOTH_WIRES),
    )
    async def memory(request: Request) -> Response:
        wire = reply_wire(request.headers.raw, default_wire)
        segments = shown_segments(view.memory(), access_of(request))
        return await large.make(lambda: respond(memory_document(segments, view), wire))

    @router.get(
        "/global_view",
        summary="All scopes of queries",
        openapi_extra=openapi.operation(models.GlobalView, *BOTH_WIRES),
    )
    async def global_view(request: Request) -> Response:
        wire = reply_wire(request.headers.raw, default_wire)
        kernel, services, admits = view.kernel, view.services(), access_of(request).admits

        def document() -> Response:
            scopes = [one for one in kernel.scopes() if admits(PrefixScope(*one.scope).tenant_id)]
            return respond(view_document(scopes, services), wire)

        return await large.make(document)

    @router.get(
        "/digest",
        summary="What exactly the table holds",
        openapi_extra=openapi.operation(models.TableDigest),
    )
    async def digest(request: Request) -> Response:
        kernel, position = view.kernel, positions_text(view.positions())
        admits = access_of(request).admits
        return await large.make(
            lambda: respond(digest_document(kernel, position, admits), Wire.JSON)
        )

    @router.get(
        "/health",
        summary="Whether the process is alive",
        openapi_extra=openapi.operation(models.Alive),
    )
    async def health(request: Request) -> Response:
        document = health_document(view, version)
        if access_of(request).is_probe:
            document = {"ready": document["ready"]}
        return respond(document, Wire.JSON)

    @router.get(
        "/ready",
        summary="Whether queries are answered",
        openapi_extra=openapi.operation({200: models.Ready, 503: models.Ready}),
    )
    async def ready(request: Request) -> Response:
        status, document = ready_document(view)
        if access_of(request).is_probe:
            document = {"ready": document["ready"]}
        return respond(document, Wire.JSON, status)

    return router


def metrics_route(view: View) -> Routes:
    """What Prometheus scrapes."""
    router = Routes(tags=["views"])
    exposition = Exposition(view.metrics)

    @router.get("/metrics", summary="Prometheus metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        content, content_type = await exposition.answer(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": content_type})

    return router


class Handoff(Response):
    """Leaves the request to the hot route of the same path."""

    def __init__(self, hot: PostEndpoint, path: str) -> None:
        super().__init__()
        self._hot = hot
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See `Response`."""
        await self._hot.serve(self._path, scope, receive, send)


def query_routes(hot: HotRoutes) -> Routes:
    """The hot routes. Their requests come here only under a prefix, where the app is mounted."""
    router = Routes(tags=["queries"])

    @router.post(
        "/query",
        summary="Which instance holds the longest prefix of a prompt, by its tokens",
        openapi_extra=openapi.query_operation(models.QueryRequest, openapi.QUERY_EXAMPLE),
    )
    async def query() -> Response:
        return Handoff(hot, "/query")

    @router.post(
        "/query_by_hash",
        summary="Which instance holds the longest prefix of a prompt, by its blocks' hashes",
        openapi_extra=openapi.query_operation(models.HashQueryRequest, openapi.HASH_QUERY_EXAMPLE),
    )
    async def query_by_hash() -> Response:
        return Handoff(hot, "/query_by_hash")

    return router
