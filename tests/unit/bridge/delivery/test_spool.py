import itertools
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bridge.delivery.spool import Spool, SpooledRecord
from schemas.errors import DataDirectoryInUseError, NewerVersionError, StorageError
from schemas.identities import PublisherKey
from schemas.records import NEWEST_VERSION
from storage.rocksdb import SPOOL, Database, new_batch
from tests.small_disks import SmallDisk, mounted
from tests.unit.bridge.messages import registration

ONE = registration().publisher
TWO = registration(instance_id="w-2").publisher


def values(spool: Spool, publisher: PublisherKey) -> list[bytes]:
    return [record.encoded for record in spool.read(publisher)]


def test_records_are_read_in_the_order_of_their_publisher(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(ONE, [b"a", b"b"])
    spool.append(TWO, [b"x"])
    spool.append(ONE, [b"c"])
    assert values(spool, ONE) == [b"a", b"b", b"c"]
    assert values(spool, TWO) == [b"x"]
    assert (spool.records, spool.size_bytes) == (4, 4)
    assert set(spool.publishers()) == {ONE, TWO}
    spool.close()


def test_deleted_records_are_gone_and_an_empty_lane_with_them(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(ONE, [b"a", b"b", b"c"])
    first, second, third = spool.read(ONE)
    spool.delete(ONE, [first])
    assert values(spool, ONE) == [b"b", b"c"]
    spool.delete(ONE, [first, SpooledRecord(99, b"never")])
    assert (spool.records, spool.size_bytes) == (2, 2)
    spool.delete(ONE, [second, third])
    assert ONE not in spool
    assert (spool.records, spool.size_bytes) == (0, 0)
    spool.append(ONE, [b"d"])
    assert values(spool, ONE) == [b"d"]
    spool.close()


def test_a_spool_survives_its_process(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(ONE, [b"a", b"b"])
    spool.append(TWO, [b"xyz"])
    spool.delete(ONE, list(spool.read(ONE))[:1])
    spool.close()
    again = Spool(tmp_path)
    assert values(again, ONE) == [b"b"]
    assert (again.records, again.size_bytes) == (2, 4)
    again.append(ONE, [b"c"])
    assert values(again, ONE) == [b"b", b"c"]
    assert values(again, TWO) == [b"xyz"]
    again.close()


def test_the_bound_counts_the_bytes_of_records(tmp_path: Path) -> None:
    spool = Spool(tmp_path, bytes_max=10)
    assert spool.fits(10)
    spool.append(ONE, [b"123456"])
    assert spool.fits(4)
    assert not spool.fits(5)
    spool.close()


def test_reading_stops_at_a_size(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(ONE, [b"1234"] * 10)
    assert len(list(spool.read(ONE, bytes_max=9))) == 3
    spool.close()


def test_discarding_takes_all_of_one_publisher_and_nothing_of_others(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(ONE, [b"a", b"b", b"c"])
    spool.append(TWO, [b"x"])
    spool.discard(ONE)
    assert values(spool, ONE) == []
    assert values(spool, TWO) == [b"x"]
    spool.discard(ONE)
    assert spool.records == 1
    spool.close()


def test_unreadable_records_are_left_out_of_what_is_decoded(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(ONE, [b"\xc1"])
    assert list(spool.decoded(ONE)) == []
    spool.close()


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(DataDirectoryInUseError):
        Spool(tmp_path)
    spool.close()


def test_deleting_around_a_record_leaves_it_to_be_read(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(ONE, [b"a", b"b", b"c"])
    first, _, third = spool.read(ONE)
    spool.delete(ONE, [first, third])
    assert values(spool, ONE) == [b"b"]
    spool.delete(ONE, list(spool.read(ONE)))
    assert ONE not in spool
    spool.close()


def test_a_record_that_is_replaced_keeps_its_place_and_its_bytes_are_counted(
    tmp_path: Path,
) -> None:
    spool = Spool(tmp_path)
    numbers = spool.append(ONE, [b"a", b"b", b"c"])
    spool.replace(ONE, [(numbers[0], b"long"), (numbers[1], None), (99, b"never")])
    assert values(spool, ONE) == [b"long", b"c"]
    assert (spool.records, spool.size_bytes) == (2, 5)
    spool.close()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"l\0\0\0\7", b"\x92\x95\xa1\xff"),  # a lane of nobody
        (b"l\0", b""),
        (b"r\0\0\0\7" + bytes(8), b"a record of no lane"),
        (b"r\0", b""),
        (b"z of a newer version", b""),
    ],
)
def test_an_entry_that_belongs_to_no_lane_keeps_no_spool_from_opening(
    tmp_path: Path, key: bytes, value: bytes
) -> None:
    spool = Spool(tmp_path)
    spool.append(ONE, [b"a"])
    batch = new_batch()
    batch.put(key, value)
    spool._db.write(batch)
    spool.close()
    again = Spool(tmp_path)
    assert values(again, ONE) == [b"a"]
    assert (again.records, again.size_bytes, again.unusable_entries) == (1, 1, 1)
    assert (again._db.get(key) is None) == (key[:1] != b"z")
    again.append(TWO, [b"x"])
    again.close()


def test_a_lane_without_records_is_gone_at_the_next_opening(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(ONE, [b"a"])
    (record,) = spool.read(ONE)
    batch = new_batch()
    batch.delete(struct.pack(">cIQ", b"r", 0, record.number))
    spool._db.write(batch)
    spool.close()
    again = Spool(tmp_path)
    assert ONE not in again
    again.close()


def copied(tmp_path: Path) -> Path:
    """The files of a spool in use, with 200 records, some of them in a data file."""
    spool = Spool(tmp_path / "live")
    for number in range(200):
        spool.append((ONE, TWO)[number % 2], [bytes([number]) * 700])
        if number == 100:
            spool._db.flush()
    shutil.copytree(tmp_path / "live", tmp_path / "spool")
    spool.close()
    return tmp_path / "spool"


def first_bytes(spool: Spool, publisher: PublisherKey) -> list[int]:
    return [value[0] for value in values(spool, publisher)]


@pytest.mark.parametrize("zeros", [False, True])
def test_a_torn_end_costs_the_last_records_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, zeros: bool
) -> None:
    path = copied(tmp_path)
    log = max(path.glob("*.log"))
    log.write_bytes(log.read_bytes()[:-500] + bytes(500 * zeros))
    spool = Spool(path)
    assert first_bytes(spool, ONE) == list(range(0, 200, 2))
    assert first_bytes(spool, TWO) == list(range(1, 199, 2))
    (line,) = caplog.messages
    assert "199 records of 2 publishers are left" in line
    assert spool.damage
    spool.close()
    again = Spool(path)
    assert (again.damage, again.records) == ("", 199)
    again.close()


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.sst", "*.log"])
def test_of_a_damaged_spool_the_rest_is_kept_and_the_files_stay(
    tmp_path: Path, pattern: str
) -> None:
    path = copied(tmp_path)
    damaged = max(path.glob(pattern))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 4] ^= 16
    damaged.write_bytes(content)
    spool = Spool(path)
    for publisher, first in ((ONE, 0), (TWO, 1)):
        found = first_bytes(spool, publisher)
        assert found == sorted(found)
        assert set(found) <= set(range(first, 200, 2))
    assert spool.records >= 90
    assert str(tmp_path / "spool.damaged-1") in spool.damage
    assert (tmp_path / "spool.damaged-1" / damaged.name).exists()
    spool.append(ONE, [b"next"])
    assert values(spool, ONE)[-1] == b"next"
    spool.close()
    assert not (tmp_path / "spool.salvaged").exists()


def test_a_spool_of_which_nothing_can_be_read_begins_empty(tmp_path: Path) -> None:
    path = copied(tmp_path)
    for file in path.iterdir():
        file.write_bytes(b"junk")
    spool = Spool(path)
    assert (spool.records, bool(spool.damage)) == (0, True)
    spool.close()


def test_a_start_that_died_on_the_way_to_a_new_spool_goes_on(tmp_path: Path) -> None:
    copied(tmp_path).rename(tmp_path / "spool.salvaged")
    spool = Spool(tmp_path / "spool")
    assert spool.records == 200
    spool.close()


def entries(path: Path) -> dict[bytes, bytes]:
    database = Database(path, SPOOL)
    try:
        return dict(database.scan(b"", b""))
    finally:
        database.close()


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        (b"f", struct.pack("<I", 2), "a spool of version `1` or older, got `2`"),
        (
            struct.pack(">cIQ", b"r", 0, 9),
            msgspec.msgpack.encode({"kind": "novelty", "version": NEWEST_VERSION + 1}),
            f"spooled records of version `{NEWEST_VERSION}` or older, got `{NEWEST_VERSION + 1}`",
        ),
    ],
)
def test_what_a_newer_version_has_spooled_is_left_to_it(
    tmp_path: Path, key: bytes, value: bytes, what: str
) -> None:
    spool = Spool(tmp_path)
    spool.append(ONE, [b"a"])
    batch = new_batch()
    batch.put(key, value)
    batch.put(b"r without a lane", b"would be deleted")
    spool._db.write(batch)
    spool.close()
    before = entries(tmp_path)
    with pytest.raises(NewerVersionError, match=f"{what} at {tmp_path}: a newer Reprise wrote it"):
        Spool(tmp_path)
    assert entries(tmp_path) == before


# A disk that fills up


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path / "small", "24m") as disk:
        yield disk


