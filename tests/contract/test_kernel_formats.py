"""What a kernel reads: XXH3-64, canonical events, the JSON of a query, the engines' arrays."""

import json
from typing import Any

import msgspec
import pytest
import xxhash

from schemas.arrays import ArrayPacker, PythonArrayPacker
from schemas.errors import EventsFormatError
from schemas.events import StoredBlocks, encode_events
from schemas.identities import StreamKey
from schemas.limits import BLOCK_SIZE_MAX, NAME_BYTES_MAX, QUERY_TOKENS_MAX
from streams.kernel import Kernel, array_packer, native_available, open_kernel
from streams.kernel.changes import decode_changes
from streams.kernel.interface import ScannedQuery

native = pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")
KERNELS = ("reference", pytest.param("rust", marks=native))
STREAM = StreamKey("default", "m", 1, "", "a")


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return open_kernel(3, name=request.param)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_hashes_of_all_lengths_are_those_of_xxhash(name: str, seed: int) -> None:
    kernel = open_kernel(seed, name=name)
    extras = [bytes(j * 7 % 251 for j in range(length)) for length in range(3000)]
    events = [
        StoredBlocks(
            sequence=0,
            hashes=i.to_bytes(8, "little"),
            tokens=b"abcd",
            block_size=1,
            extra_keys=(extra,),
        )
        for i, extra in enumerate(extras)
    ]
    kernel.apply(kernel.open_publisher(STREAM, 0), encode_events(list(events)), -1)
    [(_, changes)] = kernel.take_changes()
    prefixes = [change.prefix for change in decode_changes(changes)]
    assert prefixes == [xxhash.xxh3_64_intdigest(b"abcd" + extra, seed) for extra in extras]


encode = msgspec.msgpack.encode

# Events

