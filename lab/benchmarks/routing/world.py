"""A fresh service and fresh engines, each a process of its own, from the start to the end."""

from collections.abc import Sequence
from typing import Final, Self

from lab.benchmarks.embedded.service import Service, until
from lab.benchmarks.sizes import BLOCK_SIZE
from lab.engines.cache import CacheSizes
from lab.engines.engine import EngineOptions, EngineReady
from lab.engines.process import EngineProcess, stop_engines
from lab.traffic.http_json import JsonConnection
from lab.traffic.index_client import IndexClient
from routing.costs import Costs

MODEL: Final = "bench"
SIZES: Final = CacheSizes(block_size=BLOCK_SIZE, gpu_blocks=1_500, cpu_blocks=6_000)
"""Of each engine; all of them hold each conversation two or three times."""

_CLASS: Final = {"class": "simulated"}


class World:
    """A service that follows as many engines as there are costs.

    Attributes:
        service, engines: where they are.
    """

    def __init__(
        self,
        costs: Sequence[Costs],
        *options: str,
        sizes: CacheSizes = SIZES,
        alike: bool = True,
        named: bool = False,
    ) -> None:
        """Args:
        costs: of each engine.
        options: of the service's command line.
        sizes: of each engine's cache.
        alike: whether the service is told that all engines are of one class.
        named: whether it is told where their requests go.
        """
        self.service = Service(*options)
        self.engines: list[EngineReady] = []
        self.sizes = sizes
        self.costs = costs
        self._alike = alike
        self._named = named
        self._processes: list[EngineProcess] = []

    def __enter__(self) -> Self:
        try:
            for number, costs in enumerate(self.costs):
                options = EngineOptions(
                    instance_id=f"engine-{number}", model=MODEL, sizes=self.sizes, costs=costs
                )
                self._processes.append(EngineProcess(options))
            self.service.start()
            self.engines = [process.await_ready() for process in self._processes]
            self._register()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        stop_engines(self._processes)
        self.service.__exit__()

    @property
    def url(self) -> str:
        """Of the service."""
        host, port = self.service.address
        return f"http://{host}:{port}"

    def _register(self) -> None:
        """And waits until all are followed: whom no link leads to is not routed to."""
        client, connection = IndexClient(self.url), JsonConnection(self.url)
        try:
            for engine in self.engines:
                for body in client.registrations(engine):
                    body["labels"] = _CLASS if self._alike else {}
                    if self._named:
                        body["http_endpoint"] = f"http://{engine.http_host}:{engine.http_port}"
                    answer = connection.request("POST", "/register", body)
                    if answer.status != 200:
                        raise RuntimeError(f"Expected a registration, got: {answer.body.decode()}")
            # By what answers decisions: a dry one, which nothing is booked for.
            until(lambda: self._all_followed(connection), poll_s=0.1)
        finally:
            client.close()
            connection.close()

    def _all_followed(self, connection: JsonConnection) -> bool:
        body = {
            "model": MODEL,
            "block_size": BLOCK_SIZE,
            "token_ids": list(range(BLOCK_SIZE)),
            "reserve": False,
            "explain": True,
        }
        answer = connection.request("POST", "/route", body)
        return answer.status == 200 and answer.body.count(b'"eligible":true') == len(self.engines)
