"""The HTTP application of a role: the service's own routes, and those of the rooms beside it."""

from typing import Any

from starlette.types import ASGIApp

from doctor.routes import doctor_feature
from lmcache_adapter.feature import lmcache_feature
from lmcache_adapter.http.workers import WorkerSource
from lmcache_adapter.ports import WorkerCommands
from page.routes import page_feature
from query_api.http import app
from query_api.http.feature import MakeFeature
from query_api.ports import PublisherRegistry, View
from routing.advice.advised import Acting
from routing.decisions.router import Router
from routing.feature import routing_feature


def create_app(
    view: View,
    registry: PublisherRegistry,
    *,
    router: Router | None = None,
    acting: Acting | None = None,
    select_service: bool = False,
    workers: WorkerSource | None = None,
    commands: WorkerCommands | None = None,
    **options: Any,
) -> ASGIApp:
    """The application of one table and one set of publishers, with what all rooms add.

    Args:
        view: what is answered from.
        registry: what registrations change.
        router: decides who gets a request; None: there are no routes for that.
        acting: see `routing_feature`.
        select_service: see there.
        workers: see `lmcache_feature`.
        commands: see there.
        options: of `query_api.http.app.create_app`.
    """
    features: list[MakeFeature] = []
    if router is not None:
        features.append(routing_feature(router, acting=acting, select_service=select_service))
    features.append(doctor_feature(router))
    features.append(lmcache_feature(workers, commands))
    features.append(page_feature(router))
    return app.create_app(view, registry, features, **options)
