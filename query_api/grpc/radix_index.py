"""Answers SMG's gateway, which asks by the hashes of blocks' tokens."""

import struct
from typing import Final

from google.protobuf.message import DecodeError

from query_api.grpc.counts import GrpcCounts
from query_api.grpc.holders import Holders
from query_api.grpc.messages.radix_index_pb2 import (
    TOKENS,
    Keyspace,
    Match,
    PublishAck,
    Query,
    Update,
)
from query_api.grpc.refusals import malformed
from query_api.grpc.settings import GrpcSettings
from query_api.ports import View
from schemas.answer_states import AnswerState
from schemas.events import TOKEN_HASH_SEED
from schemas.identities import PrefixScope, PublisherKey, StreamKey
from schemas.limits import BLOCK_SIZE_MAX, GRPC_HASHES_MAX, GRPC_NAME_CHARS_MAX

_SCHEMES: Final = (0, 1)
"""XXH3-64 with the seed 1337 over tokens as u32 LE; 0 where none is named."""
_KINDS: Final = (0, TOKENS)


class RadixIndex:
    """One table as SMG's gateway sees it. Arguments as of `KvIndexer`."""

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
        self._only_exact = only_exact

    def match(self, message: bytes) -> bytes:
        """The answer to one `Query`: who holds how many of the first blocks, the longest first; of
        the ranks behind one URL the one that holds most. It names nobody where hashes are of
        another kind than ours, as an index of SMG's own does.

        Raises:
            GrpcRefusal: the query cannot be read.
        """
        try:
            query = Query.FromString(message)
        except DecodeError as error:
            raise malformed("a message radix_index.Query") from error
        answer = Match(query_id=query.query_id)
        if self._is_answered(query.keyspace):
            self._score(query, answer)
        return answer.SerializeToString()

    def acknowledge(self, message: bytes) -> bytes:
        """The answer to one `Update`, of which nothing is stored: what holders hold that are
        followed is known from their events, and of others nothing is, yet.

        Raises:
            GrpcRefusal: the update cannot be read.
        """
        try:
            update = Update.FromString(message)
        except DecodeError as error:
            raise malformed("a message radix_index.Update") from error
        if len(update.holder) > GRPC_NAME_CHARS_MAX:
            raise malformed(f"a holder of at most {GRPC_NAME_CHARS_MAX} characters")
        is_followed = self._holders.is_followed(update.holder)
        self._counts.updates["followed" if is_followed else "not_followed"] += 1
        ack = PublishAck(holder=update.holder, epoch=update.epoch, applied_seq=update.seq)
        return ack.SerializeToString()

    def _is_answered(self, keyspace: Keyspace) -> bool:
        """Whether our hashes are of that kind."""
        reason = ""
        if keyspace.symbol_kind not in _KINDS:
            reason = "not_of_tokens"
        elif keyspace.hash_scheme not in _SCHEMES:
            reason = "other_hash_scheme"
        elif self._view.kernel.seed != TOKEN_HASH_SEED:
            reason = "other_seed"
        elif not 0 < keyspace.block_size <= BLOCK_SIZE_MAX:
            reason = "bad_block_size"
        if reason:
            self._counts.refused[reason] += 1
        return not reason

    def _score(self, query: Query, answer: Match) -> None:
        keyspace, size = query.keyspace, query.keyspace.block_size
        kernel = self._view.kernel
        asked = query.content_hashes
        self._counts.hashes_ignored += max(0, len(asked) - GRPC_HASHES_MAX)
        packed = struct.pack(f"<{min(len(asked), GRPC_HASHES_MAX)}Q", *asked[:GRPC_HASHES_MAX])
        scope = PrefixScope(self._tenant_id, keyspace.model, "", size, "")
        best: dict[str, tuple[int, StreamKey]] = {}
        for match in kernel.query_by_hash(scope, kernel.chain_hashes(packed), None):
            if not match.longest:
                continue
            for dp_rank, matched, *_ in match.ranks:
                if not matched:
                    continue
                stream = StreamKey(self._tenant_id, keyspace.model, size, "", match.instance_id)
                url = self._holders.url(stream, dp_rank)
                if url and self._counts_for(stream, dp_rank):
                    best[url] = max(best.get(url, (0, stream)), (matched // size, stream))
        for url, (blocks, stream) in sorted(best.items(), key=lambda item: -item[1][0]):
            score = answer.scores.add(
                holder=url,
                matched_blocks=blocks,
                total_blocks=self._holders.blocks(stream),
                event_fed=True,
            )
            score.intervals.add(start=0, end=blocks)

    def _counts_for(self, stream: StreamKey, dp_rank: int) -> bool:
        if not self._only_exact:
            return True
        return self._view.standing(PublisherKey(stream, dp_rank)).state is AnswerState.EXACT
