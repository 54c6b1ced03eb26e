"""Which engine gets a request: by the index, or by load where the index has no say.

The decision is the routing room's, in this process, as `POST /route` makes it: booked, kept with
the last ones, and told what came of it. It leaves out engines that fail, and tries them again
(`routing.fold.failures`); the gateway has no other circuit breaker. Where it cannot be had, since
something is wrong here, the engine with the fewest requests of this gateway gets the request.
"""

import logging
from collections import Counter
from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from gateway.bounds import GATEWAY_NAMED_MAX
from gateway.cache_reports import CacheReports
from gateway.errors import GatewayError
from gateway.fleet import EngineKey, EngineTarget, Fleet, ServedModel
from gateway.prompts import PromptTokens
from gateway.requests import CHAT, COMPLETIONS, ClientRequest
from gateway.responses import KeptResponses
from gateway.settings import Affinity
from gateway.usage import Usage
from query_api.http.errors import RequestError
from query_api.http.metrics import QueryMetrics
from query_api.http.wire import Wire
from query_api.ports import View
from routing.decisions.interface import OfferedCandidate, RoutedDecision, RouteRequest
from routing.decisions.router import ClientReport, Router
from routing.http.documents import retry_after
from routing.http.requests import RouteBody, route_request
from schemas.answer_states import AnswerState
from schemas.clock import REAL_CLOCK, Clock
from schemas.limits import KV_USAGE_MAX
from schemas.routing_records import (
    Decision,
    FeedbackReport,
    LoadSample,
    LoadSource,
    OutcomeEvent,
    Phase,
    Reason,
    Refusal,
    Target,
    decision_id,
)
from schemas.troubles import shortened

GATEWAY_IDLE_SAID_S: Final = 5.0  # since an engine said that no request waits there

ASKED_BY: Final = "gateway-"
"""What the ids of its requests begin with."""

logger = logging.getLogger(__name__)

_OVERLOADED: Final = {
    Refusal.OVERLOADED: "Every engine of the model has more to do than it may",
    Refusal.SLO_UNREACHABLE: "No engine is expected to meet the objective of the request",
    Refusal.DECODE_PREDICTED: "No engine is expected to decode in time",
}


_ORDER: Final = ("combined", "decode", "prefill")
"""Roles of engines that are to do all of a request, the best ones first."""


class Placement(NamedTuple):
    """Where a request goes.

    Attributes:
        decision: the decision's id; "" where load decided.
        state: of the index then; "" likewise.
        by_load: why the index had no say, in one word; "" where it had.
        prefill: the engine that computes the prompt for it; None: it does so itself.
        went: another engine, where the request really went; None: it went to `target`.
    """

    target: EngineTarget
    decision: str = ""
    state: str = ""
    by_load: str = ""
    prefill: EngineTarget | None = None
    went: EngineKey | None = None

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What a client is told of it, in ASGI's form."""
        found = []
        if self.decision:
            found.append((b"reprise-decision", self.decision.encode()))
            found.append((b"reprise-state", self.state.encode()))
        if self.by_load:
            found.append((b"reprise-by-load", self.by_load.encode()))
        return found


class PlacedRequest:
    """One request while engines are sought for it.

    Attributes:
        decision: the last one, where it was not refused; None: load decided.
    """

    def __init__(self, request: ClientRequest, model: ServedModel, tokens: PromptTokens) -> None:
        self.request = request
        self.model = model
        self.tokens = tokens
        self.tried: set[EngineKey] = set()
        self.asked: RouteRequest | None = None
        self.decision: Decision | None = None

    @property
    def left(self) -> list[EngineTarget]:
        """Engines that may still be tried."""
        return [one for key, one in self.model.targets.items() if key not in self.tried]


