"""How a publisher begins a connection of ZMTP 3.0: for tests that speak it by hand."""

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
_FIELDS = b"\x05READY\x0bSocket-Type\x00\x00\x00\x04XPUB"
READY = b"\x04" + bytes([len(_FIELDS)]) + _FIELDS
