"""Batches that are decoded together come to what each comes to alone: to the same records, byte for
byte, and the same state of their publishers.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.link_numbers import LinkNumber
from bridge.publisher import window as windows
from bridge.publisher.anchor import Anchor
from bridge.sockets.raw_message import RawMessage, RawRun, Received, behind, count_of
from bridge.wire import batch as batches
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import BatchPacker, MessageRun
from schemas.identities import PublisherKey
from schemas.positions import Cursor, Proof
from schemas.records import EventsRecord, ResetRecord, SequencedRecord, encode_record
from streams.kernel import array_packer, message_run, native_available
from tests.property.test_batch_packer import ArraysOnly
from tests.unit.bridge.messages import frames_of, map_event, registration
from tests.unit.bridge.publisher.sequencers import Sequencers

pytestmark = pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")

RECORD_BYTES = 400
LORA_NAMES = 5


class AloneOnly:
    """The kernel's packer of batches, which packs none together."""

    def __init__(self, packer: BatchPacker) -> None:
        self.pack = packer.pack

    def pack_run(
        self, messages: list[list[bytes]] | MessageRun, sequence: int, bytes_max: int, /
    ) -> tuple[bytes, float, int, bytes, Sequence[str], int, bytes]:
        return b"", 0.0, 0, b"", (), 0, b""


class AlonePacker(ArraysOnly):
    """The kernel's packer, with such packers of batches."""

    def batch_packer(self, **fields: Any) -> BatchPacker:
        packer = array_packer().batch_packer(**fields)
        assert packer is not None
        return AloneOnly(packer)


class Hold(NamedTuple):
    """A publisher waits from here on, or no longer."""

    publisher: PublisherKey
    held: bool


class Place(NamedTuple):
    """Where a publisher's log is said to end; None for where it is, with a part of the batch behind
    it.
    """

    publisher: PublisherKey
    anchor: Anchor | None


PUBLISHERS = [registration(instance_id="repairs"), registration(instance_id="cannot")]
KEYS = [known.publisher for known in PUBLISHERS]
Step = list[RawMessage] | Hold | Place


@st.composite
def events(draw: st.DrawFn, kind: str) -> list[object]:
    """Of one batch; bad ones where that is said."""
    if kind == "clear":
        return [["AllBlocksCleared"]]
    if kind == "bad":
        return [["BlockRemoved", [1]], ["BlockRemoved", "none"]]
    if kind == "lora":
        name = f"adapter-{draw(st.integers(0, LORA_NAMES + 1))}"
        fields = {"block_hashes": [draw(st.integers(0, 9))], "parent_block_hash": None}
        more = {"token_ids": [1, 2, 3, 4], "block_size": 4, "lora_name": name}
        return [map_event("BlockStored", **fields, **more)]
    count = draw(st.sampled_from([0, 1, 1, 2, 30]))
    return [["BlockRemoved", [number, number + 1]] for number in range(count)]


KINDS = ["plain"] * 40 + ["lora", "lora", "clear", "bad", "junk", "frames", "short", "ahead"]
PLACES = ["next"] * 60 + ["again", "gap", "zero", "behind"]


@st.composite
def message(draw: st.DrawFn, publisher: PublisherKey, sequence: int, link: int) -> RawMessage:
    """One message of this number."""
    kind = draw(st.sampled_from(KINDS))
    batch = [float(draw(st.sampled_from([1, 5, 5, 9]))), draw(events(kind)), 0]
    frames = frames_of(batch, sequence)
    match kind:
        case "junk":
            frames[2] = draw(st.binary(max_size=5))
        case "frames":
            frames.append(b"one more")
        case "short":
            frames[1] = frames[1][:7]
    decoded = None
    if kind == "ahead":
        source = Sequencers(array_packer())
        source.add(PUBLISHERS[0])
        decoded = source[KEYS[0]].decode_ahead(RawMessage(KEYS[0], frames, 0.0))
    return RawMessage(publisher, frames, 0.0, LinkNumber(link), decoded)


NEW = Anchor(Cursor(2, -1), 0.0, Proof(3, 1.0))
"""Nothing is known of an incarnation but that the one before is in doubt."""


