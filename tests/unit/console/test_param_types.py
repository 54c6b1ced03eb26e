"""What options take for a time and for a position."""

import click
import pytest

from console.param_types import Moment, PositionsType


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1700000000", 1_700_000_000.0),
        ("1700000000.25", 1_700_000_000.25),
        ("2023-11-14T22:13:20Z", 1_700_000_000.0),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000.0),
        ("0", 0.0),
    ],
)
def test_a_time_is_unix_seconds_or_iso_8601(text: str, seconds: float) -> None:
    assert Moment().convert(text, None, None) == seconds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-1", "since 1970"),
        ("nan", "since 1970"),
        ("inf", "since 1970"),
        ("1e999", "since 1970"),
        ("2023-11-14T22:13:20", "with its offset, as `2023-11-14T22:13:20Z`"),
        ("now", "got: now"),
        ("9" * 5000, "since 1970"),
    ],
)
def test_what_is_no_time_is_refused(text: str, said: str) -> None:
    with pytest.raises(click.BadParameter, match=said):
        Moment().convert(text, None, None)


def test_positions_are_spelt_as_answers_spell_them() -> None:
    assert PositionsType().convert("0:592", None, None) == {0: 592}
    assert PositionsType().convert("0:12,3:0", None, None) == {0: 12, 3: 0}
    assert PositionsType().convert("0:12,1:-1", None, None) == {0: 12, 1: -1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("592", "such as `0:592`"),
        ("0:-2", "such as `0:592`"),
        ("", "such as `0:592`"),
        ("0:1,", "such as `0:592`"),
        ("0:\u0663", "such as `0:592`"),
        (f"0:{2**63}", "such as `0:592`"),
        ("0:" + "9" * 9000, "such as `0:592`"),
        ("0:1,0:2", "each partition once"),
    ],
)
def test_what_is_no_position_is_refused(text: str, said: str) -> None:
    with pytest.raises(click.BadParameter, match=said):
        PositionsType().convert(text, None, None)
