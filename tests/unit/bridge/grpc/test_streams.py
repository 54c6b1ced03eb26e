"""A publisher that streams is followed: resumed, begun again, taken from a snapshot, bounded."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import grpc
import pytest

from bridge.grpc.bounds import (
    STREAM_BYTES_MAX,
    STREAM_RETRY_MAX_S,
    STREAM_RETRY_S,
    WHOLE_AGAIN_S,
)
from bridge.grpc.connection import StreamPauses
from bridge.grpc.messages import openengine_events_pb2 as openengine_pb
from bridge.grpc.messages import smg_events_pb2 as pb
from bridge.publisher.anchor import NO_ANCHOR, Anchor
from bridge.publisher.publisher import Publisher
from bridge.pump import Pump
from bridge.wire.drop_reasons import DropReason
from devtools.broker import free_ports
from schemas.answer_states import Doubt
from schemas.clock import REAL_CLOCK
from schemas.identities import Offset, PublisherKey
from schemas.positions import Cursor
from schemas.records import EventsRecord, GapRecord, LogRecord, ResetRecord, encode_record
from schemas.registration import SGLANG, Registration
from schemas.routing_records import LoadSample
from streams.kernel import open_kernel
from streams.table.fold import Fold
from tests.proxy import Proxy
from tests.unit.bridge.grpc.streams import StreamServer, message_of, registration
from tests.unit.bridge.pump_bench import FakeSink


def batch(number: int, *events: pb.KvCacheEvent, rank: int | None = 0, time: float = 0.0) -> bytes:
    """As a servicer sends it; its time hangs on its number, where none is given."""
    envelope = pb.KvEventEnvelope(sequence_number=number, dp_rank=rank)
    body = pb.KvEventBatch(timestamp=time or 1_700_000_000.0 + number, events=events)
    return envelope.SerializeToString() + body.SerializeToString()


def stored(block: int, parent: int | None = None) -> pb.KvCacheEvent:
    one = pb.KvBlock(block_hash=block, token_ids=[block] * 4, block_size=4)
    return pb.KvCacheEvent(stored=pb.KvBlocksStored(blocks=[one], parent_block_hash=parent))


def cleared() -> pb.KvCacheEvent:
    return pb.KvCacheEvent(cleared=pb.KvCacheCleared())


def chunk(number: int, part: int, parts: int, *events: pb.KvCacheEvent, unknown: int = 0) -> bytes:
    mark = pb.KvSnapshotChunk(index=part, count=parts, unknown_before=unknown)
    envelope = pb.KvEventEnvelope(sequence_number=number, snapshot=mark)
    body = pb.KvEventBatch(timestamp=1_800_000_000.0, events=events)
    return envelope.SerializeToString() + body.SerializeToString()


def scenario(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """A test that runs on a loop of its own."""

    @wraps(test)
    def run(*args: object, **fixtures: object) -> None:
        asyncio.run(test(*args, **fixtures))

    return run


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 -- by another thread
            await asyncio.sleep(0.01)


class Bench:
    """A server that streams, and a pump that follows it."""

    def __init__(self, pump: Pump, sink: FakeSink, server: StreamServer) -> None:
        self.pump, self.sink, self.server = pump, sink, server
        self.loads: list[LoadSample] = []
        pump.on_load = self.loads.extend

    async def follow(
        self, one: Registration, anchor: Anchor = NO_ANCHOR, *, answers: int = 1
    ) -> Publisher:
        await self.pump.follower.follow(one)
        publisher = self.pump.followed[one.publisher]
        self.pump.follower.begin(publisher, anchor)
        await until(lambda: len(self.server.live) >= answers)
        return publisher

    @property
    def starts(self) -> list[int]:
        """With which numbers the server was asked to begin."""
        requests = map(pb.SubscribeKvEventsRequest.FromString, self.server.requests)
        return [one.start_sequence_number for one in requests]

    def folded(self, key: PublisherKey) -> "Folded":
        """What a log with these records says of the publisher."""
        return Folded(self.sink.records, key)


class Folded:
    def __init__(self, records: Sequence[LogRecord], key: PublisherKey) -> None:
        fold = Fold(open_kernel(1337))
        for offset, record in enumerate(records):
            assert fold.apply(Offset(offset), encode_record(record)) is None
        state = fold.publishers[key]
        self.is_degraded = state.degraded_since is not None
        self.cursor = state.cursor


@asynccontextmanager
async def following(server: StreamServer) -> AsyncIterator[Bench]:
    sink = FakeSink()
    pump = Pump(sink)
    pump.start()
    running = asyncio.create_task(pump.run())
    try:
        yield Bench(pump, sink, server)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await pump.close()
        server.stop()


def numbers(records: Sequence[LogRecord]) -> list[tuple[str, int, int]]:
    found = []
    for one in records:
        if isinstance(one, ResetRecord):
            found.append(("reset", one.incarnation, 0))
        elif isinstance(one, GapRecord):
            found.append((f"gap {one.reason}", one.first_sequence, one.last_sequence))
        elif isinstance(one, EventsRecord):
            found.append(("events", one.first_sequence, one.last_sequence))
    return found


@pytest.fixture
def server() -> StreamServer:
    return StreamServer()


@scenario
async def test_batches_come_and_confirm_the_publisher(server: StreamServer) -> None:
    async with following(server) as bench:
        server.answers = [([batch(0, stored(1)), batch(1, stored(2, 1))], None)]
        one = registration(server.port)
        publisher = await bench.follow(one)
        await until(lambda: publisher.doubted.doubt is None)
        assert bench.starts == [0]
        assert len(bench.sink.told(one.publisher)) == 2
        server.send(batch(2, stored(3, 2)))
        await until(lambda: len(bench.sink.told(one.publisher)) == 3)
        assert not bench.folded(one.publisher).is_degraded


@scenario
async def test_a_stream_goes_on_from_the_last_batch(server: StreamServer) -> None:
    async with following(server) as bench:
        told = [batch(number, stored(number + 1)) for number in range(4)]
        server.answers = [(told[:3], None), (told[2:], None)]
        one = registration(server.port)
        publisher = await bench.follow(one)
        await until(lambda: publisher.doubted.doubt is None)
        server.send(grpc.StatusCode.UNAVAILABLE)
        await until(lambda: publisher.sequencer.stream.cursor.sequence == 3)
        await until(lambda: publisher.doubted.doubt is None)
        assert bench.starts == [0, 1]  # what is behind 1: batch 2 again, and all that came since
        counters = publisher.sequencer.stream.counters
        assert (counters.duplicates, counters.gaps, counters.restarts) == (1, 0, 0)
        assert numbers(bench.sink.records)[-1] == ("events", 3, 3)


@scenario
async def test_a_restart_of_ours_goes_on_from_the_log(server: StreamServer) -> None:
    async with following(server) as bench:
        told = [batch(number, stored(number + 1)) for number in range(8)]
        server.answers = [(told[6:], None)]
        one = registration(server.port)
        anchor = NO_ANCHOR._replace(cursor=Cursor(3, 6), engine_time=1_700_000_006.0)
        publisher = await bench.follow(one, anchor)
        await until(lambda: publisher.doubted.doubt is None)
        assert bench.starts == [5]
        assert publisher.sequencer.stream.cursor == Cursor(3, 7)
        assert numbers(bench.sink.records) == [("events", 7, 7)]


@scenario
async def test_another_process_that_has_come_as_far_is_a_restart(server: StreamServer) -> None:
    async with following(server) as bench:
        other = [batch(number, stored(number + 1), time=1_900_000_000.0) for number in (6, 7)]
        whole = [batch(number, stored(number + 1), time=1_900_000_000.0) for number in range(8)]
        server.answers = [(other, None), (whole, None)]
        one = registration(server.port)
        anchor = NO_ANCHOR._replace(cursor=Cursor(3, 6), engine_time=1_700_000_006.0)
        publisher = await bench.follow(one, anchor, answers=2)
        await until(lambda: publisher.sequencer.stream.cursor == Cursor(5, 7))
        await until(lambda: publisher.doubted.doubt is None)
        assert bench.starts == [5, 0]  # what is missing before 6 is asked for
        assert not publisher.sequencer.stream.degraded
        assert not bench.folded(one.publisher).is_degraded


@pytest.mark.parametrize("code", [grpc.StatusCode.DATA_LOSS, grpc.StatusCode.OUT_OF_RANGE])
@scenario
async def test_a_server_that_cannot_go_on_is_asked_for_all(
    server: StreamServer, code: grpc.StatusCode
) -> None:
    async with following(server) as bench:
        later = [batch(number, stored(number + 7), time=1_800_000_000.0) for number in range(2)]
        server.answers = [([batch(0, stored(1)), batch(1, stored(2, 1))], None), (later, None)]
        one = registration(server.port)
        publisher = await bench.follow(one)
        await until(lambda: publisher.sequencer.stream.cursor.sequence == 1)
        server.send(code)
        await until(lambda: publisher.sequencer.stream.cursor == Cursor(2, 1))
        await until(lambda: publisher.doubted.doubt is None)
        assert bench.starts == [0, 0]
        assert ("reset", 2, 0) in numbers(bench.sink.records)


@scenario
async def test_a_snapshot_takes_the_place_of_all(server: StreamServer) -> None:
    async with following(server) as bench:
        parts = [chunk(98, 0, 2, cleared(), stored(11)), chunk(99, 1, 2, stored(12, 11))]
        server.answers = [([*parts, batch(100, stored(13, 12))], None)]
        one = registration(server.port)
        anchor = NO_ANCHOR._replace(cursor=Cursor(3, 6), engine_time=1_700_000_006.0)
        publisher = await bench.follow(one, anchor)
        await until(lambda: publisher.sequencer.stream.cursor == Cursor(4, 100))
        await until(lambda: publisher.doubted.doubt is None)
        assert numbers(bench.sink.records)[:2] == [("reset", 4, 0), ("gap snapshot", 0, 97)]
        folded = bench.folded(one.publisher)
        assert not folded.is_degraded
        assert publisher.sequencer.stream.counters.lost_batches == 0


@scenario
async def test_a_part_of_a_snapshot_confirms_nothing(server: StreamServer) -> None:
    async with following(server) as bench:
        server.answers = [([chunk(98, 0, 2, cleared(), stored(11))], None)]
        one = registration(server.port)
        publisher = await bench.follow(one)
        await until(lambda: publisher.sequencer.stream.cursor.sequence == 98)
        bench.pump.follower.watch()
        assert publisher.doubted.doubt is not None
        server.send(chunk(99, 1, 2, stored(12, 11)))
        await until(lambda: publisher.doubted.doubt is None)


@scenario
async def test_a_snapshot_that_lacks_something_is_unconfirmed(server: StreamServer) -> None:
    async with following(server) as bench:
        parts = [message_of(f"snapshot_partial_{part}") for part in (0, 1)]
        server.answers = [([*parts, message_of("behind_snapshot")], None)]
        one = registration(server.port)
        publisher = await bench.follow(one)
        await until(lambda: publisher.sequencer.stream.cursor.sequence == 100)
        await until(lambda: publisher.doubted.doubt is Doubt.PARTLY_KNOWN)
        assert not bench.folded(one.publisher).is_degraded
        assert publisher.sequencer.stream.anchor.proof is not None  # and the log says so
        server.send(batch(101, cleared()))
        await until(lambda: publisher.doubted.doubt is None)


@scenario
async def test_what_is_missing_is_taken_from_a_snapshot(server: StreamServer) -> None:
    async with following(server) as bench:
        server.answers = [
            ([batch(0, stored(1)), batch(9, stored(2))], None),
            ([chunk(9, 0, 1, cleared(), stored(1), stored(2)), batch(10, stored(3))], None),
        ]
        one = registration(server.port)
        publisher = await bench.follow(one, answers=2)
        await until(lambda: publisher.sequencer.stream.cursor == Cursor(2, 10))
        await until(lambda: publisher.doubted.doubt is None)
        assert bench.starts == [0, 0]
        assert not bench.folded(one.publisher).is_degraded


@scenario
async def test_a_server_that_keeps_nothing_loses_nothing_by_being_asked(
    server: StreamServer,
) -> None:
    async with following(server) as bench:
        server.answers = [([batch(0, stored(1)), batch(9, stored(2))], None)]
        one = registration(server.port)
        publisher = await bench.follow(one, answers=2)
        later = batch(10, stored(3))
        server.live[1].put(later)  # a call that is new has what is published from now on
        server.live[0].put(later)
        await until(lambda: publisher.sequencer.stream.cursor.sequence == 10)
        assert publisher.sequencer.stream.links.last == 1
        assert publisher.sequencer.stream.degraded
        server.live[0].put(batch(11, cleared()))
        await until(lambda: publisher.doubted.doubt is None)


@scenario
async def test_ranks_come_in_one_stream_each_by_its_numbers(server: StreamServer) -> None:
    async with following(server) as bench:
        told = [batch(0, stored(1)), batch(7, stored(2), rank=1), batch(1, stored(3), rank=0)]
        server.answers = [(told, None), (told, None)]
        zero, one = (registration(server.port, dp_rank=rank) for rank in (0, 1))
        first, second = await bench.follow(zero), await bench.follow(one, answers=2)
        await until(lambda: first.sequencer.stream.cursor.sequence == 1)
        await until(lambda: second.sequencer.stream.cursor.sequence == 7)
        assert first.sequencer.stream.counters.gaps == 0
        assert len(bench.sink.told(zero.publisher)) == 2


@scenario
async def test_load_comes_with_the_stream(server: StreamServer) -> None:
    async with following(server) as bench:
        server.answers = [([message_of("load_alone")], None)]
        publisher = await bench.follow(registration(server.port))
        await until(lambda: bool(bench.loads))
        assert bench.loads[0].target == ("default", "w-1", 0)
        assert (bench.loads[0].running, bench.loads[0].waiting) == (3, 2)
        assert (bench.loads[0].prefill_tokens, bench.loads[0].kv_capacity_tokens) == (512, 4096)
        assert publisher.sequencer.stream.counters.messages == 0


@scenario
async def test_a_message_above_the_bound_costs_a_gap(server: StreamServer) -> None:
    async with following(server) as bench:
        large = batch(1) + b"\xfa\x7f\x80\x80\x80\x08" + bytes(STREAM_BYTES_MAX)
        server.answers = [([batch(0, stored(1)), large], None), ([batch(2, stored(2))], None)]
        one = registration(server.port)
        publisher = await bench.follow(one, answers=2)
        await until(lambda: publisher.sequencer.stream.cursor.sequence == 2)
        assert bench.starts[:2] == [0, 1]  # behind the one that is too large
        assert publisher.sequencer.stream.counters.lost_batches == 1


@scenario
async def test_what_is_no_message_is_counted_and_doubted(server: StreamServer) -> None:
    async with following(server) as bench:
        server.answers = [([batch(0, stored(1)), b"\xff\xff\xff"], None)]
        publisher = await bench.follow(registration(server.port))
        dropped = publisher.sequencer.stream.counters.dropped
        await until(lambda: dropped[DropReason.SEQUENCE_LENGTH] == 1)
        await until(lambda: publisher.doubted.doubt is Doubt.UNREADABLE)


@scenario
async def test_a_server_without_streams_says_why_there_is_none() -> None:
    server = StreamServer(service="some.Other")
    async with following(server) as bench:
        one = registration(server.port, kind=SGLANG)
        await bench.follow(one, answers=0)
        receiver = bench.pump.engines.receiver
        await until(lambda: "streams no KV-cache events" in receiver.trouble(one.publisher))
        await until(lambda: not receiver.connected(one.publisher))


@scenario
async def test_a_server_that_streams_nothing_may_say_where_its_engine_publishes() -> None:
    place = openengine_pb.KvEndpoint(host="10.0.0.8", port=5558)
    source = openengine_pb.KvEventSource(
        transport="zmq",
        endpoint_addr=place,
        replay_endpoint="tcp://10.0.0.8:6558",
        data_parallel_rank=1,
    )
    answer = openengine_pb.GetKvEventSourcesResponse(sources=[source]).SerializeToString()
    server = StreamServer("openengine.v1.Control", streams=False, sources=answer)
    async with following(server) as bench:
        one = registration(server.port, kind=SGLANG, dp_rank=1)
        await bench.follow(one, answers=0)
        said = "publishes at tcp://10.0.0.8:5558 and replays at tcp://10.0.0.8:6558: register that"
        await until(lambda: said in bench.pump.engines.receiver.trouble(one.publisher))


@scenario
async def test_a_stream_of_another_rank_alone_is_told(server: StreamServer) -> None:
    async with following(server) as bench:
        server.answers = [([batch(0, stored(1), rank=3)], None)]
        one = registration(server.port)
        publisher = await bench.follow(one)
        receiver = bench.pump.engines.receiver
        await until(
            lambda: "batches of rank 3, and none of rank 0" in receiver.trouble(one.publisher)
        )
        assert publisher.doubted.doubt is not None
        server.send(batch(0, stored(1)))
        await until(lambda: not receiver.trouble(one.publisher))


@scenario
async def test_openengine_is_found_where_the_engines_own_is_not() -> None:
    server = StreamServer(service="openengine.v1.Control")
    async with following(server) as bench:
        messages = [message_of("stored", "openengine-2185e342")]
        server.answers = [(messages, None)]
        one = registration(server.port, kind=SGLANG, dp_rank=1)
        publisher = await bench.follow(one)
        await until(lambda: publisher.sequencer.stream.cursor.sequence == 4)


@scenario
async def test_a_server_that_is_gone_is_found_again(server: StreamServer) -> None:
    async with following(server) as bench:
        server.answers = [([batch(0, stored(1))], None)]
        publisher = await bench.follow(registration(server.port))
        await until(lambda: publisher.doubted.doubt is None)
        server.stop()
        await until(lambda: publisher.doubted.doubt is Doubt.LINK_DOWN)
        again = StreamServer(port=server.port)
        again.answers = [([batch(0, stored(5), time=1_800_000_000.0)], None)]
        try:
            await until(lambda: publisher.sequencer.stream.cursor == Cursor(2, 0))
            await until(lambda: publisher.doubted.doubt is None)
        finally:
            again.stop()


@scenario
async def test_what_comes_from_before_confirms_nothing_until_it_has_all_come(
    server: StreamServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.grpc.connection.STREAM_CAUGHT_UP_S", 3600.0)
    async with following(server) as bench:
        server.answers = [([batch(number, stored(number + 1)) for number in range(9)], None)]
        publisher = await bench.follow(registration(server.port))
        await until(lambda: publisher.sequencer.stream.cursor.sequence == 8)
        bench.pump.follower.watch()
        assert publisher.doubted.doubt is not None
        server.send(batch(9, stored(10), time=REAL_CLOCK.unix()))
        await until(lambda: publisher.doubted.doubt is None)


@scenario
async def test_a_publisher_that_is_left_streams_no_more(server: StreamServer) -> None:
    async with following(server) as bench:
        one = registration(server.port)
        publisher = await bench.follow(one)
        await bench.pump.follower.unfollow(publisher)
        assert not bench.pump.engines.receiver.connected(one.publisher)
        await until(lambda: server.ended == 1)


@scenario
async def test_all_is_asked_for_once_while_nothing_has_come_of_it(
    server: StreamServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.grpc.connection.WHOLE_AGAIN_S", 0.0)
    async with following(server) as bench:
        server.answers = [([batch(0, stored(1)), batch(9, stored(2))], None)]
        one = registration(server.port)
        await bench.follow(one, answers=2)  # of the second nothing comes: its engine is quiet
        streams = bench.pump.engines.streams
        assert streams is not None
        for _ in range(20):
            streams.ask_whole(one.publisher)
        asking = [one for one in threading.enumerate() if one.name == "reprise-stream-whole"]
        assert len(asking) == 1
        server.live[1].put(batch(10, stored(3)))  # it is not whole: the next one may be asked for
        await until(lambda: not asking[0].is_alive())
        streams.ask_whole(one.publisher)
        await until(lambda: len(server.live) == 3)


@scenario
async def test_a_server_that_has_no_room_for_a_stream_costs_no_batch(server: StreamServer) -> None:
    async with following(server) as bench:
        told = [batch(number, stored(number + 1)) for number in range(4)]
        full = grpc.StatusCode.RESOURCE_EXHAUSTED
        server.answers = [(told, full), ([], full), ([], full)]
        one = registration(server.port)
        await bench.follow(one, answers=4)
        assert bench.starts == [0, 2, 2, 2]


@scenario
async def test_a_server_that_fails_again_and_again_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = StreamServer(service="openengine.v1.Control")
    async with following(server) as bench:
        error = openengine_pb.KvEventEnvelope(error={"message": "no events today"})
        server.answers = [([error.SerializeToString()], grpc.StatusCode.UNAVAILABLE)] * 4
        await bench.follow(registration(server.port, kind=SGLANG), answers=4)
        said = [one for one in caplog.messages if "no events today" in one]
        assert len(said) == 1


class MuteServer(StreamServer):
    """Takes the first call, and never says so."""

    def _stream(self, request: bytes, context: Any) -> Iterator[bytes]:
        if not self.requests:
            self.requests.append(request)
            ended = threading.Event()
            context.add_callback(ended.set)
            ended.wait()
            return
        yield from super()._stream(request, context)


@scenario
async def test_a_server_that_is_gone_before_it_has_taken_a_stream_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.grpc.connection.STREAM_DEAD_S", 0.2)
    server, proxy = MuteServer(), Proxy(*free_ports(1))
    proxy.start(f"127.0.0.1:{server.port}")
    async with following(server) as bench:
        try:
            server.answers = [([batch(0, stored(1))], None)]
            publisher = await bench.follow(registration(proxy.port), answers=0)
            await until(lambda: len(server.requests) == 1)
            proxy.freeze()  # as where its host has lost power: no connection ends
            await until(lambda: proxy.connections > 1)
            proxy.heal()
            await until(lambda: publisher.doubted.doubt is None)
        finally:
            proxy.close()


def test_pauses_grow_while_nothing_comes() -> None:
    pauses = StreamPauses()
    found = [pauses.after(0.0, has_brought=False, asks_whole=True) for _ in range(9)]
    assert found[0] == 2 * STREAM_RETRY_S
    assert found[-1] == STREAM_RETRY_MAX_S
    assert pauses.after(0.0, has_brought=True, asks_whole=False) == STREAM_RETRY_S


def test_all_that_there_is_is_not_written_again_and_again() -> None:
    pauses = StreamPauses()
    found = [pauses.after(0.1, has_brought=True, asks_whole=True) for _ in range(12)]
    assert found[0] == 2 * STREAM_RETRY_S
    assert found[-1] == WHOLE_AGAIN_S
    pauses.after(WHOLE_AGAIN_S, has_brought=True, asks_whole=False)
    assert pauses.after(0.1, has_brought=True, asks_whole=True) == 2 * STREAM_RETRY_S


@scenario
async def test_a_snapshot_that_its_server_ends_behind_is_asked_for_less_and_less_often(
    server: StreamServer,
) -> None:
    pauses: list[float] = []
    after = StreamPauses.after

    def noted(self: StreamPauses, lasted_s: float, **said: bool) -> float:
        pauses.append(after(self, lasted_s, **said))
        return pauses[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StreamPauses, "after", noted)
        async with following(server) as bench:
            part = chunk(98, 0, 1, cleared(), stored(11))
            server.answers = [([part], grpc.StatusCode.UNAVAILABLE)] * 3
            await bench.follow(registration(server.port), answers=3)
            assert pauses[:2] == [2 * STREAM_RETRY_S, 4 * STREAM_RETRY_S]
