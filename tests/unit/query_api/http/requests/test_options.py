"""Past moments as requests name them."""

import pytest

from query_api.http.errors import RequestError
from query_api.http.requests.options import read_as_of
from query_api.ports import AsOf
from schemas.positions import Position


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0:592", AsOf(positions=(Position(0, 592),))),
        ("0:-1", AsOf(positions=(Position(0, -1),))),
        ("1:7,0:5", AsOf(positions=(Position(0, 5), Position(1, 7)))),
        ("1764018000.5", AsOf(seconds=1764018000.5)),
        ("2025-11-24T21:00:00Z", AsOf(seconds=1764018000.0)),
        ("2025-11-24T21:00:00", AsOf(seconds=1764018000.0)),
        ("2025-11-24T22:00:00+01:00", AsOf(seconds=1764018000.0)),
        ("2025-11-24T22:00:00 01:00", AsOf(seconds=1764018000.0)),
        ("1970-01-02", AsOf(seconds=86400.0)),
    ],
)
def test_a_moment_is_a_position_or_a_time(text: str, expected: AsOf) -> None:
    assert read_as_of(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "nan", "inf", "0:1,0:2", "0:", ":1", "0:-2", "0:\u0663", "99999999999:1", "2025-13-01"],
)
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="as_of must be a position"):
        read_as_of(text)
