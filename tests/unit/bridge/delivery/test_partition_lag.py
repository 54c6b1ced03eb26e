"""Who waits for the workers, and how much is under way."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.bounds import LAG_SILENT_S
from bridge.delivery.outbox import Outbox
from bridge.delivery.partition_lag import (
    LAG_BYTES_FIRST,
    LAG_BYTES_MIN,
    LAG_RECORD_BYTES,
    LAG_RECORDS_MAX,
    LAG_S,
    LAG_UNSAID_S,
    PartitionLag,
)
from schemas.folded_work import FoldedWork
from tests.fakes import registration

A, B, C = (registration(name).publisher for name in ("a", "b", "c"))
ONE, TWO, THREE = (Outbox(publisher, b"", 0) for publisher in (A, B, C))
QUARTER = LAG_BYTES_FIRST // 4 - LAG_RECORD_BYTES


def fresh_lag() -> PartitionLag:
    """Of which nobody has a share yet."""
    for outbox in (ONE, TWO, THREE):
        outbox.unfolded_bytes, outbox.is_held_back = 0, False
    return PartitionLag(0)


def written(lag: PartitionLag, outbox: Outbox, sizes: Sequence[int], first: int) -> None:
    for number, size in enumerate(sizes):
        lag.add(outbox, size)
        lag.written(outbox, size, first + number)


def limit(lag: PartitionLag) -> float:
    """What the workers fold in LAG_S."""
    return lag._pace.amount


def test_a_publisher_may_use_what_the_workers_fold_in_time_and_waits_then() -> None:
    lag = fresh_lag()
    written(lag, ONE, [QUARTER] * 4, 0)
    assert lag.size_bytes == limit(lag) == LAG_BYTES_FIRST
    assert not lag.holds_back(ONE, 1.0)
    written(lag, ONE, [0], 4)
    assert lag.holds_back(ONE, 1.0)
    assert lag.held_back == [A]
    assert not lag.holds_back(TWO, 1.0), "who sends little goes on"
    assert lag.folded(0, 1.1) == []
    assert lag.folded(1, 1.1 + LAG_S / 4) == [A]
    assert lag.held_back == []


def test_a_second_one_that_sends_much_shares_the_room_and_there_is_still_some_for_others() -> None:
    lag = fresh_lag()
    lag.add(ONE, 4 * QUARTER)
    lag.add(TWO, 2 * QUARTER)
    assert lag.holds_back(ONE, 1.0)
    assert not lag.holds_back(TWO, 1.0)
    lag.add(TWO, QUARTER)
    assert lag.holds_back(TWO, 1.0)
    assert lag.held_back == [A, B]
    assert not lag.holds_back(THREE, 1.0)


def test_who_uses_no_more_than_an_equal_share_goes_on_however_much_there_is() -> None:
    lag = fresh_lag()
    written(lag, ONE, [QUARTER] * 40, 0)
    assert not lag.holds_back(TWO, 1.0)
    lag.add(TWO, 2 * QUARTER)
    assert not lag.holds_back(TWO, 1.0), "half of what is allowed to both"
    lag.add(TWO, 1)
    assert lag.holds_back(TWO, 1.0)
    assert lag.holds_back(ONE, 1.0)
    assert not lag.holds_back(THREE, 1.0)


def test_what_went_to_the_spool_does_not_count() -> None:
    lag = fresh_lag()
    for _ in range(6):
        lag.add(ONE, QUARTER)
    for _ in range(5):
        lag.remove(ONE, QUARTER)
    assert lag.size_bytes == QUARTER + LAG_RECORD_BYTES
    assert not lag.holds_back(ONE, 1.0)
    lag.remove(ONE, QUARTER)
    assert lag.size_bytes == 0


def test_the_limit_follows_how_fast_the_workers_are_while_somebody_waits() -> None:
    lag = fresh_lag()
    written(lag, ONE, [QUARTER] * 4, 0)
    assert lag.folded(1, 1.0) == []
    assert lag.folded(2, 1.0 + LAG_UNSAID_S / 100) == []
    assert limit(lag) == LAG_BYTES_FIRST, "nobody waited: they may have had nothing to do"
    written(lag, ONE, [QUARTER] * 16, 4)
    assert lag.holds_back(ONE, 2.0)
    assert lag.folded(4, 2.0 + LAG_UNSAID_S / 100) == []
    assert limit(lag) == LAG_BYTES_FIRST, "what was folded before counts for no time"
    assert lag.folded(8, 2.0 + 2.01 * LAG_UNSAID_S) == []
    assert limit(lag) == pytest.approx(LAG_BYTES_FIRST / 2, rel=0.01)
    before = limit(lag)
    assert lag.folded(12, 2.0 + 2.26 * LAG_UNSAID_S) == []
    assert limit(lag) > before
    assert lag.folded(20, 2.0 + 100 * LAG_UNSAID_S) == [A]
    assert limit(lag) == LAG_BYTES_MIN, "however slow they are"


def test_the_limit_is_what_workers_say_they_fold_however_seldom_they_are_heard_of() -> None:
    lag = fresh_lag()
    written(lag, ONE, [QUARTER] * 8, 0)
    assert lag.holds_back(ONE, 1.0)
    size_bytes = 4 * QUARTER
    work = FoldedWork(4, size_bytes, LAG_S / 4)
    assert lag.folded(4, 2.0, work) == [A]
    assert limit(lag) == pytest.approx(4 * LAG_BYTES_FIRST, rel=1e-6), "records count, too"
    assert lag.folded(4, 9.0, FoldedWork(1, 1, 1.0)) == []
    assert limit(lag) == pytest.approx(4 * LAG_BYTES_FIRST, rel=0.01), "that was heard before"
    lag.folded(8, 10.0, FoldedWork(4, size_bytes, 100 * LAG_S))
    assert limit(lag) == LAG_BYTES_MIN, "however slow they are"


def test_workers_that_stand_still_hold_nobody_back_and_do_again_once_they_get_on() -> None:
    lag = fresh_lag()
    written(lag, ONE, [QUARTER] * 12, 0)
    assert lag.holds_back(ONE, 1.0)
    assert lag.asks(1.0)
    assert lag.folded(1, 2.0) == []
    assert lag.folded(1, 2.0 + LAG_SILENT_S) == []
    assert lag.holds_back(ONE, 2.0 + LAG_SILENT_S)
    assert lag.folded(1, 2.1 + LAG_SILENT_S) == [A]
    assert not lag.holds_back(ONE, 2.1 + LAG_SILENT_S)
    assert lag.folded(2, 9.0) == []
    assert lag.holds_back(ONE, 9.0)


def test_nobody_waits_for_workers_of_which_nothing_is_known() -> None:
    lag = fresh_lag()
    lag.add(ONE, 8 * QUARTER)
    assert lag.holds_back(ONE, 1.0), "they may be about to answer"
    assert lag.folded(None, 1.0 + LAG_SILENT_S) == []
    assert lag.folded(None, 1.1 + LAG_SILENT_S) == [A]
    assert not lag.holds_back(ONE, 1.1 + LAG_SILENT_S)


def test_it_is_not_looked_while_little_is_under_way() -> None:
    lag = fresh_lag()
    assert not lag.asks(1.0)
    written(lag, ONE, [QUARTER, QUARTER], 0)
    assert not lag.asks(1.0)
    written(lag, ONE, [0], 2)
    assert lag.asks(1.0), "before anybody has to wait"
    lag.folded(3, 1.1)
    assert not lag.asks(1.2)
    written(lag, ONE, [QUARTER] * 8, 3)
    assert lag.holds_back(ONE, 50.0), "that nobody looked meanwhile is no silence"


def test_what_is_remembered_is_bounded() -> None:
    lag = fresh_lag()
    written(lag, ONE, [1] * (LAG_RECORDS_MAX + 10), 0)
    assert lag.size_bytes == LAG_RECORDS_MAX * (1 + LAG_RECORD_BYTES)
    lag.folded(LAG_RECORDS_MAX + 10, 1.0)
    assert lag.size_bytes == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from((ONE, TWO, THREE)),
            st.integers(0, LAG_BYTES_FIRST),
            st.sampled_from(("write", "spool", "wait")),
            st.integers(0, 3),
        )
    )
)
def test_what_is_under_way_is_what_was_added_and_is_neither_folded_nor_removed(
    steps: list[tuple[Outbox, int, str, int]],
) -> None:
    lag = fresh_lag()
    end = folded = 0
    log: list[int] = []  # sizes
    waiting = 0
    for now, (outbox, size, what, behind) in enumerate(steps):
        lag.add(outbox, size)
        if what == "write":
            lag.written(outbox, size, end)
            log.append(size + LAG_RECORD_BYTES)
            end += 1
        elif what == "spool":
            lag.remove(outbox, size)
        else:
            waiting += size + LAG_RECORD_BYTES
            lag.holds_back(outbox, float(now))
        folded = max(folded, end - behind)
        held_back = set(lag.held_back)
        assert set(lag.folded(folded, float(now))) <= held_back
        assert lag.size_bytes == waiting + sum(log[folded:])
        if lag.size_bytes == 0:
            assert lag.held_back == []
