"""What one repair asks for, takes and confirms; without sockets."""

import msgspec
import pytest

from bridge.link_numbers import LinkNumber
from bridge.publisher.anchor import NO_ANCHOR, Anchor
from bridge.publisher.repair import (
    REPLAY_BARREN_MAX,
    REPLAY_REQUESTS_MAX,
    RepairResult,
    RepairStep,
    ReplayRepair,
)
from bridge.sockets.raw_message import RawMessage
from schemas.answer_states import Doubt
from schemas.limits import REPLAY_OVERLAP_BATCHES
from schemas.positions import NO_CURSOR, Cursor, Proof
from schemas.records import EventsRecord, GapRecord, ResetRecord, SequencedRecord
from tests.unit.bridge.messages import registration
from tests.unit.bridge.publisher.sequencers import Sequencers

ONE = registration()
KEY = ONE.publisher
LAST = Anchor(Cursor(1, 9), 9.0, heard=Proof(9, 9.0))
FORTY = Anchor(Cursor(1, 40), 9.0, heard=Proof(40, 9.0))
LINK = LinkNumber(7)


def message(sequence: int, time: float | None = None, *, link: int = LINK) -> RawMessage:
    """A batch at the time of its number, unless another is given."""
    at = float(sequence) if time is None else time
    payload = msgspec.msgpack.encode([at, [["BlockRemoved", [sequence]]], 0])
    return RawMessage(KEY, [b"", sequence.to_bytes(8, "big"), payload], 0.0, LinkNumber(link))


def as_message(batch: RawMessage | int) -> RawMessage:
    return message(batch) if isinstance(batch, int) else batch


def garbled(sequence: int) -> RawMessage:
    """A batch of which nothing can be read but its number."""
    return RawMessage(KEY, [b"", sequence.to_bytes(8, "big"), b"\xc1"], 0.0, LINK)


class Scene:
    """A publisher whose last batch in the log is known, held while its live batches wait."""

    def __init__(self, *waiting: RawMessage | int, anchor: Anchor = LAST) -> None:
        self.sequencer = Sequencers()
        self.sequencer.add(ONE, repairs=True)
        self.sequencer[KEY].set_anchor(anchor)
        self.sequencer[KEY].hold()
        self.sends(*waiting)
        self.repair = ReplayRepair(self.sequencer[KEY])
        self.records: list[SequencedRecord] = []

    def sends(self, *batches: RawMessage | int) -> None:
        assert self.sequencer.process([*map(as_message, batches)], 1.0) == []

    def replays(self, *replies: RawMessage | int) -> RepairStep:
        """What comes of these replies, the request's first ones."""
        assert self.repair.begin()
        for records in self.repair.feed(map(as_message, replies), 1.0):
            self.records += records
        return self.repair.answer

    def ends(self, *, complete: bool = True) -> RepairStep:
        return self.repair.end(complete=complete)

    @property
    def cursor(self) -> Cursor:
        return self.sequencer[KEY].stream.cursor


def test_a_reply_from_the_logs_last_batch_to_what_waits_confirms() -> None:
    scene = Scene(12)
    assert scene.repair.doubt is Doubt.REPLAY_SILENT, "before any answer"
    assert scene.repair.start == 9
    assert scene.replays(9, 10, 11, 12) is RepairStep.DONE
    assert scene.cursor == Cursor(1, 11)
    assert (scene.repair.replayed, scene.repair.requests) == (2, 1)
    assert scene.repair.doubt is None
    assert scene.sequencer[KEY].stream.proven_link == LINK


def test_a_reply_without_the_logs_last_batch_confirms_nothing() -> None:
    scene = Scene(12)
    assert scene.replays(10, 11, 12) is RepairStep.DONE
    assert scene.cursor == Cursor(1, 11)
    assert scene.repair.doubt is Doubt.NOTHING_REPLAYED
    assert scene.sequencer[KEY].stream.proven_link == 0


