"""Reports of hits among what a publisher sends, as its batches are accepted."""

from collections.abc import Sequence

import msgspec
import pytest

from bridge.sequencing.sequencer import Sequencer
from bridge.sockets.raw_message import RawMessage
from schemas.arrays import ArrayPacker, PythonArrayPacker
from schemas.codec import decode_record_events
from schemas.events import BlockEvent, Removed, Stored
from schemas.limits import HIT_REPORT_SCORE
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

    def send(self, *batches: Sequence[object], lost: int = 0) -> list[BlockEvent]:
        """What is written of batches that come in one turn."""
        self._sent += lost
        messages = []
        for events in batches:
            self._time += 1.0
            frames = frames_of([self._time, list(events), 0], self._sent)
            messages.append(RawMessage(ONE.publisher, frames, 0.0, 1))
            self._sent += 1
        return events_of(self.sequencer.process(messages, 0.0))

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
