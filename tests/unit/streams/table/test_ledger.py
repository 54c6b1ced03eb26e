"""The gap ledger: what a fold of the log says became of each batch."""

from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.identities import Offset, PublisherKey
from schemas.limits import SEQUENCE_MAX
from schemas.positions import PublisherState
from schemas.records import (
    EventsRecord,
    GapRecord,
    Part,
    ResetRecord,
    SequencedRecord,
    UnusableRun,
    encode_record,
)
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.ledger import (
    LEDGER_BATCHES_MAX,
    LEDGER_CAUSES_MAX,
    LEDGER_INCARNATIONS_MAX,
    LEDGER_INTERVALS_MAX,
    NOT_IN_LOG,
    OTHER,
    UNUSABLE_EVENT,
    Account,
    Incarnation,
    Interval,
    Kind,
    Ledger,
    NumberSpans,
    spans_of,
)
from tests.building import STREAM, registered_record, registration, unregistered_record

ME = PublisherKey(STREAM, 0)
EMPTY = msgspec.Raw(b"\x90")


def events(
    first: int,
    last: int | None = None,
    *,
    incarnation: int = 1,
    repaired: str = "",
    incomplete: int | None = None,
    unusable: Iterable[UnusableRun] = (),
    part: Part | None = None,
    at: float = 100.0,
) -> EventsRecord:
    """Of batches without events."""
    named = tuple(unusable)
    return EventsRecord(
        stream=STREAM,
        dp_rank=0,
        bridge_time=at,
        incarnation=incarnation,
        first_sequence=first,
        last_sequence=first if last is None else last,
        engine_time=1.0,
        events=EMPTY,
        incomplete=named[-1].last if named else msgspec.UNSET if incomplete is None else incomplete,
        unusable=named or msgspec.UNSET,
        repaired=repaired or msgspec.UNSET,
        part=part or msgspec.UNSET,
    )


def gap(
    first: int, last: int, reason: str = "missed", *, incarnation: int = 1, at: float = 100.0
) -> GapRecord:
    return GapRecord(
        stream=STREAM,
        dp_rank=0,
        bridge_time=at,
        incarnation=incarnation,
        first_sequence=first,
        last_sequence=last,
        reason=reason,
    )


def reset(incarnation: int, *, at: float = 100.0) -> ResetRecord:
    return ResetRecord(
        stream=STREAM,
        dp_rank=0,
        bridge_time=at,
        incarnation=incarnation,
        first_sequence=-1,
        last_sequence=-1,
        reason="restarted",
    )


@pytest.fixture
def fold(any_fold: Callable[[], Fold]) -> Fold:
    return any_fold()


def feed(fold: Fold, *records: SequencedRecord) -> Ledger:
    for record in records:
        fold.apply(Offset(fold.offset + 1), encode_record(record))
    return fold.ledgers.current[ME]


def intervals(account: Account) -> list[tuple[int, int, str]]:
    return [(one.first, one.last, one.cause) for one in account.intervals]


def spans(fold: Fold, place: int = -1) -> NumberSpans:
    return spans_of(fold.ledgers.current[ME].incarnations[place], fold.publishers.get(ME))


# What records say


def test_what_came_without_a_loss_is_seen_and_costs_no_change(fold: Fold) -> None:
    ledger = feed(fold, events(0, 3, at=7.0))
    assert ledger == Ledger(incarnations=(Incarnation(number=1, began_at=7.0),))
    assert fold.take_changes().ledgers == {ME: ledger}
    assert feed(fold, events(4, 9)) is ledger
    assert fold.take_changes().ledgers == {}
    assert spans(fold) == NumberSpans(0, 9, 10, [(0, 9)])


def test_a_gap_is_lost_with_its_reason_and_time(fold: Fold) -> None:
    ledger = feed(fold, events(0, 1), gap(2, 5, at=8.0), events(6), gap(7, 7, "undecodable"))
    [one] = ledger.incarnations
    assert one.lost == Account(
        5, (Interval(2, 5, "missed", 8.0, 8.0), Interval(7, 7, "undecodable", 100.0, 100.0))
    )
    assert ledger.lost == {"missed": 4, "undecodable": 1}
    assert spans(fold) == NumberSpans(0, 7, 3, [(0, 1), (6, 6)])


