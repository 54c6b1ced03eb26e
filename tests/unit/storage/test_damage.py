"""Databases whose files were damaged while nobody used them."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import DamagedError, DataDirectoryInUseError, DiskError, DiskFullError
from storage.faults import opening_error
from storage.rocksdb import LOG, SPOOL, TABLE, Database, Preset, disk_errors, new_batch
from storage.salvage import free_name, move_aside, salvage

COUNT = 400
Change = Callable[[bytes], bytes]


def key(number: int) -> bytes:
    return b"r" + number.to_bytes(8, "big")


def numbers(database: Database) -> list[int]:
    return [int.from_bytes(found[1:], "big") for found, _ in database.scan(b"", b"")]


def write(database: Database, first: int, count: int) -> None:
    values = random.Random(first)
    for number in range(first, first + count):
        batch = new_batch()
        batch.put(key(number), values.randbytes(values.randrange(100, 900)))
        database.write(batch)


@pytest.fixture
def copy(tmp_path: Path, preset: Preset) -> Path:
    """Of a database in use: three quarters of the entries in data files, the rest not yet."""
    database = Database(tmp_path / "live", preset)
    for quarter in range(4):
        write(database, quarter * COUNT // 4, COUNT // 4)
        if quarter < 3:
            database.flush()
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    database.close()
    return tmp_path / "copy"


def newest(directory: Path, pattern: str) -> Path:
    return max(directory.glob(pattern))


def change(file: Path, by: Change) -> None:
    file.write_bytes(by(file.read_bytes()))


def cut(size: int) -> Change:
    return lambda content: content[:-size]


def zeroed(size: int) -> Change:
    return lambda content: content[:-size] + bytes(size)


def flipped(place: int) -> Change:
    return lambda content: content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :]


both = pytest.mark.parametrize("preset", [LOG, SPOOL], ids=lambda preset: preset.name)
each = pytest.mark.parametrize("preset", [LOG, SPOOL, TABLE], ids=lambda preset: preset.name)


@both
@pytest.mark.parametrize("size", [1, 108, 500, 5000, 20_000])
@pytest.mark.parametrize("how", [cut, zeroed])
def test_a_torn_end_costs_the_end_and_is_told(
    copy: Path, preset: Preset, how: Callable[[int], Change], size: int
) -> None:
    change(newest(copy, "*.log"), how(size))
    database = Database(copy, preset)
    found = numbers(database)
    assert COUNT * 3 // 4 <= len(found) < COUNT
    assert found == list(range(len(found))), "what is there is whole up to its end"
    assert database.torn
    database.close()
    again = Database(copy, preset)
    assert (again.torn, numbers(again)) == ("", found)
    again.close()


@both
@pytest.mark.parametrize("size", [10, 40_000, 10**6])
def test_zeros_behind_the_last_record_or_in_place_of_all_are_a_torn_end(
    copy: Path, preset: Preset, size: int
) -> None:
    change(
        newest(copy, "*.log"),
        lambda content: bytes(len(content)) if size == 10**6 else content + bytes(size),
    )
    database = Database(copy, preset)
    assert "ends in zeros" in database.torn
    assert len(numbers(database)) == (COUNT * 3 // 4 if size == 10**6 else COUNT)
    database.close()


@each
def test_a_whole_database_is_not_torn(copy: Path, preset: Preset) -> None:
    database = Database(copy, preset)
    assert (database.torn, len(numbers(database))) == ("", COUNT)
    database.close()


@both
@pytest.mark.parametrize(
    ("pattern", "by", "blamed"),
    [
        ("*.log", flipped(20_000), r"\d+\.log is damaged"),
        ("*.log", lambda content: content[:9000] + bytes(23_768) + content[32_768:], r"\d+\.log"),
        ("*.sst", lambda content: content[:-50], r"\d+\.sst is damaged"),
        ("MANIFEST-*", flipped(200), r"MANIFEST-\d+ is damaged"),
        ("MANIFEST-*", lambda content: content[: len(content) // 2], "MANIFEST-"),
        ("CURRENT", flipped(3), "CURRENT"),
        ("CURRENT", lambda content: b"MANIFEST-999999\n", "MANIFEST-999999"),
    ],
)
def test_damage_elsewhere_is_refused_and_names_the_file_and_salvage_keeps_the_rest(
    tmp_path: Path, copy: Path, preset: Preset, pattern: str, by: Change, blamed: str
) -> None:
    change(newest(copy, pattern), by)
    before = {file.name: file.read_bytes() for file in copy.iterdir()}
    with pytest.raises(DamagedError, match=blamed):
        Database(copy, preset)
    salvage(copy, preset, tmp_path / "new")
    database = Database(tmp_path / "new", preset)
    assert set(numbers(database)) <= set(range(COUNT))
    assert len(numbers(database)) >= COUNT // 2
    database.close()
    unchanged = {name: content for name, content in before.items() if name.endswith("st")}
    assert {name: (copy / name).read_bytes() for name in unchanged} == unchanged


@pytest.mark.parametrize("preset", [LOG])
@pytest.mark.parametrize("seed", range(5))
def test_blocks_that_cannot_be_read_cost_no_more_than_themselves(
    tmp_path: Path, copy: Path, preset: Preset, seed: int
) -> None:
    rng = random.Random(seed)
    for file in sorted(copy.glob("*.sst"))[: 1 + seed % 3]:
        change(file, flipped(rng.randrange(file.stat().st_size * 9 // 10)))
    found = salvage(copy, preset, tmp_path / "new")
    assert 1 <= found.stretches <= 3, f"seed {seed}"
    assert COUNT - 20 * found.stretches < found.entries < COUNT, f"seed {seed}"


@pytest.mark.parametrize("preset", [LOG])
def test_a_data_file_that_cannot_be_read_at_all_costs_itself_alone(
    tmp_path: Path, copy: Path, preset: Preset
) -> None:
    """Its index is damaged, which stops a reader of all data files at every key."""
    file = min(copy.glob("*.sst"))
    change(file, flipped(file.stat().st_size - 1700))
    with pytest.raises(DamagedError), disk_errors("read", copy):
        numbers(Database.past_damage(copy, preset))
    assert salvage(copy, preset, tmp_path / "new").entries >= COUNT * 3 // 4


@pytest.mark.parametrize("preset", [TABLE])
@pytest.mark.parametrize("by", [cut(300), zeroed(300), flipped(20_000), flipped(3)])
def test_what_is_made_again_opens_as_it_was_before_the_damage(copy: Path, by: Change) -> None:
    change(newest(copy, "*.log"), by)
    database = Database(copy, TABLE)
    found = numbers(database)
    assert found == list(range(len(found)))
    database.close()


@each
def test_what_compaction_has_found_damaged_is_closed_moved_and_reopened_all_the_same(
    copy: Path, preset: Preset
) -> None:
    for file in copy.glob("*.sst"):
        change(file, flipped(file.stat().st_size // 3))
    database = Database(copy, preset)

    def overlap() -> None:
        write(database, 0, 1)
        write(database, COUNT - 1, 1)  # so that all data files overlap
        database._rdict.compact_range(None, None)
        write(database, COUNT, 1)

    def compact() -> None:
        # RocksDB may compact by itself as soon as it is open, and refuse the first write.
        with pytest.raises(Exception, match="Corruption"):
            overlap()

    compact()
    with pytest.raises(DamagedError, match=r"Cannot close .*\.sst is damaged"):
        database.close()
    database.reopen()
    compact()
    database.reopen()
    compact()
    database.set_aside(copy.with_name("aside"))
    assert numbers(database) == []
    database.close()


def test_nothing_is_moved_or_salvaged_beneath_whoever_uses_it(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from storage.rocksdb import *\n"
        "opened = Database(Path(sys.argv[1]), LOG); print(flush=True); sys.stdin.read()"
    )
    path = tmp_path / "log"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        try:
            with pytest.raises(DataDirectoryInUseError):
                move_aside(path, LOG.name)
            with pytest.raises(DataDirectoryInUseError):
                salvage(path, LOG, tmp_path / "new")
        finally:
            owner.kill()
    assert move_aside(path, LOG.name) == tmp_path / "log.damaged-1"
    path.mkdir()
    assert free_name(path) == tmp_path / "log.damaged-2"


def test_a_write_on_a_full_disk_says_what_to_free_where(tmp_path: Path) -> None:
    words = "IO error: No space left on device: While appending to file: 000004.log"
    said = r"Cannot append to the log at .*: no space left .* are free\). Free some there"
    with (
        pytest.raises(DiskError, match=said),
        disk_errors("append to the log", tmp_path / "gone" / "log"),
    ):
        raise RuntimeError(words)


def test_a_full_disk_says_how_much_to_free_where(tmp_path: Path) -> None:
    (tmp_path / "000004.log").write_bytes(bytes(2 * 1024 * 1024))
    error = opening_error("the log", tmp_path, OSError(28, "No space left on device"))
    assert isinstance(error, DiskFullError)
    for said in (f"open the log at {tmp_path}", "at least 6.0 MiB", "MiB are free", "--data"):
        assert said in str(error)
