"""An engine with tags of its own, whose events have one form only."""

import msgspec

from bridge.wire.batch import BatchDecoder, DecodedBatch, WireEvent, WireForms, forms_of
from bridge.wire.fields import NIL, Origin, block_size_of, hashes_of, parent_of, tokens_of
from schemas.arrays import PythonArrayPacker
from schemas.events import BlockEvent, Removed, Stored
from tests.unit.bridge.messages import frames_of, registration


class StoredArray(WireEvent, array_like=True, tag="Stored", forbid_unknown_fields=True):
    hashes: msgspec.Raw
    parent: int | None = None
    tokens: msgspec.Raw = NIL
    block_size: int | None = None

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        return Stored(
            sequence=sequence,
            hashes=hashes_of(self.hashes, origin.packer),
            tokens=tokens_of(self.tokens, origin.packer),
            parent=parent_of(self.parent),
            block_size=block_size_of(self.block_size),
        )


class RemovedArray(WireEvent, array_like=True, tag="Removed", forbid_unknown_fields=True):
    hashes: msgspec.Raw

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        return Removed(sequence=sequence, hashes=hashes_of(self.hashes, origin.packer))


class RemovedMap(WireEvent, tag="Removed", tag_field="type", forbid_unknown_fields=True):
    hashes: msgspec.Raw

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        return Removed(sequence=sequence, hashes=hashes_of(self.hashes, origin.packer))


ARRAYS = forms_of(arrays=(StoredArray, RemovedArray))
MAPS = forms_of(maps=(RemovedMap,))
REMOVED = Removed(sequence=3, hashes=(7).to_bytes(8, "little"))


def decode(*events: object, forms: WireForms = ARRAYS) -> DecodedBatch:
    decoder = BatchDecoder(registration(), PythonArrayPacker(), forms=forms)
    return decoder.decode(frames_of([1.5, list(events)], sequence=3))


def test_an_engine_may_send_arrays_only() -> None:
    batch = decode(["Removed", [7]], ["Stored", [8], 7, [1, 2], 2])
    assert batch.dropped == []
    stored = Stored(
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
