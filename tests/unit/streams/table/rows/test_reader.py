from collections.abc import Callable

import msgspec
import pytest

from schemas.answer_states import AnswerState, Doubt, Standing
from schemas.errors import RowCorruptError, RowVersionError
from schemas.identities import OBJECTS_WAIT, ModelContext, PublisherKey
from schemas.positions import Heartbeat, PublisherState
from schemas.registration import LiveRegistration
from streams.kernel import open_kernel
from streams.kernel.changes import Change, Op
from streams.table.fold import ALL_PROVEN, Fold, UnprovenState
from streams.table.ledger import Incarnation, Ledger
from streams.table.rows import contexts
from streams.table.rows import format as rows
from streams.table.rows.reader import RowReader
from streams.table.rows.source import GatheredRows, SkippedRow
from streams.table.scope_states import (
    ConfirmationSource,
    Contradiction,
    Contradictions,
    common_scope,
)
from tests.building import (
    SCOPE,
    STREAM,
    cleared,
    events_record,
    heartbeat_record,
    objects,
    registered_record,
    registration,
    report,
    stored,
    unregistered_record,
)
from tests.fakes import FlushingWorker


def is_degraded(reader: RowReader) -> bool:
    """As an answer from these rows says."""
    return reader.states.is_degraded(SCOPE) or reader.is_damaged(SCOPE)


def test_a_partition_that_has_no_rows_covers_nothing(any_fold: Callable[[], Fold]) -> None:
    follower = RowReader(any_fold().kernel)
    follower.caught_up(3)
    assert follower.covered(3) == -1


def test_a_covered_row_alone_moves_the_position(any_fold: Callable[[], Fold]) -> None:
    follower = RowReader(any_fold().kernel)
    row = rows.encode_row(rows.RowKind.DELTA, 7, b"t")
    follower.put(0, rows.COVERED_KEY, row)
    assert follower.covered(0) == -1
    follower.caught_up(0)
    assert follower.covered(0) == 7


def written(make_fold: Callable[[], Fold]) -> list[tuple[bytes, bytes | None]]:
    """The rows of a publisher that holds a block; the context's row is the first."""
    worker = FlushingWorker(make_fold(), table=b"t")
    flush = worker.flush(events_record(0, 0, [stored(0, [1], range(4))]))
    return [(row.key, row.value) for row in flush]


