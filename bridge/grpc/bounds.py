"""Bounds of streams, and how they are related."""

from typing import Final

from bridge.bounds import LINK_SILENT_S
from schemas.limits import BULK_BYTES, MESSAGE_BYTES_MAX

STREAMS_MAX: Final = 512  # of one process: two threads, and a file, each
STREAM_BYTES_MAX: Final = MESSAGE_BYTES_MAX  # of a message: a larger one ends the stream, counted
STREAM_RETRY_S: Final = 0.1  # after a stream has ended; doubled with each that brings nothing
STREAM_RETRY_MAX_S: Final = 3.0  # the longest of these pauses
STREAM_REFUSED_S: Final = 30.0  # after a refusal that does not pass by itself
STREAM_CONNECT_MS: Final = 5_000  # for the connection
STREAM_PLACE_S: Final = 2.0  # until it is known where the log ends; then all is asked for
STREAM_ASK_S: Final = 1.0  # between two questions whether a server is there
STREAM_DEAD_S: Final = 30.0  # a server that has not answered one of them for so long: it is gone
STREAM_PING_S: Final = 15.0  # between two pings of a call whose server wants them
STREAM_LOOK_S: Final = 0.25  # how often it is looked whose question is due
STREAM_CAUGHT_UP_S: Final = 0.5  # without a batch: a stream has come to what is published now
STREAM_LATE_S: Final = 2.0  # or a batch that is no older, by our clock
WHOLE_AGAIN_S: Final = 30.0  # between two requests for all that there is, of one publisher

assert STREAM_ASK_S < LINK_SILENT_S < STREAM_DEAD_S, "who is silent is asked, and doubted first"
assert BULK_BYTES < STREAM_BYTES_MAX, "a large batch has a place"
