"""Repairs against real ROUTER sockets on the loopback: honest ones, and ones that are not."""

import asyncio
import errno
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Protocol

import msgspec
import pytest
import zmq

from bridge.publisher import held_batches, replay_client
from bridge.publisher.anchor import Anchor
from bridge.publisher.replay_client import _NO_SEQUENCE as PROBE
from bridge.publisher.replay_client import END_SEQUENCE, Replayer, ReplaySocket
from bridge.publisher.sequencer import Sequencer
from bridge.sockets.lookup import LOOKUPS
from bridge.sockets.raw_message import RawMessage
from bridge.wire import DecodedBatch
from lab.engines.publisher import Publisher, PublisherOptions
from lab.engines.wire import BlockRemoved
from schemas.answer_states import Doubt
from schemas.codec import decode_record_events
from schemas.events import RemovedBlocks
from schemas.positions import NO_CURSOR, Cursor, Proof
from schemas.records import EventsRecord, SequencedRecord
from tests.unit.bridge.messages import registration
from tests.unit.bridge.publisher.sequencers import Sequencers

ONE = registration()
KEY = ONE.publisher

Reply = tuple[int, float]
"""Sequence and engine time of a batch."""


def payload(sequence: int, ts: float) -> bytes:
    return msgspec.msgpack.encode([ts, [["BlockRemoved", [sequence]]], 0])


def live(sequence: int, ts: float) -> RawMessage:
    return RawMessage(KEY, [b"", sequence.to_bytes(8, "big"), payload(sequence, ts)], 0.0)


class Engine:
    """A ROUTER that answers each request as `answer` says; None: no end marker."""

    QUEUE = 1000  # messages for one who does not read; libzmq's default

    def __init__(self, answer: Callable[[int], Sequence[Reply | None]], *, topic: bool) -> None:
        self.asked: list[int] = []
        self._answer = answer
        self._topic = [b"kv"] if topic else []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.sndhwm = self.QUEUE
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self._stopping = False
        self.window = b""  # which numbers it has: of ATOM
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            if not self._socket.poll(20):
                continue
            client, empty, start = self._socket.recv_multipart()
            assert empty == b""
            self.asked.append(int.from_bytes(start, "big"))
            replies = self._answer(self.asked[-1])
            header = [client, b"", *self._topic]
            for reply in replies:
                if reply is not None:
                    sequence = reply[0].to_bytes(8, "big")
                    self._socket.send_multipart([*header, sequence, payload(*reply)])
            if None not in replies:
                end = [client, b"", *([b""] if self._topic else []), END_SEQUENCE, self.window]
                self._socket.send_multipart(end)

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        self._socket.close()
        self._context.term()


class Engines(Protocol):
    """Makes engines that are closed at the end."""

    def __call__(
        self, answer: Callable[[int], Sequence[Reply | None]], *, topic: bool = True
    ) -> Engine: ...


@pytest.fixture
def engines() -> Iterator[Engines]:
    made: list[Engine] = []

    def make(answer: Callable[[int], Sequence[Reply | None]], *, topic: bool = True) -> Engine:
        made.append(Engine(answer, topic=topic))
        return made[-1]

    yield make
    for one in made:
        one.close()


def honest(first: int, last: int, *, born: float = 100.0) -> Callable[[int], list[Reply | None]]:
    """An engine that still has the batches `first..last` of the life that began at `born`."""
    return lambda start: [(n, born + n) for n in range(max(first, start), last + 1)]


def held(anchor: Anchor, *waiting: RawMessage) -> Sequencers:
    sequencer = Sequencers()
    sequencer.add(ONE, repairs=True)
    sequencer[KEY].set_anchor(anchor)
    sequencer[KEY].hold()
    assert sequencer.process(waiting, 0.0) == []
    return sequencer


def repair(sequencer: Sequencers, endpoint: str) -> list[SequencedRecord]:
    """All that is written: by the repair, and when the publisher goes on."""
    records: list[SequencedRecord] = []

    async def emit(more: Sequence[SequencedRecord]) -> None:
        records.extend(more)

    async def run() -> None:
        replayer = Replayer(idle_s=0.3)
        try:
            await replayer.repair(sequencer[KEY], ReplaySocket(endpoint), emit)
        finally:
            replayer.close()

    asyncio.run(run())
    return records + sequencer[KEY].resume(0.0)