def test_gaps_that_follow_on_one_another_are_one_where_they_have_one_reason(fold: Fold) -> None:
    ledger = feed(fold, gap(0, 1, at=5.0), gap(2, 2, at=6.0), gap(3, 3, "spool_full"))
    [one] = ledger.incarnations
    assert one.lost.intervals == (
        Interval(0, 2, "missed", 5.0, 6.0),
        Interval(3, 3, "spool_full", 100.0, 100.0),
    )
    assert spans(fold) == NumberSpans(0, 3, 0, [])


def test_of_a_gap_only_what_is_new_counts(fold: Fold) -> None:
    ledger = feed(fold, events(0, 4), gap(3, 6))
    assert intervals(ledger.incarnations[0].lost) == [(5, 6, "missed")]
    assert ledger.lost == {"missed": 2}
    assert fold.counters["lost_batches"] == 2


def test_records_that_come_twice_or_late_count_once(fold: Fold) -> None:
    records: list[SequencedRecord] = [events(0, 1), gap(2, 3)]
    records.append(events(4, 6, repaired="missed"))
    once = feed(fold, *records)
    assert feed(fold, *records, events(2, 3)) is once
    assert once.lost == {"missed": 2}
    assert once.repaired == {"missed": 3}


def test_what_a_replay_brought_is_repaired(fold: Fold) -> None:
    ledger = feed(
        fold,
        events(0, 1),
        events(2, 9, repaired="reconnected", at=5.0),
        events(10, 12, repaired="reconnected", at=6.0),
        events(13),
        events(14, repaired="missed"),
    )
    [one] = ledger.incarnations
    assert one.repaired == Account(
        12,
        (
            Interval(2, 12, "reconnected", 5.0, 6.0),
            Interval(14, 14, "missed", 100.0, 100.0),
        ),
    )
    assert ledger.repaired == {"reconnected": 11, "missed": 1}
    assert spans(fold) == NumberSpans(0, 14, 15, [(0, 14)])


def test_only_the_new_part_of_an_overlapping_record_is_repaired(fold: Fold) -> None:
    ledger = feed(fold, events(0, 4), events(3, 6, repaired="missed"))
    assert intervals(ledger.incarnations[0].repaired) == [(5, 6, "missed")]


def test_batches_of_which_an_event_was_unusable_are_incomplete_and_seen(fold: Fold) -> None:
    named = [UnusableRun(1, 2, "bad_hashes"), UnusableRun(4, 4, "bad_tokens")]
    ledger = feed(fold, events(0, 5, unusable=named))
    [one] = ledger.incarnations
    assert intervals(one.incomplete) == [(1, 2, "bad_hashes"), (4, 4, "bad_tokens")]
    assert ledger.incomplete == {"bad_hashes": 2, "bad_tokens": 1}
    assert not one.lost.batches
    assert spans(fold) == NumberSpans(0, 5, 6, [(0, 5)])


def test_a_record_of_an_older_bridge_names_the_last_incomplete_batch_alone(fold: Fold) -> None:
    ledger = feed(fold, events(0, 5, incomplete=4))
    assert intervals(ledger.incarnations[0].incomplete) == [(4, 4, UNUSABLE_EVENT)]
    assert feed(fold, events(6, 8, incomplete=3)) is ledger, "it is not among its batches"


def test_batches_of_which_nothing_was_usable_are_lost_and_not_repaired(fold: Fold) -> None:
    named = [UnusableRun(1, 2, "undecodable", True), UnusableRun(4, 4, "bad_tokens")]
    ledger = feed(fold, events(0, 5, unusable=named, repaired="missed"))
    [one] = ledger.incarnations
    assert intervals(one.lost) == [(1, 2, "undecodable")]
    assert intervals(one.incomplete) == [(4, 4, "bad_tokens")]
    assert intervals(one.repaired) == [(0, 0, "missed"), (3, 5, "missed")]
    assert spans(fold) == NumberSpans(0, 5, 4, [(0, 0), (3, 5)])


def test_unusable_batches_beyond_the_record_are_left_out(fold: Fold) -> None:
    named = [UnusableRun(0, 99, "a"), UnusableRun(50, 60, "b", True), UnusableRun(9, 3, "c")]
    ledger = feed(fold, events(0, 2), events(3, 4, unusable=named))
    [one] = ledger.incarnations
    assert (intervals(one.incomplete), intervals(one.lost)) == ([(3, 4, "a")], [])


def test_a_batch_in_parts_counts_once_it_is_whole(fold: Fold) -> None:
    named = [UnusableRun(1, 1, "bad_hashes")]
    parts = [
        events(1, unusable=named, repaired="missed", part=Part(first, first + 1, 3))
        for first in range(3)
    ]
    before = feed(fold, events(0))
    assert feed(fold, *parts[:2]) is before
    [one] = feed(fold, parts[2]).incarnations
    assert intervals(one.repaired) == [(1, 1, "missed")]
    assert intervals(one.incomplete) == [(1, 1, "bad_hashes")]


