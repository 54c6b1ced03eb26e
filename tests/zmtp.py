"""How a publisher begins a connection of ZMTP 3.0: for tests that speak it by hand."""

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)


def ready(socket_type: bytes) -> bytes:
    """The command behind the greeting."""
    fields = b"\x05READY\x0bSocket-Type" + len(socket_type).to_bytes(4, "big") + socket_type
    return b"\x04" + bytes([len(fields)]) + fields


READY = ready(b"XPUB")
