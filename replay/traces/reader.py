"""Reads a trace, line by line.

The first line that cannot be used ends it: what comes after a broken line may be of another file,
or out of step. All that was readable before is kept, and the problem says where it is.
"""

import gzip
import io
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

import msgspec

from replay.bounds import TRACE_REQUESTS_MAX
from replay.traces.counts import counted
from replay.traces.request import BlockId, StrictTraceRequest, TraceRequest, common_length
from schemas.errors import RepriseError
from schemas.limits import ERROR_DETAIL_CHARS_MAX, MIB, TRACE_LOOK_LINES

# What is above a bound ends the reading with the line's number.
TRACE_LINE_BYTES_MAX: Final = 16 * MIB  # of one request

DEFAULT_BLOCK_SIZE: Final = 512
"""Tokens for each id of the traces that Mooncake has published."""

STDIN: Final = Path("-")

_FIELDS: Final = ", ".join(field.name for field in msgspec.structs.fields(TraceRequest))
_GZIP: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_REQUEST: Final = msgspec.json.Decoder(TraceRequest)
_OWN_LOGS: Final = 'docs/offline.md, "A trace from your own request logs", makes them'
_BLOCK_SIZES: Final = tuple(2**power for power in range(15))
"""Block sizes that are tried where no request fits the one that was given."""


class TraceError(RepriseError):
    """Operator action: mend or leave out the line that is named."""


