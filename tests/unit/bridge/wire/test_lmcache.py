"""What a server of LMCache's multi-process mode streams, in its own words."""

import pytest

from bridge.wire import lmcache, open_source
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import PythonArrayPacker
from schemas.events import (
    BlockEvent,
    ClearedBlocks,
    RemovedBlocks,
    StoredBlocks,
    encode_events,
)
from schemas.identities import Medium, PrefixScope, StreamKey
from streams.kernel import open_kernel
from tests.unit.bridge.messages import frames_of, registration

STREAM = StreamKey("default", "m", 4, "", "w-1")
SCOPE = PrefixScope("default", "m", "", 4, "")
CHUNK = bytes(range(32))
NAME = CHUNK[-8:][::-1]
STORED = {"kind": "stored", "medium": "CPU", "block_hashes": [CHUNK], "block_size": 4}
REMOVED = {"kind": "removed", "medium": "CPU", "block_hashes": [CHUNK]}


def decoded(*events: object) -> tuple[list[BlockEvent], list[str]]:
    source = open_source(registration(kind=lmcache.KIND), PythonArrayPacker())
    batch = source.decode(frames_of([1.7e18, events, 0], sequence=7))
    return batch.events, [error.reason for error in batch.dropped]


def test_a_chunk_is_held_by_the_last_bytes_of_its_hash() -> None:
    (stored, removed), reasons = decoded(STORED, REMOVED)
    assert stored == StoredBlocks(
        sequence=7, hashes=NAME, block_size=4, medium=Medium.CPU, by_hash=True, reported=True
    )
    assert removed == RemovedBlocks(sequence=7, hashes=NAME, medium=Medium.CPU, whole=True)
    assert reasons == []


def test_chunks_without_tokens_have_the_registered_size() -> None:
    ((event,), _) = decoded({name: value for name, value in STORED.items() if name != "block_size"})
    assert isinstance(event, StoredBlocks)
    assert event.block_size == 4


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"medium": "TAPE"}, DropReason.UNKNOWN_MEDIUM),
        ({"block_hashes": [b"short"]}, DropReason.BAD_HASHES),
        ({"block_size": -1}, DropReason.BAD_BLOCK_SIZE),
        ({"salt": "blue"}, DropReason.UNKNOWN_FIELD),
    ],
)
def test_what_cannot_be_used_is_counted(changed: dict[str, object], reason: str) -> None:
    events, reasons = decoded(STORED | changed)
    assert reasons == [reason]
    assert all(isinstance(one, StoredBlocks) and one.left_out == reason for one in events)


def test_what_is_missing_is_no_event_that_can_be_used() -> None:
    assert decoded({"kind": lmcache.LOST}) == ([], [DropReason.EVENTS_MISSING])
    assert decoded({"kind": "moved"}) == ([], [DropReason.UNKNOWN_EVENT])


def test_a_beginning_without_its_past_clears() -> None:
    assert decoded({"kind": lmcache.CLEARED}) == ([ClearedBlocks(sequence=7)], [])


def test_the_first_part_that_is_gone_ends_a_chunk() -> None:
    """Of two ranks each stores its own part, and each one's is gone at a time of its own."""
    kernel = open_kernel(1337)
    handle = kernel.open_publisher(STREAM, 0)
    kernel.register(handle, "", True)
    held = []
    for event in (STORED, STORED, REMOVED, REMOVED):
        kernel.apply(handle, encode_events(decoded(event)[0]), -1)
        (match,) = kernel.query_by_hash(SCOPE, NAME, None)
        held.append((match.longest, match.cpu))
    assert held == [(4, 4), (4, 4), (0, 0), (0, 0)]
    assert kernel.left_out(handle) == []
