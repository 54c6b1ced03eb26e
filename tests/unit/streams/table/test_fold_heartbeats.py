"""Rule 8 of the fold: what bridges say of their publishers."""

from collections.abc import Sequence

import pytest

from schemas.answer_states import AnswerState, Doubt
from schemas.identities import Offset
from schemas.positions import Confirmation, Heartbeat, PublisherState
from schemas.records import PublisherReport
from streams.bounds import BRIDGES_REMEMBERED_MAX
from streams.kernel import open_kernel
from streams.table.fold import Fold, UnprovenState
from streams.table.scope_states import ConfirmationSource
from tests.building import (
    SCOPE,
    events_record,
    gap_record,
    heartbeat_record,
    registered_record,
    registration,
    report,
    stored,
    unregistered_record,
)

ONE, TWO = registration("a"), registration("b", port=5558)
FRESH = {ConfirmationSource(0, "b-1"): 1.0, ConfirmationSource(0, "b-2"): 1.0}


class Scene:
    """A fold in which two publishers are registered."""

    def __init__(self) -> None:
        self.fold = Fold(open_kernel(1337, name="reference"))
        self.feed(registered_record(ONE), registered_record(TWO))
        self.fold.take_changes()

    def feed(self, *records: bytes) -> None:
        for record in records:
            assert self.fold.apply(Offset(self.fold.offset + 1), record) is None

    def hear(
        self,
        reports: Sequence[PublisherReport],
        *,
        of: str = "b-1",
        uptime: float = 1.0,
        complete: bool = False,
        age: float = 0.0,
    ) -> None:
        self.feed(heartbeat_record(of, uptime, reports, complete=complete, age=age))

    def said(self) -> list[tuple[str, str]]:
        """Bridge and reason, of each publisher; of none for nothing."""
        confirmations = [
            self.fold.publishers.get(one.publisher, PublisherState()).confirmation
            for one in (ONE, TWO)
        ]
        return [(one.bridge, one.reason) if one else ("", "") for one in confirmations]

    def state(self) -> AnswerState:
        return self.fold.states.verdict(SCOPE, FRESH, 0.0).state


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_what_a_bridge_says_of_its_publishers_counts_from_then_on(scene: Scene) -> None:
    assert scene.state() is AnswerState.UNCONFIRMED
    scene.hear([report(ONE), report(TWO, Doubt.LINK_DOWN)])
    assert scene.said() == [("b-1", ""), ("b-1", Doubt.LINK_DOWN)]
    assert scene.fold.publishers[ONE.publisher].confirmation == Confirmation("b-1", "", 900.0)
    assert scene.state() is AnswerState.UNCONFIRMED
    scene.hear([report(TWO)])
    assert scene.said() == [("b-1", ""), ("b-1", "")]
    assert scene.state() is AnswerState.EXACT


@pytest.mark.parametrize(("incarnation", "said"), [(2, ""), (3, Doubt.CATCHING_UP)])
def test_what_another_bridge_begins_behind_what_was_lost_unread_is_not_yet_confirmed(
    scene: Scene, incarnation: int, said: str
) -> None:
    scene.feed(events_record(0, 0, [stored(0, [1], range(4))]))
    scene.hear([report(ONE), report(TWO)])
    scene.feed(events_record(0, 0, [stored(0, [1], range(4))], incarnation=incarnation))
    assert scene.said() == [("b-1", said), ("b-1", "")]
    scene.hear([report(ONE)], of="b-2")
    assert scene.said() == [("b-2", ""), ("b-1", "")]
    assert scene.state() is AnswerState.EXACT


def test_the_heartbeat_itself_is_remembered_and_is_a_change(scene: Scene) -> None:
    scene.hear([report(ONE)], uptime=7.0)
    changes = scene.fold.take_changes()
    assert changes.bridges == {"b-1": Heartbeat(7.0, 1007.0)}
    assert list(changes.publishers) == [ONE.publisher]
    scene.hear([report(ONE)], uptime=8.0, age=1.5)
    changes = scene.fold.take_changes()
    assert changes.bridges == {"b-1": Heartbeat(8.0, 1008.0, 1.5)}
    assert changes.publishers == {}, "nothing new was said of it"
    assert scene.fold.take_changes().bridges == {}


def test_of_a_publisher_that_is_not_registered_it_says_nothing(scene: Scene) -> None:
    stranger = registration("c")
    scene.hear([report(stranger), report(ONE)])
    assert stranger.publisher not in scene.fold.publishers
    assert scene.said() == [("b-1", ""), ("", "")]


