"""The router of `docker compose --profile demo up`: engines and replicas are containers.

    python -m lab.demo.compose --replica http://serve:13333 --engine http://engine-1:8000

Engines bind every address of their container; here they are registered under the host that their
`--engine` names. The host of a `--replica` may stand for several, and is looked up again and again.
Replicas are asked in turn, and the next one when one does not answer; outcomes are reported to the
one that decided. Registrations stay when it ends: the engines run on.
"""

import argparse
import math
import signal
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypedDict, TypeVar
from urllib.parse import urlsplit

import msgspec

from lab.demo.board import Board
from lab.demo.demo import read_blocks
from lab.demo.sample import QueryCommand, Sampler, say_sample
from lab.engines.engine import EngineReady, EngineState
from lab.traffic.conversations import Conversations, Traffic
from lab.traffic.http_json import JsonConnection
from lab.traffic.index_client import (
    Candidate,
    IndexClient,
    InstanceMatch,
    OutcomeReport,
    RouteAnswer,
    ServiceError,
)
from lab.traffic.router import Router
from lab.traffic.shadows import Alternatives
from schemas.causes import cause_of

WAIT_S: Final = 120.0
DECISIONS_REMEMBERED_MAX: Final = 1_000
"""Which replica made them: more than there are requests in flight."""

READ_KEY: Final = "KEY=$(docker compose exec -T serve cat /keys/operator.key)"
"""How people read the key that the compose file has made."""

SAMPLE_AFTER_S: Final = 6.0
"""Until then engines hold little."""

RESOLVE_S: Final = 2.0
"""Between two looks at how many replicas there are."""

_RETRY_S: Final = 0.5
_SEED: Final = 1

T = TypeVar("T")


def addresses(base_url: str) -> list[str]:
    """The URL once for each address that its host stands for now; as it is where for none."""
    url = urlsplit(base_url)
    try:
        found = socket.getaddrinfo(url.hostname, url.port or 80, type=socket.SOCK_STREAM)
    except OSError:
        return [base_url]
    hosts = sorted({str(entry[4][0]) for entry in found})
    authorities = [f"[{host}]" if ":" in host else host for host in hosts]
    port = "" if url.port is None else f":{url.port}"
    return [url._replace(netloc=authority + port).geturl() for authority in authorities]


