"""How a publisher goes on that another bridge has written of until now, and both have received."""

import pytest

from bridge.link_numbers import LinkNumber
from bridge.publisher import held_batches
from bridge.publisher.anchor import NO_JOINT, Anchor, Joint
from bridge.sockets.raw_message import RawMessage
from schemas.positions import Cursor, Proof
from schemas.records import EventsRecord, ResetRecord
from tests.unit.bridge.publisher.sequencers import Sequencers
from tests.unit.bridge.publisher.test_holding import KEY, LAST, live
from tests.unit.bridge.publisher.test_sequencer import ONE

LINK = LinkNumber(1)


def waiting(*messages: RawMessage, anchor: Anchor = LAST) -> Sequencers:
    """A publisher that is followed for the first time, and of which the log has that."""
    sequencer = Sequencers()
    sequencer.add(ONE)
    sequencer[KEY].hold()
    assert sequencer.process(messages, 1.0) == []
    sequencer[KEY].set_anchor(anchor)
    return sequencer


def numbers(sequencer: Sequencers) -> list[tuple[int, int, bool]]:
    """Of what goes on: the incarnation, the number of each batch, and whether it is doubted."""
    return [
        (one.incarnation, number, one.doubted is True)
        for one in sequencer[KEY].resume(1.0)
        if isinstance(one, EventsRecord)
        for number in range(one.first_sequence, one.last_sequence + 1)
    ]


def test_what_came_to_both_is_dropped_and_proves_the_link() -> None:
    sequencer = waiting(*(live(one, link=LINK) for one in (7, 8, 9, 10, 11)))
    assert sequencer[KEY].has_in_common(LAST)
    sequencer[KEY].join(Joint(LinkNumber(0), is_whole=True))
    assert sequencer[KEY].waiting == 2
    assert sequencer.counters()[KEY].duplicates == 3
    assert sequencer[KEY].stream.proven_link == LINK
    assert numbers(sequencer) == [(1, 10, False), (1, 11, False)]


def test_without_the_word_of_the_other_bridge_nothing_is_lost_and_nothing_confirmed() -> None:
    sequencer = waiting(live(9, link=LINK), live(10, link=LINK))
    sequencer[KEY].join(NO_JOINT)
    assert sequencer[KEY].stream.proven_link == 0
    assert numbers(sequencer) == [(1, 10, False)]


def test_a_link_that_has_brought_nothing_is_proven_by_the_word_of_the_other_bridge() -> None:
    sequencer = waiting()
    assert not sequencer[KEY].has_in_common(LAST)
    sequencer[KEY].join(Joint(LINK, is_whole=True))
    assert sequencer[KEY].stream.proven_link == LINK
    sequencer.process([live(10, link=LINK)], 1.0)
    assert numbers(sequencer) == [(1, 10, False)]


def test_a_batch_of_the_logs_number_and_another_time_is_not_in_common() -> None:
    sequencer = waiting(live(9, 9.5, link=LINK))
    assert not sequencer[KEY].has_in_common(LAST)
    sequencer[KEY].join(Joint(LinkNumber(0), is_whole=True))
    assert sequencer[KEY].stream.proven_link == 0
    assert isinstance(sequencer[KEY].resume(1.0)[0], ResetRecord)


def test_what_is_doubted_in_the_log_stays_doubted() -> None:
    doubted = LAST._replace(proof=Proof(5, 5.0))
    sequencer = waiting(live(9, link=LINK), live(10, link=LINK), anchor=doubted)
    sequencer[KEY].join(Joint(LinkNumber(0), is_whole=True))
    assert sequencer[KEY].stream.proven_link == 0
    assert numbers(sequencer) == [(1, 10, True)]


def test_an_engine_that_has_restarted_meanwhile_goes_on_in_its_next_incarnation() -> None:
    """Its keeper had written of the life before only."""
    sequencer = waiting(
        live(9, link=LINK), live(10, link=LINK), live(0, 20.0, link=2), live(1, 21.0, link=2)
    )
    sequencer[KEY].join(Joint(LinkNumber(0), is_whole=True))
    assert numbers(sequencer) == [(1, 10, False), (2, 0, False), (2, 1, False)]


