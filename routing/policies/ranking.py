"""Order, ties, and who is overloaded: what the policies share."""

import struct
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

import xxhash

from routing.interface import Candidate, Choice, Request

_DECISION: Final = struct.Struct("<Q")
_KEY: Final = attrgetter("key")


def tie_of(run: int, number: int) -> int:
    """The tie of a decision of a service, u64; see `routing.interface.Request`."""
    return xxhash.xxh3_64_intdigest(_DECISION.pack(run) + _DECISION.pack(number))


def tie_break(tie: int, instance_id: str, dp_rank: int = 0) -> int:
    """Where a candidate stands among equals, u64. Other for each decision, so that equals take
    turns, and the same wherever it is computed.
    """
    return _digest(_DECISION.pack(tie), instance_id, dp_rank)


def _digest(packed: bytes, instance_id: str, dp_rank: int) -> int:
    name = f"{instance_id}\0{dp_rank}" if dp_rank else instance_id
    return xxhash.xxh3_64_intdigest(packed + name.encode())


def _tie_breaker(tie: int) -> Callable[[Choice], int]:
    """`tie_break` of choices, with what they have in common done once."""
    packed = _DECISION.pack(tie)

    def key(choice: Choice) -> int:
        return _digest(packed, choice.candidate.instance_id, choice.candidate.dp_rank)

    return key


def ordered(request: Request, choices: list[Choice]) -> list[Choice]:
    """The choices by key, equal ones by `tie_break`. Sorts in place."""
    choices.sort(key=_KEY)
    start, count = 0, len(choices)
    while start < count:
        key, end = choices[start].key, start + 1
        while end < count and choices[end].key == key:
            end += 1
        if end - start > 1:
            choices[start:end] = sorted(choices[start:end], key=_tie_breaker(request.tie))
        start = end
    return choices


def not_overloaded(candidates: Sequence[Candidate], wait_s: float) -> Sequence[Candidate]:
    """Those who would begin within so many seconds; all of them where nobody would."""
    return [one for one in candidates if one.wait_s <= wait_s] or candidates
