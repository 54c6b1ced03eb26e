"""The gap ledger: of each publisher, which batches came, were repaired, or were lost. Pure.

A fold keeps it from what the log says anyway, and from nothing else:

    lost        `gap` records; batches of `events` records of which nothing could be used; holes of
                the log itself (rule 4 of `streams.table.fold`)
    repaired    `events` records with `repaired`: a replay brought them, in time
    incomplete  `events` records with `incomplete`: batches of which some event could not be used,
                or of which the log has not all parts
    seen        all others from the incarnation's first one to the publisher's cursor

Numbers rise within an incarnation, and only records that are folded count: a record that comes
twice or late counts once, as in the table. So the numbers of an incarnation are in exactly one of
seen, lost and repaired; an incomplete one is seen or repaired, too.

Intervals that follow on one another and have one cause are one. A ledger has as many as
LEDGER_INTERVALS_MAX of each kind and LEDGER_INCARNATIONS_MAX incarnations; what is older is dropped
and counted as forgotten, and the numbers of batches stay exact. It costs nothing where a record
simply follows on, and else O(intervals).
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from schemas.identities import PublisherKey, Text
from schemas.positions import IncarnationNumber, PublisherState, Seconds, SequenceNumber
from schemas.records import EventsRecord, GapRecord, ResetRecord, SequencedRecord

# What is remembered of each publisher's losses and repairs, in one row of 10 KB at most. What is
# older stays in the totals, and `forgotten` of /gaps counts it. Each kind of interval has a share
# of its own, so that many repairs push no loss out.
LEDGER_INCARNATIONS_MAX: Final = 8  # of a publisher, each with its intervals
LEDGER_INTERVALS_MAX: Final = 64  # of one kind, in all incarnations of a publisher
LEDGER_BATCHES_MAX: Final = 2**64 - 1  # of one cause; what a row can have
LEDGER_CAUSES_MAX: Final = 32  # of one kind; batches of any further cause count as `other`

NOT_IN_LOG: Final = "not_in_log"
"""Cause of batches that the log itself does not have, and does not say why."""

UNUSABLE_EVENT: Final = "unusable_event"
"""Cause of an incomplete batch where the record does not say it: an older bridge wrote it."""

OTHER: Final = "other"
"""Of the totals: all causes beyond LEDGER_CAUSES_MAX."""

Count = Annotated[int, Meta(ge=0)]


class Kind(StrEnum):
    """What became of a batch that did not simply come. The names are those of the fields."""

    LOST = "lost"
    REPAIRED = "repaired"
    INCOMPLETE = "incomplete"


class Interval(msgspec.Struct, frozen=True, array_like=True):
    """Batches `first..last` of one incarnation.

    Attributes:
        cause: in a word: the reason of the gap, or why the batches had been missing.
        at, until: Unix seconds of the first and of the last record that said so.
    """

    first: SequenceNumber
    last: SequenceNumber
    cause: Text
    at: Seconds
    until: Seconds

    @property
    def batches(self) -> int:
        """How many they are."""
        return self.last - self.first + 1


class Account(msgspec.Struct, frozen=True, array_like=True):
    """The intervals of one kind in one incarnation.

    Attributes:
        batches: in all of them, the forgotten ones included.
        intervals: in rising order.
        forgotten: how many intervals are no longer there; they were before the others.
        forgotten_batches: in those.
    """

    batches: Count = 0
    intervals: tuple[Interval, ...] = ()
    forgotten: Count = 0
    forgotten_batches: Count = 0

    @property
    def reached(self) -> int:
        """The last number that it has; -1 for none."""
        return self.intervals[-1].last if self.intervals else -1

    def add(self, found: Iterable[Interval]) -> "Account":
        """With these, which come behind all others and are in rising order."""
        intervals, batches = list(self.intervals), self.batches
        for one in found:
            batches += one.batches
            last = intervals[-1] if intervals else None
            if last is not None and (last.last + 1, last.cause) == (one.first, one.cause):
                one = Interval(last.first, one.last, last.cause, last.at, one.until)
                intervals.pop()
            intervals.append(one)
        return Account(batches, tuple(intervals), self.forgotten, self.forgotten_batches)

    def without_first(self, count: int) -> "Account":
        """Forgets so many intervals."""
        gone = self.intervals[:count]
        return Account(
            self.batches,
            self.intervals[count:],
            self.forgotten + len(gone),
            self.forgotten_batches + sum(one.batches for one in gone),
        )


_NONE: Final = Account()


class Incarnation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run of the publisher's process.

    Attributes:
        number: from 1.
        began_at: Unix seconds of the first record of it; 0 where the ledger does not know.
        reason: of its `reset` record, if there was one.
        first: the first batch of which the ledger knows anything: what came before was folded by an
            older Reprise, or is older than the log.
        last: the last batch that was folded of it; None of the one that goes on.
    """

    number: IncarnationNumber
    began_at: Seconds = 0.0
    reason: Text = ""
    first: SequenceNumber = 0
    last: SequenceNumber | None = None
    lost: Account = _NONE
    repaired: Account = _NONE
    incomplete: Account = _NONE

    def account(self, kind: Kind) -> Account:
        """The one of this kind."""
        found: Account = getattr(self, kind.value)
        return found

    def with_account(self, kind: Kind, account: Account) -> "Incarnation":
        """With another one of this kind."""
        return msgspec.structs.replace(self, **{kind.value: account})


