"""What one publisher's flood costs another one of the same partition: `embedded.fairness`, until a
replica shows the neighbour's events.

The flood is written to the log as fast as the bridge can, which is faster than a worker folds and
writes rows. So what is measured is the log's order, too: whatever of the flood was there before.
"""

from typing import Final

from lab.benchmarks.distributed.cluster import Cluster, Role
from lab.benchmarks.distributed.pipeline import start_roles
from lab.benchmarks.embedded.fairness import (
    ALONE_S,
    Flood,
    added,
    figures_of,
    floods,
    watch,
    watch_beside,
)
from lab.benchmarks.embedded.publisher import Publisher
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import KernelName, Sizes

PARTITIONS: Final = 1


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    alone_ms = 0.0
    with Cluster(kernel) as cluster:
        for name, flood in floods(sizes).items():
            if flood is not None and flood.plan.pattern != "stored":
                continue
            cluster.deploy(partitions=PARTITIONS)
            roles = start_roles(cluster)
            passes = [run_once(roles["replica"], flood)]
            figures += figures_of(name, passes)
            if flood is None:
                alone_ms = figures[-1].value
            else:
                figures.append(added(name, passes, alone_ms))
    return figures


def run_once(replica: Role, flood: Flood | None) -> list[float]:
    """As `embedded.fairness.run_once`, in one partition."""
    if flood is None:
        return watch(replica, seconds=ALONE_S)
    with Publisher(flood.plan) as publisher:
        publisher.connect(replica)
        return watch_beside(replica, publisher, flood)
