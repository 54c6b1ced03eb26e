"""`reprise up --demo` where its engines have no ports."""

from collections.abc import Callable
from pathlib import Path

import pytest

from reprise.demo import BASE_PORT_VARIABLE


@pytest.mark.parametrize("value", ["x", "-1", "65457", "٣"])
def test_a_base_port_that_leaves_no_room_is_refused(
    refused: Callable[..., str], tmp_path: Path, value: str
) -> None:
    data = tmp_path / "data"
    said = refused("up", "--demo", "--data", str(data), **{BASE_PORT_VARIABLE: value})
    assert f"Expected {BASE_PORT_VARIABLE} to be a port up to 65456, got: {value}" in said
    assert not data.exists()
