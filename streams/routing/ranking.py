"""Order, ties, and who is overloaded: what the policies share."""

import struct
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Final

import xxhash

from streams.routing.interface import Candidate, Choice, Request

_DECISION: Final = struct.Struct("<Q")
_KEY: Final = attrgetter("key")


def tie_break(tie: int, instance_id: str, dp_rank: int = 0) -> int:
    """Where a candidate stands among equals, u64. Other for each decision, so that equals take
    turns, and the same wherever it is computed.
    """
    name = f"{instance_id}\0{dp_rank}" if dp_rank else instance_id
    return xxhash.xxh3_64_intdigest(_DECISION.pack(tie) + name.encode())


def ordered(request: Request, choices: list[Choice]) -> list[Choice]:
    """The choices by key, equal ones by `tie_break`. Sorts in place."""
    choices.sort(key=_KEY)
    if any(one.key == next_one.key for one, next_one in pairwise(choices)):
        choices.sort(
            key=lambda choice: (
                choice.key,
                tie_break(request.tie, choice.candidate.instance_id, choice.candidate.dp_rank),
            )
        )
    return choices


def not_overloaded(candidates: Sequence[Candidate], wait_s: float) -> Sequence[Candidate]:
    """Those who would begin within so many seconds; all of them where nobody would."""
    return [one for one in candidates if one.wait_s <= wait_s] or candidates
