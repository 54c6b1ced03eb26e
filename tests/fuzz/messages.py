"""Messages of publishers by the grammar of `bridge.wire`, with mutations: three frames, or four of
Dynamo's event plane, or neither.

What a kind may send follows from its decoder's forms and from its captured messages, so a new kind
is attacked without a line here.
"""

from collections.abc import Iterator, Mapping
from random import Random
from types import NoneType
from typing import Any, Final, NamedTuple, get_args

import msgspec
from msgspec.structs import FieldInfo

from bridge.wire import open_source
from bridge.wire.batch import BatchDecoder
from bridge.wire.forms import WireEvent
from schemas.arrays import PythonArrayPacker
from schemas.registration import PublisherKind
from tests.fuzz.mutation import NUMBERS, Base, Mutator
from tests.unit.bridge.messages import Captured, captured_messages, registration

_HASHES: Final = 512  # different ones: what the index holds of an attacker is bounded
_BASES: Final = 1000
_VALUES: Final[dict[str, tuple[object, ...]]] = {
    "block_size": (16, 16, 16, 0, 4),
    "medium": ("GPU", "GPU", None, "CPU", "cpu:0", "DISK"),
    "group_idx": (None, 0, 1, 64),
    "kv_cache_spec_kind": (None, "full_attention", "sliding_window", "mamba"),
    "locality": (None, "LOCAL", "REMOTE"),
    "origin": (None, "NEW", "REUSED"),
    "ownership": (None, None, "kvcr", "fs"),
    "lora_id": (None, None, 1),
    "lora_name": (None, None, "one", "two"),
    "cache_salt": (None, None, "one", "two"),
    "metadata": (None, None, {"cache_salt": "one"}),
    "mm_keys": (None, None, []),
    "block_mm_infos": (None, None, []),
    # Named and not read: what stands there makes messages long, and tells nothing.
    "kv_cache_spec_sliding_window": (None,),
    "lookahead_token_ids": (None,),
    "session_id": (None,),
}
"""What the fields of that name have; the others get something of their type."""
_PLANE_HEADER: Final = 5


class _Shape(NamedTuple):
    """A valid payload, and the frames round it.

    Attributes:
        base: what is mutated.
        heads: the frames before the sequence.
        envelope: round the payload, where there is one: on Dynamo's event plane.
    """

    base: Base
    heads: tuple[bytes, ...] = (b"",)
    envelope: Mapping[str, object] | None = None

    @classmethod
    def of(cls, captured: Captured) -> "_Shape":
        *heads, _, payload = captured.frames
        if len(heads) == 1:
            json = msgspec.json
            is_json = payload[:1] in (b"{", b"[")
            return cls(
                Base(json.decode(payload), json.encode)
                if is_json
                else Base(msgspec.msgpack.decode(payload))
            )
        envelope = msgspec.msgpack.decode(payload[_PLANE_HEADER:])
        return cls(Base(msgspec.msgpack.decode(envelope["payload"])), tuple(heads), envelope)

    def frames(self, sequence: bytes, payload: bytes) -> list[bytes]:
        if self.envelope is not None:
            content = msgspec.msgpack.encode({**self.envelope, "payload": payload})
            payload = b"\x01" + len(content).to_bytes(4, "big") + content
        return [*self.heads, sequence, payload]


class _Event:
    """One event of a kind, in one of its forms."""

    def __init__(self, tag: str, event: type[WireEvent]) -> None:
        self.tag = tag
        self.tag_field = event.__struct_config__.tag_field
        self.is_map = not event.__struct_config__.array_like
        self.fields = msgspec.structs.fields(event)
        self.required = sum(field.required for field in self.fields)


