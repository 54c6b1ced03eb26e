"""The handle of `publishers_process`."""

from typing import Protocol, Self

from lab.benchmarks.embedded.publishers_process import Addresses, PublishersJob, SentPhase
from lab.benchmarks.job_process import JobProcess
from lab.traffic.event_load import LoadPlan


class Follower(Protocol):
    """Who can be told to follow a publisher."""

    def register(self, endpoint: str, instance_id: str, replay_endpoint: str = "") -> None:
        """As the instance of that name."""


class Publishers(JobProcess):
    """Publishers in a process that ends with the block."""

    module = "lab.benchmarks.embedded.publishers_process"

    def __init__(self, plan: LoadPlan, *, name: str = "i", first: int = 0, **job: object) -> None:
        """Args:
        plan: of each.
        name: what the instances' names begin with; their numbers begin with `first`.
        job: further fields of the `PublishersJob`.
        """
        self._job = PublishersJob(plan=plan, **job)  # type: ignore[arg-type]
        super().__init__(self._job)
        numbers = range(first, first + self._job.publishers)
        self.instances = [f"{name}{number}" for number in numbers]

    def __enter__(self) -> Self:
        super().__enter__()
        self._addresses = self.hear(Addresses)
        return self

    def connect(self, *followers: Follower) -> None:
        """Has each of them follow every publisher; returns once all do."""
        self.hear(str)
        where = zip(self._addresses.endpoints, self.instances, self._addresses.replays, strict=True)
        for endpoint, instance, replay in where:
            for follower in followers:
                follower.register(endpoint, instance, replay)
        self.hear(str)

    def begin(self) -> None:
        """Has them send the next phase; `finish` waits for the end of it."""
        self.tell()

    def finish(self) -> SentPhase:
        """Returns when ZeroMQ has all of it."""
        return self.hear(SentPhase)

    def send(self) -> SentPhase:
        """Both."""
        self.begin()
        return self.finish()
