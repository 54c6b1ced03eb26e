"""Mutations of every captured frame, live and replayed: nobody crashes, and no neighbour is lost.

A neighbour is the next message of the same publisher, an event of the same batch, and a batch that
the same replay brings.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final, NamedTuple

import msgspec
import pytest
import zmq

from bridge.publisher.anchor import Anchor
from bridge.publisher.replay_client import END_SEQUENCE, Replayer, ReplaySocket
from bridge.wire import KINDS, DecodedBatch, MessageDecoder, open_source
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import ArrayPacker, PythonArrayPacker
from schemas.codec import decode_record_events
from schemas.errors import FrameError, LeftOutError, PassedOverError
from schemas.events import BlockEvent
from schemas.positions import NO_CURSOR
from schemas.records import GapRecord, ResetRecord, SequencedRecord
from schemas.registration import PublisherKind, Registration
from streams.kernel import array_packer
from tests.fuzz.mutation import Base, Mutator
from tests.unit.bridge.messages import VECTORS, registration
from tests.unit.bridge.publisher.sequencers import Sequencers

pytestmark = pytest.mark.timeout(1800)

MUTATIONS: Final = 1_000_000
"""In all, of which three fifths are of messages, and the others of events and of replies."""
REFRESH: Final = 500
"""So many messages of a publisher, then another one: what its decoder remembers has a bound."""
REPLIES: Final = 200
WHOLE_BATCH: Final = frozenset(
    {
        DropReason.BATCH_TOO_LARGE,
        DropReason.MESSAGE_TOO_LARGE,
        DropReason.TOO_MANY_EVENTS,
        DropReason.TOO_MANY_VALUES,
    }
)
"""What an event may cost its whole batch by: it has no bound of its own."""


LEARNING: Final = frozenset({"TensorRT-LLM"})
"""Kinds whose messages say how later ones are to be read, such as which window is the largest: one
that is good, and says something else than was captured, is believed.
"""


class Vector(NamedTuple):
    """A captured message, and what it says.

    Attributes:
        replayed: whether it is a reply; its frames are those that a live message has.
        with_topic: whether a reply has a topic.
    """

    name: str
    kind: PublisherKind
    frames: list[bytes]
    dp_rank: int
    replayed: bool
    with_topic: bool

    def source(self, packer: ArrayPacker) -> MessageDecoder:
        """A decoder for its publisher."""
        return open_source(self.registration, packer)

    @property
    def registration(self) -> Registration:
        # Else the same blocks, again and again, may be reports.
        found = registration(kind=self.kind, dp_rank=self.dp_rank)
        return msgspec.structs.replace(found, kv_cache_report_mode="incremental")


def vectors() -> Iterator[Vector]:
    for path in sorted(VECTORS.glob("*.jsonl")):
        kinds = [kind for kind in KINDS if path.name.startswith(f"{kind.lower()}-")]
        for line in path.read_text().splitlines():
            found = json.loads(line)
            frames = [bytes.fromhex(frame) for frame in found.get("frames_hex", ())]
            is_reply = found.get("kind") == "replay" and found["case"].startswith("reply")
            if not frames or not frames[-1] or not (is_reply or found["kind"] == "live"):
                continue
            with_topic = is_reply and len(frames) == 4
            if is_reply:
                frames = [b"", *frames[-2:]]
            decoded = found["decoded"]
            ranked = isinstance(decoded, list) and len(decoded) > 2
            yield Vector(
                f"{path.stem}/{found['case']}",
                max(kinds, key=len),
                frames,
                decoded[2] if ranked and isinstance(decoded[2], int) else 0,
                is_reply,
                with_topic,
            )


VECTOR_LIST = list(vectors())
PACKERS: Sequence[Callable[[], ArrayPacker]] = (array_packer, PythonArrayPacker)


@pytest.fixture
def random(request: pytest.FixtureRequest, seed: int) -> Random:
    return Random(f"{seed} {request.node.name}")


def told(batch: DecodedBatch) -> tuple[object, ...]:
    """All that a batch means: its events, however they were packed, its errors by their texts."""
    whole = batch._replace(run=b"", parts=(), dropped=[])
    return (*whole, batch.events, [str(error) for error in batch.dropped])


def read(payload: bytes) -> object:
    """The payload's value; None where it is neither of the forms that publishers use."""
    for decode in (msgspec.msgpack.decode, msgspec.json.decode):
        try:
            return decode(payload)
        except msgspec.DecodeError:
            continue
    return None


class Mutated:
    """Mutations of one captured message, in the form that its payload has."""

    def __init__(self, vector: Vector, random: Random) -> None:
        self.vector = vector
        self._random = random
        self._mutator = Mutator(random)
        payload = vector.frames[-1]
        self._base = Base(read(payload))
        self._is_msgpack = self._base.encoded == payload

    def payload(self) -> bytes:
        """Unchanged now and then; else with one thing wrong."""
        if self._is_msgpack:
            return self._mutator.encoded(self._base)
        if self._random.randrange(2):
            return self._mutator.raw(self.vector.frames[-1])
        try:
            return msgspec.json.encode(self._mutator.changed(self._base))
        except (msgspec.EncodeError, ValueError, TypeError):  # no value of JSON
            return self._mutator.raw(self.vector.frames[-1])

    def frames(self) -> list[bytes]:
        """The same as a message, of which seldom another frame is wrong."""
        random = self._random
        frames = [*self.vector.frames[:-1], self.payload()]
        if random.randrange(20) == 0:
            place = random.randrange(len(frames))
            frames[place] = random.randbytes(random.randrange(40))
        if random.randrange(100) == 0:
            random.shuffle(frames)
        return frames[: random.randrange(len(frames))] if random.randrange(100) == 0 else frames


