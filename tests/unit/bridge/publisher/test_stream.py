"""The rules of one publisher: which incarnation, what is doubted, what is lost."""

import msgspec
import pytest

from bridge.link_numbers import NO_LINK, LinkNumber
from bridge.publisher.anchor import Anchor
from bridge.publisher.held_batches import MissingBatches
from bridge.publisher.stream import BatchStream
from bridge.wire import DecodedBatch, open_source
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import PythonArrayPacker
from schemas.errors import BatchError, EventError, PassedOverError
from schemas.events import BlockEvent, ClearedBlocks
from schemas.positions import NO_CURSOR, Cursor, Proof
from schemas.records import EventsRecord, GapRecord, ResetRecord, SequencedRecord
from schemas.troubles import NO_TROUBLES
from tests.building import in_parts
from tests.unit.bridge.messages import registration

ONE = registration()
CURSOR = Cursor(4, 9)
TIME = 90.0


def batch(
    sequence: int, time: float | None = TIME + 1, digest: int = 1, *, clears: bool = False
) -> DecodedBatch:
    events: list[BlockEvent] = [ClearedBlocks(sequence=sequence)] if clears else []
    made = DecodedBatch.of_events(sequence, b"", 0.0, events)
    return made._replace(digest=digest, engine_time=time)


def new_stream(cursor: Cursor = CURSOR, *, repairs: bool = False) -> BatchStream:
    return BatchStream(ONE, open_source(ONE, PythonArrayPacker()), cursor, repairs)


@pytest.fixture
def stream() -> BatchStream:
    """Its last batch is in the log, and something comes over a link that may be another run's."""
    made = new_stream()
    made.set_anchor(Anchor(CURSOR, TIME))
    made.begin_link(LinkNumber(7))
    return made


def accept(stream: BatchStream, *batches: DecodedBatch) -> list[SequencedRecord]:
    window = stream.open(1.0)
    for one in batches:
        stream.accept(one, window, stream.links.last)
    return window.close()


def doubted(records: list[SequencedRecord]) -> list[bool]:
    return [record.doubted is True for record in records if isinstance(record, EventsRecord)]


# Which incarnation


def test_of_a_new_stream_nothing_is_known_but_its_place() -> None:
    stream = new_stream()
    assert stream.anchor == Anchor(CURSOR, 0.0)
    assert (stream.links.last, stream.links.live) == (0, 0)
    assert doubted(accept(stream, batch(10))) == [True], "whatever brings it"
    stream.begin_link(LinkNumber(7))
    assert (stream.links.last, stream.proven_link) == (7, 0)


def test_what_follows_on_over_an_unproven_link_is_doubted_from_the_last_batch_before(
    stream: BatchStream,
) -> None:
    assert doubted(accept(stream, batch(10, 91.0))) == [True]
    assert doubted(accept(stream, batch(11, 92.0))) == [True]
    assert stream.proven == Proof(9, TIME)
    assert stream.proven_link == 0
    heard = Proof(11, 92.0)
    assert stream.anchor == Anchor(Cursor(4, 11), 92.0, Proof(9, TIME), heard=heard)


def test_once_proven_nothing_over_the_link_is_doubted(stream: BatchStream) -> None:
    accept(stream, batch(10, 91.0))
    stream.prove(LinkNumber(7))
    assert stream.proven_link == 7
    assert doubted(accept(stream, batch(11, 92.0))) == [False]
    assert stream.proven == Proof(11, 92.0)


def test_another_link_is_to_be_proven_anew(stream: BatchStream) -> None:
    stream.prove(LinkNumber(7))
    stream.begin_link(LinkNumber(8))
    assert (stream.links.last, stream.proven_link) == (8, 0)
    assert doubted(accept(stream, batch(10))) == [True]


