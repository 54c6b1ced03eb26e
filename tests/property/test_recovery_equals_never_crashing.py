"""The fold and the table under any history: what docs/architecture.md says of them, tried."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logs.embedded import EmbeddedLog
from logs.interface import LogEntry
from schemas.codec import decode_record, decode_record_events
from schemas.events import BlockEvent, ClearedBlocks
from schemas.identities import Medium, Offset, PublisherKey
from schemas.positions import PublisherState
from schemas.records import EventsRecord
from streams.kernel.interface import ContextView
from streams.table.driver import recover
from streams.table.fold import Fold
from streams.table.rows.reader import RowReader
from streams.table.table import Table
from streams.table.threads import run_without_loop
from streams.table.verification import fresh_fold
from tests.building import (
    SCOPE,
    cleared,
    dropped,
    events_record,
    gap_record,
    objects,
    prefix_hashes,
    registered_record,
    registration,
    removed,
    reset_record,
    stored,
    u64s,
    unregistered_record,
)
from tests.kills import Kill, Killed, kills
from tests.slices import SLICES, sliced


class Step(Enum):
    """What happens to the process between two records; inputs of a history like the records are."""

    FLUSH = "flush"
    FLUSH_SOME = "some"
    ABORT = "abort"
    LOSE = "lose"
    RETIRE = "retire"


class Death(NamedTuple):
    """A flush, and a start after it, in which a kill comes after so many effects.

    Attributes:
        lost: the table's directory is gone before the start, so that it is a rebuild.
    """

    after: int
    lost: bool


Item = bytes | Step | Death
MEMORY = Path("/dev/shm")  # many databases are opened, and a process that dies needs no disk

pytestmark = pytest.mark.timeout(600)

KINDS = ["events"] * 6 + ["gap", "reset", "again", "flush", "some", "some", "abort", "un"]
HARSH = [*KINDS, "death", "death", "death", "lose"]
POOLED = [*HARSH, *["pool"] * 6, "reads", "reads"]
"""Beside the engine a pool, whose objects are joined to what the engine announces, and which it
reads or not.
"""
ODD = [*HARSH, *["odd"] * 6]
"""Beside the engine another one, whose events leave doubts of every kind."""
POOLED_KINDS = [*KINDS, *["pool"] * 5, "reads"]
RETIRED = [kind for kind in HARSH if kind != "again"] + ["retire"] * 3
"""Without records that come again: what is retired is older than whatever comes late."""


def tokens_of(block: int) -> list[int]:
    return list(range(4 * block, 4 * block + 4))


@st.composite
def events(draw: st.DrawFn, sequence: int) -> list[BlockEvent]:
    """A batch over few blocks, so that repeats, removals and unknown parents are common."""
    batch: list[BlockEvent] = []
    for _ in range(draw(st.integers(0, 3))):
        block = draw(st.integers(1, 6))
        medium = draw(st.sampled_from([Medium.GPU, Medium.GPU, Medium.CPU]))
        match draw(st.sampled_from(["store", "store", "store", "remove", "clear"])):
            case "store":
                parent = draw(st.sampled_from([None, block - 1]))
                lora = draw(st.sampled_from(["", "", "adapter"]))
                batch.append(
                    stored(
                        sequence,
                        [block],
                        tokens_of(block),
                        parent=parent,
                        medium=medium,
                        lora_name=lora,
                    )
                )
            case "remove":
                batch.append(removed(sequence, [block], medium=medium))
            case _:
                batch.append(cleared(sequence))
    return batch


@st.composite
def pool_events(draw: st.DrawFn, sequence: int) -> list[BlockEvent]:
    """A batch of a pool: two objects of each block, named by the engine's hashes, which are the
    numbers of blocks, or by prefix hashes.
    """
    batch: list[BlockEvent] = []
    for _ in range(draw(st.integers(1, 4))):
        block = draw(st.integers(1, 6))
        key = 1000 * draw(st.sampled_from((1, 1, 2))) + block
        medium = draw(st.sampled_from([Medium.CPU, Medium.CPU, Medium.DISK]))
        match draw(st.sampled_from([*["store"] * 5, "prefix", "remove", "remove", "clear"])):
            case "store":
                lora = draw(st.sampled_from(["", "", "adapter"]))
                batch.append(objects(sequence, [key], [block], medium=medium, lora_name=lora))
            case "prefix":
                prefixes = prefix_hashes(tokens_of(block))
                batch.append(objects(sequence, [key], prefixes, medium=medium, by_hash=True))
            case "remove":
                batch.append(dropped(sequence, [key], medium=medium))
            case _:
                batch.append(cleared(sequence))
    return batch


@st.composite
def odd_events(draw: st.DrawFn, sequence: int) -> list[BlockEvent]:
    """A batch of which not everything can be used, or it is not known what it means: copies,
    several cache groups, other sizes, blocks without tokens, pools that others store into.
    """
    batch: list[BlockEvent] = []
    for _ in range(draw(st.integers(1, 3))):
        block = draw(st.sampled_from([1, 1, 1, 2, 3, 4, 5, 6]))
        medium = draw(st.sampled_from([Medium.GPU, Medium.GPU, Medium.GPU, Medium.CPU]))
        parent = draw(st.sampled_from([*[None] * 5, block - 1]))
        again = draw(st.sampled_from(["undecided", "undecided", "reported"]))
        plain = stored(sequence, [block], tokens_of(block), parent=parent, medium=medium)
        gone = removed(sequence, [block], medium=medium)
        odd: dict[str, BlockEvent] = {
            "again": msgspec.structs.replace(plain, **{again: True}),
            "group": msgspec.structs.replace(plain, group=1, spec_kind="full_attention"),
            "sparse": msgspec.structs.replace(plain, group=2, spec_kind="sliding_window"),
            "size": msgspec.structs.replace(plain, block_size=2),
            "unusable": msgspec.structs.replace(plain, tokens=b"", left_out="of the bridge"),
            "nameless": stored(sequence, [block], [], medium=medium),
            "removed": gone,
            "of a group": msgspec.structs.replace(gone, group=1),
            "whole": msgspec.structs.replace(gone, whole=True),
            "left": msgspec.structs.replace(gone, left=1),
            "from a pool": msgspec.structs.replace(gone, shared=True),
            "cleared": ClearedBlocks(sequence=sequence, medium=medium),
        }
        kinds = ["again"] * 6 + ["group"] * 2 + ["removed"] * 4 + sorted(odd)
        batch.append(odd[draw(st.sampled_from(kinds))])
    return batch


OTHER = registration("odd", port=5560)
POOL = registration("pool", port=5559, kind="Mooncake")
BESIDE = {"pool": (pool_events, POOL), "odd": (odd_events, OTHER)}
"""Who may be there beside the engine, by the kind of its records."""


@st.composite
def histories(draw: st.DrawFn, kinds: Sequence[str] = tuple(KINDS)) -> list[Item]:
    """Records of a publisher with gaps, restarts, redeliveries and crashes among them."""
    history: list[Item] = [registered_record(registration("a"))]
    history += [registered_record(one) for kind, (_, one) in BESIDE.items() if kind in kinds]
    incarnation, sequence, beside = 1, 0, dict.fromkeys(BESIDE, 0)
    for _ in range(draw(st.integers(1, 25))):
        match draw(st.sampled_from(kinds)):
            case "events":
                last = sequence + draw(st.integers(0, 2))
                batch = [event for s in range(sequence, last + 1) for event in draw(events(s))]
                incomplete = draw(st.one_of(st.none(), st.integers(sequence, last)))
                history.append(
                    events_record(
                        sequence, last, batch, incarnation=incarnation, incomplete=incomplete
                    )
                )
                sequence = last + 1
            case "pool" | "odd" as kind:
                (make, one), number = BESIDE[kind], beside[kind]
                batch = draw(make(number))
                history.append(events_record(number, number, batch, stream=one.stream))
                beside[kind] += 1
            case "reads":
                reads = draw(st.sampled_from([None, (), ("pool",)]))
                one = msgspec.structs.replace(registration("a"), reads=reads)
                history.append(registered_record(one))
            case "gap":
                history.append(gap_record(sequence, sequence + 1, incarnation=incarnation))
                sequence += 2
            case "reset":
                incarnation, sequence = incarnation + 1, 0
                history.append(reset_record(incarnation))
            case "again":
                past = [item for item in history if isinstance(item, bytes)]
                history.append(draw(st.sampled_from(past)))
            case "un":
                history.append(unregistered_record(registration("a")))
                history.append(registered_record(registration("a")))
                incarnation, sequence = incarnation + 1, 0
            case "death":
                history.append(Death(draw(st.integers(0, 12)), draw(st.booleans())))
            case step:
                history.append(Step(step))
    return history


def state(fold: Fold) -> object:
    prefixes = [u64s(prefix_hashes(tokens_of(block))) for block in range(1, 7)]
    return (
        fold.kernel.contexts(),
        fold.kernel.scopes(),
        [fold.kernel.query_by_hash(SCOPE, prefix, None) for prefix in prefixes],
        fold.publishers,
        {key: known.registration for key, known in fold.registrations.items()},
    )


def everything(fold: Fold) -> object:
    """With what no answer depends on."""
    return state(fold), fold.ledgers.current


class Service:
    """The embedded service's log and table, through whatever happens to the process."""

    def __init__(self, directory: Path, make_fold: Callable[[], Fold], kill: Kill) -> None:
        self.directory = directory
        self.make_fold = make_fold
        self.kill = kill
        self.open()

    def open(self) -> None:
        """Flushes after each record of a recovery, so that any of these can be the last."""
        self.log = EmbeddedLog(self.directory / "log", segment_bytes=1)
        self.table = Table(
            self.directory / "table", self.make_fold, log=self.log, generation_min_bytes=0
        )
        recover(self.table, self.log, flush_changes_max=0)

    def close(self) -> None:
        self.table.close()
        self.log.close()

    def flush(self) -> None:
        run_without_loop(self.table.flush(now=0.0))

    def lose(self) -> None:
        shutil.rmtree(self.directory / "table", ignore_errors=True)

    def retire(self) -> None:
        """All that the table does not need, but the live registrations."""
        exempt = [known.offset for known in self.table.fold.registrations.values()]
        floor = Offset(self.table.flushed + 1)
        self.log.retain(bytes_max=0, age_max_s=0.0, now=1.0, floor=floor, exempt=exempt)

    def die(self, death: Death) -> None:
        self.kill.left = death.after
        killed = self._killed_in(self.flush)
        with self.kill.asleep():
            self.close()
            if death.lost and not killed:
                self.lose()
        if self._killed_in(self.open):
            with self.kill.asleep():
                self.close()
                self.open()
        self.kill.left = None

    @staticmethod
    def _killed_in(work: Callable[[], None]) -> bool:
        """Not to be handled where it is caught: its traceback holds on to what was open."""
        try:
            work()
        except Killed:
            return True
        return False

    def live_through(self, item: Item) -> None:
        match item:
            case bytes():
                self.table.apply([LogEntry(self.log.append([item]), item)])
            case Death():
                self.die(item)
            case Step.FLUSH:
                self.flush()
            case Step.FLUSH_SOME:
                run_without_loop(self.table.flush_some(now=0.0))
            case Step.RETIRE:
                self.retire()
            case Step.ABORT | Step.LOSE:
                self.close()
                if item is Step.LOSE:
                    self.lose()
                self.open()


