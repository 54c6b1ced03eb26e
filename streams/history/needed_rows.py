"""Which changes in the rows of contexts a past answer about a prompt needs, where records are
folded on from those rows: of blocks those of the prompt and those that the records name, and of
everything else all that there is.

What a publisher holds besides blocks that answers count (copies that there may be, what is left
out, objects that wait, cache groups, aliases) stands in hidden contexts. A record may change it by
any of its blocks, and how much there is decides the publisher's state: those contexts are loaded
whole. Where a publisher's cache groups or a pool's aliases decide that, or which blocks a sparse
group holds, it depends on blocks that no record names: such a stream is loaded whole.
"""

import struct
from collections.abc import Iterable
from typing import TypeGuard

from schemas.codec import decode_log_record, decode_record_events
from schemas.errors import RecordError
from schemas.events import SPARSE_SPEC_KINDS, BlockEvent, ClearedBlocks, StoredBlocks
from schemas.identities import GROUPS, RULES, ModelContext, StreamKey, is_aliases, is_hidden
from schemas.records import EventsRecord, LogRecord
from streams.kernel import change_selection
from streams.kernel.changes import engine_key
from streams.kernel.selection import ChangeSelection


class NeededRows:
    """See the module.

    Args:
        prefixes: of the prompt, (n,) u64 LE.
        records: that will be folded, of the wanted streams.
        contexts: that have rows. Cost O(contexts + bytes of the records).
    """

    def __init__(
        self, prefixes: bytes, records: Iterable[bytes], contexts: Iterable[ModelContext]
    ) -> None:
        keys = [b""]
        self._whole: set[StreamKey] = set()
        is_changed = False
        for record in filter(_is_of_events, map(decode_log_record, records)):
            is_changed = True
            for event in _events_of(record):
                keys.append(_keys_of(event))
                if _shows_group(event):
                    self._whole.add(record.stream)
        if is_changed:
            named = (one for one in contexts if _depends_on_all(one.lora_name))
            self._whole.update(context.stream for context in named)
        self._selection: ChangeSelection = change_selection(prefixes, b"".join(keys))

    def of(self, context: ModelContext) -> ChangeSelection | None:
        """What to select of a context's changes; None for all of them."""
        is_whole = is_hidden(context.lora_name) or context.stream in self._whole
        return None if is_whole else self._selection


def _is_of_events(record: LogRecord) -> TypeGuard[EventsRecord]:
    return isinstance(record, EventsRecord)


def _events_of(record: EventsRecord) -> list[BlockEvent]:
    try:
        return decode_record_events(record)
    except RecordError:
        return []  # the fold skips it, too


def _depends_on_all(lora_name: str) -> bool:
    """Whether a stream with rows of such a context has a state that depends on all its blocks."""
    return lora_name in (GROUPS, RULES) or is_aliases(lora_name)


def _shows_group(event: BlockEvent) -> bool:
    """Whether the event may be the first one of a cache group that forms prefixes, beside the first
    one, or whose rule is known.
    """
    if not isinstance(event, StoredBlocks):
        return False
    is_sparse = event.spec_kind in SPARSE_SPEC_KINDS
    return event.last_blocks > 0 if is_sparse else event.group > 0


def _keys_of(event: BlockEvent) -> bytes:
    """All engine keys that an event names, (n,) u64 LE."""
    if isinstance(event, ClearedBlocks):
        return b""
    hashes = event.hashes
    if isinstance(event, StoredBlocks):
        if event.aliases:
            # What an engine calls by an object's alias decides where the object is found.
            return event.aliases + hashes
        if event.parent is not None:
            hashes += event.parent.to_bytes(8, "little")
    if event.group:
        keys = (engine_key(one, event.group) for (one,) in struct.iter_unpack("<Q", hashes))
        hashes = b"".join(key.to_bytes(8, "little") for key in keys)
    return hashes
