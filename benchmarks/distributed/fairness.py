"""What one publisher's flood costs another one of the same partition: `embedded.fairness`, until a
replica shows the neighbour's events.

The flood is written to the log as fast as the bridge can, which is faster than a worker folds and
writes rows. So what is measured is the log's order, too: whatever of the flood was there before.
"""

import threading

from benchmarks.distributed.cluster import Cluster, Role
from benchmarks.distributed.pipeline import start_roles
from benchmarks.embedded.fairness import FLOOD, Flood, figures_of, floods, watch
from benchmarks.embedded.publisher import Publisher
from benchmarks.embedded.publisher_process import Sent
from benchmarks.embedded.service import until
from benchmarks.report.figures import Figure
from benchmarks.sizes import KernelName, Sizes

PARTITIONS = 1
POLL_S = 0.05


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    with Cluster(kernel) as cluster:
        for name, flood in floods(sizes).items():
            if flood is not None and flood.plan.pattern != "stored":
                continue
            cluster.deploy(partitions=PARTITIONS)
            roles = start_roles(cluster)
            figures += figures_of(name, [run_once(roles["replica"], flood)])
    return figures


def run_once(replica: Role, flood: Flood | None) -> list[float]:
    """As `embedded.fairness.run_once`, in one partition."""
    if flood is None:
        return watch(replica, seconds=2.0)
    with Publisher(flood.plan) as publisher:
        publisher.connect(replica)
        sent: list[Sent] = []
        sending = threading.Thread(target=lambda: sent.append(publisher.send()), daemon=True)
        waits_ms = watch(replica, seconds=flood.seconds, then=sending)
        sending.join()
        until(lambda: replica.sequences()[FLOOD] >= sent[0].last_sequence, poll_s=POLL_S)
        return waits_ms
