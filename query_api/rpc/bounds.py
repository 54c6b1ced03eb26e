"""Bounds that several modules of `query_api/rpc/` rely on, and how they are related."""

from typing import Final

from schemas.limits import KIB, MIB, NAME_BYTES_MAX, QUERY_TOKENS_MAX

# What is refused: reprise_conductor_rpc_refused_total with the reason that is given.
RPC_SMALL_BYTES: Final = 64 * KIB  # of a request without tokens: reason="too_large"
RPC_QUERY_BYTES_MAX: Final = 4 * QUERY_TOKENS_MAX + RPC_SMALL_BYTES  # reason="too_large"
RPC_LARGE_BYTES_MAX: Final = 64 * MIB  # of all requests above RPC_SMALL_BYTES: reason="no_room"
RPC_CONNECTIONS_MAX: Final = 256  # that are open: reason="too_many_connections"
RPC_IDLE_S: Final = 3600.0  # without a request; a client does not connect again: reason="idle"
RPC_READ_S: Final = 30.0  # from a request's first byte to its last: reason="too_slow"
RPC_WRITE_S: Final = 10.0  # for an answer to be read: reason="answer_not_read"
RPC_GRACE_S: Final = 2.0  # for the requests under way, at the end

assert RPC_SMALL_BYTES > 16 * NAME_BYTES_MAX, "a registration has room, with each name the longest"
assert RPC_QUERY_BYTES_MAX <= RPC_LARGE_BYTES_MAX, "the largest query has room"