def damaged(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


def newer(value: bytes) -> bytes:
    return b"\x09" + value[1:]


@pytest.mark.parametrize(
    ("change", "reason", "error"),
    [(damaged, "corrupt_rows", RowCorruptError), (newer, "newer_rows", RowVersionError)],
)
@pytest.mark.parametrize("prefix", [rows.CONTEXT, rows.PUBLISHER])
def test_a_row_that_cannot_be_used_is_passed_over_or_raised_as_asked(
    any_fold: Callable[[], Fold],
    change: Callable[[bytes], bytes],
    reason: str,
    error: type[Exception],
    prefix: bytes,
) -> None:
    found = [
        (key, change(value) if value is not None and key[:1] == prefix else value)
        for key, value in written(any_fold)
    ]
    reader, strict = RowReader(any_fold().kernel), RowReader(any_fold().kernel, strict=True)
    for key, value in found:
        reader.put(0, key, value)
        strict.put(0, key, value)
    reader.caught_up(0)
    assert reader.counters[reason] == 1
    assert [one.reason for one in reader.take_skipped()] == [reason]
    assert is_degraded(reader)
    with pytest.raises(error):
        strict.caught_up(0)


@pytest.mark.parametrize(("generation", "n"), [(2**31, 0), (0, 2**63 - 1)])
@pytest.mark.parametrize("caught_up", [False, True])
def test_a_row_at_a_place_that_is_never_written_costs_itself_alone(
    any_fold: Callable[[], Fold], generation: int, n: int, caught_up: bool
) -> None:
    """It was an unexpected error, by which all rows were lost that were to be loaded with it."""
    reader = RowReader(any_fold().kernel)
    if caught_up:
        reader.caught_up(0)
    found = written(any_fold)
    ((key, value),) = [one for one in found if one[0][:1] == rows.CONTEXT]
    strange = rows.prefix_of(key) + generation.to_bytes(4, "big") + n.to_bytes(8, "big")
    for one in ((strange, value), *found):
        reader.put(0, *one)
    if not caught_up:
        reader.caught_up(0)
    assert reader.covered(0) == 0
    assert [view.entries for view in reader.kernel.contexts()] == [1]
    assert [one.key for one in reader.take_skipped()] == [strange]
    assert is_degraded(reader)


def test_an_empty_generation_empties_a_context_whose_last_delta_was_compacted_away(
    make_fold: Callable[[], Fold],
) -> None:
    """A reader that was away finds the mark alone: tombstones have taken the rows before it."""
    worker = FlushingWorker(make_fold(), table=b"t")
    reader = RowReader(make_fold().kernel)
    for row in worker.flush(events_record(0, 0, [stored(0, [1], range(4))])):
        reader.put(0, *row)
    reader.caught_up(0)
    (view,) = reader.kernel.contexts()
    assert view.entries
    last = worker.flush(events_record(1, 1, [cleared(1)]))  # of which a context row is lost
    for key, value in last:
        if key[:1] == rows.CONTEXT:
            continue
        if key == rows.COVERED_KEY:
            mark = rows.encode_row(rows.RowKind.DELTA, 1, (1).to_bytes(4, "little"))
            reader.put(0, rows.mark_key(view.context), mark)
        reader.put(0, key, value)
    assert not sum(one.entries for one in reader.kernel.contexts())
    assert not is_degraded(reader)


@pytest.mark.parametrize("known", [False, True], ids=["a new context", "a context with rows"])
def test_a_generation_is_loaded_where_the_deltas_before_it_were_compacted_away(
    make_fold: Callable[[], Fold], known: bool
) -> None:
    """A reader that was away finds the `covered` row of a flush without the rows of the flush."""
    worker = FlushingWorker(make_fold(), table=b"t")
    reader = RowReader(make_fold().kernel)
    if known:
        for row in worker.flush(events_record(0, 0, [stored(0, [1], range(4))])):
            reader.put(0, *row)
    reader.caught_up(0)
    at = int(known)
    flush = worker.flush(events_record(at, at, [stored(at, [2], range(4, 8))]))
    deltas = [key for key, _ in flush if key[:1] == rows.CONTEXT]
    for key, value in flush:
        if key not in deltas:
            reader.put(0, key, value)
    context = rows.parse_context_prefix(rows.prefix_of(deltas[0]))
    dump = worker.fold.kernel.open_dump(context)
    dump.gather(100)
    chunk = rows.encode_row(rows.RowKind.CHUNK, at, dump.take(100))
    reader.put(0, rows.row_key(rows.RowPlace(context, 1, 0)), chunk)
    mark = rows.encode_row(rows.RowKind.CHUNK, at, (1).to_bytes(4, "little"))
    reader.put(0, rows.mark_key(context), mark)
    for key in deltas:
        reader.put(0, key, None)
    reader.put(0, rows.COVERED_KEY, rows.encode_row(rows.RowKind.DELTA, at, b"t"))
    (found,), (held,) = reader.kernel.contexts(), worker.fold.kernel.contexts()
    assert found.digest == held.digest
    assert not is_degraded(reader)


# Rows of no context, one by one

Row = tuple[bytes, bytes | None]
ME = registration("a").publisher
STATE_KEY = rows.publisher_key(rows.PUBLISHER, ME)
REGISTRATION_KEY = rows.publisher_key(rows.REGISTRATION, ME)
HELD = ModelContext(*SCOPE, STREAM.instance_id)


def fact(key: bytes, value: object, *, covers: int = 0) -> Row:
    return key, rows.encode_row(rows.RowKind.DELTA, covers, msgspec.msgpack.encode(value))


def state(*, covers: int = 0, degraded: bool = False) -> Row:
    since = 3 if degraded else None
    found = PublisherState(incarnation=1, sequence=9, degraded_since=since)
    return fact(STATE_KEY, found, covers=covers)


def registered(*, covers: int = 0) -> Row:
    return fact(REGISTRATION_KEY, LiveRegistration(registration("a"), 0), covers=covers)


def beat(uptime: float) -> Row:
    return fact(rows.bridge_key("one"), Heartbeat(uptime, 1000.0 + uptime))


def block(*, covers: int = 0) -> Row:
    body = Change(1, 10, 0, 0, Op.SET, 1).encode()
    key = rows.row_key(rows.RowPlace(HELD, 0, 0))
    return key, rows.encode_row(rows.RowKind.DELTA, covers, body)


def covered(offset: int, *, table: bytes = b"t") -> Row:
    return rows.COVERED_KEY, rows.encode_row(rows.RowKind.DELTA, offset, table)


UNPROVEN = fact(rows.UNPROVEN_KEY, UnprovenState(before=5))
KNOWN = Ledger(incarnations=(Incarnation(number=1, began_at=5.0),), lost={"missed": 3})
LEDGER = fact(rows.ledger_key(ME), KNOWN)
ALL_KINDS = (state(), registered(), beat(7.0), block(), LEDGER, UNPROVEN)


def put(reader: RowReader, *found: Row, partition: int = 0) -> None:
    for key, value in found:
        reader.put(partition, key, value)


@pytest.fixture
def reader() -> RowReader:
    """Of one partition, which has nothing yet and is caught up."""
    made = RowReader(open_kernel(1337, name="reference"))
    made.caught_up(0)
    return made


def is_empty(reader: RowReader) -> bool:
    return (
        not (reader.publishers or reader.registrations or reader.bridges(0) or reader.ledgers)
        and reader.unproven(0) == ALL_PROVEN
        and reader.states.publishers(SCOPE) == ()
        and reader.kernel.stats()["entries"] == 0
        and not reader.kernel.knows(SCOPE)
    )


def test_rows_say_who_publishes_what_is_registered_and_what_is_not_proven(
    reader: RowReader,
) -> None:
    put(reader, *ALL_KINDS)
    assert is_empty(reader), "they wait for the row that commits them"
    put(reader, covered(0))
    assert reader.publishers == {ME: PublisherState(incarnation=1, sequence=9)}
    assert reader.registrations == {ME: LiveRegistration(registration("a"), 0)}
    assert reader.bridges(0) == {"one": Heartbeat(7.0, 1007.0)}
    assert reader.unproven(0) == UnprovenState(before=5)
    assert reader.ledgers == {ME: KNOWN}
    assert reader.states.publishers(SCOPE) == (ME,)
    assert reader.kernel.stats()["entries"] == 1


def test_rows_that_cover_more_wait_for_it(reader: RowReader) -> None:
    put(reader, state(covers=3), registered(covers=2), covered(2))
    assert (list(reader.publishers), list(reader.registrations)) == ([], [ME])
    put(reader, covered(3))
    assert list(reader.publishers) == [ME]
    assert reader.unproven(0) == ALL_PROVEN


def test_a_publisher_is_known_by_its_state_and_may_answer_by_its_registration_alone(
    reader: RowReader,
) -> None:
    put(reader, state(), covered(0))
    assert (reader.kernel.stats()["publishers"], reader.kernel.knows(SCOPE)) == (1, False)
    put(reader, registered(), covered(0))
    assert reader.kernel.knows(SCOPE)
    put(reader, (STATE_KEY, None), covered(1))
    assert (reader.publishers, reader.kernel.knows(SCOPE)) == ({}, True)
    put(reader, (REGISTRATION_KEY, None), covered(2))
    assert is_empty(reader)


def test_a_registration_without_a_state_is_undone_like_any_other(reader: RowReader) -> None:
    put(reader, registered(), covered(0))
    put(reader, (REGISTRATION_KEY, None), (rows.bridge_key("two"), None), covered(1))
    assert is_empty(reader)


def test_what_is_forgotten_takes_its_blocks_along_and_a_bridge_its_heartbeat(
    reader: RowReader,
) -> None:
    put(reader, *ALL_KINDS[:-1], covered(0))
    gone = (STATE_KEY, REGISTRATION_KEY, rows.bridge_key("one"))
    put(reader, *((key, None) for key in gone), covered(1))
    assert is_empty(reader)


def test_a_tombstone_forgets_what_its_own_partition_has(reader: RowReader) -> None:
    """A publisher that moved to another partition is removed from the first one late."""
    put(reader, state(), covered(0))
    put(reader, (STATE_KEY, None), covered(1))
    reader.caught_up(1)
    put(reader, state(), block(), covered(0), partition=1)
    put(reader, (STATE_KEY, None), covered(2))
    assert (list(reader.publishers), reader.kernel.stats()["entries"]) == ([ME], 1)


def test_a_ledger_is_replaced_and_goes_with_its_publisher(reader: RowReader) -> None:
    put(reader, *ALL_KINDS, covered(0))
    again = Ledger(incarnations=KNOWN.incarnations, lost={"missed": 4})
    put(reader, fact(rows.ledger_key(ME), again, covers=1))
    assert reader.ledgers == {ME: KNOWN}, "it waits for the row that commits it"
    put(reader, covered(1))
    assert reader.ledgers == {ME: again}
    put(reader, (STATE_KEY, None), covered(2))
    assert reader.ledgers == {}


def test_a_ledger_ends_with_its_row(reader: RowReader) -> None:
    put(reader, *ALL_KINDS, covered(0))
    put(reader, (rows.ledger_key(ME), None), covered(1))
    assert (reader.ledgers, list(reader.publishers)) == ({}, [ME])


def test_a_ledger_that_cannot_be_read_is_counted_and_degrades_nothing(reader: RowReader) -> None:
    key = rows.ledger_key(ME)
    put(reader, *ALL_KINDS, covered(0))
    put(reader, fact(key, ["no", "ledger"]), covered(0))
    assert reader.ledgers == {ME: KNOWN}
    assert reader.take_skipped() == [SkippedRow(0, key, "corrupt_rows")]
    assert not is_degraded(reader)


def test_a_registration_under_another_publishers_key_is_skipped(reader: RowReader) -> None:
    other = rows.publisher_key(rows.REGISTRATION, PublisherKey(STREAM, 1))
    put(reader, (other, registered()[1]), covered(0))
    assert reader.registrations == {}
    assert reader.take_skipped() == [SkippedRow(0, other, "corrupt_rows")]


def test_a_degraded_publisher_degrades_its_scope_and_damages_nothing(reader: RowReader) -> None:
    put(reader, state(degraded=True), covered(0))
    assert (is_degraded(reader), reader.is_damaged(SCOPE)) == (True, False)


def test_a_tombstone_takes_back_what_was_only_gathered() -> None:
    reader = RowReader(open_kernel(1337, name="reference"))
    put(reader, *ALL_KINDS)
    put(reader, *((key, None) for key, _ in ALL_KINDS), covered(0))
    reader.caught_up(0)
    assert is_empty(reader)


@pytest.mark.parametrize("place", range(len(ALL_KINDS)))
@pytest.mark.parametrize("is_removed", [True, False])
def test_what_was_read_of_the_next_flush_takes_nothing_back_that_counts(
    place: int, is_removed: bool
) -> None:
    key, _ = ALL_KINDS[place]
    later = None if is_removed else rows.encode_row(rows.RowKind.DELTA, 1, b"")
    reader, whole = (RowReader(open_kernel(1337, name="reference")) for _ in range(2))
    for one in (reader, whole):
        put(one, *ALL_KINDS, covered(0))
    put(reader, (key, later))
    for one in (reader, whole):
        one.caught_up(0)
    assert is_as(reader, whole)
    put(whole, (key, later))
    for one in (reader, whole):
        put(one, (STATE_KEY, None), (registered()[0], None), covered(1))
    assert is_as(reader, whole)
    assert not reader.publishers


def is_as(one: RowReader, other: RowReader) -> bool:
    return (
        (one.publishers, one.registrations, one.ledgers)
        == (other.publishers, other.registrations, other.ledgers)
        and (one.bridges(0), one.unproven(0)) == (other.bridges(0), other.unproven(0))
        and one.kernel.contexts() == other.kernel.contexts()
    )


def test_until_the_last_step_of_loading_nothing_is_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "ROW_LOAD_STEP_BYTES", 1)
    reader = RowReader(open_kernel(1337, name="reference"))
    put(reader, block(), covered(0))
    steps = reader.catching_up(0)
    next(steps)
    assert reader.covered(0) == -1
    assert list(steps) == []
    assert reader.covered(0) == 0


