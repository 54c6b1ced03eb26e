"""One simulated engine: a cache and a publisher for each rank, and HTTP.

Run it as `python -m lab.engines.engine`.

It prints one JSON line when it is ready (`EngineReady`), and ends on SIGTERM, SIGINT, or when the
process that started it is gone: at once, or after a grace time within which another may adopt it
(`lab.engines.parent_watch`).

    POST /generate  {"token_ids": [...], "answer_ids": [...], "dp_rank": n} -> Generated, at the
                    first token where prompts take time (`--costs`), at once otherwise;
                    `answer_ids` are the tokens that the "model" says; without `dp_rank` the engine
                    takes the rank that has computed least, as a load balancer without cache
                    knowledge does
    POST /v1/chat/completions, /v1/completions, /tokenize, GET /v1/models: OpenAI's API, and vLLM's
                    beside it (`lab.engines.openai`), whole or as a stream; the rank may stand in
                    `dp_rank` or in the header X-data-parallel-rank
    GET  /truth     {"instance_id": ..., "ranks": {"0": {"GPU": [hash...], "CPU": [hash...]}}}
    POST /truth     {"token_ids": [...]} -> {"ranks": {"0": {"any": n, "GPU": n, "CPU": n}}}, the
                    longest prefix held, in tokens
    POST /clear     forget everything, announce it
    POST /lose      {"batches": n}: the next n batches of each rank are not sent live
    GET  /load      {"ranks": {"0": {"running": n, "waiting": n}}}: requests, as engines count them
    POST /costs     what prompts cost that are begun from now on, where they take time
                    (`routing.costs`)
    GET  /ready     EngineState: who it is, and how far it has come
    POST /adopt, POST /stop: see `lab.engines.parent_watch`
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Final

import msgspec
import zmq

from lab.engines.cache import CacheSizes, EngineCache, Offload
from lab.engines.control import EngineServer, JsonRoute, RankRoute, RequestError
from lab.engines.openai import OpenAiAnswer, OpenAiRequest
from lab.engines.parent_watch import ParentWatch
from lab.engines.publisher import Publisher, PublisherOptions
from lab.engines.rank import EngineRank
from lab.engines.wire import CPU, GPU
from routing.costs import Costs
from schemas.causes import cause_of

DP_RANKS_MAX: Final = 64


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine is. `publisher.endpoint` is rank 0's.

    Attributes:
        owner: whose it is; who would adopt it must know the same text.
        orphan_grace_s: how long it runs on when its parent is gone.
        costs: how long prompts take to compute; None for no time. Loading from the CPU tier and
            decoding take none.
    """

    instance_id: str
    model: str = "demo"
    sizes: CacheSizes = CacheSizes()
    offload: Offload = Offload.WRITE_THROUGH
    dp_ranks: int = 1
    publisher: PublisherOptions = PublisherOptions()
    http_host: str = "127.0.0.1"
    http_port: int = 0
    owner: str = ""
    orphan_grace_s: float = 0.0
    costs: Costs | None = None