@pytest.mark.parametrize(("adopted", "link"), [(8, 8), (6, 7)])
def test_a_link_that_is_to_the_same_process_is_proven_where_the_one_before_was(
    stream: BatchStream, adopted: int, link: int
) -> None:
    stream.links.adopt(LinkNumber(adopted), heard=LinkNumber(7))
    assert (stream.links.last, stream.proven_link) == (link, 0)
    proven = new_stream()
    proven.begin_link(LinkNumber(7))
    proven.prove(LinkNumber(7))
    proven.links.adopt(LinkNumber(adopted), heard=LinkNumber(7))
    assert (proven.links.last, proven.proven_link) == (link, link)


def test_what_came_over_a_link_while_its_engine_was_asked_is_of_that_engine(
    stream: BatchStream,
) -> None:
    """It was up, but nothing had come over it yet: a flood may begin at any time."""
    stream.prove(LinkNumber(7))
    stream.begin_link(LinkNumber(8))  # its first message, before the answer
    stream.links.adopt(LinkNumber(8), heard=LinkNumber(7))
    assert (stream.links.last, stream.proven_link) == (8, 8)
    assert doubted(accept(stream, batch(10))) == [False]
    stream.begin_link(LinkNumber(9))
    stream.links.adopt(LinkNumber(9), heard=LinkNumber(7))
    assert stream.proven_link == 0, "not what the engine was asked about"


def test_the_first_link_of_all_is_proven_as_any_other() -> None:
    stream = new_stream()
    stream.set_anchor(Anchor(CURSOR, TIME))
    stream.begin_link(LinkNumber(1))
    stream.prove(LinkNumber(1))
    assert accept(stream, batch(9, TIME, 2)) == []
    assert stream.counters.duplicates == 1


def test_a_proven_link_does_not_prove_what_was_doubted_before_it(stream: BatchStream) -> None:
    stream.prove(LinkNumber(7))
    stream.set_anchor(Anchor(CURSOR, TIME, Proof(5, 50.0)))
    assert stream.proven_link == 0


def test_where_the_log_turns_out_to_stand_elsewhere_the_link_is_to_be_proven_anew(
    stream: BatchStream,
) -> None:
    stream.prove(LinkNumber(7))
    stream.set_anchor(Anchor(CURSOR, TIME))
    assert stream.proven_link == 7, "it stands where it stood"
    stream.set_anchor(Anchor(Cursor(4, 12), TIME))
    assert stream.proven_link == 0


def test_a_restart_proves_the_link(stream: BatchStream) -> None:
    assert doubted(accept(stream, batch(0))) == [False]
    assert stream.proven_link == 7
    assert stream.counters.restarts == 1


def test_the_first_batch_of_all_proves_the_link() -> None:
    stream = new_stream(NO_CURSOR)
    stream.begin_link(LinkNumber(7))
    assert doubted(accept(stream, batch(0))) == [False]
    assert stream.proven_link == 7


def test_a_clear_proves_the_link_since_nothing_is_left_of_before(stream: BatchStream) -> None:
    assert doubted(accept(stream, batch(10), batch(11, clears=True))) == [True, False]
    assert stream.proven_link == 7


def test_a_clear_ends_a_loss(stream: BatchStream) -> None:
    stream.prove(LinkNumber(7))
    accept(stream, batch(12))
    assert stream.degraded
    accept(stream, batch(13, clears=True))
    assert not stream.degraded


def test_an_event_that_is_passed_over_is_counted_and_no_loss(stream: BatchStream) -> None:
    stream.prove(LinkNumber(7))
    passed = PassedOverError(DropReason.OTHER_STREAM, "none")
    assert events(stream, batch(10)._replace(dropped=[passed])).incomplete is msgspec.UNSET
    assert not stream.degraded
    bad = EventError(DropReason.MALFORMED_EVENT, "none")
    assert events(stream, batch(11)._replace(dropped=[passed, bad])).incomplete == 11
    assert stream.degraded
    assert stream.counters.passed_over == {"other_stream": 2}
    assert stream.counters.dropped == {"malformed_event": 1}


