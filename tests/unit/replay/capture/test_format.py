"""What was written is read again; what was not written is never read, wherever the file ends or is
changed.
"""

import os
import resource
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import cramjam
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.capture.bounds import (
    CAPTURE_BLOCK_ENTRIES_MAX,
    CAPTURE_ENTRY_BYTES_MAX,
    CAPTURE_LANES_MAX,
)
from replay.capture.errors import (
    CaptureDamagedError,
    CaptureError,
    CaptureFormatError,
    CaptureVersionError,
)
from replay.capture.format import (
    MAGIC,
    START,
    VERSION,
    Block,
    CaptureEntry,
    CaptureKind,
    CaptureSelection,
    EntryFlag,
    Header,
    PartitionSource,
    checksum,
    decode_frames,
    encode_frames,
    encode_head,
    encode_header,
)
from replay.capture.reader import Capture
from replay.capture.writer import INTERRUPTED, CaptureWriter
from schemas import limits
from schemas.errors import DiskError

HEADER = Header(
    kind=CaptureKind.RECORDS,
    created_at=1_700_000_000.5,
    created_by="0.1.0",
    source="the log in data",
    asked=CaptureSelection(since=1.0, tenant="default", first={0: 3}),
    partitions=tuple(
        PartitionSource(partition=n, begin=0, end=9, complete=True, keeps_registrations=True)
        for n in range(3)
    ),
)
ENTRIES = [
    CaptureEntry(
        lane=number % 2, position=number, time=100.0 + number, value=bytes([number]) * number
    )
    for number in range(8)
]


def write(
    path: Path,
    entries: Sequence[CaptureEntry] = ENTRIES,
    *,
    block_bytes: int = 60,
    finish: bool = True,
) -> Path:
    writer = CaptureWriter(path, HEADER, block_bytes=block_bytes, clock=lambda: 5.0)
    for entry in entries:
        writer.add(entry)
    if finish:
        writer.finish()
    else:
        writer.flush()
    return path


def read(path: Path) -> list[CaptureEntry]:
    with Capture(path) as capture:
        return list(capture.read())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "small.capture"


@pytest.fixture
def whole(path: Path) -> bytes:
    return write(path).read_bytes()


def in_file_order(path: Path) -> list[CaptureEntry]:
    entries = read(path)
    assert sorted(entries, key=lambda entry: entry.position) == ENTRIES
    return entries


# Whole


def test_a_capture_gives_what_was_written_to_it(path: Path) -> None:
    write(path)
    with Capture(path) as capture:
        assert capture.header == HEADER
        assert sorted(capture.read(), key=lambda entry: entry.position) == ENTRIES
        assert list(capture.merged()) == ENTRIES
        assert len(capture.blocks) > 2, "several blocks, or the other tests show nothing"
        assert capture.summary is not None
        assert (capture.summary.ended, capture.summary.entries) == ("complete", len(ENTRIES))
        assert capture.notes == []


def test_an_empty_capture_is_whole(path: Path) -> None:
    write(path, ())
    with Capture(path) as capture:
        assert (list(capture.read()), capture.entries, capture.notes) == ([], 0, [])


_entries = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(1, 2**40),
        st.floats(allow_nan=False),
        st.binary(max_size=40),
        st.sampled_from([0, int(EntryFlag.REPLAYED)]),
    ),
    max_size=30,
)


@given(drawn=_entries, block_bytes=st.integers(1, 300), spared=st.integers(0, 5))
def test_any_entries_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[tuple[int, int, float, bytes, int]],
    block_bytes: int,
    spared: int,
) -> None:
    path = tmp_path_factory.mktemp("capture") / "any"
    writer = CaptureWriter(path, HEADER, block_bytes=block_bytes)
    reached = [-1, -1, -1]
    entries = []
    for lane, step, time, value, flags in drawn:
        reached[lane] += step
        entries.append(CaptureEntry(lane, reached[lane], time, value, flags))
    for number, entry in enumerate(entries):
        writer.add(entry, spared=number < spared)
    writer.finish(INTERRUPTED)
    with Capture(path) as capture:
        for lane in range(3):
            of_lane = [entry for entry in entries if entry.lane == lane]
            assert list(capture.read(lanes=[lane])) == of_lane
            merged = [entry for entry in capture.merged() if entry.lane == lane]
            assert merged == of_lane, "merging keeps the order of a lane"
        assert capture.entries == len(entries)
        assert capture.notes == [f"The capture was not finished: interrupted: {path}"]