class RankReady(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank publishes."""

    dp_rank: int
    endpoint: str
    replay_endpoint: str


class EngineReady(msgspec.Struct, frozen=True, kw_only=True):
    """The line that an engine prints when it serves."""

    instance_id: str
    model: str
    block_size: int
    pid: int
    http_host: str
    http_port: int
    ranks: list[RankReady]


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /ready`.

    Attributes:
        requests: served so far.
        batches: published so far, by rank: the next one's sequence.
    """

    ready: EngineReady
    options: EngineOptions
    requests: int
    batches: list[int]


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /generate`."""

    token_ids: list[int]
    answer_ids: list[int] = []
    dp_rank: int | None = None


class GenerateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `POST /generate`; the tokens are the prompt's.

    Attributes:
        queue_s, ttft_s: from its arrival until it was begun, and until its first token; 0 where
            prompts take no time.
    """

    instance_id: str
    dp_rank: int
    cached_tokens: int
    prompt_tokens: int
    queue_s: float = 0.0
    ttft_s: float = 0.0


class TruthRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /truth`."""

    token_ids: list[int]


class LoseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /lose`."""

    batches: int


class Engine:
    """A running engine, in this process."""

    def __init__(
        self, options: EngineOptions, *, routes: Mapping[tuple[str, str], JsonRoute] | None = None
    ) -> None:
        """Bind and serve.

        Args:
            options: what it is.
            routes: to serve beside its own.

        Raises:
            ValueError: the options make no engine.
            OSError: an address is taken; `zmq.ZMQError` for those of publishers.
        """
        if not 1 <= options.dp_ranks <= DP_RANKS_MAX:
            raise ValueError(f"Expected 1 to {DP_RANKS_MAX} ranks, got: {options.dp_ranks}")
        self.options = options
        self._ranks: list[EngineRank] = []
        try:
            for dp_rank in range(options.dp_ranks):
                self._ranks.append(self._new_rank(dp_rank))
            self._server = EngineServer(
                options.http_host,
                options.http_port,
                routes={**self._routes(), **(routes or {})},
                any_port_if_taken=options.publisher.any_port_if_taken,
            )
        except (OSError, zmq.ZMQError):
            self._close_ranks()
            raise

    @property
    def ready(self) -> EngineReady:
        """Where the engine is."""
        return EngineReady(
            instance_id=self.options.instance_id,
            model=self.options.model,
            block_size=self.options.sizes.block_size,
            pid=os.getpid(),
            http_host=self.options.http_host,
            http_port=self._server.port,
            ranks=[
                RankReady(
                    dp_rank=rank.publisher.dp_rank,
                    endpoint=rank.publisher.endpoint,
                    replay_endpoint=rank.publisher.replay_endpoint,
                )
                for rank in self._ranks
            ],
        )

    @property
    def state(self) -> EngineState:
        """Who the engine is, and how far it has come."""
        return EngineState(
            ready=self.ready,
            options=self.options,
            requests=sum(rank.requests for rank in self._ranks),
            batches=[rank.publisher.published for rank in self._ranks],
        )

    def close(self) -> None:
        """Stop serving; batches that are queued are sent first."""
        self._server.close()
        self._close_ranks()

    def generate(self, request: GenerateRequest) -> GenerateAnswer:
        """Serve one request.

        Raises:
            RequestError: no such rank, or the engine is ending.
        """
        if request.dp_rank is None:
            chosen = min(range(len(self._ranks)), key=lambda n: self._ranks[n].computed_tokens)
        else:
            chosen = self._checked(request.dp_rank)
        try:
            served = self._ranks[chosen].generate(request.token_ids, request.answer_ids)
        except CancelledError:
            raise RequestError("The engine is ending") from None
        return GenerateAnswer(
            instance_id=self.options.instance_id,
            dp_rank=chosen,
            cached_tokens=served.cached_tokens,
            prompt_tokens=len(request.token_ids),
            queue_s=served.queue_s,
            ttft_s=served.ttft_s,
        )

    def answer(self, request: OpenAiRequest, dp_rank: int | None = None) -> OpenAiAnswer:
        """Serve one request of OpenAI's interface. Raises as `generate`."""
        tokens = request.tokens
        whole = f"This is {self.options.instance_id}, an engine without a model."
        text = request.said(whole)
        generated = self.generate(
            GenerateRequest(
                token_ids=tokens,
                answer_ids=list(text.encode()),
                dp_rank=request.dp_rank if dp_rank is None else dp_rank,
            )
        )
        return OpenAiAnswer(
            request=request,
            answer_id=f"cmpl-{self.options.instance_id}-{self.state.requests}",
            model=self.options.model,
            created=int(time.time()),
            text=text,
            is_whole=text == whole,
            prompt_tokens=len(tokens),
            cached_tokens=generated.cached_tokens,
        )

    def _new_rank(self, dp_rank: int) -> EngineRank:
        options = self.options
        cache = EngineCache(options.sizes, offload=options.offload)
        publisher = Publisher(options.publisher, dp_rank=dp_rank)
        return EngineRank(cache, publisher, costs=options.costs)

    def _checked(self, dp_rank: int) -> int:
        if not 0 <= dp_rank < len(self._ranks):
            raise RequestError(f"Expected dp_rank below {len(self._ranks)}, got: {dp_rank}")
        return dp_rank

    def _routes(self) -> dict[tuple[str, str], JsonRoute | RankRoute]:
        generate = msgspec.json.Decoder(GenerateRequest)
        asked = msgspec.json.Decoder(OpenAiRequest)
        served = RankRoute(lambda body, rank: self.answer(asked.decode(body), rank).document())
        truth = msgspec.json.Decoder(TruthRequest)
        lose = msgspec.json.Decoder(LoseRequest)
        costs = msgspec.json.Decoder(Costs)
        return {
            ("POST", "/generate"): lambda body: self.generate(generate.decode(body)),
            ("POST", "/v1/chat/completions"): served,
            ("POST", "/v1/completions"): served,
            ("POST", "/tokenize"): lambda body: self._tokenize(asked.decode(body)),
            ("GET", "/v1/models"): lambda _: self._models(),
            ("GET", "/truth"): lambda _: self._truth(),
            ("POST", "/truth"): lambda body: self._longest_held(truth.decode(body).token_ids),
            ("POST", "/clear"): lambda _: self._clear(),
            ("POST", "/lose"): lambda body: self._lose(lose.decode(body).batches),
            ("GET", "/load"): lambda _: self._load(),
            ("POST", "/costs"): lambda body: self._set_costs(costs.decode(body)),
            ("GET", "/ready"): lambda _: self.state,
        }

    def _tokenize(self, request: OpenAiRequest) -> object:
        tokens = request.tokens
        return {"count": len(tokens), "tokens": tokens}

    def _models(self) -> object:
        return {"object": "list", "data": [{"id": self.options.model, "object": "model"}]}

    def _truth(self) -> object:
        ranks = {}
        for dp_rank, rank in enumerate(self._ranks):
            with rank.lock:
                held = rank.cache.snapshot().held
            ranks[str(dp_rank)] = {
                medium: sorted(block for block, where in held if where == medium)
                for medium in (GPU, CPU)
            }
        return {"instance_id": self.options.instance_id, "ranks": ranks}

    def _longest_held(self, tokens: list[int]) -> object:
        ranks = {}
        for dp_rank, rank in enumerate(self._ranks):
            with rank.lock:
                ranks[str(dp_rank)] = {
                    medium or "any": rank.cache.longest_held(tokens, medium)
                    for medium in (None, GPU, CPU)
                }
        return {"ranks": ranks}

    def _clear(self) -> object:
        for rank in self._ranks:
            with rank.lock:
                rank.publish(rank.cache.clear())
        return {"status": "cleared"}

    def _lose(self, batches: int) -> object:
        for rank in self._ranks:
            with rank.lock:
                rank.batches_to_lose = max(batches, 0)
        return {"status": "losing", "batches": batches}

    def _load(self) -> object:
        loads = {str(dp_rank): rank.load for dp_rank, rank in enumerate(self._ranks)}
        return {"ranks": {dp_rank: load._asdict() for dp_rank, load in loads.items()}}

    def _set_costs(self, costs: Costs) -> object:
        if self.options.costs is None:
            raise RequestError(
                "Expected an engine whose prompts take time, but it has no costs: start it with"
                " --costs"
            )
        for rank in self._ranks:
            rank.costs = costs
        return {"status": "costs set"}

    def _close_ranks(self) -> None:
        for rank in self._ranks:
            rank.close()


def _costs(text: str) -> Costs | None:
    """Raises argparse.ArgumentTypeError: they are not such."""
    try:
        return msgspec.json.decode(text, type=Costs) if text else None
    except msgspec.MsgspecError as error:
        raise argparse.ArgumentTypeError(
            f"Expected costs in JSON, got: {cause_of(error)}"
        ) from error


def parse_options(arguments: Sequence[str]) -> tuple[EngineOptions, int]:
    """The engine that a command line asks for, and the process with which it ends."""
    parser = argparse.ArgumentParser(prog="python -m lab.engines.engine", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--options", default="", help="all of `EngineOptions`, as JSON")
    parser.add_argument("--instance-id", default="engine")
    parser.add_argument("--gpu-blocks", type=int, default=4096)
    parser.add_argument("--cpu-blocks", type=int, default=0)
    parser.add_argument("--dp-ranks", type=int, default=1)
    parser.add_argument("--endpoint", default="tcp://127.0.0.1:0", help="PUB of rank 0")
    parser.add_argument("--replay-endpoint", default="tcp://127.0.0.1:0", help='"" for none')
    parser.add_argument("--http-host", default="127.0.0.1")
    parser.add_argument("--http-port", type=int, default=0)
    parser.add_argument("--parent-pid", type=int, default=os.getppid(), help="ends with it")
    parser.add_argument("--costs", type=_costs, default="", help="JSON; see `routing.costs`")
    given = parser.parse_args(arguments)
    if given.options:
        return msgspec.json.decode(given.options, type=EngineOptions), given.parent_pid
    options = EngineOptions(
        instance_id=given.instance_id,
        sizes=CacheSizes(gpu_blocks=given.gpu_blocks, cpu_blocks=given.cpu_blocks),
        dp_ranks=given.dp_ranks,
        publisher=PublisherOptions(given.endpoint, given.replay_endpoint),
        http_host=given.http_host,
        http_port=given.http_port,
        costs=given.costs,
    )
    return options, given.parent_pid


def main(arguments: Sequence[str]) -> int:
    """Run one engine until it is told to stop, or its parent is gone and no other adopts it."""
    options, parent_pid = parse_options(arguments)
    watch = ParentWatch(
        parent_pid, orphan_grace_s=options.orphan_grace_s, when_orphaned=_let_go_of_output
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: watch.stop())
    try:
        engine = Engine(options, routes=watch.routes())
    except (OSError, ValueError, zmq.ZMQError) as error:
        # One write: several engines may have the same to say.
        sys.stderr.write(f"lab.engines.engine: {error}\n")
        return 1
    try:
        print(msgspec.json.encode(engine.ready).decode(), flush=True)
        watch.wait()
    finally:
        engine.close()
    return 0


def _let_go_of_output() -> None:
    """Whoever reads the dead parent's output through a pipe must see it end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (sys.stdout.fileno(), sys.stderr.fileno()):
        os.dup2(nowhere, output)
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
