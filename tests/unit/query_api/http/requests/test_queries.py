"""The checks of queries: every reason and text, and the order in which they are found."""

import struct

import pytest

from query_api.http.errors import ErrorEnvelope, RequestError, describe
from query_api.http.requests.queries import (
    Query,
    read_hash_query,
    read_octets_query,
    read_query,
)
from query_api.http.wire import Wire, encode
from schemas.limits import NAME_BYTES_MAX
from tests.fakes import pack_hashes, pack_tokens
from tests.unit.query_api.http.requests.wires import in_turn

BOTH = pytest.mark.parametrize("wire", list(Wire))
PLAIN: dict[str, object] = {"model": "m", "block_size": 4, "token_ids": [1, 2]}


def refusal(document: object, wire: Wire = Wire.JSON) -> ErrorEnvelope:
    return raw_refusal(document if isinstance(document, bytes) else encode(document, wire), wire)


def raw_refusal(body: bytes, wire: Wire) -> ErrorEnvelope:
    with pytest.raises(RequestError) as caught:
        read_query(body, wire)
    status, envelope = describe(caught.value)
    assert status == 400
    return envelope


@BOTH
def test_a_full_query_is_read(wire: Wire) -> None:
    document = {
        **PLAIN,
        "tenant_id": "t",
        "lora_name": "l",
        "cache_salt": "s",
        "instance_id": "i",
    }
    expected = Query("m", 4, pack_tokens([1, 2]), "t", "l", "s", None, "i")
    assert read_query(encode(document, wire), wire) == expected