def test_a_batch_that_was_begun_and_given_up_is_lost_and_nothing_else(fold: Fold) -> None:
    part = events(1, unusable=[UnusableRun(1, 1, "a")], repaired="missed", part=Part(0, 1, 3))
    [one] = feed(fold, events(0), part, gap(1, 1, "internal_error")).incarnations
    assert intervals(one.lost) == [(1, 1, "internal_error")]
    assert (one.repaired.batches, one.incomplete.batches) == (0, 0)


def test_a_batch_without_all_its_parts_is_incomplete(fold: Fold) -> None:
    [one] = feed(
        fold, events(0), events(1, part=Part(0, 1, 3)), events(1, part=Part(2, 3, 3))
    ).incarnations
    assert intervals(one.incomplete) == [(1, 1, NOT_IN_LOG)]
    assert not one.lost.batches


def test_a_hole_in_the_log_is_lost_even_if_no_gap_says_so(fold: Fold) -> None:
    ledger = feed(fold, events(0, 1), events(4), gap(7, 8), reset(2), events(2, incarnation=2))
    assert [intervals(one.lost) for one in ledger.incarnations] == [
        [(2, 3, NOT_IN_LOG), (5, 6, NOT_IN_LOG), (7, 8, "missed")],
        [(0, 1, NOT_IN_LOG)],
    ]
    assert ledger.lost == {NOT_IN_LOG: 6, "missed": 2}


# Incarnations


def test_each_incarnation_has_its_own_account(fold: Fold) -> None:
    ledger = feed(
        fold,
        events(0, 4),
        gap(5, 5),
        reset(2, at=7.0),
        events(0, 2, incarnation=2),
        gap(3, 3, incarnation=3, at=9.0),
    )
    numbers = [(one.number, one.began_at, one.reason, one.last) for one in ledger.incarnations]
    assert numbers == [(1, 100.0, "", 5), (2, 7.0, "restarted", 2), (3, 9.0, "", None)]
    assert [intervals(one.lost) for one in ledger.incarnations] == [
        [(5, 5, "missed")],
        [],
        [(0, 2, NOT_IN_LOG), (3, 3, "missed")],
    ]
    assert [spans(fold, place).last for place in range(3)] == [5, 2, 3]


def test_a_reset_begins_an_incarnation_of_which_nothing_is_seen(fold: Fold) -> None:
    feed(fold, events(0, 4), reset(2))
    assert spans(fold) == NumberSpans(0, -1, 0, [])
    assert spans(fold, 0) == NumberSpans(0, 4, 5, [(0, 4)])


def test_a_reader_that_is_ahead_of_the_state_sees_no_less_than_the_ledger_says() -> None:
    one = Incarnation(number=2, lost=Account(2, (Interval(4, 5, "missed", 1.0, 1.0),)))
    for state in (None, PublisherState(incarnation=1, sequence=99)):
        assert spans_of(one, state) == NumberSpans(0, 5, 4, [(0, 3)])
    ahead = PublisherState(incarnation=2, sequence=7)
    assert spans_of(one, ahead) == NumberSpans(0, 7, 6, [(0, 3), (6, 7)])


def test_an_unregistered_publisher_loses_its_ledger(fold: Fold) -> None:
    fold.apply(Offset(0), registered_record(registration("a")))
    feed(fold, gap(0, 1))
    fold.take_changes()
    fold.apply(Offset(fold.offset + 1), unregistered_record(registration("a")))
    assert fold.ledgers.current == {}
    assert fold.take_changes().ledgers == {ME: None}


# What is not known


def test_what_a_fold_without_the_logs_beginning_has_not_seen_is_no_loss(fold: Fold) -> None:
    fold.distrust(Offset(10))
    ledger = feed(fold, events(40, 42), events(44), reset(2), events(3, incarnation=2))
    assert [(one.first, intervals(one.lost)) for one in ledger.incarnations] == [
        (40, [(43, 43, NOT_IN_LOG)]),
        (0, [(0, 2, NOT_IN_LOG)]),
    ]
    assert spans(fold, 0) == NumberSpans(40, 44, 4, [(40, 42), (44, 44)])


