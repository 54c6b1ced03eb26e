"""Answers SGLang's router, which asks by the hashes that its engines themselves give to blocks."""

import re
from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from query_api.grpc.counts import GrpcCounts
from query_api.grpc.holders import Holders
from query_api.grpc.messages.kv_indexer_pb2 import (
    MatchExternalKvPrefixRequest,
    MatchExternalKvPrefixResponse,
)
from query_api.grpc.refusals import malformed, too_large
from query_api.grpc.settings import GrpcSettings
from query_api.ports import View
from schemas.answer_states import AnswerState
from schemas.identities import PublisherKey
from schemas.limits import GRPC_HASHES_MAX, GRPC_TEXT_BYTES_MAX
from schemas.registration import service_key
from streams.kernel.interface import EngineMatch

_DECIMAL: Final = re.compile(rb"-?[0-9]{1,20}")
_HASH_BYTES: Final = 8
_DECIMAL_BYTES_MAX: Final = 21
"""Of a hash as text: its sign and 20 digits."""
_HASHES_TAG: Final = 0x0A
"""Of the field `hashes` as pieces of bytes."""


class KvIndexer:
    """One table as SGLang's router sees it.

    Args:
        view: what is answered from.
        holders: what the router calls the publishers.
        counts: what was left out.
        settings: the tenant, and the model.
        only_exact: whether publishers are left out that are not `exact`.
    """

    def __init__(
        self,
        view: View,
        holders: Holders,
        counts: GrpcCounts,
        settings: GrpcSettings,
        *,
        only_exact: bool,
    ) -> None:
        self._view = view
        self._holders = holders
        self._counts = counts
        self._tenant_id = settings.tenant_id
        self._model_name = settings.model_name or None
        self._only_exact = only_exact

    def match_prefix(self, message: bytes) -> bytes:
        """The answer to `MatchExternalKvPrefix`: who holds how many of the first blocks, the
        longest first; of the ranks behind one URL the one that holds most.

        Raises:
            GrpcRefusal: the request cannot be read.
        """
        hashes = self._read(message)
        matches = self._view.kernel.query_by_engine_hash(self._tenant_id, self._model_name, hashes)
        best: dict[str, EngineMatch] = {}
        for match in matches:
            url = self._holders.url(match.stream, match.dp_rank)
            known = best.get(url)
            if (known is None or known.blocks < match.blocks) and url and self._counts_for(match):
                best[url] = match
        response = MatchExternalKvPrefixResponse(blocks_read=len(hashes) // _HASH_BYTES)
        for url, match in sorted(best.items(), key=lambda item: -item[1].blocks):
            stream, dp_rank, blocks = match
            response.matches.add(
                worker_address=url,
                matched_prefix_blocks=blocks,
                worker_id=service_key(stream.tenant_id, stream.instance_id, dp_rank),
            )
        if response.matches:
            response.best_prefix_blocks = response.matches[0].matched_prefix_blocks
        return response.SerializeToString()

    def _counts_for(self, match: EngineMatch) -> bool:
        if not self._only_exact:
            return True
        standing = self._view.standing(PublisherKey(match.stream, match.dp_rank))
        return standing.state is AnswerState.EXACT

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
        packed = pieces[0] if len(pieces) == 1 else b""
        if len(packed) > _DECIMAL_BYTES_MAX and not len(packed) % _HASH_BYTES:
            hashes, count = packed[: _HASH_BYTES * most], len(packed) // _HASH_BYTES
        elif all(map(_DECIMAL.fullmatch, pieces)):
            hashes, count = _from_text(pieces[:most]), len(pieces)
        else:
            joined = b"".join(pieces)
            if any(len(piece) % _HASH_BYTES for piece in pieces) or not joined:
                raise malformed("`hashes` packed as i64, or as decimal text")
            hashes, count = joined[: _HASH_BYTES * most], len(joined) // _HASH_BYTES
        asked = min(count, request.max_blocks or count)
        self._counts.hashes_ignored += asked - len(hashes) // _HASH_BYTES
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
        return b"".join((int(piece) % 2**64).to_bytes(8, "little") for piece in pieces)
    except ValueError as error:
        raise malformed("hashes of 64 bits") from error