def note(error: BaseException, vector: Vector, frames: Sequence[bytes], seed: int) -> None:
    shown = [frame.hex()[:2000] for frame in frames]
    error.add_note(f"{vector.name}, --seed {seed}: {shown}")


def test_a_message_with_anything_wrong_costs_no_message_behind_it(
    random: Random, seed: int, scaled: Callable[[int], int]
) -> None:
    mutations = scaled(MUTATIONS * 3 // 5) // len(VECTOR_LIST)
    for vector in VECTOR_LIST:
        captured = vector.source(PythonArrayPacker()).decode(vector.frames)
        assert all(isinstance(error, PassedOverError | LeftOutError) for error in captured.dropped)
        honest = told(captured)
        first = int.from_bytes(vector.frames[-2], "big") - captured.sequence  # of its numbers
        mutated = Mutated(vector, random)
        for number in range(mutations):
            if number % REFRESH == 0:
                source = vector.source(random.choice(PACKERS)())
            frames = mutated.frames()
            try:
                batch = source.decode(frames)
                assert batch.sequence == int.from_bytes(frames[-2], "big") - first
                if vector.kind in LEARNING and not batch.dropped:
                    source = vector.source(random.choice(PACKERS)())
            except FrameError:
                pass
            except BaseException as error:
                note(error, vector, frames, seed)
                raise
            behind = told(source.decode(vector.frames))
            if behind != honest:
                lost = AssertionError(f"expected {honest}, got: {behind}")
                note(lost, vector, frames, seed)
                raise lost


class EventBase(NamedTuple):
    """A captured batch, event by event."""

    vector: Vector
    time: object
    events: list[object]
    rest: list[object]


def event_bases() -> Iterator[EventBase]:
    """Of all batches in msgpack that have an event."""
    for vector in VECTOR_LIST:
        match read(vector.frames[-1]):
            case [time, [_, *_] as events, *rest] as batch:
                if msgspec.msgpack.encode(batch) == vector.frames[-1]:
                    yield EventBase(vector, time, list(events), rest)


EVENT_BASES = list(event_bases())


def test_an_event_with_anything_wrong_costs_no_event_beside_it(
    random: Random, seed: int, scaled: Callable[[int], int]
) -> None:
    mutations = scaled(MUTATIONS // 5) // len(EVENT_BASES)
    mutator = Mutator(random)
    one = msgspec.msgpack.Decoder(list[msgspec.Raw])  # looks at nothing but where each ends
    kept = 0
    for base in EVENT_BASES:
        bases = [Base(event) for event in base.events]
        beside = honest_events(base)
        if not beside:
            continue  # it is of another model
        for number in range(mutations):
            if number % REFRESH == 0:
                source = base.vector.source(random.choice(PACKERS)())
            changed = mutator.tree(random.choice(bases))
            try:
                one.decode(b"\x91" + changed)
            except (msgspec.DecodeError, RecursionError):
                continue  # it has no end, or another one: so has the batch
            events = [*base.events, msgspec.Raw(changed), *base.events]
            frames = [
                *base.vector.frames[:-1],
                msgspec.msgpack.encode([base.time, events, *base.rest]),
            ]
            try:
                batch = source.decode(frames)
                if not {error.reason for error in batch.dropped} & WHOLE_BATCH:
                    count = len(beside)
                    assert len(batch.events) >= 2 * count
                    assert batch.events[:count] == beside
                    assert batch.events[-count:] == beside
                    kept += 1
            except BaseException as error:
                note(error, base.vector, frames, seed)
                raise
    assert kept > scaled(MUTATIONS // 5) // 2


def honest_events(base: EventBase) -> list[BlockEvent]:
    found = base.vector.source(PythonArrayPacker()).decode(base.vector.frames)
    assert all(isinstance(error, PassedOverError) for error in found.dropped)
    return found.events


class ReplayingEngine:
    """A ROUTER with a buffer of batches, whose replies to its first request are mutated."""

    def __init__(self, batches: Sequence[bytes], *, with_topic: bool) -> None:
        self.changed: dict[int, list[list[bytes]]] = {}
        self.asked = 0
        self._batches = batches
        self._heads = [b"topic"] if with_topic else []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.sndhwm = self._socket.linger = 0
        self._socket.bind("tcp://127.0.0.1:0")
        self.endpoint = self._socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def reply(self, number: int) -> list[bytes]:
        """What it answers for that batch, when it is not mutated."""
        return [*self._heads, number.to_bytes(8, "big"), self._batches[number]]

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._socket.poll(20):
                client, _, start = self._socket.recv_multipart()
                self._answer(client, int.from_bytes(start, "big"))

    def _answer(self, client: bytes, start: int) -> None:
        changed = self.changed if self.asked == 0 else {}
        self.asked += 1
        for number in range(start, len(self._batches)):
            for reply in changed.get(number, [self.reply(number)]):
                self._socket.send_multipart([client, b"", *reply])
        self._socket.send_multipart([client, b"", *self._heads, END_SEQUENCE, b""])

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._socket.close(linger=0)
        self._context.term()


class Replay(NamedTuple):
    """What an engine of one version has in its buffer: the batches that were captured of it."""

    name: str
    vector: Vector
    payloads: list[list[object]]
    with_topic: bool


def replays() -> list[Replay]:
    """Of each file whose publisher replays."""
    found: dict[str, list[Vector]] = {}
    for vector in VECTOR_LIST:
        found.setdefault(vector.name.partition("/")[0], []).append(vector)
    made = []
    for name, of_file in found.items():
        replies = [vector for vector in of_file if vector.replayed]
        batches = [read(vector.frames[-1]) for vector in of_file]
        if replies and all(isinstance(batch, list) for batch in batches):
            payloads = [batch for batch in batches if isinstance(batch, list)]
            made.append(Replay(name, replies[0], payloads, replies[0].with_topic))
    return made


REPLAYS = replays()


def test_a_reply_with_anything_wrong_costs_no_other_reply(
    random: Random, seed: int, scaled: Callable[[int], int], caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does one that never comes: what is asked for again comes then."""
    rounds = max(scaled(MUTATIONS // 5) // len(REPLAYS) // REPLIES, 1)
    for replay in REPLAYS * rounds:
        payloads = [
            msgspec.msgpack.encode([100.5 + number, *random.choice(replay.payloads)[1:]])
            for number in range(REPLIES)
        ]
        engine = ReplayingEngine(payloads, with_topic=replay.with_topic)
        try:
            damaged = damage(engine, payloads, random)
            records = asyncio.run(repaired(replay.vector, engine.endpoint))
            check(replay, engine, damaged, records)
            assert not [record for record in caplog.records if record.exc_info]  # unexpected errors
        except BaseException as error:
            error.add_note(f"{replay.name}, --seed {seed}")
            raise
        finally:
            engine.close()


def damage(engine: ReplayingEngine, payloads: Sequence[bytes], random: Random) -> set[int]:
    """Mutates replies; returns the numbers of batches that came as something else."""
    mutator = Mutator(random)
    damaged: set[int] = set()
    for number in range(len(payloads)):
        reply = engine.reply(number)
        match random.randrange(12):
            case 0:
                engine.changed[number] = []
            case 1:
                engine.changed[number] = [reply, reply]
            case 2:
                engine.changed[number] = [reply[: random.randrange(len(reply))], reply]
            case 3:
                engine.changed[number] = [[*reply, b"one more"], reply]
            case 4:
                other = [*reply[:-2], random.randbytes(random.choice((0, 1, 7, 9, 40))), b"any"]
                engine.changed[number] = [other, reply]
            case 5 | 6 | 7:
                payload = mutator.encoded(Base(msgspec.msgpack.decode(payloads[number])))
                engine.changed[number] = [[*reply[:-1], payload]]
                damaged.add(number)
    return damaged


async def repaired(vector: Vector, endpoint: str) -> list[SequencedRecord]:
    """All that is written of a publisher of which nothing is known yet."""
    registered = vector.registration
    sequencer = Sequencers()
    sequencer.add(registered, repairs=True)
    sequencer[registered.publisher].set_anchor(Anchor(NO_CURSOR, 0.0))
    sequencer[registered.publisher].hold()
    records: list[SequencedRecord] = []

    async def emit(more: Sequence[SequencedRecord]) -> None:
        records.extend(more)

    replayer = Replayer()
    try:
        await replayer.repair(sequencer[registered.publisher], ReplaySocket(endpoint), emit)
    finally:
        replayer.close()
    return records + sequencer[registered.publisher].resume(0.0)


def check(
    replay: Replay,
    engine: ReplayingEngine,
    damaged: set[int],
    records: Sequence[SequencedRecord],
) -> None:
    """Each batch is there, whole, or told as missing; the latter only where it was damaged."""
    last = max(record.incarnation for record in records)
    accounted: set[int] = set()
    lost: set[int] = set()
    events: dict[int, list[BlockEvent]] = {}
    for record in records:
        if record.incarnation != last or isinstance(record, ResetRecord):
            continue
        numbers = range(record.first_sequence, record.last_sequence + 1)
        accounted.update(numbers)
        if isinstance(record, GapRecord):
            lost.update(numbers)
            continue
        for event in decode_record_events(record):
            events.setdefault(event.sequence, []).append(event)
    assert accounted == set(range(REPLIES))
    assert lost <= damaged
    source = replay.vector.source(PythonArrayPacker())
    for number in accounted - damaged:
        honest = source.decode([b"", *engine.reply(number)[-2:]])
        assert events.get(number, []) == honest.events, number
