"""Decoders of the rows that hold one object, for `schemas.codec.decode_row_body`.

They are made here, when this is imported, and not by whoever reads a row first: tables are opened
by a thread each, and two threads that are the first to decode one Struct crash the process (seen
with msgspec 0.22.0, which fills in what it knows of a type while another thread uses it).
"""

from typing import Final

import msgspec

from schemas.memory_segments import SegmentState
from schemas.positions import Heartbeat, PublisherState
from schemas.registration import LiveRegistration
from streams.table.fold import UnprovenState
from streams.table.ledger import Ledger

PUBLISHER_STATE: Final = msgspec.msgpack.Decoder(PublisherState)
REGISTERED: Final = msgspec.msgpack.Decoder(LiveRegistration)
UNPROVEN: Final = msgspec.msgpack.Decoder(UnprovenState)
HEARTBEAT: Final = msgspec.msgpack.Decoder(Heartbeat)
LEDGER: Final = msgspec.msgpack.Decoder(Ledger)
SEGMENT_STATE: Final = msgspec.msgpack.Decoder(SegmentState)
