"""The handle of `publisher_process`."""

from typing import Self

from lab.benchmarks.embedded.publisher_process import Job, SentPhase
from lab.benchmarks.embedded.service import WatchedService
from lab.benchmarks.job_process import JobProcess
from lab.traffic.event_load import LoadPlan


class Publisher(JobProcess):
    """Publishers of one stream, in a process that ends with the block.

    Attributes:
        endpoints: of each.
    """

    module = "lab.benchmarks.embedded.publisher_process"

    def __init__(
        self,
        plan: LoadPlan,
        *,
        publishers: int = 1,
        subscribers: int = 1,
        blocks_per_s: float = 0.0,
    ) -> None:
        """`blocks_per_s`: of each, stored and removed; 0 for as fast as they can."""
        super().__init__(
            Job(
                plan=plan, publishers=publishers, subscribers=subscribers, blocks_per_s=blocks_per_s
            )
        )
        self.endpoints: list[str] = []

    def __enter__(self) -> Self:
        super().__enter__()
        self.endpoints = self.hear(list[str])
        return self

    def connect(self, service: WatchedService, *, first: int = 0) -> None:
        """Has the service follow every publisher, as instances `i0`, `i1`... from the first number
        on; returns once it does.
        """
        self.when_encoded()
        for number, endpoint in enumerate(self.endpoints, first):
            service.register(endpoint, f"i{number}")
        self.when_subscribed()

    def when_encoded(self) -> None:
        """Returns once it waits for its subscribers."""
        self.hear(str)

    def when_subscribed(self) -> None:
        """Returns once all of them are there."""
        self.hear(str)

    def send(self) -> SentPhase:
        """Sends the next phase; returns when ZeroMQ has all of it."""
        self.tell()
        return self.hear(SentPhase)
