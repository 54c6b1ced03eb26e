"""What a decision has of those who were chosen."""

import msgspec

from routing.decisions.candidates import Candidates
from routing.decisions.live_load import TargetLoad
from schemas.routing_records import Decision, Target


def with_places(
    decision: Decision,
    candidates: Candidates,
    chosen: int,
    decode: int,
    last: Target | None,
) -> Decision:
    """The decision with what is known of those who were chosen, as indices; -1 for nobody."""
    if chosen < 0 and decode < 0:
        return msgspec.structs.replace(decision, chosen=-1, last=last)
    first = candidates.known[chosen if chosen >= 0 else decode]
    decoder = candidates.known[decode] if decode >= 0 else first
    load = candidates.carried[decode if decode >= 0 else chosen]
    return msgspec.structs.replace(
        decision,
        chosen=chosen,
        decode=decode,
        p90=first.p90,
        class_name=first.class_name,
        decode_class=decoder.class_name if decode >= 0 else "",
        kv_bytes=first.kv_bytes,
        decode_running=load.requests,
        decode_kv_tokens=load.kv_tokens,
        is_approximate=first.is_approximate,
        capacity_tokens=first.capacity_tokens or _capacity_of(candidates.carried[chosen]),
        last=last,
        is_sure=first.is_sure and not (first.doubts_adapters and decision.scope.lora_name),
    )


def _capacity_of(carried: TargetLoad) -> int:
    """By the word of its newest sample; 0 where that says nothing."""
    return (carried.sample.kv_capacity_tokens or 0) if carried.sample is not None else 0
