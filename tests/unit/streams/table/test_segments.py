"""Rule 10 of the fold: what bridges have read of segments in the memory of hosts."""

from collections.abc import Callable

import msgspec
import pytest

from schemas import limits
from schemas.identities import Offset
from schemas.limits import MEMORY_STALE_S
from schemas.memory_segments import (
    MEMORY_FORGOTTEN_S,
    MEMORY_GONE_S,
    MemoryRecord,
    SegmentKey,
    SegmentState,
)
from schemas.records import encode_record
from streams.kernel import open_kernel
from streams.table.fold import Fold, UnprovenState
from streams.table.rows import format as rows
from streams.table.rows.reader import RowReader
from streams.table.segments import MEMORY_SEGMENTS_MAX
from tests.building import events_record, memory_record, registered_record, registration, stored
from tests.fakes import FlushingWorker

A = SegmentKey("host", "kvcached_a")


class Scene:
    def __init__(self) -> None:
        self.fold = Fold(open_kernel(1337, name="reference"))

    def feed(self, *records: MemoryRecord) -> None:
        for record in records:
            encoded = encode_record(record)
            assert self.fold.apply(Offset(self.fold.offset + 1), encoded) is None

    @property
    def known(self) -> dict[SegmentKey, SegmentState]:
        return self.fold.memory.segments


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_the_last_record_of_a_segment_counts(scene: Scene) -> None:
    scene.feed(memory_record(used=1), memory_record(used=2, bridge="b-2", at=1001.0))
    assert scene.known == {
        A: SegmentState(
            bridge="b-2",
            inode=1,
            total=1000,
            used=2,
            preallocated=100,
            observed_at=1001.0,
            changed_at=1001.0,
            since=1000.0,
        )
    }
    assert scene.known[A].pressure == 0.102
    assert scene.fold.counters["records"] == 2


def test_segments_of_one_name_on_two_hosts_are_two(scene: Scene) -> None:
    scene.feed(memory_record(), memory_record(host="other"))
    assert list(scene.known) == [A, SegmentKey("other", "kvcached_a")]


def test_what_it_says_touches_no_publisher(scene: Scene) -> None:
    one = registration("a")
    scene.fold.apply(Offset(0), registered_record(one))
    scene.fold.apply(Offset(1), events_record(0, 0, [stored(0, [1], range(4))]))
    digests = [view.digest for view in scene.fold.kernel.contexts()]
    publishers = dict(scene.fold.publishers)
    scene.feed(memory_record(), memory_record(change="disappeared"))
    assert [view.digest for view in scene.fold.kernel.contexts()] == digests
    assert scene.fold.publishers == publishers


def test_another_file_and_one_that_comes_back_begin_anew(scene: Scene) -> None:
    scene.feed(memory_record(at=1.0), memory_record(at=2.0, inode=2))
    assert scene.known[A].since == 2.0
    scene.feed(memory_record(at=3.0, inode=2, change="disappeared"))
    assert (scene.known[A].gone, scene.known[A].since) == (True, 2.0)
    scene.feed(memory_record(at=4.0, inode=2))
    assert (scene.known[A].gone, scene.known[A].since) == (False, 4.0)


def test_a_bridge_that_has_just_started_does_not_know_since_when_the_numbers_are_the_same(
    scene: Scene,
) -> None:
    scene.feed(memory_record(at=10.0, changed_at=5.0), memory_record(at=20.0, bridge="b-2"))
    assert (scene.known[A].observed_at, scene.known[A].changed_at) == (20.0, 5.0)
    scene.feed(memory_record(at=30.0, used=399, bridge="b-2"))
    assert scene.known[A].changed_at == 30.0
    scene.feed(memory_record(at=40.0, used=399, inode=2, bridge="b-2"))
    assert scene.known[A].changed_at == 40.0


