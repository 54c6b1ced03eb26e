"""The fields of a line of a trace."""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from schemas.limits import TRACE_BLOCKS_MAX, TRACE_TOKENS_MAX

# What is above a bound ends the reading with the line's number.
TRACE_MS_MAX: Final = 1e13  # three hundred years
TRACE_SESSION_CHARS_MAX: Final = 256  # of a session's name

Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=TRACE_MS_MAX)]
TokenCount = Annotated[int, msgspec.Meta(ge=0, le=TRACE_TOKENS_MAX)]
BlockId = int
"""Opaque."""


class TraceRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request, as `{"timestamp":0,"input_length":6758,"output_length":500,"hash_ids":[0,1]}`.

    Attributes:
        timestamp: when it arrives, in ms from the trace's beginning.
        input_length: tokens of the prompt.
        output_length: tokens of the answer.
        hash_ids: one id for each block of the prompt, the last one perhaps partial. Equal ids mean
            equal prefixes: a block's id stands for all that comes before it, too.
        session_id: of the conversation that the request is of, as AIPerf's traces name it; None
            where the trace does not say it.
    """

    timestamp: Milliseconds
    input_length: TokenCount
    output_length: TokenCount
    hash_ids: Annotated[list[BlockId], msgspec.Meta(max_length=TRACE_BLOCKS_MAX)]
    session_id: Annotated[str, msgspec.Meta(max_length=TRACE_SESSION_CHARS_MAX)] | None = None


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """With how many equal ones both begin."""
    return next(
        (number for number, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


class StrictTraceRequest(TraceRequest, frozen=True, forbid_unknown_fields=True):
    """The same, where a field that is not one of these is an error."""
