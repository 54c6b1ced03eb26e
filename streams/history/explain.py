"""Why an answer was what it was: which block ended the prefix that an instance held, when and by
which record that block was stored and removed.

A flush says between which records an entry changed (the rows of the history); the record itself is
found by folding those one by one.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final, NamedTuple

from schemas.codec import decode_log_record, decode_record_events
from schemas.errors import PastError
from schemas.events import RemovedBlocks, StoredBlocks
from schemas.identities import MEDIA, ModelContext, Offset, PrefixScope, StreamKey
from schemas.limits import DUMP_CHUNK_ENTRIES_MAX
from schemas.records import BridgeRecord, EventsRecord
from streams.history.past_fold import Past
from streams.kernel.changes import (
    CHANGE_BYTES,
    OWNED,
    SHARED,
    Change,
    Op,
    answered_tier,
    decode_changes,
    is_shared,
)
from streams.kernel.interface import InstanceMatch

EXPLAINED_CHANGES_MAX: Final = 16  # of one block; each takes a fold of one flush

_CLEARED: Final = bytes(16)


class BlockChange(NamedTuple):
    """What one record did to a block.

    Attributes:
        time: when its bridge wrote it, Unix seconds.
        what: `stored`, `removed`, or what else ended it: `cleared`, and the record's kind.
        incarnation, sequence: of the batch; -1 where the record has none.
        engine_time: of the record's last batch, Unix seconds; 0.0 where it has none.
    """

    offset: int
    time: float
    kind: str
    what: str
    incarnation: int
    sequence: int
    engine_time: float
    dp_rank: int
    medium: str
    shared: bool


class EndedBy(NamedTuple):
    """The first block of a prompt that the instance did not hold.

    Attributes:
        block: which, from 0.
        prefix: its prefix hash; None of a block of pairs that no token of the prompt stands behind.
        changes: what became of it up to the position, in order, the latest of them.
        later: the first thing that became of it after the position, or None.
        group: the sparse cache group that ended it, where full attention did not.
    """

    block: int
    prefix: int | None
    changes: list[BlockChange]
    later: BlockChange | None
    group: int | None = None


class Explanation(NamedTuple):
    """What an instance held of a prompt at a position.

    Attributes:
        partition: of the log, that has the instance's records; all offsets are of it.
        match: None where the instance took no part in answers then.
        blocks: of the prompt.
        ended_by: None where it held all of them.
        left_out: blocks that the instance had announced and held then, and no answer counted, of
            any prompt, by reason.
    """

    partition: int
    offset: int
    match: InstanceMatch | None
    blocks: int
    ended_by: EndedBy | None
    left_out: Mapping[str, int] = MappingProxyType({})

    @property
    def is_known(self) -> bool:
        """Whether any of these blocks is known to have been held, then or at another time."""
        ended = self.ended_by
        return ended is None or bool(ended.block or ended.changes or ended.later)


class Question(NamedTuple):
    """What is to be explained.

    Attributes:
        prefixes: makes the prefix hash of each block of the prompt, (n,) u64 LE.
        instance_id: whose answer.
        is_cut: whether one more block ends the prompt, which has no hash: of blocks of pairs.
    """

    scope: PrefixScope
    prefixes: Callable[[], bytes]
    instance_id: str
    is_cut: bool = False

    @property
    def context(self) -> ModelContext:
        """Where the instance's blocks stand."""
        tenant_id, model_name, lora_name, block_size, additional_salt = self.scope
        return ModelContext(
            tenant_id, model_name, lora_name, block_size, additional_salt, self.instance_id
        )

    def includes(self, stream: StreamKey) -> bool:
        """Whether the stream is the instance's."""
        return stream == self.context.stream


def explain(past: Past, question: Question, offset: Offset) -> Explanation:
    """See the module. Cost O(rows that are kept of the instance), and a few folds of one flush.

    Raises:
        PastError: as `Past.fold_as_of`.
        StorageError: rows or records cannot be read.
    """
    scope, prefixes, instance_id, is_cut = question
    fold = past.fold_as_of(offset, question.includes)
    hashes = prefixes()
    blocks = len(hashes) // 8
    found = fold.kernel.query_by_hash(scope, hashes, instance_id)
    match = found[0] if found else None
    held = match.longest // scope.block_size if match else 0
    ended_by = None
    if held < blocks:
        prefix = int.from_bytes(hashes[8 * held : 8 * held + 8], "little")
        cut = dict(fold.kernel.limiting_groups(scope, hashes, instance_id))
        changes = _Changes(past, question, prefix).around(offset)
        ended_by = EndedBy(held, prefix, *changes, cut.get(instance_id))
    elif is_cut:
        ended_by = EndedBy(held, None, [], None)
    left_out: Counter[str] = Counter()
    for publisher, state in fold.publishers.items():
        if question.includes(publisher.stream):
            left_out.update(state.uncounted)
    return Explanation(
        past.partition, offset, match, blocks + is_cut, ended_by, dict(sorted(left_out.items()))
    )


