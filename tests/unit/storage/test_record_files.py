"""Files of records: what a kill, a power cut, a full disk and damage leave of them."""

import os
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_64

from storage import record_files
from storage.record_files import (
    RECORD_INDEX_BYTES,
    AppendedPart,
    Entry,
    RecordFiles,
    name_of,
)

MARK = Entry(b"s1", b"mark")


def key(number: int) -> bytes:
    return b"r" + number.to_bytes(8, "big")


def value(number: int) -> bytes:
    return b"%d," % number * (number % 7)


def opened(path: Path, **how: Any) -> RecordFiles:
    return RecordFiles(path, b"r", **({"writes": True} | how))


@pytest.fixture
def files(tmp_path: Path) -> Iterator[RecordFiles]:
    files = opened(tmp_path)
    yield files
    files.close()


def append(files: RecordFiles, first: int, count: int, *, begins: bool = False) -> None:
    values = [value(number) for number in range(first, first + count)]
    files.append([AppendedPart(first, values, MARK if begins else None)])


def numbers(files: RecordFiles, start: int = 0) -> list[int]:
    found = [
        (int.from_bytes(entry.key[1:], "big"), entry.value) for entry in files.scan(key(start))
    ]
    assert all(content == value(number) for number, content in found)
    return [number for number, _ in found]


def left(path: Path, to: Path, change: Any = lambda content: content) -> Path:
    """A copy in which the last file is changed."""
    shutil.copytree(path, to)
    last = max(to.glob("*.rec"))
    last.write_bytes(change(last.read_bytes()))
    return to


def test_records_are_read_from_anywhere_and_from_each_opening(
    files: RecordFiles, tmp_path: Path
) -> None:
    rng = random.Random(1)
    end = 0
    while end < 3000:
        count = rng.randint(1, 40)
        append(files, end, count, begins=end == 0 or rng.random() < 0.05)
        end += count
    assert len(list(tmp_path.glob("*.rec"))) > 3
    for start in [0, end - 1, end, *(rng.randrange(end) for _ in range(50))]:
        assert numbers(files, start) == list(range(start, end))
    again = opened(tmp_path)
    reader = opened(tmp_path, writes=False)
    for one in (again, reader):
        assert one.last_key == key(end - 1)
        assert numbers(one, end - 100) == list(range(end - 100, end))
        assert one.torn == ""
        assert one.marks()[0] == MARK
        one.close()


def test_a_reader_keeps_what_is_dropped_and_finds_what_is_appended(
    files: RecordFiles, tmp_path: Path
) -> None:
    for number in range(5):
        append(files, number, 1, begins=True)
    reader = opened(tmp_path, writes=False)
    files.drop_before(3)
    assert numbers(files) == [3, 4]
    files.sync(dropped=files.dropped)
    assert min(tmp_path.glob("*.rec")).name == name_of(3)
    append(files, 5, 2)
    assert numbers(reader) == list(range(5))
    reader.refresh()
    append(files, 7, 1, begins=True)
    assert numbers(reader) == [3, 4, 5, 6]
    reader.refresh()
    assert numbers(reader) == [3, 4, 5, 6, 7]
    reader.close()


def test_the_last_file_is_never_dropped(files: RecordFiles) -> None:
    append(files, 0, 10, begins=True)
    files.drop_before(10)
    assert (files.dropped, numbers(files)) == (0, list(range(10)))


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_what_a_kill_cuts_off_is_the_torn_end(files: RecordFiles, tmp_path: Path, cut: int) -> None:
    for number in range(100):
        append(files, number, 1, begins=number == 0)
    files.sync()
    torn = opened(left(tmp_path, tmp_path / "left", lambda content: content[:-cut]))
    assert "ends within a record" in torn.torn
    (end,) = {int.from_bytes((torn.last_key or b"")[1:], "big") + 1}
    assert 90 <= end < 100
    append(torn, end, 3)
    assert numbers(torn) == list(range(end + 3))
    torn.sync()
    torn.close()
    again = opened(tmp_path / "left")
    assert (again.torn, numbers(again)) == ("", list(range(end + 3)))
    again.close()