@pytest.mark.parametrize("waits", [False, True])
def test_a_reply_that_begins_right_behind_the_logs_last_batch_never_proves_what_follows(
    waits: bool,
) -> None:
    """Another process may have come that far, with a buffer that reaches no further back."""
    scene = Scene(*[12] * waits)
    assert scene.replays(10, 11, *[12] * waits) is (RepairStep.DONE if waits else RepairStep.MORE)
    if not waits:
        assert scene.ends() is RepairStep.ASK
    assert scene.cursor == Cursor(1, 11)
    (record,) = scene.records
    assert isinstance(record, EventsRecord)
    assert record.doubted is True
    scene.repair = ReplayRepair(scene.sequencer[KEY])
    assert scene.repair.start == 9, "what was taken is no anchor"
    scene.replays(11)
    assert scene.ends() is RepairStep.DONE
    assert scene.repair.doubt is Doubt.NOTHING_REPLAYED
    assert scene.sequencer[KEY].stream.is_doubted


def test_a_reply_that_begins_there_goes_on_with_the_process_that_published_that_batch() -> None:
    scene = Scene()
    stream = scene.sequencer[KEY].stream
    stream.begin_link(LINK)
    stream.prove(LINK)
    stream.pairing.note_whole()
    stream.links.note(LINK)
    assert scene.replays(10, 11) is RepairStep.MORE
    (record,) = scene.records
    assert isinstance(record, EventsRecord)
    assert record.doubted is msgspec.UNSET


def test_an_engine_that_has_nothing_newer_confirms() -> None:
    scene = Scene()
    assert scene.replays(9) is RepairStep.MORE
    assert scene.ends() is RepairStep.DONE
    assert scene.repair.doubt is None


def test_a_reply_that_ends_with_something_new_is_not_believed_to_have_had_all() -> None:
    scene = Scene()
    assert scene.replays(9, 10) is RepairStep.MORE
    assert scene.ends() is RepairStep.ASK
    assert scene.repair.doubt is Doubt.NOTHING_REPLAYED
    assert scene.replays(10) is RepairStep.MORE
    assert scene.ends() is RepairStep.DONE
    assert scene.repair.doubt is None


def test_a_reply_that_falls_silent_confirms_where_it_had_come_to_what_waits() -> None:
    scene = Scene(11)
    assert scene.replays(9, 10) is RepairStep.MORE
    assert scene.ends(complete=False) is RepairStep.DONE
    assert scene.repair.doubt is None
    short = Scene(12)
    assert short.replays(9, 10) is RepairStep.MORE
    assert short.ends(complete=False) is RepairStep.ASK
    assert short.repair.doubt is Doubt.NOTHING_REPLAYED


def test_what_the_engine_no_longer_has_may_wait() -> None:
    scene = Scene(11)
    assert scene.replays(9, 10, 12) is RepairStep.DONE
    assert scene.cursor == Cursor(1, 10)
    assert scene.repair.doubt is None


@pytest.mark.parametrize("number", [9, 10])
def test_all_that_was_replayed_goes_before_one_that_waits_with_its_number_and_another_time(
    number: int,
) -> None:
    """That one is of a later incarnation."""
    scene = Scene(message(number, 50.0 + number))
    assert scene.replays(9, 10, 11) is RepairStep.MORE
    assert scene.cursor == Cursor(1, 11)


def test_what_was_missing_when_it_was_asked_again_is_not_confirmed_by_the_reply_before() -> None:
    scene = Scene(11)
    assert scene.replays(9, 10, 11) is RepairStep.DONE
    assert scene.repair.doubt is None
    assert scene.repair.begin()
    assert scene.repair.doubt is Doubt.NOTHING_REPLAYED


def test_a_hole_is_asked_for_again_and_is_the_engines_own_where_it_shows_twice() -> None:
    scene = Scene(14)
    assert scene.replays(9, 10, 12) is RepairStep.ASK
    assert scene.cursor == Cursor(1, 10)
    assert scene.repair.start == 10
    assert scene.replays(10, 12, 13, 14) is RepairStep.DONE
    assert scene.cursor == Cursor(1, 13)


def test_a_hole_before_what_waits_is_never_confirmed() -> None:
    scene = Scene(12)
    assert scene.replays(9, 10, 12) is RepairStep.ASK
    assert scene.replays(10, 12) is RepairStep.DONE
    assert scene.repair.doubt is Doubt.NOTHING_REPLAYED


def test_a_hole_that_reaches_beyond_what_waits_is_asked_for_again() -> None:
    scene = Scene(14)
    assert scene.replays(9, 10, 16) is RepairStep.ASK
    assert scene.repair.start == 10
    assert scene.replays(10, 11, 12, 13, 16) is RepairStep.DONE
    assert scene.cursor == Cursor(1, 13)
    assert scene.repair.doubt is None