def told(records: Sequence[SequencedRecord]) -> list[object]:
    short: list[object] = []
    for record in records:
        if isinstance(record, EventsRecord):
            for event in decode_record_events(record):
                assert isinstance(event, RemovedBlocks)
                assert event.hashes == event.sequence.to_bytes(8, "little")
                short.append((record.incarnation, event.sequence))
        else:
            short.append(
                (record.reason, record.incarnation, record.first_sequence, record.last_sequence)
            )
    return short


def batches(incarnation: int, first: int, last: int) -> list[object]:
    return [(incarnation, sequence) for sequence in range(first, last + 1)]


ANCHOR = Anchor(Cursor(3, 10), 110.0, heard=Proof(10, 110.0))


each_release = pytest.mark.parametrize("topic", [False, True], ids=["no-topic", "topic"])
"""They differ in whether batches and the end marker have a topic, and in nothing else."""


@each_release
def test_what_is_missing_comes_before_what_waited(engines: Engines, topic: bool) -> None:
    engine = engines(honest(0, 20), topic=topic)
    sequencer = held(ANCHOR, live(15, 115.0), live(16, 116.0))
    assert told(repair(sequencer, engine.endpoint)) == batches(3, 11, 16)
    assert engine.asked == [10]
    assert told(sequencer.process([live(17, 117.0)], 0.0)) == batches(3, 17, 17)


def test_without_anything_that_waits_all_is_taken(engines: Engines) -> None:
    engine = engines(honest(0, 3000))
    sequencer = held(ANCHOR)
    assert told(repair(sequencer, engine.endpoint)) == batches(3, 11, 3000)


def test_a_reply_may_end_with_the_numbers_that_there_are(engines: Engines) -> None:
    engine = engines(honest(5, 9))
    engine.window = msgspec.msgpack.encode([5, 9])
    sequencer = held(Anchor(Cursor(1, 4), 104.0, heard=Proof(4, 104.0)))
    assert told(repair(sequencer, engine.endpoint))[-1] == (1, 9)
    assert sequencer[KEY].stream.counters.dropped == {}


def test_a_new_publisher_gets_all_that_its_engine_still_has(engines: Engines) -> None:
    engine = engines(honest(5, 9))
    sequencer = held(Anchor(NO_CURSOR, 0.0))
    assert told(repair(sequencer, engine.endpoint)) == [("joined_late", 1, 0, 4), *batches(1, 5, 9)]


def test_a_reply_that_ends_in_silence_is_asked_for_again(engines: Engines) -> None:
    def answer(start: int) -> list[Reply | None]:
        return [*honest(0, 30)(start)[:8], None]

    engine = engines(answer)
    assert told(repair(held(ANCHOR, live(31, 131.0)), engine.endpoint)) == batches(3, 11, 31)
    assert engine.asked == [10, 17, 24]


def test_an_engine_without_a_buffer_leaves_the_gap(engines: Engines) -> None:
    engine = engines(lambda start: [])
    records = repair(held(ANCHOR, live(17, 117.0)), engine.endpoint)
    assert told(records) == [("missed", 3, 11, 16), *batches(3, 17, 17)]


def test_nobody_at_the_endpoint_leaves_the_gap() -> None:
    records = repair(held(ANCHOR, live(17, 117.0)), "tcp://127.0.0.1:9")
    assert told(records) == [("missed", 3, 11, 16), *batches(3, 17, 17)]


@pytest.mark.parametrize("endpoint", ["tcp://*:1", "tcp://a b:1", "ipc:///" + "x" * 200])
def test_an_endpoint_that_is_none_leaves_the_gap(endpoint: str) -> None:
    records = repair(held(ANCHOR, live(17, 117.0)), endpoint)
    assert told(records) == [("missed", 3, 11, 16), *batches(3, 17, 17)]


