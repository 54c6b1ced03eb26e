"""What a room adds to the HTTP service, and what it gets for that."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

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
        bodies: reads those of requests.
        metrics: counts requests.
        unknown: scopes that were asked for and are not known.
        default_wire: of requests that name none.
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


class PlainDecisions(Protocol):
    """What the plain listener decides by, in the kernel."""

    def begin(self) -> object | None:
        """A listener begins: what it is handed, of the kernel; None: it decides nothing."""
        ...


class Feature(NamedTuple):
    """What a room adds.

    Attributes:
        routes: for Starlette, and for the document.
        endpoints: hot routes, which are served in front of Starlette.
        streams: answers that never end.
        decisions: of the plain listener; None: the room has none.
    """

    routes: Routes
    endpoints: Sequence[PostEndpoint] = ()
    streams: Sequence[Streams] = ()
    decisions: PlainDecisions | None = None


MakeFeature = Callable[[HttpParts], Feature]
"""Called once, when the application is made."""
