"""A server of Conductor's RPC over the whole application of a table."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from query_api.access.rights import OPEN, Access
from query_api.rpc.conductor import Conductor
from query_api.rpc.counts import RpcCounts
from query_api.rpc.in_process import InProcess
from query_api.rpc.server import RpcServer
from reprise.application import create_app
from reprise.http.listening import bind
from tests.conductor_rpc import WAIT_S, RpcClient
from tests.fakes import FakeTable


async def _turns() -> None:
    """What was accepted at the last moment begins, and ends, within a few of the loop's turns."""
    for _ in range(10):
        await asyncio.sleep(0)


class Served:
    """A server on a loop of its own, as threads of a test see it."""

    def __init__(self, table: FakeTable, access: Access = OPEN, **options: Any) -> None:
        listening = bind("127.0.0.1", 0)
        self.address = f"127.0.0.1:{listening.getsockname()[1]}"
        self.counts = RpcCounts()
        self.now = 0.0
        app = InProcess(create_app(table, table, **options), access)
        conductor = Conductor(app, table, monotonic=lambda: self.now)
        self._server = RpcServer(listening, conductor, self.counts)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self._run(self._server.open())

    def _run(self, step: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(step, self.loop).result(WAIT_S)

    def close(self, *, is_forced: Callable[[], bool] = lambda: False) -> None:
        self._run(self._server.close(is_forced=is_forced))

    def end(self) -> None:
        self.close()
        self._run(_turns())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_S)
        self.loop.close()


@contextmanager
def serving(table: FakeTable, access: Access = OPEN, **options: Any) -> Iterator[Served]:
    served = Served(table, access, **options)
    try:
        yield served
    finally:
        served.end()


@pytest.fixture
def served(table: FakeTable) -> Iterator[Served]:
    with serving(table) as one:
        yield one


@pytest.fixture
def client(served: Served) -> Iterator[RpcClient]:
    with RpcClient(served.address) as one:
        yield one