@contextmanager
def served(history: list[Item], make_fold: Callable[[], Fold]) -> Iterator[Service]:
    """A service after the history."""
    place = MEMORY if MEMORY.is_dir() else None
    with TemporaryDirectory(dir=place) as directory, kills() as kill:
        service = Service(Path(directory), make_fold, kill)
        for item in history:
            service.live_through(item)
        yield service
        service.close()


def records_of(history: list[Item]) -> list[bytes]:
    return [item for item in history if isinstance(item, bytes)]


def straight(records: list[bytes], make_fold: Callable[[], Fold]) -> Fold:
    fold = make_fold()
    for offset, record in enumerate(records):
        fold.apply(Offset(offset), record)
    return fold


@settings(max_examples=30)
@given(histories(HARSH) | histories(POOLED) | histories(ODD), st.sampled_from(SLICES))
def test_killed_anywhere_and_recovered_equals_never_killed(
    make_fold: Callable[[], Fold], history: list[Item], entries: int
) -> None:
    with sliced(entries), served(history, make_fold) as service:
        truth = make_fold()
        fresh_fold(truth, service.log)
        assert everything(service.table.fold) == everything(truth)
        assert everything(truth) == everything(straight(records_of(history), make_fold))


IDLE = registration("idle", port=5558)
IDLE_RECORDS = [
    registered_record(IDLE),
    events_record(0, 0, [stored(0, [1], tokens_of(1))], stream=IDLE.stream),
]
"""Of a publisher of which nothing comes any more."""