# The covered row


def test_a_covered_row_that_goes_back_is_passed_over(reader: RowReader) -> None:
    put(reader, *ALL_KINDS, covered(5))
    put(reader, (STATE_KEY, None), covered(4))
    assert (reader.covered(0), list(reader.publishers)) == (5, [ME])
    assert reader.counters["stale_marks"] == 1


def test_another_table_drops_all_that_the_partition_held(reader: RowReader) -> None:
    put(reader, *ALL_KINDS, covered(5))
    strange = rows.prefix_of(block()[0]) + b"\xff" * 12
    put(reader, (strange, block()[1]), covered(5))
    assert reader.is_damaged(SCOPE)
    put(reader, covered(2, table=b"u"))
    assert (reader.covered(0), reader.counters["resets"]) == (2, 1)
    assert is_empty(reader)
    assert not reader.is_damaged(SCOPE)
    put(reader, state(), block(covers=3), covered(3, table=b"u"))
    assert (list(reader.publishers), reader.kernel.stats()["entries"]) == ([ME], 1)
    assert reader.counters["resets"] == 1


def test_without_a_covered_row_that_can_be_read_everything_is_damaged_until_one_comes(
    reader: RowReader,
) -> None:
    assert reader.is_damaged(SCOPE) is False
    put(reader, (rows.COVERED_KEY, b"?"))
    assert reader.is_damaged(SCOPE) is True
    put(reader, covered(0))
    assert reader.is_damaged(SCOPE) is False