class Messages:
    """The messages of one publisher, from the first on; equal seeds make equal ones.

    Args:
        seed: all follows from it, and from the kind.
        kind: whose grammar is spoken.
    """

    def __init__(self, seed: int, kind: PublisherKind) -> None:
        self._random = Random(f"{seed} {kind}")
        self._mutator = Mutator(self._random)
        self._sequence = 0
        # The events of each form, the first of them, which stores, twice as often.
        self._forms: list[list[_Event]] = []
        source = open_source(registration(kind=kind), PythonArrayPacker())
        if isinstance(source, BatchDecoder):
            for events in (source.forms.maps, source.forms.arrays):
                form = [_Event(tag, event) for tag, event in events.items()]
                self._forms += [[*form, form[0]]] if form else []
        self._shapes = [_Shape.of(one) for one in captured_messages() if one.kind == kind]
        if self._forms:
            self._shapes += [_Shape(Base(self._batch())) for _ in range(_BASES)]
        assert self._shapes, (
            f"{kind}: expected the decoder of bridge.wire.batch, or captured frames"
        )

    def __iter__(self) -> Iterator[list[bytes]]:
        return self

    def honest(self) -> list[bytes]:
        """The next one as an engine would send it."""
        self._sequence += 1
        shape = self._random.choice(self._shapes)
        return shape.frames(self._sequence.to_bytes(8, "big"), shape.base.encoded)

    def __next__(self) -> list[bytes]:
        """The next one, whatever is wrong with it."""
        shape = self._random.choice(self._shapes)
        frames = shape.frames(self._encoded_sequence(), self._mutator.encoded(shape.base))
        match self._random.randrange(200):
            case 0:
                return frames[: self._random.randrange(1, len(frames))]
            case 1:
                return [*frames, b""]
            case 2:
                return [self._random.randbytes(self._random.randrange(2000)), *frames[1:]]
            case 3:
                self._random.shuffle(frames)
            case 4:
                return [b""] * len(frames)
            case 5:
                return [*frames[:-1], self._mutator.raw(frames[-1])]
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
        form = self._random.choice(self._forms)
        count = self._random.choice((0, 1, 1, 2, 5))
        events = [self._event(self._random.choice(form)) for _ in range(count)]
        batch: list[object] = [1_700_000_000.5, events, 0]
        if self._random.randrange(20) == 0:
            return {"ts": batch[0], "events": batch[1], "data_parallel_rank": batch[2]}
        return batch[: self._random.choice((2, 3, 3, 3))]

    def _event(self, event: _Event) -> object:
        count = self._random.choice((0, 1, 2, 4, 8, 64))
        if event.is_map:
            values = {field.encode_name: self._field(field, count) for field in event.fields}
            return values | {event.tag_field: event.tag}
        most = self._random.randint(event.required, len(event.fields))
        return [event.tag, *(self._field(field, count) for field in event.fields[:most])]

    def _field(self, field: FieldInfo, count: int) -> object:
        random = self._random
        if field.name in _VALUES:
            return random.choice(_VALUES[field.name])
        match field.name:
            case "block_hashes":
                return [random.randrange(_HASHES) for _ in range(count)]
            case "parent_block_hash":
                return random.choice((None, random.randrange(_HASHES), bytes(32)))
            case "token_ids":
                return [random.randrange(4) for _ in range(16 * count)]
            case "extra_keys":
                return random.choice((None, [["salt"]] * count, [None] * count, [["key", 3]]))
        return self._typed(random.choice(get_args(field.type) or (field.type,)), count)

    def _typed(self, expected: Any, count: int) -> object:
        """Something of the type, for a field whose name tells nothing here."""
        random = self._random
        if expected is msgspec.Raw:
            return [random.randrange(_HASHES) for _ in range(random.choice((count, 16 * count)))]
        values: dict[Any, object] = {
            NoneType: None,
            bool: bool(random.randrange(2)),
            int: random.choice((0, 1, 16, random.randrange(_HASHES))),
            float: random.random(),
            str: random.choice(("", "one", "GPU")),
            bytes: random.randbytes(random.choice((8, 32))),
        }
        return values.get(expected)
