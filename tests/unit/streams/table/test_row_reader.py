from collections.abc import Callable

from streams.table import rows
from streams.table.fold import Fold
from streams.table.row_reader import RowReader


def test_a_partition_that_has_no_rows_covers_nothing(make_fold: Callable[[], Fold]) -> None:
    follower = RowReader(make_fold().kernel)
    follower.caught_up(3)
    assert [str(position) for position in follower.positions()] == ["3:-1"]


def test_a_covered_row_alone_moves_the_position(make_fold: Callable[[], Fold]) -> None:
    follower = RowReader(make_fold().kernel)
    row = rows.encode_row(rows.RowKind.DELTA, 7, b"t")
    follower.put(0, rows.COVERED_KEY, row)
    assert follower.covered(0) == -1
    follower.caught_up(0)
    assert follower.covered(0) == 7
