"""An engine with tags of its own, whose events have one form only."""

from typing import ClassVar

import msgspec
import pytest

from bridge.wire.batch import BatchDecoder, DecodedBatch
from bridge.wire.drop_reasons import DropReason
from bridge.wire.fields import NIL, Origin, block_size_of, hashes_of, parent_of, tokens_of
from bridge.wire.forms import WireEvent, WireForms, forms_of
from schemas.arrays import PythonArrayPacker
from schemas.errors import EventError, ToleratedError
from schemas.events import BlockEvent, RemovedBlocks, StoredBlocks
from tests.unit.bridge.messages import frames_of, registration


class StoredArray(WireEvent, array_like=True, tag="Stored", forbid_unknown_fields=True):
    hashes: msgspec.Raw
    parent: int | None = None
    tokens: msgspec.Raw = NIL
    block_size: int | None = None

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        return StoredBlocks(
            sequence=sequence,
            hashes=hashes_of(self.hashes, origin.packer),
            tokens=tokens_of(self.tokens, origin.packer),
            parent=parent_of(self.parent),
            block_size=block_size_of(self.block_size),
        )


class RemovedArray(WireEvent, array_like=True, tag="Removed", forbid_unknown_fields=True):
    hashes: msgspec.Raw

    removes: ClassVar[bool] = True

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        return RemovedBlocks(sequence=sequence, hashes=hashes_of(self.hashes, origin.packer))


class RemovedMap(WireEvent, tag="Removed", tag_field="type", forbid_unknown_fields=True):
    hashes: msgspec.Raw

    removes: ClassVar[bool] = True

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        return RemovedBlocks(sequence=sequence, hashes=hashes_of(self.hashes, origin.packer))


ARRAYS = forms_of(arrays=(StoredArray, RemovedArray))
MAPS = forms_of(maps=(RemovedMap,))
REMOVED = RemovedBlocks(sequence=3, hashes=(7).to_bytes(8, "little"))


def decode(*events: object, forms: WireForms = ARRAYS) -> DecodedBatch:
    decoder = BatchDecoder(registration(), PythonArrayPacker(), forms=forms)
    return decoder.decode(frames_of([1.5, list(events)], sequence=3))


def test_an_engine_may_send_arrays_only() -> None:
    batch = decode(["Removed", [7]], ["Stored", [8], 7, [1, 2], 2])
    assert batch.dropped == []
    stored = StoredBlocks(
        sequence=3,
        hashes=(8).to_bytes(8, "little"),
        tokens=b"\1\0\0\0\2\0\0\0",
        parent=7,
        block_size=2,
    )
    assert batch.events == [REMOVED, stored]


def test_an_engine_may_send_maps_only() -> None:
    batch = decode({"type": "Removed", "hashes": [7]}, forms=MAPS)
    assert (batch.events, batch.dropped) == ([REMOVED], [])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (["Stored", [8], 7, "text", "text"], DropReason.MALFORMED_EVENT),
        (["Stored"], DropReason.MALFORMED_EVENT),
        (["AllBlocksCleared"], DropReason.UNKNOWN_EVENT),
        ({"type": "BlockStored", "x": 1}, DropReason.UNKNOWN_EVENT),
        ({"type": "Stored", "x": 1}, DropReason.MALFORMED_EVENT),
        ({"type": "Removed", "hashes": [7]}, DropReason.MALFORMED_EVENT),
    ],
)
def test_a_bad_event_is_counted_by_the_tags_and_fields_of_its_engine(
    bad: object, reason: str
) -> None:
    batch = decode(["Removed", [7]], bad)
    assert batch.events == [REMOVED]
    assert [error.reason for error in batch.dropped] == [reason]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"type": "Removed"}, DropReason.MALFORMED_EVENT),
        ({"type": "BlockRemoved", "x": 1}, DropReason.UNKNOWN_EVENT),
        (["Removed", [7], "GPU"], DropReason.MALFORMED_EVENT),
        (["AllBlocksCleared"], DropReason.UNKNOWN_EVENT),
    ],
)
def test_so_it_is_where_an_engine_sends_maps_only(bad: object, reason: str) -> None:
    batch = decode({"type": "Removed", "hashes": [7]}, bad, forms=MAPS)
    assert batch.events == [REMOVED]
    assert [error.reason for error in batch.dropped] == [reason]


@pytest.mark.parametrize(
    ("more", "forms"),
    [(["Removed", [7], "GPU"], ARRAYS), ({"type": "Removed", "hashes": [7], "x": 1}, MAPS)],
)
def test_what_an_event_says_beyond_its_fields_is_passed_over(
    more: object, forms: WireForms
) -> None:
    batch = decode(more, forms=forms)
    assert batch.events == [REMOVED]
    assert [type(error) for error in batch.dropped] == [ToleratedError]


def test_a_store_that_is_not_understood_may_leave_nothing_behind() -> None:
    """Its kind does not say where its names are: it is dropped."""
    batch = decode(["Stored", [8], 7, [1, 2], 2, "more"], ["Removed", [7]])
    assert batch.events == [REMOVED]
    assert [type(error) for error in batch.dropped] == [EventError]


def test_an_event_that_is_not_known_is_told_the_tags_of_its_engine() -> None:
    (error,) = decode(["BlockStored"]).dropped
    assert str(error) == "unknown_event: Expected one of ['Removed', 'Stored'], got: BlockStored"


def test_fields_are_known_by_the_names_that_the_engine_gives_them() -> None:
    class Renamed(
        WireEvent, tag="Removed", tag_field="type", rename="pascal", forbid_unknown_fields=True
    ):
        hashes: msgspec.Raw

        def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
            return REMOVED

    forms = forms_of(maps=(Renamed,))
    (error,) = decode({"type": "Removed", "Hashes": [7], "Medium": "GPU"}, forms=forms).dropped
    assert str(error).endswith("got: Medium")
