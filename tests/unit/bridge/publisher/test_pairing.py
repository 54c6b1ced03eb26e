"""A replay socket is believed once it has shown what came live; what another engine replays is told
apart by its bytes. Without sockets.
"""

from collections.abc import Sequence

import pytest

from bridge.link_numbers import LinkNumber
from bridge.publisher.anchor import NO_ANCHOR, Anchor
from bridge.publisher.pairing import LiveBatch, Pairing
from bridge.publisher.repair import RepairStep, ReplayRepair
from bridge.sockets.raw_message import RawMessage
from schemas.answer_states import Doubt
from schemas.positions import Cursor, Proof
from schemas.records import EventsRecord, GapRecord, ResetRecord, SequencedRecord
from tests.unit.bridge.messages import frames_of, registration
from tests.unit.bridge.publisher.sequencers import Sequencers

ONE = registration()
KEY = ONE.publisher
BORN, OTHER = 100.0, 100.5


def batch(number: int, *, born: float = BORN, link: int = 0) -> RawMessage:
    """One that says that the block of its number is gone, of the engine that was born then."""
    return RawMessage(
        KEY,
        frames_of([born + number, [["BlockRemoved", [number]]], 0], number),
        0.0,
        LinkNumber(link),
    )


def batches(count: int, *, born: float = BORN) -> list[RawMessage]:
    return [batch(number, born=born) for number in range(count)]


class Scene:
    """A publisher that is followed over one link after the other, and a replay socket."""

    def __init__(self, anchor: Anchor = NO_ANCHOR) -> None:
        self.sequencer = Sequencers()
        self.sequencer.add(ONE, repairs=True)
        self.sequencer[KEY].set_anchor(anchor)
        self.link = 0
        self.records: list[SequencedRecord] = []
        self.reconnects()

    def reconnects(self) -> None:
        self.link += 1
        self.sequencer[KEY].stream.links.note(LinkNumber(self.link))

    def publishes(self, *numbers: int, born: float = BORN) -> None:
        """What comes live; where something is missing before it, it waits."""
        messages = [batch(number, born=born, link=self.link) for number in numbers]
        self.records += self.sequencer.process(messages, 1.0)

    def is_asked(self, replay: Sequence[RawMessage]) -> Doubt | None:
        """Its replay socket has these; what waits follows."""
        self.sequencer[KEY].hold()
        repair = ReplayRepair(self.sequencer[KEY])
        while repair.begin():
            from_there = replay[repair.start :]
            for records in repair.feed(from_there, 1.0):
                self.records += records
            answer = repair.answer if from_there else RepairStep.MORE
            if answer is RepairStep.MORE:
                answer = repair.end(complete=True)
            if answer is RepairStep.DONE:
                break
        self.records += self.sequencer[KEY].resume(1.0)
        self.sequencer.take_gaps()
        return repair.doubt

    @property
    def told(self) -> list[object]:
        """The batches of the present incarnation, and what is lost of it."""
        found: list[object] = []
        for record in self.records:
            if isinstance(record, ResetRecord):
                found = []
            elif isinstance(record, GapRecord):
                found.append((record.reason, record.first_sequence, record.last_sequence))
            elif isinstance(record, EventsRecord):
                found += [(record.engine_time, n) for n in _numbers(record)]
        return found

    @property
    def is_proven(self) -> bool:
        return self.sequencer[KEY].stream.proven_link == self.link

    @property
    def refused(self) -> int:
        return self.sequencer.counters()[KEY].dropped["replay_differs"]

    @property
    def is_degraded(self) -> bool:
        return any(not isinstance(one, tuple) or isinstance(one[0], str) for one in self.told)


def _numbers(record: EventsRecord) -> range:
    return range(record.first_sequence, record.last_sequence + 1)


# A replay socket of its own


def test_it_is_believed_once_it_has_shown_a_batch_that_came_live() -> None:
    scene = Scene()
    assert scene.is_asked(batches(10)) is Doubt.REPLAY_UNMATCHED
    assert not scene.is_proven
    scene.publishes(10)
    assert scene.is_asked(batches(11)) is None
    assert scene.is_proven


def test_one_that_the_engine_has_named_is_believed_until_it_differs() -> None:
    scene = Scene()
    scene.sequencer[KEY].stream.pairing.vouch()
    assert scene.is_asked(batches(10)) is None
    assert scene.is_proven
    scene.publishes(10)
    assert scene.is_asked(batches(11, born=OTHER)) is Doubt.REPLAY_DIFFERS
    assert scene.refused == 1
    assert not scene.sequencer[KEY].stream.pairing.is_trusted