class _Changes:
    """All that became of one block at one instance."""

    def __init__(self, past: Past, question: Question, prefix: int) -> None:
        self._past = past
        self._question = question
        self._prefix = prefix
        self._context = question.context

    def around(self, offset: int) -> tuple[list[BlockChange], BlockChange | None]:
        """The latest ones up to the offset, and the first one after it."""
        flushes = self._flushes()
        earlier = [covers for covers in flushes if covers <= offset]
        following = [covers for covers in flushes if covers > offset]
        stored = next((covers for covers in following if flushes[covers]), None)
        # Between two flushes a block may come and go, and behind the last one nothing is flushed.
        after = {self._past.flush_after(offset), self._past.flush_after(offset + 1)}
        near = after.union(following[:EXPLAINED_CHANGES_MAX], () if stored is None else (stored,))
        changes: list[BlockChange] = []
        for covers in earlier[-EXPLAINED_CHANGES_MAX:]:
            changes += self._known_records(covers)
        for covers in sorted(near - set(earlier)):
            changes += self._known_records(covers)
            if covers not in after and changes and changes[-1].offset > offset:
                break
        else:
            changes += self._known_records(self._past.end() - 1)
        # Two tables may have folded the same records.
        changes = sorted(dict.fromkeys(changes), key=lambda change: change.offset)
        before = [change for change in changes if change.offset <= offset]
        later = next((change for change in changes if change.offset > offset), None)
        return before[-EXPLAINED_CHANGES_MAX:], later

    def _known_records(self, covers: int) -> list[BlockChange]:
        """See `_records`; those before what is no longer kept are left out."""
        changes: list[BlockChange] = []
        with suppress(PastError):
            changes.extend(self._records(Offset(covers)))
        return changes

    def _flushes(self) -> dict[int, bool]:
        """What those flushes cover that have a change of the block, rising; and whether it is one
        of the block itself, and not of all that the instance had, of which it may have been none.
        """
        wanted = self._prefix.to_bytes(8, "little")
        found: dict[int, bool] = {}
        for covers, body in self._past.changes_of(self._context):
            for needle, place in ((wanted, 8), (_CLEARED, 0)):
                start = body.find(needle)
                while start >= 0:
                    if start % CHANGE_BYTES == place:
                        found[covers] = found.get(covers, False) or needle is wanted
                        break
                    start = body.find(needle, start + 1)
        return dict(sorted(found.items()))

    def _records(self, covers: Offset) -> Iterator[BlockChange]:
        """Which records up to the flush, and after the one before it, changed the block."""
        past, question = self._past, self._question
        fold, entries = past.fold_through(covers, question.includes)
        held: dict[tuple[int, int], int] = {}  # rank and tier: engine key
        for body in fold.kernel.dump(self._context, DUMP_CHUNK_ENTRIES_MAX):
            for change in decode_changes(body):
                if change.prefix == self._prefix:
                    held[change.dp_rank, change.tier] = change.engine_key
        fold.kernel.take_changes()
        for entry in entries:
            fold.apply(entry.offset, entry.value)
            for context, body in fold.kernel.take_changes():
                if context != self._context:
                    continue
                changes = list(decode_changes(body))
                # A clear leaves what another owns, which is set again behind it.
                kept = {(one.dp_rank, one.tier) for one in changes if self._is_kept(one)}
                for change in changes:
                    yield from self._told(entry.offset, entry.value, change, held, kept)

    def _is_kept(self, change: Change) -> bool:
        return bool(change.tier >= OWNED and change.holds and change.prefix == self._prefix)

    def _told(
        self,
        offset: int,
        encoded: bytes,
        change: Change,
        held: dict[tuple[int, int], int],
        kept: set[tuple[int, int]],
    ) -> Iterator[BlockChange]:
        if change.op == Op.CLEAR:
            gone = [place for place in held.keys() - kept if place[0] == change.dp_rank]
            for rank, tier in sorted(gone):
                del held[rank, tier]
                yield _change(offset, encoded, "cleared", rank, tier, None)
        elif change.prefix == self._prefix:
            place = change.dp_rank, change.tier
            if change.holds and place not in held:
                held[place] = change.engine_key
                yield _change(offset, encoded, "stored", *place, change.engine_key)
            elif not change.holds and held.pop(place, None) is not None:
                yield _change(offset, encoded, "removed", *place, change.engine_key)


def _change(
    offset: int, encoded: bytes, what: str, dp_rank: int, tier: int, key: int | None
) -> BlockChange:
    record = decode_log_record(encoded)
    assert not isinstance(record, BridgeRecord), "what is of no publisher changes no block"
    kind = str(type(record).__struct_config__.tag)
    incarnation = getattr(record, "incarnation", -1)
    sequence = getattr(record, "last_sequence", -1)
    engine_time = 0.0
    if isinstance(record, EventsRecord):
        engine_time = record.engine_time
        kinds = StoredBlocks if what == "stored" else RemovedBlocks
        if key is not None:
            needle = key.to_bytes(8, "little")
            for event in decode_record_events(record):
                if isinstance(event, kinds) and needle in event.hashes:
                    sequence = event.sequence
    elif what == "cleared":
        what = kind
    medium = MEDIA[answered_tier(tier) % SHARED].value
    return BlockChange(
        offset,
        record.bridge_time,
        kind,
        what,
        incarnation,
        sequence,
        engine_time,
        dp_rank,
        medium,
        is_shared(tier),
    )