def zeros_in_the_middle(content: bytes) -> bytes:
    """As where a power cut kept what came later."""
    middle = len(content) // 2
    return content[:middle] + bytes(100) + content[middle + 100 :]


def test_what_a_power_cut_lost_between_is_the_torn_end_unless_it_was_durable(
    files: RecordFiles, tmp_path: Path
) -> None:
    for number in range(100):
        append(files, number, 1, begins=number == 0)
    left(tmp_path, tmp_path / "cut", zeros_in_the_middle)
    torn = opened(tmp_path / "cut")
    assert "ends within a record" in torn.torn
    assert numbers(torn) == list(range(len(numbers(torn))))
    assert 10 < len(numbers(torn)) < 90
    torn.close()
    files.sync()
    append(files, 100, 1)  # says that what is before it was durable
    left(tmp_path, tmp_path / "damaged", zeros_in_the_middle)
    with pytest.raises(OSError, match=rf"Corruption: {name_of(0)}: expected a frame"):
        opened(tmp_path / "damaged")
    past = opened(tmp_path / "damaged", writes=False, skips_damage=True)
    found = numbers(past)
    assert found[-1] == 100
    assert 90 < len(found) < 101
    past.close()


def test_what_was_closed_was_durable_to_its_end(tmp_path: Path) -> None:
    files = opened(tmp_path)
    append(files, 0, 10, begins=True)
    files.end()
    size = (tmp_path / name_of(0)).stat().st_size
    files.sync()
    files.end()
    files.end()
    files.close()
    assert (tmp_path / name_of(0)).stat().st_size == size + 36
    left(tmp_path, tmp_path / "damaged", lambda content: content[:-50] + b"?" + content[-49:])
    with pytest.raises(OSError, match="Corruption"):
        opened(tmp_path / "damaged")
    again = opened(tmp_path)
    assert (again.torn, again.last_key) == ("", key(9))
    append(again, 10, 1)
    assert numbers(again) == list(range(11))
    again.close()


def test_a_file_that_was_not_begun_whole_is_none(files: RecordFiles, tmp_path: Path) -> None:
    append(files, 0, 3, begins=True)
    for content in (b"", b"RPRH\1"):
        (tmp_path / name_of(3)).write_bytes(content)
        again = opened(tmp_path)
        assert (again.torn, numbers(again)) == ("", [0, 1, 2])
        assert not (tmp_path / name_of(3)).exists()
        again.close()


@pytest.mark.parametrize("at", [2, 6, 20, 28])
def test_a_damaged_head_is_damage_and_records_are_read_past_it(
    files: RecordFiles, tmp_path: Path, at: int
) -> None:
    append(files, 0, 3, begins=True)

    def flipped(content: bytes) -> bytes:
        return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]

    left(tmp_path, tmp_path / "damaged", flipped)
    with pytest.raises(OSError, match=f"Corruption: {name_of(0)}"):
        opened(tmp_path / "damaged")
    past = opened(tmp_path / "damaged", writes=False, skips_damage=True)
    assert (numbers(past), past.marks()) == ([0, 1, 2], [])
    past.close()


def test_every_flipped_bit_of_what_was_durable_is_noticed(
    files: RecordFiles, tmp_path: Path
) -> None:
    for number in range(4):
        append(files, number, 1, begins=number == 0)
    files.sync()
    files.end()
    whole = (tmp_path / name_of(0)).read_bytes()
    size = len(whole) - 36  # of the frame that says so
    for place in range(size):
        (tmp_path / "one").mkdir()
        content = whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        (tmp_path / "one" / name_of(0)).write_bytes(content)
        with pytest.raises(OSError, match="Corruption"):
            opened(tmp_path / "one")
        shutil.rmtree(tmp_path / "one")


