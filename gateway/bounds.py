"""Bounds that several modules of the gateway rely on."""

from typing import Final

from schemas.limits import KIB, MIB

GATEWAY_CONNECT_S: Final = 2.0  # to an engine; then another one is tried
GATEWAY_SILENCE_S: Final = 600.0  # between two pieces of an answer, also before the first
GATEWAY_BUFFER_BYTES: Final = 64 * KIB  # of an answer that a slow client has not taken yet, twice
GATEWAY_LINE_BYTES_MAX: Final = 16 * KIB  # of a header of an engine's answer: kind="broken"
GATEWAY_FIELDS_MAX: Final = 128  # of them: likewise

# An answer that is no stream is kept until it is whole, or has so much: until then another engine
# may be tried.
GATEWAY_WHOLE_BYTES_MAX: Final = 1 * MIB
# Of requests until their first byte is answered, and of answers until then: status="503".
GATEWAY_HELD_BYTES_MAX: Final = 512 * MIB

# A request waits so long for the registrations, while a service that was started reads them: then
# status="503". Its body is not read until then.
GATEWAY_START_S: Final = 5.0
GATEWAY_START_LOOK_S: Final = 0.02  # between two looks whether the index is there

GATEWAY_NAMED_MAX: Final = 8  # models that are named where another one was asked for

GATEWAY_TRIED_MAX: Final = 16  # engines, for one request
GATEWAY_BROKEN_MAX: Final = 3  # of them that failed over it: it may be what they fail over

assert GATEWAY_BROKEN_MAX <= GATEWAY_TRIED_MAX, "what was broken was tried"
