"""Both selections of changes select the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.kernel import change_selection, native_available
from streams.kernel.changes import Change, Op
from streams.kernel.selection import PythonChangeSelection
from tests.building import u64s

NUMBERS = st.lists(st.integers(0, 6), max_size=4)
CHANGES = st.lists(
    st.builds(
        Change,
        st.integers(0, 6),
        st.integers(0, 6),
        st.integers(0, 2),
        st.integers(0, 5),
        st.sampled_from(Op),
        st.integers(0, 2),
    )
)


@pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")
@given(CHANGES, NUMBERS, NUMBERS)
def test_both_select_the_same(changes: list[Change], prefixes: list[int], keys: list[int]) -> None:
    encoded = b"".join(change.encode() for change in changes)
    wanted = [
        change
        for change in changes
        if change.op == Op.CLEAR or change.prefix in prefixes or change.engine_key in keys
    ]
    for make in (change_selection, PythonChangeSelection):
        selected = make(u64s(prefixes), u64s(keys)).of(encoded)
        assert selected == b"".join(change.encode() for change in wanted)


@pytest.mark.parametrize("make", [change_selection, PythonChangeSelection])
def test_a_part_of_a_change_is_refused(make: type[PythonChangeSelection]) -> None:
    with pytest.raises(ValueError, match="Expected a multiple of 24 bytes, got 25"):
        make(b"", b"").of(bytes(25))