def assert_nothing_wrong_is_exact(told: Fold | RowReader, truth: Fold) -> None:
    """Whoever is not degraded holds what it holds, and lost nothing."""
    assert told.registrations.keys() == truth.registrations.keys()
    for publisher in truth.registrations:
        if not is_degraded(told, publisher):
            assert not is_degraded(truth, publisher)
            assert contexts_of(told, publisher) == contexts_of(truth, publisher)


def is_degraded(one: Fold | RowReader, publisher: PublisherKey) -> bool:
    return one.publishers.get(publisher, PublisherState()).degraded_since is not None


def contexts_of(one: Fold | RowReader, publisher: PublisherKey) -> list[ContextView]:
    found = one.kernel.contexts()
    return [view for view in found if view.context.stream == publisher.stream]


@settings(max_examples=30)
@given(histories(RETIRED))
def test_what_the_log_no_longer_proves_is_never_called_exact(
    make_fold: Callable[[], Fold], history: list[Item]
) -> None:
    history = [*IDLE_RECORDS, *history]
    truth = straight(records_of(history), make_fold)
    with served(history, make_fold) as service:
        for _ in range(2):
            assert_nothing_wrong_is_exact(service.table.fold, truth)
            service.live_through(Step.LOSE)


@settings(max_examples=100)
@given(histories(), st.data())
def test_delivering_records_again_changes_nothing(
    make_fold: Callable[[], Fold], history: list[Item], data: st.DataObject
) -> None:
    records = records_of(history)
    records = records[: data.draw(st.integers(1, len(records)))]
    unregistered = unregistered_record(registration("a"))
    if unregistered in records:  # a redelivered `unregistered` is a new one: it names no cursor
        records = records[: records.index(unregistered)]
    once = straight(records, make_fold)
    again = straight(records, make_fold)
    start = data.draw(st.integers(0, len(records)))
    for record in records[start:]:
        again.apply(Offset(again.offset + 1), record)
    assert everything(again) == everything(once)