@each_release
def test_another_life_with_the_same_numbers_is_not_mixed_in(engines: Engines, topic: bool) -> None:
    """It is asked once more where its end marker says that there was something new."""
    engine = engines(honest(0, 20, born=500.0), topic=topic)
    records = repair(held(ANCHOR), engine.endpoint)
    assert told(records) == [("restarted", 4, -1, -1), *batches(4, 0, 20)]
    assert engine.asked == [10, 0, 20]


def test_an_engine_that_sends_while_a_request_goes_unanswered_is_asked_once_more(
    engines: Engines,
) -> None:
    """It was away when it was asked, and is back: a new life, which still has all that it sent."""
    sequencer = held(ANCHOR)
    asked = 0

    def answer(start: int) -> list[Reply | None]:
        nonlocal asked
        asked += 1
        if asked == 2:
            sequencer.process([live(0, 500.0), live(1, 501.0)], 0.0)
        return [None] if asked <= 2 else honest(0, 1, born=500.0)(start)

    engine = engines(answer)
    records = repair(sequencer, engine.endpoint)
    assert told(records) == [("restarted", 4, -1, -1), *batches(4, 0, 1)]
    assert engine.asked == [10, PROBE, PROBE, 10, 0]


def test_what_waited_of_the_life_before_comes_before_the_reset(engines: Engines) -> None:
    engine = engines(honest(0, 6, born=500.0))
    waiting = [live(12, 112.0), live(13, 113.0), live(5, 505.0), live(6, 506.0), live(7, 507.0)]
    assert told(repair(held(ANCHOR, *waiting), engine.endpoint)) == [
        ("missed", 3, 11, 11),
        *batches(3, 12, 13),
        ("restarted", 4, -1, -1),
        *batches(4, 0, 7),
    ]