@pytest.mark.parametrize(
    ("said", "numbers", "known"),
    [
        ("", {}, "gone"),
        ("alive", {}, "alive"),
        ("", {"used": 1}, ""),
        ("", {"inode": 2}, ""),
        ("gone", {"used": 1}, "gone"),
    ],
)
def test_that_a_writer_has_ended_is_remembered_while_nothing_changes(
    scene: Scene, said: str, numbers: dict[str, int], known: str
) -> None:
    scene.feed(memory_record(writer="gone"))
    record = memory_record(writer=said, bridge="b-2", at=1001.0)
    scene.feed(msgspec.structs.replace(record, **numbers))
    assert scene.known[A].writer == known


@pytest.mark.parametrize(
    ("record", "after_s", "standing"),
    [
        (memory_record(), 0.0, "live"),
        (memory_record(), MEMORY_STALE_S, "live"),
        (memory_record(), MEMORY_STALE_S + 0.1, "stale"),
        (memory_record(), -3600.0, "live"),  # its clock is ahead
        (memory_record(writer="gone"), 0.0, "orphaned"),
        (memory_record(writer="gone"), MEMORY_STALE_S + 1, "stale"),
        (memory_record(writer="alive"), 0.0, "live"),
        (memory_record(change="disappeared"), 0.0, "gone"),
        (memory_record(change="disappeared"), 10**6, "gone"),
        (memory_record(change="a word of a newer bridge", writer="another"), 0.0, "live"),
    ],
)
def test_what_the_numbers_are_worth(
    scene: Scene, record: MemoryRecord, after_s: float, standing: str
) -> None:
    scene.feed(record)
    assert scene.known[A].standing(1000.0 + after_s) == standing


# What is forgotten


def test_what_is_gone_is_forgotten_as_records_go_on(scene: Scene) -> None:
    scene.feed(
        memory_record("kept", at=0.0),
        memory_record("gone", at=0.0, change="disappeared"),
        memory_record("other", at=MEMORY_GONE_S),
    )
    assert [key.segment for key in scene.known] == ["kept", "gone", "other"]
    scene.feed(memory_record("other", at=MEMORY_GONE_S + 1))
    assert [key.segment for key in scene.known] == ["kept", "other"]
    scene.feed(memory_record("other", at=MEMORY_FORGOTTEN_S))
    assert [key.segment for key in scene.known] == ["kept", "other"]
    scene.feed(memory_record("other", at=MEMORY_FORGOTTEN_S + 1))
    assert [key.segment for key in scene.known] == ["other"]
    assert scene.fold.counters["segments_forgotten"] == 0


def test_what_came_back_is_not_forgotten_with_what_is_gone(scene: Scene) -> None:
    scene.feed(
        memory_record("a", at=0.0, change="disappeared"),
        memory_record("a", at=1.0),
        memory_record("b", at=MEMORY_GONE_S + 10),
    )
    assert [key.segment for key in scene.known] == ["a", "b"]


def test_of_too_many_those_that_are_gone_go_first_and_then_the_oldest(scene: Scene) -> None:
    scene.feed(*(memory_record(f"s-{number}", at=0.0) for number in range(MEMORY_SEGMENTS_MAX)))
    scene.feed(memory_record("s-5", at=1.0, change="disappeared"), memory_record("s-0", at=1.0))
    scene.feed(memory_record("new-1", at=1.0), memory_record("new-2", at=1.0))
    names = {key.segment for key in scene.known}
    assert len(names) == MEMORY_SEGMENTS_MAX
    assert names.isdisjoint({"s-5", "s-1"})
    assert names >= {"s-0", "s-2", "new-1", "new-2"}
    assert scene.fold.counters["segments_forgotten"] == 2
    changes = scene.fold.take_changes().segments
    assert changes[SegmentKey("host", "s-5")] is None
    assert changes[SegmentKey("host", "s-1")] is None


# Bad records


@pytest.mark.parametrize(
    "wrong",
    [
        {"total": 0},
        {"total": -1},
        {"used": -1},
        {"preallocated": limits.MEMORY_BYTES_MAX + 1},
        {"inode": -1},
        {"pressure": float("nan")},
        {"pressure": -0.5},
        {"observed_at": float("inf")},
        {"host": ""},
        {"segment": "x" * (limits.NAME_BYTES_MAX + 1)},
    ],
)
def test_a_record_with_an_impossible_value_is_skipped(
    scene: Scene, wrong: dict[str, object]
) -> None:
    encoded = msgspec.to_builtins(memory_record()) | {"kind": "memory"} | wrong
    skipped = scene.fold.apply(Offset(0), msgspec.msgpack.encode(encoded))
    assert skipped is not None
    assert skipped.reason == "malformed_record"
    assert scene.known == {}


