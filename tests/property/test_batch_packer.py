"""Whole batches: what the Rust packer makes of one is, byte for byte, what `bridge.wire` makes of
it, or it leaves the batch to `bridge.wire`.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from bridge.wire import DecodedBatch, open_source
from bridge.wire.batch import BATCH_APART_EVENTS_MAX, BATCH_APART_VALUES_MAX, BatchDecoder
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import BatchPacker
from schemas.limits import (
    BATCH_EVENTS_MAX,
    BLOCK_SIZE_MAX,
    BULK_BYTES,
    EVENT_BLOCKS_MAX,
    GROUP_NUMBER_MAX,
    LORA_NAMES_MAX,
    NAME_BYTES_MAX,
    PACKED_BATCH_BYTES_MAX,
)
from schemas.registration import PublisherKind, Registration, ReportMode
from streams.kernel import array_packer, native_available
from tests.property.test_kernel_bytes import mutated
from tests.unit.bridge.messages import VLLM, Captured, captured_messages, frames_of, registration

pytestmark = pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")

SGLANG = PublisherKind("SGLang")
TRTLLM = PublisherKind("TensorRT-LLM")
PACKED = (VLLM, SGLANG, TRTLLM)
SEQUENCE = 2**40 + 7
BATCHES = 3_000
MUTATIONS = 60


class ArraysOnly:
    """The kernel's packer without its batches."""

    def __init__(self) -> None:
        packer = array_packer()
        self.pack_hashes = packer.pack_hashes
        self.pack_tokens = packer.pack_tokens
        self.pack_seconds = packer.pack_seconds
        self.count_values = packer.count_values
        self.split_run = packer.split_run

    def batch_packer(
        self,
        *,
        arrays: Mapping[str, Sequence[str]],
        maps: Mapping[str, Sequence[str]],
        dp_rank: int,
        lora_name: str,
        roots: str,
        all_chains: bool,
        scopeless_tiers: bool,
        has_rules: bool,
    ) -> BatchPacker | None:
        return None


def decoders(of: Registration) -> tuple[BatchDecoder, BatchDecoder]:
    """One with batches packed, one without."""
    packing, plain = open_source(of, array_packer()), open_source(of, ArraysOnly())
    assert isinstance(packing, BatchDecoder)
    assert isinstance(plain, BatchDecoder)
    return packing, plain


def told(batch: DecodedBatch) -> tuple[object, ...]:
    """All that a batch is, its errors by their texts, its events as what they mean: the header of
    their maps may be wider than it needs to be.
    """
    errors = [(type(error), error.reason, str(error)) for error in batch.dropped]
    return (*batch._replace(dropped=[], run=b"", parts=()), batch.events, errors)


def check(pair: tuple[BatchDecoder, BatchDecoder], payload: bytes, what: str) -> bool:
    """Asserts that both make the same of the payload; returns whether it was packed."""
    packing, plain = pair
    packed = packing._pack(payload, SEQUENCE)
    frames = [b"", SEQUENCE.to_bytes(8, "big"), payload]
    expected = plain.decode(frames)
    if packed is not None:
        assert told(packing.decode(frames)) == told(expected), f"{what}: {payload.hex()}"
    assert told(packing.decode(frames)) == told(expected), f"{what}: {payload.hex()}"
    return packed is not None


@pytest.mark.parametrize("kind", PACKED)
def test_batches_of_the_usual_engines_are_packed(kind: PublisherKind) -> None:
    packing, _ = decoders(registration(kind=kind))
    assert packing._packer is not None, "the Rust packer does not know a field of this kind"


CAPTURED = [captured for captured in captured_messages() if captured.kind in PACKED]


@pytest.mark.parametrize("captured", CAPTURED, ids=[captured.name for captured in CAPTURED])
def test_a_captured_message_is_packed_and_each_mutation_of_it_means_the_same(
    captured: Captured, seed: int
) -> None:
    pair = decoders(registration(kind=captured.kind, dp_rank=captured.rank))
    payload = captured.frames[-1]
    packed = check(pair, payload, captured.name)
    assert packed or captured.kind not in (VLLM, SGLANG) or "lookahead" in captured.name
    for place in range(MUTATIONS):
        check(pair, mutated(payload, seed + place), f"{captured.name}, seed {seed + place}")


# Batches by grammar: mostly as engines send them, now and then odd.

Choose = random.Random


def number(choose: Choose) -> object:
    value: object = choose.choice((0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32))
    odd = choose.random()
    if odd < 0.1:
        value = choose.choice((-1, -32, -33, -128, -129, -(2**15) - 1, -(2**31) - 1, -(2**63)))
    elif odd < 0.12:
        value = choose.choice((2**63, 2**64 - 1, 1.0, 1.5, True, None, "1", b"1", [1], {}))
    return value


