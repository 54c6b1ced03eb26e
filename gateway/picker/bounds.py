"""Bounds that several modules of the picker rely on."""

from typing import Final

from schemas.limits import BODY_BYTES_MAX, KIB, MIB

PICKER_STREAMS_MAX: Final = 4096  # requests of proxies; more are answered 503, too_many_streams
PICKER_SPARE_CALLS: Final = 256  # on top: probes, and streams that are told that there is no place
PICKER_WATCHES_MAX: Final = 64  # of these, that watch its health: more are RESOURCE_EXHAUSTED
PICKER_HEALTH_S: Final = 0.5  # from one look at the health that is watched to the next
PICKER_CONNECTIONS_MAX: Final = 256  # of proxies; grpc ends what is more
PICKER_MESSAGE_BYTES_MAX: Final = 8 * MIB  # likewise; a body beyond comes in several messages
PICKER_BODY_BYTES_MAX: Final = BODY_BYTES_MAX  # of a request: 413, body_too_large
PICKER_BODY_S: Final = 60.0  # for a request until it is whole: 408, body_too_slow
PICKER_SILENCE_S: Final = 600.0  # then, between two messages: the stream is ended, silent
PICKER_STREAM_S: Final = 3600.0  # for a stream, whatever comes: it is ended, too_long
PICKER_WRITE_S: Final = 10.0  # for a message that is not taken: the stream is ended, unread
PICKER_PIECE_BYTES: Final = 60 * KIB  # of a body that passes; Envoy wants 64 KiB or less
PICKER_FALLBACKS_MAX: Final = 4  # engines that a proxy is told beside the chosen one
PICKER_SUBSET_MAX: Final = 4096  # endpoints of a subset; more are refused: 503, subset_too_large

assert PICKER_WATCHES_MAX < PICKER_SPARE_CALLS, "watches leave places to probes"
assert PICKER_BODY_S <= PICKER_SILENCE_S <= PICKER_STREAM_S, "a stream is the longest"