def test_where_it_stays_only_what_is_missing_before_what_waits_is_a_gap() -> None:
    scene = Scene(14)
    assert scene.replays(9, 10, 16) is RepairStep.ASK
    assert scene.replays(10, 16) is RepairStep.DONE
    assert scene.repair.doubt is Doubt.NOTHING_REPLAYED
    gap = scene.sequencer[KEY].resume(1.0)[0]
    assert isinstance(gap, GapRecord)
    assert (gap.first_sequence, gap.last_sequence) == (11, 13)


# How often


def test_an_engine_that_does_not_answer_is_asked_twice() -> None:
    scene = Scene(12)
    asked = 0
    while scene.repair.begin():
        asked += 1
        assert scene.ends(complete=False) is RepairStep.ASK
        assert scene.repair.doubt is Doubt.REPLAY_SILENT
    assert scene.repair.requests == asked == REPLAY_BARREN_MAX // 2


def test_one_that_has_sent_meanwhile_was_away_and_is_asked_more_often_once() -> None:
    scene = Scene(12)
    asked = 0
    while scene.repair.begin():
        scene.sends(13 + asked)
        asked += 1
        assert scene.ends(complete=False) is RepairStep.ASK
    assert asked == REPLAY_BARREN_MAX // 2 + 1


def test_replies_that_bring_nothing_new_end_it() -> None:
    scene = Scene(12)
    for _ in range(REPLAY_BARREN_MAX):
        assert scene.replays(9) is RepairStep.MORE
        assert scene.ends() is RepairStep.ASK, "10 and 11 are missing"
    assert scene.repair.begin() is False
    assert scene.repair.requests == REPLAY_BARREN_MAX


def test_a_reply_that_brings_something_new_starts_the_count_again() -> None:
    scene = Scene(90)
    for sequence in range(10, 13):
        for _ in range(REPLAY_BARREN_MAX - 1):
            assert scene.replays(sequence - 1) is RepairStep.MORE
            assert scene.ends() is RepairStep.ASK
        assert scene.replays(sequence - 1, sequence) is RepairStep.MORE
        assert scene.ends() is RepairStep.ASK
    assert scene.repair.replayed == 3


def test_one_repair_sends_only_so_many_requests() -> None:
    scene = Scene(9 + 2 * REPLAY_REQUESTS_MAX)
    for sequence in range(10, 10 + REPLAY_REQUESTS_MAX):
        assert scene.replays(sequence - 1, sequence) is RepairStep.MORE
        assert scene.ends() is RepairStep.ASK
    assert scene.repair.begin() is False
    assert scene.repair.requests == scene.repair.replayed == REPLAY_REQUESTS_MAX


# Incarnations


@pytest.mark.parametrize(
    ("anchor", "start"),
    [
        (LAST, 9),
        (Anchor(Cursor(1, 0), 5.0, heard=Proof(0, 5.0)), 0),
        (Anchor(Cursor(1, 9), 0.0), 10),
        (Anchor(NO_CURSOR, 0.0), 0),
        (Anchor(Cursor(2, -1), 5.0), 0),
    ],
)
def test_it_asks_from_the_last_batch_whose_time_is_known(anchor: Anchor, start: int) -> None:
    assert Scene(anchor=anchor).repair.start == start


@pytest.mark.parametrize("first", [message(9, 50.0), message(8, 50.0), message(9, 8.0)])
def test_another_time_at_the_logs_last_batch_is_another_incarnation(first: RawMessage) -> None:
    scene = Scene()
    scene.sequencer.process([message(3, 53.0)], 1.0)
    assert scene.replays(first) is RepairStep.ASK
    assert scene.records == []
    assert scene.repair.start == 0
    new = [message(sequence, 50.0 + sequence) for sequence in range(4)]
    assert scene.replays(*new) is RepairStep.DONE
    assert isinstance(scene.records[0], ResetRecord)
    assert scene.cursor == Cursor(2, 2)
    assert scene.repair.doubt is None


def test_a_new_incarnation_whose_beginning_is_gone_is_not_confirmed() -> None:
    scene = Scene()
    scene.sequencer.process([message(3, 53.0)], 1.0)
    assert scene.replays(message(9, 50.0)) is RepairStep.ASK
    assert scene.replays(message(1, 51.0)) is RepairStep.ASK, "a hole before it"
    assert scene.replays(message(1, 51.0), message(2, 52.0), message(3, 53.0)) is RepairStep.DONE
    assert scene.cursor == Cursor(2, 2)
    assert scene.repair.doubt is Doubt.NOTHING_REPLAYED