def text(choose: Choose) -> object:
    if choose.random() < 0.03:
        return choose.choice((b"GPU", 5, ["x"], "x" * NAME_BYTES_MAX, "x" * (NAME_BYTES_MAX + 1)))
    return choose.choice((None, "", "a", "sql-lora", "\u017f", "x" * 32, "x" * 256))


def hash_(choose: Choose) -> object:
    odd = choose.random()
    if odd < 0.2:
        return choose.randbytes(choose.choice((8, 16, 32)))
    if odd < 0.21:
        return choose.choice((b"short", 1.0, None, "x", 2**32))
    if odd < 0.4:
        return choose.randrange(-(2**63), 2**63)
    return choose.getrandbits(64)


def hashes(choose: Choose) -> object:
    if choose.random() < 0.02:
        return choose.choice((None, {}, "x", 5, [[1]]))
    return [hash_(choose) for _ in range(choose.choice((0, 1, 1, 2, 20)))]


def tokens(choose: Choose) -> object:
    odd = choose.random()
    if odd < 0.1:
        return [[choose.getrandbits(17), choose.getrandbits(17)] for _ in range(4)]
    if odd < 0.2:
        return [number(choose) for _ in range(5)]
    return choose.choice(([], None, [choose.getrandbits(17) for _ in range(40)]))


def key(choose: Choose, depth: int = 0) -> object:
    odd = choose.random()
    if odd < 0.1 and depth < 20:
        return [key(choose, depth + 1) for _ in range(choose.randrange(3))]
    if odd < 0.15:
        return choose.choice(
            ({"a": 1}, msgspec.msgpack.Ext(5, b"x"), -0.0, float("nan"), b"\0" * 300)
        )
    return choose.choice(("salt", "a", number(choose), text(choose), 1.5, True, None))


def extra_keys(choose: Choose) -> object:
    if choose.random() < 0.5:
        return choose.choice((None, [], [None, None], [[], None], {}, 5))
    return [
        choose.choice((None, [], [key(choose) for _ in range(choose.randrange(20))]))
        for _ in range(choose.randrange(4))
    ]


def medium(choose: Choose) -> object:
    known = ("GPU", "CPU", "cpu", "cpu:0", "DISK", "disk:1:2", "STORAGE", "CPU_PINNED", "FS", "OBJ")
    odd = ("TAPE", "", ":", "GPU ", "di\u017fk", "EXTERNAL", b"GPU", 5)
    return choose.choice(odd) if choose.random() < 0.1 else choose.choice((None, *known))


def ignored(choose: Choose) -> object:
    deep: object = None
    for _ in range(choose.choice((1, 15, 16, 17, 40))):
        deep = [deep]
    return choose.choice((None, 5, "x", [[1], [2]], {"a": [1]}, deep))


def metadata(choose: Choose) -> object:
    return choose.choice(
        (None, {}, {"cache_salt": "s"}, {"cache_salt": None}, {"cache_salt": ""}, {"x": 1}, 5)
    )


def segments(choose: Choose) -> object:
    one = {"type": "mm_key", "hash": "ab", "start_offset": 3}
    rows: tuple[object, ...] = (
        None,
        [],
        [None],
        [[]],
        [[], []],
        [[], None],
        [[one], []],
        [[one]],
        [[{}]],
        {},
        5,
    )
    return choose.choice(rows)


def infos(choose: Choose) -> object:
    one = {"mm_objects": [{"mm_hash": 7, "offsets": [[0, 2]]}]}
    return choose.choice((None, [], [None, None], [one, None], [one], [{}], 5))


FIELDS: Mapping[str, Callable[[Choose], object]] = {
    "block_hashes": hashes,
    "parent_block_hash": lambda choose: None if choose.random() < 0.4 else hash_(choose),
    "token_ids": tokens,
    "block_size": lambda choose: choose.choice(
        (16, 0, None, BLOCK_SIZE_MAX, BLOCK_SIZE_MAX + 1, number(choose))
    ),
    "lora_id": lambda choose: choose.choice((None, None, 3, -1, "x", number(choose))),
    "medium": medium,
    "lora_name": text,
    "extra_keys": extra_keys,
    "group_idx": lambda choose: choose.choice(
        (None, 0, 1, GROUP_NUMBER_MAX, GROUP_NUMBER_MAX + 1, number(choose))
    ),
    "kv_cache_spec_kind": lambda choose: (
        choose.choice(("mamba", "sliding_window", "sliding_window_mla", "chunked_local_attention"))
        if choose.random() < 0.5
        else text(choose)
    ),
    "kv_cache_spec_sliding_window": lambda choose: choose.choice(
        (None, 0, 1, 2, 128, 2**31 - 1, 2**31, True, 128.0, "128", number(choose), ignored(choose))
    ),
    "origin": lambda choose: choose.choice((None, "NEW", "REUSED", "reused", "\u017f", 5)),
    "locality": lambda choose: choose.choice((None, "LOCAL", "REMOTE", "remote", "\u017f", 5)),
    "ownership": lambda choose: "kvcr" if choose.random() < 0.3 else ignored(choose),
    "reason": ignored,
    "component_types": ignored,
    "remaining_copy_counts": lambda choose: choose.choice((None, [], [0, 1], [0], [None], "x", 5)),
    "session_id": ignored,
    "lookahead_token_ids": lambda choose: choose.choice((None, [], [[5]], [None], "x", 5)),
    "cache_salt": text,
    "metadata": metadata,
    "mm_keys": segments,
    "block_mm_infos": infos,
}
USUAL: Mapping[str, object] = {"block_hashes": [1, 2], "token_ids": list(range(8)), "block_size": 4}


