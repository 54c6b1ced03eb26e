"""What the room of LMCache adds to the HTTP service."""

from lmcache_adapter.http.command_routes import command_routes
from lmcache_adapter.http.routes import lmcache_routes
from lmcache_adapter.http.workers import WorkerSource
from lmcache_adapter.ports import WorkerCommands
from query_api.http.feature import Feature, HttpParts, MakeFeature


def lmcache_feature(
    workers: WorkerSource | None = None, commands: WorkerCommands | None = None
) -> MakeFeature:
    """Its routes.

    Args:
        workers: knows more of LMCache's workers than the view.
        commands: has LMCache's workers execute commands; None where nobody does.
    """

    def make(parts: HttpParts) -> Feature:
        routes = lmcache_routes(parts.view, workers, parts.bodies, parts.default_wire)
        routes.include(command_routes(parts.view, commands, parts.bodies, parts.default_wire))
        return Feature(routes)

    return make
