"""`GET /decisions`, `GET /decisions/ID`: the last decisions, and what came of them."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from query_api.http import openapi
from query_api.http.caller import access_of
from query_api.http.errors import RequestError
from query_api.http.requests.options import read_parameters
from query_api.http.route_table import Routes
from query_api.http.routes import BOTH_WIRES, respond
from query_api.http.wire import Wire, reply_wire
from routing.decisions.recent_decisions import RecentDecision
from routing.decisions.router import Router
from routing.http.documents import CandidateDocument, candidate_document
from routing.http.models import Hash, Time, Tokens
from routing.policies.key_terms import key_terms, key_unit
from schemas.limits import RECENT_DECISIONS_MAX
from schemas.routing_records import (
    CandidateRecord,
    Decision,
    FeedbackReport,
    decision_id,
    parse_decision_id,
)

_SHOWN: Final = 50


class PlacedDocument(msgspec.Struct, kw_only=True, frozen=True):
    """A rank of an instance that was chosen."""

    instance_id: str
    dp_rank: int


class OutcomeDocument(msgspec.Struct, kw_only=True, frozen=True):
    """What was reported; null: not told."""

    event: Annotated[str, Meta(description="The last one.")]
    at: Time
    instance_id: Annotated[str | None, Meta(description="Where it went, if elsewhere than told.")]
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    ttft_ms: float | None
    error: str


class DecisionSummary(msgspec.Struct, kw_only=True, frozen=True):
    """One decision, in short."""

    decision_id: str
    request_id: str
    at: Time
    tenant_id: str
    model_name: str
    policy: str
    state: Annotated[str, Meta(description="Of the index then.")]
    position: str
    prompt_tokens: Tokens
    chosen: Annotated[PlacedDocument | None, Meta(description="Who computes the prompt.")]
    decode: Annotated[PlacedDocument | None, Meta(description="Who decodes, if another one.")]
    refused: Annotated[str, Meta(description="Why no engine was chosen; empty: one was.")]
    by_load: Annotated[
        str,
        Meta(
            description="Why the index had no say, as `Reprise-By-Load` of the gateway or"
            " `Reprise-Tokens` of `/route`; empty: it had, or another service decided."
        ),
    ]
    candidates: int
    promised_tokens: Annotated[int, Meta(description="That the chosen one was said to hold.")]
    held_tokens: Annotated[int, Meta(description="The most that any instance held.")]
    ttft_ms: Annotated[float, Meta(description="Expected, to the first token.")]
    outcome: OutcomeDocument | None
    traceparent: Annotated[str, Meta(description="Of the span that decided; empty: none.")]
    tracestate: Annotated[str, Meta(description="That came with it; empty: none.")]


class MarkDocument(msgspec.Struct, kw_only=True, frozen=True):
    """A prefix of the prompt, as `GET /prefixes` counts it."""

    tokens: Tokens
    prefix_hash: Hash


class ConsideredDocument(CandidateDocument, frozen=True):
    """A candidate, with what its key was made of. The lowest key wins."""

    key_terms: Annotated[
        dict[str, float],
        Meta(description="The policy's own, in `key_unit`: they add up to `key`."),
    ]


class DecisionDocument(DecisionSummary, kw_only=True, frozen=True):
    """One decision, with each candidate and what the policy made of it."""

    lora_name: str
    block_size: int
    session_id: str
    phase: str
    priority: int
    ttft_slo_ms: Annotated[float, Meta(description="0: none was set.")]
    tbt_slo_ms: float
    key_unit: Annotated[
        str, Meta(description="Of keys: `s`, `tokens`, `blocks`, `turns`; empty: plain numbers.")
    ]
    kept_session: Annotated[
        bool,
        Meta(description="Whether it went where the session was, which was nearly the best."),
    ]
    prefixes: Annotated[list[MarkDocument], Meta(description="By rising depth.")]
    considered: list[ConsideredDocument]


class DecisionsDocument(msgspec.Struct, kw_only=True, frozen=True):
    """The last decisions that this service knows, the latest first."""

    decisions: list[DecisionSummary]
    since: Annotated[
        float,
        Meta(
            description="Unix seconds: earlier ones are in the routing log alone, where"
            " `reprise audit verify` derives each of them again."
        ),
    ]


def decision_summary(recent: RecentDecision) -> DecisionSummary:
    """In short."""
    return DecisionSummary(**_fields(recent))


def decision_document(recent: RecentDecision) -> DecisionDocument:
    """With its candidates. Cost O(candidates)."""
    decision = recent.decision
    return DecisionDocument(
        **_fields(recent),
        lora_name=decision.scope.lora_name,
        block_size=decision.scope.block_size,
        session_id=decision.session_id,
        phase=decision.phase.value,
        priority=decision.priority,
        ttft_slo_ms=1000.0 * decision.ttft_slo_s,
        tbt_slo_ms=1000.0 * decision.tbt_slo_s,
        key_unit=key_unit(decision.policy),
        kept_session=_kept_session(decision),
        prefixes=[
            MarkDocument(
                tokens=mark.blocks * decision.scope.block_size, prefix_hash=str(mark.prefix)
            )
            for mark in decision.marks
        ],
        considered=[_considered(one, decision) for one in decision.candidates],
    )


def _fields(recent: RecentDecision) -> dict[str, Any]:
    decision = recent.decision
    promised = decision.candidates[decision.chosen].prefix if decision.chosen >= 0 else 0
    return {
        "decision_id": decision_id(recent.run, decision.number),
        "request_id": decision.request_id,
        "at": decision.time,
        "tenant_id": decision.scope.tenant_id,
        "model_name": decision.scope.model_name,
        "policy": decision.policy,
        "state": decision.state,
        "position": decision.position,
        "prompt_tokens": decision.prompt_tokens,
        "chosen": _placed(decision, decision.chosen),
        "decode": _placed(decision, decision.decode),
        "refused": decision.refused.value,
        "by_load": recent.by_load,
        "candidates": len(decision.candidates),
        "promised_tokens": promised,
        "held_tokens": decision.held,
        "ttft_ms": 1000.0 * decision.predicted_s,
        "outcome": _outcome(recent.outcomes),
        "traceparent": decision.traceparent,
        "tracestate": decision.tracestate,
    }


def _considered(one: CandidateRecord, decision: Decision) -> ConsideredDocument:
    document = candidate_document(one, decision)
    terms = {}
    if document.key is not None:
        terms = key_terms(decision.policy, one, decision.prompt_tokens)
    return ConsideredDocument(**msgspec.structs.asdict(document), key_terms=terms)


def _kept_session(decision: Decision) -> bool:
    """Whether a lower key was there, and the session's last place was chosen instead."""
    if decision.chosen < 0 or decision.last is None:
        return False
    one = decision.candidates[decision.chosen]
    if (one.instance_id, one.dp_rank) != (decision.last.instance_id, decision.last.dp_rank):
        return False
    keys = [candidate_document(held, decision).key for held in decision.candidates]
    return one.key > min(key for key in keys if key is not None)