def test_it_is_told_beforehand_which_row_is_of_another_table(reader: RowReader) -> None:
    def ends(one: Row) -> bool:
        return reader.is_of_another_table(0, *one)

    another = covered(9, table=b"u")
    assert reader.is_of_another_table(1, *another) is False, "of a partition without rows"
    assert ends(another) is False
    put(reader, (rows.COVERED_KEY, b"?"))
    assert ends(another) is True, "what was gathered may be of the one that could not be read"
    put(reader, covered(0))
    assert [ends(covered(9)), ends(another)] == [False, True]
    assert ends((rows.COVERED_KEY, None)) is False
    assert ends((rows.COVERED_KEY, b"?")) is False
    assert ends((STATE_KEY, another[1])) is False


# A store


def test_a_store_is_loaded_as_the_first_partition() -> None:
    source = GatheredRows()
    for one in (*ALL_KINDS, covered(4)):
        source.put(*one)
    reader = RowReader(open_kernel(1337, name="reference"))
    reader.load(source)
    assert reader.covered(0) == 4
    assert (list(reader.publishers), list(reader.bridges(0))) == ([ME], ["one"])
    put(reader, covered(5))
    assert reader.covered(0) == 5


def test_a_store_without_a_covered_row_that_can_be_read_damages_the_first_partition() -> None:
    source = GatheredRows()
    source.put(rows.COVERED_KEY, b"?")
    reader = RowReader(open_kernel(1337, name="reference"))
    reader.load(source)
    assert reader.is_of_another_table(0, *covered(0))


