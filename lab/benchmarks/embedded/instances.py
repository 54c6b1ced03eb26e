"""What each registered instance costs: a query that nobody holds, whose answer lists all of them
with zeros, and without it (`hits_only`); and the service that has nothing to do.

The publishers are registered and away: nobody listens at their addresses.
"""

import time
from typing import Final

import msgspec

from lab.benchmarks.embedded.http_client import Server, post_of
from lab.benchmarks.embedded.service import MODEL, Service, until
from lab.benchmarks.report.figures import Figure, times
from lab.benchmarks.sizes import BLOCK_SIZE, Sizes

COUNTS: Final = (8, 256, 1024)
TOKENS: Final = 1024
REQUESTS: Final = 4000
IDLE_S: Final = 10.0
SETTLE_S: Final = 5.0
AWAY: Final = "tcp://127.0.0.1:{port}"  # from 1 on: ports that nobody without privileges has


def measure(sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    full: dict[int, list[float]] = {}
    hits: dict[int, list[float]] = {}
    for count in COUNTS:
        with Service() as service:
            register_away(service, count)
            server = Server(service.address, service.pid)
            wait_until_listed(server, count)
            time.sleep(SETTLE_S)
            if count == COUNTS[-1]:
                figures.append(_idle(service, count))
            for option, found in ((b"", full), (b"?hits_only=1", hits)):
                requests = [_request(option)] * REQUESTS
                found[count] = [server.busy(requests) for _ in range(sizes.runs)]
        name = f"{count} instances away"
        figures += [
            Figure(
                name=f"{name}: CPU of a 1K query that nobody holds", unit="us", runs=full[count]
            ),
            Figure(name=f"{name}: CPU of it with hits_only", unit="us", runs=hits[count]),
        ]
    least = COUNTS[0]
    for count in COUNTS[1:]:
        name = f"{count} instances, times the CPU of {least}"
        figures += [
            times(name, full[count], full[least]),
            times(f"{name}, with hits_only", hits[count], hits[least]),
        ]
    return figures


def _idle(service: Service, count: int) -> Figure:
    """What the service takes while nothing is asked."""
    before = service.cpu_s()
    time.sleep(IDLE_S)
    share = 100 * (service.cpu_s() - before) / IDLE_S
    name = f"{count} instances away: CPU with nothing to do"
    return Figure(name=name, unit="% of a core", runs=[share])


def register_away(service: Service, count: int) -> None:
    """Registers so many publishers that nobody listens for."""
    for number in range(count):
        service.register(AWAY.format(port=number + 1), f"instance-{number}")


def wait_until_listed(server: Server, count: int) -> None:
    """Until queries list them all."""
    until(lambda: len(_listed(server)) == count, poll_s=0.1)


def _listed(server: Server) -> dict[str, object]:
    return msgspec.json.decode(server.ask(_request(b"")))["default"]  # type: ignore[no-any-return]


def _request(option: bytes) -> bytes:
    fields = {"model": MODEL, "block_size": BLOCK_SIZE, "token_ids": list(range(TOKENS))}
    return post_of(b"/query" + option, msgspec.json.encode(fields))