class Replicas(IndexClient):
    """Asks one replica after another; what is neither asked nor reported goes to any. For one
    thread.
    """

    def __init__(
        self,
        base_urls: Sequence[str],
        *,
        key: str = "",
        resolve: Callable[[str], list[str]] = addresses,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        base_urls: each of one replica, or of all that its host stands for.
        key: that they ask for.
        resolve: the URLs of those, at the moment.
        monotonic: seconds.
        """
        super().__init__(base_urls[0], key=key)
        self.clients: dict[str, IndexClient] = {}
        self._base_urls = base_urls
        self._key = key
        self._resolve = resolve
        self._monotonic = monotonic
        self._resolve_at = -math.inf
        self._order: list[IndexClient] = []
        self._decided: OrderedDict[str, IndexClient] = OrderedDict()

    def _look(self) -> None:
        """Takes those in that are there now, and lets those go that are not."""
        if self._monotonic() < self._resolve_at:
            return
        self._resolve_at = self._monotonic() + RESOLVE_S
        urls = [url for base_url in self._base_urls for url in self._resolve(base_url)]
        for url in [url for url in self.clients if url not in urls]:
            gone = self.clients.pop(url)
            self._order.remove(gone)
            gone.close()
        for url in urls:
            if url not in self.clients:
                self.clients[url] = IndexClient(url, key=self._key)
                self._order.append(self.clients[url])

    def query(
        self, tokens: Sequence[int], *, model: str, block_size: int
    ) -> dict[str, InstanceMatch]:
        """See `IndexClient.query`; raises what the last replica raised when none answers."""
        return self._first_answer(
            lambda client: client.query(tokens, model=model, block_size=block_size)
        )[1]

    def route(
        self,
        tokens: Sequence[int],
        *,
        model: str,
        block_size: int,
        candidates: Sequence[Candidate],
    ) -> RouteAnswer:
        """See `IndexClient.route`; raises what the last replica raised when none answers."""
        replica, answer = self._first_answer(
            lambda client: client.route(
                tokens, model=model, block_size=block_size, candidates=candidates
            )
        )
        self._decided[answer.decision_id] = replica
        if len(self._decided) > DECISIONS_REMEMBERED_MAX:
            self._decided.popitem(last=False)
        return answer

    def feedback(self, reports: Sequence[OutcomeReport]) -> None:
        """To the replica that decided, since the others may not know of it yet; to another one when
        it does not answer. Raises what the last one raised when none does.
        """
        self._look()
        by_replica: dict[IndexClient, list[OutcomeReport]] = {}
        for report in reports:
            replica = self._decided.get(report.decision_id, next(iter(self.clients.values())))
            by_replica.setdefault(replica, []).append(report)
        for replica, its_own in by_replica.items():
            try:
                replica.feedback(its_own)
            except (OSError, ServiceError):
                self._first_answer(partial(IndexClient.feedback, reports=its_own))

    def _first_answer(self, ask: Callable[[IndexClient], T]) -> tuple[IndexClient, T]:
        self._look()
        self._order.append(self._order.pop(0))
        for client in self._order[:-1]:
            try:
                return client, ask(client)
            except (OSError, ServiceError):
                continue
        return self._order[-1], ask(self._order[-1])

    def close(self) -> None:
        """Close all connections."""
        super().close()
        for client in self._order:
            client.close()


def reachable(state: EngineState, host: str) -> EngineReady:
    """Where an engine is for others: `host` in place of the addresses that it has bound."""

    def rename(endpoint: str) -> str:
        return f"tcp://{host}:{endpoint.rpartition(':')[2]}" if endpoint else ""

    replace = msgspec.structs.replace
    ranks = [
        replace(
            rank,
            endpoint=rename(rank.endpoint),
            replay_endpoint=rename(rank.replay_endpoint),
        )
        for rank in state.ready.ranks
    ]
    return replace(state.ready, http_host=host, ranks=ranks)


class ComposeDemo:
    """Waits for engines and a replica, registers, routes until stopped."""

    def __init__(
        self,
        replicas: Sequence[str],
        engines: Sequence[str],
        *,
        ask: str,
        requests_per_s: float,
        key: str = "",
        say: Callable[[str], None] = print,
    ) -> None:
        self.stop = threading.Event()
        self._index = Replicas(replicas, key=key)
        self._has_key = bool(key)
        self._engine_urls = engines
        self._ask = ask
        self._requests_per_s = requests_per_s
        self._board = Board(say)
        self._turns = Sampler(Conversations(_SEED, Traffic()))

    def run(self) -> None:
        """Route until `stop` is set.

        Raises:
            OSError: an engine or all replicas did not answer within `WAIT_S`.
            ServiceError: a replica refused the registrations.
        """
        deadline = time.monotonic() + WAIT_S
        states = [self._await(url, deadline) for url in self._engine_urls]
        engines = [
            reachable(state, urlsplit(url).hostname or "")
            for state, url in zip(states, self._engine_urls, strict=True)
        ]
        self._register(engines, deadline)
        first = states[0].options
        targets = sum(state.options.dp_ranks for state in states)
        alternatives = Alternatives(targets, first.sizes, offload=first.offload, costs=first.costs)
        router = Router(self._index, engines, alternatives=alternatives)
        sample: list[int] | None = None
        sample_at = time.monotonic() + SAMPLE_AFTER_S

        def speak(now: float) -> None:
            nonlocal sample, sample_at
            if sample is None and now >= sample_at:
                sample_at = now + _RETRY_S
                sample = self._say_curl(engines[0])
            self._board.show(now, router.stats, lambda: self._refresh(router, engines[0], sample))

        try:
            router.run(
                self._turns,
                requests_per_s=self._requests_per_s,
                stop=self.stop,
                then=speak,
            )
        finally:
            self._board.close()
            router.close()
            self._index.close()

    def _await(self, url: str, deadline: float) -> EngineState:
        """The state of an engine that may still be starting."""
        connection = JsonConnection(url)
        try:
            while True:
                try:
                    answer = connection.request("GET", "/ready")
                    return msgspec.json.decode(answer.body, type=EngineState)
                except (OSError, msgspec.MsgspecError) as error:
                    if time.monotonic() >= deadline or self.stop.wait(_RETRY_S):
                        raise OSError(f"no engine answers at {url}: {cause_of(error)}") from error
        finally:
            connection.close()

    def _register(self, engines: Sequence[EngineReady], deadline: float) -> None:
        while True:
            try:
                self._index.register(engines)
                return
            except (OSError, ServiceError):
                if time.monotonic() >= deadline or self.stop.wait(_RETRY_S):
                    raise

    def _say_curl(self, engine: EngineReady) -> list[int] | None:
        """Says a query that can be pasted, once there is one that shows something: its prompt."""
        read_key = READ_KEY if self._has_key else ""
        how = QueryCommand(self._ask, engine.model, engine.block_size, self._has_key, read_key)
        return say_sample(self._board.say, self._turns, self._index, how)

    def _refresh(self, router: Router, engine: EngineReady, sample: list[int] | None) -> None:
        """Reads what the table shows, and says how much of one prompt each replica knows."""
        read_blocks(self._index, router)
        if sample is None:
            return
        told = []
        for url, client in self._index.clients.items():
            try:
                matches = client.query(sample, **_names(engine))
                best = max((match.longest_matched for match in matches.values()), default=0)
                told.append(f"{best} tokens by {urlsplit(url).hostname}")
            except (OSError, ServiceError):
                told.append(f"no answer of {urlsplit(url).hostname}")
        self._board.say(f"\nLongest match of the prompt above: {', '.join(told)}")


class _Names(TypedDict):
    """What a query says beside its tokens."""

    model: str
    block_size: int


def _names(engine: EngineReady) -> _Names:
    return {"model": engine.model, "block_size": engine.block_size}


def main(arguments: Sequence[str]) -> int:
    """Run until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m lab.demo.compose", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--replica", action="append", required=True, help="URL; once for each")
    parser.add_argument("--engine", action="append", required=True, help="URL; once for each")
    parser.add_argument("--ask", default="http://127.0.0.1:13333", help="URL that people paste")
    parser.add_argument("--key-file", type=Path, help="file of the key that replicas ask for")
    parser.add_argument("--requests-per-s", type=float, default=20.0)
    given = parser.parse_args(arguments)
    try:
        key = given.key_file.read_text().strip() if given.key_file is not None else ""
    except OSError as error:
        sys.stderr.write(f"lab.demo.compose: {error}\n")
        return 1
    demo = ComposeDemo(
        given.replica,
        given.engine,
        ask=given.ask,
        requests_per_s=given.requests_per_s,
        key=key,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: demo.stop.set())
    try:
        demo.run()
    except (OSError, ServiceError) as error:
        if demo.stop.is_set():
            return 0
        sys.stderr.write(f"lab.demo.compose: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
