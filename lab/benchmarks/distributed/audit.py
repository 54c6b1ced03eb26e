"""What `--audit 1` costs `POST /query` of a replica: two replicas of the same tables, one of which
keeps every answer in Kafka, asked in turns as in `lab.benchmarks.embedded.audit`.

CPU is that of all threads of the replica, the one that writes to Kafka included; what the broker
takes is not in it.
"""

from typing import Final

from lab.benchmarks.distributed.cluster import Cluster
from lab.benchmarks.embedded.audit import TOKENS_MAX, compared, counts_of
from lab.benchmarks.embedded.http_client import INSTANCES, Server, plan_of, prompts_of
from lab.benchmarks.embedded.publishers import Publishers
from lab.benchmarks.embedded.service import POLL_S, until
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import Sizes

PARTITIONS: Final = 4


def measure(sizes: Sizes) -> list[Figure]:
    plan = plan_of(TOKENS_MAX, sizes.query_bodies)
    with Cluster() as cluster:
        cluster.deploy(partitions=PARTITIONS)
        plain = cluster.start_all()["replica"]
        audited = cluster.start("serve", "--set", "audit.rate=1")
        until(audited.is_ready, poll_s=POLL_S)
        with Publishers(plan, publishers=INSTANCES) as publishers:
            publishers.connect(plain)
            last = publishers.send().last_sequence
            for replica in (plain, audited):
                replica.wait_folded(last, *publishers.instances)
        servers = [Server(replica.address, replica.pid) for replica in (plain, audited)]
        return compared(servers, prompts_of(plan), sizes) + counts_of(audited.metrics())