@pytest.mark.parametrize("time", [9.0, 8.0])
def test_what_had_begun_before_the_logs_last_batch_is_asked_for_once_more_from_further_back(
    time: float,
) -> None:
    scene = Scene(anchor=FORTY)
    assert scene.repair.begin()
    assert scene.ends(complete=False) is RepairStep.ASK
    assert scene.replays(message(40, 50.0)) is RepairStep.ASK
    assert scene.replays(message(0, time)) is RepairStep.ASK
    assert scene.repair.start == 40 - REPLAY_OVERLAP_BATCHES
    assert scene.repair.begin(), (
        "though two brought nothing, and one, which counts twice, no answer"
    )


def ask_further_back(scene: Scene) -> int:
    """What had begun before the log's last batch; returns from where it is asked."""
    time = scene.sequencer[KEY].stream.proven.engine_time
    assert scene.replays(message(40, 50.0)) is RepairStep.ASK
    assert scene.replays(message(0, time)) is RepairStep.ASK
    return scene.repair.start


@pytest.mark.parametrize("time", [9.0, 0.5])
@pytest.mark.parametrize("newer", [0, 2])
def test_what_ends_before_the_logs_last_batch_is_another_incarnation_whatever_its_clock(
    time: float, newer: int
) -> None:
    scene = Scene(anchor=Anchor(Cursor(1, 40), time))
    if newer:  # which were replayed without the last one
        assert (
            scene.replays(*(message(41 + number, time) for number in range(newer)))
            is RepairStep.MORE
        )
        assert scene.ends() is RepairStep.ASK
    start = ask_further_back(scene)
    for _ in range(2):
        assert scene.repair.start == start, "one reply may have lost its end"
        assert scene.replays(message(start, time), message(start + 1, time)) is RepairStep.MORE
        assert scene.ends() is RepairStep.ASK
    assert scene.repair.start == 0
    assert scene.replays(message(0, time), message(1, time)) is RepairStep.MORE
    assert scene.cursor == Cursor(2, 1)


def test_a_reply_that_has_lost_its_end_once_does_not_make_a_restart() -> None:
    scene = Scene(anchor=FORTY)
    start = ask_further_back(scene)
    assert scene.replays(message(start, 9.0)) is RepairStep.MORE
    assert scene.ends() is RepairStep.ASK
    assert scene.replays(message(start, 9.0), message(40, 9.0), message(41, 9.5)) is RepairStep.MORE
    assert scene.ends() is RepairStep.ASK
    assert scene.cursor == Cursor(1, 41)
    assert scene.repair.start == 41 - REPLAY_OVERLAP_BATCHES
    assert scene.replays(message(26, 9.0)) is RepairStep.MORE
    assert scene.ends() is RepairStep.ASK
    assert scene.repair.start == 41 - REPLAY_OVERLAP_BATCHES, "it counts from the last whole one"


def test_a_last_batch_that_cannot_be_read_is_there_all_the_same() -> None:
    scene = Scene(anchor=FORTY)
    start = ask_further_back(scene)
    assert scene.replays(message(start, 9.0), garbled(40)) is RepairStep.MORE
    assert scene.ends() is RepairStep.DONE
    assert scene.repair.doubt is Doubt.NOTHING_REPLAYED


def test_what_ends_before_the_logs_last_batch_tells_nothing_unless_it_was_asked_for() -> None:
    scene = Scene()
    assert scene.replays(8) is RepairStep.MORE
    assert scene.ends() is RepairStep.DONE
    assert scene.repair.doubt is Doubt.NOTHING_REPLAYED


def test_what_ends_twice_before_the_logs_last_batch_tells_also_where_that_has_no_time() -> None:
    """An engine's clock may say 0, too."""
    scene = Scene(message(5, 55.0), anchor=Anchor(Cursor(1, 40), 0.0))
    assert scene.repair.begin()
    assert scene.ends() is RepairStep.ASK
    assert scene.replays(message(0, 0.0)) is RepairStep.ASK
    for _ in range(2):
        assert scene.repair.start == 40 - REPLAY_OVERLAP_BATCHES
        assert scene.replays(message(scene.repair.start, 0.0)) is RepairStep.MORE
        assert scene.ends() is RepairStep.ASK
    assert scene.repair.start == 0