def test_who_is_left_out_of_a_complete_one_is_no_longer_followed(scene: Scene) -> None:
    scene.hear([report(ONE), report(TWO)])
    scene.hear([report(ONE)])
    assert scene.said() == [("b-1", ""), ("b-1", "")], "it was not complete"
    scene.hear([report(ONE)], uptime=5.0, complete=True)
    assert scene.said() == [("b-1", ""), ("b-1", Doubt.NOT_FOLLOWED)]
    gone = scene.fold.publishers[TWO.publisher].confirmation
    assert gone == Confirmation("b-1", Doubt.NOT_FOLLOWED, 1005.0)
    scene.hear([report(ONE)], uptime=9.0, complete=True)
    assert scene.fold.publishers[TWO.publisher].confirmation == gone, "since then"


def test_a_complete_one_says_nothing_of_what_another_bridge_follows(scene: Scene) -> None:
    scene.hear([report(TWO)], of="b-2")
    scene.hear([report(ONE)], complete=True)
    assert scene.said() == [("b-1", ""), ("b-2", "")]


def test_a_complete_one_passes_over_publishers_of_which_no_bridge_has_spoken(scene: Scene) -> None:
    scene.hear([report(ONE)])
    scene.feed(gap_record(0, 0, stream=TWO.stream))
    scene.hear([], complete=True)
    assert scene.said() == [("b-1", Doubt.NOT_FOLLOWED), ("", "")]


def test_a_bridge_gives_up_only_what_no_other_has_taken_over(scene: Scene) -> None:
    scene.hear([report(ONE), report(TWO)])
    scene.hear([report(ONE)], of="b-2")
    scene.hear([report(ONE, Doubt.NOT_FOLLOWED), report(TWO, Doubt.NOT_FOLLOWED)])
    assert scene.said() == [("b-2", ""), ("b-1", Doubt.NOT_FOLLOWED)]
    scene.hear([report(ONE, Doubt.LINK_DOWN)])
    assert scene.said()[0] == ("b-1", Doubt.LINK_DOWN), "it says that it follows the publisher"


def test_a_bridge_may_give_up_what_nobody_has_spoken_of(scene: Scene) -> None:
    scene.hear([report(ONE, Doubt.NOT_FOLLOWED)])
    assert scene.said()[0] == ("b-1", Doubt.NOT_FOLLOWED)


def test_of_bridges_only_so_many_are_remembered_the_latest(scene: Scene) -> None:
    names = [f"b-{number}" for number in range(BRIDGES_REMEMBERED_MAX)]
    for name in names:
        scene.hear([], of=name)
    scene.hear([], of=names[0])
    assert list(scene.fold.bridges) == [*names[1:], names[0]]
    scene.fold.take_changes()
    scene.hear([], of="another")
    assert list(scene.fold.bridges) == [*names[2:], names[0], "another"]
    changed = scene.fold.take_changes().bridges
    assert changed == {"another": Heartbeat(1.0, 1001.0), names[1]: None}


def test_with_its_registration_a_publisher_leaves_the_scope(scene: Scene) -> None:
    scene.hear([report(ONE)])
    assert scene.state() is AnswerState.UNCONFIRMED
    scene.feed(unregistered_record(TWO))
    assert scene.state() is AnswerState.EXACT
    assert scene.fold.states.publishers(SCOPE) == (ONE.publisher,)


def test_a_fold_that_was_restored_goes_on_with_what_bridges_had_said(scene: Scene) -> None:
    scene.hear([report(ONE), report(TWO)], of="b-2", uptime=9.0)
    for bridge in ("b-1", "b-0"):
        scene.hear([], of=bridge, uptime=3.0)
    fold = scene.fold
    again = Fold(open_kernel(1337, name="reference"))
    unproven = UnprovenState(7)
    again.restore(fold.offset, fold.publishers, fold.registrations, unproven, fold.bridges)
    assert (again.offset, again.unproven) == (fold.offset, unproven)
    assert (again.publishers, again.registrations) == (fold.publishers, fold.registrations)
    assert again.states.verdict(SCOPE, FRESH, 0.0).state is AnswerState.EXACT
    assert list(again.bridges) == ["b-0", "b-1", "b-2"], (
        "the one that was heard of last stands last"
    )
    changes = again.take_changes()
    assert (changes.publishers, changes.registrations, changes.bridges) == ({}, {}, {})
