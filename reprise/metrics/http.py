"""The connections of an HTTP server; requests that were answered are the app's to count."""

from typing import TYPE_CHECKING, Final

from schemas.metric_family import Family, by_label, counters, gauge

if TYPE_CHECKING:
    from reprise.http.connections import Connections

HTTP: Final["tuple[Family[Connections], ...]"] = (
    gauge(
        "reprise_http_connections",
        "Connections of HTTP clients that are open.",
        len,
    ),
    gauge(
        "reprise_http_max_connections",
        "Connections of HTTP clients that may be open; beyond, an idle connection is closed first.",
        lambda connections: connections.bound,
    ),
    counters(
        "reprise_http_refused",
        "HTTP requests and connections that were refused or ended for a bound, by reason.",
        ("reason",),
        lambda connections: by_label(connections.refused),
    ),
)
