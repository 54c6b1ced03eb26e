"""When a record of a segment is made, and what it says; the clock is the test's."""

from collections import Counter

import msgspec
import pytest

from bridge.memory.poller import SegmentPoller
from bridge.memory.reading import Reading, Scan
from schemas.limits import MEMORY_REPEAT_S, MEMORY_SEGMENTS_READ_MAX
from schemas.memory_segments import MemoryRecord, SegmentChange, SegmentKey
from streams.table.segments import SegmentsFold

TOTAL = 1000
PER_CENT = TOTAL // 100
WALL = 1_000_000.0  # of Unix seconds, at 0 by the monotonic clock


class Scene:
    """One directory that is looked at each second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.files: dict[str, Reading] = {}
        self.unreadable: set[str] = set()
        self.error = ""
        self.poller = SegmentPoller("host", "bridge-1")

    def put(
        self,
        name: str = "a",
        used: int = 0,
        preallocated: int = 0,
        *,
        total: int = TOTAL,
        inode: int = 1,
        writers: bool | None = None,
    ) -> None:
        self.files[name] = Reading(inode, total, used, preallocated, writers)

    def look(self, *, after_s: float = 1.0) -> None:
        self.now += after_s
        seen = {name: one for name, one in self.files.items() if name not in self.unreadable}
        present = frozenset(self.files)
        scan = Scan(seen, present, Counter(), error=self.error)
        self.poller.note(scan if not self.error else Scan({}, frozenset(), Counter(), (), "away"),
                         at=WALL + self.now)  # fmt: skip

    def make(self) -> list[MemoryRecord]:
        """What is to be written now; it is not."""
        made = [
            self.poller.make(key, now=self.now, at=WALL + self.now)
            for key in list(self.poller.due(self.now))
        ]
        return [record for record in made if record is not None]

    def write(self) -> list[tuple[str, str]]:
        """Writes it: names and changes."""
        records = self.make()
        for record in records:
            self.poller.written(record, now=self.now)
        return [(record.segment, record.change) for record in records]

    def told(self, *, after_s: float = 1.0) -> list[tuple[str, str]]:
        """What is written after the next look."""
        self.look(after_s=after_s)
        return self.write()


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def seen(scene: Scene) -> Scene:
    """One in which segment `a`, half of it in use, is known."""
    scene.put(used=40 * PER_CENT, preallocated=5 * PER_CENT)
    assert scene.told() == [("a", "appeared")]
    return scene


def test_a_record_has_all_that_is_known(scene: Scene) -> None:
    scene.put(used=400, preallocated=100, inode=7, writers=True)
    scene.look()
    assert scene.make() == [
        MemoryRecord(
            host="host",
            segment="a",
            bridge="bridge-1",
            change="appeared",
            inode=7,
            total=TOTAL,
            used=400,
            preallocated=100,
            pressure=0.5,
            writer="alive",
            observed_at=WALL + 1,
            changed_at=WALL + 1,
            bridge_time=WALL + 1,
        )
    ]


def test_nothing_is_told_twice(seen: Scene) -> None:
    for _ in range(5):
        assert seen.told() == []
    assert seen.poller.records == 1


def test_what_was_not_written_is_made_again_of_what_was_read_last(scene: Scene) -> None:
    scene.put(used=0)
    scene.look()
    [first] = scene.make()
    scene.put(used=700)
    scene.look()
    [second] = scene.make()
    assert (first.change, first.used) == ("appeared", 0)
    assert (second.change, second.used) == ("appeared", 700), "nobody has heard of it yet"


@pytest.mark.parametrize(("used", "preallocated"), [(1, 0), (-1, 0), (0, 1), (0, -1)])
def test_a_change_counts_from_a_hundredth_of_the_limit_on(
    seen: Scene, used: int, preallocated: int
) -> None:
    nearly = PER_CENT - 1
    seen.put(used=400 + nearly * used, preallocated=50 + nearly * preallocated)
    assert seen.told() == []
    seen.put(used=400 + PER_CENT * used, preallocated=50 + PER_CENT * preallocated)
    assert seen.told() == [("a", "changed")]


def test_small_changes_add_up(seen: Scene) -> None:
    told = []
    for step in range(1, 31):
        seen.put(used=400 - step, preallocated=50)
        told += seen.told()
    assert told == [("a", "changed")] * 3


def test_a_change_that_leaves_the_pressure_counts_too(seen: Scene) -> None:
    seen.put(used=30 * PER_CENT, preallocated=15 * PER_CENT)
    assert seen.told() == [("a", "changed")]


@pytest.mark.parametrize("level", [500, 800, 950])
def test_a_level_of_pressure_is_told_however_small_the_step(scene: Scene, level: int) -> None:
    scene.put(used=level - 1)
    scene.told()
    scene.put(used=level)
    assert scene.told() == [("a", "changed")]
    for used in (level - 1, level, level - 4, level):  # to and fro about it
        scene.put(used=used)
        assert scene.told() == []
    scene.put(used=level - 6)
    assert scene.told() == [("a", "changed")], "it has left the level"
    scene.put(used=level)
    assert scene.told() == [("a", "changed")]


def test_every_change_of_the_limit_counts(seen: Scene) -> None:
    seen.put(used=400, preallocated=50, total=TOTAL + 1)
    assert seen.told() == [("a", "limit_changed")]
    seen.put(used=400, preallocated=50, total=100)
    seen.look()
    [record] = seen.make()
    assert (record.change, record.pressure) == ("limit_changed", 4.5)


def test_another_file_is_a_restart_and_a_file_that_is_gone_has_disappeared(seen: Scene) -> None:
    seen.put(used=10, inode=2)
    assert seen.told() == [("a", "restarted")]
    del seen.files["a"]
    seen.look()
    [record] = seen.make()
    assert (record.change, record.used, record.observed_at) == ("disappeared", 10, WALL + seen.now)
    assert seen.write() == [("a", "disappeared")]
    assert seen.told() == []
    assert seen.poller.states() == {}
    seen.put(inode=2)
    assert seen.told() == [("a", "appeared")]


def test_what_comes_and_goes_before_it_was_told_is_never_told(scene: Scene) -> None:
    scene.put()
    scene.look()
    scene.files.clear()
    assert scene.told() == []
    assert scene.poller.names == frozenset()


def test_what_goes_and_comes_back_while_the_log_is_away_is_a_restart_or_nothing(
    seen: Scene,
) -> None:
    same = seen.files.pop("a")
    seen.look()
    seen.files["a"] = same
    assert seen.told() == []
    del seen.files["a"]
    seen.look()
    seen.files["a"] = same._replace(inode=9)
    assert seen.told() == [("a", "restarted")]


def test_what_cannot_be_read_now_is_still_there_but_not_repeated(seen: Scene) -> None:
    seen.unreadable = {"a"}
    assert seen.told(after_s=2 * MEMORY_REPEAT_S) == []
    assert seen.poller.names == {"a"}
    seen.unreadable = set()
    assert seen.told() == [("a", "repeated")]


def test_a_look_that_failed_says_nothing(seen: Scene) -> None:
    seen.error = "the directory is gone"
    seen.files.clear()
    assert seen.told(after_s=MEMORY_REPEAT_S) == []
    seen.error = ""
    assert seen.told() == [("a", "disappeared")]


def test_a_segment_that_does_not_change_is_repeated_with_what_it_says_now(seen: Scene) -> None:
    seen.put(used=401, preallocated=50)
    assert seen.told(after_s=MEMORY_REPEAT_S - 1) == []
    seen.look()
    [record] = seen.make()
    assert (record.change, record.used, record.changed_at) == (
        "repeated",
        401,
        WALL + MEMORY_REPEAT_S,
    )
    assert seen.write() == [("a", "repeated")]
    assert seen.told() == []


# The writer


def writer_of(scene: Scene) -> str:
    return scene.poller.states()[SegmentKey("host", "a")].writer


def test_a_writer_that_was_there_and_is_not_has_ended(scene: Scene) -> None:
    scene.put(used=10, writers=True)
    scene.told()
    assert writer_of(scene) == "alive"
    scene.put(used=10, writers=False)
    assert scene.told() == [("a", "changed")]
    assert writer_of(scene) == "gone"
    scene.put(used=10, writers=True)
    assert scene.told() == [("a", "changed")]
    assert writer_of(scene) == "alive"


def test_a_writer_that_was_never_seen_is_not_known(scene: Scene) -> None:
    scene.put(writers=False)
    assert scene.told() == [("a", "appeared")]
    assert writer_of(scene) == ""


def test_a_group_that_comes_after_its_segment_is_another_one(scene: Scene) -> None:
    scene.put(used=10, writers=False)
    scene.told()
    scene.put(used=10, writers=True)
    assert scene.told() == [], "as a process of the bridge's own container, for a moment"
    scene.put(used=10, writers=False)
    assert scene.told() == []
    assert writer_of(scene) == ""


def test_a_segment_that_changes_after_its_writer_ended_has_another_writer(scene: Scene) -> None:
    scene.put(used=10, writers=True)
    scene.told()
    scene.put(used=10, writers=False)
    scene.told()
    scene.put(used=11, writers=False)
    assert scene.told() == [("a", "changed")]
    assert writer_of(scene) == ""
    scene.put(used=11, writers=True)
    assert scene.told() == [], "the group is of another namespace, whatever becomes of it"
    scene.put(used=11, inode=2, writers=True)
    scene.told()
    assert writer_of(scene) == "alive", "of another file nothing was wrong yet"


def test_the_limit_is_anybodys_to_change(scene: Scene) -> None:
    scene.put(used=10, writers=True)
    scene.told()
    scene.put(used=10, writers=False, total=TOTAL // 2)
    scene.told()
    scene.put(used=10, writers=False, total=TOTAL)
    assert scene.told() == [("a", "limit_changed")]
    assert writer_of(scene) == "gone"


# A table that knows what was before


def test_what_a_table_remembers_goes_on(seen: Scene) -> None:
    fold = SegmentsFold(Counter())
    seen.put("b", used=1, writers=True)
    seen.put("c", used=1)
    seen.put("d", used=1)
    seen.look()
    for record in seen.make():
        fold.take(record)
    again = Scene()
    again.poller = SegmentPoller("host", "bridge-2")
    again.now = seen.now
    again.poller.remember(fold.segments)
    again.put("b", used=1, writers=False)
    again.put("c", used=1, inode=2)
    again.put("d", used=1)
    again.put("e", used=1)
    del seen.files["a"]
    assert sorted(again.told()) == [("b", "changed"), ("c", "restarted"), ("e", "appeared")]
    assert again.poller.states()[SegmentKey("host", "b")].writer == "gone"
    assert again.told(after_s=MEMORY_REPEAT_S) != []


def test_of_names_with_another_prefix_nothing_is_told(seen: Scene) -> None:
    states = seen.poller.states()
    [state] = states.values()
    again = Scene()
    again.poller.remember(states | {SegmentKey("host", "b"): state}, "b")
    assert again.told() == [("b", "disappeared")]


@pytest.mark.parametrize(("writer", "after"), [("", ""), ("alive", "gone"), ("of a newer one", "")])
def test_what_a_table_knows_of_a_writer_goes_on(seen: Scene, writer: str, after: str) -> None:
    [(key, state)] = seen.poller.states().items()
    again = Scene()
    again.poller.remember({key: msgspec.structs.replace(state, writer=writer)})
    again.put(used=400, preallocated=50, writers=False)
    again.look()
    assert writer_of(again) == after


def test_what_has_gone_meanwhile_is_told_and_other_hosts_are_left_alone(seen: Scene) -> None:
    states = seen.poller.states()
    [state] = states.values()
    again = Scene()
    again.poller.remember(states | {SegmentKey("other", "b"): state})
    assert again.told() == [("a", "disappeared")]


def test_what_is_remembered_is_bounded_while_nothing_can_be_written(scene: Scene) -> None:
    for number in range(4):
        scene.files.clear()
        for place in range(MEMORY_SEGMENTS_READ_MAX):
            scene.put(f"{number}-{place}")
        scene.look()
        if number == 0:
            scene.write()
    assert len(scene.poller.states()) <= 2 * MEMORY_SEGMENTS_READ_MAX
    assert len(scene.poller.names) == MEMORY_SEGMENTS_READ_MAX
    told = Counter(change for _, change in scene.write())
    assert told == {
        SegmentChange.APPEARED: MEMORY_SEGMENTS_READ_MAX,
        SegmentChange.DISAPPEARED: 256,
    }
