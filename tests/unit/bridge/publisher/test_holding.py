"""What waits while a publisher is held, how much of it, and in what order it goes on."""

import msgspec
import pytest

from bridge.link_numbers import LinkNumber
from bridge.publisher import held_batches
from bridge.publisher import sequencer as sequencer_module
from bridge.publisher.anchor import Anchor
from bridge.publisher.causes import MISSED, RESTARTED
from bridge.sockets.raw_message import RawMessage
from bridge.wire import DecodedBatch
from bridge.wire.drop_reasons import DropReason
from schemas.clock import REAL_CLOCK
from schemas.positions import Cursor, Proof
from schemas.records import SequencedRecord
from tests.unit.bridge.publisher.sequencers import Sequencers
from tests.unit.bridge.publisher.test_sequencer import ONE, TWO, bad_message, removed, told

KEY = ONE.publisher
LAST = Anchor(Cursor(1, 9), 9.0, heard=Proof(9, 9.0))


def live(sequence: int, at: float | None = None, *, link: int = 0) -> RawMessage:
    """A batch at the time of its number, unless another is given."""
    at = float(sequence) if at is None else at
    payload = msgspec.msgpack.encode([at, [["BlockRemoved", [sequence]]], 0])
    return RawMessage(KEY, [b"", sequence.to_bytes(8, "big"), payload], 0.0, LinkNumber(link))


def following(*, repairs: bool = True) -> Sequencers:
    """One publisher, which goes on from its last batch in the log."""
    sequencer = Sequencers()
    sequencer.add(ONE, repairs=repairs)
    sequencer[KEY].set_anchor(LAST)
    return sequencer


def holding(*waiting: RawMessage, repairs: bool = True) -> Sequencers:
    sequencer = following(repairs=repairs)
    sequencer[KEY].hold()
    assert sequencer.process(waiting, 1.0) == []
    return sequencer


def resumed(sequencer: Sequencers) -> list[object]:
    return told(sequencer[KEY].resume(1.0))


def test_of_one_that_is_not_held_nothing_waits() -> None:
    sequencer = following()
    assert sequencer[KEY].stream.anchor == LAST
    assert sequencer[KEY].is_held is False
    assert (sequencer[KEY].waiting, sequencer[KEY].first_waiting()) == (0, None)
    assert sequencer[KEY].misses() is False


# What is missing


def test_batches_are_missing_before_what_waits_or_up_to_what_is_known_to_have_been_sent() -> None:
    assert holding()[KEY].misses() is False
    assert holding(live(9), live(10))[KEY].misses() is False
    assert holding(live(11))[KEY].misses() is True
    sequencer = holding(live(10))
    sequencer[KEY].expect(Cursor(1, 12), "why")
    assert sequencer[KEY].misses() is True
    assert resumed(sequencer) == [removed(10, 10)]
    sequencer[KEY].hold()
    assert sequencer[KEY].misses() is False, "that was of the wait before"


def test_what_the_log_has_is_left_out_of_what_waited_and_counted() -> None:
    sequencer = holding(live(8), live(9), live(10))
    assert resumed(sequencer) == [removed(10, 10)]
    counters = sequencer.counters()[KEY]
    assert (counters.duplicates, counters.batches, sequencer[KEY].stream.arrivals.messages) == (
        2,
        1,
        3,
    )


# Links


@pytest.mark.parametrize("repairs", [True, False])
def test_another_link_holds_a_publisher_that_can_be_asked_what_it_has_sent(repairs: bool) -> None:
    sequencer = following(repairs=repairs)
    records = sequencer.process([live(10, link=1), live(11, link=1)], 1.0)
    assert sequencer[KEY].is_held is repairs
    assert sequencer.take_gaps() == ([KEY] if repairs else [])
    assert told(records) == ([] if repairs else [removed(10, 10), removed(11, 11)])
    assert sequencer[KEY].stream.is_doubted is not repairs


def test_another_link_changes_nothing_of_what_waits_already() -> None:
    sequencer = holding(live(10, link=1), live(11, link=2))
    assert sequencer[KEY].waiting == 2
    assert sequencer.take_gaps() == []


