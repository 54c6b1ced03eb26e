"""Until when heartbeats count, over clocks of numbers."""

from query_api.replica.heartbeat_watch import (
    CLOCKS_DIFFER_S,
    HEARTBEATS_COMPARED,
    HEARTBEATS_ENOUGH,
    HeartbeatWatch,
)
from schemas.limits import STALE_S
from schemas.positions import Heartbeat
from streams.table.scope_states import ConfirmationSource

ONE, TWO = "bridge-1", "bridge-2"
EPOCH = 1_700_000_000.0
"""Unix time of the bridges' uptime 0."""


class Scene:
    """A watch, and a clock of this process that is `ahead` of the bridges' own; their Unix time is
    `behind` of this host's.
    """

    def __init__(self, ahead: float = 1000.0, behind: float = 0.0) -> None:
        self.watch = HeartbeatWatch()
        self.ahead, self.behind = ahead, behind

    def note(
        self,
        *written: float,
        held_up: float = 0.0,
        as_of: float | None = None,
        partition: int = 0,
        names: tuple[str, ...] = (ONE, TWO),
        age: float = 0.0,
    ) -> None:
        """Heartbeats that were written at these uptimes come so much later."""
        now = max(written) + self.ahead + held_up
        bridges = {
            name: Heartbeat(at, EPOCH + at, age) for name, at in zip(names, written, strict=False)
        }
        unix, as_of = EPOCH + now - self.ahead + self.behind, now if as_of is None else as_of
        self.watch.note(partition, bridges, now=now, unix=unix, as_of=as_of)

    def counts_from(self, name: str = ONE, partition: int = 0) -> float | None:
        """When the last heartbeat was written, as its bridge's clock has it; None for none."""
        until = self.watch.fresh_until.get(ConfirmationSource(partition, name))
        return None if until is None else until - STALE_S - self.ahead


def test_a_heartbeat_that_was_there_already_says_nothing_the_next_one_does() -> None:
    scene = Scene()
    scene.note(1.0)
    assert scene.counts_from() is None
    scene.note(2.0)
    assert scene.counts_from() == 2.0


def test_a_heartbeat_is_not_newer_than_what_the_log_had_then() -> None:
    scene = Scene()
    scene.note(1.0)
    scene.note(9.0, as_of=scene.ahead + 4.0)
    assert scene.counts_from() == 4.0


def test_what_it_says_is_as_much_older_as_it_says_itself() -> None:
    scene = Scene()
    scene.note(1.0)
    scene.note(9.0, age=1.5)
    assert scene.counts_from() == 7.5
    scene.note(19.0, as_of=scene.ahead + 14.0, age=1.5)
    assert scene.counts_from() == 12.5


def test_a_heartbeat_that_is_seen_again_counts_no_longer_than_before() -> None:
    scene = Scene()
    scene.note(1.0)
    scene.note(9.0, as_of=scene.ahead + 4.0)
    scene.note(9.0, held_up=1.0)
    assert scene.counts_from() == 4.0


def test_one_that_was_held_up_is_as_old_as_its_bridge_says() -> None:
    scene = Scene()
    scene.note(1.0)
    scene.note(2.0, held_up=30.0)
    assert scene.counts_from() == 2.0


def test_the_one_that_came_soonest_shows_how_the_clocks_differ() -> None:
    scene = Scene()
    scene.note(1.0, held_up=30.0)
    scene.note(2.0)
    assert scene.counts_from() == 2.0
    scene.note(3.0, held_up=20.0)
    assert scene.counts_from() == 3.0


def test_where_all_were_held_up_that_were_compared_their_own_time_says_it() -> None:
    scene = Scene()
    scene.note(1.0, held_up=30.0)
    scene.note(2.0, held_up=7.0)
    assert scene.counts_from() == 2.0
    scene.note(3.0, held_up=9.0)
    assert scene.counts_from() == 3.0


def test_a_clock_that_is_set_wrong_costs_no_more_than_clocks_may_differ() -> None:
    scene = Scene(behind=CLOCKS_DIFFER_S)
    for count in range(HEARTBEATS_ENOUGH + 2):
        scene.note(float(count))
    assert scene.counts_from() == HEARTBEATS_ENOUGH + 1 - CLOCKS_DIFFER_S
    scene = Scene(behind=600.0)
    scene.note(0.0)
    for count in range(1, HEARTBEATS_ENOUGH):
        scene.note(float(count))
        assert scene.counts_from() == count - 600.0, "not known yet"
    scene.note(float(HEARTBEATS_ENOUGH))
    assert scene.counts_from() == HEARTBEATS_ENOUGH
    scene = Scene(behind=-600.0)
    scene.note(0.0)
    scene.note(1.0, held_up=2.0)
    assert scene.counts_from() == 1.0, "one that is fast says nothing"


def test_only_the_latest_are_compared_since_clocks_drift() -> None:
    scene = Scene()
    scene.note(0.0)
    for count in range(1, 2 * HEARTBEATS_COMPARED + 1):
        scene.note(float(count), held_up=10.0)
        assert scene.counts_from() == count, "one that came sooner is among those compared"
    last = 2 * HEARTBEATS_COMPARED + 1
    scene.note(float(last), held_up=10.0)
    assert scene.counts_from() == last + 10.0, "by now that is how the clocks differ"


def test_bridges_and_partitions_do_not_mix() -> None:
    scene = Scene()
    scene.note(1.0, 5.0)
    scene.note(1.0, 6.0)
    scene.note(7.0, partition=1)
    assert scene.counts_from(ONE) is None
    assert scene.counts_from(TWO) == 6.0
    assert scene.counts_from(ONE, partition=1) is None


def test_bridges_that_the_table_has_forgotten_are_forgotten_in_time() -> None:
    scene = Scene()
    gone = [f"gone-{number}" for number in range(HEARTBEATS_COMPARED + 1)]
    for at in (1.0, 2.0):
        for name in gone:
            scene.note(at, names=(name,))
        scene.note(at, partition=1, names=(TWO,))
    assert scene.counts_from(gone[0]) == 2.0
    scene.note(3.0)
    assert all(scene.counts_from(name) is None for name in gone)
    assert scene.counts_from(TWO, partition=1) == 2.0, "it is another partition's"
    scene.note(4.0)
    assert scene.counts_from() == 4.0, "it is known"
    scene.note(5.0, names=(gone[0],))
    assert scene.counts_from(gone[0]) is None, "one that comes back is a first one"


def test_a_bridge_that_is_left_out_once_is_not_forgotten() -> None:
    """Few take no room worth the time."""
    scene = Scene()
    scene.note(1.0, 1.0)
    for at in (2.0, 3.0):
        scene.note(at)
    scene.note(4.0, names=(TWO,))
    assert (scene.counts_from(ONE), scene.counts_from(TWO)) == (3.0, 4.0)
