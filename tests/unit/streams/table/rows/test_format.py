import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import RowCorruptError, RowVersionError
from schemas.identities import ModelContext, PublisherKey, StreamKey
from schemas.limits import OFFSET_MAX
from streams.table.rows import format as rows
from streams.table.rows.format import GENERATION_MAX, RowKind, RowPlace

names = st.text(max_size=20)
contexts = st.builds(ModelContext, names, names, names, st.integers(1, 65_536), names, names)
publishers = st.builds(
    PublisherKey,
    st.builds(StreamKey, names, names, st.integers(1, 65_536), names, names),
    st.integers(0, 2**31 - 1),
)


@given(contexts, st.integers(0, GENERATION_MAX), st.integers(0, OFFSET_MAX))
def test_row_keys_round_trip(context: ModelContext, generation: int, n: int) -> None:
    place = RowPlace(context, generation, n)
    assert rows.parse_row_key(rows.row_key(place)) == place


@given(contexts)
def test_mark_keys_round_trip(context: ModelContext) -> None:
    assert rows.parse_mark_key(rows.mark_key(context)) == context


@given(publishers)
def test_publisher_keys_round_trip(publisher: PublisherKey) -> None:
    key = rows.publisher_key(rows.PUBLISHER, publisher)
    assert rows.parse_publisher_key(key) == publisher


@given(publishers)
def test_ledger_keys_round_trip_and_are_facts(publisher: PublisherKey) -> None:
    key = rows.ledger_key(publisher)
    assert (rows.is_ledger_key(key), key[:1]) == (True, rows.FACT)
    assert rows.parse_ledger_key(key) == publisher
    assert not rows.is_ledger_key(rows.publisher_key(rows.PUBLISHER, publisher))
    with pytest.raises(RowCorruptError):
        rows.parse_ledger_key(key[:-1])


@given(contexts, contexts, st.integers(0, 9), st.integers(0, 9))
def test_rows_of_one_context_stand_together_in_order(
    one: ModelContext, other: ModelContext, generation: int, n: int
) -> None:
    prefix = rows.context_prefix(one)
    key = rows.row_key(RowPlace(one, generation, n))
    assert prefix < key < rows.end_of(prefix)
    assert key < rows.row_key(RowPlace(one, generation, n + 1))
    assert key < rows.generation_key(one, generation + 1)
    if one != other:
        assert not prefix <= rows.row_key(RowPlace(other, generation, n)) < rows.end_of(prefix)


@given(st.sampled_from(RowKind), st.integers(-1, OFFSET_MAX), st.binary(max_size=100))
def test_rows_round_trip(kind: RowKind, covers: int, body: bytes) -> None:
    assert rows.decode_row(b"k", rows.encode_row(kind, covers, body)) == (kind, covers, body)


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_flipped_bit_is_noticed_and_the_key_is_named(body: bytes, data: st.DataObject) -> None:
    value = bytearray(rows.encode_row(RowKind.DELTA, 7, body))
    byte = data.draw(st.integers(4, len(value) - 1))
    value[byte] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(RowCorruptError, match="6b6579"):
        rows.decode_row(b"key", bytes(value))


@pytest.mark.parametrize("value", [b"", b"\x01", b"\x01" * 15])
def test_a_truncated_row_is_noticed(value: bytes) -> None:
    with pytest.raises(RowCorruptError, match="fewer than a header"):
        rows.decode_row(b"k", value)


def test_a_newer_row_is_refused_with_both_versions() -> None:
    value = b"\x02" + rows.encode_row(RowKind.DELTA, 0, b"")[1:]
    with pytest.raises(RowVersionError, match="`1` or older, got `2`"):
        rows.decode_row(b"k", value)


def test_junk_is_corrupt_whatever_version_it_seems_to_have() -> None:
    """Else one message by anybody would stop every worker that reads it, for good."""
    with pytest.raises(RowCorruptError, match="6b"):
        rows.decode_row(b"k", b"\xd3" + bytes(range(30)))


@pytest.mark.parametrize("expected", [0, 1, 65_534, 65_535, 2**40])
def test_a_covered_row_counts_only_where_it_was_to_stand(expected: int) -> None:
    plain = rows.encode_row(RowKind.DELTA, 7, b"table")
    value = rows.with_expected_offset(plain, expected)
    assert rows.decode_row(rows.COVERED_KEY, value) == rows.decode_row(rows.COVERED_KEY, plain)
    assert rows.as_found(rows.COVERED_KEY, value, expected) == value
    assert rows.as_found(rows.COVERED_KEY, value, expected + 1) == b""
    assert rows.as_found(b"another key", value, expected + 1) == value


def test_a_covered_row_that_does_not_say_where_it_was_to_stand_counts_anywhere() -> None:
    plain = rows.encode_row(RowKind.DELTA, 7, b"table")
    newer = b"\x02" + rows.with_expected_offset(plain, 7)[1:]  # who knows what it has there
    for value in (plain, newer, b"", None):
        assert rows.as_found(rows.COVERED_KEY, value, 3) == value


@pytest.mark.parametrize("key", [b"C", b"C\x00\x05abc", b"C\x00\x01\xc1" + b"\0" * 12])
def test_a_key_that_does_not_parse_is_corrupt(key: bytes) -> None:
    with pytest.raises(RowCorruptError):
        rows.parse_row_key(key)
