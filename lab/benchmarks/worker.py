"""One measurement in a process of its own: `python -m lab.benchmarks.worker NAME KERNEL [quick]`.

Prints its figures as one JSON line.
"""

import signal
import sys
from importlib import import_module
from types import FrameType
from typing import Final

import msgspec

from devtools.dynamo import interpreter
from lab.benchmarks.peers.network import enter_own_network
from lab.benchmarks.sizes import KERNELS, sizes_of

MODULES: Final = {
    "ingest": "embedded.ingest",
    "query": "embedded.query",
    "peers": "peers.queries",
    "beside": "peers.beside",
    "removing": "peers.removing",
    "cores": "index.cores",
    "memory": "index.memory",
    "peers-memory": "peers.memory",
    "growth": "index.growth",
    "tree": "peers.guesses",
    "audit": "embedded.audit",
    "instances": "embedded.instances",
    "route": "embedded.route",
    "gateway": "embedded.gateway",
    "recovery": "embedded.recovery",
    "replay": "embedded.replay",
    "fairness": "embedded.fairness",
    "large": "embedded.large",
    "as-of": "embedded.as_of",
    "simulate": "index.simulate",
    "tracing": "index.tracing",
    "text": "index.text",
    "conversations": "embedded.conversations",
    "short-prompts": "embedded.short_prompts",
    "routers": "gateways.simulated",
    "policies": "embedded.policies",
    "pipeline": "distributed.pipeline",
    "latency": "distributed.latency",
    "cold": "distributed.cold",
    "table-topic": "distributed.table_topic",
    "audit-replica": "distributed.audit",
    "partition": "distributed.fairness",
    "kernel": "index.kernels",
    "stages": "embedded.stages",
}
"""Where each measurement is, of which one imports no other's needs. In the order in which they are
made: what has aims comes before what explains it.
"""

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
    measure = import_module(f"lab.benchmarks.{MODULES[name]}").measure
    figures = measure(kernel, sizes_of(kernel, quick="quick" in options))
    print(msgspec.json.encode(figures).decode(), flush=True)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main(*sys.argv[1:])