def test_over_a_link_that_its_engine_was_asked_on_a_publisher_is_not_held() -> None:
    sequencer = following()
    sequencer[KEY].stream.links.adopt(LinkNumber(2), heard=LinkNumber(1))
    assert told(sequencer.process([live(10, link=2)], 1.0)) == [removed(10, 10)]
    sequencer[KEY].stream.links.adopt(LinkNumber(1), heard=LinkNumber(2))
    assert sequencer[KEY].stream.links.last == 2, "the last one counts"


def test_what_is_replayed_says_nothing_of_how_long_it_is_silent() -> None:
    sequencer = following()
    before = sequencer[KEY].stream.arrivals.messages
    assert sequencer.decode(live(9, link=0)) is not None
    sequencer.decode(bad_message(10))
    assert sequencer[KEY].stream.arrivals.messages == before
    sequencer.process([live(10, link=1)], 1.0)
    assert sequencer[KEY].stream.arrivals.messages == before + 1


def test_how_late_batches_come_is_told_by_their_own_times_over_each_link() -> None:
    sequencer = following(repairs=False)
    sequencer.process([bad_message(10)._replace(link=LinkNumber(1))], 9.0)
    for number, received_at in ((11, 10.0), (12, 10.25)):
        message = live(number, number / 64, link=1)._replace(received_at=received_at)
        our_clock = 1000.0 * number  # its steps say nothing
        sequencer.process([message], our_clock)
    assert sequencer[KEY].stream.arrivals.lateness.late_s == 0.25 - 1 / 64
    sequencer.process([bad_message(13)._replace(link=LinkNumber(1))], 99.0)
    assert sequencer[KEY].stream.arrivals.lateness.late_s == 0.25 - 1 / 64, "it says no time"
    sequencer.process([live(14, link=2)], 99.0)
    assert sequencer[KEY].stream.arrivals.lateness.late_s == 0.0


# Room


def test_what_waits_of_all_publishers_has_room_for_so_many_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches = [live(number) for number in (10, 11, 12, 14, 15)]
    size = batches[0].size_bytes
    monkeypatch.setattr(held_batches, "HELD_BYTES_MAX", 3 * size)
    sequencer = holding(*batches[:2])
    sequencer.add(TWO)
    sequencer[TWO.publisher].hold()
    for batch in batches[:2]:
        sequencer.process([batch._replace(publisher=TWO.publisher)], 1.0)
    assert (sequencer[KEY].waiting, sequencer[TWO.publisher].waiting) == (2, 1)
    assert sequencer.held_bytes == 3 * size
    assert sequencer.counters()[TWO.publisher].dropped == {DropReason.HELD_FULL: 1}
    sequencer.remove(TWO.publisher)
    assert sequencer.held_bytes == 2 * size


def test_of_one_that_is_removed_in_the_middle_of_its_wait_nothing_takes_room() -> None:
    sequencer = holding(live(10), live(15), live(16))
    assert resumed(sequencer) == [removed(10, 10)]
    assert sequencer.take_gaps() == [KEY]
    assert sequencer.held_bytes == 2 * live(15).size_bytes
    sequencer.remove(KEY)
    assert sequencer.held_bytes == 0


# Incarnations


def released(sequencer: Sequencers, before_time: float) -> list[SequencedRecord]:
    return [one for records in sequencer[KEY].release(before_time, 1.0) for one in records]


def test_what_waits_of_the_incarnation_before_is_what_is_older_and_goes_on_rising() -> None:
    waiting = [live(9), live(11), bad_message(12), live(13), live(13, 53.0), live(14, 54.0)]
    sequencer = holding(*waiting)
    assert told(released(sequencer, 54.0)) == [
        (MISSED, 1, 10, 10),
        removed(11, 11),
        removed(13, 13),
    ]
    assert sequencer[KEY].stream.cursor == Cursor(1, 13)
    assert sequencer[KEY].waiting == 2, "the number of the first one has been seen"


def test_what_is_not_older_than_the_new_incarnation_is_of_that_one() -> None:
    sequencer = holding(live(10), live(11, 53.0))
    assert told(released(sequencer, 53.0)) == [removed(10, 10)]
    assert sequencer[KEY].waiting == 1


