"""What is written by hand is what the library reads."""

import pytest

from query_api.grpc.encoding import bytes_field, number_field, text_field, varint
from tests.router_protos import RADIX


@pytest.mark.parametrize("number", [0, 127, 128, 16_383, 16_384, 2**64 - 1])
def test_numbers_are_varints(number: int) -> None:
    encoded = number_field(1, number)
    assert encoded == RADIX.Query(query_id=number).SerializeToString()
    assert encoded[1:] == (varint(number) if number else b"")


def test_a_message_of_fields_is_read_by_the_library() -> None:
    encoded = (
        number_field(2, 2**32 - 1)
        + text_field(1, "é" * 100)
        + number_field(3, 2**64 - 1)
        + bytes_field(5, number_field(2, 9))
    )
    score = RADIX.HolderScore.FromString(encoded)
    assert (score.holder, score.matched_blocks, score.total_blocks) == (
        "é" * 100,
        2**32 - 1,
        2**64 - 1,
    )
    assert [(run.start, run.end) for run in score.intervals] == [(0, 9)]


def test_what_is_absent_takes_no_bytes() -> None:
    assert number_field(2, 0) + text_field(1, "") == b""