REMOVED: dict[str, Any] = {"type": "removed", "sequence": 1, "hashes": b""}
STORED: dict[str, Any] = {"type": "stored", "sequence": 1, "hashes": b""}
ACCEPTED = {
    "no events": [],
    "an unknown field": [REMOVED | {"later": [{"a": msgspec.msgpack.Ext(5, b"xyz")}, 1.5, None]}],
    "fields of another type of event": [REMOVED | {"tokens": 4, "parent": "x"}],
    "a cleared event with hashes": [{"type": "cleared", "sequence": 1, "hashes": 3}],
    "the type last": [{"sequence": 1, "hashes": b"", "type": "removed"}],
    "a nil parent": [STORED | {"parent": None}],
    "the largest numbers": [STORED | {"parent": 2**64 - 1, "group": 2**32 - 1, "sequence": 2**63}],
    "a negative sequence": [REMOVED | {"sequence": -(2**63)}],
}
REFUSED: dict[str, Any] = {
    "nil": None,
    "a map": {},
    "an event as array": [["removed", 1, b""]],
    "no type": [{"sequence": 1, "hashes": b""}],
    "another type": [REMOVED | {"type": "moved"}],
    "a type as bytes": [REMOVED | {"type": b"removed"}],
    "no sequence": [{"type": "cleared"}],
    "no hashes": [{"type": "removed", "sequence": 1}],
    "a sequence as float": [REMOVED | {"sequence": 1.0}],
    "a sequence as bool": [REMOVED | {"sequence": True}],
    "a sequence as string": [REMOVED | {"sequence": "1"}],
    "hashes as string": [REMOVED | {"hashes": "12345678"}],
    "7 bytes of hashes": [REMOVED | {"hashes": b"1234567"}],
    "another medium": [REMOVED | {"medium": "TAPE"}],
    "a medium as bytes": [REMOVED | {"medium": b"GPU"}],
    "shared as number": [REMOVED | {"shared": 1}],
    "a negative group": [REMOVED | {"group": -1}],
    "fewer copies than none": [REMOVED | {"left": -1}],
    "more copies than are counted": [REMOVED | {"left": 2**16}],
    "a group above 32 bits": [STORED | {"group": 2**32}],
    "nil tokens": [STORED | {"tokens": None}],
    "3 bytes of tokens": [STORED | {"tokens": b"123"}],
    "a negative parent": [STORED | {"parent": -1}],
    "a negative block_size": [STORED | {"block_size": -1}],
    "a block_size above 32 bits": [STORED | {"block_size": 2**32}],
    "an extra key as string": [STORED | {"extra_keys": ["a"]}],
    "a number as field name": [REMOVED | {5: 1}],
    "bytes as field name": [REMOVED | {b"x": 1}],
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_events_of_any_shape_that_the_schema_allows_are_read(kernel: Kernel, case: str) -> None:
    kernel.check_events(encode(ACCEPTED[case]))
    kernel.apply(kernel.open_publisher(STREAM, 0), encode(ACCEPTED[case]), -1)


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_event_is_refused(kernel: Kernel, case: str) -> None:
    publisher = kernel.open_publisher(STREAM, 0)
    with pytest.raises(EventsFormatError, match=r"^Expected") as applied:
        kernel.apply(publisher, encode(REFUSED[case]), -1)
    with pytest.raises(EventsFormatError, match=r"^Expected") as checked:
        kernel.check_events(encode(REFUSED[case]))
    assert str(checked.value) == str(applied.value)


def test_a_repeated_field_counts_once_and_the_last_time(kernel: Kernel) -> None:
    head = b"\x84\xa4type\xa7cleared"
    first, last = b"\xa8sequence\x01", b"\xa8sequence\x07"
    publisher = kernel.open_publisher(STREAM, 0)
    kernel.apply(publisher, b"\x91" + head + first + last + b"\xa4type\xa7cleared", -1)
    with pytest.raises(EventsFormatError):
        kernel.apply(publisher, b"\x91" + head + first + last + b"\xa4type\xa6stored", -1)


def test_lengths_beyond_the_bytes_are_refused_before_anything_is_made(kernel: Kernel) -> None:
    publisher = kernel.open_publisher(STREAM, 0)
    for header in (b"\xdd", b"\x91\xdf", b"\x91\x81\xdb", b"\x91\x81\xa6hashes\xc6"):
        with pytest.raises(EventsFormatError):
            kernel.apply(publisher, header + b"\xff\xff\xff\xff", -1)


@native
def test_nesting_costs_the_rust_kernel_no_stack() -> None:
    kernel = open_kernel(3, name="rust")
    event = encode([REMOVED | {"deep": "q"}])
    deep = event.replace(b"\xa1q", b"\x91" * 1_000_000 + b"\xc0")
    kernel.apply(kernel.open_publisher(STREAM, 0), deep, -1)


@native
def test_text_that_is_not_utf8_is_refused() -> None:
    kernel = open_kernel(3, name="rust")
    for field in ("lora_name", "spec_kind"):
        event = encode([STORED | {field: "abc"}]).replace(b"abc", b"\xff\xfe\xff")
        with pytest.raises(EventsFormatError):
            kernel.apply(kernel.open_publisher(STREAM, 0), event, -1)


# The JSON of a query

PLAIN: dict[str, Any] = {"model": "m", "block_size": 16, "token_ids": [1, 20, 300, 4000]}


def body_of(**fields: Any) -> bytes:
    return json.dumps(PLAIN | fields, ensure_ascii=False).encode()


def test_a_plain_query_is_scanned(kernel: Kernel) -> None:
    tokens = b"".join(token.to_bytes(4, "little") for token in (1, 20, 300, 4000))
    bare = ScannedQuery("m", "", "default", None, 16, "", tokens)
    assert kernel.scan_query(body_of()) == bare
    assert isinstance(kernel.scan_query(body_of()), ScannedQuery)
    assert kernel.scan_query(body_of(tenant_id="", lora_name="", cache_salt="")) == bare
    named = body_of(tenant_id="t", lora_name="l", cache_salt="\u00e9", instance_id="i")
    assert kernel.scan_query(named) == ScannedQuery("m", "l", "t", "i", 16, "\u00e9", tokens)


def test_any_layout_of_plain_json_is_scanned(kernel: Kernel) -> None:
    plain = kernel.scan_query(body_of())
    assert plain is not None
    values = dict(reversed(PLAIN.items()))
    for indent in (None, 0, 3):
        assert kernel.scan_query(json.dumps(values, indent=indent).encode()) == plain
    assert kernel.scan_query(json.dumps(values, separators=(",", ":")).encode()) == plain
    assert (
        kernel.scan_query(b"\r\n\t " + body_of().replace(b",", b"\t\n\r ,\t\n\r ") + b" ") == plain
    )


@pytest.mark.parametrize("digits", range(1, 11))
def test_tokens_of_all_lengths_are_scanned(kernel: Kernel, digits: int) -> None:
    low = 10 ** (digits - 1) if digits > 1 else 0
    high = min(10**digits - 1, 2**32 - 1)
    for tokens in ([low, high], [high] * 9, [low], [high, 0, low, 0, high]):
        for body in (body_of(token_ids=tokens), body_of(token_ids=tokens).replace(b" ", b"")):
            scanned = kernel.scan_query(body)
            assert scanned is not None
            assert memoryview(scanned.tokens).cast("I").tolist() == tokens


@pytest.mark.parametrize("digits", range(1, 11))
def test_negative_tokens_of_all_lengths_are_scanned_as_their_32_bits(
    kernel: Kernel, digits: int
) -> None:
    low, high = -(10 ** (digits - 1)), -min(10**digits - 1, 2**31)
    for tokens in ([low, high], [high] * 9, [low], [high, 7, low, 0, high], [1] * 40 + [low]):
        for body in (body_of(token_ids=tokens), body_of(token_ids=tokens).replace(b" ", b"")):
            scanned = kernel.scan_query(body)
            assert scanned is not None
            assert memoryview(scanned.tokens).cast("i").tolist() == tokens


def test_minus_zero_is_a_token(kernel: Kernel) -> None:
    assert kernel.scan_query(body_of(token_ids=[1, 20, 300]).replace(b"300", b"-0")) == (
        kernel.scan_query(body_of(token_ids=[1, 20, 0]))
    )


UNUSUAL = {
    "nothing": b"",
    "not an object": b"[]",
    "an empty object": b"{}",
    "no model": b'{"block_size": 16, "token_ids": [1]}',
    "no block_size": b'{"model": "m", "token_ids": [1]}',
    "no tokens": b'{"model": "m", "block_size": 16}',
    "an empty model": body_of(model=""),
    "an empty instance": body_of(instance_id=""),
    "null": body_of(lora_name=None),
    "null tokens": body_of(token_ids=None),
    "a number for a name": body_of(model=5),
    "a block_size of 0": body_of(block_size=0),
    "a block_size above the bound": body_of(block_size=BLOCK_SIZE_MAX + 1),
    "a block_size as string": body_of(block_size="16"),
    "a huge block_size": body_of(block_size=2**64 + 16),
    "a long name": body_of(model="m" * (NAME_BYTES_MAX + 1)),
    "a long name of few characters": body_of(model="\u00e9" * (NAME_BYTES_MAX // 2 + 1)),
    "lora_id": body_of(lora_id=1),
    "an unknown key": body_of(other=1),
    "a repeated key": b'{"model": "m", ' + body_of()[1:],
    "an escaped name": body_of(model='"'),
    "an escaped key": body_of().replace(b"model", b"m\\u006fdel"),
    "a control character": body_of().replace(b'"m"', b'"m\n"'),
    "bytes that are not UTF-8": body_of().replace(b'"m"', b'"\xff"'),
    "a surrogate": body_of().replace(b'"m"', b'"\xed\xa0\x80"'),
    "a byte order mark": b"\xef\xbb\xbf" + body_of(),
    "a leading zero": body_of().replace(b"300", b"0300"),
    "two zeros": body_of().replace(b"300", b"00"),
    "a leading zero in the block_size": body_of().replace(b"16", b"016"),
    "a minus alone": body_of().replace(b"300", b"-"),
    "two minuses": body_of().replace(b"300", b"--1"),
    "a minus behind": body_of().replace(b"300", b"1-"),
    "a minus before a blank": body_of().replace(b"300", b"- 1"),
    "a minus before a leading zero": body_of().replace(b"300", b"-01"),
    "a negative block_size": body_of(block_size=-16),
    "a plus": body_of().replace(b"300", b"+300"),
    "a fraction": body_of(token_ids=[1.0]),
    "an exponent": body_of().replace(b"300", b"3e2"),
    "a token above 32 bits": body_of(token_ids=[2**32]),
    "a token below 32 bits": body_of(token_ids=[-(2**31) - 1]),
    "a negative token of 16 digits": body_of(token_ids=[-(10**15)]),
    "a token of 16 digits": body_of(token_ids=[10**15]),
    "a token of 40 digits": body_of(token_ids=[10**39]),
    "a string among tokens": body_of(token_ids=["1"]),
    "a bool among tokens": body_of(token_ids=[True]),
    "nested tokens": body_of(token_ids=[[1]]),
    "a comma at the end of tokens": body_of().replace(b"4000", b"4000,"),
    "a comma and a blank at the end of tokens": body_of().replace(b"4000", b"4000, "),
    "a comma at the start of tokens": body_of().replace(b"[1", b"[,1"),
    "two commas": body_of().replace(b"300,", b"300,,"),
    "no comma": body_of().replace(b"300,", b"300 "),
    "a comma at the end": body_of()[:-1] + b",}",
    "trailing data": body_of() + b"x",
    "a second object": body_of() + b"{}",
    "another blank": body_of().replace(b" ", b"\x0b"),
    "a comment": body_of() + b"//",
    "nothing after the tokens": body_of()[:-1],
    "no bracket after the tokens": body_of()[:-2] + b"}",
    "no colon": body_of().replace(b'"model":', b'"model"'),
    "a key that is no string": b"{model: 1}",
    "two blocks of tokens": body_of().replace(b"]", b"] [1]"),
    "a block_size of two numbers": body_of().replace(b"16", b"1 6"),
    "a token of two numbers": body_of().replace(b"4000", b"40 00"),
    "a NUL behind the body": body_of() + b"\x00",
    "a form feed among tokens": body_of().replace(b"300", b"\x0c300"),
    "digits of another script": body_of().replace(b"300", "\u0663".encode()),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_an_unusual_body_is_left_to_the_parser(kernel: Kernel, case: str) -> None:
    assert kernel.scan_query(UNUSUAL[case]) is None


def test_a_truncated_body_is_left_to_the_parser(kernel: Kernel) -> None:
    body = body_of(token_ids=list(range(0, 3000, 97)))
    assert all(kernel.scan_query(body[:cut]) is None for cut in range(len(body)))


def test_the_bounds_themselves_are_scanned(kernel: Kernel) -> None:
    scanned = kernel.scan_query(body_of(model="m" * NAME_BYTES_MAX, block_size=BLOCK_SIZE_MAX))
    assert scanned is not None
    head, tail = b'{"model":"m","block_size":1,"token_ids":[', b"0]}"
    most = kernel.scan_query(head + b"7," * (QUERY_TOKENS_MAX - 1) + tail)
    assert most is not None
    assert len(most.tokens) == 4 * QUERY_TOKENS_MAX
    assert kernel.scan_query(head + b"7," * QUERY_TOKENS_MAX + tail) is None


# Arrays

PACKERS = ("python", pytest.param("rust", marks=native))


@pytest.fixture(params=PACKERS)
def packer(request: pytest.FixtureRequest) -> ArrayPacker:
    return PythonArrayPacker() if request.param == "python" else array_packer()


TOKENS: dict[str, Any] = {
    "nil": (None, []),
    "none": ([], []),
    "all widths": ([0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1] * 3, None),
    "negative ones": (
        [-1, 5, -32, -33, -128, -129, -32_768, -32_769, -(2**31)],
        [2**32 - token for token in (1, 2**32 - 5, 32, 33, 128, 129, 32_768, 32_769, 2**31)],
    ),
    "pairs": ([[5, 1], [2**32 - 1, -(2**63)], [0, 2**64 - 1]], [5, 2**32 - 1, 0]),
    "negative pairs": ([[-1, 1], [-(2**31), -1]], [2**32 - 1, 2**31]),
}


@pytest.mark.parametrize("case", TOKENS)
def test_tokens_are_packed(packer: ArrayPacker, case: str) -> None:
    value, tokens = TOKENS[case]
    packed = packer.pack_tokens(encode(value))
    assert packed == b"".join(
        token.to_bytes(4, "little") for token in (value if tokens is None else tokens)
    )


def test_tokens_in_needlessly_wide_forms_are_packed(packer: ArrayPacker) -> None:
    wide = b"\xdd\0\0\0\x03\xcf\0\0\0\0\0\0\0\x01\xd3\0\0\0\0\0\0\0\x05\xd0\x07"
    assert packer.pack_tokens(wide) == b"\1\0\0\0\5\0\0\0\7\0\0\0"


@pytest.mark.parametrize(
    "value",
    [[-(2**31) - 1], [2**32], [1.0], [True], [None], ["1"], [1, [1, 2]], [[1, 2], 1], [[1, 2, 3]],
     [[1]], [[2**32, 1]], [[-(2**31) - 1, 1]], [[1, 2.0]], {}, "x", b"x", 5,
     [msgspec.msgpack.Ext(1, b"")]],
)  # fmt: skip
def test_what_are_no_tokens_is_refused(packer: ArrayPacker, value: object) -> None:
    with pytest.raises(ValueError, match=r"^Expected"):
        packer.pack_tokens(encode(value))


def test_hashes_are_packed(packer: ArrayPacker) -> None:
    value = [0, 1, -1, 2**64 - 1, -(2**63), 300, b"12345678", b"a longer hash"]
    expected = [0, 1, 2**64 - 1, 2**64 - 1, 2**63, 300]
    expected += [int.from_bytes(digest[-8:], "big") for digest in (b"12345678", b"a longer hash")]
    packed = packer.pack_hashes(encode(value))
    assert packed == b"".join(number.to_bytes(8, "little") for number in expected)


@pytest.mark.parametrize(
    "value", [None, [None], [1.0], [True], ["12345678"], [b"1234567"], [[1]], {}, b"12345678"]
)
def test_what_are_no_hashes_is_refused(packer: ArrayPacker, value: object) -> None:
    with pytest.raises(ValueError, match=r"^Expected"):
        packer.pack_hashes(encode(value))


def test_a_whole_array_is_packed_or_none(packer: ArrayPacker) -> None:
    encoded = encode([1, 300, 70_000, 2**32 - 1])
    for pack in (packer.pack_tokens, packer.pack_hashes):
        assert pack(encoded)
        for wrong in [encoded[:cut] for cut in range(len(encoded))] + [encoded + b"\0"]:
            with pytest.raises(ValueError, match=r"^Expected"):
                pack(wrong)


VALUES: list[tuple[object, int]] = [
    (5, 1),
    ([1, [2, 3], {"a": b"bb"}, "text", 1.5, None], 11),
    ([0] * 1000, 1001),
]


@pytest.mark.parametrize(("value", "count"), VALUES)
def test_values_are_counted_nested_ones_too_and_no_further_than_asked(
    packer: ArrayPacker, value: object, count: int
) -> None:
    encoded = encode(value)
    counted = not isinstance(packer, PythonArrayPacker)
    assert packer.count_values(encoded, 10_000) == (count if counted else 0)
    assert packer.count_values(encoded, 3) == (min(count, 3) if counted else 0)
    assert packer.count_values(encoded[:-1], 10_000) == 0


def test_deep_nesting_is_counted_without_depth(packer: ArrayPacker) -> None:
    deep = b"\x91" * 100_000 + b"\xc0"
    assert packer.count_values(deep, 1_000_000) in (0, 100_001)