def test_of_a_new_incarnation_nothing_is_doubted_or_lost_yet() -> None:
    sequencer = following(repairs=False)
    sequencer.process([live(12, link=1)], 1.0)
    assert sequencer[KEY].stream.is_doubted
    assert sequencer[KEY].stream.proven == Proof(9, 9.0)
    assert told(sequencer[KEY].begin_incarnation(1.0, link=LinkNumber(1))) == [
        (RESTARTED, 2, -1, -1)
    ]
    assert not sequencer[KEY].stream.is_doubted
    assert sequencer.counters()[KEY].restarts == 1
    gap, *_ = sequencer.process([bad_message(0)._replace(link=LinkNumber(1))], 1.0)
    assert told([gap]) == [(DropReason.UNDECODABLE, 2, 0, 0)], "a loss of its own"


@pytest.mark.parametrize("turn_s", [-1.0, 10.0])
def test_of_the_process_before_what_comes_while_its_end_is_written_is_written_too(
    monkeypatch: pytest.MonkeyPatch, turn_s: float
) -> None:
    monkeypatch.setattr(sequencer_module, "HELD_TURN_S", turn_s)
    sequencer = holding(live(10, link=1))
    records: list[SequencedRecord] = []
    for more in sequencer[KEY].begin_process(1.0, last_link=LinkNumber(1), link=LinkNumber(2)):
        records += more
        if len(records) == 1:  # it is handed on, which takes time
            assert sequencer.process([live(11, link=1)], 1.0) == []
    assert told(records) == [removed(10, 10), removed(11, 11), (RESTARTED, 2, -1, -1)]


def test_of_the_process_before_what_comes_behind_its_reset_is_dropped_and_counted() -> None:
    sequencer = holding()
    list(sequencer[KEY].begin_process(1.0, last_link=LinkNumber(1), link=LinkNumber(2)))
    assert sequencer.process([live(20, link=1), live(21, link=1), live(0, link=2)], 1.0) == []
    assert sequencer[KEY].waiting == 1
    assert sequencer.counters()[KEY].dropped == {DropReason.EARLIER_INCARNATION: 2}
    assert resumed(sequencer) == [removed(0, 0)]
    assert sequencer[KEY].stream.cursor == Cursor(2, 0)


@pytest.mark.parametrize(("link", "lost"), [(1, False), (2, True)])
def test_what_had_no_room_goes_with_its_process(
    monkeypatch: pytest.MonkeyPatch, link: int, lost: bool
) -> None:
    monkeypatch.setattr(held_batches, "HELD_BATCHES_MAX", 1)
    sequencer = holding(live(10, link=1), live(3, 50.0, link=link), repairs=False)
    list(sequencer[KEY].begin_process(1.0, last_link=LinkNumber(1), link=LinkNumber(2)))
    assert bool(resumed(sequencer)) is lost


@pytest.mark.parametrize(("at", "lost"), [(13.0, False), (60.0, True)])
def test_what_had_no_room_is_a_gap_of_its_own_incarnation_alone(
    monkeypatch: pytest.MonkeyPatch, at: float, lost: bool
) -> None:
    """A replay shows that another one has begun at 50."""
    monkeypatch.setattr(held_batches, "HELD_BATCHES_MAX", 0)
    sequencer = holding(live(13, at), repairs=False)
    list(sequencer[KEY].release(50.0, 1.0))
    sequencer[KEY].begin_incarnation(1.0, link=LinkNumber(1))
    assert bool(resumed(sequencer)) is lost


def test_a_process_that_has_sent_nothing_is_not_proven_by_the_end_of_the_one_before() -> None:
    """What it published before its link came up has not been heard."""
    sequencer = holding()
    list(sequencer[KEY].begin_process(1.0, last_link=LinkNumber(1), link=LinkNumber(2)))
    assert sequencer[KEY].stream.proven_link == 0


def test_of_a_new_incarnation_no_time_is_known_before_a_batch_that_can_be_read() -> None:
    """That of the one before would say of which process it is."""
    sequencer = holding(repairs=False)
    sequencer[KEY].begin_incarnation(1.0, link=LinkNumber(1))
    sequencer[KEY].resume(1.0)
    sequencer.process([bad_message(0)._replace(link=LinkNumber(1))], 1.0)
    assert sequencer[KEY].stream.proven == Proof(0, 0.0)


