"""Writes a trace, line by line."""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from replay.traces.request import TraceRequest

# What is above a bound ends the reading with the line's number.
TRACE_WRITE_BYTES: Final = 65_536  # of lines between two writes


def write_requests(requests: Iterable[TraceRequest], write: Callable[[bytes], object]) -> int:
    """Writes a line for each; how many there were.

    Args:
        requests: in the order of their times.
        write: takes bytes.
    """
    encoder = msgspec.json.Encoder()
    lines = bytearray()
    count = 0
    for request in requests:
        encoder.encode_into(request, lines, len(lines))
        lines += b"\n"
        count += 1
        if len(lines) >= TRACE_WRITE_BYTES:
            write(bytes(lines))
            lines.clear()
    write(bytes(lines))
    return count
