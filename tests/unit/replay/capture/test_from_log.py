"""A capture of a log has the records that were asked for, as they are, and folds to what the log
gave at that place.
"""

from pathlib import Path

import pytest

from logs.embedded import EmbeddedLog
from replay.capture.errors import CaptureError
from replay.capture.format import CaptureEntry, CaptureSelection
from replay.capture.reader import Capture
from replay.folding import ReplayedTable
from schemas.codec import decode_log_record
from schemas.errors import DiskError, StorageError
from schemas.identities import Offset, PublisherKey
from schemas.memory_segments import MemoryRecord
from schemas.progress import Progress
from schemas.records import HeartbeatRecord, RegisteredRecord
from streams.table.fold import Fold
from streams.table.verification import context_digests
from tests.building import registration
from tests.earlier_logs import without
from tests.unit.replay.histories import (
    FIRST_TIME,
    captured,
    digests_of,
    fold_of,
    fold_of_records,
    history,
    replayed,
    write_log,
)

RECORDS = history()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_log(tmp_path / "data", RECORDS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.capture"


def entries_of(path: Path) -> list[CaptureEntry]:
    with Capture(path) as capture:
        assert capture.notes == []
        return list(capture.read())


def states_of(fold: Fold | ReplayedTable) -> dict[PublisherKey, tuple[object, ...]]:
    return {
        publisher: (state.cursor, state.degraded_since, state.engine_time)
        for publisher, state in fold.publishers.items()
    }


def test_a_whole_log_gives_the_same_table(data: Path, path: Path) -> None:
    captured(data, path)
    assert [entry.value for entry in entries_of(path)] == RECORDS
    table = replayed(path)
    assert table.digests == digests_of(data)
    assert len(table.digests) == 3
    assert states_of(table) == states_of(fold_of(data))
    assert table.registrations == [one.registration for one in fold_of(data).registrations.values()]


def test_the_same_log_gives_the_same_capture(data: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    captured(data, first)
    captured(data, second)
    assert entries_of(first) == entries_of(second)
    assert list(replayed(first).lines()) == list(replayed(second).lines())


def test_a_range_up_to_a_position_gives_the_table_of_then(data: Path, path: Path) -> None:
    captured(data, path, CaptureSelection(last={0: 70}))
    assert [entry.position for entry in entries_of(path)] == list(range(71))
    expected = fold_of_records(RECORDS[:71])
    assert replayed(path).digests == context_digests(expected.kernel)
    assert states_of(replayed(path)) == states_of(expected)


def test_times_choose_records(data: Path, path: Path) -> None:
    captured(data, path, CaptureSelection(since=FIRST_TIME + 40, until=FIRST_TIME + 50))
    with Capture(path) as capture:
        blocks = [(block.is_spared, block.entries) for block in capture.blocks]
        assert capture.summary is not None
        assert capture.summary.left_out["outside_the_range"] == len(RECORDS) - 10 - 3
    assert blocks == [(True, 3), (False, 10)], "the registrations, and the range"
    assert [entry.position for entry in entries_of(path)] == [0, 1, 2, *range(40, 50)]


def test_a_fold_of_a_later_range_does_not_vouch_for_what_was_before(
    tmp_path: Path, path: Path
) -> None:
    """The first publisher was registered and silent: it may hold what was stored before."""
    records = history()
    silent = registration("a", port=5000).publisher
    wanted = [
        value
        for value in records[:60]
        if b"\xc1" in value[:1]
        or getattr(decode_log_record(value), "stream", None) != silent.stream
        or records.index(value) == 0
    ]
    write_log(tmp_path / "silent", wanted)
    captured(tmp_path / "silent", path, CaptureSelection(first={0: 10}))
    state = replayed(path).publishers[silent]
    assert state.degraded_since == 0
    captured(tmp_path / "silent", path.with_name("whole"))
    assert silent not in replayed(path.with_name("whole")).publishers


def test_registrations_of_a_retained_log_are_kept(data: Path, path: Path) -> None:
    log = EmbeddedLog(data / "log", segment_bytes=4096)
    dropped = log.retain(
        bytes_max=5000, age_max_s=1e9, now=0.0, floor=log.end_offset, exempt=(0, 1)
    )
    assert dropped
    begin = log.complete_from
    log.close()
    captured(data, path)
    assert [entry.position for entry in entries_of(path)] == [0, 1, *range(begin, len(RECORDS))]
    with Capture(path) as capture:
        assert capture.unproven_before(0) == begin
        assert not capture.header.partitions[0].complete
    assert states_of(replayed(path)) == states_of(fold_of(data))
    assert replayed(path).digests == digests_of(data)


def test_registrations_are_kept_of_a_range_without_a_record(data: Path, path: Path) -> None:
    captured(data, path, CaptureSelection(since=FIRST_TIME + 1e6))
    kept = [decode_log_record(entry.value) for entry in entries_of(path)]
    live = fold_of(data).registrations
    assert [one.publisher for one in kept if isinstance(one, RegisteredRecord)] == [*live]
    assert len(kept) == len(live) > 0
    states = replayed(path).publishers
    assert states.keys() == live.keys()
    assert all(state.degraded_since is not None for state in states.values())


def test_an_instance_chooses_its_records_and_what_heartbeats_say_of_it(
    data: Path, path: Path
) -> None:
    captured(data, path, CaptureSelection(instance="b"))
    stream = registration("b").stream
    heartbeats = 0
    for entry in entries_of(path):
        record = decode_log_record(entry.value)
        if isinstance(record, HeartbeatRecord):
            heartbeats += 1
            assert [one.stream for one in record.reports] == [stream]
        else:
            assert not isinstance(record, MemoryRecord), "which is of no instance"
            assert record.stream == stream
            assert entry.value == RECORDS[entry.position]
    assert heartbeats
    whole, mine = digests_of(data), replayed(path).digests
    assert mine == {name: digest for name, digest in whole.items() if name.endswith(" / b")}
    with Capture(path) as capture:
        assert capture.summary is not None
        assert set(capture.summary.left_out) == {"other_streams", "unreadable"}


@pytest.mark.parametrize(("first", "last"), [({0: 500}, None), (None, {0: 120}), ({1: 0}, None)])
def test_a_position_of_another_log_is_refused_with_this_ones_bounds(
    data: Path, path: Path, first: dict[int, int] | None, last: dict[int, int] | None
) -> None:
    with pytest.raises(CaptureError, match=r"0:0|partitions 0, got --from `1:0`"):
        captured(data, path, CaptureSelection(first=first, last=last))
    assert not path.exists()


def test_an_end_before_the_end_leaves_a_whole_file(data: Path, path: Path) -> None:
    told: list[Progress] = []
    captured(data, path, tell=told.append, stopped=lambda: bool(told))
    with Capture(path) as capture:
        assert capture.summary is not None
        assert capture.summary.ended == "interrupted"
        assert list(capture.read()) == [CaptureEntry(0, 0, FIRST_TIME, RECORDS[0])]


def test_there_must_be_a_log(tmp_path: Path, path: Path) -> None:
    with pytest.raises(StorageError):
        captured(tmp_path, path)
    assert not path.exists()


def test_a_damaged_log_is_captured_up_to_the_damage(data: Path, path: Path) -> None:
    without(data / "log", 50)
    with pytest.raises(DiskError, match="records 50 to 50 are missing"):
        captured(data, path)
    with Capture(path) as capture:
        assert [entry.position for entry in capture.read()] == list(range(50))
        assert "records 50 to 50 are missing" in capture.notes[0]


def test_a_service_that_appends_meanwhile_is_not_in_the_way(data: Path, path: Path) -> None:
    log = EmbeddedLog(data / "log", segment_bytes=4096)
    log.append([RECORDS[5]])
    captured(data, path)
    log.append([RECORDS[6]])
    assert log.end_offset == Offset(len(RECORDS) + 2)
    log.close()
    assert len(entries_of(path)) >= len(RECORDS)
