"""The routing log, format version 1: what was decided, what came of it, and what engines carry.

One record is one msgpack map, tagged by `kind`:

    kind       str    "decisions" | "outcomes" | "load" | "unregistered"
    version    int    1; a reader skips and counts records of a newer version
    run        int    of the service whose decisions these are, or are about: Unix microseconds of
                      its start, the last 20 bits by chance. 0 for the others
    time       float  Unix seconds when it was written; what expires goes by the largest one seen
    decisions  array  of `Decision`, in the order of their numbers
    outcomes   array  of `FeedbackReport`, in the order in which they came
    samples    array  of `LoadSample`
    engines    array  of `UnregisteredEngine`

A decision has the name `RUN-NUMBER`, in hexadecimal (`decision_id`), so that an outcome tells whose
it is: it goes where the decision went, to one partition, and behind it. One order of both is what
makes the fold of a partition the same everywhere.

Prompts are never in it: a decision names some of their prefix hashes, and counts.

Elements of the arrays are msgpack arrays. A reader must ignore map keys that it does not know, and
what stands behind the last element that it knows: fields are only ever added.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from schemas.identities import Rank, Text
from schemas.limits import NAME_BYTES_MAX, TRACESTATE_CHARS_MAX
from schemas.positions import Duration, Seconds
from schemas.tracing import join_context

ROUTING_VERSION: Final = 1

TokenCount = Annotated[int, Meta(ge=0, le=2**40)]
Count = Annotated[int, Meta(ge=0, le=2**40)]
Number = Annotated[int, Meta(ge=0, le=2**62)]
FiniteFloat = Annotated[float, Meta(ge=-1e300, le=1e300)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
RequestName = Annotated[str, Meta(max_length=NAME_BYTES_MAX)]
TraceStateText = Annotated[str, Meta(max_length=TRACESTATE_CHARS_MAX)]


class Target(NamedTuple):
    """What a request is sent to, and what load is of: a rank of an instance, whatever its models.

    Attributes:
        tenant_id, instance_id, dp_rank: as in its registration.
    """

    tenant_id: Text
    instance_id: Text
    dp_rank: Rank


class Phase(StrEnum):
    """Which instances a request is for."""

    COMBINED = "combined"
    PREFILL = "prefill"
    DECODE = "decode"
    PAIR = "pair"


class Reason(StrEnum):
    """Why a candidate was left out, or that something is to be known of it."""

    NOT_ALLOWED = "not_allowed"
    UNREACHABLE = "unreachable"
    FAILING = "failing"
    DEGRADED = "degraded"
    MEMORY = "memory"
    QUEUE_FULL = "queue_full"
    SLO = "slo"
    POLICY = "policy"


class Refusal(StrEnum):
    """Why nobody was chosen; "" where somebody was."""

    NO = ""
    NO_CANDIDATE = "no_candidate"
    OVERLOADED = "overloaded"
    SLO_UNREACHABLE = "slo_unreachable"
    DECODE_PREDICTED = "decode_predicted"


class CostModel(NamedTuple):
    """See `routing.costs.Costs`, whose fields these are, in its order."""

    fixed_s: FiniteFloat
    prefill_tokens_per_s: float
    token_squared_s: FiniteFloat
    load_tokens_per_s: float
    fetch_tokens_per_s: float
    pool_tokens_per_s: float
    disk_tokens_per_s: float


class CandidateRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A candidate as the policy saw it, and what it made of it.

    Attributes:
        reasons: `Reason`s; with one of these but `DEGRADED` it was left out.
        cached: tokens of the prompt that it was taken to hold, on any tier.
        gpu, cpu, disk: of these, up to which one they are on the GPU, then on the CPU or in a
            shared pool, then on disk: rising.
        wait_s: seconds until it would have begun.
        requests, pending, active, shared: see `routing.interface.Candidate`.
        costs: index of its `CostModel` in the decision.
        key: the policy's; the lowest was chosen.
        prefix: tokens that it would not have had to compute.
        fetch_from: whom it would have fetched the rest of that from, "" for nobody.
        queue_s, load_s, transfer_s, prefill_s: what the time to the first token was made of.
        tbt_s: between two tokens, where it was a candidate for decoding; 0 elsewhere.
        predicted: of the cached ones, those that only decisions say it holds, or will.
        others: see `routing.interface.Candidate`; 0 in records of before there was one.
    """

    instance_id: Text
    dp_rank: Rank
    reasons: tuple[Text, ...] = ()
    cached: TokenCount = 0
    gpu: TokenCount = 0
    cpu: TokenCount = 0
    disk: TokenCount = 0
    wait_s: Duration = 0.0
    requests: Count = 0
    pending: TokenCount = 0
    active: TokenCount = 0
    shared: TokenCount = 0
    costs: Count = 0
    key: FiniteFloat = 0.0
    prefix: TokenCount = 0
    fetch_from: Text = ""
    queue_s: Duration = 0.0
    load_s: Duration = 0.0
    transfer_s: Duration = 0.0
    prefill_s: Duration = 0.0
    tbt_s: Duration = 0.0
    predicted: TokenCount = 0
    others: Duration = 0.0

    @property
    def work_s(self) -> float:
        """How long the request would have kept it busy: waiting left out."""
        return self.load_s + self.transfer_s + self.prefill_s