def test_a_new_incarnation_may_begin_with_a_batch_that_cannot_be_read() -> None:
    scene = Scene(message(3, 53.0))
    assert scene.replays(message(9, 50.0)) is RepairStep.ASK
    assert scene.replays(garbled(0), message(1, 51.0), message(2, 52.0), message(3, 53.0)) is (
        RepairStep.DONE
    )
    assert isinstance(scene.records[0], ResetRecord)
    assert scene.cursor == Cursor(2, 2)


def test_an_earlier_batch_is_of_this_incarnation_where_it_is_not_later() -> None:
    scene = Scene()
    assert scene.replays(message(8, 9.0), message(9)) is RepairStep.MORE
    assert scene.ends() is RepairStep.DONE
    assert scene.repair.doubt is None
    joined = Scene(10)
    assert joined.replays(8, 9, 10) is RepairStep.DONE
    assert joined.repair.doubt is None
    assert joined.sequencer[KEY].stream.proven_link == LINK


def test_of_what_the_log_has_only_the_last_batch_tells_whose_a_reply_is() -> None:
    """An engine's clock may have been set back before that one."""
    scene = Scene(12)
    assert scene.replays(7, message(8, 50.0), 9, message(9, 50.0), 10, 11, 12) is RepairStep.DONE
    assert scene.cursor == Cursor(1, 11)
    assert scene.repair.doubt is None


def test_any_time_above_0_tells_whose_a_reply_is() -> None:
    early = Anchor(Cursor(1, 9), 0.5, heard=Proof(9, 0.5))
    other, same = Scene(anchor=early), Scene(anchor=early)
    assert other.replays(message(8, 0.25), message(9, 50.0)) is RepairStep.ASK
    assert same.replays(message(9, 0.5)) is RepairStep.MORE
    assert same.ends() is RepairStep.DONE
    assert same.repair.doubt is None


def clock_ahead(scene: Scene, *sequences: int) -> None:
    """Batches of an incarnation whose clock was ahead of the one that the log has."""
    for sequence in sequences:
        ahead = message(sequence, 1000.0 + sequence)
        assert scene.sequencer.process([ahead], 1.0) == []


def test_what_came_over_a_link_that_was_gone_is_of_the_incarnation_before_and_is_dropped() -> None:
    scene = Scene()
    clock_ahead(scene, 8, 9, 10)
    scene.sequencer[KEY].stream.links.note(LinkNumber(LINK + 1))
    assert scene.replays(9) is RepairStep.MORE
    assert scene.ends() is RepairStep.DONE
    assert scene.repair.doubt is None
    assert scene.sequencer.counters()[KEY].dropped == {"earlier_incarnation": 3}
    assert scene.sequencer[KEY].resume(1.0) == []
    assert scene.cursor == Cursor(1, 9)


@pytest.mark.parametrize("is_up", [True, False])
def test_what_comes_over_the_link_that_was_up_is_of_the_process_that_answered(is_up: bool) -> None:
    """A flood that begins with its link leaves the engine no batch by which to prove it later."""
    scene = Scene()
    scene.sequencer[KEY].stream.links.note(LinkNumber(LINK + 1), is_up=is_up)
    assert scene.replays(9) is RepairStep.MORE
    first = message(10)._replace(link=LinkNumber(LINK + 1))
    assert scene.sequencer.process([first], 1.0) == []
    assert scene.ends() is RepairStep.DONE
    assert scene.repair.doubt is None
    scene.sequencer[KEY].resume(1.0)
    scene.sequencer.process([message(11)._replace(link=LinkNumber(LINK + 1))], 1.0)
    assert scene.cursor == Cursor(1, 11)
    assert scene.sequencer[KEY].stream.is_doubted is not is_up
    assert scene.sequencer[KEY].stream.proven_link == (LINK + 1 if is_up else 0)


def test_what_came_over_the_link_that_is_up_is_of_a_later_incarnation() -> None:
    scene = Scene()
    clock_ahead(scene, 8, 9)
    scene.sequencer[KEY].stream.links.note(LINK)
    assert scene.replays(9) is RepairStep.MORE
    assert scene.ends() is RepairStep.DONE
    records = scene.sequencer[KEY].resume(1.0)
    assert isinstance(records[0], ResetRecord)
    assert scene.cursor == Cursor(2, 9)