class Trace(NamedTuple):
    """What was read.

    Attributes:
        name: of the file, without its folder.
        requests: in the order of their times; those of the same time as they stood.
        problem: why reading ended before the end of the file; None where it did not.
        cut: the same with what was used and what was not, in a sentence without the file's name.
        unordered: how many lines stood after one of a later time.
        mismatched: how many have more or fewer blocks than their tokens need; a trailing partial
            block may have an id, or none. Many of them: the block size is another one.
    """

    name: str
    requests: list[TraceRequest]
    problem: TraceError | None = None
    cut: str = ""
    unordered: int = 0
    mismatched: int = 0

    @property
    def notes(self) -> list[str]:
        """What a reader should know of it, as lines; `cut` is the first."""
        notes = [self.cut] if self.cut else []
        if self.unordered:
            come = "comes" if self.unordered == 1 else "come"
            lines = counted(self.unordered, "line")
            notes.append(f"{lines} {come} after one of a later time: put in order")
        if self.mismatched:
            has = "has" if self.mismatched == 1 else "have"
            notes.append(
                f"{counted(self.mismatched, 'request')} {has} more or fewer hash_ids than the"
                " input_length needs: is --block-size that of the trace?"
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
        path: of the trace, which may be compressed by gzip; `-` for standard input.
        block_size: tokens for each id.
        ignore_unknown: whether fields that the format does not have are passed over.
        when_read: called every so many lines with the bytes that were read.

    Raises:
        TraceError: the file cannot be read, has no request before its first problem, or no request
            fits the block size.
    """
    decoder = msgspec.json.Decoder(TraceRequest if ignore_unknown else StrictTraceRequest)
    requests: list[TraceRequest] = []
    problem, cut = "", ""
    latest, unordered, mismatched = 0.0, 0, 0
    sessions: dict[str, list[BlockId]] = {}  # of each its last prompt
    name = "standard input" if path == STDIN else str(path)
    try:
        with _opened(path) as (file, position):
            number = 0
            while line := file.readline(TRACE_LINE_BYTES_MAX + 1):
                number += 1
                try:
                    if request := _request_of(line.removeprefix(_BOM), decoder):
                        if len(requests) >= TRACE_REQUESTS_MAX:
                            raise ValueError(
                                f"expected at most {TRACE_REQUESTS_MAX:,} requests, got more"
                            )
                        _share_ids(request, sessions)
                        requests.append(request)
                        unordered += request.timestamp < latest
                        latest = max(latest, request.timestamp)
                        mismatched += not _fits(request, block_size)
                except ValueError as error:
                    problem = str(error)
                    after = max(0, _lines_after(file) - (not line.endswith(b"\n")))
                    break
                if not number % TRACE_LOOK_LINES:
                    when_read(position())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{name}: cannot be read as gzip: {error}") from error
    except OSError as error:
        raise TraceError(f"{name}: cannot be read: {error.strerror}") from error
    if problem:
        cut = (
            f"line {number}: {problem}. Used before it: {counted(len(requests), 'request')};"
            f" not read after it: {counted(after, 'line')}"
        )
    found = TraceError(f"{name}:{number}: {problem}") if problem else None
    if not requests:
        raise found or TraceError(f"{name}: expected a request a line, got an empty file")
    if mismatched == len(requests):
        raise TraceError(_misfit(name, requests, block_size))
    if unordered:
        requests.sort(key=lambda request: request.timestamp)
    short = name if path == STDIN else path.name
    return Trace(short, requests, found, cut, unordered, mismatched)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, Callable[[], int]]]:
    """A trace, decompressed, and how many bytes of the file were read; 0 of what is no file."""
    opened: io.BufferedReader = (
        io.BufferedReader(cast(io.RawIOBase, sys.stdin.buffer))
        if path == STDIN
        else path.open("rb")
    )
    with opened as file:
        position = file.tell if file.seekable() else int
        if file.peek(len(_GZIP))[: len(_GZIP)] == _GZIP:
            with gzip.open(file) as plain:
                yield plain, position  # type: ignore[misc]
        else:
            yield file, position


def _lines_after(file: BinaryIO) -> int:
    """How many lines there are from here on."""
    count, last = 0, b"\n"
    while chunk := file.read(io.DEFAULT_BUFFER_SIZE):
        count += chunk.count(b"\n")
        last = chunk
    return count + (not last.endswith(b"\n"))


def _share_ids(request: TraceRequest, sessions: dict[str, list[BlockId]]) -> None:
    """Has the prompt name the numbers of the session's last one, where they are equal: each would
    take four times the room of its place in a list.
    """
    if request.session_id is None:
        return
    before = sessions.get(request.session_id, [])
    same = common_length(before, request.hash_ids)
    request.hash_ids[:same] = before[:same]
    sessions[request.session_id] = request.hash_ids


def _fits(request: TraceRequest, block_size: int) -> bool:
    whole, rest = divmod(request.input_length, block_size)
    return whole <= len(request.hash_ids) <= whole + (rest > 0)


def _misfit(name: str, requests: list[TraceRequest], block_size: int) -> str:
    fitting = (size for size in _BLOCK_SIZES if all(_fits(one, size) for one in requests))
    size = next(fitting, None)
    remedy = "no power of two fits" if size is None else f"--block-size {size} fits all of them"
    return (
        f"{name}: expected hash_ids for blocks of {block_size} tokens, got more or fewer than the"
        f" input_length needs in all {counted(len(requests), 'request')}; {remedy}"
    )


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
        raise ValueError(f"expected an object with {_FIELDS}: {what}{_remedy(line)}") from error
    return request


def _remedy(line: bytes) -> str:
    """What to do about a line that is something else than a request of a trace."""
    start = line.lstrip()[:1]
    if start == b"[":
        return "; this is a JSON array: `jq -c '.[]' FILE` writes one object a line"
    if start != b"{":
        return (
            "; this looks like CSV, and a trace is JSON Lines"
            if re.match(rb"[\w\"' .-]+[,;\t]", line)
            else ""
        )
    try:
        fields = _OBJECT.decode(line)
        if "hash_ids" not in fields:
            if {"messages", "prompt", "body"} & fields.keys():
                return f"; this is a request of OpenAI's API, which has no hash_ids: {_OWN_LOGS}"
            is_near = {"timestamp", "input_length"} <= fields.keys()
            return f"; hash_ids are missing: {_OWN_LOGS}" if is_near else ""
        _REQUEST.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return "; the format does not have it: `--ignore-unknown-fields` passes over such fields"