def event(choose: Choose, decoder: BatchDecoder, *, as_map: bool) -> object:
    events = decoder.forms.maps if as_map else decoder.forms.arrays
    tag = choose.choice(sorted(events))
    names = list(events[tag].__struct_encode_fields__)
    odd = {name for name in names if choose.random() < 0.3}
    values = {name: FIELDS[name](choose) if name in odd else USUAL.get(name) for name in names}
    if not as_map:
        left = choose.choice((len(names), len(names), choose.randrange(len(names) + 1)))
        return [tag, *list(values.values())[:left], *([5] if choose.random() < 0.02 else [])]
    fields = [("type", tag), *((name, values[name]) for name in names if choose.random() < 0.8)]
    if choose.random() < 0.1:
        choose.shuffle(fields)
    if choose.random() < 0.02:
        fields.append(choose.choice((("other", 5), ("block_hashes", [1]))))
    return dict(fields)


def batch(choose: Choose, decoder: BatchDecoder) -> object:
    has_both = bool(decoder.forms.maps and decoder.forms.arrays)
    as_map = choose.random() < 0.5 if has_both else bool(decoder.forms.maps)
    if has_both and choose.random() < 0.05:
        mixed = [event(choose, decoder, as_map=way) for way in (True, False)]
        return [1.5, mixed]
    events = [event(choose, decoder, as_map=as_map) for _ in range(choose.choice((0, 1, 1, 2, 3)))]
    time = choose.choice(
        (
            1.5,
            7,
            1.7e9,
            2**64 - 1,
            -5,
            *((float("nan"), "1", None) if choose.random() < 0.1 else ()),
        )
    )
    rank = choose.choice((0, None, *((3, 0.0, False, "0") if choose.random() < 0.1 else ())))
    if choose.random() < 0.2:
        return {"ts": time, "events": events, "data_parallel_rank": rank, "later": ignored(choose)}
    return [time, events, rank, ignored(choose)][: choose.choice((1, 2, 3, 3, 3, 4))]


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("lora_name", ["", "registered"])
def test_batches_by_grammar_mean_the_same(kind: PublisherKind, lora_name: str, seed: int) -> None:
    mode: ReportMode = random.Random(seed).choice(("", "", "full", "incremental"))
    one = registration(kind=kind, lora_name=lora_name)
    pair = decoders(msgspec.structs.replace(one, kv_cache_report_mode=mode))
    packed = 0
    for place in range(BATCHES):
        choose = random.Random(f"{seed}-{place}")
        payload = msgspec.msgpack.encode(batch(choose, pair[0]))
        packed += check(pair, payload, f"seed {seed}, batch {place}")
    assert packed > BATCHES / 5, "most are as engines send them"


# Forms that no encoder of Python's writes


@pytest.mark.parametrize(
    "body",
    [
        b"\x93\xca\x3f\x80\x00\x00\x90\x00",  # a float of 32 bits
        b"\x93\xcf" + bytes(8) + b"\x90\xcf" + bytes(8),  # needlessly wide numbers
        b"\xdd\x00\x00\x00\x02\x01\xdc\x00\x00",  # needlessly wide arrays
        b"\x92\x01\x90\x00",  # something behind the batch
        b"\x92\x01\x91\x82\xa4type\xacBlockRemoved\xacblock_hashes\x90",
        b"\x92\x01\x91\x83\xa4type\xacBlockRemoved\xacblock_hashes\x90\xacblock_hashes\x91\x05",
        b"\x92\x01\x91\x83\xa4type\xacBlockRemoved\xa4type\xacBlockRemoved\xacblock_hashes\x90",
        b"\x92\x01\x91\x82\xacblock_hashes\x90\xa4type\xacBlockRemoved",
        b"\x92\x01\x91\x82\xc4\x04type\xacBlockRemoved\xacblock_hashes\x90",
        b"\x92\x01\x91\x93\xacBlockRemoved\x90\xa3\xff\xfe\xfd",  # no UTF-8
        b"\x82\xa2ts\x01\xa6events\x90",
        b"\x83\xa2ts\x01\xa6events\x90\xa2ts\x02",
        b"\x83\xa2ts\x01\xa6events\x90\x05\x02",
    ],
)
def test_unusual_bytes_mean_the_same(body: bytes) -> None:
    for kind in PACKED:
        check(decoders(registration(kind=kind)), body, kind)