def fill(spool: Spool, taken: list[bytes]) -> None:
    """Appends until it takes no more."""
    for number in itertools.count():
        value = b"%06d" % number + bytes(20_000)
        spool.append(ONE, [value])
        taken.append(value)


def test_a_full_disk_costs_what_had_no_room_and_the_spool_goes_on_with_room(
    disk: SmallDisk,
) -> None:
    now = 0.0
    spool = Spool(disk.path / "spool", monotonic=lambda: now)
    spool.append(TWO, [b"x"])
    disk.fill(but_bytes=2_000_000)
    taken: list[bytes] = []
    with pytest.raises(StorageError, match="no space left"):
        fill(spool, taken)
    assert values(spool, ONE) == taken, "what was taken is there, and can be sent"
    for _ in range(3):
        now += 10.0
        with pytest.raises(StorageError) as raised:
            spool.append(ONE, [b"lost"])
        assert "no space left" in str(raised.value)
        assert "_rdict" not in str(raised.value)
    disk.empty()
    with pytest.raises(StorageError):
        spool.append(ONE, [b"too early"])  # opened again now and then, not with each record
    now += 10.0
    assert spool.append(ONE, [b"y"]) == [len(taken) + 1]
    assert values(spool, ONE) == [*taken, b"y"]
    assert values(spool, TWO) == [b"x"]
    assert spool.records == len(taken) + 2
    spool.delete(ONE, list(spool.read(ONE)))
    assert (spool.records, spool.size_bytes, spool.publishers()) == (1, 1, [TWO])
    spool.close()
    again = Spool(disk.path / "spool")
    assert (again.records, values(again, TWO)) == (1, [b"x"])
    again.close()
