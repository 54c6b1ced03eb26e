"""What `GET /promises`, `GET /prefixes` and `GET /advice` answer, as types."""

from typing import Annotated

import msgspec
from msgspec import Meta

Tokens = Annotated[int, Meta(ge=0, description="Tokens.")]
Share = Annotated[float, Meta(description="Of the prompts' tokens; 0 where there are none.")]
Time = Annotated[float, Meta(description="Unix seconds.")]
Hash = Annotated[str, Meta(description="Decimal, u64.")]


class BucketDocument(msgspec.Struct, kw_only=True):
    """How many were at most so much, and above the bucket before."""

    le: Annotated[float | None, Meta(description="null: all that is above the last one.")]
    count: int


class PromisedTokens(msgspec.Struct, kw_only=True):
    """Tokens of the prompts for which an engine told its hits."""

    prompt: Tokens
    promised: Annotated[int, Meta(description="That the chosen instance was said to hold.")]
    predicted: Annotated[int, Meta(description="Of these, those that only decisions said it held.")]
    actual: Annotated[int, Meta(description="That the engine had.")]
    fetched: Annotated[int, Meta(description="That were to be fetched from elsewhere, and came.")]
    unpromised: Annotated[
        int, Meta(description="That it had, though no event or decision had said so.")
    ]


class LostToRouting(msgspec.Struct, kw_only=True):
    """Tokens that another instance held."""

    tokens: Tokens
    share: Share
    not_fetched: Annotated[int, Meta(description="Of these, those that were to be fetched.")]


class LostToIndex(msgspec.Struct, kw_only=True):
    """Tokens that the index said were held, and the engine did not have: the over-promise."""

    tokens: Tokens
    share: Share
    stale: Annotated[int, Meta(description="The table was behind its log.")]
    degraded: Annotated[int, Meta(description="Batches of a publisher were lost.")]
    unconfirmed: Annotated[int, Meta(description="Nothing was known to be missing.")]
    evicted: Annotated[int, Meta(description="The answer was exact: dropped since.")]
    predicted: Annotated[int, Meta(description="Only decisions said that they were held.")]


class LostToWorkload(msgspec.Struct, kw_only=True):
    """Tokens that nobody was known to hold."""

    tokens: Tokens
    share: Share


class LostTokens(msgspec.Struct, kw_only=True):
    """Where the tokens went that were computed: the three are all of `prompt - actual`."""

    workload: LostToWorkload
    routing: LostToRouting
    index: LostToIndex


class FirstTokens(msgspec.Struct, kw_only=True):
    """Times to the first token against what was expected."""

    count: int
    promised_ms: Annotated[float, Meta(description="Mean.")]
    actual_ms: Annotated[float, Meta(description="Mean.")]
    error: Annotated[float, Meta(description="Mean difference, as a share of the actual mean.")]
    within_p90: Annotated[float, Meta(description="Share; 0.9 where the estimate is right.")]
    ratios: Annotated[list[BucketDocument], Meta(description="Of actual / promised.")]


class PromiseRow(msgspec.Struct, kw_only=True):
    """The promises of one instance, policy or model."""

    tenant_id: str
    name: Annotated[str, Meta(description="Empty: of decisions that chose no instance.")]
    decisions: int
    refused: int
    reported: Annotated[int, Meta(description="Of which an engine told its hits.")]
    unreported: Annotated[int, Meta(description="That ended, or expired, without.")]
    moved: Annotated[int, Meta(description="That went elsewhere than told.")]
    failed: int
    cancelled: int
    miscounted: Annotated[
        int, Meta(description="Of whose prompt the engine has another length than the decision.")
    ]
    tokens: PromisedTokens
    lost: LostTokens
    over_promises: Annotated[
        list[BucketDocument], Meta(description="Of requests, by the share of the prompt.")
    ]
    ttft: FirstTokens


class PromisesDocument(msgspec.Struct, kw_only=True):
    """What decisions promised, and what came of it."""

    by: Annotated[str, Meta(description="`instance`, `policy` or `model`.")]
    since: Annotated[float, Meta(description="Unix seconds; rows are of whole minutes.")]
    open: Annotated[int, Meta(description="Decisions of which more may be told.")]
    forgotten: Annotated[int, Meta(description="Rows of minutes that are too old to be kept.")]
    crowded_out: Annotated[int, Meta(description="Reports for which a minute had no row left.")]
    rows: list[PromiseRow]


