import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from logs.embedded import (
    EmbeddedLog,
    ExaminedLog,
    ReadOnlyLog,
    RepairedLog,
    repaired_path,
)
from schemas.errors import (
    DamagedError,
    DataDirectoryInUseError,
    DiskError,
    NewerVersionError,
    StorageError,
)
from schemas.identities import Offset
from schemas.positions import LogBounds
from storage.rocksdb import LOG, AppendedPart, Database, Preset, new_batch
from tests.earlier_logs import of_an_earlier_format, without


def offsets(log: EmbeddedLog, start: int = 0) -> list[int]:
    return [entry.offset for entry in log.read(Offset(start))]


def test_a_closed_log_goes_on_where_it_ended(tmp_path: Path) -> None:
    first = EmbeddedLog(tmp_path / "log")
    first.append([b"a"] * 10)
    first.close()
    second = EmbeddedLog(tmp_path / "log")
    assert second.append([b"b"]) == 10
    assert second.size_bytes == 11
    second.close()


def test_a_second_opening_is_refused_and_says_where(log: EmbeddedLog, tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryInUseError, match=str(tmp_path / "log")):
        EmbeddedLog(tmp_path / "log")


def test_a_log_can_be_read_beside_its_writer_but_not_written(
    log: EmbeddedLog, tmp_path: Path
) -> None:
    log.append([b"a"])
    log.sync()
    reader = ReadOnlyLog(tmp_path / "log")
    assert [entry.value for entry in reader.read(Offset(0))] == [b"a"]
    with pytest.raises(StorageError, match="opened for reading"):
        reader.append([b"b"])
    reader.close()


def test_reading_a_log_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such directory"):
        ReadOnlyLog(tmp_path / "nothing")


@pytest.fixture
def small(tmp_path: Path) -> EmbeddedLog:
    """Ten segments of ten records of 100 bytes, one record a second."""
    log = EmbeddedLog(tmp_path / "small", segment_bytes=1000)
    for second in range(100):
        log.append([b"x" * 100], now=float(second))
    return log


FOREVER = 1e9
UNBOUNDED = 10**9


def test_retention_by_bytes_drops_whole_segments_from_the_front(small: EmbeddedLog) -> None:
    dropped = small.retain(
        bytes_max=4000, age_max_s=FOREVER, now=100.0, floor=small.end_offset, exempt=()
    )
    assert dropped == 6
    assert small.size_bytes == 4000
    assert small.complete_from == 60
    assert offsets(small) == list(range(60, 100))


def test_retention_by_age_keeps_a_segment_with_a_young_record(small: EmbeddedLog) -> None:
    small.retain(bytes_max=UNBOUNDED, age_max_s=75.0, now=100.0, floor=small.end_offset)
    assert offsets(small)[0] == 20
    small.retain(bytes_max=UNBOUNDED, age_max_s=70.0, now=100.0, floor=small.end_offset)
    assert offsets(small)[0] == 20, "its last record is as old as that, not older"


def test_retention_drops_nothing_within_its_bounds(small: EmbeddedLog) -> None:
    dropped = small.retain(bytes_max=10_000, age_max_s=FOREVER, now=100.0, floor=small.end_offset)
    assert dropped == 0
    assert offsets(small) == list(range(100))


def test_records_appended_at_once_are_dropped_like_those_appended_one_by_one(
    tmp_path: Path,
) -> None:
    log = EmbeddedLog(tmp_path / "log", segment_bytes=1000)
    log.append([b"x" * 100] * 100)
    dropped = log.retain(bytes_max=4000, age_max_s=FOREVER, now=0.0, floor=log.end_offset)
    assert (dropped, log.size_bytes) == (6, 4000)


def test_retention_never_drops_what_a_table_still_needs(small: EmbeddedLog) -> None:
    small.retain(bytes_max=0, age_max_s=0.0, now=FOREVER, floor=Offset(35))
    assert offsets(small)[0] == 30
    small.retain(bytes_max=0, age_max_s=0.0, now=FOREVER, floor=Offset(40))
    assert offsets(small)[0] == 40


def test_the_newest_segment_stays_whatever_the_bounds(small: EmbeddedLog) -> None:
    small.retain(bytes_max=0, age_max_s=0.0, now=FOREVER, floor=small.end_offset)
    assert offsets(small) == list(range(90, 100))


