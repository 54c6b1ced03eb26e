"""Reads a trace, line by line.

The first line that cannot be used ends it: what comes after a broken line may be of another file,
or out of step. All that was readable before is kept, and the problem says where it is.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from replay.traces.request import StrictTraceRequest, TraceRequest
from schemas.errors import RepriseError
from schemas.limits import (
    ERROR_DETAIL_CHARS_MAX,
    TRACE_LINE_BYTES_MAX,
    TRACE_LOOK_LINES,
    TRACE_REQUESTS_MAX,
)

DEFAULT_BLOCK_SIZE: Final = 512
"""Tokens for each id of the traces that Mooncake has published."""

_FIELDS: Final = ", ".join(field.name for field in msgspec.structs.fields(TraceRequest))


class TraceError(RepriseError):
    """Operator action: mend or leave out the line that is named."""


class Trace(NamedTuple):
    """What was read.

    Attributes:
        name: of the file, without its folder.
        requests: in the order of their times; those of the same time as they stood.
        problem: why reading ended before the end of the file; None where it did not.
        unordered: how many lines stood after one of a later time.
        mismatched: how many have more or fewer blocks than their tokens need; a trailing partial
            block may have an id, or none. Many of them: the block size is another one.
    """

    name: str
    requests: list[TraceRequest]
    problem: TraceError | None = None
    unordered: int = 0
    mismatched: int = 0

    @property
    def notes(self) -> list[str]:
        """What a reader should know of it, as lines."""
        notes = []
        if self.problem is not None:
            count = len(self.requests)
            notes.append(f"{self.problem}. The {count:,} requests before it are used")
        if self.unordered:
            notes.append(f"{self.unordered:,} lines come after one of a later time: put in order")
        if self.mismatched:
            notes.append(
                f"{self.mismatched:,} requests have more or fewer hash_ids than their input_length"
                " needs: is --block-size that of the trace?"
            )
        return notes


def read_trace(
    path: Path,
    *,
    block_size: int = DEFAULT_BLOCK_SIZE,
    ignore_unknown: bool = False,
    when_read: Callable[[int], None] = lambda read_bytes: None,
) -> Trace:
    """All requests of a file, or those before the first line that cannot be used.

    Args:
        path: of the trace.
        block_size: tokens for each id.
        ignore_unknown: whether fields that the format does not have are passed over.
        when_read: called every so many lines with the bytes that were read.

    Raises:
        TraceError: the file cannot be read, or has no request before its first problem.
    """
    decoder = msgspec.json.Decoder(TraceRequest if ignore_unknown else StrictTraceRequest)
    requests: list[TraceRequest] = []
    problem: TraceError | None = None
    latest, unordered, mismatched, read_bytes = 0.0, 0, 0, 0
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(TRACE_LINE_BYTES_MAX + 1):
                number += 1
                read_bytes += len(line)
                try:
                    if request := _request_of(line, decoder):
                        if len(requests) >= TRACE_REQUESTS_MAX:
                            raise ValueError(
                                f"expected at most {TRACE_REQUESTS_MAX:,} requests, got more"
                            )
                        requests.append(request)
                        unordered += request.timestamp < latest
                        latest = max(latest, request.timestamp)
                        whole, rest = divmod(request.input_length, block_size)
                        mismatched += not whole <= len(request.hash_ids) <= whole + (rest > 0)
                except ValueError as error:
                    problem = TraceError(f"{path}:{number}: {error}")
                    break
                if not number % TRACE_LOOK_LINES:
                    when_read(read_bytes)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
    if not requests:
        raise problem or TraceError(f"{path}: expected a request a line, got an empty file")
    if unordered:
        requests.sort(key=lambda request: request.timestamp)
    return Trace(path.name, requests, problem, unordered, mismatched)


def _request_of(line: bytes, decoder: "msgspec.json.Decoder[TraceRequest]") -> TraceRequest | None:
    """None of an empty line; a ValueError says what is wrong."""
    if len(line) > TRACE_LINE_BYTES_MAX:
        raise ValueError(f"expected a line of at most {TRACE_LINE_BYTES_MAX:,} bytes, got more")
    if not line.strip():
        return None
    try:
        request = decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        what = str(error)[:ERROR_DETAIL_CHARS_MAX]
        hint = (
            "; the format does not have it: `--ignore-unknown-fields` passes over such fields"
            if "unknown field" in what
            else ""
        )
        raise ValueError(f"expected an object with {_FIELDS}: {what}{hint}") from error
    return request
