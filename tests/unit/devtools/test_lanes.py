"""Each test is in one lane."""

import pytest

from tests.lanes import folder_of, lane_of


@pytest.mark.parametrize(
    ("nodeid", "markers", "lane"),
    [
        ("tests/unit/schemas/test_codec.py::test_it", set(), "test"),
        ("tests/unit/test_compose.py::test_it[a/b]", {"faults", "timeout"}, "faults"),
        ("tests/contract/test_it.py::test_it[embedded]", set(), "test"),
        ("tests/contract/test_it.py::test_it[kafka]", {"faults"}, "faults"),
        ("tests/integration/bridge/test_it.py::test_it", set(), "faults"),
        ("tests/integration/test_it.py::test_it", {"smoke"}, "test"),
        ("tests/fuzz/test_it.py::test_it", set(), "faults"),
    ],
)
def test_the_folder_decides_and_a_marker_moves(nodeid: str, markers: set[str], lane: str) -> None:
    assert lane_of(nodeid, markers) == lane


@pytest.mark.parametrize(
    ("nodeid", "markers"),
    [
        ("tests/new/test_it.py::test_it", set()),
        ("tests/test_it.py::test_it", set()),
        ("integrations/reprise-ray/tests/test_it.py::test_it", set()),
        ("tests/unit/test_it.py::test_it", {"faults", "smoke"}),
    ],
)
def test_a_test_in_no_lane_or_in_two_is_named(nodeid: str, markers: set[str]) -> None:
    with pytest.raises(ValueError, match=f"Expected {nodeid} in one folder"):
        lane_of(nodeid, markers)


def test_a_folder_is_one_below_the_tests() -> None:
    assert folder_of("tests/unit/a/test_it.py::test_it") == "unit"
    assert folder_of("tests/test_it.py") == ""
