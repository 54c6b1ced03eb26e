"""The calls of Reprise's HTTP interface that a router and the fleet of engines need."""

from collections.abc import Sequence
from typing import Final

import msgspec

from lab.engines.engine import EngineReady
from lab.traffic.http_json import HttpAnswer, JsonConnection

DEFAULT_TENANT: Final = "default"
INSTANCE_CLASS: Final = "simulated"
"""All engines are alike: what is learned of one is known of all."""


class InstanceMatch(msgspec.Struct, frozen=True, kw_only=True):
    """What `/query` says of one instance, in tokens; `DP` by rank, as text."""

    longest_matched: int = 0
    DP: dict[str, int] = {}


class ExpectedTtft(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds."""

    expected: float


class RoutedPrefill(msgspec.Struct, frozen=True, kw_only=True):
    """Who gets a request, and what is promised of it."""

    instance_id: str
    dp_rank: int
    cached_tokens: int
    ttft_ms: ExpectedTtft


class RouteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What `/route` says, as far as a router needs it."""

    decision_id: str
    prefill: RoutedPrefill


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """What a request can be sent to."""

    instance_id: str
    dp_rank: int
    endpoint: str


class OutcomeReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An outcome, as `/feedback` takes it; milliseconds."""

    decision_id: str
    event: str
    ttft_ms: float | None = None
    queue_ms: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


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


class _Refusal(msgspec.Struct):
    error: str


def refused(request: str, answer: HttpAnswer) -> ServiceError:
    """A request was; in the words of the service."""
    try:
        words = msgspec.json.decode(answer.body, type=_Refusal).error
    except msgspec.MsgspecError:
        words = answer.body.decode(errors="replace")
    return ServiceError(f"{request}: {answer.status} {words}")


class IndexClient:
    """The calls of Reprise's HTTP interface that a router needs. For one thread."""

    def __init__(self, base_url: str, *, tenant_id: str = DEFAULT_TENANT, key: str = "") -> None:
        """Args:
        base_url: of the service.
        tenant_id: whose requests and engines.
        key: with `query`, `route`, `feedback`, `register` and `read`; "" where none is asked for.
        """
        self.tenant_id = tenant_id
        self._connection = JsonConnection(base_url, key=key)
        self._matches = msgspec.json.Decoder(dict[str, dict[str, InstanceMatch]])
        self._view = msgspec.json.Decoder(_GlobalView)
        self._services = msgspec.json.Decoder(_Services)
        self._routed = msgspec.json.Decoder(RouteAnswer)

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
            raise refused("GET /services", answer)
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
                raise refused("POST /register", answer)

    def unregister(self, engines: Sequence[EngineReady]) -> None:
        """Unregister every rank; one that is not registered is no error.

        Raises:
            OSError: the service cannot be reached.
        """
        for engine in engines:
            for rank in engine.ranks:
                name = {"instance_id": engine.instance_id, "dp_rank": rank.dp_rank}
                self._post("/unregister", {**name, "tenant_id": self.tenant_id})

    def registrations(self, engine: EngineReady) -> list[dict[str, object]]:
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
                "url": f"http://{engine.http_host}:{engine.http_port}",
                "labels": {"class": INSTANCE_CLASS},
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
            raise refused("POST /query", answer)
        try:
            return self._matches.decode(answer.body).get(self.tenant_id, {})
        except msgspec.MsgspecError as error:
            raise ServiceError(f"POST /query: {error}") from error

    def route(
        self,
        tokens: Sequence[int],
        *,
        model: str,
        block_size: int,
        candidates: Sequence[Candidate],
    ) -> RouteAnswer:
        """Who is to get the prompt; what `feedback` does not tell of it stays booked for minutes.

        Raises:
            OSError: the service cannot be reached.
            ServiceError: it refused, or its answer is not of the published shape.
        """
        body = {
            "model": model,
            "block_size": block_size,
            "tenant_id": self.tenant_id,
            "candidates": candidates,
            "token_ids": tokens,
        }
        answer = self._post("/route", body)
        if answer.status != 200:
            raise refused("POST /route", answer)
        try:
            return self._routed.decode(answer.body)
        except msgspec.MsgspecError as error:
            raise ServiceError(f"POST /route: {error}") from error

    def feedback(self, reports: Sequence[OutcomeReport]) -> None:
        """What became of requests.

        Raises:
            OSError: the service cannot be reached.
            ServiceError: it refused.
        """
        answer = self._post("/feedback", reports)
        if answer.status // 100 != 2:
            raise refused("POST /feedback", answer)

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
