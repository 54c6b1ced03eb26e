"""What a room adds to the HTTP service, and what it gets for that."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from query_api.http.metrics import HttpMetrics
from query_api.http.post_endpoint import PostEndpoint
from query_api.http.requests.bodies import Bodies
from query_api.http.route_table import Routes
from query_api.http.text_bodies import TextBodies
from query_api.http.wire import Wire
from query_api.ports import PublisherRegistry, View
from query_api.unknown_scopes import UnknownScopes
from schemas.tracing import Tracer


class HttpParts(NamedTuple):
    """What routes are made of.

    Attributes:
        view: what is answered from.
        registry: what registrations change.
        bodies: reads those of requests.
        metrics: counts requests.
        unknown: scopes that were asked for and are not known.
        default_wire: of requests that name none.
        tracer: makes spans of requests.
        version: of the release.
        text: makes tokens of text in bodies; None: nothing does.
    """

    view: View
    registry: PublisherRegistry
    bodies: Bodies
    metrics: HttpMetrics
    unknown: UnknownScopes
    default_wire: Wire
    tracer: Tracer
    version: str
    text: TextBodies | None = None


class Streams(Protocol):
    """Answers that never end by themselves. Both are called on the loop."""

    def begin(self) -> None:
        """The server serves."""
        ...

    def end(self) -> None:
        """The server stops: so do they."""
        ...


class Feature(NamedTuple):
    """What a room adds.

    Attributes:
        routes: for Starlette, and for the document.
        models: bodies and answers that the document names.
        endpoints: hot routes, which are served in front of Starlette.
        streams: answers that never end.
    """

    routes: Routes
    models: Sequence[type[Any]] = ()
    endpoints: Sequence[PostEndpoint] = ()
    streams: Sequence[Streams] = ()


MakeFeature = Callable[[HttpParts], Feature]
"""Called once, when the application is made."""