def test_the_keeper_has_seen_the_restart() -> None:
    anchor = Anchor(Cursor(2, 0), 20.0)
    sequencer = waiting(
        live(10, link=LINK), live(0, 20.0, link=2), live(1, 21.0, link=2), anchor=anchor
    )
    sequencer[KEY].join(Joint(LinkNumber(0), is_whole=True))
    assert sequencer[KEY].stream.proven_link == 2
    assert numbers(sequencer) == [(2, 1, False)]


@pytest.mark.parametrize("room", [2, 3, 9])
def test_behind_a_gap_the_last_batch_that_came_live_tells(
    monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Neither bridge had room for all; what the log says is lost is no life of its own."""
    monkeypatch.setattr(held_batches, "HELD_BATCHES_MAX", room)
    gap = Anchor(Cursor(1, 12), 0.0, heard=Proof(9, 9.0))
    sequencer = waiting(*(live(one, link=LINK) for one in range(8, 13)), anchor=gap)
    assert sequencer[KEY].has_in_common(gap)
    sequencer[KEY].join(Joint(LinkNumber(0), is_whole=True))
    assert sequencer[KEY].waiting == 0
    assert numbers(sequencer) == []
    sequencer.process([live(13, link=LINK)], 1.0)
    assert sequencer[KEY].stream.anchor.cursor == Cursor(1, 13)


def test_behind_a_gap_another_life_is_one() -> None:
    gap = Anchor(Cursor(1, 12), 0.0, heard=Proof(9, 9.0))
    sequencer = waiting(live(9, link=LINK), live(10, 20.0, link=2), anchor=gap)
    sequencer[KEY].join(Joint(LinkNumber(0), is_whole=True))
    assert sequencer[KEY].waiting == 1
    assert numbers(sequencer) == [(2, 10, False)]


@pytest.mark.parametrize("time", [0.0, 9.0])
def test_batches_are_told_by_their_time(time: float) -> None:
    anchor = LAST._replace(engine_time=time, heard=None)
    sequencer = waiting(live(9, link=LINK), anchor=anchor)
    assert sequencer[KEY].has_in_common(anchor) is (time > 0)


def test_a_link_proves_nothing_before_the_next_batch_where_the_log_lacks_what_it_brought() -> None:
    """It was taken, and could not be written before the publisher was given up."""
    sequencer = waiting()
    sequencer[KEY].resume(1.0)
    sequencer.process([live(10, link=LINK), live(11, link=LINK)], 1.0)
    sequencer[KEY].hold()
    sequencer[KEY].set_anchor(Anchor(Cursor(1, 10), 10.0))
    sequencer[KEY].stream.prove(LINK)
    assert sequencer[KEY].stream.proven_link == 0
    sequencer.process([live(12, link=LINK)], 1.0)
    gap, events = sequencer[KEY].resume(1.0)
    assert (gap.first_sequence, gap.last_sequence) == (11, 11)
    assert isinstance(events, EventsRecord)


def test_what_came_over_a_link_on_which_its_engine_was_not_asked_is_asked_for() -> None:
    """It was started again while it was asked: its replay has what is missing."""
    sequencer = Sequencers()
    sequencer.add(ONE, repairs=True)
    sequencer[KEY].set_anchor(LAST)
    sequencer[KEY].stream.links.note(LinkNumber(1))
    sequencer[KEY].hold()
    sequencer.process([live(2, 20.0, link=2)], 1.0)
    assert sequencer[KEY].resume(1.0) == []
    assert sequencer.take_gaps() == [KEY]
    sequencer[KEY].stream.links.note(LinkNumber(2))
    sequencer[KEY].hold()
    reset, gap, events = sequencer[KEY].resume(1.0)
    assert isinstance(reset, ResetRecord)
    assert (gap.first_sequence, gap.last_sequence) == (0, 1)
    assert isinstance(events, EventsRecord)
