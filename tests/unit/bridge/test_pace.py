"""How much is done at once follows what the last turns took."""

import pytest

from bridge.pace import TurnPace

TURN_S, LEAST, MOST = 0.004, 16_000, 128_000


def paced(*turns: tuple[int, float]) -> TurnPace:
    pace = TurnPace(TURN_S, least=LEAST, most=MOST)
    for done, took_s in turns:
        pace.note(done, took_s)
    return pace


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([], MOST),
        ([(64_000, TURN_S)], 64_000),
        ([(128_000, 2 * TURN_S)] * 9, 64_000),
        ([(100_000, TURN_S / 1000)], MOST),
        ([(100_000, 0.0)], MOST),
        ([(100_000, 60.0)], LEAST),
        ([(0, TURN_S)], LEAST),
    ],
)
def test_a_turn_is_what_is_done_in_its_time_within_bounds(
    turns: list[tuple[int, float]], expected: int
) -> None:
    assert paced(*turns).amount == expected


def test_what_takes_longer_is_noticed_at_once_and_what_took_long_is_soon_forgotten() -> None:
    pace = paced(*[(128_000, TURN_S)] * 9)
    pace.note(128_000, 8 * TURN_S)
    assert pace.amount < 128_000 / 2
    for _ in range(16):
        pace.note(128_000, TURN_S)
    assert pace.amount > 0.9 * 128_000


def test_a_little_that_took_long_weighs_little() -> None:
    pace = paced(*[(64_000, TURN_S / 2)] * 4)
    pace.note(200, TURN_S / 20)
    assert pace.amount > 0.9 * MOST
