from collections.abc import Callable

import pytest

from schemas.errors import RowCorruptError, RowVersionError
from streams.table.fold import Fold
from streams.table.rows import format as rows
from streams.table.rows.reader import RowReader
from tests.building import SCOPE, cleared, events_record, stored
from tests.fakes import FlushingWorker


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


def written(make_fold: Callable[[], Fold]) -> list[tuple[bytes, bytes | None]]:
    """The rows of a publisher that holds a block; the context's row is the first."""
    worker = FlushingWorker(make_fold(), table=b"t")
    flush = worker.flush(events_record(0, 0, [stored(0, [1], range(4))]))
    return [(row.key, row.value) for row in flush]


def damaged(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


def newer(value: bytes) -> bytes:
    return b"\x09" + value[1:]


@pytest.mark.parametrize(
    ("change", "reason", "error"),
    [(damaged, "corrupt_rows", RowCorruptError), (newer, "newer_rows", RowVersionError)],
)
@pytest.mark.parametrize("prefix", [rows.CONTEXT, rows.PUBLISHER])
def test_a_row_that_cannot_be_used_is_passed_over_or_raised_as_asked(
    make_fold: Callable[[], Fold],
    change: Callable[[bytes], bytes],
    reason: str,
    error: type[Exception],
    prefix: bytes,
) -> None:
    found = [
        (key, change(value) if value is not None and key[:1] == prefix else value)
        for key, value in written(make_fold)
    ]
    reader, strict = RowReader(make_fold().kernel), RowReader(make_fold().kernel, strict=True)
    for key, value in found:
        reader.put(0, key, value)
        strict.put(0, key, value)
    reader.caught_up(0)
    assert reader.counters[reason] == 1
    assert [one.reason for one in reader.take_skipped()] == [reason]
    assert reader.is_degraded(SCOPE)
    with pytest.raises(error):
        strict.caught_up(0)


@pytest.mark.parametrize(("generation", "n"), [(2**31, 0), (0, 2**63 - 1)])
@pytest.mark.parametrize("caught_up", [False, True])
def test_a_row_at_a_place_that_is_never_written_costs_itself_alone(
    make_fold: Callable[[], Fold], generation: int, n: int, caught_up: bool
) -> None:
    """It was an unexpected error, by which all rows were lost that were to be loaded with it."""
    reader = RowReader(make_fold().kernel)
    if caught_up:
        reader.caught_up(0)
    found = written(make_fold)
    ((key, value),) = [one for one in found if one[0][:1] == rows.CONTEXT]
    strange = rows.prefix_of(key) + generation.to_bytes(4, "big") + n.to_bytes(8, "big")
    for one in ((strange, value), *found):
        reader.put(0, *one)
    if not caught_up:
        reader.caught_up(0)
    assert reader.covered(0) == 0
    assert [view.entries for view in reader.kernel.contexts()] == [1]
    assert [one.key for one in reader.take_skipped()] == [strange]
    assert reader.is_degraded(SCOPE)


def test_an_empty_generation_empties_a_context_whose_last_delta_was_compacted_away(
    make_fold: Callable[[], Fold],
) -> None:
    """A reader that was away finds the mark alone: tombstones have taken the rows before it."""
    worker = FlushingWorker(make_fold(), table=b"t")
    reader = RowReader(make_fold().kernel)
    for row in worker.flush(events_record(0, 0, [stored(0, [1], range(4))])):
        reader.put(0, *row)
    reader.caught_up(0)
    (view,) = reader.kernel.contexts()
    assert view.entries
    last = worker.flush(events_record(1, 1, [cleared(1)]))  # of which a context row is lost
    for key, value in last:
        if key[:1] == rows.CONTEXT:
            continue
        if key == rows.COVERED_KEY:
            mark = rows.encode_row(rows.RowKind.DELTA, 1, (1).to_bytes(4, "little"))
            reader.put(0, rows.mark_key(view.context), mark)
        reader.put(0, key, value)
    assert not sum(one.entries for one in reader.kernel.contexts())
    assert not reader.is_degraded(SCOPE)
