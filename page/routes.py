"""`GET /ui` and its files, and what only the page asks for."""

from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from page.events import EventProducer, event_routes
from page.fleet import InstancesDocument
from page.heatmap import HeatmapDocument, heatmap_document
from page.summary import SummarySource
from query_api.http import openapi
from query_api.http.caller import access_of
from query_api.http.errors import NOT_FOUND
from query_api.http.feature import Feature, HttpParts, MakeFeature
from query_api.http.route_table import Routes
from query_api.http.routes import BOTH_WIRES, LargeAnswers, respond
from query_api.http.wire import Wire, encode, reply_wire
from routing.decisions.router import Router
from schemas.limits import RECENT_DECISIONS_MAX

_KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_HEADERS: Final = {
    # Nothing from elsewhere, nothing inline, and nobody's frame.
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none';"
    " form-action 'none'; object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def page_files() -> dict[str, bytes]:
    """The files of the page by name, as the package has them."""
    found = files("page") / "static"
    return {
        one.name: one.read_bytes()
        for one in found.iterdir()
        if "." + one.name.rpartition(".")[2] in _KINDS
    }


def page_feature(router: Router | None) -> MakeFeature:
    """What the page adds to the HTTP service; `router` knows the last decisions."""

    def make(parts: HttpParts) -> Feature:
        source = SummarySource(parts.view, parts.metrics, router, parts.version)
        producer = EventProducer(source)
        parts.view.metrics.register(producer)
        routes = event_routes(producer)
        routes.include(_page_routes(source, router, parts.default_wire))
        return Feature(routes, streams=(producer,))

    return make


def _page_routes(source: SummarySource, router: Router | None, default_wire: Wire) -> Routes:
    """The page; `source` has its instances, `router` knows the last decisions."""
    routes = Routes(tags=["page"])
    large = LargeAnswers()
    kept = page_files()

    @routes.get("/", include_in_schema=False)
    async def home() -> Response:
        return Response(status_code=307, headers={"location": "ui"})

    @routes.get("/ui", include_in_schema=False)
    async def page() -> Response:
        return _file("index.html")

    @routes.get("/ui/", include_in_schema=False)
    async def as_a_folder() -> Response:
        return Response(status_code=308, headers={"location": "../ui"})

    @routes.get(
        "/ui/heatmap",
        summary="Which instance had how much of the last prompts, by depth",
        openapi_extra=openapi.operation(HeatmapDocument, *BOTH_WIRES),
    )
    async def heatmap(request: Request) -> Response:
        wire = reply_wire(request.headers.raw, default_wire)
        admits = access_of(request).admits
        found = [] if router is None else router.live.recent(RECENT_DECISIONS_MAX, admits)
        return await large.make(lambda: respond(heatmap_document(found), wire))

    @routes.get(
        "/ui/instances",
        summary="Every instance on a line: how far it can be trusted, what it holds, carries, lost",
        openapi_extra=openapi.operation(InstancesDocument, *BOTH_WIRES),
    )
    async def instances(request: Request) -> Response:
        wire = reply_wire(request.headers.raw, default_wire)
        admits = access_of(request).admits

        def answer() -> Response:
            found = [one for one in source.rows() if admits(one.tenant_id)]
            return respond(InstancesDocument(count=len(found), instances=found), wire)

        return await large.make(answer)

    @routes.get("/ui/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        return _file(name)

    def _file(name: str) -> Response:
        content = kept.get(name)
        if content is None:
            body = encode(NOT_FOUND, Wire.JSON)
            return Response(body, status_code=404, media_type=Wire.JSON.value)
        kind = _KINDS["." + name.rpartition(".")[2]]
        return Response(content, media_type=kind, headers=_HEADERS)

    return routes
