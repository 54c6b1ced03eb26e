"""Reports of hits among what a publisher sends, as its batches are accepted."""

from collections.abc import Sequence

import msgspec
import pytest

from bridge.sequencing.anchor import Anchor
from bridge.sequencing.sequencer import Sequencer
from bridge.sockets.raw_message import RawMessage
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import ArrayPacker, PythonArrayPacker
from schemas.codec import decode_record_events
from schemas.events import BlockEvent, Removed, Stored
from schemas.limits import HIT_REPORT_FRESH, HIT_REPORT_SCORE
from schemas.positions import Cursor
from schemas.records import EventsRecord, SequencedRecord
from schemas.registration import ReportMode
from streams.kernel import array_packer
from tests.unit.bridge.messages import frames_of, map_event, registration

ONE = registration()
CHAIN = [1, 2, 3]


@pytest.fixture(params=["python", "kernel"])
def packer(request: pytest.FixtureRequest) -> ArrayPacker:
    return PythonArrayPacker() if request.param == "python" else array_packer()


class Bench:
    """A sequencer and one publisher of it."""

    def __init__(self, packer: ArrayPacker, mode: ReportMode = "") -> None:
        self.sequencer = Sequencer(packer)
        self.sequencer.add(msgspec.structs.replace(ONE, kv_cache_report_mode=mode))
        self._sent = 0
        self._time = 0.0

    def restart(self) -> None:
        self._sent = 0

    def place(self, sequence: int) -> None:
        """The log has this batch, as of another process of ours."""
        self._time = float(sequence)
        self.sequencer.place(ONE.publisher, Anchor(Cursor(1, sequence), self._time))
        self._sent = sequence + 1

    def send(self, *batches: Sequence[object], lost: int = 0) -> list[BlockEvent]:
        """What is written of batches that come in one turn."""
        return events_of(self.records(*batches, lost=lost))

    def records(self, *batches: Sequence[object], lost: int = 0) -> list[SequencedRecord]:
        self._sent += lost
        messages = []
        for events in batches:
            self._time += 1.0
            frames = frames_of([self._time, list(events), 0], self._sent)
            messages.append(RawMessage(ONE.publisher, frames, 0.0, 1))
            self._sent += 1
        return self.sequencer.process(messages, 0.0)

    @property
    def reports(self) -> int:
        return self.sequencer.counters()[ONE.publisher].reports


def events_of(records: Sequence[SequencedRecord]) -> list[BlockEvent]:
    return [
        event
        for record in records
        if isinstance(record, EventsRecord)
        for event in decode_record_events(record)
    ]


def chain(hashes: Sequence[int], parent: int | None = None, **fields: object) -> object:
    tokens = [7] * 4 * len(hashes)
    return map_event(
        "BlockStored",
        block_hashes=list(hashes),
        parent_block_hash=parent,
        token_ids=tokens,
        block_size=4,
        **fields,
    )


def reported(events: Sequence[BlockEvent]) -> list[bool]:
    return [event.reported for event in events if isinstance(event, Stored)]


def test_of_one_that_is_registered_so_each_prompt_is_a_report_in_every_path(
    packer: ArrayPacker,
) -> None:
    bench = Bench(packer, "full")
    prompt = [chain(CHAIN), chain([4], parent=3)]
    assert reported(bench.send(prompt)) == [True, False]
    assert reported(bench.send(prompt, prompt, prompt)) == [True, False] * 3, "a run of batches"
    large = [chain(range(100, 20_100)), chain([4], parent=3)]
    found = bench.send(large)
    assert reported(found)[0]
    assert not reported(found)[-1]
    assert len(found) > 2, "it comes in parts"
    assert bench.reports == 1 + 3 + 1


