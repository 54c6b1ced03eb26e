"""The gap ledger against the truth, number for number: what the engines published, what their links
and their replay sockets brought, and what the log's records have. And the index against the ledger:
it has what the engine's own batches come to without those that the ledger names as lost.
"""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import msgspec

from bridge.sockets.raw_message import RawMessage
from schemas.identities import Offset
from schemas.positions import NO_CURSOR, Cursor, PublisherState
from schemas.records import (
    EventsRecord,
    Record,
    RegisteredRecord,
    UnregisteredRecord,
    encode_record,
)
from streams.kernel import open_kernel
from streams.kernel.changes import decode_changes
from streams.table.fold import Fold
from streams.table.ledger import NOT_IN_LOG, Account, Incarnation, Ledger, spans_of
from streams.table.rows.reader import RowReader
from tests.simulation.engines import SimulatedEngine, Spoilt
from tests.unit.bridge.publisher.sequencers import Sequencers


@dataclass
class Told:
    """What records tell of one incarnation, without a fold.

    Attributes:
        got: the batches that are there, whole.
        begun: those of which there is a part, at least.
        lives: of the engine, that have sent them; life_of: by the batch.
        last: the last batch that they cover.
    """

    got: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)
    lives: set[int] = field(default_factory=set)
    life_of: dict[int, int | None] = field(default_factory=dict)
    last: int = -1


def told_by(records: Iterable[Record], engine: SimulatedEngine) -> dict[int, Told]:
    """What an engine's records tell, by incarnation, since it was last unregistered: of each batch
    the record that comes first counts.
    """
    told: dict[int, Told] = {}
    cursor = NO_CURSOR
    for record in records:
        if isinstance(record, UnregisteredRecord):
            told, cursor = {}, NO_CURSOR
        if isinstance(record, UnregisteredRecord | RegisteredRecord):
            continue
        if record.incarnation > cursor.incarnation:
            cursor = Cursor(record.incarnation, -1)
        elif record.last <= cursor:
            continue
        of = told.setdefault(record.incarnation, Told())
        if isinstance(record, EventsRecord):
            first = max(record.first_sequence, cursor.sequence + 1)
            of.got.update(range(first, record.reached.sequence + 1))
            of.got.difference_update(_unusable(record))
            of.begun.update((record.first_sequence,) if record.is_unfinished else ())
            life = engine.life_at(record.engine_time)
            of.lives.update(() if life is None else (life,))
            of.life_of.update(dict.fromkeys(range(first, record.reached.sequence + 1), life))
        of.last = max(of.last, record.reached.sequence)
        cursor = max(cursor, record.reached)
    return told


def is_whole(
    records: Iterable[Record], engine: SimulatedEngine, state: PublisherState | None
) -> bool:
    """Whether the log has all batches of its present life from the last one on that cleared its
    cache.
    """
    if state is None:
        return False
    told = told_by(records, engine).get(state.incarnation, Told())
    needed = range(engine.cleared_at, engine.sequence)
    return told.got.issuperset(needed) and {told.life_of[one] for one in needed} == {engine.life}


def _unusable(record: EventsRecord) -> Iterator[int]:
    """The batches of which nothing could be used."""
    if record.unusable is msgspec.UNSET:
        return
    for one in record.unusable:
        if one.is_whole:
            yield from range(one.first, one.last + 1)


def held_by(table: Fold | RowReader, engine: SimulatedEngine) -> set[int]:
    """The prefix hashes of the blocks that a table has of an engine, and that can be found."""
    registration = engine.registration
    return {
        change.prefix
        for view in table.kernel.contexts()
        if view.context.instance_id == registration.instance_id
        and view.context.lora_name == registration.lora_name  # what is left out has others
        for chunk in table.kernel.dump(view.context, 65_536)
        for change in decode_changes(chunk)
        if change.dp_rank == registration.dp_rank
    }


def held_without(
    engine: SimulatedEngine, life: int, batches: int, lost: AbstractSet[int]
) -> set[int]:
    """The prefix hashes that the first batches of one of the engine's lives come to without the
    lost ones: by the decoder and the fold alone, with nothing between them.
    """
    sequencer, fold = Sequencers(), Fold(open_kernel(1337, name="reference"))
    sequencer.add(engine.registration)
    messages = [
        RawMessage(engine.publisher, frames, 0.0)
        for number, frames in enumerate(engine.published[life][:batches])
        if number not in lost
    ]
    for offset, record in enumerate(sequencer.process(messages, 1.0)):
        assert fold.apply(Offset(offset), encode_record(record)) is None
    return held_by(fold, engine)


