"""The kernel's listener with so many threads, over a table that this process fills itself:
`python -m lab.benchmarks.index.listener_process THREADS CHAIN_BLOCKS CHAINS`.

It prints its port, and serves until standard input ends. Nothing else runs in it: no bridge, no
fold, no HTTP server.
"""

import socket
import sys
import time
from collections.abc import Callable
from typing import Final, cast

from prometheus_client import CollectorRegistry

from lab.benchmarks.embedded.http_client import INSTANCES
from lab.benchmarks.index.blocks import chains, encoded_calls, stored_events, stream_of
from lab.benchmarks.sizes import SEED
from query_api.http.metrics import HttpMetrics
from query_api.http.plain_listener import PlainAnswers
from query_api.http.requests.bodies import Bodies
from query_api.ports import View
from schemas.answer_states import AnswerState, Verdict
from schemas.identities import PrefixScope
from streams.kernel import Kernel, open_kernel

EVENT_BLOCKS: Final = 64
CONNECTIONS: Final = 1024
DESCRIPTOR_MAX: Final = 4096
HOLDS_S: Final = 3600.0


class _StillView:
    """What a listener asks of a table that does not change."""

    ready: Final = True

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def verdict(self, scope: PrefixScope) -> Verdict:
        """All is known."""
        return Verdict(AnswerState.EXACT, time.monotonic() + HOLDS_S)

    def notify(self, changed: Callable[[], None]) -> None:
        """Nothing changes."""


def filled(chain_blocks: int, count: int) -> Kernel:
    """An index in which INSTANCES hold so many prompts."""
    kernel = open_kernel(1337, name="rust")
    for number in range(INSTANCES):
        publisher = kernel.open_publisher(stream_of(f"i{number}"), 0)
        for chain in chains(count * chain_blocks, SEED, chain_blocks):
            for call in encoded_calls(stored_events(chain, EVENT_BLOCKS), EVENT_BLOCKS):
                kernel.apply(publisher, call, -1)
            kernel.take_changes()
    kernel.note_position(0, 1)  # answers name one; without it nothing is answered
    return kernel


def main(threads: str, chain_blocks: str, count: str) -> None:
    view = _StillView(filled(int(chain_blocks), int(count)))
    metrics = HttpMetrics(CollectorRegistry(), Bodies())
    listening = socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS)
    port = listening.getsockname()[1]
    listener = PlainAnswers(cast(View, view), metrics).listen(
        listening.detach(),
        connections_max=CONNECTIONS,
        descriptor_max=DESCRIPTOR_MAX,
        threads=int(threads),
    )
    print(port, flush=True)
    sys.stdin.read()
    listener.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
