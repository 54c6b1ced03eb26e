from pathlib import Path

import pytest

from schemas.errors import DataDirectoryInUseError, StorageError
from schemas.identities import Offset
from storage.rocksdb import LOG, Database, new_batch
from streams.log.embedded import EmbeddedLog, ReadOnlyLog


def offsets(log: EmbeddedLog, start: int = 0) -> list[int]:
    return [entry.offset for entry in log.read(Offset(start))]


def test_offsets_rise_by_one_and_records_come_back_in_order(log: EmbeddedLog) -> None:
    assert log.append([b"a", b"b"]) == 0
    assert log.append([b"c"]) == 2
    assert [entry.value for entry in log.read(Offset(1))] == [b"b", b"c"]
    assert log.end_offset == 3


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


def test_retention_never_drops_what_a_table_still_needs(small: EmbeddedLog) -> None:
    small.retain(bytes_max=0, age_max_s=0.0, now=FOREVER, floor=Offset(35))
    assert offsets(small)[0] == 30


def test_the_newest_segment_stays_whatever_the_bounds(small: EmbeddedLog) -> None:
    small.retain(bytes_max=0, age_max_s=0.0, now=FOREVER, floor=small.end_offset)
    assert offsets(small) == list(range(90, 100))


def test_exempt_records_outlive_retention_and_a_restart(small: EmbeddedLog, tmp_path: Path) -> None:
    small.retain(
        bytes_max=0, age_max_s=0.0, now=FOREVER, floor=small.end_offset, exempt=[7, 42, 95]
    )
    small.close()
    again = EmbeddedLog(tmp_path / "small", segment_bytes=1000)
    assert offsets(again) == [7, 42, *range(90, 100)]
    assert again.complete_from == 90
    assert again.end_offset == 100
    again.close()


def test_an_advanced_log_counts_as_complete_only_from_there(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.append([b"a"])
    log.advance_to(Offset(50))
    log.close()
    again = EmbeddedLog(tmp_path / "log")
    assert (again.end_offset, again.complete_from) == (50, 50)
    assert again.append([b"b"]) == 50
    with pytest.raises(ValueError, match="at least `51`"):
        again.advance_to(Offset(3))
    again.close()


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