def test_a_stream_that_has_sent_nothing_of_its_own_says_so(stream: BatchStream) -> None:
    stream.prove(LinkNumber(7))
    nothing = batch(10)._replace(dropped=[PassedOverError(DropReason.OTHER_STREAM, "got x")])
    accept(stream, nothing)
    said = stream.counters.troubles("")
    assert (said.dropped, said.reason, said.detail) == (1, "other_stream", "got x")
    accept(stream, batch(11, clears=True))
    assert stream.counters.troubles("") == NO_TROUBLES


@pytest.mark.parametrize("clears", [False, True])
def test_a_batch_of_which_an_event_could_not_be_used_is_a_loss_that_needs_no_gap(
    stream: BatchStream, clears: bool
) -> None:
    stream.prove(LinkNumber(7))
    bad = batch(10, clears=clears)._replace(
        dropped=[EventError(DropReason.MALFORMED_EVENT, "none")]
    )
    record = events(stream, bad, batch(11))
    assert record.incomplete == 10
    assert stream.degraded
    assert stream.counters.dropped == {"malformed_event": 1}
    unusable = DecodedBatch.unusable(12, 1, BatchError(DropReason.UNDECODABLE, "none"))
    assert events(stream, unusable).incomplete == 12, "it is degraded already"
    assert events(stream, batch(13, clears=True)).incomplete is msgspec.UNSET
    assert not stream.degraded


def test_over_a_proven_link_an_older_batch_is_a_duplicate_never_a_restart(
    stream: BatchStream,
) -> None:
    stream.prove(LinkNumber(7))
    assert accept(stream, batch(9, TIME), batch(3, 30.0)) == []
    assert (stream.counters.duplicates, stream.counters.restarts) == (2, 0)
    assert stream.anchor == Anchor(CURSOR, TIME)


def test_also_over_a_proven_link_a_later_batch_with_a_number_from_before_is_a_restart(
    stream: BatchStream,
) -> None:
    stream.prove(LinkNumber(7))
    accept(stream, batch(3, TIME + 1, 2))
    assert (stream.counters.duplicates, stream.counters.restarts) == (0, 1)


@pytest.mark.parametrize("time", [TIME + 1, TIME, 0.0], ids=["the same", "earlier", "none"])
def test_also_over_a_proven_link_other_bytes_under_a_number_are_a_restart(
    stream: BatchStream, time: float
) -> None:
    stream.prove(LinkNumber(7))
    accept(stream, batch(10), batch(11))
    accept(stream, batch(10, time, 2))
    assert (stream.counters.duplicates, stream.counters.restarts) == (0, 1)


def test_over_an_unproven_link_an_older_batch_is_a_restart(stream: BatchStream) -> None:
    accept(stream, batch(0, TIME - 1))
    assert (stream.counters.duplicates, stream.counters.restarts) == (0, 1)


def test_what_has_no_time_is_not_known_to_be_older(stream: BatchStream) -> None:
    assert stream.is_older(batch(9, TIME), LinkNumber(1))
    assert not stream.is_older(batch(9, None), LinkNumber(1))
    assert not stream.is_older(batch(9, TIME + 1), LinkNumber(1))
    assert not stream.is_older(batch(10, TIME), LinkNumber(1))


def test_over_a_proven_link_also_what_has_no_time_is_older(stream: BatchStream) -> None:
    """A takeover would begin an incarnation for one message that cannot be read."""
    stream.prove(LinkNumber(7))
    assert stream.is_older(batch(9, None), LinkNumber(7))
    assert not stream.is_older(batch(10, None), LinkNumber(7)), "it is the next one"
    assert not stream.is_older(batch(9, None), NO_LINK), "over which link it came is not known"
    stream.prove(NO_LINK)
    assert not stream.is_older(batch(9, None), NO_LINK)


# Anchors, read from the log


def events(stream: BatchStream, *batches: DecodedBatch) -> EventsRecord:
    (record,) = accept(stream, *batches)
    assert isinstance(record, EventsRecord)
    return record


