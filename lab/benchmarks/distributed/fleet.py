"""The handle of `fleet_process`."""

from collections.abc import Callable

from lab.benchmarks.distributed.fleet_process import FleetJob, FleetSent
from lab.benchmarks.job_process import JobProcess


class Fleet(JobProcess):
    """Publishers in a process that ends with the block."""

    module = "lab.benchmarks.distributed.fleet_process"

    def __init__(self, job: FleetJob, *, name: str) -> None:
        """Args:
        name: what the instances' names begin with.
        """
        super().__init__(job)
        self.instances = [f"{name}{number}" for number in range(job.publishers)]

    def connect(self, register: Callable[[str, str], None]) -> None:
        """Registers each (endpoint, instance); returns once all of them have a subscriber."""
        for endpoint, instance in zip(self.hear(list[str]), self.instances, strict=True):
            register(endpoint, instance)
        self.hear(str)

    def begin(self) -> None:
        """Has it send everything; `finish` waits for the end of it."""
        self.tell()

    def finish(self) -> FleetSent:
        """Returns when ZeroMQ has all of it."""
        return self.hear(FleetSent)