@pytest.mark.parametrize(
    ("at", "dropped"), [(Cursor(2, -1), 1), (Cursor(1, -1), 0), (Cursor(2, 0), 0)]
)
def test_of_an_incarnation_without_batches_what_came_before_its_processs_link_is_dropped(
    at: Cursor, dropped: int
) -> None:
    """Another bridge has written its reset, and this one has held what the process before sent."""
    sequencer = Sequencers()
    sequencer.add(ONE)
    sequencer[KEY].set_anchor(Anchor(at, 0.0))
    sequencer[KEY].hold()
    sequencer.process([live(0, link=2), live(0, 50.0, link=3)], 1.0)
    sequencer[KEY].begin_at(LinkNumber(3))
    assert sequencer.counters()[KEY].dropped.get(DropReason.EARLIER_INCARNATION, 0) == dropped
    assert sequencer[KEY].waiting == 2 - dropped
    sequencer.process([live(1, link=2)], 1.0)
    assert sequencer[KEY].waiting == (1 if dropped else 3), "what comes of it later, too"


# Decoding ahead


def test_what_is_decoded_ahead_gives_the_same_records() -> None:
    one, two = following(repairs=False), following(repairs=False)
    message = live(10)
    batch = one[KEY].decode_ahead(message)
    assert isinstance(batch, DecodedBatch)
    assert batch.run
    records = one.process([message._replace(batch=batch)], 1.0)
    assert records == two.process([message], 1.0)
    assert told(records) == [removed(10, 10)]


def test_what_cannot_be_decoded_ahead_is_left_to_whoever_counts_it() -> None:
    sequencer = following()
    assert sequencer[KEY].decode_ahead(live(10)._replace(frames=[b"?"])) is None
    assert sequencer.faults == 0
    assert sequencer.counters()[KEY].dropped == {}


@pytest.mark.parametrize("repairs", [False, True])
def test_what_waited_proves_no_link_that_came_after_it(repairs: bool) -> None:
    """Over that one may come another run of the engine, which has come exactly as far."""
    sequencer = holding(live(0, 100.0, link=1), live(1, 501.0, link=2), repairs=repairs)
    resumed(sequencer)
    assert sequencer[KEY].stream.proven_link == 0
    assert sequencer[KEY].stream.proven == Proof(0, 100.0)


def test_a_clear_that_waited_proves_no_link_that_came_after_it() -> None:
    clear = msgspec.msgpack.encode([100.0, [["AllBlocksCleared"]], 0])
    cleared = RawMessage(KEY, [b"", (10).to_bytes(8, "big"), clear], 0.0, LinkNumber(1))
    sequencer = holding(cleared, live(11, 501.0, link=2))
    resumed(sequencer)
    assert sequencer[KEY].stream.proven_link == 0
    assert sequencer[KEY].stream.proven == Proof(10, 100.0)


def test_what_came_over_an_earlier_link_can_be_dropped() -> None:
    sequencer = holding(live(9, link=1), live(12, link=1), live(13, link=2))
    assert sequencer[KEY].drop_earlier(LinkNumber(2)) is True
    waiting = sequencer[KEY].first_waiting()
    assert waiting is not None
    assert (waiting.sequence, sequencer[KEY].waiting) == (13, 1)
    assert sequencer.counters()[KEY].dropped == {DropReason.EARLIER_INCARNATION: 1}, "9 is older"
    assert sequencer[KEY].drop_earlier(LinkNumber(2)) is False


@pytest.mark.parametrize(("link", "lost"), [(1, []), (2, [(DropReason.HELD_FULL, 1, 10, 14)])])
def test_what_had_no_room_goes_with_what_waited_of_its_link(
    monkeypatch: pytest.MonkeyPatch, link: int, lost: list[object]
) -> None:
    monkeypatch.setattr(held_batches, "HELD_BATCHES_MAX", 1)
    sequencer = holding(live(12, link=1), live(14, link=link))
    assert sequencer.counters()[KEY].dropped == {DropReason.HELD_FULL: 1}
    assert sequencer[KEY].drop_earlier(LinkNumber(3)) is True
    sequencer[KEY].resume(1.0)
    assert sequencer.take_gaps() == ([KEY] if lost else []), "it is asked for, or is of no account"
    assert told(sequencer[KEY].resume(1.0)) == lost


