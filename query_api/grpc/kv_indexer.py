"""Answers SGLang's router, which asks by the hashes that its engines themselves give to blocks."""

import re
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError

from query_api.grpc.bounds import GRPC_HASHES_MAX, GRPC_TEXT_BYTES_MAX
from query_api.grpc.encoding import bytes_tag, number_field, varint
from query_api.grpc.holders import BestHolders, Holder, HolderIndex
from query_api.grpc.messages.kv_indexer_pb2 import MatchExternalKvPrefixRequest
from query_api.grpc.refusals import malformed, too_large
from query_api.grpc.traces import hashes_attributes
from query_api.ports import positions_text
from schemas.answer_states import AnswerState
from schemas.tracing import NO_SPAN, Span

_DECIMAL: Final = re.compile(rb"-?[0-9]{1,20}")
_HASH_SIZE: Final = 8
_HASHES_TAG: Final = 0x0A
"""Of the field `hashes` as pieces of bytes."""
_BEST, _READ = 2, 3
"""Fields of an answer; see `proto/kv_indexer.proto`."""
_MATCH: Final = bytes_tag(1)


@lru_cache(GRPC_HASHES_MAX)
def _blocks(blocks: int) -> bytes:
    """The field of a match that says how many."""
    return number_field(2, blocks)


class KvIndexer(HolderIndex):
    """One table as SGLang's router sees it."""

    def match_prefix(self, message: bytes, span: Span = NO_SPAN) -> bytes:
        """The answer to `MatchExternalKvPrefix`: who holds how many of the first blocks, the
        longest first; of the ranks behind one URL the one that holds most.

        Raises:
            GrpcRefusal: the request cannot be read.
        """
        hashes = self._read(message)
        kernel = self._holders.refresh()
        find = self._holders.find
        best: BestHolders = {}
        for handle, blocks in kernel.query_by_engine_hash(
            self._tenant_id, self._model_name, hashes
        ):
            holder = find(handle)
            if holder is None or (self._only_exact and not self._is_exact(holder)):
                continue
            known = best.get(holder.url)
            if known is None or known[0] < blocks:
                best[holder.url] = blocks, holder
        parts: list[bytes] = []
        for blocks, holder in sorted(best.values(), key=_longest_first):
            match = holder.named + _blocks(blocks) + holder.worker
            parts += _MATCH, varint(len(match)), match
        longest = max((blocks for blocks, _ in best.values()), default=0)
        read = len(hashes) // _HASH_SIZE
        parts += number_field(_BEST, longest), number_field(_READ, read)
        if span.is_recorded:
            position = positions_text(self._view.positions())
            named = (self._model_name, self._tenant_id)
            span.note(hashes_attributes(*named, read, longest, position))
        return b"".join(parts)

    def _is_exact(self, holder: Holder) -> bool:
        return self._view.standing(holder.publisher).state is AnswerState.EXACT

    def _read(self, message: bytes) -> bytes:
        """The hashes that are looked up, (n,) u64 LE."""
        if len(message) > GRPC_TEXT_BYTES_MAX and not _is_packed(message):
            raise too_large(GRPC_TEXT_BYTES_MAX)
        try:
            request = MatchExternalKvPrefixRequest.FromString(message)
        except DecodeError as error:
            raise malformed("a message kv_indexer.v1.MatchExternalKvPrefixRequest") from error
        pieces = request.hashes
        if not pieces:
            raise malformed("at least one hash in `hashes`")
        most = min(request.max_blocks or GRPC_HASHES_MAX, GRPC_HASHES_MAX)
        if _DECIMAL.fullmatch(pieces[0]):
            hashes, count = _from_text(pieces[:most]), len(pieces)
        else:
            packed = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if not packed or any(len(piece) % _HASH_SIZE for piece in pieces):
                raise malformed("`hashes` packed as i64, or as decimal text")
            hashes, count = packed[: _HASH_SIZE * most], len(packed) // _HASH_SIZE
        asked = min(count, request.max_blocks or count)
        self._counts.hashes_ignored += asked - len(hashes) // _HASH_SIZE
        return hashes


def _is_packed(message: bytes) -> bool:
    """Whether it begins with one piece of hashes that is nearly all of it."""
    if message[0] != _HASHES_TAG:
        return False
    length = 0
    for place, byte in enumerate(message[1:6]):
        length |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return length > len(message) - GRPC_TEXT_BYTES_MAX
    return False


def _from_text(pieces: Sequence[bytes]) -> bytes:
    """As u64 LE; signed ones as the same 64 bits."""
    try:
        numbers = list(map(int, pieces))
        try:
            return struct.pack(f"<{len(numbers)}q", *numbers)
        except struct.error:
            return struct.pack(f"<{len(numbers)}Q", *(number % 2**64 for number in numbers))
    except ValueError as error:
        raise malformed("hashes of 64 bits as decimal text") from error


def _longest_first(item: tuple[int, Holder]) -> int:
    return -item[0]