def test_exempt_records_outlive_retention_and_a_restart(small: EmbeddedLog, tmp_path: Path) -> None:
    small.retain(
        bytes_max=0, age_max_s=0.0, now=FOREVER, floor=small.end_offset, exempt=[7, 42, 90, 95]
    )
    small.close()
    again = EmbeddedLog(tmp_path / "small", segment_bytes=1000)
    assert offsets(again) == [7, 42, *range(90, 100)]
    assert (again.complete_from, again.size_bytes) == (90, 1000)
    assert again.end_offset == 100
    again.close()


def test_an_advanced_log_counts_as_complete_only_from_there(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.append([b"a"])
    log.advance_to(Offset(50))
    assert log.bounds == LogBounds(50, 50)
    log.close()
    again = EmbeddedLog(tmp_path / "log")
    assert (again.end_offset, again.complete_from) == (50, 50)
    assert again.append([b"b"]) == 50
    with pytest.raises(ValueError, match="at least `51`"):
        again.advance_to(Offset(50))
    again.advance_to(Offset(51))  # which no record has
    assert again.bounds == LogBounds(51, 51)
    again.close()


def test_a_log_without_records_that_was_advanced_can_be_opened_again(tmp_path: Path) -> None:
    """The log was lost, and the table was not."""
    log = EmbeddedLog(tmp_path / "log")
    log.advance_to(Offset(50))
    log.close()
    again = EmbeddedLog(tmp_path / "log")
    assert (again.bounds, again.size_bytes) == (LogBounds(50, 50), 0)
    again.append([b"four"])
    assert again.size_bytes == 4
    again.close()


@pytest.mark.parametrize(("offset", "end"), [(30, 100), (150, 150)])
def test_a_log_that_is_complete_only_from_an_offset_gives_none_out_before_it(
    small: EmbeddedLog, tmp_path: Path, offset: int, end: int
) -> None:
    small.complete_only_from(Offset(offset))
    assert small.bounds == LogBounds(offset, end)
    small.close()
    again = EmbeddedLog(tmp_path / "small", segment_bytes=1000)
    assert again.bounds == LogBounds(offset, end)
    again.close()


# Holes and damage


def test_a_hole_is_read_past_only_by_who_asks_for_it(small: EmbeddedLog, tmp_path: Path) -> None:
    small.close()
    without(tmp_path / "small", 20, 21, 50)
    whole = [offset for offset in range(100) if offset not in (20, 21, 50)]
    examined = ExaminedLog(tmp_path / "small")
    assert (examined.holes(), offsets(examined)) == ([(20, 21), (50, 50)], whole)
    examined.close()
    repaired = RepairedLog(tmp_path / "small")
    assert (repaired.holes(), offsets(repaired)) == ([(20, 21), (50, 50)], whole)
    repaired.close()
    log = EmbeddedLog(tmp_path / "small")
    with pytest.raises(DamagedError, match=r"records 20 to 21 are missing"):
        offsets(log)
    with pytest.raises(DamagedError, match=r"records 50 to 50 are missing"):
        offsets(log, start=30)
    assert offsets(log, start=51) == list(range(51, 100))
    log.close()


def test_a_log_of_an_earlier_format_goes_on_in_files(small: EmbeddedLog, tmp_path: Path) -> None:
    small.close()
    of_an_earlier_format(tmp_path / "small")
    log = EmbeddedLog(tmp_path / "small", segment_bytes=1000)
    assert (log.bounds, log.size_bytes) == (LogBounds(0, 100), 10_000)
    assert log.append([b"y" * 100] * 15, now=100.0) == 100
    assert offsets(log) == list(range(115))
    assert offsets(log, start=95) == list(range(95, 115))
    log.retain(bytes_max=2000, age_max_s=FOREVER, now=100.0, floor=log.end_offset, exempt=[3, 104])
    assert (offsets(log)[:2], log.size_bytes) == ([3, 100], 1500)
    log.retain(bytes_max=0, age_max_s=0.0, now=FOREVER, floor=log.end_offset, exempt=[3, 104])
    assert offsets(log) == [3, 104, *range(110, 115)]
    log.close()
    (only,) = (tmp_path / "small").glob("*.rec")
    assert "110" in only.name
    again = EmbeddedLog(tmp_path / "small", segment_bytes=1000)
    assert (again.bounds, again.size_bytes) == (LogBounds(110, 115), 500)
    assert offsets(again) == [3, 104, *range(110, 115)]
    assert [entry.value[:1] for entry in again.read(Offset(0))] == [b"x", *[b"y"] * 6]
    again.close()


def test_a_log_that_lost_its_end_says_so(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    for _ in range(100):
        log.append([b"x" * 100])
    assert log.torn == ""
    shutil.copytree(tmp_path / "log", tmp_path / "cut")
    log.close()
    newest = max((tmp_path / "cut").glob("*.rec"))
    newest.write_bytes(newest.read_bytes()[:-1000])
    again = EmbeddedLog(tmp_path / "cut")
    assert again.torn
    assert 0 < again.end_offset < 100
    again.close()


def test_only_a_repair_whose_log_is_gone_has_to_be_finished_first(tmp_path: Path) -> None:
    path = tmp_path / "log"
    EmbeddedLog(path).close()
    repaired_path(path).mkdir()
    EmbeddedLog(path).close()
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(DamagedError, match=r"interrupted.*`reprise repair --data .*`"):
        EmbeddedLog(path)


# What a failed write leaves, and a power cut


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The databases that were made durable, in order."""
    found: list[Path] = []
    monkeypatch.setattr(Database, "sync", lambda database: found.append(database.path))
    return found


WRITES: dict[str, Callable[[EmbeddedLog], object]] = {
    "append": lambda log: log.append([b"y"]),
    "advance_to": lambda log: log.advance_to(Offset(200)),
    "complete_only_from": lambda log: log.complete_only_from(Offset(20)),
    "retain": lambda log: log.retain(bytes_max=0, age_max_s=0.0, now=FOREVER, floor=log.end_offset),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_each_write_survives_a_power_cut_from_the_next_sync_on(
    small: EmbeddedLog, synced: list[Path], write: Callable[[EmbeddedLog], object]
) -> None:
    small.sync()
    synced.clear()
    write(small)
    assert synced == []
    small.sync()
    small.sync()
    assert synced == [small.path]


def test_what_a_process_left_when_it_died_or_closed_is_synced(
    log: EmbeddedLog, synced: list[Path]
) -> None:
    log.sync()
    assert synced == [log.path], "whoever wrote it last may have died before"
    log.append([b"a"])
    log.close()
    assert synced == [log.path] * 2


def test_a_sync_that_failed_is_made_up_for_by_the_next(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch, synced: list[Path]
) -> None:
    log.append([b"a"])
    with monkeypatch.context() as patched:
        patched.setattr(Database, "sync", fails)
        with pytest.raises(DiskError):
            log.sync()
    log.sync()
    assert synced == [log.path]


def fails(*_: object) -> None:
    raise OSError("the disk failed")


def test_a_write_that_failed_but_reached_the_disk_is_found_by_reopening(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Database.append

    def appends_and_fails(database: Database, parts: Sequence[AppendedPart]) -> None:
        append(database, parts)
        fails()

    with monkeypatch.context() as patched:
        patched.setattr(Database, "append", appends_and_fails)
        with pytest.raises(DiskError):
            log.append([b"a"])
    assert log.end_offset == 0
    log.reopen()
    assert log.append([b"b"]) == 1


def test_what_could_not_be_opened_again_is_opened_by_the_next_try(log: EmbeddedLog) -> None:
    log.append([b"a"])
    log._db.close()
    log.reopen()
    assert log.append([b"b"]) == 1


def test_reopening_keeps_everything(small: EmbeddedLog) -> None:
    small.reopen()
    assert offsets(small) == list(range(100))
    assert small.append([b"y"]) == 100


@pytest.mark.parametrize("key", [b"mcomplete_from", b"s" + bytes(8), b"s?"])
def test_facts_that_are_none_are_refused_with_the_place_and_what_to_do(
    tmp_path: Path, key: bytes
) -> None:
    EmbeddedLog(tmp_path / "log").close()
    database = Database(tmp_path / "log", LOG)
    batch = new_batch()
    batch.put(key, b"seven..")
    database.write(batch)
    database.close()
    with pytest.raises(StorageError, match=r"log: .*`reprise repair --data .*`"):
        EmbeddedLog(tmp_path / "log")


def test_a_log_says_its_format_and_a_newer_one_is_refused(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.append([b"a"])
    log.close()
    database = Database(tmp_path / "log", LOG)
    assert database.get(b"mformat") == struct.pack("<Q", 2)
    batch = new_batch()
    batch.put(b"mformat", struct.pack("<Q", 3))
    database.write(batch)
    database.close()
    with pytest.raises(
        NewerVersionError, match=r"version `2` or older, got `3` at .*/log"
    ) as refused:
        EmbeddedLog(tmp_path / "log")
    Database(tmp_path / "log", LOG).close()  # it is not held by what was refused
    assert refused.value.__traceback__ is not None


@pytest.mark.parametrize("write", ["advance_to", "complete_only_from"])
@pytest.mark.parametrize("before", [0, 10])
def test_a_power_cut_keeps_no_record_alone_of_a_log_that_was_advanced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str, before: int
) -> None:
    really = Database.sync

    def keeps(database: Database) -> None:
        really(database)
        shutil.rmtree(tmp_path / "cut", ignore_errors=True)
        shutil.copytree(database.path, tmp_path / "cut")

    monkeypatch.setattr(Database, "sync", keeps)
    log = EmbeddedLog(tmp_path / "log")
    log.append([b"a"] * before)
    log.sync()
    getattr(log, write)(Offset(1000))
    assert log.append([b"b"]) == 1000
    monkeypatch.undo()
    for file in (tmp_path / "log").glob("*.rec"):  # the record came to the disk by itself
        shutil.copy(file, tmp_path / "cut")
    left = EmbeddedLog(tmp_path / "cut")
    assert left.bounds == LogBounds(1000, 1001)
    assert offsets(left, 1000) == [1000]
    left.close()
    log.close()


def test_a_file_that_a_kill_left_without_its_name_is_missed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EmbeddedLog(tmp_path / "log", segment_bytes=10)
    log.append([b"a" * 10])
    with monkeypatch.context() as patched:
        patched.setattr(Database, "_name_files", fails)
        with pytest.raises(DiskError):
            log.append([b"b"])
    shutil.copytree(tmp_path / "log", tmp_path / "killed")
    log.close()
    left = EmbeddedLog(tmp_path / "killed", segment_bytes=10)
    assert left.append([b"c"]) == 2
    left.close()
    max((tmp_path / "killed").glob("*.rec")).unlink()
    with pytest.raises(DamagedError, match=r"records-0{19}1\.rec is gone"):
        EmbeddedLog(tmp_path / "killed")


@pytest.mark.parametrize("magic", [b"RPRF", b"RPF2"])
def test_a_file_of_a_newer_version_is_no_damage_and_is_left_as_it_is(
    log: EmbeddedLog, tmp_path: Path, magic: bytes
) -> None:
    log.append([b"a"] * 20)
    log.close()
    (file,) = (tmp_path / "log").glob("*.rec")
    content = file.read_bytes()
    lengths, mark = content[8:16], content[24:49]
    guarded = struct.pack("<I", 2) + lengths
    head = b"RPRH" + guarded + struct.pack("<Q", xxh3_64_intdigest(guarded + mark)) + mark
    newer = head + content[49:].replace(b"RPRF", magic)
    file.write_bytes(newer)
    with pytest.raises(NewerVersionError, match=r"version `1` or older, got `2` at .*\.rec"):
        EmbeddedLog(tmp_path / "log")
    assert file.read_bytes() == newer


def test_a_reader_looks_again_where_the_writer_opens_its_database_again(
    log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append([b"a"])
    really, tried = Database.read_only, 0

    def stale(path: Path, preset: Preset) -> Database:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise DamagedError(action="open", path=str(path), detail="records-1 is gone")
        return really(path, preset)

    monkeypatch.setattr(Database, "read_only", stale)
    reader = ReadOnlyLog(tmp_path / "log")
    assert (tried, offsets(reader)) == (2, [0])
    reader.close()
