"""A state in pieces is the same bytes as in one call, and no piece is large."""

import msgspec
import pytest

from routing.fold.fold import RoutingFold, RoutingState
from routing.incremental_encoding import array_header, bytes_pieces, pieces_of
from schemas.routing_records import DecisionsRecord, OutcomeEvent, OutcomesRecord, PrefixMark
from tests.unit.routing.sample_decisions import candidate, decision, outcome

PIECE_BYTES_MAX = 512 * 1024


class Row(msgspec.Struct, array_like=True):
    """Two sequences in one."""

    name: str
    counts: list[int]
    rest: tuple[tuple[int, ...], ...] = ()


@pytest.mark.parametrize("count", [0, 15, 16, 1023, 1024, 1025, 70_000])
def test_the_pieces_of_a_long_sequence_are_its_encoding(count: int) -> None:
    states = [tuple(range(count)), list(range(count)), (1, tuple(range(count)), "end")]
    for state in states:
        assert b"".join(pieces_of(state)) == msgspec.msgpack.encode(state)


def test_sequences_in_sequences_are_cut_where_they_are_long() -> None:
    state = tuple(
        Row(str(number), [number] * (number % 7), ((number,) * 50,) * (number % 60))
        for number in range(3000)
    )
    pieces = list(pieces_of(state))
    assert b"".join(pieces) == msgspec.msgpack.encode(state)
    assert max(map(len, pieces)) < len(msgspec.msgpack.encode(state)) / 4


def test_a_minute_of_many_rows_among_many_minutes_is_no_piece_of_its_own() -> None:
    minutes = tuple((minute, tuple((row, "x" * 20) for row in range(64))) for minute in range(512))
    pieces = list(pieces_of(minutes))
    assert b"".join(pieces) == msgspec.msgpack.encode(minutes)
    assert max(map(len, pieces)) < 256 * 1024 < sum(map(len, pieces))


@pytest.mark.parametrize("count", [0, 15, 16, 65_535, 65_536])
def test_headers_are_those_of_the_encoder(count: int) -> None:
    assert msgspec.msgpack.encode([None] * count).startswith(array_header(count))


@pytest.mark.parametrize("count", [0, 255, 256, 65_535, 65_536])
def test_bytes_in_pieces_are_one_value(count: int) -> None:
    parts = [b"x" * (count // 2), b"x" * (count - count // 2)]
    assert b"".join(bytes_pieces(parts)) == msgspec.msgpack.encode(b"x" * count)


def test_a_checkpoint_of_much_is_read_back_and_has_no_large_piece() -> None:
    fold = RoutingFold()
    for start in range(0, 4096, 64):
        made = tuple(
            decision(
                number,
                session_id=f"s{number}",
                candidates=(candidate(f"i{number % 40}"),),
                is_approximate=True,
                marks=tuple(PrefixMark(1 << place, number << 8 | place) for place in range(9)),
            )
            for number in range(start, start + 64)
        )
        told = tuple(
            outcome(number, OutcomeEvent.FIRST_TOKEN, ttft_s=1.0)
            for number in range(start, start + 32)
        )
        fold.apply(2 * start, DecisionsRecord(run=1, time=100.0, decisions=made))
        fold.apply(2 * start + 1, OutcomesRecord(run=1, time=101.0, outcomes=told))
    pieces = list(fold.pieces())
    encoded = b"".join(pieces)
    assert max(map(len, pieces)) < PIECE_BYTES_MAX < len(encoded)
    assert msgspec.msgpack.encode(msgspec.msgpack.decode(encoded, type=RoutingState)) == encoded
    again = RoutingFold.load(encoded)
    assert (again.digest, again.dump()) == (fold.digest, encoded)
