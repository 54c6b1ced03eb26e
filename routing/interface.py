"""What a policy is asked, and what it answers."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, NamedTuple, Protocol

import msgspec

from routing.costs import Costs

ROUTE_WEIGHT_MAX: Final = 1e6  # of a term of a policy: sums of them stay finite: status="400"

Weight = Annotated[float, msgspec.Meta(ge=0, le=ROUTE_WEIGHT_MAX)]
"""Of a term, as a parameter."""


class Request(NamedTuple):
    """A request to be routed.

    Attributes:
        decision: its number among all decisions, from 0; what `round-robin` goes by.
        tie: u64 that names the decision; candidates with equal keys are put in an order that
            follows from it (`ranking.ordered`).
        class_tokens: by so many first ones it is of the class of `HotClasses`; 0 for of none.
        is_hot: whether that class comes more often than those who hold its beginning can serve.
    """

    decision: int
    prompt_tokens: int
    tie: int = 0
    class_tokens: int = 0
    is_hot: bool = False


class Candidate(NamedTuple):
    """An instance that may be chosen, with what is known of it.

    Attributes:
        cached: tokens of the prompt that it holds as a continuous prefix, on any tier.
        gpu: of these, the first ones, which are on its GPU; the others must be loaded.
        wait_s: seconds until it would begin with this request.
        disk: of the cached ones, the last, which are on disk; those between are on the CPU tier.
        requests: that it was given and has not ended.
        pending: tokens that it has to compute of these, cached ones left out.
        active: tokens that requests under way hold on its GPU, each block once.
        shared: of these, the first ones of this prompt.
        costs: what things take there; None: what the policy is given for all.
        dp_rank: of the instance; each rank is a candidate of its own.
        waiting: requests that wait there, by its own word.
        kv_usage: the share of its KV cache that is used, by its own word.
        is_allowed: whether the request may go there.
        is_reachable: whether its publisher is there.
        is_degraded: whether its publisher has lost something.
        predicted: of the cached tokens, those that only decisions say it holds.
        is_failing: whether its requests fail, and none is to be tried now.
        others: whom its queue delays; see `routing.policies.recent_work.RecentWork.others`.
    """

    instance_id: str
    cached: int = 0
    gpu: int = 0
    wait_s: float = 0.0
    disk: int = 0
    requests: int = 0
    pending: int = 0
    active: int = 0
    shared: int = 0
    costs: Costs | None = None
    dp_rank: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    is_allowed: bool = True
    is_reachable: bool = True
    is_degraded: bool = False
    predicted: int = 0
    is_failing: bool = False
    others: float = 0.0


class Choice(NamedTuple):
    """A candidate with its key and the terms that the key was made of.

    Attributes:
        key: the lowest wins.
        prefix: tokens that it would not have to compute, those that it would fetch included.
        fetch_from: instance that it would fetch the rest of the prefix from, "" for none.
        queue_s, load_s, transfer_s, prefill_s: seconds that it would wait, load from a slower tier,
            fetch, and compute. Policies that do not estimate them leave 0.
    """

    key: float
    candidate: Candidate
    prefix: int
    fetch_from: str = ""
    queue_s: float = 0.0
    load_s: float = 0.0
    transfer_s: float = 0.0
    prefill_s: float = 0.0


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a policy that has none; those of the others derive from it."""


class Rank(Protocol):
    """A policy: all candidates, the best first. Cost O(candidates)."""

    def __call__(
        self, request: Request, candidates: Sequence[Candidate], costs: Costs, parameters: Any, /
    ) -> list[Choice]:
        """Args:
        candidates: at least one, sorted by name.
        parameters: of the policy's own type.
        """
        ...
