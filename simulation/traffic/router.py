"""A small router: asks Reprise who holds a prompt's prefix, sends the prompt there, keeps score.

Beside the real engines it keeps shadows: caches of the same sizes, in memory, that get the same
requests
by random choice. The difference between the two hit rates is what the index is worth.
"""

import random
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from simulation.engines.cache import BlockChain, CacheSizes, EngineCache, Offload
from simulation.engines.engine import EngineReady, Generated, GenerateRequest
from simulation.traffic.conversations import Turn
from simulation.traffic.http_json import HttpAnswer, JsonConnection
from simulation.traffic.scoring import Scorer, Target, Weights
from simulation.traffic.stats import Stats

DEFAULT_TENANT: Final = "default"
SHADOW_SEED: Final = 1


class InstanceMatch(msgspec.Struct, frozen=True, kw_only=True):
    """What `/query` says of one instance, in tokens; `DP` by rank, as text."""

    longest_matched: int = 0
    DP: dict[str, int] = {}


class _Context(msgspec.Struct, frozen=True, kw_only=True):
    prefix_count: int


class _GlobalView(msgspec.Struct, frozen=True, kw_only=True):
    contexts: list[_Context] = []


class FollowedRank(msgspec.Struct, frozen=True, kw_only=True):
    """What `/services` says of one registration.

    Attributes:
        sequence: of the last batch in the table; -1 before the first.
    """

    tenant_id: str = msgspec.field(name="TenantID")
    instance_id: str = msgspec.field(name="InstanceID")
    model: str = msgspec.field(name="ModelName")
    block_size: int = msgspec.field(name="BlockSize")
    dp_rank: int = msgspec.field(name="DPRank")
    endpoint: str = msgspec.field(name="Endpoint")
    sequence: int = msgspec.field(name="Sequence")


class _Services(msgspec.Struct, frozen=True, kw_only=True):
    services: list[FollowedRank]


class ServiceError(Exception):
    """The service refused a request that should have succeeded."""


class IndexClient:
    """The calls of Reprise's HTTP interface that a router needs. For one thread."""

    def __init__(self, base_url: str, *, tenant_id: str = DEFAULT_TENANT) -> None:
        self.tenant_id = tenant_id
        self._connection = JsonConnection(base_url)
        self._matches = msgspec.json.Decoder(dict[str, dict[str, InstanceMatch]])
        self._view = msgspec.json.Decoder(_GlobalView)
        self._services = msgspec.json.Decoder(_Services)

    def ready(self) -> bool:
        """Whether it has recovered and answers queries.

        Raises:
            OSError: the service cannot be reached.
        """
        return self._connection.request("GET", "/ready").status == 200

    def followed(self) -> list[FollowedRank]:
        """The registrations of this tenant.

        Raises:
            OSError: the service cannot be reached.
            ServiceError: it refused, or its answer is not of the published shape.
        """
        answer = self._connection.request("GET", "/services")
        if answer.status != 200:
            raise ServiceError(f"GET /services: {answer.status} {answer.body.decode()}")
        try:
            services = self._services.decode(answer.body).services
        except msgspec.MsgspecError as error:
            raise ServiceError(f"GET /services: {error}") from error
        return [rank for rank in services if rank.tenant_id == self.tenant_id]

    def register(self, engines: Sequence[EngineReady]) -> None:
        """Register every rank. Registrations that stand in the way are those of an earlier run with
        other ports: they are unregistered first.

        Raises:
            OSError: the service cannot be reached.
            ServiceError: it refused.
        """
        bodies = [body for engine in engines for body in self.registrations(engine)]
        if all(self._post("/register", body).status == 200 for body in bodies):
            return
        self.unregister(engines)
        for body in bodies:
            answer = self._post("/register", body)
            if answer.status != 200:
                raise ServiceError(f"POST /register: {answer.status} {answer.body.decode()}")

    def unregister(self, engines: Sequence[EngineReady]) -> None:
        """Unregister every rank; one that is not registered is no error.

        Raises:
            OSError: the service cannot be reached.
        """
        for engine in engines:
            for rank in engine.ranks:
                name = {"instance_id": engine.instance_id, "dp_rank": rank.dp_rank}
                self._post("/unregister", {**name, "tenant_id": self.tenant_id})

    def registrations(self, engine: EngineReady) -> list[dict[str, str | int]]:
        """The bodies of `POST /register` for an engine's ranks."""
        return [
            {
                "endpoint": rank.endpoint,
                "replay_endpoint": rank.replay_endpoint,
                "type": "vLLM",
                "modelname": engine.model,
                "instance_id": engine.instance_id,
                "block_size": engine.block_size,
                "dp_rank": rank.dp_rank,
                "tenant_id": self.tenant_id,
            }
            for rank in engine.ranks
        ]

    def query(
        self, tokens: Sequence[int], *, model: str, block_size: int
    ) -> dict[str, InstanceMatch]:
        """By instance.

        Raises:
            OSError: the service cannot be reached.
            ServiceError: it refused, or its answer is not of the published shape.
        """
        body = {"model": model, "block_size": block_size, "token_ids": tokens}
        answer = self._post("/query", {**body, "tenant_id": self.tenant_id})
        if answer.status != 200:
            raise ServiceError(f"POST /query: {answer.status} {answer.body.decode()}")
        try:
            return self._matches.decode(answer.body).get(self.tenant_id, {})
        except msgspec.MsgspecError as error:
            raise ServiceError(f"POST /query: {error}") from error

    def blocks_indexed(self) -> int | None:
        """Blocks in the tables of all contexts; None where the service does not say.

        Raises:
            OSError: the service cannot be reached.
        """
        answer = self._connection.request("GET", "/global_view")
        if answer.status != 200:
            return None
        try:
            return sum(context.prefix_count for context in self._view.decode(answer.body).contexts)
        except msgspec.MsgspecError:
            return None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _post(self, path: str, body: object) -> HttpAnswer:
        return self._connection.request("POST", path, body)