@st.composite
def placed(draw: st.DrawFn, sequence: int) -> Anchor | None:
    """Where the log may end of a publisher that sends this number next."""
    cursor = Cursor(1, sequence - 1 + draw(st.integers(0, 1)))
    return draw(
        st.sampled_from([None, None, NEW, Anchor(cursor, 1.0), Anchor(cursor, 1.0, None, 5.0)])
    )


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """What comes of two publishers, in turns."""
    steps: list[Step] = []
    sequences = [0, 0]
    link = draw(st.sampled_from([0, 1]))
    sent: list[RawMessage] = []
    for _ in range(draw(st.integers(1, 12))):
        match draw(st.sampled_from(["turn"] * 8 + ["link", "hold", "place"])):
            case "link":
                link += 1
            case "hold":
                steps.append(Hold(draw(st.sampled_from(KEYS)), held=True))
            case "place":
                at = draw(st.integers(0, 1))
                steps.append(draw(st.builds(Place, st.just(KEYS[at]), placed(sequences[at]))))
                if steps[-1] == Place(KEYS[at], NEW):
                    sequences[at] = 0
            case _:
                turn: list[RawMessage] = []
                for at in draw(st.lists(st.integers(0, 1), min_size=1, max_size=4)):
                    if draw(st.booleans()):
                        steps.append(Hold(KEYS[at], held=False))
                    for _ in range(draw(st.integers(1, 12))):
                        place = draw(st.sampled_from(PLACES))
                        if place == "again" and sent:
                            turn.append(draw(st.sampled_from(sent[-5:])))
                            continue
                        sequences[at] += {"gap": 2, "behind": -2}.get(place, 0)
                        sequences[at] = 0 if place == "zero" else max(sequences[at], 0)
                        link += draw(st.sampled_from([0] * 30 + [1]))
                        turn.append(draw(message(KEYS[at], sequences[at], link)))
                        sequences[at] += 1
                        sent.append(turn[-1])
                steps.append(turn)
    return steps


class Told(NamedTuple):
    """What a step came to: the records, and all that is known of the publishers."""

    records: list[bytes]
    gaps: list[PublisherKey]
    publishers: list[object]


def told(sequencer: Sequencers, records: list[SequencedRecord]) -> Told:
    return Told(
        [encode_record(record) for record in records],
        sequencer.take_gaps(),
        [
            (
                sequencer[key].stream.anchor,
                sequencer[key].stream.proven,
                sequencer[key].stream.proven_link,
                sequencer[key].stream.links.last,
                sequencer[key].stream.arrivals.lateness.late_s,
                sequencer[key].stream.is_doubted,
                sequencer[key].stream.unplaced,
                sequencer[key].is_held,
                sequencer[key].waiting,
                sequencer[key].misses(),
                vars_of(sequencer, key),
            )
            for key in KEYS
        ],
    )


def vars_of(sequencer: Sequencers, key: PublisherKey) -> object:
    counters = sequencer.counters()[key]
    found = {name: getattr(counters, name) for name in counters.__dataclass_fields__}
    return found | {"last_drop": str(counters.last_drop)}


def is_plain(one: RawMessage) -> bool:
    return one.batch is None and len(one.frames) == 3 and len(one.frames[1]) == 8


def runs_of(messages: Sequence[RawMessage]) -> Iterator[Received]:
    """The same messages, as the kernel's reader hands them on: those of one publisher, over one
    link, in runs.
    """
    assert message_run is not None
    for (publisher, link, plain), some in groupby(
        messages, key=lambda one: (one.publisher, one.link, is_plain(one))
    ):
        if plain:
            yield RawRun(publisher, message_run([one.frames for one in some]), 0.0, link)
        else:
            yield from some


def live_through(sequencer: Sequencers, step: Step | list[Received], now: float) -> Told:
    records: list[SequencedRecord] = []
    match step:
        case Hold(publisher, True):
            sequencer[publisher].hold()
        case Hold(publisher, False):
            if sequencer[publisher].is_held:
                records = sequencer[publisher].resume(now)
        case Place(publisher, anchor):
            if not sequencer[publisher].is_held:
                here = sequencer[publisher].stream.anchor._replace(begun=5.0)
                sequencer[publisher].set_anchor(here if anchor is None else anchor)
        case list():
            records = sequencer.process(step, now)
    return told(sequencer, records)


def opened(packer: object) -> Sequencers:
    sequencer = Sequencers(packer)  # type: ignore[arg-type]
    for place, known in enumerate(PUBLISHERS):
        sequencer.add(known, repairs=place == 0)
    return sequencer


@settings(max_examples=300)
@given(histories())
def test_batches_decoded_together_come_to_what_each_comes_to_alone(history: list[Step]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "RECORD_BYTES_MAX", RECORD_BYTES)
        patch.setattr(batches, "RECORD_BYTES_MAX", RECORD_BYTES)
        patch.setattr(batches, "LORA_NAMES_MAX", LORA_NAMES)
        together, alone = opened(array_packer()), opened(AlonePacker())
        for number, step in enumerate(history):
            now = 10.0 + number
            got, expected = live_through(together, step, now), live_through(alone, step, now)
            assert got == expected, f"step {number}: {msgspec.json.encode(str(step))!r}"


