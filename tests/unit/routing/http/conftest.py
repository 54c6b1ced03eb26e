import os

import pytest

from gateway.gateway import Gateway
from gateway.settings import GatewaySettings
from query_api.access.guard import Guard
from reprise.application import create_app
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.router import Router
from routing.decisions.router_settings import RouterSettings
from schemas.tracing import NO_TRACER, Tracer
from streams.kernel import native_available
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
        shares_kernel: bool = False,
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
            settings or RouterSettings(select_service=select_service),
            clock=self.clock,
            monotonic=self.clock,
            random_bytes=_random_bytes,
        )
        self.client = AsgiClient(
            create_app(
                table,
                table,
                router=self.router,
                guard=guard,
                tracer=tracer,
                gateway=Gateway(GatewaySettings(), table, table, self.router),
            )
        )
        self._offset = 0
        if shares_kernel:
            table.kernel.note_position(*table.at[0])
            assert self.router.share_with_kernel() is not None

    def write(self) -> None:
        """What was decided and reported is in the log, and folded."""
        for record in self.queue.take(self.clock.now):
            self.live.follow(self._offset, record, self.clock.now)
            self._offset += 1


@pytest.fixture(params=["python", "kernel"])
def service(table: FakeTable, request: pytest.FixtureRequest) -> Service:
    """By who decides what is plain."""
    shares_kernel = request.param == "kernel"
    if shares_kernel and not native_available():
        pytest.skip("the Rust kernel is not built")
    return Service(table, shares_kernel=shares_kernel)
