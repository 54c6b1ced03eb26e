"""The frames of `coro_rpc`: their heads, and errors of the protocol.

    request    magic 21, version 0, serialisation 0, kind: u8 each; number, function, length of the
               body, length of the attachment: u32 LE each; body; attachment
    answer     magic 21, version 0, error, kind: u8 each; number of the request, length of the body,
               length of the attachment: u32 LE each; body, of an error its text

A function is the first four bytes, big-endian, of the MD5 of its qualified name in C++.

Source: yalantinglibs 0.5.7, include/ylt/coro_rpc/impl/protocol/coro_rpc_protocol.hpp.
"""

import hashlib
import struct
from enum import IntEnum
from typing import Final, NamedTuple

from query_api.rpc.messages import ERROR_TEXT

MAGIC: Final = 21
VERSION: Final = 0
STRUCT_PACK: Final = 0

_REQUEST: Final = struct.Struct("<BBBBIIII")
_ANSWER: Final = struct.Struct("<BBBBIII")
REQUEST_HEAD_BYTES: Final = _REQUEST.size
ANSWER_HEAD_BYTES: Final = _ANSWER.size


class RpcErrc(IntEnum):
    """Errors of the protocol that are answered."""

    OK = 0
    INVALID_RPC_ARGUMENTS = 4
    RPC_THROW_EXCEPTION = 10
    FUNCTION_NOT_REGISTERED = 11
    MESSAGE_TOO_LARGE = 14


class RequestHead(NamedTuple):
    """The head of a request.

    Attributes:
        number: of the request, for its answer.
        function: which is called.
        body_bytes, attachment_bytes: what follows.
    """

    magic: int
    version: int
    serialization: int
    kind: int
    number: int
    function: int
    body_bytes: int
    attachment_bytes: int

    @property
    def is_understood(self) -> bool:
        """Whether what follows can be read; `coro_rpc` ends the connection where not."""
        return (self.magic, self.serialization) == (MAGIC, STRUCT_PACK) and self.version <= VERSION


def read_head(data: bytes) -> RequestHead:
    """The head of `REQUEST_HEAD_BYTES` bytes."""
    return RequestHead(*_REQUEST.unpack(data))


def request_frame(number: int, function: int, body: bytes) -> bytes:
    """A request as a client sends it."""
    head = (MAGIC, VERSION, STRUCT_PACK, 0, number, function, len(body), 0)
    return _REQUEST.pack(*head) + body


def answer_frame(number: int, body: bytes) -> bytes:
    """An answer with a value."""
    return _ANSWER.pack(MAGIC, VERSION, RpcErrc.OK, 0, number, len(body), 0) + body


def error_frame(number: int, errc: RpcErrc, text: str) -> bytes:
    """An answer without one."""
    body = ERROR_TEXT.pack(text)
    return _ANSWER.pack(MAGIC, VERSION, errc, 0, number, len(body), 0) + body


def function_of(name: str) -> int:
    """The function of a qualified name in C++."""
    digest = hashlib.md5(name.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")
