"""The HTTP application of a role: the service's own routes, and those of the rooms beside it."""

from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from doctor.routes import doctor_feature
from page.routes import page_feature
from query_api.http import app
from query_api.http.feature import Feature, HttpParts, MakeFeature
from query_api.http.route_table import Routes
from query_api.ports import PublisherRegistry, View
from reprise import rooms
from routing.advice.advice_context import AdviceActor
from routing.decisions.router import Router
from routing.feature import routing_feature
from tokens.metrics import tokens_collector
from tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from reprise.rooms import Gateway, WorkerCommands, WorkerSource


def create_app(
    view: View,
    registry: PublisherRegistry,
    *,
    router: Router | None = None,
    tokenizer: Tokenizer | None = None,
    acting: AdviceActor | None = None,
    workers: "WorkerSource | None" = None,
    commands: "WorkerCommands | None" = None,
    gateway: "Gateway | None" = None,
    **options: Any,
) -> ASGIApp:
    """The application of one table and one set of publishers, with what all rooms add.

    Args:
        router: decides who gets a request; None: there are no routes for that.
        tokenizer: makes tokens of text; None: bodies with text are refused.
        acting: see `routing_feature`.
        workers: knows more of LMCache's workers than the view.
        commands: has LMCache's workers execute commands; None where nothing does.
        gateway: that runs beside the service; None: there is none.
        options: of `query_api.http.app.create_app`.
    """
    features: list[MakeFeature] = []
    if router is not None:
        features.append(routing_feature(router, acting=acting))
    reports = None if gateway is None else gateway.placer.cache_reports
    questions = None if tokenizer is None else tokenizer.questions
    features.append(doctor_feature(router, reports, questions))
    lmcache = rooms.lmcache()
    if lmcache is not None:
        features.append(lmcache.feature(workers, commands))
    room = rooms.gateway()
    if room is not None and gateway is not None:
        features.append(room.feature(gateway))
    features.append(page_feature(router))
    if tokenizer is not None:
        features.append(_tokens_feature(tokenizer))
    return app.create_app(view, registry, features, tokenizer=tokenizer, **options)


def _tokens_feature(tokenizer: Tokenizer) -> MakeFeature:
    """Begins and ends with the server, and has metrics; it has no routes of its own."""

    def make(parts: HttpParts) -> Feature:
        parts.view.metrics.register(tokens_collector(tokenizer))
        return Feature(Routes(), streams=(tokenizer,))

    return make
