"""Bounds that several modules of `replay/` rely on."""

from typing import Final

# A block is what an interruption may cost, and what is compressed at once.
CAPTURE_TOLD_RECORDS: Final = 256  # between two looks whether a capture is to end
CAPTURE_LOOK_S: Final = 0.25  # between two looks whether a capture is to end, while nothing comes
CAPTURE_STALLED_S: Final = 60.0  # without a record of Kafka, though there are more: it ends
TRACE_REQUESTS_MAX: Final = 16_000_000  # of a trace; some 200 bytes each, and 30 for each block