class RandomRouting:
    """The shadows: as many caches as there are targets, of the same sizes, under random routing."""

    def __init__(
        self, count: int, sizes: CacheSizes, *, offload: Offload, seed: int = SHADOW_SEED
    ) -> None:
        self._chain = BlockChain(sizes.block_size, root=b"")
        self._caches = [
            EngineCache(sizes, offload=offload, chain=self._chain) for _ in range(count)
        ]
        self._random = random.Random(seed)

    def run(self, turn: Turn) -> int:
        """The prompt tokens that the chosen shadow reuses."""
        hashes = self._chain.hashes([*turn.prompt, *turn.answer])
        cache = self._random.choice(self._caches)
        return cache.run_hashes(hashes, turn.prompt, turn.answer).cached_tokens


class Router:
    """Routes turns over engines, one at a time. For one thread."""

    def __init__(
        self,
        index: IndexClient,
        engines: Sequence[EngineReady],
        *,
        shadow: RandomRouting,
        weights: Weights | None = None,
    ) -> None:
        """All engines must serve the same model with the same block size."""
        if len({(engine.model, engine.block_size) for engine in engines}) != 1:
            raise ValueError("Expected engines of one model and one block size")
        self.stats = Stats()
        self._index = index
        self._model, self._block_size = engines[0].model, engines[0].block_size
        self._targets = [Target(e.instance_id, r.dp_rank) for e in engines for r in e.ranks]
        self._connections = {
            engine.instance_id: JsonConnection(f"http://{engine.http_host}:{engine.http_port}")
            for engine in engines
        }
        self._scorer = Scorer(self._targets, weights)
        self._shadow = shadow
        self._generated = msgspec.json.Decoder(Generated)

    def route(self, turn: Turn) -> Generated | None:
        """Route one turn. A service or engine that does not answer is counted and skipped.

        Returns:
            What the engine did; None where it did not answer.
        """
        prompt_tokens = len(turn.prompt)
        predicted = self._predict(turn.prompt)
        target = self._scorer.choose(predicted or {}, prompt_tokens)
        generated = self._generate(target, turn)
        if generated is None:
            # The engine that fails looks busy for a while, so that others are asked.
            self._scorer.record(target, prompt_tokens)
            return None
        self._scorer.record(target, prompt_tokens - generated.cached_tokens)
        self.stats.record_request(
            prompt_tokens=prompt_tokens,
            cached_tokens=generated.cached_tokens,
            shadow_cached_tokens=self._shadow.run(turn),
        )
        if predicted is not None:
            # An engine always computes one token at least.
            reusable = (prompt_tokens - 1) // self._block_size * self._block_size
            self.stats.record_prediction(
                predicted_tokens=min(predicted.get(target, 0), reusable),
                cached_tokens=generated.cached_tokens,
            )
        return generated

    def close(self) -> None:
        """Close the connections to engines; the index client is the caller's."""
        for connection in self._connections.values():
            connection.close()

    def _predict(self, prompt: Sequence[int]) -> dict[Target, int] | None:
        """Cached tokens by target as the index knows them; None where it does not answer."""
        start = time.perf_counter()
        try:
            matches = self._index.query(prompt, model=self._model, block_size=self._block_size)
        except (OSError, ServiceError):
            self.stats.query_errors += 1
            return None
        self.stats.record_query(time.perf_counter() - start)
        return {
            target: match.DP.get(str(target.dp_rank), 0 if match.DP else match.longest_matched)
            for target in self._targets
            if (match := matches.get(target.instance_id)) is not None
        }

    def _generate(self, target: Target, turn: Turn) -> Generated | None:
        body = GenerateRequest(
            token_ids=list(turn.prompt), answer_ids=list(turn.answer), dp_rank=target.dp_rank
        )
        try:
            answer = self._connections[target.instance_id].request("POST", "/generate", body)
            if answer.status == 200:
                return self._generated.decode(answer.body)
        except (OSError, msgspec.MsgspecError):
            pass
        self.stats.engine_errors += 1
        return None