def test_an_anchor_goes_on_with_each_record_as_the_lane_did(stream: BatchStream) -> None:
    anchor = stream.anchor
    for one in (batch(10, 91.0), batch(11, 92.0), batch(12, 93.0, clears=True), batch(13, 94.0)):
        (record,) = accept(stream, one)
        anchor = anchor.after(record)
        assert anchor == stream.anchor


def test_an_anchor_after_a_gap_or_a_reset_has_no_time(stream: BatchStream) -> None:
    anchor = Anchor(CURSOR, TIME, Proof(5, 50.0))
    gap, _ = accept(stream, batch(12))
    assert isinstance(gap, GapRecord)
    assert anchor.after(gap) == Anchor(Cursor(4, 11), 0.0)
    reset, _ = accept(stream, batch(0))
    assert isinstance(reset, ResetRecord)
    assert anchor.after(reset) == Anchor(Cursor(5, -1), 0.0)


def test_doubt_of_one_incarnation_is_none_of_the_next(stream: BatchStream) -> None:
    record = msgspec.structs.replace(events(stream, batch(10)), incarnation=5)
    assert record.doubted is True
    later = Anchor(CURSOR, TIME, Proof(5, 50.0), heard=Proof(4, 40.0)).after(record)
    assert later == Anchor(Cursor(5, 10), TIME + 1, heard=Proof(10, TIME + 1))


def test_an_anchor_knows_the_last_batch_of_its_incarnation_that_came_live(
    stream: BatchStream,
) -> None:
    heard = Proof(7, 70.0)
    anchor = Anchor(CURSOR, TIME, heard=heard)
    live = events(stream, batch(10, 91.0))
    replayed = msgspec.structs.replace(live, repaired="missed")
    part, _ = in_parts(live, 2, 5)
    assert anchor.after(live).heard == Proof(10, 91.0)
    assert anchor.after(replayed).heard == heard
    assert anchor.after(part).heard == heard, "until it is whole"
    gap = accept(stream, batch(15))[0]
    assert isinstance(gap, GapRecord)
    assert anchor.after(gap).heard == heard
    reset = accept(stream, batch(0))[0]
    assert isinstance(reset, ResetRecord)
    assert anchor.after(reset).heard is None


def test_an_anchor_within_a_batch_stands_before_it_and_knows_that_it_was_begun(
    stream: BatchStream,
) -> None:
    before = stream.anchor
    begun, ended = in_parts(events(stream, batch(10, 91.0)), 2, 5)
    assert before.after(begun) == Anchor(CURSOR, TIME, Proof(9, TIME), 91.0)
    assert before.after(begun).after(ended) == stream.anchor
    sure, _ = in_parts(msgspec.structs.replace(begun, doubted=msgspec.UNSET), 2, 5)
    proof = Proof(5, 50.0)
    assert Anchor(CURSOR, TIME, proof).after(sure).proof == proof, "a part proves nothing"
    next_one = msgspec.structs.replace(begun, incarnation=5)
    assert before.after(next_one) == Anchor(Cursor(5, 9), 0.0, begun=91.0)


@pytest.mark.parametrize("cursor", [Cursor(4, -1), CURSOR])
def test_another_batch_than_the_one_that_was_begun_is_of_another_incarnation(
    cursor: Cursor,
) -> None:
    following = cursor.sequence + 1
    for time, wanted in ((91.0, [4]), (92.0, [5])):
        stream = new_stream()
        stream.set_anchor(Anchor(cursor, TIME, begun=91.0))
        assert stream.anchor.begun == 91.0
        records = accept(stream, batch(following, time))
        assert records[-1].last == Cursor(wanted[0], following)
        assert isinstance(records[0], ResetRecord) is (time != 91.0)
        assert stream.anchor.begun is None
        assert stream.counters.restarts == (time != 91.0)


def test_of_what_comes_before_or_after_a_batch_that_was_begun_nothing_follows() -> None:
    stream = new_stream()
    stream.set_anchor(Anchor(CURSOR, TIME, begun=91.0))
    stream.begin_link(LinkNumber(7))
    stream.prove(LinkNumber(7))
    assert accept(stream, batch(3, 5.0)) == [], "it came over the link before"
    assert stream.anchor.begun == 91.0
    gap, late = accept(stream, batch(12, 95.0))
    assert (gap.last, late.last) == (Cursor(4, 11), Cursor(4, 12))