# Bounds


def removed(blocks: int) -> list[object]:
    return ["BlockRemoved", list(range(blocks))]


@pytest.mark.parametrize(
    ("events", "packs"),
    [
        ([removed(0)] * BATCH_EVENTS_MAX, True),
        ([removed(0)] * (BATCH_EVENTS_MAX + 1), False),
        ([removed(EVENT_BLOCKS_MAX)], True),
        ([removed(EVENT_BLOCKS_MAX + 1)], False),
        ([["BlockStored", [1], None, [1] * (PACKED_BATCH_BYTES_MAX // 4)]], False),
        ([["BlockRemoved", [1], "TAPE"]] * BATCH_APART_EVENTS_MAX, False),
        ([["BlockRemoved", [1], "TAPE"]] * (BATCH_APART_EVENTS_MAX + 1), False),
        ([removed(BATCH_APART_VALUES_MAX), ["?"]], False),
        ([removed(BATCH_APART_VALUES_MAX - 1_000), ["?"]], False),
    ],
    ids=[
        "events",
        "too many",
        "blocks",
        "too many blocks",
        "large",
        "bad",
        "too many bad",
        "bad among too many values",
        "bad among many values",
    ],
)
def test_what_is_beyond_a_bound_is_refused_as_before(events: list[object], packs: bool) -> None:
    payload = msgspec.msgpack.encode([1.5, events, 0])
    assert check(decoders(registration()), payload, "bounds") is packs


@pytest.mark.parametrize("bad", [["?"], ["BlockRemoved", [1], "TAPE"]])
def test_a_bad_event_among_many_values_costs_the_batch(bad: list[object]) -> None:
    """Beside 400,000 blocks with extra keys it stopped all queries for 0.28 s."""
    values = BATCH_APART_VALUES_MAX
    for decoder in decoders(registration()):
        few = decoder.decode(frames_of([1.5, [["BlockRemoved", [300] * (values - 20)], bad]]))
        assert (few.event_count > 0, len(few.dropped)) == (True, 1)
        many = decoder.decode(frames_of([1.5, [["BlockRemoved", [300] * values], bad]]))
        (error,) = many.dropped
        assert error.reason == DropReason.UNDECODABLE
        assert f"more than {values} values" in str(error)
        assert decoder.decode(frames_of([1.5, [["BlockRemoved", [300] * values]]])).dropped == []


def test_names_are_bounded_over_all_batches_of_a_publisher() -> None:
    def stored(name: str) -> list[object]:
        return ["BlockStored", [1], None, [1], 1, None, None, name]

    pair = decoders(registration(kind=VLLM))
    half = LORA_NAMES_MAX // 2
    for first in (0, half, half):
        events = [stored(str(first + place)) for place in range(half)]
        assert check(pair, msgspec.msgpack.encode([1.5, events, 0]), f"names from {first}")
    one_more = msgspec.msgpack.encode([1.5, [stored("0"), stored("one more")], 0])
    assert not check(pair, one_more, "one more name")
    batch_ = pair[0].decode(frames_of([1.5, [stored("another")]]))
    assert [error.reason for error in batch_.dropped] == [DropReason.TOO_MANY_LORA_NAMES]


def test_a_large_batch_that_is_bad_is_not_tried_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each form that is tried holds the interpreter's lock, for a tenth of a second."""
    packing, _ = decoders(registration())
    tried: list[int] = []
    read = BatchDecoder._read_typed

    def counted(self: BatchDecoder, payload: bytes) -> Any:
        tried.append(len(payload))
        return read(self, payload)

    monkeypatch.setattr(BatchDecoder, "_read_typed", counted)
    good = [removed(1000)] * (BULK_BYTES // 2000)
    small, large = (frames_of([1.5, [*good[:length], ["?"]]]) for length in (1, len(good)))
    assert len(large[-1]) > BULK_BYTES
    for frames, events in ((small, 1), (large, len(good))):
        decoded = packing.decode(frames)
        assert decoded.event_count == events
        assert [error.reason for error in decoded.dropped] == [DropReason.UNKNOWN_EVENT]
    assert tried == [len(small[-1])]