@given(frames=st.lists(st.binary(max_size=30), max_size=4))
def test_frames_come_back_as_they_came(frames: list[bytes]) -> None:
    assert decode_frames(encode_frames(frames)) == frames


@pytest.mark.parametrize(("since", "until"), [(None, 103.0), (102.0, None), (101.0, 106.0)])
def test_a_range_of_times_is_that_of_each_entry(
    path: Path, since: float | None, until: float | None
) -> None:
    write(path)
    with Capture(path) as capture:
        found = sorted(capture.read(since=since, until=until), key=lambda entry: entry.position)
    assert found == [
        entry
        for entry in ENTRIES
        if (since is None or entry.time >= since) and (until is None or entry.time < until)
    ]


def test_reading_from_a_position_passes_over_earlier_blocks(path: Path) -> None:
    write(path)
    with Capture(path) as capture:
        assert list(capture.read(lanes=[1], first=4)) == [ENTRIES[5], ENTRIES[7]]


def test_what_stands_before_the_range_comes_first_and_is_told_apart(path: Path) -> None:
    partition = PartitionSource(
        partition=0, begin=2, end=20, complete=False, keeps_registrations=True
    )
    writer = CaptureWriter(path, msgspec.structs.replace(HEADER, partitions=(partition,)))
    writer.add(CaptureEntry(0, 2, 1.0, b"registered"), spared=True)
    writer.add(CaptureEntry(0, 11, 2.0, b"events"))
    writer.finish()
    with Capture(path) as capture:
        assert [entry.position for entry in capture.read()] == [2, 11]
        assert capture.unproven_before(0) == 11


def test_a_position_that_does_not_rise_is_refused(path: Path) -> None:
    writer = CaptureWriter(path, HEADER)
    writer.add(CaptureEntry(0, 5, 1.0, b""))
    with pytest.raises(ValueError, match="Expected a position above `5`, got `5`"):
        writer.add(CaptureEntry(0, 5, 1.0, b""))


def test_a_file_that_is_there_is_not_written_over(path: Path) -> None:
    write(path)
    before = path.read_bytes()
    with pytest.raises(CaptureError, match="Expected the name of a new file"):
        CaptureWriter(path, HEADER)
    assert path.read_bytes() == before
    CaptureWriter(path, HEADER, replace=True).finish()
    assert read(path) == []


# Cut off


def test_wherever_a_capture_is_cut_its_whole_blocks_are_read(path: Path, whole: bytes) -> None:
    entries = in_file_order(path)
    with Capture(path) as capture:
        ends = [block.end for block in capture.blocks]
        counts = [block.entries for block in capture.blocks]
        begin = capture.blocks[0].offset
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if size < begin:
            with pytest.raises(CaptureFormatError, match=f"of {path}"):
                Capture(path)
            continue
        fitting = sum(count for end, count in zip(ends, counts, strict=True) if end <= size)
        with Capture(path) as capture:
            assert list(capture.read()) == entries[:fitting], size
            assert capture.damage is None
            whole_up_to = max([begin, *(end for end in ends if end <= size)])
            assert f"whole up to byte {whole_up_to}" in capture.unfinished, size


def test_a_writer_that_is_killed_leaves_its_blocks(path: Path) -> None:
    write(path, finish=False)
    with Capture(path) as capture:
        assert list(capture.merged()) == ENTRIES
        assert capture.summary is None
        assert len(capture.notes) == 1


