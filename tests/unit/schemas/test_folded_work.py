"""What a worker says beside a committed offset, and what others may have written there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.folded_work import FoldedWork, encode_work, read_work


@given(
    st.builds(
        FoldedWork,
        st.integers(0, 2**53),
        st.integers(0, 2**53),
        st.floats(0.0, 86_400.0),
    )
)
def test_what_is_said_is_read(work: FoldedWork) -> None:
    assert read_work(encode_work(work)) == work


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "",
        "aiokafka",
        "[]",
        "{}",
        b'{"records":1,"size_bytes":1,"took_s":1.0}',
        '{"records":-1,"size_bytes":1,"took_s":1.0}',
        '{"records":1,"size_bytes":1,"took_s":-1.0}',
        '{"records":1,"size_bytes":1,"took_s":1e999}',
        '{"records":1,"size_bytes":1e30,"took_s":1.0}',
        "\ud800",
    ],
)
def test_what_is_not_of_a_worker_says_nothing(metadata: object) -> None:
    assert read_work(metadata) is None


@given(st.text())
def test_nothing_that_may_stand_there_is_an_error(metadata: str) -> None:
    read_work(metadata)
