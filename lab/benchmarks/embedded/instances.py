"""What each registered instance costs: a query that nobody holds, whose answer lists all of them
with zeros, and without it (`hits_only`); and the service that has nothing to do.

The publishers are registered and away: nobody listens at their addresses.
"""

import time
from typing import Final

import msgspec

from lab.benchmarks.embedded.query import Client, Server, post_of
from lab.benchmarks.embedded.service import MODEL, Service, until
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import BLOCK_SIZE, KernelName, Sizes

COUNTS: Final = (8, 256, 1024)
TOKENS: Final = 1024
REQUESTS: Final = 4000
IDLE_S: Final = 10.0
SETTLE_S: Final = 5.0
AWAY: Final = "tcp://127.0.0.1:{port}"  # from 1 on: ports that nobody without privileges has


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    full: dict[int, list[float]] = {}
    hits: dict[int, list[float]] = {}
    for count in COUNTS:
        with Service(kernel) as service:
            register_away(service, count)
            server = Server(service.address, service.pid)
            wait_until_listed(server, count)
            time.sleep(SETTLE_S)
            before = service.cpu_s()
            time.sleep(IDLE_S)
            idle = 100 * (service.cpu_s() - before) / IDLE_S
            for option, found in ((b"", full), (b"?hits_only=1", hits)):
                requests = [_request(option)] * REQUESTS
                found[count] = [server.busy(requests) for _ in range(sizes.runs)]
        name = f"{count} instances away"
        figures += [
            Figure(
                name=f"{name}: CPU of a 1K query that nobody holds", unit="us", runs=full[count]
            ),
            Figure(name=f"{name}: CPU of it with hits_only", unit="us", runs=hits[count]),
            Figure(name=f"{name}: CPU with nothing to do", unit="% of a core", runs=[idle]),
        ]
    least = COUNTS[0]
    for count in COUNTS[1:]:
        name = f"{count} instances, times the CPU of {least}"
        figures += [
            Figure(name=name, unit="x", runs=_ratios(full[count], full[least])),
            Figure(
                name=f"{name}, with hits_only",
                unit="x",
                runs=_ratios(hits[count], hits[least]),
            ),
        ]
    return figures


def _ratios(these: list[float], those: list[float]) -> list[float]:
    return [one / other for one, other in zip(these, those, strict=True)]


def register_away(service: Service, count: int) -> None:
    """Registers so many publishers that nobody listens for."""
    client = Client(service.address)
    try:
        for number in range(count):
            fields = {
                "endpoint": AWAY.format(port=number + 1),
                "type": "vLLM",
                "modelname": MODEL,
                "instance_id": f"instance-{number}",
                "block_size": BLOCK_SIZE,
                "dp_rank": 0,
            }
            client.send(post_of(b"/register", msgspec.json.encode(fields)))
            client.receive()
    finally:
        client.close()


def wait_until_listed(server: Server, count: int) -> None:
    """Until queries list them all."""
    until(lambda: len(_listed(server)) == count, poll_s=0.1)


def _listed(server: Server) -> dict[str, object]:
    return msgspec.json.decode(server.ask(_request(b"")))["default"]  # type: ignore[no-any-return]


def _request(option: bytes) -> bytes:
    fields = {"model": MODEL, "block_size": BLOCK_SIZE, "token_ids": list(range(TOKENS))}
    return post_of(b"/query" + option, msgspec.json.encode(fields))
