"""Bounds that several modules of `query_api/grpc/` rely on, and how they are related."""

from typing import Final

from schemas.limits import MIB

# What is refused: reprise_grpc_refused_total with the reason that is given. grpc itself ends a
# connection beyond its number, and a call whose message is too large.
GRPC_MESSAGE_BYTES_MAX: Final = 8 * MIB  # 1M hashes; SGLang's router sends no more
GRPC_TEXT_BYTES_MAX: Final = 1 * MIB  # of hashes as text, each an object: reason="too_large"
GRPC_HASHES_MAX: Final = 32_768  # of a prompt, the first: reprise_grpc_hashes_ignored_total
GRPC_STREAMS_MAX: Final = 256  # that are open: reason="too_many_streams"
GRPC_CONNECTION_CALLS_MAX: Final = 64  # at once, of one connection; more wait with the client
GRPC_CALLS_MAX: Final = 320  # at once, of all connections, streams too: with a message each, memory
GRPC_WRITE_S: Final = 10.0  # an answer of a stream that nobody reads: reason="answer_not_read"

assert GRPC_STREAMS_MAX + GRPC_CONNECTION_CALLS_MAX <= GRPC_CALLS_MAX, (
    "streams keep nobody from asking"
)
assert 8 * GRPC_HASHES_MAX < GRPC_TEXT_BYTES_MAX < GRPC_MESSAGE_BYTES_MAX, "all hashes have room"