def _placed(decision: Decision, index: int) -> PlacedDocument | None:
    if index < 0:
        return None
    one = decision.candidates[index]
    return PlacedDocument(instance_id=one.instance_id, dp_rank=one.dp_rank)


def _outcome(outcomes: tuple[FeedbackReport, ...]) -> OutcomeDocument | None:
    """All reports as one: of each thing that was told, what was told last."""
    if not outcomes:
        return None
    last = outcomes[-1]

    def told(name: str) -> object:
        values = [getattr(one, name) for one in outcomes]
        return next((value for value in reversed(values) if value not in (None, "")), None)

    ttft = told("ttft_s")
    return OutcomeDocument(
        event=last.event.value,
        at=last.time,
        ttft_ms=1000.0 * ttft if isinstance(ttft, float) else None,
        error=str(told("error") or ""),
        **{
            name: told(name)  # type: ignore[arg-type]
            for name in ("instance_id", "prompt_tokens", "cached_tokens", "output_tokens")
        },
    )


def decision_routes(router: Router, default_wire: Wire) -> Routes:
    """Both; decisions of other services are there once the routing log has brought them."""
    routes = Routes(tags=["routing"])

    @routes.get(
        "/decisions",
        summary="The last decisions, the latest first, and what came of each",
        openapi_extra=openapi.operation(DecisionsDocument, *BOTH_WIRES),
    )
    async def decisions(request: Request) -> Response:
        wire = reply_wire(request.headers.raw, default_wire)
        given = dict(read_parameters(request.scope["query_string"], errors="strict"))
        limit, prefix = _limit(given.get("limit", "")), _prefix(given.get("prefix", ""))
        wanted = limit if prefix is None else RECENT_DECISIONS_MAX
        found = router.live.recent(wanted, access_of(request).admits)
        if prefix is not None:
            found = [one for one in found if any(mark[1] == prefix for mark in one.decision.marks)]
            found = found[:limit]
        document = DecisionsDocument(
            decisions=[decision_summary(one) for one in found],
            since=router.live.recent_since(router.started),
        )
        return respond(document, wire)

    @routes.get(
        "/decisions/{name}",
        summary="One of the last decisions, with each candidate and what the policy made of it",
        openapi_extra=openapi.operation(DecisionDocument, *BOTH_WIRES),
    )
    async def decision(name: str, request: Request) -> Response:
        wire = reply_wire(request.headers.raw, default_wire)
        key = parse_decision_id(name)
        found = None if key is None else router.live.find_recent(*key)
        if found is None or not access_of(request).admits(found.decision.scope.tenant_id):
            text = (
                f"expected the id of one of the last {RECENT_DECISIONS_MAX} decisions,"
                f" as `GET /decisions` lists them, got: {name[:80]}; those from before its `since`"
                " are in the routing log alone, which `reprise audit verify` reads"
            )
            raise RequestError("unknown_decision", text, status=404)
        return respond(decision_document(found), wire)

    return routes


def _prefix(text: str) -> int | None:
    """The hash of a prefix of which prompts are wanted; None: of any."""
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        message = f"expected prefix to be a prefix hash, as /prefixes has it, got: {text[:80]}"
        raise RequestError("invalid_value", message, field="prefix")
    return int(text)


def _limit(text: str) -> int:
    if not text:
        return _SHOWN
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        message = f"expected limit to be a number of at least 1, got: {text[:80]}"
        raise RequestError("invalid_value", message, field="limit")
    return min(int(text), RECENT_DECISIONS_MAX)
