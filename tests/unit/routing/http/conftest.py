import os

import pytest

from gateway.gateway import Gateway
from gateway.settings import GatewaySettings
from query_api.access.guard import Guard
from reprise.application import create_app
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.router import Router, RouterSettings
from schemas.tracing import NO_TRACER, Tracer
from tests.fakes import AsgiClient, FakeTable


class Clock:
    """Unix seconds, as a test sets them."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _random_bytes(size: int) -> bytes:
    """By chance, but for those of the run, which then is 1,000,000,000: ties go by it."""
    return (0xACA00).to_bytes(4, "big") if size == 4 else os.urandom(size)


class Service:
    """An app that routes over a table, and what it has written."""

    def __init__(
        self,
        table: FakeTable,
        *,
        select_service: bool = False,
        settings: RouterSettings | None = None,
        guard: Guard | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self.table = table
        self.clock = Clock()
        self.queue = RoutingQueue()
        self.live = LiveLoad()
        self.folded = self.live.folded
        self.router = Router(
            table,
            self.queue,
            self.live,
            settings or RouterSettings(),
            clock=self.clock,
            monotonic=self.clock,
            random_bytes=_random_bytes,
        )
        self.client = AsgiClient(
            create_app(
                table,
                table,
                router=self.router,
                select_service=select_service,
                guard=guard,
                tracer=tracer,
                gateway=Gateway(GatewaySettings(), table, table, self.router),
            )
        )
        self._offset = 0

    def write(self) -> None:
        """What was decided and reported is in the log, and folded."""
        for record in self.queue.take(self.clock.now):
            self.live.follow(self._offset, record, self.clock.now)
            self._offset += 1


@pytest.fixture
def service(table: FakeTable) -> Service:
    return Service(table)
