"""One measurement in a process of its own: `python -m benchmarks.worker NAME KERNEL [quick]`.

Prints its figures as one JSON line.
"""

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final

import msgspec

from benchmarks.distributed import audit as audit_replica
from benchmarks.distributed import codecs, cold, latency, pipeline, table_topic
from benchmarks.distributed import fairness as partition
from benchmarks.embedded import (
    as_of,
    audit,
    fairness,
    ingest,
    instances,
    large,
    policies,
    query,
    recovery,
    replay,
    route,
    stages,
)
from benchmarks.index import cores, growth, kernels, memory, simulate, tracing
from benchmarks.peers import beside, guesses, removing
from benchmarks.peers import memory as peer_memory
from benchmarks.peers import queries as peer_queries
from benchmarks.peers.network import enter_own_network
from benchmarks.report.figures import Figure
from benchmarks.sizes import KERNELS, KernelName, Sizes, sizes_of
from devtools.dynamo import interpreter

Measurement = Callable[[KernelName, Sizes], list[Figure]]

MEASUREMENTS: Final[dict[str, Measurement]] = {
    "ingest": ingest.measure,
    "stages": stages.measure,
    "query": query.measure,
    "cores": cores.measure,
    "audit": audit.measure,
    "instances": instances.measure,
    "route": route.measure,
    "policies": policies.measure,
    "fairness": fairness.measure,
    "large": large.measure,
    "as-of": as_of.measure,
    "beside": beside.measure,
    "removing": removing.measure,
    "peers": peer_queries.measure,
    "peers-memory": peer_memory.measure,
    "tree": guesses.measure,
    "memory": memory.measure,
    "recovery": recovery.measure,
    "replay": replay.measure,
    "kernel": kernels.measure,
    "growth": growth.measure,
    "simulate": simulate.measure,
    "tracing": tracing.measure,
    "codec": codecs.measure,
    "pipeline": pipeline.measure,
    "latency": latency.measure,
    "partition": partition.measure,
    "cold": cold.measure,
    "audit-replica": audit_replica.measure,
    "table-topic": table_topic.measure,
}


BESIDE_DYNAMO: Final = ("ingest", "beside", "removing", "peers", "peers-memory")
"""Those that start Dynamo's indexer, which binds all addresses. All that they do is on loopback."""


def main(name: str, kernel: str, *options: str) -> None:
    # A killed worker would leave the processes behind that it started.
    signal.signal(signal.SIGTERM, _exit)
    assert kernel in KERNELS
    if name in BESIDE_DYNAMO and interpreter():
        problem = enter_own_network()
        if problem:
            print(f"No network of its own for {name}: {problem}", file=sys.stderr)
    figures = MEASUREMENTS[name](kernel, sizes_of(kernel, quick="quick" in options))
    print(msgspec.json.encode(figures).decode(), flush=True)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main(*sys.argv[1:])