@pytest.mark.parametrize("anchor", [LAST, NO_ANCHOR])
def test_a_replay_from_the_first_batch_proves_only_the_link_on_which_it_was_asked_for(
    anchor: Anchor,
) -> None:
    scene = Scene(message(3, 103.0), anchor=anchor)
    if anchor is LAST:
        assert scene.replays(message(9, 100.0)) is RepairStep.ASK
    assert scene.repair.begin()
    scene.sends(message(4, 504.0, link=LINK + 1))  # another run, which has come as far
    assert list(scene.repair.feed([message(number, 100.0 + number) for number in range(4)], 1.0))
    assert scene.repair.answer is RepairStep.DONE
    assert scene.sequencer[KEY].stream.proven_link == 0
    scene.sequencer[KEY].resume(1.0)
    assert ReplayRepair(scene.sequencer[KEY]).start == 3, "so that its engine tells"


def test_a_link_that_ended_after_the_engine_was_asked_proves_nothing() -> None:
    scene = Scene()
    clock_ahead(scene, 8)
    scene.sequencer[KEY].stream.links.note(LINK)
    assert scene.repair.begin()
    scene.sequencer[KEY].stream.links.note(LinkNumber(LINK + 1))
    assert list(scene.repair.feed([message(9)], 1.0)) == []
    assert scene.repair.answer is RepairStep.MORE
    assert scene.ends() is RepairStep.DONE
    assert scene.sequencer[KEY].waiting == 1


def test_what_came_over_a_link_that_was_gone_waits_where_the_replay_agrees_with_it() -> None:
    scene = Scene(12)
    scene.sequencer[KEY].stream.links.note(LinkNumber(LINK + 1))
    assert scene.replays(9, 10, 11, 12) is RepairStep.DONE
    assert scene.cursor == Cursor(1, 11)
    assert scene.sequencer[KEY].waiting == 1


@pytest.mark.parametrize("waiting", [10, 24])
def test_what_came_over_a_link_that_was_gone_and_is_behind_two_replies_is_dropped(
    waiting: int,
) -> None:
    """A buffer has the newest; one reply may have lost its end. Where it is the next number it
    would otherwise be joined to another process's batches."""
    scene = Scene()
    clock_ahead(scene, waiting)
    scene.sequencer[KEY].stream.links.note(LinkNumber(LINK + 1))
    assert scene.replays(9) is RepairStep.MORE
    assert scene.ends() is RepairStep.ASK
    assert scene.sequencer[KEY].waiting == 1
    assert scene.replays(9) is RepairStep.MORE
    assert scene.ends() is RepairStep.DONE
    assert scene.repair.doubt is None
    assert scene.sequencer.counters()[KEY].dropped == {"earlier_incarnation": 1}
    assert scene.cursor == Cursor(1, 9)


def test_what_is_behind_a_reply_waits_where_the_next_one_goes_further() -> None:
    scene = Scene(12)
    scene.sequencer[KEY].stream.links.note(LinkNumber(LINK + 1))
    assert scene.replays(9) is RepairStep.MORE
    assert scene.ends() is RepairStep.ASK
    assert scene.replays(9, 10, 11, 12) is RepairStep.DONE
    assert scene.cursor == Cursor(1, 11)
    assert scene.sequencer[KEY].waiting == 1


@pytest.mark.parametrize("link", [0, LINK])
def test_what_is_behind_two_replies_waits_where_its_link_may_be_the_one_that_is_up(
    link: int,
) -> None:
    scene = Scene(message(24, link=link))
    scene.sequencer[KEY].stream.links.note(LINK)
    for _ in range(2):
        assert scene.replays(9) is RepairStep.MORE
        assert scene.ends() is RepairStep.ASK
    assert scene.sequencer[KEY].waiting == 1


def test_only_a_reply_that_was_read_to_its_end_tells_that_there_is_nothing_newer() -> None:
    """Behind what waits the engine's socket may have dropped something."""
    scene = Scene(10)
    assert scene.replays(9, 10) is RepairStep.DONE
    assert scene.repair.repaired == RepairResult(None, heard_all=False)
    silent = Scene(10)
    assert silent.replays(9) is RepairStep.MORE
    assert silent.ends(complete=False) is RepairStep.DONE
    assert silent.repair.repaired == RepairResult(None, heard_all=False)
    whole = Scene()
    assert whole.replays(9) is RepairStep.MORE
    assert whole.ends() is RepairStep.DONE
    assert whole.repair.repaired == RepairResult(None, heard_all=True)


