"""One measurement in a process of its own: `python -m lab.benchmarks.worker NAME [quick]`.

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
from lab.benchmarks.sizes import FULL, QUICK

MODULES: Final = {
    "ingest": "embedded.ingest",
    "route": "embedded.route",
    "peers": "peers.queries",
    "removing": "peers.removing",
    "pipeline": "distributed.pipeline",
    "partition": "distributed.fairness",
    "silent": "scaling.silent",
    "instances": "embedded.instances",
    "recovery": "embedded.recovery",
    "routers": "gateways.simulated",
    "gateway": "embedded.gateway",
    "beside": "peers.beside",
    "fairness": "embedded.fairness",
    "memory": "index.memory",
    "peers-memory": "peers.memory",
    "growth": "index.growth",
    "cores": "index.cores",
    "large": "embedded.large",
    "audit": "embedded.audit",
    "as-of": "embedded.as_of",
    "simulate": "index.simulate",
    "tracing": "index.tracing",
    "text": "index.text",
    "latency": "distributed.latency",
    "cold": "distributed.cold",
    "table-topic": "distributed.table_topic",
    "audit-replica": "distributed.audit",
    "conversations": "embedded.conversations",
    "policies": "embedded.policies",
}
"""Where each measurement is, of which none imports another one's extras. In the order in which they
are made: what a run that ends too soon would miss least comes last.
"""

BESIDE_DYNAMO: Final = ("ingest", "peers", "removing", "beside", "peers-memory")
"""Those that start Dynamo's indexer, which binds all addresses. All that they do is on loopback."""


def main(name: str, *options: str) -> None:
    # A killed worker would leave the processes behind that it started.
    signal.signal(signal.SIGTERM, _exit)
    if name in BESIDE_DYNAMO and interpreter():
        problem = enter_own_network()
        if problem:
            print(f"No network of its own for {name}: {problem}", file=sys.stderr)
    measure = import_module(f"lab.benchmarks.{MODULES[name]}").measure
    figures = measure(QUICK if "quick" in options else FULL)
    print(msgspec.json.encode(figures).decode(), flush=True)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main(*sys.argv[1:])