@pytest.mark.parametrize("begins", [False, True], ids=["in a file", "with a new file"])
@pytest.mark.parametrize("mends", [True, False], ids=["and can be undone", "and cannot"])
def test_a_write_that_fails_half_way_leaves_nothing(
    files: RecordFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    begins: bool,
    mends: bool,
) -> None:
    append(files, 0, 10, begins=True)
    really = os.pwritev
    writes = 0

    def half(descriptor: int, parts: Any, place: int) -> int:
        nonlocal writes
        writes += 1
        if writes < 2 + begins:
            return really(descriptor, parts, place)
        os.pwrite(descriptor, b"".join(parts)[:7], place)
        raise OSError("No space left on device")

    def fails(*_: object) -> None:
        raise OSError("the disk failed")

    parts = [
        AppendedPart(10, [value(10)]),
        AppendedPart(11, [value(11)], MARK if begins else None),
    ]
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", half)
        if not mends:
            patched.setattr(os, "ftruncate", fails)
        with pytest.raises(OSError, match="No space"):
            files.append(parts)
        if not mends:
            with pytest.raises(OSError, match="Writer has previous error"):
                files.append(parts)
    if not mends:
        files.reopen()
    assert numbers(files) == list(range(10))
    assert [path.name for path in tmp_path.glob("*.rec")] == [name_of(0)]
    files.append(parts)
    assert numbers(files) == list(range(12))
    again = opened(tmp_path)
    assert (again.torn, numbers(again)) == ("", list(range(12)))
    again.close()


