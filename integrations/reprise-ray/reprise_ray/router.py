"""The request router: asks Reprise for each pending request, and tells it what became of it.

Only names that `ray.serve.request_router` exports are used. Ray constructs one router for each
handle, in the process that calls it (an ingress replica, or the proxy), and calls it in one loop.
"""

import logging
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ray.serve.request_router import (
    LocalityMixin,
    MultiplexMixin,
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)
from reprise_client.client import ROUTE_TIMEOUT_S, Client, Decision, Report, Unanswered
from reprise_client.prompt import TEMPLATE_FIELDS, are_tokens, prompt_of

from .registration import INSTANCE_KEY

# Below Ray Serve's own logger, so that it is written where that one is.
logger = logging.getLogger("ray.serve.reprise")

REQUESTS_MAX: Final = 65536
"""Requests under way of which the router remembers the decision; the oldest is forgotten."""

TOKEN_FIELDS: Final = ("request_token_ids", "prompt_token_ids", "token_ids")
"""Names by which a request brings its tokens: Ray's own for its KV-aware router, vLLM's, ours."""

NO_PROMPT: Final = frozenset({"tokenize", "detokenize", "reset_prefix_cache"})
"""Methods of Ray's LLM server that compute no prompt, whatever they are given."""


@dataclass(slots=True)
class _Request:
    """What is known of one pending request.

    Attributes:
        decision: where Reprise would have it; None where there is no answer.
        routed: whether a replica has accepted it.
        finished_early: replicas that have ended it before Ray said that they accepted it: those
            that did, and those that did not (a rejection is told in the same way).
    """

    decision: Decision | None
    routed: bool = False
    finished_early: set[ReplicaID] = field(default_factory=set)


