"""How much is folded at once follows what the last turns took."""

import pytest

from reprise.embedded.pace import Pace
from schemas.limits import FOLD_TURN_BYTES_MAX, FOLD_TURN_BYTES_MIN, FOLD_TURN_S, KIB


def paced(*turns: tuple[int, float]) -> Pace:
    pace = Pace()
    for size_bytes, seconds in turns:
        pace.note(size_bytes, seconds)
    return pace


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([], FOLD_TURN_BYTES_MAX),
        ([(64 * KIB, FOLD_TURN_S)], 64 * KIB),
        ([(128 * KIB, 2 * FOLD_TURN_S)] * 9, 64 * KIB),
        ([(100 * KIB, FOLD_TURN_S / 1000)], FOLD_TURN_BYTES_MAX),
        ([(100 * KIB, 0.0)], FOLD_TURN_BYTES_MAX),
        ([(100 * KIB, 60.0)], FOLD_TURN_BYTES_MIN),
        ([(0, FOLD_TURN_S)], FOLD_TURN_BYTES_MIN),
    ],
)
def test_a_turn_is_what_is_folded_in_its_time_within_bounds(
    turns: list[tuple[int, float]], expected: int
) -> None:
    assert paced(*turns).turn_bytes == expected


def test_what_takes_longer_is_noticed_at_once_and_what_took_long_is_soon_forgotten() -> None:
    pace = paced(*[(128 * KIB, FOLD_TURN_S)] * 9)
    pace.note(128 * KIB, 8 * FOLD_TURN_S)
    assert pace.turn_bytes < 128 * KIB / 2
    for _ in range(16):
        pace.note(128 * KIB, FOLD_TURN_S)
    assert pace.turn_bytes > 0.9 * 128 * KIB


def test_a_small_record_that_took_long_weighs_little() -> None:
    pace = paced(*[(64 * KIB, FOLD_TURN_S / 2)] * 4)
    pace.note(200, FOLD_TURN_S / 20)
    assert pace.turn_bytes > 0.9 * FOLD_TURN_BYTES_MAX