@settings(max_examples=100)
@given(histories())
def test_the_size_of_records_does_not_matter(
    make_fold: Callable[[], Fold], history: list[Item]
) -> None:
    whole, parts = make_fold(), make_fold()
    incarnation = 1
    sequence = 0
    for item in history:
        if not isinstance(item, bytes) or b"\xa6events\xa6stream" not in item:
            continue
        record = decode_record(item)
        assert isinstance(record, EventsRecord)
        decoded = decode_record_events(record)
        numbers = sorted({event.sequence for event in decoded})
        count = len(numbers)
        renumbered = {number: sequence + place for place, number in enumerate(numbers)}
        batches = [
            [
                _renumbered(event, renumbered[event.sequence])
                for event in decoded
                if event.sequence == number
            ]
            for number in numbers
        ]
        if not count:
            continue
        everything = [event for batch in batches for event in batch]
        whole.apply(
            Offset(whole.offset + 1),
            events_record(sequence, sequence + count - 1, everything, incarnation=incarnation),
        )
        for place, batch in enumerate(batches):
            parts.apply(
                Offset(parts.offset + 1),
                events_record(sequence + place, sequence + place, batch, incarnation=incarnation),
            )
        sequence += count
    assert whole.kernel.contexts() == parts.kernel.contexts()
    assert whole.publishers == parts.publishers
    assert whole.ledgers.current == parts.ledgers.current


def _renumbered(event: BlockEvent, sequence: int) -> BlockEvent:
    changed: BlockEvent = msgspec.structs.replace(event, sequence=sequence)
    return changed
