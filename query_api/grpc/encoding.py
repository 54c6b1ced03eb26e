"""Protocol buffers by hand, for the answers that name hundreds of engines: an engine's part of an
answer is the same but for its numbers, and to have the library build it took most of an answer's
time. `messages` has the fields; tests read what is written here by them.
"""

from functools import lru_cache

from query_api.grpc.bounds import GRPC_HASHES_MAX


@lru_cache(GRPC_HASHES_MAX)
def varint(number: int) -> bytes:
    """A number from 0 on."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def number_field(field: int, value: int) -> bytes:
    """A field of a number, which is not written where it is 0."""
    return varint(field << 3) + varint(value) if value else b""


def bytes_tag(field: int) -> bytes:
    """What stands before the length of a field of bytes, text or a message."""
    return varint(field << 3 | 2)


def bytes_field(field: int, value: bytes) -> bytes:
    """Such a field."""
    return bytes_tag(field) + varint(len(value)) + value


def text_field(field: int, value: str) -> bytes:
    """A field of text, which is not written where it is empty."""
    return bytes_field(field, value.encode()) if value else b""