# Losses


def test_to_lose_up_to_a_later_batch_is_one_gap(stream: BatchStream) -> None:
    window = stream.open(1.0)
    stream.lose(window, MissingBatches(Cursor(4, 12), "why"))
    (gap,) = window.close()
    assert isinstance(gap, GapRecord)
    assert (gap.incarnation, gap.first_sequence, gap.last_sequence) == (4, 10, 12)
    assert (stream.counters.gaps, stream.counters.lost_batches) == (1, 3)
    assert stream.degraded
    assert stream.anchor == Anchor(Cursor(4, 12), 0.0)


@pytest.mark.parametrize("cursor", [CURSOR, Cursor(4, 3), Cursor(3, 99)])
def test_to_lose_what_has_been_accepted_is_nothing(stream: BatchStream, cursor: Cursor) -> None:
    window = stream.open(1.0)
    stream.lose(window, MissingBatches(cursor, "why"))
    assert window.close() == []
    assert stream.anchor == Anchor(CURSOR, TIME)


def test_to_lose_a_new_incarnation_is_a_reset_and_a_gap_for_what_it_had_sent(
    stream: BatchStream,
) -> None:
    window = stream.open(1.0)
    stream.lose(window, MissingBatches(Cursor(5, 1), "why"))
    reset, gap = window.close()
    assert isinstance(reset, ResetRecord)
    assert (reset.incarnation, gap.first_sequence, gap.last_sequence) == (5, 0, 1)
    assert stream.degraded


def test_to_lose_an_incarnation_that_had_sent_nothing_is_a_reset_alone(stream: BatchStream) -> None:
    stream.degraded = True
    window = stream.open(1.0)
    stream.lose(window, MissingBatches(Cursor(5, -1), "why"))
    (reset,) = window.close()
    assert isinstance(reset, ResetRecord)
    assert not stream.degraded, "of the new one nothing is lost"
    assert (stream.counters.gaps, stream.counters.lost_batches) == (0, 0)


def test_to_roll_back_returns_to_where_the_last_window_started(stream: BatchStream) -> None:
    accept(stream, batch(10, 91.0))
    accept(stream, batch(15, 92.0))
    assert stream.degraded
    assert stream.roll_back() == Cursor(4, 15)
    assert stream.anchor == Anchor(Cursor(4, 10), 91.0, Proof(9, TIME), heard=Proof(10, 91.0))
    assert not stream.degraded


def test_to_roll_back_before_any_window_changes_nothing() -> None:
    stream = new_stream()
    assert stream.roll_back() == CURSOR
    assert stream.anchor == Anchor(CURSOR, 0.0)
    assert not stream.degraded


@pytest.mark.parametrize(
    ("one", "lost_to"),
    [
        (batch(10), Cursor(4, 10)),
        (batch(10, None), Cursor(4, 10)),
        (batch(9, TIME), None),
        (batch(9, TIME + 1), Cursor(5, 9)),
        (batch(3, TIME + 1), Cursor(5, 3)),
        (batch(3, TIME), None),
        (batch(3, None), None),
    ],
)
def test_up_to_where_batches_are_missing_given_one_that_was_dropped(
    stream: BatchStream, one: DecodedBatch, lost_to: Cursor | None
) -> None:
    assert stream.lost_to(one) == lost_to


@pytest.mark.parametrize(
    ("sequence", "needs"), [(10, False), (11, True), (9, True), (8, True), (1, True), (0, False)]
)
def test_a_repair_is_needed_where_batches_before_are_missing(sequence: int, needs: bool) -> None:
    assert new_stream(repairs=True).needs_repair(batch(sequence)) is needs
    assert new_stream(repairs=False).needs_repair(batch(sequence)) is False