class PrefixMark(NamedTuple):
    """A prefix of the prompt: so many blocks, and its hash."""

    blocks: Count
    prefix: Annotated[int, Meta(ge=0)]


class PartitionPosition(NamedTuple):
    """What the table had folded of one partition of the events; -1 for nothing."""

    partition: Annotated[int, Meta(ge=0)]
    offset: Annotated[int, Meta(ge=-1)]


class DecidedScope(NamedTuple):
    """A `PrefixScope` as a request had it: it may name what no log has."""

    tenant_id: Text
    model_name: Text
    lora_name: Text
    block_size: Annotated[int, Meta(ge=1)]
    additional_salt: Text


class Decision(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One answer of `POST /route` that was to be kept to.

    Attributes:
        number: of its run, from 0.
        time: Unix seconds.
        request_id: of the client, or made up.
        policy: with its parameters, as `routing.policies.table.parse_policy` reads it.
        positions: of the table that was asked.
        state: how far it could be trusted then, a `schemas.answer_states.AnswerState`.
        expected_output_tokens: that it was taken to have in the end.
        phase: what was asked for.
        ttft_slo_s, tbt_slo_s: the objectives; 0 for none.
        session_id: of the request, or "".
        tie: what puts candidates of equal keys in order.
        class_tokens, is_hot: see `routing.interface.Request`.
        costs: the cost models of the candidates.
        candidates: all of them, by instance and rank.
        chosen: index of the one for prefill, or for all; -1 for none.
        decode: index of the one for decoding; -1 for none.
        refused: a `Refusal`.
        p90: so many times the expected time to the first token is its 90th percentile.
        predicted_s: how long after the decision the first token was expected.
        marks: prefixes of the prompt, at 1, 2, 4, 8... blocks, where the longest match ends, and
            at its last whole block.
        hashes: prefix hashes of the prompt's blocks, u64 LE, up to the first that no candidate
            holds, where the decision is one of those to be proven; else b"".
        held: the most tokens that one instance held of the prompt, candidate or not.
        class_name, decode_class: of those that were chosen: who takes the same time for the same.
        kv_bytes: of a token of the model; 0 where that is not known.
        decode_running, decode_kv_tokens: what the one that decodes had beside it.
        is_approximate: whether the chosen one publishes no events.
        capacity_tokens: of its cache then, 0 where that is not known.
        last: where the session's request before went, if that counted.
        degraded: what was made of candidates that had lost something, a
            `routing.policies.decide.DegradedPolicy`; "" in records before there was this field.
        traceparent: of the span that decided, else of the request; "" for none. One that is no
            context (`schemas.tracing.read_traceparent`) is to be ignored.
        tracestate: that came with it; "" for none.
        decode_s: how long all tokens behind the first were expected to take; 0 in records before
            there was this field.
        is_sure: whether nothing was doubted of what the chosen one holds, but what outcomes
            contradict, whatever of others; False in records before there was this field.
    """

    number: Number
    time: Seconds
    request_id: RequestName
    scope: DecidedScope
    policy: Text
    positions: tuple[PartitionPosition, ...]
    state: Text
    prompt_tokens: TokenCount
    expected_output_tokens: TokenCount
    phase: Phase
    ttft_slo_s: Duration
    tbt_slo_s: Duration
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
    session_id: RequestName
    tie: Annotated[int, Meta(ge=0)]
    class_tokens: TokenCount
    is_hot: bool
    costs: tuple[CostModel, ...]
    candidates: tuple[CandidateRecord, ...]
    chosen: Annotated[int, Meta(ge=-1)]
    decode: Annotated[int, Meta(ge=-1)]
    refused: Refusal = Refusal.NO
    p90: Duration = 1.0
    predicted_s: Duration = 0.0
    marks: tuple[PrefixMark, ...] = ()
    hashes: bytes = b""
    held: TokenCount = 0
    class_name: Text = ""
    decode_class: Text = ""
    kv_bytes: TokenCount = 0
    decode_running: Count = 0
    decode_kv_tokens: TokenCount = 0
    is_approximate: bool = False
    capacity_tokens: TokenCount = 0
    last: Target | None = None
    degraded: Text = ""
    traceparent: RequestName = ""
    tracestate: TraceStateText = ""
    decode_s: Duration = 0.0
    is_sure: bool = False

    @property
    def context(self) -> str:
        """Of its span; see `schemas.tracing`."""
        return join_context(self.traceparent, self.tracestate)

    @property
    def position(self) -> str:
        """As the header `Reprise-Position` has it."""
        return ",".join(f"{partition}:{offset}" for partition, offset in self.positions)

    def target(self, index: int) -> Target:
        """The candidate of that index, as what load is of."""
        one = self.candidates[index]
        return Target(self.scope.tenant_id, one.instance_id, one.dp_rank)


class OutcomeEvent(StrEnum):
    """What became of a request, in the order in which it does. `dispatched` or `first_token` again
    says that it is still there.
    """

    DISPATCHED = "dispatched"
    FIRST_TOKEN = "first_token"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


# Read from here where each report passes: an attribute of an enumeration costs 0.2 us.
DISPATCHED: Final = OutcomeEvent.DISPATCHED
FIRST_TOKEN: Final = OutcomeEvent.FIRST_TOKEN
COMPLETED: Final = OutcomeEvent.COMPLETED
FAILED: Final = OutcomeEvent.FAILED
CANCELLED: Final = OutcomeEvent.CANCELLED

ENDS: Final = frozenset({COMPLETED, FAILED, CANCELLED})
"""What nothing comes after."""


class FeedbackReport(msgspec.Struct, frozen=True, array_like=True):
    """One report of a client; what it did not say is None.

    Attributes:
        number: of the decision.
        time: when, Unix seconds, by the service that was told.
        instance_id, dp_rank: where the request really went; None for where it was sent.
        prompt_tokens, cached_tokens: as the engine counts them.
        queue_s, prefill_s, ttft_s: how long it waited, was computed, took to the first token.
        output_tokens: so far.
        tbt_s: mean of the longest tenth of the intervals between two tokens.
        error: why it failed.
        traceparent, tracestate: of the decision, where the service that was told knew it; else "".
    """

    number: Number
    event: OutcomeEvent
    time: Seconds
    instance_id: Text | None = None
    dp_rank: Rank | None = None
    prompt_tokens: TokenCount | None = None
    cached_tokens: TokenCount | None = None
    queue_s: Duration | None = None
    prefill_s: Duration | None = None
    ttft_s: Duration | None = None
    output_tokens: TokenCount | None = None
    tbt_s: Duration | None = None
    error: Text = ""
    traceparent: RequestName = ""
    tracestate: TraceStateText = ""


class LoadSource(StrEnum):
    """Who says what an instance carries."""

    REQUEST = "request"
    POSTED = "posted"
    SCRAPED = "scraped"


class LoadSample(msgspec.Struct, frozen=True, array_like=True):
    """What an instance carries at a moment; what is not known is None.

    Attributes:
        observed_at: when it was so, Unix seconds.
        source: who says so.
        running, waiting: requests that it computes, and that wait.
        prefill_tokens: that it has yet to compute of these.
        kv_usage: the share of its KV cache that is in use.
        kv_capacity_tokens: that its KV cache has room for.
        is_away: whether its HTTP address does not answer. Said of engines without events alone: of
            others it stands in the log of events.
    """

    target: Target
    observed_at: Seconds
    source: LoadSource
    running: Count | None = None
    waiting: Count | None = None
    prefill_tokens: TokenCount | None = None
    kv_usage: Fraction | None = None
    kv_capacity_tokens: TokenCount | None = None
    is_away: bool = False


class UnregisteredEngine(NamedTuple):
    """An engine that serves a model no more."""

    target: Target
    model_name: Text


class _Envelope(msgspec.Struct, kw_only=True, frozen=True, tag_field="kind"):
    run: Number
    time: Seconds
    version: int = ROUTING_VERSION


class DecisionsRecord(_Envelope, kw_only=True, frozen=True, tag="decisions"):
    """What one service decided in one window."""

    decisions: tuple[Decision, ...]


class BriefDecisions(DecisionsRecord, kw_only=True, frozen=True, tag="decisions"):
    """The same as its writer has it.

    Attributes:
        decisions: with their chosen candidates alone: all that a fold looks at.
        encoded: each with all candidates, as it stands in the log.
    """

    encoded: tuple[bytes, ...]


class _EncodedDecisions(_Envelope, kw_only=True, frozen=True, tag="decisions"):
    decisions: tuple[msgspec.Raw, ...]


class OutcomesRecord(_Envelope, kw_only=True, frozen=True, tag="outcomes"):
    """What came of decisions of one run."""

    outcomes: tuple[FeedbackReport, ...]


class LoadRecord(_Envelope, kw_only=True, frozen=True, tag="load"):
    """What instances carry."""

    samples: tuple[LoadSample, ...]


class UnregisteredEngines(_Envelope, kw_only=True, frozen=True, tag="unregistered"):
    """Engines that are registered no more: what was sent there counts no more. In older
    records only those without events.
    """

    engines: tuple[UnregisteredEngine, ...]


RoutingRecord = DecisionsRecord | OutcomesRecord | LoadRecord | UnregisteredEngines

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Decision)


def encode_routing(record: RoutingRecord) -> bytes:
    """The record as it stands in the routing log."""
    if isinstance(record, BriefDecisions):
        whole = tuple(map(msgspec.Raw, record.encoded))
        return _encoder.encode(_EncodedDecisions(run=record.run, time=record.time, decisions=whole))
    return _encoder.encode(record)


def decode_decision(encoded: bytes) -> Decision:
    """One of `BriefDecisions.encoded`."""
    return _decoder.decode(encoded)


def decision_id(run: int, number: int) -> str:
    """The name of a decision."""
    return f"{run:x}-{number:x}"


def parse_decision_id(name: str) -> tuple[int, int] | None:
    """Run and number; None where it is no such name."""
    run, dash, number = name.partition("-")
    if not dash or not 0 < len(run) <= 16 or not 0 < len(number) <= 16:
        return None
    try:
        parsed = int(run, 16), int(number, 16)
    except ValueError:
        return None
    return parsed if decision_id(*parsed) == name else None


def traces_of(records: Iterable[RoutingRecord]) -> Iterator[str]:
    """The contexts of what was decided and told in these, each as often as it stands there."""
    for record in records:
        if isinstance(record, DecisionsRecord):
            told: tuple[Decision, ...] | tuple[FeedbackReport, ...] = record.decisions
        elif isinstance(record, OutcomesRecord):
            told = record.outcomes
        else:
            continue
        for one in told:
            if one.traceparent:
                yield join_context(one.traceparent, one.tracestate)


def marks_at(blocks: int, longest: int) -> Iterable[int]:
    """At how many blocks a prompt is marked: the powers of two, where its match ends, its end."""
    depth, depths = 1, {blocks} if blocks else set()
    while depth <= blocks:
        depths.add(depth)
        depth *= 2
    if 0 < longest <= blocks:
        depths.add(longest)
    return sorted(depths)
