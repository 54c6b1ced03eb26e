"""Which instance decodes, where that is not the one that computes the prompt; pure.

It is chosen before the prompt is computed, by its load, and by how long the caches of the prompt
would be on their way to it. Load comes first: who holds the prompt already saves a move, and no
more, so that nobody starves.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from routing.costs import UNLIMITED
from routing.estimates.decode import DecodeTerms
from routing.interface import Weight
from routing.policies.ranking import tie_break
from schemas.routing_records import Reason


class Decoder(NamedTuple):
    """An instance that may decode, with what is known of it.

    Attributes:
        dp_rank: of the instance.
        running: requests that it decodes.
        kv_tokens: tokens that it holds for these.
        running_max: requests that it can decode at once; 0 for not known.
        capacity_tokens: that its cache has room for; 0 for not known.
        held: tokens of the prompt that it has already.
        move_tokens_per_s: how fast the others come: of the instance that computes them, or of the
            pool, as it is chosen to be.
        computes: whether it is the instance that computes the prompt: nothing is moved.
        last_chosen: number of the decision that chose it last, -1 for none.
        terms: what decoding takes there.
    """

    instance_id: str
    dp_rank: int = 0
    running: int = 0
    kv_tokens: int = 0
    running_max: int = 0
    capacity_tokens: int = 0
    held: int = 0
    move_tokens_per_s: float = UNLIMITED
    computes: bool = False
    last_chosen: int = -1
    terms: DecodeTerms = DecodeTerms()


class DecodeRequest(NamedTuple):
    """What is to be decoded.

    Attributes:
        output_tokens: that are expected.
        prefill_s: how long the prompt is computed: caches come layer by layer meanwhile.
        tbt_slo_s: the objective for the time between two tokens; 0 for none.
        tie: see `routing.interface.Request`.
    """

    prompt_tokens: int
    output_tokens: float
    prefill_s: float = 0.0
    tbt_slo_s: float = 0.0
    tie: int = 0


class DecodeParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attributes:
    layers: of the model, where its caches are sent layer by layer; 0: after the prefill.
    room: share of an instance's capacity that prompts and outputs may take.
    weight: of the time between two tokens for all of the output, beside the wait for the caches.
    stay_tokens: with fewer tokens to compute than these, the decoder computes them itself.
    """

    layers: Annotated[int, Meta(ge=0)] = 80
    room: Annotated[float, Meta(gt=0, le=1)] = 0.9
    weight: Weight = 1.0
    stay_tokens: Annotated[int, Meta(ge=0)] = 2048


class DecodeChoice(NamedTuple):
    """A decoder with its key and what that was made of.

    Attributes:
        key: the lowest wins.
        tbt_s: between two tokens, for the new one and for those that run.
        move_s: how long the caches are on their way.
        exposed_s: of that, what the first token's successor waits for.
        reasons: why it cannot be chosen; () for one that can.
    """

    key: float
    decoder: Decoder
    tbt_s: float
    move_s: float
    exposed_s: float
    reasons: tuple[Reason, ...] = ()


def rank_decoders(
    request: DecodeRequest, decoders: Sequence[Decoder], parameters: DecodeParameters
) -> list[DecodeChoice]:
    """All of them: first those that can be chosen, by key, and equal ones by who was chosen least
    recently; then the others in the same order. Cost O(n log n).
    """
    choices = [_weighed(request, one, parameters) for one in decoders]
    choices.sort(
        key=lambda choice: (
            bool(choice.reasons),
            choice.key,
            choice.decoder.last_chosen,
            tie_break(request.tie, choice.decoder.instance_id, choice.decoder.dp_rank),
        )
    )
    return choices


def exposed_s(move_s: float, prefill_s: float, layers: int) -> float:
    """What of a move is waited for: all of it after the prefill, or, layer by layer beside the
    prefill, what that does not hide, and the last layer.
    """
    if not layers:
        return move_s
    return max(move_s - prefill_s, 0.0) + move_s / layers


def is_separate(
    request: DecodeRequest, decoder: Decoder, parameters: DecodeParameters, busy_s: float = 0.0
) -> bool:
    """Whether another instance computes the prompt.

    Args:
        request: what is to be decoded; `prefill_s` is what the other would take.
        decoder: the one that was chosen.
        parameters: how few tokens the decoder computes itself.
        busy_s: how long the other would wait before it begins. Where that alone is above what it
            takes, its side is the busy one, and the decoder computes up to twice as much.
    """
    uncached = request.prompt_tokens - decoder.held
    most = parameters.stay_tokens * (2 if busy_s > request.prefill_s else 1)
    return uncached >= most


def _weighed(request: DecodeRequest, one: Decoder, parameters: DecodeParameters) -> DecodeChoice:
    prompt = request.prompt_tokens
    tbt = one.terms.tbt_s(one.running, one.kv_tokens, prompt)
    moved = 0 if one.computes else max(prompt - one.held, 0)
    move = moved / one.move_tokens_per_s
    exposed = exposed_s(move, request.prefill_s, parameters.layers)
    key = exposed + parameters.weight * request.output_tokens * tbt
    reasons: list[Reason] = []
    if one.running_max and one.running >= one.running_max:
        reasons.append(Reason.QUEUE_FULL)
    needed = one.kv_tokens + prompt + request.output_tokens
    if one.capacity_tokens and needed > parameters.room * one.capacity_tokens:
        reasons.append(Reason.MEMORY)
    if request.tbt_slo_s and tbt > request.tbt_slo_s:
        reasons.append(Reason.SLO)
    return DecodeChoice(key, one, tbt, move, exposed, tuple(reasons))