@pytest.mark.parametrize(
    ("wire", "field", "value", "error", "reason"),
    in_turn(
        ("model", 1, "model must be a string", "invalid_type"),
        ("model", None, "model must be a string", "invalid_type"),
        ("model", "", "model must not be empty", "invalid_value"),
        ("block_size", 0, "block_size must be a positive integer", "out_of_range"),
        ("block_size", 2**63, "block_size must be a positive integer", "out_of_range"),
        ("block_size", True, "block_size must be an integer", "invalid_type"),
        ("block_size", 4.0, "block_size must be an integer", "invalid_type"),
        ("block_size", "4", "block_size must be an integer", "invalid_type"),
        ("block_size", None, "block_size must be an integer", "invalid_type"),
        ("tenant_id", None, "tenant_id must be a string", "invalid_type"),
        ("lora_name", 5, "lora_name must be a string or null", "invalid_type"),
        ("cache_salt", 5, "cache_salt must be a string or null", "invalid_type"),
        ("instance_id", None, "instance_id must be a string", "invalid_type"),
        ("x", 1, "unsupported request field: x", "unknown_field"),
        ("seq_hashes", [], "unsupported request field: seq_hashes", "unknown_field"),
        (
            "model",
            "é" * (NAME_BYTES_MAX // 2 + 1),
            f"model must be at most {NAME_BYTES_MAX} bytes",
            "out_of_range",
        ),
        (
            "cache_salt",
            "s" * (NAME_BYTES_MAX + 1),
            f"cache_salt must be at most {NAME_BYTES_MAX} bytes",
            "out_of_range",
        ),
    ),
)
def test_a_bad_field_is_named(
    wire: Wire, field: str, value: object, error: str, reason: str
) -> None:
    assert refusal({**PLAIN, field: value}, wire) == ErrorEnvelope(error, reason, field)


@pytest.mark.parametrize(("wire", "name"), in_turn(("model",), ("block_size",), ("token_ids",)))
def test_a_missing_field_is_named(wire: Wire, name: str) -> None:
    document = {key: value for key, value in PLAIN.items() if key != name}
    assert refusal(document, wire) == ErrorEnvelope(f"{name} is required", "missing", name)


@BOTH
def test_missing_fields_are_found_last_and_in_conductors_order(wire: Wire) -> None:
    assert refusal({}, wire).field == "model"
    assert refusal({"model": "m"}, wire).field == "block_size"
    assert refusal({"block_size": 0}, wire).reason == "out_of_range"
    assert refusal({"x": 1}, wire).reason == "unknown_field"


@BOTH
def test_the_first_bad_field_of_the_body_is_found(wire: Wire) -> None:
    assert refusal({"x": 1, "model": 1}, wire).field == "x"
    assert refusal({"model": 1, "x": 1}, wire).field == "model"
    assert refusal({"token_ids": [2**32], "model": 1}, wire).field == "token_ids"


@BOTH
@pytest.mark.parametrize(
    ("tokens", "index", "reason"),
    [
        ([1, 2**32], 1, "out_of_range"),
        ([1, 2, 2**64 - 1], 2, "out_of_range"),
        ([1, -1, 2**40], 2, "out_of_range"),
        ([-1, -(2**31) - 1], 1, "out_of_range"),
        ([-(2**63)], 0, "out_of_range"),
        ([1, True], 1, "invalid_type"),
        ([1.0], 0, "invalid_type"),
        ([-1, 2, None, 2**32], 2, "invalid_type"),
        ([1, "2"], 1, "invalid_type"),
        ([1, [2]], 1, "invalid_type"),
        ([2**32, "2"], 0, "out_of_range"),
    ],
)
def test_a_bad_token_is_named_with_its_index(
    wire: Wire, tokens: list[object], index: int, reason: str
) -> None:
    kind = "a JSON integer" if wire is Wire.JSON else "an integer"
    error = {
        "out_of_range": "token_ids element is outside the int32 range",
        "invalid_type": f"token_ids element must be {kind}",
    }[reason]
    expected = ErrorEnvelope(error, reason, "token_ids", index)
    assert refusal({**PLAIN, "token_ids": tokens}, wire) == expected


@pytest.mark.parametrize("value", [None, 5, "", dict.fromkeys("abcdefghijklmno", 1)])
def test_tokens_must_be_an_array(value: object) -> None:
    document = {**PLAIN, "token_ids": value}
    expected = ErrorEnvelope("token_ids must be an array", "not_array", "token_ids")
    assert refusal(document, Wire.JSON) == expected
    error = "token_ids must be a bin or an array"
    expected = ErrorEnvelope(error, "invalid_type", "token_ids")
    assert refusal(document, Wire.MSGPACK) == expected


def test_a_number_beyond_64_bits_is_out_of_range() -> None:
    body = b'{"model":"m","block_size":4,"token_ids":[1,%s]}'
    assert raw_refusal(body % (b"9" * 30), Wire.JSON).reason == "out_of_range"
    assert raw_refusal(body % (b"9" * 30), Wire.JSON).index == 1
    body = b'{"block_size":%s}' % (b"9" * 30)
    assert raw_refusal(body, Wire.JSON).reason == "out_of_range"


def test_a_bin_of_tokens_is_checked() -> None:
    envelope = refusal({**PLAIN, "token_ids": b"12345"}, Wire.MSGPACK)
    error = "token_ids bin size must be a multiple of 4"
    assert envelope == ErrorEnvelope(error, "invalid_value", "token_ids")


INT32S = [0, 1, -1, -2, 2**31 - 1, -(2**31)]


@BOTH
def test_a_token_is_its_32_bits(wire: Wire) -> None:
    packed = struct.pack("<6i", *INT32S)
    unsigned = [token % 2**32 for token in INT32S]
    forms: list[object] = [INT32S, unsigned, *([packed] if wire is Wire.MSGPACK else [])]
    for token_ids in forms:
        assert read_query(encode({**PLAIN, "token_ids": token_ids}, wire), wire).content == packed


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"1",
        b'{"model":"m",}',
        b'{"model":"m"} x',
        b"{// comment\n}",
        b'{"model":"\xff"}',
        b'{"model":"\\ud800"}',
        b'{"model":NaN}',
        b"\xef\xbb\xbf{}",
        b'{"a":' + b"[" * 100_000,
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    assert raw_refusal(body, Wire.JSON) == ErrorEnvelope("Invalid JSON object", "invalid_json")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x81",
        b"\x81\xa5mod",
        b"\x82\xa5model\xa1m",
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\x81\xa5model\xdd\x01\xff\xff\xff",
        b"\x81\xa1\xff\x01",
        b"\x81\xa5model\xa1\xff",
        b"\x81\xa1a" + b"\x91" * 100_000 + b"\x01",
    ],
)
def test_what_is_no_msgpack_is_refused(body: bytes) -> None:
    expected = ErrorEnvelope("Invalid msgpack object", "invalid_msgpack")
    assert raw_refusal(body, Wire.MSGPACK) == expected