def test_the_ledger_begins_where_an_older_reprise_has_ended(any_fold: Callable[[], Fold]) -> None:
    old = any_fold()
    feed(old, events(0, 9), gap(10, 11), events(12))
    fold = any_fold()
    fold.restore(old.offset, old.publishers, {})
    assert fold.take_changes().ledgers == {
        ME: Ledger(incarnations=(Incarnation(number=1, first=13),))
    }
    feed(fold, events(13, 14), gap(15, 15))
    assert spans(fold) == NumberSpans(13, 15, 2, [(13, 14)])


def test_a_ledger_of_an_incarnation_before_goes_on_behind_it(any_fold: Callable[[], Fold]) -> None:
    old = any_fold()
    feed(old, events(0), gap(1, 2))
    ledgers = dict(old.ledgers.current)
    feed(old, reset(2), events(0, 5, incarnation=2))  # of which an older Reprise keeps no ledger
    fold = any_fold()
    fold.restore(old.offset, old.publishers, {}, ledgers=ledgers)
    ledger = feed(fold, gap(6, 7, incarnation=2))
    assert [(one.number, one.first, one.last) for one in ledger.incarnations] == [
        (1, 0, 2),
        (2, 6, None),
    ]


def test_a_ledger_that_was_restored_goes_on(any_fold: Callable[[], Fold]) -> None:
    whole, first, second = any_fold(), any_fold(), any_fold()
    records: list[SequencedRecord] = [events(0, 3), gap(4, 5), events(6, repaired="missed")]
    records += [reset(2), events(0, incarnation=2), gap(1, 1, incarnation=2)]
    for place in range(len(records)):
        first, second = any_fold(), any_fold()
        for record in records[:place]:
            first.apply(Offset(first.offset + 1), encode_record(record))
        second.restore(first.offset, first.publishers, {}, ledgers=first.ledgers.current)
        assert second.take_changes().ledgers == {}
        for record in records[place:]:
            second.apply(Offset(second.offset + 1), encode_record(record))
        whole = any_fold()
        assert second.ledgers.current[ME] == feed(whole, *records)


# Bounds


def test_the_oldest_intervals_are_forgotten_and_the_numbers_stay_exact(fold: Fold) -> None:
    count = LEDGER_INTERVALS_MAX + 3
    records: list[SequencedRecord] = []
    for at in range(count):
        records += [gap(3 * at, 3 * at + 1), events(3 * at + 2)]
    ledger = feed(fold, *records)
    [one] = ledger.incarnations
    assert [first for first, _, _ in intervals(one.lost)] == [3 * at for at in range(3, count)]
    assert (one.lost.batches, one.lost.forgotten, one.lost.forgotten_batches) == (2 * count, 3, 6)
    assert ledger.lost == {"missed": 2 * count}
    found = spans(fold)
    assert (found.seen, found.last) == (count, 3 * count - 1)
    assert found.intervals[0] == (11, 11), "behind those that are known"


def test_where_all_losses_are_forgotten_it_is_not_known_what_came_between(fold: Fold) -> None:
    records: list[SequencedRecord] = [gap(0, 0), events(1), reset(2)]
    for at in range(LEDGER_INTERVALS_MAX):
        records += [gap(2 * at, 2 * at, incarnation=2), events(2 * at + 1, incarnation=2)]
    first, _ = feed(fold, *records).incarnations
    assert first.lost == Account(1, (), 1, 1)
    assert spans(fold, 0) == NumberSpans(0, 1, 1, [])


def test_intervals_of_the_oldest_incarnation_are_forgotten_first(fold: Fold) -> None:
    feed(fold, gap(0, 0, "a"), gap(1, 1, "b"), events(2, repaired="missed"))
    records: list[SequencedRecord] = [reset(2)]
    for at in range(LEDGER_INTERVALS_MAX - 1):
        records += [gap(2 * at, 2 * at, incarnation=2), events(2 * at + 1, incarnation=2)]
    first, second = feed(fold, *records).incarnations
    assert intervals(first.lost) == [(1, 1, "b")]
    assert (first.lost.batches, first.lost.forgotten, first.lost.forgotten_batches) == (2, 1, 1)
    assert (len(second.lost.intervals), second.lost.forgotten) == (LEDGER_INTERVALS_MAX - 1, 0)
    assert intervals(first.repaired) == [(2, 2, "missed")], "each kind has room of its own"
    spanned = spans(fold, 0)
    assert (spanned.seen, spanned.intervals) == (1, [(2, 2)])