class PrefixHolder(msgspec.Struct, kw_only=True, frozen=True):
    """A rank of an instance that has a prefix."""

    instance_id: str
    dp_rank: int
    medium: Annotated[str, Meta(description="The fastest one that has the prefix's last block.")]


class PrefixDocument(msgspec.Struct, kw_only=True):
    """A prefix that is asked for. Counts of hits and tokens are since `since`."""

    prefix_hash: Hash
    parent_hash: Annotated[str, Meta(description="Of the shorter one before it; empty: none.")]
    blocks: int
    tokens: Tokens
    count: Annotated[float, Meta(description="Prompts, halved every 300 s; never too low.")]
    error: Annotated[float, Meta(description="By how much the count may be too high.")]
    rate: Annotated[float, Meta(description="Prompts a second of late, at least.")]
    since: Time
    last_asked: Time
    asked: Annotated[int, Meta(description="Prompts, not halved.")]
    hits_promised: Annotated[int, Meta(description="Sent to who was said to hold all of it.")]
    hits_checked: Annotated[int, Meta(description="Of these, those whose engine told its hits.")]
    hits_confirmed: Annotated[int, Meta(description="Of these, those that were there.")]
    saved_tokens: Annotated[int, Meta(description="Of it, that engines had.")]
    missed_tokens: Annotated[int, Meta(description="Of it, that another than the chosen one held.")]
    replicas: Annotated[int, Meta(description="Instances that hold it.")]
    holders: list[PrefixHolder]


class PrefixScopeDocument(msgspec.Struct, kw_only=True):
    """The prefixes of one scope, those that certainly come most first."""

    tenant_id: str
    model_name: str
    lora_name: str
    block_size: int
    additional_salt: str
    total: Annotated[float, Meta(description="Sum of all counts, listed or not.")]
    error_max: Annotated[float, Meta(description="What one that is not known may have come.")]
    last_asked: Time
    prefixes: list[PrefixDocument]


class PrefixesDocument(msgspec.Struct, kw_only=True):
    """Which prefixes are asked for most, and what became of them."""

    scopes: list[PrefixScopeDocument]


class AdviceTarget(msgspec.Struct, kw_only=True):
    """A rank of an instance."""

    instance_id: str
    dp_rank: int


class AdviceDocument(msgspec.Struct, kw_only=True):
    """What should be done about one hot prefix."""

    tenant_id: str
    model_name: str
    lora_name: str
    block_size: int
    additional_salt: str
    prefix_hash: Hash
    depth_tokens: Tokens
    rate: Annotated[float, Meta(description="Prompts a second of late, at least.")]
    holders: list[AdviceTarget]
    targets: list[AdviceTarget]
    gain_s: Annotated[float, Meta(description="Seconds of prefill that it saves in 300 s.")]
    cost_s: Annotated[float, Meta(description="Seconds that it costs.")]
    action: Annotated[str, Meta(description="`copy`, `pin` or `none`.")]
    why: Annotated[str, Meta(description="In one word.")]
    command: Annotated[
        str,
        Meta(description="What would do it; `/move` and `/pin` want its tokens, not its hash."),
    ]
    held_back: Annotated[
        str, Meta(description="With acting.on: why it was not done at the last look, in one word.")
    ] = ""


class ActDocument(msgspec.Struct, kw_only=True):
    """Something that was done by advice. Times are Unix seconds."""

    command_id: Annotated[str, Meta(description="See `GET /commands/ID`.")]
    action: Annotated[str, Meta(description="`copy` or `pin`.")]
    prefix_hash: Hash
    source: Annotated[str, Meta(description="The instance that executes it.")]
    target: Annotated[str, Meta(description="The instance that then has the prefix.")]
    at: float
    result: Annotated[str, Meta(description="`pending`, `done`, `empty`, `partial` or `failed`.")]
    reason: Annotated[str, Meta(description="Why it is not done, by worker.")]
    tokens: Annotated[int, Meta(description="That were copied or pinned, as workers say.")]


class AdvicesDocument(msgspec.Struct, kw_only=True):
    """What should be done about hot prefixes; the most gain of each scope first."""

    advice: list[AdviceDocument]
    acting: Annotated[bool, Meta(description="Whether this service acts on its advice.")] = False
    acted: Annotated[
        list[ActDocument],
        Meta(description="What was done in the last 1,800 s, by any service; the latest first."),
    ] = []