def test_it_is_found_out_and_told_once(
    packer: ArrayPacker, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(packer)
    for _ in range(HIT_REPORT_SCORE):
        assert reported(bench.send([chain(CHAIN)])) == [False]
    found = bench.send([chain(CHAIN)], [chain(CHAIN)], [chain(CHAIN)])
    assert sum(isinstance(event, Removed) for event in found) == HIT_REPORT_SCORE
    assert reported(found) == [False, True, True]
    assert bench.reports == HIT_REPORT_SCORE + 2
    assert caplog.text.count("announces cached blocks again as stored") == 1


def degrading(bench: Bench, *batches: Sequence[object]) -> list[str]:
    """Why the records of these batches degrade their publisher."""
    records = bench.records(*batches)
    return [
        one.reason
        for record in records
        if isinstance(record, EventsRecord) and isinstance(record.unusable, tuple)
        for one in record.unusable
    ]


def find_out(bench: Bench, *, in_run: bool = False) -> list[str]:
    bench.send([chain([90, 91])])
    batches: list[Sequence[object]] = [[chain([90, 91])]] * HIT_REPORT_SCORE
    if in_run:
        return degrading(bench, *batches)
    return [reason for batch in batches for reason in degrading(bench, batch)]


@pytest.mark.parametrize("in_run", [False, True])
def test_what_was_counted_before_this_process_makes_a_doubt_once_it_is_found_out(
    packer: ArrayPacker, in_run: bool
) -> None:
    """Which of it were reports nobody knows any more: it would outlive its removal."""
    bench = Bench(packer)
    bench.place(41)
    assert find_out(bench, in_run=in_run) == [DropReason.COPIES_UNKNOWN]
    assert degrading(bench, [chain([90, 91])]) == [], "it is told once"


def test_where_all_of_it_was_seen_it_makes_none(packer: ArrayPacker) -> None:
    assert find_out(Bench(packer)) == []
    cleared = Bench(packer)
    cleared.place(41)
    cleared.send([map_event("AllBlocksCleared")])
    assert find_out(cleared) == []
    restarted = Bench(packer)
    restarted.place(41)
    restarted.restart()
    assert find_out(restarted) == []


def test_behind_a_loss_and_where_repeats_are_forgotten_it_makes_one(packer: ArrayPacker) -> None:
    lost = Bench(packer)
    lost.send([chain(CHAIN)])
    lost.send([chain(CHAIN)], lost=1)
    assert find_out(lost) == [DropReason.COPIES_UNKNOWN]
    forgotten = Bench(packer)
    forgotten.send([chain(CHAIN)])
    forgotten.send([chain(CHAIN)])
    for number in range(HIT_REPORT_FRESH):
        forgotten.send([chain([1000 + 2 * number, 1001 + 2 * number])])
    assert find_out(forgotten) == [DropReason.COPIES_UNKNOWN]


def test_a_lost_batch_may_have_removed_them(packer: ArrayPacker) -> None:
    bench = Bench(packer)
    for _ in range(3 * HIT_REPORT_SCORE):
        assert reported(bench.send([chain(CHAIN)], lost=1)) == [False]


def test_an_engine_that_restarts_stores_them_anew(packer: ArrayPacker) -> None:
    bench = Bench(packer)
    for _ in range(3 * HIT_REPORT_SCORE):
        bench.restart()
        found = bench.send([chain([9, *CHAIN])], [chain([9, *CHAIN])])
        assert reported(found) == [False, False]


def test_it_is_not_looked_for_where_it_is_said_not_to_be(packer: ArrayPacker) -> None:
    bench = Bench(packer, "incremental")
    for _ in range(3 * HIT_REPORT_SCORE):
        assert reported(bench.send([chain(CHAIN)])) == [False]


def test_an_event_may_say_it_itself(packer: ArrayPacker) -> None:
    bench = Bench(packer)
    batch = [chain(CHAIN, origin="NEW"), chain(CHAIN, origin="reused"), chain(CHAIN, origin=None)]
    assert reported(bench.send(batch)) == [False, True, False]
