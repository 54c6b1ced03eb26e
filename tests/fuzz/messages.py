"""Messages of publishers by the grammar of `bridge.wire`, with mutations: three frames, or not."""

from collections.abc import Iterator
from importlib import import_module
from random import Random
from typing import Final

import msgspec

from bridge.wire import SOURCES
from bridge.wire.batch import WireForms
from schemas.registration import PublisherKind
from tests.fuzz.mutation import NUMBERS, Base, Mutator
from tests.unit.bridge.messages import captured_messages

_KINDS: Final[dict[PublisherKind, WireForms]] = {
    kind: import_module(factory.__module__)._FORMS for kind, factory in SOURCES.items()
}
_HASHES: Final = 512  # different ones: what the index holds of an attacker is bounded
_BASES: Final = 1000
_FRAMES_EXPECTED: Final = 3


class Messages:
    """The messages of one publisher, from the first on; equal seeds make equal ones.

    Args:
        seed: all follows from it, and from the kind.
        kind: whose grammar is spoken.
    """

    def __init__(self, seed: int, kind: PublisherKind) -> None:
        self._random = Random(f"{seed} {kind}")
        self._mutator = Mutator(self._random)
        self._forms = _KINDS[kind]
        self._sequence = 0
        captured = [one.frames[2] for one in captured_messages() if one.kind == kind]
        self._bases = [Base(msgspec.msgpack.decode(payload)) for payload in captured]
        self._bases += [Base(self._batch()) for _ in range(_BASES)]

    def __iter__(self) -> Iterator[list[bytes]]:
        return self

    def honest(self) -> list[bytes]:
        """The next one as an engine would send it."""
        self._sequence += 1
        payload = self._random.choice(self._bases).encoded
        return [b"", self._sequence.to_bytes(8, "big"), payload]

    def __next__(self) -> list[bytes]:
        """The next one, whatever is wrong with it."""
        payload = self._mutator.encoded(self._random.choice(self._bases))
        frames = [b"", self._encoded_sequence(), payload]
        match self._random.randrange(200):
            case 0:
                return frames[: self._random.randrange(1, _FRAMES_EXPECTED)]
            case 1:
                return [*frames, b""]
            case 2:
                return [self._random.randbytes(self._random.randrange(2000)), *frames[1:]]
            case 3:
                self._random.shuffle(frames)
            case 4:
                return [b"", b"", b""]
        return frames

    def _encoded_sequence(self) -> bytes:
        """Mostly the next one; else a duplicate, a gap, one of long ago, or none at all."""
        self._sequence += 1
        match self._random.randrange(400):
            case 0:
                self._sequence = max(self._sequence - self._random.randrange(10_000), 0)
            case 1:
                self._sequence += self._random.randrange(10_000)
            case 2:
                self._sequence = 0
            case 3:
                return (self._random.choice(NUMBERS) % 2**64).to_bytes(8, "big")
            case 4:
                return self._random.randbytes(self._random.randrange(20))
        return self._sequence.to_bytes(8, "big")

    def _batch(self) -> object:
        as_maps = bool(self._random.randrange(2))
        events = [self._event(as_maps=as_maps) for _ in range(self._random.choice((0, 1, 1, 2, 5)))]
        batch: list[object] = [1_700_000_000.5, events, 0]
        if self._random.randrange(20) == 0:
            return {"ts": batch[0], "events": batch[1], "data_parallel_rank": batch[2]}
        return batch[: self._random.choice((2, 3, 3, 3))]

    def _event(self, *, as_maps: bool) -> object:
        tag = self._random.choice(
            ("BlockStored", "BlockStored", "BlockRemoved", "AllBlocksCleared")
        )
        count = self._random.choice((0, 1, 2, 4, 8, 64))
        if as_maps:
            names = sorted(self._forms.maps[tag].__struct_fields__)
            return {"type": tag} | {name: self._field(name, count) for name in names}
        names = ["block_hashes", "medium"]
        if tag == "BlockStored":
            names = ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id"]
            names += ["medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"]
        most = self._random.randrange(1 + len(self._forms.arrays[tag].__struct_fields__))
        return [tag, *(self._field(name, count) for name in names[:most])]

    def _field(self, name: str, count: int) -> object:
        random = self._random
        match name:
            case "block_hashes":
                return [random.randrange(_HASHES) for _ in range(count)]
            case "parent_block_hash":
                return random.choice((None, random.randrange(_HASHES), bytes(32)))
            case "token_ids":
                return [random.randrange(4) for _ in range(16 * count)]
            case "block_size":
                return random.choice((16, 16, 16, 0, 4))
            case "medium":
                return random.choice(("GPU", "GPU", None, "CPU", "cpu:0", "DISK"))
            case "extra_keys":
                return random.choice((None, [["salt"]] * count, [None] * count, [["key", 3]]))
            case "group_idx":
                return random.choice((None, 0, 1, 64))
            case "kv_cache_spec_kind":
                return random.choice((None, "full_attention", "sliding_window", "mamba"))
            case "locality":
                return random.choice((None, "LOCAL", "REMOTE"))
            case "lora_id":
                return random.choice((None, None, 1))
            case "lora_name" | "cache_salt":
                return random.choice((None, None, "one", "two"))
        return None
