"""Bounds of a check: what it looks at, and what it keeps of that."""

from typing import Final

from schemas.limits import MIB

CHECK_PUBLISHERS_MAX: Final = 64  # of a capture; further ones are told

CHECK_PAYLOAD_BYTES_MAX: Final = 4 * MIB  # taken apart; larger ones are decoded whole: memory
CHECK_EVENTS_MAX: Final = 20_000  # of a publisher that are tried alone: time; all are folded
CHECK_KIND_EVENTS_MAX: Final = 2_000  # of these, that the decoders of all kinds are tried on

CHECK_NAME_CHARS_MAX: Final = 40  # of a name or a text that a publisher sends
CHECK_TAGS_MAX: Final = 64  # kinds of events of a publisher
CHECK_FIELDS_MAX: Final = 128  # of one of these
CHECK_VALUES_MAX: Final = 8  # texts of a field that are named
CHECK_DEPTH_MAX: Final = 4  # of maps in an event, whose fields are named
CHECK_PLACES_MAX: Final = 3  # of a problem that are named; all are counted
CHECK_PROBLEMS_MAX: Final = 64  # of a publisher
CHECK_BLOCKS_MAX: Final = 262_144  # whose names are remembered: some 100 MB
