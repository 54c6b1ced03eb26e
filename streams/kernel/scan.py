"""What a kernel's `scan_query` accepts and reads: a plain JSON body of `POST /query`.

The specification of `native/index/src/scan.rs`, and the reference kernel's scanner. Both accept the
same bodies and read the same in them. Both accept only what `query_api` accepts in full, and read
it as `query_api` does; they accept less than that on purpose.

A plain body is one JSON object, in UTF-8, with any blanks between its parts:

- its keys are those of `_TEXTS`, `block_size` and `token_ids`, none of them twice, without escapes;
- `model`, `block_size` and `token_ids` are there; `model` and `instance_id` are not empty;
- names are strings of at most `NAME_BYTES_MAX` bytes, without escapes and control characters;
- `block_size` is an integer from 1 to `BLOCK_SIZE_MAX`;
- `token_ids` is an array of at most `QUERY_TOKENS_MAX` integers from -2**31 to 2**32-1;
- an integer is written in decimal digits alone, without leading zeros; a token may have a minus.
"""

import re
from typing import Final

import msgspec

from schemas.arrays import Token, tokens_to_bytes
from schemas.identities import DEFAULT_TENANT
from schemas.limits import BLOCK_SIZE_MAX, NAME_BYTES_MAX, QUERY_TOKENS_MAX
from streams.kernel.interface import ScannedQuery

_TEXTS: Final = ("model", "lora_name", "tenant_id", "instance_id", "cache_salt")

_BLANKS: Final = rb"[ \t\n\r]*"
_OPEN: Final = re.compile(_BLANKS + rb"\{")
_STRING: Final = re.compile(_BLANKS + rb'"([^"\\\x00-\x1f]*)"')
_COLON: Final = re.compile(_BLANKS + rb":")
# Longer integers are out of any range here.
_INTEGER: Final = re.compile(_BLANKS + rb"(0|[1-9][0-9]{0,14})")
# JSON between these brackets is an array of integers, or no JSON.
_INTEGERS: Final = re.compile(_BLANKS + rb"(\[[-0-9, \t\n\r]*\])")
_COMMA: Final = re.compile(_BLANKS + rb",")
_END: Final = re.compile(_BLANKS + rb"\}" + _BLANKS)

_decode_tokens: Final = msgspec.json.Decoder(list[Token]).decode


class _UnusualError(Exception):
    """The body is not plain at this place."""


class _Body:
    """A body, and how far it has been read."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def skips(self, pattern: re.Pattern[bytes]) -> bool:
        """Whether the pattern comes next; goes on behind it."""
        found = pattern.match(self._body, self._at)
        if found is not None:
            self._at = found.end()
        return found is not None

    def take(self, pattern: re.Pattern[bytes]) -> bytes:
        """The group of the pattern that must come next; goes on behind it."""
        found = pattern.match(self._body, self._at)
        if found is None:
            raise _UnusualError
        self._at = found.end()
        return found[1]

    def ends(self) -> bool:
        """Whether the object is closed here and nothing follows."""
        return self.skips(_END) and self._at == len(self._body)


def scan_query(body: bytes) -> ScannedQuery | None:
    """What a plain body says, or None for any other. Cost O(bytes), and an object per token."""
    try:
        return _read(_Body(body))
    except _UnusualError:
        return None


def _read(body: _Body) -> ScannedQuery:
    texts: dict[str, str] = {}
    block_size: int | None = None
    tokens: bytes | None = None
    if not body.skips(_OPEN):
        raise _UnusualError
    while True:
        key = _text(body)
        if not body.skips(_COLON):
            raise _UnusualError
        if key in _TEXTS and key not in texts:
            texts[key] = _text(body)
        elif key == "block_size" and block_size is None:
            block_size = int(body.take(_INTEGER))
        elif key == "token_ids" and tokens is None:
            tokens = _tokens(body)
        else:
            raise _UnusualError
        if not body.skips(_COMMA):
            break
    if not body.ends() or tokens is None or block_size is None:
        raise _UnusualError
    if not 1 <= block_size <= BLOCK_SIZE_MAX:
        raise _UnusualError
    if not texts.get("model") or texts.get("instance_id") == "":
        raise _UnusualError
    return ScannedQuery(
        texts["model"],
        texts.get("lora_name", ""),
        texts.get("tenant_id") or DEFAULT_TENANT,
        texts.get("instance_id"),
        block_size,
        texts.get("cache_salt", ""),
        tokens,
    )


def _text(body: _Body) -> str:
    encoded = body.take(_STRING)
    if len(encoded) > NAME_BYTES_MAX:
        raise _UnusualError
    try:
        return encoded.decode()
    except UnicodeDecodeError as error:
        raise _UnusualError from error


def _tokens(body: _Body) -> bytes:
    try:
        tokens = _decode_tokens(body.take(_INTEGERS))
    except msgspec.MsgspecError as error:
        raise _UnusualError from error
    if len(tokens) > QUERY_TOKENS_MAX:
        raise _UnusualError
    return tokens_to_bytes(tokens)