def test_an_object_of_a_pool_waits_where_it_does_at_all_of_its_members(
    any_fold: Callable[[], Fold],
) -> None:
    pool = msgspec.structs.replace(registration("pool", kind="Mooncake"), kv_offloading="native")
    members = [
        msgspec.structs.replace(pool, instance_id=f"pool#{number}", pool="pool")
        for number in range(2)
    ]
    workers = [FlushingWorker(any_fold(), table=b"t") for _ in members]
    reader = RowReader(any_fold().kernel)

    def flush(partition: int, *records: bytes) -> None:
        for key, value in workers[partition].flush(*records):
            reader.put(partition, key, value)
        if reader.covered(partition) < 0:
            reader.caught_up(partition)

    def standings() -> set[Standing]:
        fresh = {ConfirmationSource(number, "b"): 100.0 for number in range(2)}
        return {reader.states.standing(one.publisher, fresh, 0.0) for one in members}

    for number, member in enumerate(members):
        named = stored(0, [10 + number], range(4 * number, 4 * number + 4))
        engine = STREAM._replace(instance_id=f"e{number}")
        held = objects(0, [100, 101], [10, 11])
        flush(
            number,
            registered_record(member),
            heartbeat_record("b", 1.0, [report(member)]),
            events_record(0, 0, [named], stream=engine),
            events_record(0, 0, [held], stream=member.stream),
        )
    exact = Standing(AnswerState.EXACT, "", 900.0)
    unsure = Standing(AnswerState.UNCONFIRMED, OBJECTS_WAIT, 0.0)
    assert [dict(reader.publishers[one.publisher].left_out) for one in members] == 2 * [
        {OBJECTS_WAIT: 1}
    ]
    assert standings() == {exact}
    for number, member in enumerate(members):
        lost = objects(1, [102], [12])
        flush(number, events_record(1, 1, [lost], stream=member.stream))
        assert standings() == ({unsure} if number else {exact})
    found = stored(1, [12], range(8, 12))
    flush(0, events_record(1, 1, [found], stream=STREAM._replace(instance_id="e0")))
    assert standings() == {exact}
    for number, member in enumerate(members):
        flush(number, unregistered_record(member))
    assert not reader._pools
    assert not reader._pool_of