@pytest.mark.parametrize("value", [127, [], -32, "text"])
def test_a_msgpack_value_that_is_no_map_is_refused(value: object) -> None:
    expected = ErrorEnvelope("request body must be a msgpack map", "invalid_msgpack")
    assert refusal(value, Wire.MSGPACK) == expected


@pytest.mark.parametrize("key", [1, None, b"model"])
def test_msgpack_keys_must_be_strings(key: object) -> None:
    expected = ErrorEnvelope("map keys must be strings", "invalid_msgpack")
    assert refusal({"model": "m", key: 1}, Wire.MSGPACK) == expected


def test_bytes_after_the_first_msgpack_value_are_ignored() -> None:
    body = encode(PLAIN, Wire.MSGPACK)
    assert read_query(body + b"\xc1 rubbish", Wire.MSGPACK) == read_query(body, Wire.MSGPACK)


def test_of_a_repeated_field_the_last_counts_and_each_is_checked() -> None:
    twice = b"\x84" + encode(PLAIN, Wire.MSGPACK)[1:] + encode({"model": "n"}, Wire.MSGPACK)[1:]
    assert read_query(twice, Wire.MSGPACK).model == "n"
    bad_first = b"\x84" + encode({"model": 1}, Wire.MSGPACK)[1:] + encode(PLAIN, Wire.MSGPACK)[1:]
    assert raw_refusal(bad_first, Wire.MSGPACK).field == "model"
    json = b'{"model":"x","model":"m","block_size":4,"token_ids":[]}'
    assert read_query(json, Wire.JSON).model == "m"


def test_extensions_are_unknown_in_msgpack() -> None:
    for name in ("lora_id", "additional_salt"):
        envelope = refusal({**PLAIN, name: 1}, Wire.MSGPACK)
        error = f"unsupported request field: {name}"
        assert envelope == ErrorEnvelope(error, "unknown_field", name)


def test_lora_name_null_is_the_base_model_in_json_alone() -> None:
    document = {**PLAIN, "lora_name": None}
    assert read_query(encode(document, Wire.JSON), Wire.JSON).lora_name == ""
    error = "lora_name must be a string"
    expected = ErrorEnvelope(error, "invalid_type", "lora_name")
    assert refusal(document, Wire.MSGPACK) == expected


def test_a_lora_number_excludes_a_name() -> None:
    envelope = refusal({**PLAIN, "lora_id": 3, "lora_name": "l"})
    assert (envelope.reason, envelope.field) == ("invalid_value", "lora_id")
    assert refusal({**PLAIN, "lora_id": -1}).reason == "out_of_range"
    assert refusal({**PLAIN, "lora_id": "3"}).reason == "invalid_type"
    document = {**PLAIN, "lora_id": 3}
    assert read_query(encode(document, Wire.JSON), Wire.JSON).lora_name == "lora_id:3"


def test_a_long_unknown_name_is_cut() -> None:
    envelope = refusal({"y" * 5000: 1})
    assert envelope.field == "y" * NAME_BYTES_MAX


@BOTH
def test_hashes_keep_all_64_bits(wire: Wire) -> None:
    hashes = [0, 2**53 + 1, 2**64 - 1, -1, -(2**63)]
    document = {"model": "m", "block_size": 4, "seq_hashes": hashes}
    expected = pack_hashes([0, 2**53 + 1, 2**64 - 1, 2**64 - 1, 2**63])
    assert read_hash_query(encode(document, wire), wire).content == expected


@BOTH
@pytest.mark.parametrize(
    ("hashes", "index", "reason"),
    [([1, 1.5], 1, "invalid_type"), ([True], 0, "invalid_type"), (["1"], 0, "invalid_type")],
)
def test_a_bad_hash_is_named_with_its_index(
    wire: Wire, hashes: list[object], index: int, reason: str
) -> None:
    document = {"model": "m", "block_size": 4, "seq_hashes": hashes}
    with pytest.raises(RequestError) as caught:
        read_hash_query(encode(document, wire), wire)
    error = caught.value
    assert (error.reason, error.field, error.index) == (reason, "seq_hashes", index)


@pytest.mark.parametrize("number", [b"18446744073709551616", b"-9223372036854775809", b"9" * 40])
def test_a_hash_beyond_64_bits_is_out_of_range(number: bytes) -> None:
    body = b'{"model":"m","block_size":4,"seq_hashes":[1,%s]}' % number
    with pytest.raises(RequestError, match="outside the 64-bit range") as caught:
        read_hash_query(body, Wire.JSON)
    assert (caught.value.reason, caught.value.index) == ("out_of_range", 1)


