"""What the live page shows of a service at a moment: the documents of its API, joined.

Counts rise from the start of the service on, as metrics do: a page makes rates of them. So that
nothing is counted twice, they are those of `/metrics`.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from page.fleet import FleetDocuments, InstanceRow, instance_rows
from query_api.gaps import PublisherFilter, gaps_document
from query_api.http.answers import services_document
from query_api.http.health import digest_document, health_document
from query_api.http.memory_answer import memory_document
from query_api.http.metrics import HttpMetrics
from query_api.http.models import Alive, Services, TableDigest
from query_api.ports import View, positions_text
from routing.decisions.router import Router
from routing.fold.fold import RoutingFold
from routing.http.documents import routing_document
from routing.http.views_documents import promises_document
from routing.observed.promise_totals import GroupBy
from schemas.clock import REAL_CLOCK

RECENT_PROMISES_S: Final = 60.0  # the hits of an instance are those of decisions since then


class RouteCounts(msgspec.Struct, kw_only=True):
    """Of one hot route, since the start."""

    count: Annotated[int, Meta(description="Queries that were answered.")]
    seconds: Annotated[
        list[tuple[float | None, int]],
        Meta(description="`[bound, queries that took no longer]` of each bucket; null: any."),
    ]
    tokens: Annotated[float, Meta(description="Of their prompts.")]
    hit_tokens: Annotated[int, Meta(description="Of the longest match of each.")]


class RoutingCounts(msgspec.Struct, kw_only=True):
    """Decisions and what came of them, since the start; tokens are of those that were reported."""

    decisions: int
    refused: int
    reported: int
    prompt_tokens: int
    promised_tokens: int
    actual_tokens: int
    lost_workload: int
    lost_routing: int
    lost_index: int
    under_way: int


class Summary(msgspec.Struct, kw_only=True):
    """A service at a moment. What is counted of all tenants is null for who may see some.

    Attributes:
        at: Unix seconds.
        states: how many instances are in each answer state.
    """

    at: float
    health: Alive
    instances: int
    states: dict[str, int]
    queries: dict[str, RouteCounts] | None = None
    routing: RoutingCounts | None = None
    index: dict[str, int] | None = None
    event_streams: int | None = None


class ChartSample(msgspec.Struct, kw_only=True, frozen=True):
    """What a chart's next point is made of; see `page.history`."""

    at: float
    queries: dict[str, RouteCounts] | None
    routing: RoutingCounts | None
    lag_s: float | None


class SummarySource:
    """Reads one service. `summary` and `counted` are to be called on its loop, `rows` in a thread.

    Args:
        clock: Unix seconds.
    """

    def __init__(
        self,
        view: View,
        metrics: HttpMetrics,
        router: Router | None,
        version: str,
        *,
        clock: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        self._view = view
        self._metrics = metrics
        self.router = router
        self._version = version
        self._clock = clock

    def summary(self) -> Summary:
        """Without what its instances say. Cost some 100 us."""
        return Summary(
            at=self._clock(),
            health=msgspec.convert(health_document(self._view, self._version), Alive),
            instances=0,
            states={},
            queries=self._queries(),
            routing=None if self.router is None else _routing(self.router),
            index=dict(self._view.kernel.stats()),
        )

    def counted(self) -> ChartSample:
        """What of a summary a chart needs. Cost some 100 us."""
        lag = self._view.health().lag
        return ChartSample(
            at=self._clock(),
            queries=self._queries(),
            routing=None if self.router is None else _routing(self.router),
            lag_s=None if lag is None else lag.seconds,
        )

    def _queries(self) -> dict[str, RouteCounts]:
        metrics = self._metrics
        metrics.when_collected()
        found = {}
        for route, query in metrics.routes.items():
            query.sort()
            buckets = query.seconds.buckets()
            found[route] = RouteCounts(
                count=int(buckets[-1][1]),
                seconds=[
                    (None if bound == "+Inf" else float(bound), int(count))
                    for bound, count in buckets
                ],
                tokens=query.tokens.sum,
                hit_tokens=query.hit_tokens,
            )
        return found

    def rows(self) -> list[InstanceRow]:
        """One for each instance. Cost as the documents together that it joins."""
        view, router = self._view, self.router
        position = positions_text(view.positions())
        routing = promises = None
        if router is not None:
            routing = routing_document(router)
            since = self._clock() - RECENT_PROMISES_S
            promises = router.folded.read_all(
                lambda fold: promises_document(fold.observations, GroupBy.INSTANCE, since)
            )
        return instance_rows(
            FleetDocuments(
                services=_as(services_document(view.services()), Services).services,
                table=_as(digest_document(view.kernel, position), TableDigest),
                gaps=gaps_document(view.ledgers(), position, PublisherFilter(), only_totals=True),
                routing=routing,
                promises=promises,
                segments=memory_document(view.memory(), view).segments,
            )
        )


def _as(document: object, kind: Any) -> Any:
    return msgspec.convert(document, kind)


def _routing(router: Router) -> RoutingCounts:
    """Of the fold alone: who looks each second is not to book what the kernel has decided."""

    def read(fold: RoutingFold) -> RoutingCounts:
        noted = fold.observations.totals.noted
        return RoutingCounts(
            decisions=noted.decisions,
            refused=noted.refused,
            reported=noted.reported,
            prompt_tokens=noted.prompt,
            promised_tokens=noted.promised,
            actual_tokens=noted.actual,
            lost_workload=noted.workload,
            lost_routing=noted.routing,
            lost_index=noted.index,
            under_way=len(fold.bookings),
        )

    return router.folded.read(read)