def test_a_last_batch_that_cannot_be_decoded_is_no_proof_of_another_life(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = payload

    def partly(sequence: int, ts: float) -> bytes:
        return b"\xc1 no batch" if sequence == 10 else good(sequence, ts)

    monkeypatch.setattr(sys.modules[__name__], "payload", partly)
    engine = engines(honest(0, 14))
    assert told(
        repair(held(Anchor(Cursor(3, 10), 109.0, heard=Proof(10, 109.0))), engine.endpoint)
    ) == batches(3, 11, 14)


@pytest.mark.parametrize("kept", [0, 1])
def test_live_batches_without_room_during_a_repair_are_asked_for_afterwards(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """The engine may be quiet from then on: no batch would ever show that they are missing."""
    monkeypatch.setattr(held_batches, "HELD_BATCHES_MAX", kept)
    engine = engines(honest(0, 14))
    sequencer = held(ANCHOR, *[live(number, 100.0 + number) for number in range(15, 21)])
    first = repair(sequencer, engine.endpoint)
    assert sequencer.take_gaps() == [KEY]
    later = engines(honest(0, 20))
    assert told(first + repair(sequencer, later.endpoint)) == batches(3, 11, 20)
    assert sequencer.take_gaps() == []
    assert not sequencer[KEY].is_held


def test_of_a_new_life_live_batches_without_room_are_asked_for_too(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_batches, "HELD_BATCHES_MAX", 0)
    sequencer = held(ANCHOR, *[live(number, 500.0 + number) for number in range(3)])
    assert told(repair(sequencer, engines(honest(0, 10)).endpoint)) == []
    assert sequencer.take_gaps() == [KEY]
    records = repair(sequencer, engines(honest(0, 2, born=500.0)).endpoint)
    assert told(records) == [("restarted", 4, -1, -1), *batches(4, 0, 2)]


@pytest.mark.parametrize("repairs", [False, True])
def test_live_batches_without_room_that_nobody_has_any_more_are_a_gap(
    engines: Engines, monkeypatch: pytest.MonkeyPatch, repairs: bool
) -> None:
    monkeypatch.setattr(held_batches, "HELD_BATCHES_MAX", 1)
    sequencer = Sequencers()
    sequencer.add(ONE, repairs=repairs)
    sequencer[KEY].set_anchor(ANCHOR)
    sequencer[KEY].hold()
    waiting = [live(number, 100.0 + number) for number in range(11, 14)]
    assert sequencer.process(waiting, 0.0) == []
    records = sequencer[KEY].resume(0.0)
    if repairs:
        records += repair(sequencer, engines(lambda start: [(11, 111.0)]).endpoint)
    assert told(records) == [*batches(3, 11, 11), ("held_full", 3, 12, 13)]


def test_garbage_among_the_replies_is_left_out(engines: Engines) -> None:
    class Garbled(Engine):
        def _run(self) -> None:
            while not self._stopping:
                if self._socket.poll(20):
                    client, _, start = self._socket.recv_multipart()
                    self._socket.send_multipart([client, b"", b"what", b"?"])
                    self._socket.send_multipart([client, b"?"])
                    for n in range(int.from_bytes(start, "big"), 15):
                        self._socket.send_multipart(
                            [client, b"", n.to_bytes(8, "big"), payload(n, 100.0 + n)]
                        )
                    self._socket.send_multipart([client, b"", END_SEQUENCE, b""])

    engine = Garbled(honest(0, 0), topic=False)
    try:
        records = repair(held(ANCHOR, live(15, 115.0)), engine.endpoint)
    finally:
        engine.close()
    assert told(records) == batches(3, 11, 15)


@pytest.mark.parametrize("wire", ["0.25.0", "0.33.0"])
def test_a_publisher_like_vllm_replays_all_that_it_lost(wire: str) -> None:
    publisher = Publisher(PublisherOptions(wire=wire))
    try:
        for number in range(200):
            publisher.publish([BlockRemoved(block_hashes=[number])], lost=True)
        end = time.monotonic() + 10
        while publisher.published < 200:
            assert time.monotonic() < end
            time.sleep(0.01)
        sequencer = held(Anchor(NO_CURSOR, 0.0))
        records = repair(sequencer, publisher.replay_endpoint)
    finally:
        publisher.close()
    assert told(records) == batches(1, 0, 199)


@pytest.mark.parametrize("frames", [[b"\xff" * 3], [bytes(8), b"\xc1"]], ids=["garbage", "old"])
def test_a_socket_that_sends_without_end_what_brings_nothing_is_as_good_as_silent(
    frames: list[bytes],
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    port = router.bind_to_random_port("tcp://127.0.0.1")
    ended = threading.Event()

    def send_for_ever() -> None:
        clients: set[bytes] = set()
        while not ended.is_set():
            if router.poll(5):
                clients.add(router.recv_multipart()[0])
            for client in clients:
                router.send_multipart([client, b"", *frames])

    thread = threading.Thread(target=send_for_ever)
    thread.start()

    async def ask() -> list[SequencedRecord]:
        sequencer = held(Anchor(Cursor(1, 5), 105.0, heard=Proof(5, 105.0)))
        replayer = Replayer(idle_s=5.0, barren_s=0.1)
        records: list[SequencedRecord] = []

        async def emit(emitted: Sequence[SequencedRecord]) -> None:
            records.extend(emitted)

        await replayer.repair(sequencer[KEY], ReplaySocket(f"tcp://127.0.0.1:{port}"), emit)
        replayer.close()
        return records

    try:
        assert not any(isinstance(record, EventsRecord) for record in asyncio.run(ask()))
    finally:
        ended.set()
        thread.join()
        router.close()
        context.term()


def test_engines_that_do_not_answer_leave_the_place_to_those_that_do(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_client, "REPLAYS_AT_ONCE_MAX", 1)
    well = engines(honest(0, 20))
    silent = [engines(lambda start: [None]) for _ in range(8)]
    names = [f"silent-{number}" for number in range(len(silent))]
    sequencer = held(ANCHOR)
    for name in names:
        one = registration(instance_id=name)
        sequencer.add(one, repairs=True)
        sequencer[one.publisher].hold()
    records: list[SequencedRecord] = []

    async def emit(emitted: Sequence[SequencedRecord]) -> None:
        records.extend(emitted)

    async def ask() -> None:
        replayer = Replayer(idle_s=0.3)
        others = [
            asyncio.create_task(
                replayer.repair(
                    sequencer[registration(instance_id=name).publisher],
                    ReplaySocket(engine.endpoint),
                    emit,
                )
            )
            for name, engine in zip(names, silent, strict=True)
        ]
        await asyncio.sleep(0)
        assert (
            await replayer.repair(sequencer[KEY], ReplaySocket(well.endpoint), emit)
        ).doubt is None
        assert not any(other.done() for other in others), "it has waited for one of them, once"
        assert {one.doubt for one in await asyncio.gather(*others)} == {Doubt.REPLAY_SILENT}
        replayer.close()

    asyncio.run(ask())
    assert told(records) == batches(3, 11, 20)
    assert well.asked == [PROBE, 10, 20], "it could not be read at once"
    asked = sorted(engine.asked for engine in silent)
    assert asked == [[0, PROBE], *[[PROBE, PROBE]] * 7]


def test_a_large_chunk_is_decoded_beside_the_loop(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_client, "BULK_BYTES", 60)
    threads: set[str] = set()
    ahead = Sequencer.decode_ahead

    def decode_ahead(self: Sequencer, message: RawMessage) -> DecodedBatch | None:
        threads.add(threading.current_thread().name)
        return ahead(self, message)

    monkeypatch.setattr(Sequencer, "decode_ahead", decode_ahead)
    engine = engines(honest(0, 200))
    records = repair(held(ANCHOR, live(201, 301.0)), engine.endpoint)
    assert told(records) == batches(3, 11, 201)
    assert threads == {"reprise-replay_0"}


def test_an_engine_that_answers_again_is_asked_for_all_of_it(engines: Engines) -> None:
    is_back = False
    engine = engines(lambda start: honest(0, 20)(start) if is_back else [None])
    sequencer = held(ANCHOR)
    records: list[SequencedRecord] = []

    async def emit(emitted: Sequence[SequencedRecord]) -> None:
        records.extend(emitted)

    async def ask() -> None:
        nonlocal is_back
        replayer, socket = Replayer(idle_s=0.1), ReplaySocket(engine.endpoint)
        assert (await replayer.repair(sequencer[KEY], socket, emit)).doubt is Doubt.REPLAY_SILENT
        is_back = True
        assert (
            await replayer.repair(sequencer[KEY], ReplaySocket(engine.endpoint), emit)
        ).doubt is None
        assert engine.asked[-3:] == [PROBE, 10, 20]
        assert (
            await replayer.repair(sequencer[KEY], ReplaySocket(engine.endpoint), emit)
        ).doubt is None
        assert engine.asked[-2:] == [20, 20]
        replayer.close()

    asyncio.run(ask())
    assert told(records) == batches(3, 11, 20)


def test_without_a_file_for_its_socket_an_engine_counts_as_silent_for_now(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines(honest(0, 20))
    sequencer = held(ANCHOR)
    failures = 1

    async def emit(emitted: Sequence[SequencedRecord]) -> None: ...

    async def ask() -> None:
        replayer = Replayer(idle_s=0.5)
        make = replayer._context.socket

        def socket(kind: int) -> object:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise zmq.ZMQError(errno.EMFILE)
            return make(kind)

        monkeypatch.setattr(replayer._context, "socket", socket)
        assert (
            await replayer.repair(sequencer[KEY], ReplaySocket(engine.endpoint), emit)
        ).doubt is None
        replayer.close()

    asyncio.run(ask())
    assert engine.asked == [PROBE, 10, 20]


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "too late"])
def test_a_lookup_that_fails_when_nobody_waits_any_longer_is_no_unexpected_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_cancelled: bool
) -> None:
    looked_up: list[Future[list[str]]] = [Future()]
    monkeypatch.setattr(LOOKUPS, "look_up", lambda _: looked_up[0])

    async def scenario() -> None:
        replayer = Replayer(idle_s=60.0 if is_cancelled else 0.05)
        waiting = asyncio.create_task(replayer._address("tcp://engine:5557", 0))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled else TimeoutError):
            await waiting
        looked_up.pop().set_exception(OSError("no such name"))
        await asyncio.sleep(0)
        replayer.close()

    asyncio.run(scenario())
    gc.collect()  # asyncio tells where the future is dropped
    assert caplog.records == []