def test_a_pool_is_known_as_one_to_the_states_of_a_fold_and_of_its_rows(
    any_fold: Callable[[], Fold],
) -> None:
    pool, engine = registration("pool", kind="Mooncake", port=2), registration("a")
    worker, reader, restored = FlushingWorker(any_fold(), table=b"t"), any_fold(), any_fold()
    rows_read = RowReader(reader.kernel)
    for key, value in worker.flush(
        registered_record(pool),
        registered_record(engine),
        heartbeat_record("b", 1.0, [report(pool), report(engine)]),
    ):
        rows_read.put(0, key, value)
    rows_read.caught_up(0)
    fold = worker.fold
    restored.restore(fold.offset, fold.publishers, fold.registrations)
    found = Contradictions(
        {engine.publisher: Contradiction(9.0, is_below_gpu=True)}, frozenset([common_scope(SCOPE)])
    )
    fresh = {ConfirmationSource(0, "b"): 100.0}
    for states in (fold.states, rows_read.states, restored.states):
        said = [states.standing(one.publisher, fresh, 0.0, found) for one in (pool, engine)]
        assert [one.reason for one in said] == [Doubt.OUTCOMES_DIFFER, ""]
        assert states.verdict(SCOPE, fresh, 0.0, found).state is AnswerState.UNCONFIRMED