def test_behind_what_is_dropped_the_next_that_waits_counts() -> None:
    scene = Scene(anchor=Anchor(NO_CURSOR, 0.0))
    clock_ahead(scene, 0)
    scene.sends(message(0, link=LINK + 1))
    scene.sequencer[KEY].stream.links.note(LinkNumber(LINK + 1))
    assert scene.replays(0) is RepairStep.DONE
    assert scene.sequencer[KEY].waiting == 1


def test_a_replay_passes_over_what_waits_of_the_incarnation_before() -> None:
    scene = Scene(anchor=Anchor(NO_CURSOR, 0.0))
    clock_ahead(scene, 0)
    scene.sends(3)
    scene.sequencer[KEY].stream.links.note(LinkNumber(LINK + 1))
    assert scene.replays(0, 1, 2, 3) is RepairStep.MORE
    assert scene.cursor == Cursor(1, 3), "both had come over the link that was gone"
    later = Scene(anchor=Anchor(NO_CURSOR, 0.0))
    clock_ahead(later, 0)
    assert later.sequencer.process([message(3, link=LINK + 1)], 1.0) == []
    later.sequencer[KEY].stream.links.note(LinkNumber(LINK + 1))
    assert later.replays(0, 1, 2, 3) is RepairStep.DONE
    assert later.cursor == Cursor(1, 2)
    assert later.sequencer[KEY].waiting == 1, "it came over the link that is up"


def test_an_empty_buffer_may_be_another_publishers_as_long_as_nothing_has_come_live() -> None:
    scene = Scene(anchor=Anchor(NO_CURSOR, 0.0))
    assert scene.repair.begin()
    scene.ends()
    assert scene.repair.doubt is Doubt.REPLAY_UNMATCHED
    late = Scene(3, anchor=Anchor(NO_CURSOR, 0.0))
    assert late.repair.begin()
    late.ends()
    assert late.repair.doubt is Doubt.NOTHING_REPLAYED, "it has sent batches before"
    begun = Scene(anchor=Anchor(Cursor(1, -1), 0.0, begun=5.0))
    assert begun.repair.begin()
    begun.ends()
    assert begun.repair.doubt is not None, "it had begun to send one, and has none now"


def test_a_reply_without_the_rest_of_a_batch_that_the_log_has_in_part_confirms_nothing() -> None:
    begun = LAST._replace(begun=10.0)
    scene = Scene(anchor=begun)
    assert scene.replays(9) is RepairStep.MORE
    assert scene.ends() is RepairStep.ASK, "a reply may have lost its end"
    assert scene.repair.doubt is Doubt.NOTHING_REPLAYED
    assert scene.sequencer[KEY].stream.proven_link == 0
    whole = Scene(anchor=begun)
    assert whole.replays(9, 10) is RepairStep.MORE
    assert whole.ends() is RepairStep.ASK, "there may be more"
    assert whole.replays(10) is RepairStep.MORE
    assert whole.ends() is RepairStep.DONE
    assert whole.repair.doubt is None
    live = Scene(10, anchor=begun)
    assert live.replays(9) is RepairStep.MORE
    assert live.ends() is RepairStep.DONE
    assert live.repair.doubt is None, "the live batch has the rest"


def test_a_batch_of_another_time_than_the_part_that_the_log_has_is_another_incarnations() -> None:
    """One that cannot be read before it does not tell."""
    scene = Scene(garbled(9), message(10, 60.0), anchor=LAST._replace(begun=10.0))
    assert scene.replays(garbled(9), message(10, 60.0)) is RepairStep.ASK
    assert scene.repair.start == 0
    assert scene.cursor == LAST.cursor
    same = Scene(message(10, 10.0), anchor=LAST._replace(begun=10.0))
    assert same.replays(9, 10) is RepairStep.DONE


def test_where_the_last_batchs_time_is_not_known_no_earlier_one_tells_a_restart() -> None:
    """It could not be read; the engine replays from further back than it was asked."""
    scene = Scene(anchor=Anchor(Cursor(1, 9), 0.0, heard=Proof(4, 4.0)))
    assert scene.repair.start == 4
    assert scene.replays(6, garbled(9)) is RepairStep.MORE
    assert scene.ends() is RepairStep.DONE
    assert scene.cursor == Cursor(1, 9)