def test_what_came_over_a_link_that_is_not_known_is_not_dropped() -> None:
    sequencer = holding(live(12))
    assert sequencer[KEY].drop_earlier(LinkNumber(2)) is False
    assert sequencer[KEY].waiting == 1
    assert following()[KEY].drop_earlier(LinkNumber(2)) is False, "nothing waits"


# In turns


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock by which one batch takes longer than a turn."""
    now = iter(range(10**6))
    clock = REAL_CLOCK._replace(monotonic=lambda: float(next(now)))
    monkeypatch.setattr("tests.unit.bridge.publisher.sequencers.CLOCK", clock)


@pytest.mark.usefixtures("one_at_a_time")
def test_what_waited_follows_in_parts_where_it_takes_long() -> None:
    sequencer = holding(live(10), live(11), live(12))
    parts: list[list[object]] = []
    while not parts or sequencer[KEY].is_resuming:
        assert sequencer[KEY].is_held
        parts.append(told(sequencer[KEY].resume(1.0, until=0.0)))
        if len(parts) == 1:
            sequencer.process([live(13)], 1.0)
    assert parts == [[removed(number, number)] for number in range(10, 14)]
    assert not sequencer[KEY].is_held
    assert sequencer.held_bytes == 0


@pytest.mark.usefixtures("one_at_a_time")
def test_a_gap_in_a_later_part_of_what_waited_holds_the_publisher_again() -> None:
    sequencer = holding(live(12), live(13), live(20))
    parts = [told(sequencer[KEY].resume(1.0, until=0.0)) for _ in range(3)]
    assert parts == [[(MISSED, 1, 10, 11), removed(12, 12)], [removed(13, 13)], []]
    assert sequencer.take_gaps() == [KEY]
    assert not sequencer[KEY].is_resuming
    assert sequencer[KEY].is_held


@pytest.mark.usefixtures("one_at_a_time")
def test_who_is_held_again_between_two_parts_has_a_gap_before_the_next_one_told_at_once() -> None:
    sequencer = holding(live(10), live(11), live(14))
    assert told(sequencer[KEY].resume(1.0, until=0.0)) == [removed(10, 10)]
    sequencer[KEY].hold()
    assert not sequencer[KEY].is_resuming
    assert sequencer[KEY].first_waiting() is not None
    batch = sequencer.decode(live(11))
    assert batch is not None
    sequencer[KEY].accept([batch], 1.0, link=LinkNumber(0))
    assert told(sequencer[KEY].resume(1.0)) == [(MISSED, 1, 12, 13), removed(14, 14)]


@pytest.mark.usefixtures("one_at_a_time")
def test_what_waited_of_the_incarnation_before_is_written_in_parts_where_it_takes_long() -> None:
    sequencer = holding(live(10), live(11), live(12), live(13, 54.0))
    parts = [told(records) for records in sequencer[KEY].release(54.0, 1.0)]
    assert [one for part in parts for one in part] == [removed(n, n) for n in range(10, 13)]
    assert len(parts) > 2
    assert sequencer[KEY].waiting == 1


@pytest.mark.usefixtures("one_at_a_time")
def test_only_so_many_messages_are_processed_as_there_is_time_for() -> None:
    sequencer = following(repairs=False)
    messages = [live(10), live(11), live(14)]
    told_of = []
    while messages:
        records, count = sequencer.process_until(messages, 1.0, 0.0)
        assert count >= 1
        told_of.append(told(records))
        messages = messages[count:]
    assert [one for part in told_of for one in part] == told(
        following(repairs=False).process([live(10), live(11), live(14)], 1.0)
    )
    assert len(told_of) > 1


def test_what_the_log_has_is_looked_at_once_however_much_of_it_waits() -> None:
    """An engine that repeats itself while its replay goes on would stop all others."""
    sequencer = holding(*(live(number) for number in range(1, 9)), live(10))
    first = sequencer[KEY].first_waiting()
    assert first is not None
    assert first.sequence == 10
    assert sequencer[KEY].waiting == 1
    assert sequencer.counters()[KEY].duplicates == 8


def test_the_first_loss_of_a_publisher_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    sequencer = following(repairs=False)
    sequencer.process([live(12), live(14), live(16)], 1.0)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("Batches 10 to 11 of ")
    assert "are lost (missed)" in line
