"""What one publisher's flood costs another one of the same partition: `embedded.fairness`, until a
replica shows the neighbour's events.

The replica is asked every 10 ms: an answer takes a millisecond of a process in which the rows are
read, too, and asked as often as `embedded.fairness` asks it would do little else.

The flood is written to the log as fast as the bridge can, which is faster than a worker folds and
writes rows. So what is measured is the log's order, too: whatever of the flood was there before.
"""

from typing import Final

from lab.benchmarks.distributed.cluster import Cluster
from lab.benchmarks.embedded.fairness import FLOOD, added, figures_of, floods, watch
from lab.benchmarks.embedded.marker import MARKER
from lab.benchmarks.embedded.service import until
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import Sizes

PARTITIONS: Final = 1
GONE_POLL_S: Final = 0.1
SHOWN_POLL_S: Final = 0.01


def measure(sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    alone_ms = 0.0
    with Cluster() as cluster:
        cluster.deploy(partitions=PARTITIONS)
        replica = cluster.start_all()["replica"]
        for name, flood in floods(sizes).items():
            if flood is not None and flood.plan.pattern != "stored":
                continue
            passes = [watch(replica, flood, poll_s=SHOWN_POLL_S)]
            figures += figures_of(name, passes)
            if flood is None:
                alone_ms = figures[-1].value
            else:
                figures.append(added(name, passes, alone_ms))
                replica.unregister(FLOOD)
            replica.unregister(MARKER)
            until(lambda: not replica.entries() and not replica.publishers(), poll_s=GONE_POLL_S)
    return figures
