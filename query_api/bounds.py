"""Bounds that several modules of `query_api/` rely on, and how they are related."""

from typing import Final

from schemas.limits import BODY_READ_S, KIB

BODY_PIECE_BYTES: Final = 256 * KIB  # of an unfinished body: so much more, or its end, is to come
BODY_PIECE_S: Final = 5.0  # for BODY_PIECE_BYTES or the end to come; else: status="408"

VALUE_SHOWN_CHARS_MAX: Final = 80  # of a wrong value in a request, in the refusal

KEY_RATE_MAX: Final = 1e9  # requests/s
KEYS_VERIFIED_MAX: Final = 4_096  # headers whose secret need not be hashed again

assert BODY_PIECE_S < BODY_READ_S, "a body that stalls is ended before one that is slow"
