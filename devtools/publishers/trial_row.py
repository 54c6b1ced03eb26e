"""One publisher of one version, as it was tried: what came, and what was made of it."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from bridge.wire import open_source
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import PythonArrayPacker
from schemas.errors import PassedOverError
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks
from schemas.registration import PublisherKind, Registration

Frames = Sequence[bytes]


class TrialRow(NamedTuple):
    """A row of the table.

    Attributes:
        code: whether the released code was run; else frames were read that it had sent before.
        form: of its events.
        replies: the frames of a replay's replies behind the empty one; "" where there were none.
        live: messages.
        replayed: messages.
        stored: events, of what came live; likewise those that follow.
        blocks: that the stored events name.
        passed_over: events that mean nothing here, as of another model: rightly not used.
        unused: events and batches that could not be used.
    """

    kind: PublisherKind
    version: str
    code: bool
    form: str
    replies: str
    live: int
    replayed: int
    stored: int
    removed: int
    cleared: int
    blocks: int
    passed_over: int
    unused: int


class ReplayDiffersError(Exception):
    """A batch was replayed as something else than what had come live."""


def try_messages(
    kind: PublisherKind,
    version: str,
    *,
    code: bool,
    live: Sequence[Frames],
    replies: Iterable[Frames],
) -> TrialRow:
    """Decodes what came live, and what was replayed.

    Args:
        kind: of the publisher.
        version: likewise.
        code: see `TrialRow`.
        live: messages, in order.
        replies: as a DEALER gets them, the empty frame and the end marker included.

    Raises:
        ReplayDiffersError: see there.
    """
    registered = {rank: _registration(kind, rank) for rank in map(_rank_of, live)}
    sources = {
        rank: open_source(registration, PythonArrayPacker())
        for rank, registration in registered.items()
    }
    batches = [sources[_rank_of(message)].decode(message) for message in live]
    replayed = [reply[-3:] if len(reply) > 3 else reply for reply in replies if reply[-1]]
    known = {batch.sequence: batch for batch in batches}
    for message in replayed:
        batch = sources[_rank_of(message)].decode(message)
        came_live = known.get(batch.sequence)
        if came_live is not None and came_live != batch:
            raise ReplayDiffersError(f"{kind} {version}: batch {batch.sequence}")
    events = [event for batch in batches for event in batch.events]
    dropped = [error for batch in batches for error in batch.dropped]
    passed_over = sum(
        isinstance(error, PassedOverError) or error.reason == DropReason.LOOKAHEAD
        for error in dropped
    )
    return TrialRow(
        kind=kind,
        version=version,
        code=code,
        form=_form([message[-1] for message in live]),
        replies=_replies(replies),
        live=len(live),
        replayed=len(replayed),
        stored=_count(events, StoredBlocks),
        removed=_count(events, RemovedBlocks),
        cleared=_count(events, ClearedBlocks),
        blocks=sum(len(event.hashes) // 8 for event in events if isinstance(event, StoredBlocks)),
        passed_over=passed_over,
        unused=len(dropped) - passed_over,
    )


def _count(events: Sequence[BlockEvent], of: type[BlockEvent]) -> int:
    return sum(isinstance(event, of) for event in events)


def _replies(replies: Iterable[Frames]) -> str:
    counts = {len(reply) for reply in replies}
    names = {3: "sequence, payload", 4: "topic, sequence, payload"}
    return " or ".join(names[count] for count in sorted(counts))


def _form(payloads: Sequence[bytes]) -> str:
    """Of the longest stored event, which has all fields that the version knows."""
    forms: dict[str, int] = {}
    for payload in payloads:
        for event in _events_of(payload):
            if isinstance(event, list):
                forms["array"] = max(forms.get("array", 0), len(event) - 1)
            elif isinstance(event, dict):
                forms["map"] = max(forms.get("map", 0), len(event) - 1)
    return ", ".join(f"{form}, up to {fields} fields" for form, fields in sorted(forms.items()))


def _events_of(payload: bytes) -> Sequence[object]:
    batch = _read(payload)
    if not isinstance(batch, list):
        return [batch]
    is_batch = len(batch) > 1 and isinstance(batch[1], list)
    return batch[1] if is_batch else batch


def _rank_of(message: Frames) -> int:
    """That the batch names, 0 where it names none."""
    batch = _read(message[-1])
    rank = batch[2] if isinstance(batch, list) and len(batch) > 2 else 0
    return rank if isinstance(rank, int) else 0


def _read(payload: bytes) -> object:
    for decode in (msgspec.msgpack.decode, msgspec.json.decode):
        with suppress(msgspec.DecodeError):
            return decode(payload)
    return None


def _registration(kind: PublisherKind, dp_rank: int) -> Registration:
    return Registration(
        endpoint="tcp://127.0.0.1:5557",
        kind=kind,
        model_name="m",
        instance_id="tried",
        block_size=4,
        dp_rank=dp_rank,
    )