class Ledger(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All of one publisher; never changed, only replaced.

    Attributes:
        incarnations: the latest, the present one last.
        forgotten: how many there were before them.
        lost, repaired, incomplete: batches by cause, of all incarnations there have been; at most
            LEDGER_BATCHES_MAX, which numbers that jump to their end come to in two of them.
    """

    incarnations: tuple[Incarnation, ...] = ()
    forgotten: Count = 0
    lost: dict[Text, Count] = {}
    repaired: dict[Text, Count] = {}
    incomplete: dict[Text, Count] = {}

    def totals(self, kind: Kind) -> dict[str, int]:
        """Batches by cause, of one kind."""
        found: dict[str, int] = getattr(self, kind.value)
        return found

    def begin(self, incarnation: Incarnation, *, ended_at: int) -> "Ledger":
        """With one more incarnation; `ended_at` is the last batch of the one before."""
        before = list(self.incarnations)
        if before:
            before[-1] = msgspec.structs.replace(before[-1], last=ended_at)
        gone = max(0, len(before) + 1 - LEDGER_INCARNATIONS_MAX)
        return msgspec.structs.replace(
            self, incarnations=(*before[gone:], incarnation), forgotten=self.forgotten + gone
        )

    def add(self, kind: Kind, found: Iterable[Interval]) -> "Ledger":
        """With these intervals of the present incarnation; of numbers that it has already, it keeps
        what was said first.
        """
        current = self.incarnations[-1]
        account = current.account(kind)
        added = list(_above(account.reached, found))
        if not added:
            return self
        totals = dict(self.totals(kind))
        for one in added:
            is_known = one.cause in totals or len(totals) < LEDGER_CAUSES_MAX - 1
            cause = one.cause if is_known else OTHER
            totals[cause] = min(totals.get(cause, 0) + one.batches, LEDGER_BATCHES_MAX)
        incarnations = [*self.incarnations[:-1], current.with_account(kind, account.add(added))]
        return msgspec.structs.replace(
            self, incarnations=tuple(_bounded(kind, incarnations)), **{kind.value: totals}
        )


def _above(reached: int, found: Iterable[Interval]) -> Iterator[Interval]:
    """Of each interval what is above all before it."""
    for one in found:
        first = max(one.first, reached + 1)
        if first <= one.last:
            reached = one.last
            yield Interval(first, one.last, one.cause, one.at, one.until)


def _bounded(kind: Kind, incarnations: list[Incarnation]) -> Iterator[Incarnation]:
    """Without the oldest intervals of the kind, where they are too many."""
    held = sum(len(one.account(kind).intervals) for one in incarnations)
    surplus = max(0, held - LEDGER_INTERVALS_MAX)
    for one in incarnations:
        account = one.account(kind)
        gone = min(surplus, len(account.intervals))
        surplus -= gone
        yield one.with_account(kind, account.without_first(gone)) if gone else one


class NumberSpans(NamedTuple):
    """What is known of an incarnation's numbers.

    Attributes:
        first, last: from where to where; last is first - 1 where there is nothing.
        seen: how many batches simply came, or by a replay: all but the lost ones.
        intervals: of those, as far as the lost ones between them are not forgotten.
    """

    first: int
    last: int
    seen: int
    intervals: list[tuple[int, int]]


def spans_of(incarnation: Incarnation, state: PublisherState | None) -> NumberSpans:
    """Cost O(intervals).

    Args:
        state: of its publisher, which knows where the present incarnation stands.
    """
    lost = incarnation.lost
    last = incarnation.last
    if last is None:
        same = state is not None and state.incarnation == incarnation.number
        last = state.sequence if same and state is not None else -1
        for account in (lost, incarnation.repaired, incarnation.incomplete):
            if account.intervals:  # another thread may have folded on since the state was read
                last = max(last, account.intervals[-1].last)
    first = incarnation.first
    seen = max(0, last - first + 1 - lost.batches)
    at = first
    if lost.forgotten:  # what came between those that are forgotten is not known
        at = lost.intervals[0].first if lost.intervals else last + 1
    intervals = []
    for one in lost.intervals:
        if one.first > at:
            intervals.append((at, one.first - 1))
        at = one.last + 1
    if at <= last:
        intervals.append((at, last))
    return NumberSpans(first, max(last, first - 1), seen, intervals)


class Ledgers:
    """Those of all publishers of one fold. One writer; `current` may be read from other threads.

    Attributes:
        current: by publisher.
    """

    def __init__(self) -> None:
        self.current: dict[PublisherKey, Ledger] = {}
        self._changed: dict[PublisherKey, None] = {}  # in the order of the log

    def note(
        self,
        publisher: PublisherKey,
        before: PublisherState,
        record: SequencedRecord,
        *,
        is_torn: bool = False,
        is_proven: bool = True,
    ) -> None:
        """A record has been folded.

        Args:
            before: its state before that.
            record: not a duplicate.
            is_torn: whether its first batch is in the log, but not all parts of it.
            is_proven: whether the fold knows the log from its beginning: else what it has not seen
                of a publisher may be older.
        """
        begins = record.incarnation > before.incarnation
        sequence = -1 if begins else before.sequence
        has_hole = record.first_sequence > sequence + 1
        if not (begins or has_hole or is_torn) and isinstance(record, EventsRecord):
            if record.repaired is msgspec.UNSET and record.incomplete is msgspec.UNSET:
                return  # almost every record
            if record.is_unfinished:
                return  # the part that ends the batch says it again
        ledger = after = self._of(publisher, before)
        begins = begins or not ledger.incarnations
        at = record.bridge_time
        if begins:
            is_unknown = has_hole and not before.incarnation and not is_proven
            first = record.first_sequence if is_unknown else 0
            has_hole = has_hole and not is_unknown
            after = after.begin(
                Incarnation(
                    number=record.incarnation,
                    began_at=at,
                    reason=record.reason if isinstance(record, ResetRecord) else "",
                    first=first,
                ),
                ended_at=before.sequence,
            )
        if has_hole:
            hole = Interval(sequence + 1, record.first_sequence - 1, NOT_IN_LOG, at, at)
            after = after.add(Kind.LOST, [hole])
        if isinstance(record, GapRecord):
            first = max(record.first_sequence, sequence + 1)
            gap = Interval(first, record.last_sequence, record.reason, at, at)
            after = after.add(Kind.LOST, [gap])
        elif isinstance(record, EventsRecord):
            after = _with_events(after, record, sequence, is_torn=is_torn)
        if after is not ledger:
            self.current[publisher] = after
            self._changed[publisher] = None

    def _of(self, publisher: PublisherKey, before: PublisherState) -> Ledger:
        """The publisher's ledger, as of before the record. There is none, or an older one, where an
        older Reprise has folded; what that met is not known.
        """
        ledger = self.current.get(publisher, _EMPTY)
        known = ledger.incarnations[-1].number if ledger.incarnations else 0
        if known == before.incarnation:
            return ledger
        unknown = Incarnation(number=before.incarnation, first=before.sequence + 1)
        ended_at = ledger.incarnations[-1].lost.reached if ledger.incarnations else -1
        return ledger.begin(unknown, ended_at=ended_at)

    def forget(self, publisher: PublisherKey) -> None:
        """The publisher is unregistered."""
        if self.current.pop(publisher, None) is not None:
            self._changed[publisher] = None

    def take_changes(self) -> dict[PublisherKey, Ledger | None]:
        """What changed since the last call; None stands for a deletion."""
        changed, self._changed = self._changed, {}
        return {publisher: self.current.get(publisher) for publisher in changed}

    def restore(
        self,
        ledgers: Mapping[PublisherKey, Ledger],
        publishers: Mapping[PublisherKey, PublisherState],
    ) -> None:
        """Takes over what rows say. Of publishers without such a row, which an older Reprise has
        folded, the ledger begins here.
        """
        self.current = dict(ledgers)
        self._changed = {}
        for publisher, state in publishers.items():
            ledger = self._of(publisher, state)
            if ledger is not self.current.get(publisher, _EMPTY):
                self.current[publisher] = ledger
                self._changed[publisher] = None


_EMPTY: Final = Ledger()
NO_LEDGERS: Final[Mapping[PublisherKey, Ledger]] = MappingProxyType({})


def _with_events(ledger: Ledger, record: EventsRecord, sequence: int, *, is_torn: bool) -> Ledger:
    """With what an `events` record says, of the batches above `sequence` that are whole with it."""
    first = max(record.first_sequence, sequence + 1)
    last, at = record.reached.sequence, record.bridge_time
    lost: list[Interval] = []
    incomplete: list[Interval] = []
    if is_torn:
        incomplete.append(Interval(first, first, NOT_IN_LOG, at, at))
    if record.unusable is not msgspec.UNSET:
        for one in record.unusable:
            found = Interval(max(one.first, first), min(one.last, last), one.reason, at, at)
            if found.batches > 0:
                (lost if one.is_whole else incomplete).append(found)
    elif record.incomplete is not msgspec.UNSET and first <= record.incomplete <= last:
        incomplete.append(Interval(record.incomplete, record.incomplete, UNUSABLE_EVENT, at, at))
    ledger = ledger.add(Kind.LOST, lost).add(Kind.INCOMPLETE, incomplete)
    if record.repaired is not msgspec.UNSET:
        repaired = _without(lost, first, last, record.repaired, at)
        ledger = ledger.add(Kind.REPAIRED, repaired)
    return ledger


def _without(
    lost: list[Interval], first: int, last: int, cause: str, at: float
) -> Iterator[Interval]:
    """What is left of `first..last`."""
    for one in lost:
        if one.first > first:
            yield Interval(first, one.first - 1, cause, at, at)
        first = max(first, one.last + 1)
    if first <= last:
        yield Interval(first, last, cause, at, at)