def test_a_whole_reply_that_ends_before_the_logs_last_batch_tells_it_where_no_time_does() -> None:
    anchor = Anchor(Cursor(1, 19), 19.0, proof=Proof(0, 0.0), heard=Proof(19, 19.0))
    scene = Scene(anchor=anchor)
    for _ in range(2):  # one may have lost its end
        assert scene.repair.start == 1
        assert scene.replays(message(1, 60.0), message(2, 61.0)) is RepairStep.MORE
        assert scene.ends() is RepairStep.ASK
    assert scene.repair.start == 0


def test_of_a_publisher_of_which_the_log_has_nothing_its_first_batch_confirms() -> None:
    scene = Scene(2, anchor=Anchor(NO_CURSOR, 0.0))
    assert scene.replays(0, 1, 2) is RepairStep.DONE
    assert scene.repair.doubt is None
    late = Scene(2, anchor=Anchor(NO_CURSOR, 0.0))
    assert late.replays(1) is RepairStep.ASK
    assert late.replays(1, 2) is RepairStep.DONE
    assert late.repair.doubt is Doubt.NOTHING_REPLAYED


@pytest.mark.parametrize("waiting", [[], [message(3, 53.0)]])
def test_where_no_batch_reaches_the_logs_last_the_engine_has_begun_again(
    waiting: list[RawMessage],
) -> None:
    scene = Scene(*waiting)
    assert scene.repair.begin()
    assert scene.ends() is RepairStep.ASK
    assert scene.repair.start == 0
    assert scene.repair.doubt is Doubt.NOTHING_REPLAYED
    assert scene.repair.begin()
    assert scene.ends() is RepairStep.DONE, "it has none of its batches"
    assert scene.repair.doubt is Doubt.NOTHING_REPLAYED


UNTIMED = Anchor(Cursor(1, 9), 0.0)


@pytest.mark.parametrize("waiting", [[], [message(12)]])
def test_a_batch_whose_time_is_not_known_is_no_proof_of_the_logs_last(
    waiting: list[RawMessage],
) -> None:
    scene = Scene(*waiting, anchor=UNTIMED)
    assert scene.repair.begin()
    assert scene.ends() is RepairStep.DONE, "there is nothing to compare"
    assert scene.repair.doubt is Doubt.NOTHING_REPLAYED


def test_where_its_time_is_not_known_no_batch_is_taken_for_the_logs_last() -> None:
    scene = Scene(12, anchor=UNTIMED)
    assert scene.replays(10, 9, 11, 12) is RepairStep.DONE
    assert scene.cursor == Cursor(1, 11)
    zero = Scene(anchor=UNTIMED)
    assert zero.replays(message(9, 0.0)) is RepairStep.MORE
    assert zero.ends() is RepairStep.DONE
    assert zero.repair.doubt is Doubt.NOTHING_REPLAYED


@pytest.mark.parametrize("number", [8, 9])
def test_where_its_time_is_not_known_a_live_batch_tells_that_the_engine_has_begun_again(
    number: int,
) -> None:
    scene = Scene(message(number, 50.0), anchor=UNTIMED)
    assert scene.repair.begin()
    assert scene.ends() is RepairStep.ASK
    assert scene.repair.start == 0


BEHIND_UNTIMED = Anchor(Cursor(1, 26), 26.0, proof=Proof(9, 0.0))


def test_behind_such_a_batch_an_engine_without_what_the_log_has_since_has_begun_again() -> None:
    scene = Scene(message(0, 5.0), anchor=BEHIND_UNTIMED)
    assert scene.repair.start == 10
    assert scene.repair.begin()
    assert scene.ends() is RepairStep.ASK, "whatever its clock says"
    assert scene.repair.start == 0
    assert scene.replays(message(0, 5.0)) is RepairStep.DONE
    records = [*scene.records, *scene.sequencer[KEY].resume(1.0)]
    assert [type(one) for one in records] == [ResetRecord, EventsRecord]
    assert scene.cursor == Cursor(2, 0)


def test_behind_such_a_batch_an_engine_with_what_the_log_has_since_goes_on() -> None:
    scene = Scene(anchor=BEHIND_UNTIMED)
    assert scene.replays(*range(10, 28)) is RepairStep.MORE
    assert scene.cursor == Cursor(1, 27)
