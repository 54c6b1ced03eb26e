"""ATOM's events, as `atom/distributed/kv_events.py` of its main branch encodes them."""

import pytest
from msgspec.structs import replace

from bridge.wire import atom
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import PythonArrayPacker
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks
from schemas.identities import Medium
from tests.unit.bridge.messages import frames_of, registration

TOKENS = [1, 2, 3, 4]
ELEVEN = ["BlockStored", [11], None, TOKENS, 4, None, "GPU", None, None, None, None, None]


def decoded(*events: object) -> tuple[list[BlockEvent], list[str]]:
    source = atom.open_source(registration(kind=atom.KIND), PythonArrayPacker())
    batch = source.decode(frames_of([1.5, events, 0], sequence=7))
    return batch.events, [error.reason for error in batch.dropped]


def u64(number: int) -> bytes:
    return number.to_bytes(8, "little")


def test_where_a_store_begins_names_no_block() -> None:
    (at_the_root,), reasons = decoded([*ELEVEN, 0])
    (later,), _ = decoded([*ELEVEN, 64])
    assert at_the_root == later
    assert reasons == []
    assert isinstance(later, StoredBlocks)
    assert (later.hashes, later.medium, later.block_size) == (u64(11), Medium.GPU, 4)


def test_no_rule_of_a_sparse_group_is_known_of_it() -> None:
    stored = [*ELEVEN[:9], 1, "sliding_window", 128, 0]
    (event,), reasons = decoded(stored)
    assert isinstance(event, StoredBlocks)
    assert (event.group, event.spec_kind, event.last_blocks) == (1, "sliding_window", 0)
    assert reasons == []


@pytest.mark.parametrize("mode", ["", "incremental", "full"])
def test_a_block_that_is_computed_again_takes_the_place_of_the_first(mode: str) -> None:
    """And is removed once, as `BlockManager` of 0.1.5 does it: whatever a client says of copies."""
    registered = replace(registration(kind=atom.KIND), kv_cache_report_mode=mode)
    source = atom.open_source(registered, PythonArrayPacker())
    events = [[*ELEVEN, 0], [*ELEVEN, 0], ["BlockStored", [12], 11, TOKENS, 4, None, "GPU"]]
    for event in source.decode(frames_of([1.5, events, 0], sequence=7)).events:
        assert isinstance(event, StoredBlocks)
        assert (event.reported, event.undecided) == (True, False)


def test_a_field_that_it_has_not_yet_is_left_out() -> None:
    (event,), reasons = decoded([*ELEVEN, 0, "new"])
    assert isinstance(event, StoredBlocks)
    assert (event.left_out, reasons) == (DropReason.UNKNOWN_FIELD, [DropReason.UNKNOWN_FIELD])


def test_blocks_move_between_tiers() -> None:
    moved, reasons = decoded(["BlockTransferred", [11], "GPU", "CPU"])
    assert reasons == []
    assert moved == [
        RemovedBlocks(sequence=7, hashes=u64(11)),
        StoredBlocks(sequence=7, hashes=u64(11), medium=Medium.CPU),
    ]
    received, _ = decoded(["BlockTransferred", [11], "REMOTE", "GPU", 0])
    assert received == [StoredBlocks(sequence=7, hashes=u64(11))]
    sent, _ = decoded(["BlockTransferred", [11], "GPU", "REMOTE"])
    assert sent == [RemovedBlocks(sequence=7, hashes=u64(11))]


def test_what_is_elsewhere_is_passed_over() -> None:
    remote = [*ELEVEN[:6], "REMOTE"]
    events, reasons = decoded(remote, ["BlockRemoved", [11], "REMOTE"], ["AllBlocksCleared"])
    assert events == [ClearedBlocks(sequence=7)]
    assert reasons == [DropReason.NO_BLOCK, DropReason.NO_BLOCK]
