"""Answers SMG's gateway, which asks by the hashes of blocks' tokens."""

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError

from query_api.grpc.bounds import GRPC_HASHES_MAX
from query_api.grpc.encoding import bytes_field, bytes_tag, number_field, varint
from query_api.grpc.holders import BestHolders, Holder, HolderIndex
from query_api.grpc.messages.radix_index_pb2 import (
    TOKENS,
    Keyspace,
    PublishAck,
    Query,
    Update,
)
from query_api.grpc.refusals import malformed
from query_api.ports import positions_text
from query_api.traces import query_attributes
from schemas.answer_states import AnswerState
from schemas.events import TOKEN_HASH_SEED
from schemas.identities import PrefixScope
from schemas.limits import BLOCK_SIZE_MAX, NAME_BYTES_MAX
from schemas.tracing import NO_SPAN, Span

GRPC_NAME_CHARS_MAX: Final = NAME_BYTES_MAX  # of a holder in an update: reason="malformed"

_SCHEMES: Final = (0, 1)
"""XXH3-64 with the seed 1337 over tokens as u32 LE; 0 where none is named."""
_KINDS: Final = (0, TOKENS)
_QUERY_ID: Final = 1
"""The field of an answer; see `proto/radix_index.proto`."""
_SCORE: Final = bytes_tag(2)


@lru_cache(GRPC_HASHES_MAX)
def _blocks(blocks: int) -> bytes:
    """The fields of a score that say how many: from the first one on, in one run."""
    return number_field(2, blocks) + bytes_field(5, number_field(2, blocks))


class RadixIndex(HolderIndex):
    """One table as SMG's gateway sees it."""

    def match(self, message: bytes, span: Span = NO_SPAN) -> bytes:
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
        parts = [number_field(_QUERY_ID, query.query_id)]
        if self._is_answered(query.keyspace):
            parts += self._scores(query, span)
        return b"".join(parts)

    def acknowledge(self, message: bytes, span: Span = NO_SPAN) -> bytes:
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
        self._holders.refresh()
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

    def _scores(self, query: Query, span: Span) -> Iterator[bytes]:
        size = query.keyspace.block_size
        scope = PrefixScope(self._tenant_id, query.keyspace.model, "", size, "")
        kernel = self._holders.refresh()
        instances = self._holders.instances(scope)
        best: BestHolders = {}
        for match in kernel.query_by_hash(scope, kernel.chain_hashes(self._packed(query)), None):
            if not match.longest:
                continue
            ranks = instances.get(match.instance_id)
            if ranks is None:
                ranks = self._holders.ranks(scope, match.instance_id)
            for dp_rank, matched, *_ in match.ranks:
                holder = ranks.get(dp_rank) if matched else None
                if holder is None or (self._only_exact and not self._is_exact(holder)):
                    continue
                known = best.get(holder.url)
                if known is None or known[0] < matched:
                    best[holder.url] = matched, holder
        for matched, holder in sorted(best.values(), key=_longest_first):
            score = holder.named + _blocks(matched // size) + holder.total
            yield _SCORE + varint(len(score)) + score
        if span.is_recorded:
            tokens = size * min(len(query.content_hashes), GRPC_HASHES_MAX)
            longest = max((matched for matched, _ in best.values()), default=0)
            position = positions_text(self._view.positions())
            span.note(
                query_attributes(scope, tokens, longest, position, self._view.state(scope).value)
            )

    def _packed(self, query: Query) -> bytes:
        """The hashes that are looked up, (n,) u64 LE."""
        hashes = query.content_hashes
        if len(hashes) > GRPC_HASHES_MAX:
            self._counts.hashes_ignored += len(hashes) - GRPC_HASHES_MAX
            return struct.pack(f"<{GRPC_HASHES_MAX}Q", *hashes[:GRPC_HASHES_MAX])
        return struct.pack(f"<{len(hashes)}Q", *hashes)

    def _is_exact(self, holder: Holder) -> bool:
        return self._view.standing(holder.publisher).state is AnswerState.EXACT


def _longest_first(item: tuple[int, Holder]) -> int:
    return -item[0]
