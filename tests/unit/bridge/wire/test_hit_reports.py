"""Which stored events are marked as reports of hits, and which as what may be such."""

from typing import Any

import msgspec
import pytest

from bridge.wire import open_source
from schemas.arrays import ArrayPacker, PythonArrayPacker
from schemas.events import BlockEvent, StoredBlocks
from schemas.registration import ReportMode
from streams.kernel import array_packer, native_available
from tests.unit.bridge.messages import frames_of, map_event, registration


@pytest.fixture(params=["python", "rust"])
def packer(request: pytest.FixtureRequest) -> ArrayPacker:
    if request.param == "python":
        return PythonArrayPacker()
    if not native_available():
        pytest.skip("the Rust kernel is not built")
    return array_packer()


def chain(**fields: Any) -> object:
    plain = {"block_hashes": [1, 2], "token_ids": [7] * 8, "block_size": 4}
    return map_event("BlockStored", **plain | fields)


def decoded(packer: ArrayPacker, mode: ReportMode, *events: object) -> list[BlockEvent]:
    one = msgspec.structs.replace(registration(), kv_cache_report_mode=mode)
    batch = open_source(one, packer).decode(frames_of([1.0, [*events], 0], 5))
    assert not batch.dropped
    return batch.events


def marks(packer: ArrayPacker, mode: ReportMode, *events: object) -> list[str]:
    found = []
    for event in decoded(packer, mode, *events):
        assert isinstance(event, StoredBlocks)
        found.append("reported" * event.reported + "undecided" * event.undecided)
    return found


MODES: dict[ReportMode, str] = {"": "undecided", "full": "reported", "incremental": ""}


@pytest.mark.parametrize("mode", MODES)
def test_what_begins_a_prompt_is_marked(packer: ArrayPacker, mode: ReportMode) -> None:
    of_sparse = chain(group_idx=2, kv_cache_spec_kind="mamba")
    events = [chain(), chain(block_hashes=[3, 4], parent_block_hash=2), chain(group_idx=1)]
    assert marks(packer, mode, *events, of_sparse) == [MODES[mode], "", MODES[mode], MODES[mode]]


@pytest.mark.parametrize(
    "fields",
    [
        {"parent_block_hash": 9},
        {"medium": "cpu"},
        {"locality": "REMOTE"},
        {"kv_cache_spec_kind": "sliding_window"},
        {"token_ids": [], "block_size": 0},
        {"origin": "NEW"},
    ],
)
@pytest.mark.parametrize("mode", [mode for mode, mark in MODES.items() if mark])
def test_what_cannot_be_a_report_is_not(
    packer: ArrayPacker, mode: ReportMode, fields: dict[str, object]
) -> None:
    assert marks(packer, mode, chain(**fields)) == [""]


@pytest.mark.parametrize("mode", MODES)
def test_an_event_may_say_it_itself(packer: ArrayPacker, mode: ReportMode) -> None:
    assert marks(packer, mode, chain(origin="reused"), chain(origin="REUSED")) == ["reported"] * 2


def test_a_release_that_sends_arrays_has_no_such_mode(packer: ArrayPacker) -> None:
    array = ["BlockStored", [1, 2], None, [7] * 8, 4]
    assert marks(packer, "", array) == [""]
    assert marks(packer, "full", array) == ["reported"]


def test_a_run_of_batches_is_marked_as_each_of_them_is(packer: ArrayPacker) -> None:
    source = open_source(registration(), packer)
    frames = [list(frames_of([1.0, [chain()], 0], sequence)) for sequence in (5, 6)]
    run = source.decode_run(frames, 5, 10_000)
    if run is not None:
        assert run.run == b"".join(source.decode(one).run for one in frames)


def test_each_part_of_a_large_chain_is_marked(packer: ArrayPacker) -> None:
    hashes = list(range(20_000))
    large = chain(block_hashes=hashes, token_ids=[7] * 4 * len(hashes))
    found = marks(packer, "", large, chain(parent_block_hash=hashes[-1]))
    assert len(found) > 2, "it comes in parts"
    assert found == [*["undecided"] * (len(found) - 1), ""]