def plain(sequence: int) -> RawMessage:
    frames = frames_of([1.0, [["BlockRemoved", [sequence]]], 0], sequence)
    return RawMessage(KEYS[1], frames, 0.0, LinkNumber(1))


def test_a_batch_of_which_the_log_has_a_part_is_looked_at_alone() -> None:
    """The engine may have restarted since, and be about to send another one of its number."""
    sequencer = opened(array_packer())
    assert sequencer.process([plain(number) for number in range(3)], 1.0)
    sequencer[KEYS[1]].set_anchor(sequencer[KEYS[1]].stream.anchor._replace(begun=5.0))
    reset, _, record = sequencer.process([plain(number) for number in range(3, 9)], 2.0)
    assert isinstance(reset, ResetRecord)
    assert isinstance(record, EventsRecord)
    assert (record.incarnation, record.first_sequence, record.last_sequence) == (2, 3, 8)


def test_most_batches_are_decoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sequencer = opened(array_packer())
    alone: list[Sequence[bytes]] = []
    decode = batches.BatchDecoder.decode

    def counted(decoder: batches.BatchDecoder, frames: Sequence[bytes]) -> batches.DecodedBatch:
        alone.append(frames)
        return decode(decoder, frames)

    monkeypatch.setattr(batches.BatchDecoder, "decode", counted)
    assert sequencer.process([plain(number) for number in range(1000)], 1.0)
    assert len(alone) == 1, "the first, before which nothing is known of the publisher"
    clear = RawMessage(
        KEYS[1], frames_of([1.0, [["AllBlocksCleared"]], 0], 1000), 0.0, LinkNumber(1)
    )
    later = [plain(number) for number in range(1001, 2000)]
    assert sequencer.process([clear, *later], 1.0)
    assert len(alone) == 2


@settings(max_examples=60)
@given(histories(), st.data())
def test_runs_come_to_what_their_messages_come_to(history: list[Step], data: st.DataObject) -> None:
    """Where a turn ends within a run, too: what it has not taken is given back, and comes next."""
    together, in_runs = opened(array_packer()), opened(array_packer())
    for number, step in enumerate(history):
        now = 10.0 + number
        if not isinstance(step, list):
            assert live_through(in_runs, step, now) == live_through(together, step, now)
            continue
        left: list[Received] = list(runs_of(step))
        while left:
            before = count_of(left)
            until = data.draw(st.sampled_from([0.0, math.inf]))
            records, taken = in_runs.process_until(left, now, until)
            assert 1 <= taken <= before
            left = behind(left, taken)
            assert count_of(left) == before - taken
            some, step = step[:taken], step[taken:]
            expected = together.process(some, now)
            assert told(in_runs, records) == told(together, expected), f"step {number}"


def test_a_run_is_decoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sequencer = opened(array_packer())
    alone: list[Sequence[bytes]] = []
    decode = batches.BatchDecoder.decode

    def counted(decoder: batches.BatchDecoder, frames: Sequence[bytes]) -> batches.DecodedBatch:
        alone.append(frames)
        return decode(decoder, frames)

    monkeypatch.setattr(batches.BatchDecoder, "decode", counted)
    (run,) = runs_of([plain(number) for number in range(1000)])
    assert sequencer.process([run], 1.0)
    assert len(alone) == 1, "the first, before which nothing is known of the publisher"
    assert sequencer.counters()[KEYS[1]].messages == 1000
    assert isinstance(run, RawRun)
    assert not sequencer.process([run.after(990)], 1.0)
    assert sequencer.counters()[KEYS[1]].duplicates == 10
    assert len(alone) == 11


def test_messages_of_a_run_are_dropped_and_counted_one_by_one() -> None:
    sequencer = opened(array_packer())
    (run,) = runs_of([plain(number) for number in range(7)])
    unknown = run._replace(publisher=registration(instance_id="unknown").publisher)
    records, taken = sequencer.process_until([unknown, run], 1.0, 1e9)
    assert (taken, sequencer.unregistered_messages) == (14, 7)
    assert [record.last_sequence for record in records] == [6]
    sequencer[KEYS[1]].stream.links.first = LinkNumber(5)  # the engine has restarted since
    assert sequencer.process_until([run], 1.0, 1e9) == ([], 7)
    assert sequencer.counters()[KEYS[1]].dropped == {DropReason.EARLIER_INCARNATION: 7}