# A full disk


@contextmanager
def room_for(size_bytes: int) -> Iterator[None]:
    """No file can be larger in the body."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def add_all(writer: CaptureWriter, entries: Sequence[CaptureEntry]) -> None:
    for entry in entries:
        writer.add(entry)


def test_a_full_disk_costs_what_had_no_room(path: Path) -> None:
    entries = [CaptureEntry(0, number, 1.0, os.urandom(50)) for number in range(400)]
    writer = CaptureWriter(path, HEADER, block_bytes=500)
    room_bytes = 10_000
    with room_for(room_bytes):
        with pytest.raises(DiskError, match=f"Cannot write a capture at {path}: "):
            add_all(writer, entries)
        with pytest.raises(DiskError):  # the index has no room either
            writer.finish("the disk is full")
    assert room_bytes - 1000 < path.stat().st_size < room_bytes
    with Capture(path) as capture:
        found = list(capture.read())
        assert capture.damage is None
        assert "whole up to byte" in capture.unfinished
    assert found == entries[: len(found)]
    assert len(found) == writer.entries > 100


def test_an_index_is_written_where_there_is_room_again(path: Path) -> None:
    entries = [CaptureEntry(0, number, 1.0, os.urandom(50)) for number in range(400)]
    writer = CaptureWriter(path, HEADER, block_bytes=500)
    with room_for(10_000), pytest.raises(DiskError):
        add_all(writer, entries)
    summary = writer.finish("the disk was full")
    with Capture(path) as capture:
        found = list(capture.read())
        assert capture.summary == summary
        assert capture.notes == [f"The capture was not finished: the disk was full: {path}"]
    assert found == entries[: summary.entries]
    assert summary.left_out["not_written"] > 0


def test_a_capture_that_cannot_be_begun_says_so(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match="Cannot write a capture at /dev/full: no space left"):
        CaptureWriter(Path("/dev/full"), HEADER, replace=True)
    with pytest.raises(DiskError, match="No such file"):
        CaptureWriter(tmp_path / "none" / "x", HEADER)


# Changed


def test_whatever_byte_is_changed_no_wrong_entry_is_read(path: Path, whole: bytes) -> None:
    entries = in_file_order(path)
    with Capture(path) as capture:
        begin = capture.blocks[0].offset
    for at in range(len(whole)):
        for flip in (0x01, 0xFF):
            changed = bytearray(whole)
            changed[at] ^= flip
            path.write_bytes(changed)
            if at < begin:
                with pytest.raises(CaptureError, match=f" .*{path}"):
                    Capture(path)
                continue
            with Capture(path) as capture:
                found = list(capture.read())
                assert found == entries[: len(found)], f"byte {at}"
                assert capture.notes, f"nothing is said of byte {at}"
                assert str(path) in capture.notes[0]
                if capture.damage is not None:
                    assert capture.damage.offset <= at


def test_what_stands_before_a_damaged_block_is_read_and_the_error_says_where(
    path: Path, whole: bytes
) -> None:
    entries = in_file_order(path)
    with Capture(path) as capture:
        third = capture.blocks[2]
    changed = bytearray(whole)
    changed[third.body_offset] ^= 1
    path.write_bytes(changed)
    with Capture(path) as capture:
        assert len(capture.blocks) == 2
        assert list(capture.read()) == entries[: capture.entries]
        assert isinstance(capture.damage, CaptureDamagedError)
        assert capture.damage.offset == third.offset
        assert capture.notes == [
            "Expected intact blocks, got a block whose body has another checksum,"
            f" at byte {third.offset} of {path}"
        ]


def test_a_block_that_was_taken_out_is_noticed(path: Path, whole: bytes) -> None:
    entries = in_file_order(path)
    with Capture(path) as capture:
        second = capture.blocks[1]
    path.write_bytes(whole[: second.offset] + whole[second.end :])
    with Capture(path) as capture:
        assert list(capture.read()) == entries[: capture.entries]
        assert len(capture.blocks) == 1
        assert capture.damage is not None


def test_a_file_that_is_changed_while_it_is_read_gives_an_error(path: Path, whole: bytes) -> None:
    with Capture(path) as capture:
        changed = bytearray(whole)
        changed[capture.blocks[1].body_offset] ^= 1
        path.write_bytes(changed)
        with pytest.raises(CaptureDamagedError, match=f"at byte {capture.blocks[1].offset} of"):
            list(capture.read())


def written(path: Path, block: Block, body: bytes) -> Path:
    """A file with one block, whose head and checksums are right, whatever it says."""
    content = encode_header(HEADER)
    block = block._replace(offset=len(content), body_checksum=checksum(body, len(content)))
    path.write_bytes(content + encode_head(block) + body)
    return path


def test_a_block_that_lies_about_itself_is_damaged(path: Path) -> None:
    """Its checksums are right: somebody made it so."""
    raw = struct.pack("<qdBI", 3, 1.0, 0, 2) + b"ab"
    body = bytes(cramjam.zstd.compress(raw))
    good = Block(0, 0, 0, 1, len(raw), len(body), 3, 3, 1.0, 1.0, 0)
    assert read(written(path, good, body)) == [CaptureEntry(0, 3, 1.0, b"ab")]
    for size in (len(raw) - 1, len(raw) + 1):
        lie = good._replace(raw_size=size)
        with Capture(written(path, lie, body)) as capture, pytest.raises(CaptureDamagedError):
            list(capture.read())
    for lie in (
        good._replace(entries=0),
        good._replace(entries=2),
        good._replace(entries=2**32 - 1),
        good._replace(raw_size=2**32 - 1),
        good._replace(size=2**32 - 1),
        good._replace(lane=3),
        good._replace(first=4),
        good._replace(first=-5, last=-5),
    ):
        with Capture(written(path, lie, body)) as capture:
            assert (capture.blocks, capture.entries) == ((), 0)
            assert capture.damage is not None


def test_a_block_of_more_entries_than_are_written_is_damaged(path: Path) -> None:
    """Three of 3.9 million empty ones fit a file of 8 MiB, and took 1.9 GB."""
    for count, is_read in ((CAPTURE_BLOCK_ENTRIES_MAX, True), (3_900_000, False)):
        raw = bytes(21 * count)
        body = bytes(cramjam.zstd.compress(raw))
        block = Block(0, 0, 0, count, len(raw), len(body), 0, 0, 0.0, 0.0, 0)
        with Capture(written(path, block, body)) as capture:
            assert (capture.damage is None) == is_read
            assert capture.entries == (count if is_read else 0)


def test_an_entry_that_is_larger_than_any_written_one_is_damaged(path: Path) -> None:
    size = CAPTURE_ENTRY_BYTES_MAX - 20
    raw = struct.pack("<qdBI", 3, 1.0, 0, size) + bytes(size)
    body = bytes(cramjam.zstd.compress(raw))
    block = Block(0, 0, 0, 1, len(raw), len(body), 3, 3, 1.0, 1.0, 0)
    with Capture(written(path, block, body)) as capture, pytest.raises(CaptureDamagedError):
        list(capture.read())


def test_a_header_of_more_lanes_than_are_written_is_refused(path: Path) -> None:
    publishers = [{"endpoint": ""}] * (CAPTURE_LANES_MAX + 1)
    encoded = msgspec.msgpack.encode(
        msgspec.to_builtins(HEADER) | {"kind": "frames", "publishers": publishers}
    )
    start = START.pack(MAGIC, VERSION, 0, len(encoded), 0)
    checked = checksum(start[len(MAGIC) : -8] + encoded)
    path.write_bytes(start[:-8] + struct.pack("<Q", checked) + encoded)
    with pytest.raises(CaptureFormatError, match="got a header of 65537 lanes, more than 65536"):
        Capture(path)


def overlapping(path: Path, lanes: int) -> Path:
    """Blocks of zeros with an entry of 60 MiB each, all of one time."""
    entry = 60 * limits.MIB
    content = encode_header(
        msgspec.structs.replace(
            HEADER,
            partitions=tuple(
                PartitionSource(
                    partition=n, begin=0, end=9, complete=True, keeps_registrations=True
                )
                for n in range(lanes)
            ),
        )
    )
    for lane in range(lanes):
        raw = struct.pack("<2q2d2B2I", 3, 4, 1.0, 2.0, 0, 0, entry, 0) + bytes(entry)
        body = bytes(cramjam.zstd.compress(raw))
        block = Block(
            len(content),
            lane,
            0,
            2,
            len(raw),
            len(body),
            3,
            4,
            1.0,
            2.0,
            checksum(body, len(content)),
        )
        content += encode_head(block) + body
    path.write_bytes(content)
    return path


def test_lanes_side_by_side_take_no_more_than_their_bound(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replay.capture.reader.CAPTURE_MERGED_BYTES_MAX", 150 * limits.MIB)
    with Capture(overlapping(path, 2)) as capture:
        assert [(e.lane, e.position) for e in capture.merged()] == [(0, 3), (1, 3), (0, 4), (1, 4)]
    with (
        Capture(overlapping(path, 3)) as capture,
        pytest.raises(CaptureError, match="lanes that can be read side by side"),
    ):
        list(capture.merged())


def test_blocks_of_one_time_after_another_are_not_held_together(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [CaptureEntry(n, 0, float(n), bytes(9_000)) for n in range(3)]
    write(path, entries)
    monkeypatch.setattr("replay.capture.reader.CAPTURE_MERGED_BYTES_MAX", 10_000)
    with Capture(path) as capture:
        assert list(capture.merged()) == entries


def test_a_block_that_is_no_zstd_is_damaged(path: Path) -> None:
    body = b"\0" * 50
    block = Block(0, 0, 0, 1, 40, len(body), 3, 3, 1.0, 1.0, 0)
    damaged = pytest.raises(CaptureDamagedError, match=f"cannot be decompressed.*of {path}")
    with Capture(written(path, block, body)) as capture, damaged:
        list(capture.read())


# Other files


def others() -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "text", b"hello, world\n" * 10
    yield "magic only", MAGIC
    yield "huge header", START.pack(MAGIC, VERSION, 0, 2**32 - 1, 0)
    broken = b"\x93\x01"
    start = START.pack(MAGIC, VERSION, 0, len(broken), 0)
    checked = checksum(start[len(MAGIC) : -8] + broken)
    yield "no map", start[:-8] + struct.pack("<Q", checked) + broken


@pytest.mark.parametrize(("what", "content"), list(others()))
def test_what_is_no_capture_is_refused_by_name_and_place(
    path: Path, what: str, content: bytes
) -> None:
    path.write_bytes(content)
    with pytest.raises(CaptureFormatError, match=rf"Expected a capture, .* of {path}"):
        Capture(path)


def test_a_newer_version_is_refused_whatever_its_header_looks_like(path: Path) -> None:
    path.write_bytes(MAGIC + struct.pack("<H", VERSION + 1) + os.urandom(40))
    with pytest.raises(
        CaptureVersionError, match=f"version `{VERSION}` or older, got `{VERSION + 1}`: {path}"
    ):
        Capture(path)


def test_fields_of_a_later_header_are_passed_over(path: Path) -> None:
    encoded = msgspec.msgpack.encode(msgspec.to_builtins(HEADER) | {"later": [1, 2]})
    start = START.pack(MAGIC, VERSION, 0, len(encoded), 0)
    checked = checksum(start[len(MAGIC) : -8] + encoded)
    path.write_bytes(start[:-8] + struct.pack("<Q", checked) + encoded)
    with Capture(path) as capture:
        assert capture.header == HEADER
    assert encode_header(HEADER)[: len(MAGIC)] == MAGIC