def check_ledger(
    fold: Fold, engine: SimulatedEngine, records: Sequence[Record], *, known: bool, covered: bool
) -> None:
    """Of each incarnation in the ledger, exactly what the engine had published and the log did not
    get is lost, what only a replay can have brought is repaired, and what came with a bad event is
    incomplete. The index is what the engine's batches come to without the lost ones. Of an engine
    that is covered, nothing of the present incarnation is lost that could be read.

    Args:
        fold: of the records.
        engine: registered; its last batch has been received.
        records: its own, in order.
        known: whether these are all that there have ever been.
        covered: whether the engine still has all that it has sent.
    """
    name = f"engine {engine.number}"
    ledger = fold.ledgers.current.get(engine.publisher, Ledger())
    told = told_by(records, engine)
    if known:
        numbers = [one.number for one in ledger.incarnations]
        kept = sorted(told)[-len(numbers) or len(told) :]
        assert numbers == kept, f"{name}: the log has {sorted(told)}, the ledger {numbers}"
    state = fold.publishers.get(engine.publisher)
    for incarnation in ledger.incarnations:
        if incarnation.number in told:
            _check_incarnation(fold, engine, incarnation, told[incarnation.number], known=known)
    if not known or not ledger.incarnations or state is None:
        return
    if engine.is_set_back and engine.life not in told[state.incarnation].lives:
        # Its numbers and its clock are below those of the life before, and the log has no batch
        # whose time could be compared: it is taken for that one, which is degraded.
        assert state.degraded_since is not None, f"{name}: nothing says that it is another life"
        return
    if covered:
        lost = numbers_of(ledger.incarnations[-1].lost)
        bad = engine.spoilt_in(engine.life, Spoilt.BATCH)
        assert lost <= bad, f"{name}: lost although its buffer covers them: {lost - bad}"
    reached = spans_of(ledger.incarnations[-1], state).last
    assert reached == engine.sequence - 1, (
        f"{name} has published {engine.sequence} batches, the ledger ends at {reached}"
    )


def _check_incarnation(
    fold: Fold, engine: SimulatedEngine, incarnation: Incarnation, told: Told, *, known: bool
) -> None:
    name = f"engine {engine.number}, incarnation {incarnation.number}"
    spans = spans_of(incarnation, fold.publishers.get(engine.publisher))
    assert incarnation.first == 0 or not known, f"{name} begins at {incarnation.first}"
    assert spans.last == told.last, f"{name} ends at {told.last}, the ledger at {spans.last}"
    published = set(range(incarnation.first, told.last + 1))
    lost, repaired = numbers_of(incarnation.lost), numbers_of(incarnation.repaired)
    assert lost == published - told.got, (
        f"{name}: lost {sorted(published - told.got)}, the ledger says {sorted(lost)}"
    )
    assert spans.seen == len(published & told.got)
    assert {number for one in spans.intervals for number in range(one[0], one[1] + 1)} == (
        published & told.got
    )
    causes = {one.cause for one in incarnation.lost.intervals}
    assert NOT_IN_LOG not in causes or not known, f"{name}: the log has a hole"
    if len(told.lives) != 1:
        return  # nothing of it came, or an end of another life that nothing could tell apart
    [life] = told.lives
    sent = len(engine.published[life])
    assert told.last < sent, f"{name}: it has sent {sent}"
    bad_batches = engine.spoilt_in(life, Spoilt.BATCH) & published
    assert bad_batches <= lost, f"{name}: seen, and bad: {sorted(bad_batches - lost)}"
    incomplete = numbers_of(incarnation.incomplete)
    bad_events = engine.spoilt_in(life, Spoilt.EVENT) & told.got
    assert incomplete == bad_events or not known, (
        f"{name}: incomplete {sorted(bad_events)}, the ledger says {sorted(incomplete)}"
    )
    if known and incarnation.last is None and not lost & told.begun:
        found = held_by(fold, engine)
        expected = held_without(engine, life, told.last + 1, lost)
        assert found == expected, (
            f"{name}: {len(found - expected)} blocks more and {len(expected - found)} less than its"
            f" batches come to without {sorted(lost)}"
        )
    only_by_replay = {one for one in told.got if (life, one) not in engine.arrived}
    assert only_by_replay <= repaired, (
        f"{name}: repaired {sorted(only_by_replay)}, the ledger says {sorted(repaired)}"
    )
    wrongly = {one for one in repaired if (life, one) not in engine.replayed}
    assert not wrongly, f"{name}: no replay had {sorted(wrongly)}"
    assert repaired <= told.got


def numbers_of(account: Account) -> set[int]:
    """The batches of the intervals, of which none is forgotten."""
    numbers = list(_numbers(account))
    assert len(numbers) == len(set(numbers)) == account.batches, account
    return set(numbers)


def _numbers(account: Account) -> Iterator[int]:
    assert not account.forgotten
    for one in account.intervals:
        yield from range(one.first, one.last + 1)