def test_a_short_write_goes_on(
    files: RecordFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", lambda to, parts, at: os.pwrite(to, parts[0][:5], at))
    append(files, 0, 10, begins=True)
    append(files, 10, 10)
    assert numbers(files) == list(range(20))


def test_one_file_is_durable_before_the_next_one_begins(
    files: RecordFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    really = os.fsync

    def makes(descriptor: int) -> None:
        synced.append("made")
        really(descriptor)

    def keeps(descriptor: int) -> None:
        synced.append("the one before")

    monkeypatch.setattr(record_files, "_sync_data", keeps)
    monkeypatch.setattr(os, "fsync", makes)
    append(files, 0, 1, begins=True)
    append(files, 1, 1)
    assert synced == ["made", "made"], "the file, and its name"
    append(files, 2, 1, begins=True)
    assert synced[2:] == ["the one before", "made", "made"]


def test_what_was_undone_is_not_looked_for(
    files: RecordFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(files, 0, 10, begins=True)
    large = [bytes(2 * RECORD_INDEX_BYTES)]

    really, writes = os.pwritev, 0

    def some(descriptor: int, parts: Any, place: int) -> int:
        nonlocal writes
        writes += 1
        if writes == 3:
            raise OSError("the disk failed")
        return really(descriptor, parts, place)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", some)
        with pytest.raises(OSError, match="the disk failed"):
            files.append([AppendedPart(number, large) for number in (10, 11, 12)])
    for number in range(10, 3000):
        append(files, number, 1)
    assert numbers(files, 11) == list(range(11, 3000))


def test_a_last_file_with_a_damaged_head_is_never_deleted_where_it_may_have_records(
    files: RecordFiles, tmp_path: Path
) -> None:
    append(files, 0, 3, begins=True)
    last = tmp_path / name_of(3)
    for content in (b"RPRH" + bytes(56), bytes(1000)):
        last.write_bytes(content)
        with pytest.raises(OSError, match=f"Corruption: {name_of(3)}"):
            opened(tmp_path)
        assert last.read_bytes() == content
    last.write_bytes(b"RPRH" + bytes(55))  # a head, and less than a frame
    again = opened(tmp_path)
    assert (numbers(again), last.exists()) == ([0, 1, 2], False)
    again.close()


def test_a_file_that_cannot_be_opened_now_is_not_taken_for_one_that_was_not_begun(
    files: RecordFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(files, 0, 1, begins=True)
    files._begin(1, MARK)
    really = os.open

    def refuses(path: Any, *rest: Any) -> int:
        if Path(path).name == name_of(1):
            raise OSError("Too many open files")
        return really(path, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuses)
        with pytest.raises(OSError, match="Too many"):
            opened(tmp_path)
    assert (tmp_path / name_of(1)).exists()


@pytest.mark.parametrize("number", [20, 50])
def test_a_file_that_stands_twice_or_in_anothers_place_is_damage(
    files: RecordFiles, tmp_path: Path, number: int
) -> None:
    append(files, 0, 10, begins=True)
    append(files, 10, 10, begins=True)
    shutil.copy(tmp_path / name_of(0), tmp_path / name_of(number))
    with pytest.raises(OSError, match=f"Corruption: {name_of(number)}: expected record {number}"):
        opened(tmp_path)
    (tmp_path / name_of(number)).unlink()
    shutil.copy(tmp_path / name_of(10), tmp_path / name_of(0))
    swapped = opened(tmp_path)
    with pytest.raises(OSError, match=f"Corruption: {name_of(0)}: expected record 0 at"):
        numbers(swapped)
    assert numbers(swapped, 10) == list(range(10, 20))
    swapped.close()


def test_frames_that_stand_twice_are_damage(files: RecordFiles, tmp_path: Path) -> None:
    append(files, 0, 10, begins=True)
    begin = (tmp_path / name_of(0)).read_bytes().index(b"RPRF")
    twice = left(tmp_path, tmp_path / "twice", lambda content: content + content[begin:])
    with pytest.raises(OSError, match=f"Corruption: {name_of(0)}: expected record 10 at"):
        opened(twice)


def test_what_others_have_put_beside_the_files_is_not_read(
    files: RecordFiles, tmp_path: Path
) -> None:
    append(files, 0, 10, begins=True)
    shutil.copy(tmp_path / name_of(0), tmp_path / f"{Path(name_of(0)).stem} (copy).rec")
    (tmp_path / "records-old.rec").write_bytes(b"notes")
    again = opened(tmp_path)
    assert (again.torn, numbers(again)) == ("", list(range(10)))
    again.close()


def frame(first: int, durable_to: int, body: bytes) -> bytes:
    guarded = struct.pack("<IQQ", len(body), first, durable_to)
    return b"RPRF" + guarded + xxh3_64(guarded + body).digest()[::-1] + body


@pytest.mark.parametrize(
    ("first", "durable_to"), [(11, 2**63), (1, 100)], ids=["not written yet", "of another file"]
)
def test_a_torn_record_that_has_a_frame_within_itself_is_a_torn_end(
    files: RecordFiles, tmp_path: Path, first: int, durable_to: int
) -> None:
    append(files, 10, 1, begins=True)
    body = struct.pack("<II", 1, 4) + b"fake"
    files.append([AppendedPart(11, [frame(first, durable_to, body) + bytes(100)])])
    torn = opened(left(tmp_path, tmp_path / "left", lambda content: content[:-1]))
    assert ("ends within a record" in torn.torn, numbers(torn)) == (True, [10])
    torn.close()


def test_a_torn_record_that_has_heads_of_frames_is_looked_through_once(
    files: RecordFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(files, 0, 1, begins=True)
    heads = b"".join(b"RPRF" + struct.pack("<IQQQ", 100, 1, 0, 0) for _ in range(1000))
    files.append([AppendedPart(1, [heads])])
    left(tmp_path, tmp_path / "left", lambda content: content[:-1])
    really, read = os.pread, 0

    def counts(descriptor: int, size: int, place: int) -> bytes:
        nonlocal read
        found = really(descriptor, size, place)
        read += len(found)
        return found

    monkeypatch.setattr(os, "pread", counts)
    torn = opened(tmp_path / "left")
    assert numbers(torn) == [0]
    assert read < 3 * len(heads)
    torn.close()


def test_a_reader_has_no_more_than_so_many_files_open(
    files: RecordFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_files, "READER_FILES_MAX", 3)
    for number in range(5):
        append(files, number, 1, begins=True)
    before = len(os.listdir("/proc/self/fd"))
    reader = opened(tmp_path, writes=False)
    for number in range(5, 8):
        append(files, number, 1, begins=True)
    reader.refresh()
    assert len(os.listdir("/proc/self/fd")) == before + 3
    assert numbers(reader) == list(range(8))
    files.drop_before(2)
    files.sync(dropped=files.dropped)
    assert numbers(reader) == list(range(8))
    reader.close()


def test_a_torn_end_is_told_by_each_opening_until_something_is_appended(
    files: RecordFiles, tmp_path: Path
) -> None:
    append(files, 0, 10, begins=True)
    append(files, 10, 1)
    to = left(tmp_path, tmp_path / "left", lambda content: content[:-1])
    found = (to / name_of(0)).read_bytes()
    for _ in range(2):
        torn = opened(to)
        torn.reopen()
        torn.sync()
        torn.end()
        torn.close()
        assert "ends within a record" in torn.torn
        assert (to / name_of(0)).read_bytes() == found
    torn = opened(to)
    append(torn, 10, 0)
    torn.close()
    again = opened(to)
    assert (again.torn, numbers(again)) == ("", list(range(10)))
    again.close()


def test_a_file_is_gone_for_good_before_the_one_before_it_goes_on(
    files: RecordFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(files, 0, 10, begins=True)
    really = os.pwritev
    done: list[str] = []

    def fails(descriptor: int, parts: Any, place: int) -> int:
        if place:
            raise OSError("No space left on device")
        return really(descriptor, parts, place)

    unlink = Path.unlink

    def unlinks(path: Path) -> None:
        done.append("unlink")
        unlink(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", fails)
        for name in ("fsync", "ftruncate"):
            patched.setattr(os, name, lambda *_, name=name: done.append(name))
        patched.setattr(Path, "unlink", unlinks)
        with pytest.raises(OSError, match="No space"):
            append(files, 10, 1, begins=True)
    assert done == ["fsync", "fsync", "unlink", "fsync", "ftruncate"]


def test_what_failed_to_begin_is_closed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(tmp_path)
    really = os.pwritev

    def fails(descriptor: int, parts: Any, place: int) -> int:
        if place:
            raise OSError("No space left on device")
        return really(descriptor, parts, place)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", fails)
        with pytest.raises(OSError, match="No space"):
            append(files, 0, 1, begins=True)
    files.sync()
    files.end()
    files.close()
    assert list(tmp_path.glob("*.rec")) == []


@pytest.mark.parametrize("begins", [False, True], ids=["by a sync", "by a new file"])
def test_what_a_failed_sync_left_is_written_again_before_it_counts_as_durable(
    files: RecordFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, begins: bool
) -> None:
    """The disk as it is after a power cut: what was written between two syncs that succeeded."""
    append(files, 0, 10, begins=True)
    files.sync()
    disk = bytearray((tmp_path / name_of(0)).read_bytes())
    dirty: list[tuple[int, bytes]] = []
    really = os.pwritev

    def notes(descriptor: int, parts: Any, place: int) -> int:
        if place:
            dirty.append((place, b"".join(parts)))
        return really(descriptor, parts, place)

    def fails(_: int) -> None:
        dirty.clear()  # as Linux does
        raise OSError("Input/output error")

    def writes(_: int) -> None:
        for place, content in dirty:
            disk[place : place + len(content)] = content
        dirty.clear()

    monkeypatch.setattr(os, "pwritev", notes)
    append(files, 10, 10)
    append(files, 20, 10)
    monkeypatch.setattr(record_files, "_sync_data", fails)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            files.sync()
    monkeypatch.setattr(record_files, "_sync_data", writes)
    if begins:
        append(files, 30, 1, begins=True)
    else:
        files.sync()
    assert bytes(disk) == (tmp_path / name_of(0)).read_bytes()
    assert numbers(files, 5) == list(range(5, 30 + begins))