def test_a_hash_query_says_what_it_misses() -> None:
    with pytest.raises(RequestError, match="seq_hashes is required"):
        read_hash_query(b'{"model":"m","block_size":4}', Wire.JSON)
    with pytest.raises(RequestError, match="unsupported request field: token_ids"):
        read_hash_query(encode(PLAIN, Wire.JSON), Wire.JSON)
    document = {"model": "m", "block_size": 4, "seq_hashes": b"123"}
    with pytest.raises(RequestError, match="seq_hashes bin size must be a multiple of 8"):
        read_hash_query(encode(document, Wire.MSGPACK), Wire.MSGPACK)


# Octets


def octets_refusal(url_query: bytes, body: bytes = b"", *, by_hash: bool = False) -> ErrorEnvelope:
    with pytest.raises(RequestError) as caught:
        read_octets_query(body, url_query, by_hash=by_hash)
    return describe(caught.value)[1]


def test_octets_have_their_fields_in_the_url() -> None:
    url = b"model=m+%C3%A9&block_size=4&tenant_id=t&lora_name=l&cache_salt=%26&instance_id=i"
    read = read_octets_query(pack_tokens([1, 2]), url + b"&detail=1", by_hash=False)
    assert read == Query("m \u00e9", 4, pack_tokens([1, 2]), "t", "l", "&", None, "i")
    assert octets_refusal(url + b"&x=").error == "unsupported request field: x"
    hashes = pack_hashes([1, 2**64 - 1])
    read = read_octets_query(hashes, b"model=m&block_size=1&lora_id=7", by_hash=True)
    assert read == Query("m", 1, hashes, lora_name="lora_id:7")


_POSITIVE = "block_size must be a positive integer"
_INTEGER = "block_size must be an integer"


@pytest.mark.parametrize(
    ("url_query", "error", "reason", "field"),
    [
        (b"", "model is required", "missing", "model"),
        (b"model=m", "block_size is required", "missing", "block_size"),
        (b"model=&block_size=1", "model must not be empty", "invalid_value", "model"),
        (b"model=m&block_size=0", _POSITIVE, "out_of_range", "block_size"),
        (b"model=m&block_size=-1", _POSITIVE, "out_of_range", "block_size"),
        (b"model=m&block_size=" + b"9" * 20, _POSITIVE, "out_of_range", "block_size"),
        (b"model=m&block_size=", _INTEGER, "invalid_type", "block_size"),
        (b"model=m&block_size=1.0", _INTEGER, "invalid_type", "block_size"),
        (b"model=m&block_size=" + b"9" * 5000, None, "out_of_range", "block_size"),
        (b"model=m&block_size=1&lora_id=-1", None, "out_of_range", "lora_id"),
        (
            b"model=m&block_size=1&lora_name=" + b"l" * (NAME_BYTES_MAX + 1),
            f"lora_name must be at most {NAME_BYTES_MAX} bytes",
            "out_of_range",
            "lora_name",
        ),
    ],
)
def test_what_is_wrong_in_the_url_is_named(
    url_query: bytes, error: str | None, reason: str, field: str
) -> None:
    refused = octets_refusal(url_query)
    assert (refused.reason, refused.field) == (reason, field)
    assert error in (None, refused.error)


@pytest.mark.parametrize("url_query", [b"model=%ff&block_size=1", b"model=\xff&block_size=1"])
def test_names_in_the_url_are_utf_8(url_query: bytes) -> None:
    expected = "expected URL parameters in UTF-8, percent-encoded, got the byte 0xff"
    assert octets_refusal(url_query) == ErrorEnvelope(expected, "invalid_parameter")


@pytest.mark.parametrize(("by_hash", "width"), [(False, 4), (True, 8)])
def test_octets_end_with_a_whole_number(by_hash: bool, width: int) -> None:
    name = "seq_hashes" if by_hash else "token_ids"
    refused = octets_refusal(b"model=m&block_size=1", bytes(2 * width - 1), by_hash=by_hash)
    text = f"{name} bin size must be a multiple of {width}"
    assert refused == ErrorEnvelope(text, "invalid_value", name)
