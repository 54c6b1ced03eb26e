"""Writes a trace, line by line."""

from collections.abc import Callable, Iterable

import msgspec

from replay.traces.request import TraceRequest
from schemas.limits import TRACE_WRITE_BYTES


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
