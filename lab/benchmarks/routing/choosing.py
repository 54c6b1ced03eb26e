"""Ways of choosing who gets a request: `POST /route`, and the longest prefix of `POST /query`."""

import random
from typing import Final, NamedTuple, Protocol

import msgspec

from lab.benchmarks.routing.wire import Wire
from lab.benchmarks.routing.world import MODEL
from lab.benchmarks.sizes import BLOCK_SIZE
from lab.traffic.conversations import Turn
from lab.traffic.index_client import DEFAULT_TENANT, InstanceMatch, RouteAnswer

_ROUTED: Final = msgspec.json.Decoder(RouteAnswer)
_MATCHES: Final = msgspec.json.Decoder(dict[str, dict[str, InstanceMatch]])


class ChosenTarget(NamedTuple):
    """Who gets a request, and what was promised of it; None, and "", where nothing was."""

    instance_id: str
    decision_id: str = ""
    cached_tokens: int | None = None
    ttft_s: float | None = None


class Way(Protocol):
    """How a router chooses."""

    async def choose(self, service: Wire, turn: Turn, number: int) -> ChosenTarget | None:
        """Who gets it; None where it is refused.

        Raises:
            RuntimeError: the service answered what it should not.
        """


class ByRoute:
    """Whom `POST /route` names."""

    def __init__(self, policy: str, *, reserve: bool = True, slo_s: float = 0.0) -> None:
        self._fields: dict[str, object] = {
            "model": MODEL,
            "block_size": BLOCK_SIZE,
            "policy": policy,
            "reserve": reserve,
        }
        if slo_s:
            self._fields["slo"] = {"ttft_ms": 1000 * slo_s}
        self._reserve = reserve

    async def choose(self, service: Wire, turn: Turn, number: int) -> ChosenTarget | None:
        """See `Way`. A request that is only asked for has no decision to report of."""
        body = {**self._fields, "token_ids": turn.prompt}
        answer = await service.request("POST", "/route", body)
        if answer.status == 429:
            return None
        if answer.status != 200:
            raise RuntimeError(f"POST /route: {answer.status} {answer.body.decode()}")
        routed = _ROUTED.decode(answer.body)
        one = routed.prefill
        # An engine always computes one token at least.
        reusable = (len(turn.prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
        return ChosenTarget(
            one.instance_id,
            routed.decision_id if self._reserve else "",
            min(one.cached_tokens, reusable),
            one.ttft_ms.expected / 1000,
        )


class ByQuery:
    """One of those that hold the longest prefix by `POST /query`, whatever they carry."""

    def __init__(self, instances: list[str], seed: int) -> None:
        self._instances = instances
        self._chance = random.Random(seed)

    async def choose(self, service: Wire, turn: Turn, number: int) -> ChosenTarget | None:
        """See `Way`. It promises the prefix, and no time."""
        body = {"model": MODEL, "block_size": BLOCK_SIZE, "token_ids": turn.prompt}
        answer = await service.request("POST", "/query", body)
        if answer.status != 200:
            raise RuntimeError(f"POST /query: {answer.status} {answer.body.decode()}")
        matches = _MATCHES.decode(answer.body).get(DEFAULT_TENANT, {})
        held = {
            name: matches[name].longest_matched if name in matches else 0
            for name in self._instances
        }
        most = max(held.values())
        name = self._chance.choice([name for name, tokens in held.items() if tokens == most])
        reusable = (len(turn.prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
        return ChosenTarget(name, cached_tokens=min(most, reusable))
