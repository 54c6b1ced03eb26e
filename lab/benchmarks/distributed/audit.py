"""What `--audit 1` costs `POST /query` of a replica: two replicas of the same tables, one of which
keeps every answer in Kafka, asked in turns as in `lab.benchmarks.embedded.query`.

CPU is that of all threads of the replica, the one that writes to Kafka included; what the broker
takes is not in it.
"""

from typing import Final

from lab.benchmarks.distributed.cluster import Cluster, Role
from lab.benchmarks.distributed.pipeline import POLL_S, start_roles
from lab.benchmarks.embedded.audit import compared, counts_of
from lab.benchmarks.embedded.publisher import Publisher
from lab.benchmarks.embedded.query import INSTANCES, Server, plan_of, prompts_of
from lab.benchmarks.embedded.service import until
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import KernelName, Sizes

PARTITIONS: Final = 4


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    plan = plan_of(sizes)
    prompts = prompts_of(plan)
    with Cluster(kernel) as cluster:
        cluster.deploy(partitions=PARTITIONS)
        plain = start_roles(cluster)["replica"]
        audited = cluster.start("serve", "--set", "audit.rate=1")
        until(audited.is_ready, poll_s=POLL_S)
        with Publisher(plan, publishers=INSTANCES) as publisher:
            publisher.connect(plain)
            last = publisher.send().last_sequence
            for replica in (plain, audited):
                _wait(replica, last)
        servers = [Server(replica.address, replica.pid) for replica in (plain, audited)]
        return compared(servers, prompts, kernel, sizes) + counts_of(audited.metrics())


def _wait(replica: Role, sequence: int) -> None:
    def visible() -> bool:
        known = replica.sequences().values()
        return len(known) == INSTANCES and min(known) >= sequence

    until(visible, poll_s=POLL_S)