# Rows


def test_rows_carry_the_segments_and_a_fold_goes_on_with_them(scene: Scene) -> None:
    scene.feed(
        memory_record("b", at=3.0),
        memory_record("a", at=2.0),
        memory_record("gone", at=1.0, change="disappeared"),
    )
    changes = scene.fold.take_changes()
    assert dict(changes.segments) == scene.known
    assert scene.fold.take_changes().segments == {}
    again = Scene()
    again.fold.restore(changes.offset, {}, {}, UnprovenState(), {}, segments=scene.known)
    assert again.known == scene.known
    assert [key.segment for key in again.known] == ["gone", "a", "b"]
    assert again.fold.take_changes().segments == {}
    scene.feed(memory_record("a", at=MEMORY_GONE_S + 2))
    again.feed(memory_record("a", at=MEMORY_GONE_S + 2))
    assert again.known == scene.known
    assert SegmentKey("host", "gone") not in again.known


def test_a_reader_of_rows_knows_what_the_worker_does(any_fold: Callable[[], Fold]) -> None:
    worker = FlushingWorker(any_fold(), table=b"t")
    reader = RowReader(any_fold().kernel)
    reader.caught_up(0)
    for record in (
        memory_record("a", at=0.0, change="disappeared"),
        memory_record("b", at=1.0),
        memory_record("b", at=MEMORY_GONE_S + 1),
    ):
        written = worker.flush(encode_record(record))
        for key, value in written[:-1]:
            reader.put(0, key, value)
        before = reader.segments()
        reader.put(0, *written[-1])
        assert reader.segments() == worker.fold.memory.segments
        assert reader.segments() != before, "they counted with the row that commits them"
    assert [key.segment for key in reader.segments()] == ["b"]


def test_another_table_has_other_segments(any_fold: Callable[[], Fold]) -> None:
    reader = RowReader(any_fold().kernel)
    reader.caught_up(0)
    for table, name in ((b"t", "a"), (b"u", "b")):
        worker = FlushingWorker(any_fold(), table=table)
        for key, value in worker.flush(encode_record(memory_record(name))):
            reader.put(0, key, value)
    assert [key.segment for key in reader.segments()] == ["b"]


def test_partitions_have_segments_of_their_own(any_fold: Callable[[], Fold]) -> None:
    reader = RowReader(any_fold().kernel)
    for partition, name in ((0, "a"), (1, "b")):
        reader.caught_up(partition)
        worker = FlushingWorker(any_fold(), table=b"t")
        for key, value in worker.flush(encode_record(memory_record(name))):
            reader.put(partition, key, value)
    assert sorted(key.segment for key in reader.segments()) == ["a", "b"]


@pytest.mark.parametrize("name", [b"", b"\0", b"\0\x05\x92\xa1h\xa1s\0", b"\0\x03\x92\xa1h"])
def test_a_row_whose_key_names_no_segment_is_skipped(
    any_fold: Callable[[], Fold], name: bytes
) -> None:
    reader = RowReader(any_fold().kernel)
    reader.caught_up(0)
    key = rows.segment_key(A)
    prefix = key[: key.index(b":") + 1]
    reader.put(0, prefix + name, rows.encode_row(rows.RowKind.DELTA, 0, b"\x80"))
    reader.put(0, key, rows.encode_row(rows.RowKind.DELTA, 0, b"\x80"))
    reader.put(0, rows.COVERED_KEY, rows.encode_row(rows.RowKind.DELTA, 0, b"t"))
    assert reader.counters["corrupt_rows"] == 2
    assert reader.segments() == {}


def test_the_key_of_a_row_names_its_segment() -> None:
    assert rows.parse_segment_key(rows.segment_key(A)) == A
    assert rows.parse_segment_key(rows.bridge_key("b")) is None
    assert rows.parse_bridge_key(rows.segment_key(A)) is None