def test_the_oldest_incarnations_are_forgotten_and_stay_in_the_totals(fold: Fold) -> None:
    records = [gap(0, 1, incarnation=1 + at) for at in range(LEDGER_INCARNATIONS_MAX + 3)]
    ledger = feed(fold, *records)
    assert len(ledger.incarnations) == LEDGER_INCARNATIONS_MAX
    assert ledger.forgotten == 3
    assert ledger.incarnations[-1].number == LEDGER_INCARNATIONS_MAX + 3
    assert ledger.lost == {"missed": 2 * (LEDGER_INCARNATIONS_MAX + 3)}


def test_numbers_that_jump_to_their_end_again_and_again_stay_what_a_row_can_have(
    fold: Fold,
) -> None:
    records = [gap(0, SEQUENCE_MAX, incarnation=number) for number in range(1, 5)]
    ledger = feed(fold, *records)
    assert [one.lost.batches for one in ledger.incarnations] == [2**63] * 4
    assert ledger.lost == {"missed": LEDGER_BATCHES_MAX}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ledger), type=Ledger) == ledger


def test_causes_without_end_are_counted_together(fold: Fold) -> None:
    records = [gap(at, at, f"cause-{at}") for at in range(LEDGER_CAUSES_MAX + 5)]
    ledger = feed(fold, *records)
    assert len(ledger.lost) == LEDGER_CAUSES_MAX
    assert ledger.lost[OTHER] == 6
    assert sum(ledger.lost.values()) == len(records)


# All of it, against sets

STEPS = st.tuples(
    st.sampled_from(["came", "repaired", "gap", "hole", "bad", "unusable", "reset", "again"]),
    st.integers(1, 4),
)


class Truth:
    """A history, and its numbers of each kind, by incarnation."""

    def __init__(self, steps: list[tuple[str, int]]) -> None:
        self.records: list[SequencedRecord] = []
        self.numbers: dict[tuple[int, Kind], set[int]] = defaultdict(set)
        self.incarnation, self.sequence = 1, 0
        for what, count in steps:
            if what == "again":
                self.records += self.records[-count:]
            elif what == "reset":
                self.incarnation, self.sequence = self.incarnation + 1, 0
                self.records.append(reset(self.incarnation))
            else:
                self._send(what, count)

    def _send(self, what: str, count: int) -> None:
        first, last = self.sequence, self.sequence + count - 1
        self.sequence = last + 1
        numbers, incarnation = set(range(first, last + 1)), self.incarnation
        match what:
            case "came":
                self.records.append(events(first, last, incarnation=incarnation))
            case "repaired":
                self._note(Kind.REPAIRED, numbers)
                one = events(first, last, incarnation=incarnation, repaired="missed")
                self.records.append(one)
            case "gap":
                self._note(Kind.LOST, numbers)
                self.records.append(gap(first, last, incarnation=incarnation))
            case "hole":
                self._note(Kind.LOST, numbers)
                self.records.append(events(last + 1, incarnation=incarnation))
                self.sequence += 1
            case _:
                is_whole = what == "unusable"
                named = [UnusableRun(last, last, "bad_hashes", is_whole)]
                self.records.append(
                    events(first, last, incarnation=incarnation, unusable=named, repaired="check")
                )
                self._note(Kind.LOST if is_whole else Kind.INCOMPLETE, {last})
                self._note(Kind.REPAIRED, numbers - {last} if is_whole else numbers)

    def _note(self, kind: Kind, numbers: set[int]) -> None:
        self.numbers[self.incarnation, kind] |= numbers


@given(st.lists(STEPS, max_size=40))
def test_the_ledger_is_what_sets_of_numbers_say(steps: list[tuple[str, int]]) -> None:
    truth = Truth(steps)
    fold = Fold(open_kernel(1337))
    for record in truth.records:
        fold.apply(Offset(fold.offset + 1), encode_record(record))
    ledger = fold.ledgers.current.get(ME, Ledger())
    for kind in Kind:
        of_kind = [numbers for (_, one), numbers in truth.numbers.items() if one is kind]
        assert sum(ledger.totals(kind).values()) == sum(map(len, of_kind))
        for one in ledger.incarnations:
            account, numbers = one.account(kind), truth.numbers[one.number, kind]
            found = [at for it in account.intervals for at in range(it.first, it.last + 1)]
            assert found == sorted(numbers)[account.forgotten_batches :]
            assert account.batches == len(numbers)
    for one in ledger.incarnations:
        known = spans_of(one, fold.publishers[ME])
        assert known.seen + one.lost.batches == known.last - known.first + 1