def test_one_that_follows_while_it_is_asked_is_as_good() -> None:
    scene = Scene()
    scene.sequencer[KEY].hold()
    scene.publishes(10)
    assert scene.is_asked(batches(11)) is None
    assert scene.is_proven


def test_so_is_one_that_comes_live_after_it_was_replayed() -> None:
    scene = Scene()
    assert scene.is_asked(batches(11)) is Doubt.REPLAY_UNMATCHED
    scene.publishes(10)
    assert scene.is_proven
    assert scene.is_asked(batches(11)) is None
    assert scene.sequencer.counters()[KEY].duplicates == 1


def test_one_that_came_live_twice_shows_nothing_of_the_replay() -> None:
    scene = Scene()
    scene.is_asked(batches(10))
    scene.publishes(10, 10)
    assert not scene.is_proven


def test_what_came_live_before_shows_it_where_only_the_log_knows_of_it() -> None:
    anchor = Anchor(Cursor(1, 9), BORN + 9, heard=Proof(9, BORN + 9))
    assert Scene(anchor).is_asked(batches(10)) is None
    unheard = anchor._replace(heard=None)
    assert Scene(unheard).is_asked(batches(10)) is Doubt.REPLAY_UNMATCHED
    restarted = Scene(anchor)
    assert restarted.is_asked(batches(12, born=OTHER)) is Doubt.REPLAY_UNMATCHED
    assert restarted.refused == 0, "it may have come over any link"
    assert restarted.told[:1] == [(OTHER + 11, 0)]
    earlier = anchor._replace(heard=Proof(4, BORN + 4))
    assert Scene(earlier).is_asked(batches(10)) is None, "it is asked from there on"


def test_one_that_was_shown_is_trusted_with_what_it_has_of_the_next_incarnation() -> None:
    scene = Scene()
    scene.publishes(0)
    assert scene.is_asked(batches(3)) is None
    scene.reconnects()
    assert scene.is_asked(batches(5, born=500.0)) is None
    assert scene.is_proven
    scene.publishes(5, born=500.0)
    assert scene.is_asked(batches(6, born=500.0)) is None


def test_what_comes_live_of_that_is_compared_all_the_same() -> None:
    scene = Scene()
    scene.publishes(0)
    assert scene.is_asked(batches(3)) is None
    scene.reconnects()
    assert scene.is_asked(batches(5, born=OTHER)) is None
    scene.publishes(1, born=500.0)
    scene.is_asked(batches(5, born=OTHER))
    assert scene.told == [("joined_late", 0, 0), (501.0, 1)]
    assert scene.is_asked(batches(5, born=OTHER)) is Doubt.REPLAY_DIFFERS
    scene.reconnects()
    assert scene.is_asked(batches(8, born=900.0)) is Doubt.REPLAY_UNMATCHED, "no longer"


def test_after_a_live_clear_nothing_is_left_that_could_be_anothers() -> None:
    scene = Scene()
    assert scene.is_asked(batches(10, born=OTHER)) is Doubt.REPLAY_UNMATCHED
    clears = frames_of([BORN + 10, [["AllBlocksCleared"]], 0], 10)
    assert scene.sequencer.process([RawMessage(KEY, clears, 0.0, LinkNumber(scene.link))], 1.0)
    assert scene.is_proven


# Another engine's


@pytest.mark.parametrize(("has", "other_has"), [(10, 25), (25, 10), (10, 10), (0, 10), (10, 0)])
@pytest.mark.parametrize("goes_on", [False, True])
def test_the_replay_of_another_engine_confirms_nothing(
    has: int, other_has: int, goes_on: bool
) -> None:
    """Late, and then for each batch, as often as it is asked; the other one may publish, too."""
    scene = Scene()
    other = batches(other_has, born=OTHER)
    assert scene.is_asked(other) is Doubt.REPLAY_UNMATCHED
    assert not scene.is_proven
    for number in range(has, has + 6):
        scene.publishes(number)
        for _ in range(3):
            if goes_on:
                other.append(batch(len(other), born=OTHER))
            doubt = scene.is_asked(other)
            is_all_live = scene.told == [(BORN + one, one) for one in range(number + 1)]
            assert doubt is not None
            assert scene.is_degraded or is_all_live or not scene.is_proven


