"""The fold and the table under any history: what docs/architecture.md says of them, tried."""

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codec import decode_record, decode_record_events
from schemas.events import BlockEvent
from schemas.identities import Medium, Offset
from schemas.records import EventsRecord
from streams.log.embedded import EmbeddedLog
from streams.table.fold import Fold
from streams.table.recovery import fresh_fold, recover
from streams.table.store import TableStore
from tests.building import (
    cleared,
    events_record,
    gap_record,
    registered_record,
    registration,
    removed,
    reset_record,
    stored,
    unregistered_record,
)


class Step(Enum):
    """What happens to the process between two records; inputs of a history like the records are."""

    FLUSH = "flush"
    ABORT = "abort"


MEMORY = Path("/dev/shm")  # many databases are opened, and a process that dies needs no disk

pytestmark = pytest.mark.timeout(600)

KINDS = ["events"] * 6 + ["gap", "reset", "again", "flush", "abort", "un"]


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
def histories(draw: st.DrawFn) -> list[bytes | Step]:
    """Records of two ranks with gaps, restarts, redeliveries and crashes among them."""
    history: list[bytes | Step] = [registered_record(registration("a"))]
    incarnation, sequence = 1, 0
    for _ in range(draw(st.integers(1, 25))):
        match draw(
            st.sampled_from(["events"] * 6 + ["gap", "reset", "again", "flush", "abort", "un"])
        ):
            case "events":
                last = sequence + draw(st.integers(0, 2))
                batch = [event for s in range(sequence, last + 1) for event in draw(events(s))]
                history.append(events_record(sequence, last, batch, incarnation=incarnation))
                sequence = last + 1
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
            case step:
                history.append(Step(step))
    return history


def state(fold: Fold) -> object:
    return (
        fold.kernel.contexts(),
        fold.kernel.scopes(),
        fold.publishers,
        {key: known.registration for key, known in fold.registrations.items()},
    )


def run(history: list[bytes | Step], directory: Path, make_fold: Callable[[], Fold]) -> Fold:
    """Lives through the history on a real log and store; ABORT loses what was not flushed."""

    def open_all() -> tuple[EmbeddedLog, TableStore, Fold]:
        log = EmbeddedLog(directory / "log")
        store = TableStore(directory / "table", generation_min_bytes=0)
        return log, store, recover(store, log, make_fold).fold

    log, store, fold = open_all()
    for item in history:
        if item is Step.FLUSH:
            store.flush(fold, fold.take_changes())
        elif item is Step.ABORT:
            log.close()
            store.close()
            log, store, fold = open_all()
        else:
            assert isinstance(item, bytes)
            fold.apply(log.append([item]), item)
    truth = make_fold()
    fresh_fold(truth, log)
    assert state(fold) == state(truth)
    log.close()
    store.close()
    return fold


def straight(records: list[bytes], make_fold: Callable[[], Fold]) -> Fold:
    fold = make_fold()
    for offset, record in enumerate(records):
        fold.apply(Offset(offset), record)
    return fold


@settings(max_examples=50)
@given(histories())
def test_cut_anywhere_and_recover_equals_never_cut(
    make_fold: Callable[[], Fold], history: list[bytes | Step]
) -> None:
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        recovered = run(history, Path(directory), make_fold)
    records = [item for item in history if isinstance(item, bytes)]
    assert state(recovered) == state(straight(records, make_fold))


@settings(max_examples=100)
@given(histories(), st.data())
def test_delivering_records_again_changes_nothing(
    make_fold: Callable[[], Fold], history: list[bytes | Step], data: st.DataObject
) -> None:
    records = [item for item in history if isinstance(item, bytes)]
    records = records[: data.draw(st.integers(1, len(records)))]
    unregistered = unregistered_record(registration("a"))
    if unregistered in records:  # a redelivered `unregistered` is a new one: it names no cursor
        records = records[: records.index(unregistered)]
    once = straight(records, make_fold)
    again = straight(records, make_fold)
    start = data.draw(st.integers(0, len(records)))
    for record in records[start:]:
        again.apply(Offset(again.offset + 1), record)
    assert state(again) == state(once)


@settings(max_examples=100)
@given(histories())
def test_the_size_of_records_does_not_matter(
    make_fold: Callable[[], Fold], history: list[bytes | Step]
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


def _renumbered(event: BlockEvent, sequence: int) -> BlockEvent:
    changed: BlockEvent = msgspec.structs.replace(event, sequence=sequence)
    return changed