class Placer:
    """See the module. One loop.

    Attributes:
        decided: what it has asked of the router, as `POST /route` counts it; tokens of prompts
            that are known.
        responses: which engine keeps which.
        cache_reports: which engines say what they found in their caches.
        placed: requests, by what decided: `index`, or why it had no say.
        faults: unexpected errors of the router; load decided.
    """

    def __init__(
        self,
        view: View,
        router: Router,
        fleet: Fleet,
        affinity: Affinity,
        *,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.decided = QueryMetrics()
        self.responses = KeptResponses()
        self.cache_reports = CacheReports()
        self.placed: Counter[str] = Counter()
        self.faults = 0
        self._view = view
        self._router = router
        self._fleet = fleet
        self._affinity = affinity
        self._clock = clock
        self._turn = 0

    def end_former(self) -> None:
        """Ends what the gateway had under way when its process was killed."""
        ended = self._router.end_former(ASKED_BY)
        if ended:
            text = "The gateway was killed with %d requests under way: they are booked no more"
            logger.info(text, ended)

    def place(self, placed: PlacedRequest) -> Placement:
        """An engine that was not tried. Cost: of a decision.

        Raises:
            GatewayError: there is none, or none that may take it now.
        """
        if not placed.left:
            raise _no_engine(placed.model)
        placed.decision = None
        began = self._clock.monotonic()
        try:
            routed = self._decide(placed)
        except Exception:
            self.faults += 1
            logger.exception(
                "Unexpected error while it was decided which engine gets a request; load decides"
            )
            return self._count(self._by_load(placed, "internal_error"))
        decision = routed.decision
        size = 0 if placed.tokens.missing else decision.prompt_tokens
        self.decided.count((self._clock.monotonic() - began, size, decision.held))
        if decision.refused is not Refusal.NO:
            self._check_refused(routed, placed)
            by_load = self._by_load(placed, decision.refused.value, decision)
            return self._noted(routed, by_load)
        placed.decision = decision
        target = _target(placed.model, decision, decision.chosen)
        prefill = None
        if 0 <= decision.decode != decision.chosen:
            target, prefill = _target(placed.model, decision, decision.decode), target
        name = decision_id(routed.run, decision.number)
        if target is None:  # unregistered since
            self._report(name, FeedbackReport(0, OutcomeEvent.CANCELLED, 0.0))
            return self._noted(routed, self._by_load(placed, "unregistered"))
        missing = placed.tokens.missing or ("" if self._view.ready else decision.state)
        state = decision.state
        if placed.tokens.is_unproven and state == AnswerState.EXACT:
            state = AnswerState.UNCONFIRMED
        return self._noted(routed, Placement(target, name, state, missing, prefill))

    def _noted(self, routed: RoutedDecision, placement: Placement) -> Placement:
        """Where load decided, that is kept with the last decisions."""
        if placement.by_load:
            number = routed.decision.number
            self._router.live.note_by_load(routed.run, number, placement.by_load)
        return self._count(placement)

    def _count(self, placement: Placement) -> Placement:
        self.placed[placement.by_load or "index"] += 1
        return placement

    def _decide(self, placed: PlacedRequest) -> RoutedDecision:
        """The router's word. A refusal is asked about once more: of all engines where the session's
        one cannot, of the idle ones where all have too much to do.
        """
        asked = placed.asked
        if asked is None:
            asked = placed.asked = self._asked(placed)
        keeper = self._keeper(placed, asked)
        if placed.tried or not placed.model.has_all:
            asked = asked._replace(candidates=_offered(placed.left))
        first, again = asked, None
        if keeper is not None:
            first = asked._replace(candidates=_offered([keeper]), is_placed=True)
        routed = self._router.route(first)
        if routed.decision.refused is Refusal.NO:
            return routed
        if keeper is not None:
            again = asked
        elif routed.decision.refused is Refusal.OVERLOADED and not asked.ttft_slo_s:
            idle = self._idle(placed)
            again = asked._replace(candidates=_offered(idle), is_placed=True) if idle else None
        return routed if again is None else self._router.route(again)

    def _idle(self, placed: PlacedRequest) -> list[EngineTarget]:
        """Engines where no request waits, by their own word: what is booked there is a guess, and
        no request without an objective is refused for it.
        """
        left = placed.left
        tenant, now = placed.model.tenant_id, self._router.now()
        carried = self._router.carried([Target(tenant, *one.key) for one in left])
        return [
            one
            for one, (_, load) in zip(left, carried, strict=True)
            if load.sample is not None and _says_idle(load.sample, now)
        ]

    def _keeper(self, placed: PlacedRequest, asked: RouteRequest) -> EngineTarget | None:
        """The engine that keeps what the request goes on from, or its session; None where there is
        none, it fails, or it does a part of each request.
        """
        if placed.tried:
            return None
        if placed.request.previous:
            key = self.responses.engine_of(placed.model.tenant_id, placed.request.previous)
            return None if key is None else placed.model.targets.get(key)
        if self._affinity is not Affinity.HARD or not asked.session_id:
            return None
        live, now = self._router.live, self._router.now()
        last = live.last_of_session(asked.scope.tenant_id, asked.session_id, now)
        if last is None or live.left_out([last], now):
            return None
        found = placed.model.targets.get((last.instance_id, last.dp_rank))
        return found if found is not None and found.role == _ORDER[0] else None

    def _asked(self, placed: PlacedRequest) -> RouteRequest:
        """As `POST /route` is asked."""
        request, model = placed.request, placed.model
        tokens = _bounded(placed.tokens, model.tokens_max)
        content = tokens.content
        body = RouteBody(
            model=model.name,
            block_size=model.block_size,
            token_ids=msgspec.Raw(msgspec.msgpack.encode(content)),
            tenant_id=model.tenant_id,
            lora_name=model.lora_name or None,
            cache_salt=request.cache_salt or None,
            additional_salt=model.salt or None,
            media=msgspec.Raw(msgspec.msgpack.encode(tokens.media))
            if tokens.media
            else msgspec.UNSET,
            priority=request.priority,
            session_id="" if self._affinity is Affinity.OFF else request.session_id,
        )
        kernel, is_ready = self._view.kernel, self._view.ready
        try:
            asked = route_request(body, Wire.MSGPACK, [], kernel, is_ready=is_ready)
        except RequestError as error:  # more tokens than any prompt may have
            placed.tokens = PromptTokens(b"", tokens.size, error.reason)
            nothing = msgspec.Raw(msgspec.msgpack.encode(b""))
            body = msgspec.structs.replace(body, token_ids=nothing, media=msgspec.UNSET)
            asked = route_request(body, Wire.MSGPACK, [], kernel, is_ready=is_ready)
        return asked._replace(
            prompt_tokens=tokens.size,
            ttft_slo_s=request.ttft_slo_s,
            context=request.context,
            asked_by=ASKED_BY,
            phase=Phase.PAIR if model.has_pairs and request.can_be_a_pair else Phase.COMBINED,
        )

    def _by_load(
        self, placed: PlacedRequest, why: str, decision: Decision | None = None
    ) -> Placement:
        """The one with the fewest requests of this gateway; they take turns where several have.

        Where a decision left all out, as it does while no link leads to any after a start, what it
        found in their caches counts, too: an engine's requests are taken to be like this one.
        """
        best = min(_ORDER.index(one.role) for one in placed.left)
        able = [one for one in placed.left if _ORDER.index(one.role) == best]
        self._turn += 1
        under_way = self._fleet.under_way
        start = self._turn % len(able)
        size = max(placed.tokens.size, 1)
        found = () if decision is None else decision.candidates
        to_compute = {(one.instance_id, one.dp_rank): max(size - one.cached, 1) for one in found}

        def work(one: EngineTarget) -> int:
            return (1 + under_way[one.place]) * to_compute.get(one.key, size)

        target = min(able[start:] + able[:start], key=work)
        return Placement(target, by_load=why)

    def fallbacks(self, placed: PlacedRequest, placement: Placement) -> list[EngineTarget]:
        """The other engines that may take all of the request, the best ones first: as the decision
        compared them, or by the requests of this gateway that each has.
        """
        left = [one for one in placed.left if one.key != placement.target.key]
        if placed.decision is None:
            under_way = self._fleet.under_way
            return sorted(left, key=lambda one: (_ORDER.index(one.role), under_way[one.place]))
        compared = {
            (one.instance_id, one.dp_rank): one.key
            for one in placed.decision.candidates
            if not set(one.reasons) - {Reason.DEGRADED}
        }
        return sorted(
            (one for one in left if one.key in compared), key=lambda one: compared[one.key]
        )

    def _check_refused(self, routed: RoutedDecision, placed: PlacedRequest) -> None:
        """Raises GatewayError where there is more to do than may be, or waiting is no use."""
        text = _OVERLOADED.get(routed.decision.refused)
        if text is not None:
            after = retry_after(routed)
            raise GatewayError(
                429,
                routed.decision.refused.value,
                f"{text}; try again in {after:d} s",
                headers={"retry-after": str(after)},
            )

    # What came of it

    def began(self, placement: Placement, ttft_s: float) -> None:
        """The first of its answer came after so many seconds."""
        if not placement.by_load:
            report = FeedbackReport(0, OutcomeEvent.FIRST_TOKEN, 0.0, ttft_s=ttft_s)
            self._tell(placement, report)

    def progressed(self, placement: Placement) -> None:
        """Its answer still comes."""
        self._tell(placement, FeedbackReport(0, OutcomeEvent.DISPATCHED, 0.0))

    def answered(self, placed: PlacedRequest, placement: Placement, response: str) -> None:
        """The engine keeps what it has answered, by that id."""
        key = placement.target.key if placement.went is None else placement.went
        self.responses.note(placed.model.tenant_id, response, key)

    def counted(self, placed: PlacedRequest, placement: Placement, usage: Usage) -> None:
        """Its answer has a count of tokens. Other paths, several prompts or answers and engines
        that did a part of the work have what was found without a flag, or never.
        """
        decision = placed.decision
        if (
            decision is None
            or usage.prompt is None
            or placement.by_load
            or placement.went is not None
            or placement.prefill is not None
            or placed.tokens.is_partial
            or not placed.request.tests_cache
            or placed.request.path not in (CHAT, COMPLETIONS)
        ):
            return
        promised = decision.candidates[decision.chosen].cached
        self.cache_reports.note(placement.target, promised, usage.cached)

    def completed(
        self, placement: Placement, usage: Usage | None, ttft_s: float | None, tbt_s: float | None
    ) -> None:
        """Its answer came whole.

        Where the gateway does not know the tokens nothing was promised, and what the engine found
        in its cache is told to nobody: it would look as if the index had not known of it.
        """
        report = FeedbackReport(0, OutcomeEvent.COMPLETED, 0.0)
        if usage is not None:
            report = msgspec.structs.replace(report, output_tokens=usage.output)
            if not placement.by_load:
                report = msgspec.structs.replace(
                    report,
                    prompt_tokens=usage.prompt,
                    cached_tokens=usage.cached,
                    ttft_s=ttft_s,
                    tbt_s=tbt_s,
                )
        self._tell(placement, report)

    def failed(self, placement: Placement, error: str) -> None:
        """The engine is why it has no whole answer."""
        self._tell(placement, FeedbackReport(0, OutcomeEvent.FAILED, 0.0, error=shortened(error)))

    def cancelled(self, placement: Placement) -> None:
        """Its client has gone, or the engine refuses it for what it is."""
        self._tell(placement, FeedbackReport(0, OutcomeEvent.CANCELLED, 0.0))

    def _tell(self, placement: Placement, outcome: FeedbackReport) -> None:
        if placement.went is not None:
            instance_id, dp_rank = placement.went
            outcome = msgspec.structs.replace(outcome, instance_id=instance_id, dp_rank=dp_rank)
        if placement.decision:
            self._report(placement.decision, outcome)

    def _report(self, decision: str, outcome: FeedbackReport) -> None:
        try:
            self._router.take([ClientReport(decision, None, outcome, None)])
        except Exception:
            self.faults += 1
            logger.exception("Unexpected error while an outcome was noted; its booking expires")


def _target(model: ServedModel, decision: Decision, index: int) -> EngineTarget | None:
    """A candidate of a decision; None where it is not registered any more."""
    one = decision.candidates[index]
    return model.targets.get((one.instance_id, one.dp_rank))


def _bounded(tokens: PromptTokens, tokens_max: int) -> PromptTokens:
    """No more than an engine takes, where that is known: it refuses what is longer at once."""
    if not tokens_max or tokens.size <= tokens_max:
        return tokens
    media = [item for item in tokens.media if item.end <= tokens_max]
    return tokens._replace(content=tokens.content[: 4 * tokens_max], size=tokens_max, media=media)


def _says_idle(sample: LoadSample, now: float) -> bool:
    return (
        sample.source is LoadSource.SCRAPED
        and sample.waiting == 0
        and (sample.kv_usage or 0.0) <= KV_USAGE_MAX
        and now - sample.observed_at <= GATEWAY_IDLE_SAID_S
    )


def _offered(targets: Collection[EngineTarget]) -> tuple[OfferedCandidate, ...]:
    return tuple(OfferedCandidate(one.key[0], one.key[1]) for one in targets)


def _no_engine(model: ServedModel) -> GatewayError:
    text = f"No engine of {model.name[:80]} can be tried, of {len(model.targets)} there are"
    return GatewayError(503, "no_engine", text, headers={"retry-after": "1"})


def unknown_model(fleet: Fleet, tenant_id: str, name: str) -> GatewayError:
    """No engine serves a model of that name; or none is registered yet."""
    known = [one.name for one in fleet.models(frozenset({tenant_id}))]
    if not known:
        text = "No engine is registered yet: name them with --engine, or POST /register; try again"
        return GatewayError(503, "no_engine", text, headers={"retry-after": "1"})
    expected = "Expected one of the models that engines serve" if name else "Expected a model"
    text = f"{expected}, {', '.join(known[:GATEWAY_NAMED_MAX])}, got: {name[:80] or 'none'}"
    return GatewayError(404, "model_not_found", text, param="model")