@pytest.mark.parametrize("other_has", [1, 25])
def test_an_engine_that_begins_over_our_link_is_known_without_its_replay(other_has: int) -> None:
    scene = Scene()
    scene.is_asked(batches(other_has, born=OTHER))
    scene.publishes(0)
    scene.is_asked(batches(other_has, born=OTHER))
    assert scene.is_proven
    assert scene.told == [(BORN, 0)]
    assert scene.is_asked(batches(30, born=OTHER)) is Doubt.REPLAY_DIFFERS
    assert scene.told == [(BORN, 0)]
    assert scene.refused


def test_what_was_taken_of_it_is_withdrawn_and_what_came_live_meanwhile_is_lost() -> None:
    scene = Scene()
    scene.is_asked(batches(10, born=OTHER))
    scene.publishes(10, 11)
    assert scene.is_asked(batches(12, born=OTHER)) is Doubt.REPLAY_DIFFERS
    assert scene.told == [("replay_differs", 0, 11)]
    scene.publishes(12)
    assert scene.told[1:] == [(BORN + 12, 12)]
    assert scene.refused == 1
    assert scene.is_asked(batches(20, born=OTHER)) is Doubt.REPLAY_DIFFERS
    assert scene.told[1:] == [(BORN + 12, 12)], "of one incarnation it withdraws nothing twice"


def test_it_repairs_no_gap() -> None:
    scene = Scene()
    scene.publishes(0, 1)
    assert scene.is_asked(batches(2)) is None
    scene.publishes(5)
    assert scene.is_asked(batches(9, born=OTHER)) is Doubt.REPLAY_DIFFERS
    assert scene.told[-2:] == [("missed", 2, 4), (BORN + 5, 5)]


def test_where_it_has_not_come_as_far_it_is_no_restart_over_the_same_link() -> None:
    scene = Scene()
    scene.publishes(*range(10))
    assert scene.is_asked(batches(10)) is None
    before = scene.told
    assert scene.is_asked(batches(4, born=OTHER)) is Doubt.NOTHING_REPLAYED
    assert scene.told == before


def test_over_another_link_it_may_be_a_restart_and_is_shown_by_what_comes_next() -> None:
    scene = Scene()
    scene.publishes(*range(10))
    assert scene.is_asked(batches(10)) is None
    scene.reconnects()
    assert scene.is_asked(batches(12, born=OTHER)) is None
    scene.publishes(10)
    scene.is_asked(batches(12, born=OTHER))
    assert scene.told == [("joined_late", 0, 9), (BORN + 10, 10)]
    assert scene.is_asked(batches(12, born=OTHER)) is Doubt.REPLAY_DIFFERS
    assert scene.told == [("joined_late", 0, 9), (BORN + 10, 10)]


def test_a_restart_that_is_asked_before_its_link_is_seen_to_end_is_found_when_that_is() -> None:
    scene = Scene()
    scene.publishes(0, 1, 2)
    assert scene.is_asked(batches(4, born=500.0)) is Doubt.REPLAY_DIFFERS
    scene.reconnects()
    assert scene.is_asked(batches(4, born=500.0)) is Doubt.REPLAY_UNMATCHED
    scene.publishes(4, born=500.0)
    assert scene.is_asked(batches(5, born=500.0)) is None


# The memory


def test_a_batch_that_came_live_is_recognised_by_its_bytes_or_by_its_time() -> None:
    decoded = Sequencers()
    decoded.add(ONE)
    same, other = decoded.decode(batch(3)), decoded.decode(batch(3, born=OTHER))
    assert same is not None
    assert other is not None
    known = LiveBatch(3, same.digest, 0.0, LinkNumber(1))
    assert (known.recognises(same), known.recognises(other)) == (True, False)
    logged = LiveBatch(3, None, BORN + 3, LinkNumber(0))
    assert (logged.recognises(same), logged.recognises(other)) == (True, False)
    timeless = LiveBatch(3, None, 0.0, LinkNumber(0))
    assert timeless.recognises(same) is None
    assert known._replace(sequence=4).recognises(same) is None


def test_what_was_shown_stays_open_where_the_reply_did_not_begin_in_the_log() -> None:
    pairing = Pairing()
    pairing.note_replayed()
    pairing.show(is_anchored=False)
    assert (pairing.is_shown, pairing.is_open) == (True, True)
    pairing.note_replayed()
    assert pairing.is_open
    pairing.show(is_anchored=True)
    assert (pairing.is_shown, pairing.is_open) == (True, False)
    pairing.note_replayed()
    assert not pairing.is_open