class RepriseRouter(LocalityMixin, MultiplexMixin, RequestRouter):
    """The replica that Reprise names, then two others at random, as without it.

    Without an answer of Reprise: the two alone. Ray itself sends the request on to the next of
    them where a replica's queue is full.
    """

    def initialize_state(  # type: ignore[override] # by name, as Ray's own routers have it
        self,
        url: str = "http://127.0.0.1:13333",
        model: str = "",
        block_size: int = 16,
        tenant_id: str = "default",
        lora_name: str = "",
        api_key: str = "",
        timeout_ms: float = ROUTE_TIMEOUT_S * 1000,
    ) -> None:
        """Takes `request_router_kwargs`; nothing is connected yet.

        Args:
            url: of Reprise.
            model: under which the engines are registered there.
            block_size: of these, tokens.
            tenant_id: as registered.
            lora_name: as registered.
            api_key: sent to Reprise as a bearer token, if any.
            timeout_ms: of a question to Reprise.
        """
        self.report = Report(logger)
        self._reprise = Client(url, self.report, api_key=api_key, timeout_s=timeout_ms / 1000)
        scope = {
            "model": model,
            "block_size": block_size,
            "tenant_id": tenant_id,
            "lora_name": lora_name,
        }
        self._scope = {name: value for name, value in scope.items() if value != ""}
        self._requests: OrderedDict[str, _Request] = OrderedDict()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas, the one that Reprise names first.

        Ray asks again while all are full.
        """
        replicas = self._eligible(candidate_replicas, pending_request)
        others = random.sample(replicas, min(2, len(replicas)))
        if not replicas or pending_request is None:
            return [others]
        try:
            decision = await self._decision(replicas, pending_request)
        except Exception:  # a fault of ours is no reason to fail a user's request
            logger.debug("Expected a decision, got a fault", exc_info=True)
            self.report.fail("fault")
            decision = None
        if decision is None:
            return [others]
        chosen = [one for one in replicas if _instance_of(one) == decision.instance_id]
        return [chosen, others] if chosen else [others]

    def _eligible(
        self, candidates: Sequence[RunningReplica], pending: PendingRequest | None
    ) -> list[RunningReplica]:
        """What is left by locality and multiplexing, which Ray's own routers apply so, too."""
        if pending is not None and pending.metadata.multiplexed_model_id:
            ids = self.apply_multiplex_routing(pending_request=pending)
        else:
            ids = self.apply_locality_routing(pending_request=pending)
        return [one for one in candidates if one.replica_id in ids]

    async def _decision(
        self, replicas: Sequence[RunningReplica], pending: PendingRequest
    ) -> Decision | None:
        """Of the first time that Ray asks; a second one would be booked for nobody."""
        name = pending.metadata.internal_request_id
        known = self._requests.get(name)
        if known is not None:
            return known.decision
        if pending.metadata.call_method in NO_PROMPT:
            return None
        prompt = _prompt_of(pending)
        if prompt is None:
            self.report.count("left_no_text")
        decision = None if prompt is None else await self._ask(replicas, prompt)
        self._requests[name] = _Request(decision)
        while len(self._requests) > REQUESTS_MAX:
            self._requests.popitem(last=False)
        return decision

    async def _ask(
        self, replicas: Sequence[RunningReplica], prompt: Mapping[str, Any]
    ) -> Decision | None:
        candidates = list(dict.fromkeys(map(_instance_of, replicas)))
        fields = {
            **self._scope,
            **prompt,
            "candidates": [{"instance_id": one} for one in candidates],
        }
        try:
            answer = await self._reprise.route(fields)
        except Unanswered as error:
            self.report.fail(f"route_{error.reason}")
            return None
        if not isinstance(answer, Decision):
            # A router of Ray can make a request wait, not refuse it: it goes as without Reprise.
            self.report.count("refused")
            return None
        if answer.instance_id not in candidates:
            self._reprise.tell({"decision_id": answer.decision_id, "event": "cancelled"})
            self.report.fail("unknown_instance")
            return None
        self.report.count("routed")
        return answer

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """A replica has accepted it: the one that was named, or another whose queue had room."""
        name = pending_request.metadata.internal_request_id
        request = self._requests.get(name)
        if request is None:
            return
        request.routed = True
        decision, actual = request.decision, self._instance(replica_id)
        if decision is not None and actual != decision.instance_id:
            self.report.count("elsewhere")
            self._tell(decision, "dispatched", actual)
        if decision is None or replica_id in request.finished_early:
            self._end(name, replica_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """A replica has answered it, failed, or refused to accept it: Ray does not say which."""
        request = self._requests.get(internal_request_id)
        if request is None:
            return
        if request.routed:
            self._end(internal_request_id, replica_id)
        else:
            request.finished_early.add(replica_id)

    def _end(self, name: str, replica_id: ReplicaID) -> None:
        request = self._requests.pop(name, None)
        if request is not None and request.decision is not None:
            self._tell(request.decision, "completed", self._instance(replica_id))

    def _tell(self, decision: Decision, event: str, instance_id: str) -> None:
        self._reprise.tell(
            {
                "decision_id": decision.decision_id,
                "event": event,
                "instance_id": instance_id,
                "dp_rank": decision.dp_rank,
            }
        )

    def _instance(self, replica_id: ReplicaID) -> str:
        replica = self.curr_replicas.get(replica_id)
        return replica_id.unique_id if replica is None else _instance_of(replica)


def _instance_of(replica: RunningReplica) -> str:
    stats = getattr(replica, "routing_stats", None)
    named = stats.get(INSTANCE_KEY) if isinstance(stats, Mapping) else None
    return named if isinstance(named, str) else str(replica.replica_id.unique_id)


def _prompt_of(pending: PendingRequest) -> Mapping[str, Any] | None:
    """The fields of `/route` that say it: the tokens that the request brings, or its text."""
    for source in (pending.kwargs, *pending.args):
        for name in TOKEN_FIELDS:
            tokens = _field(source, name)
            if are_tokens(tokens):
                return {"token_ids": tokens}
    for source in (*pending.args, pending.kwargs):
        if fields := _fields(source):
            return prompt_of(fields)
    return None


def _field(source: object, name: str) -> object:
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)


def _fields(source: object) -> dict[str, Any]:
    """Those of OpenAI's requests that a document or an object has."""
    names = ("messages", "prompt", *TEMPLATE_FIELDS)
    found = {name: _field(source, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}
