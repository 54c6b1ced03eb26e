"""A server of LMCache's multi-process mode streams: its records are batches under their numbers,
what it has lost is told, and another process of it begins anew.
"""

import random

import grpc
import pytest

from bridge.grpc.lmcache import LMCACHE_PAGE, LmcacheCalls
from bridge.grpc.messages import lmcache_events_pb2 as pb
from bridge.grpc.shapes import SUBMESSAGES_MAX
from bridge.grpc.streamed import UNREADABLE, StreamedMessage, StreamEnd
from bridge.publisher.anchor import NO_ANCHOR
from bridge.publisher.publisher import Publisher
from bridge.wire import open_source
from bridge.wire.drop_reasons import DropReason
from bridge.wire.stream_marks import WholeMark, topic_of
from lmcache_adapter.wire.chunk_names import chunk_names
from schemas.answer_states import Doubt
from schemas.arrays import PythonArrayPacker
from schemas.events import ClearedBlocks, RemovedBlocks, StoredBlocks
from schemas.identities import Medium
from schemas.positions import Cursor
from schemas.registration import LMCACHE_TOPIC, Registration
from tests.unit.bridge.grpc.streams import StreamServer, registration, streamed
from tests.unit.bridge.grpc.test_streams import Bench, following, numbers, scenario, until

SERVICE = "lmcache.mp.KVEventService"
BORN = 1_764_000_000_000_000_000
LATER = BORN + 1_000_000_000


def chunk(number: int) -> bytes:
    return number.to_bytes(32, "big")


def stored(seq: int) -> pb.KVEventRecord:
    """With the tokens of a chunk of 4, packed as varints of one to three bytes."""
    tokens = b"\x05\xac\x02\x80\x80\x08\x7f"
    return pb.KVEventRecord(
        seq=seq, kind="stored", medium="CPU", block_hashes=[chunk(seq)], token_ids=tokens
    )


def removed(seq: int, *chunks: int) -> pb.KVEventRecord:
    return pb.KVEventRecord(
        seq=seq, kind="removed", medium="CPU", block_hashes=list(map(chunk, chunks))
    )


def page(
    *events: pb.KVEventRecord,
    up_to: int | None = None,
    lost: bool = False,
    born: int = BORN,
    enabled: bool = True,
) -> bytes:
    last = events[-1].seq if events else 0
    return pb.KVEventBatch(
        enabled=enabled,
        incarnation=born,
        next_cursor=last if up_to is None else up_to,
        lost=lost,
        events=events,
    ).SerializeToString()


def lmcache(port: int = 1) -> Registration:
    return registration(port, kind=LMCACHE_TOPIC)


def places(found: "list[StreamedMessage]") -> list[tuple[int | None, int]]:
    return [(one.number, one.skipped) for one in found]


def read(
    *pages: bytes, first: int | None = None, calls: LmcacheCalls | None = None
) -> list[StreamedMessage]:
    call = (calls or LmcacheCalls(lmcache())).begin(first)
    return [one for message in pages for one in call.read(message)]


def request_of(encoded: bytes) -> pb.SubscribeKvEventsRequest:
    return pb.SubscribeKvEventsRequest.FromString(encoded)


# What a message says


def test_each_call_is_of_an_instance_that_no_worker_is() -> None:
    calls = LmcacheCalls(lmcache())
    asked = [request_of(calls.begin(first).request) for first in (None, 7)]
    assert [(one.cursor, one.model_name, one.max_events) for one in asked] == [
        (0, "m", LMCACHE_PAGE),
        (7, "m", LMCACHE_PAGE),
    ]
    assert all(one.instance_id < 0 for one in asked)
    assert asked[0].instance_id != asked[1].instance_id


def test_records_are_batches_under_their_numbers() -> None:
    found = read(page(stored(1), removed(2, 1, 9)))
    assert places(found) == [(0, 0), (1, 0)]
    assert [one.is_latest for one in found] == [False, True]
    source = open_source(lmcache(), PythonArrayPacker())
    batches = [source.decode([b"", bytes(8), one.payload]) for one in found]
    ((store,), (removal,)) = (batch.events for batch in batches)
    assert isinstance(store, StoredBlocks)
    assert (store.hashes, store.block_size) == ((1).to_bytes(8, "little"), 4)
    assert (store.medium, store.by_hash) == (Medium.CPU, True)
    assert isinstance(removal, RemovedBlocks)
    assert removal.hashes == (1).to_bytes(8, "little") + (9).to_bytes(8, "little")
    assert [batch.engine_time for batch in batches] == [float(BORN)] * 2


def test_records_of_other_models_are_skipped() -> None:
    found = read(page(stored(3), up_to=5), page(up_to=5), page(stored(9), stored(10)))
    assert places(found) == [(2, 2), (None, 0), (8, 5), (9, 0)]
    assert found[0].is_first


def test_what_is_lost_on_the_way_is_told_where_it_is_missing() -> None:
    found = read(page(stored(1)), page(stored(7), lost=True), page(lost=True, up_to=8))
    assert places(found) == [(0, 0), (5, 0), (6, 0), (7, 0)]
    source = open_source(lmcache(), PythonArrayPacker())
    dropped = [source.decode([b"", bytes(8), one.payload]).dropped for one in found]
    assert [[error.reason for error in one] for one in dropped] == [
        [],
        [DropReason.EVENTS_MISSING],
        [],
        [DropReason.EVENTS_MISSING],
    ]


def test_a_log_that_no_longer_begins_at_its_beginning_is_marked() -> None:
    (beginning, first) = read(page(stored(7), lost=True))
    assert (beginning.number, beginning.mark) == (5, WholeMark(0, 1, 6))
    assert places([first]) == [(6, 0)]
    source = open_source(lmcache(), PythonArrayPacker())
    batch = source.decode([topic_of(beginning.mark, 0), bytes(8), beginning.payload])
    assert batch.events == [ClearedBlocks(sequence=0)]


@pytest.mark.parametrize(
    "answer",
    [page(up_to=3, lost=True), page(up_to=4, lost=True), page(stored(9), lost=True)],
    ids=["a shorter log", "as long but for the last", "who knows whose"],
)
def test_a_batch_that_a_server_does_not_have_is_of_another_process(answer: bytes) -> None:
    assert read(answer, first=4) == [StreamedMessage(end=StreamEnd.WHOLE)]


def test_another_process_is_told_by_its_incarnation() -> None:
    calls = LmcacheCalls(lmcache())
    read(page(stored(1), stored(2)), calls=calls)
    same = page(stored(2), stored(3))
    assert places(read(same, first=1, calls=calls)) == [(1, 0), (2, 0)]
    assert places(read(page(stored(9), lost=True), first=1, calls=calls)) == [(7, 0), (8, 0)]
    other = page(stored(2), stored(3), born=BORN + 1)
    assert read(other, first=1, calls=calls) == [StreamedMessage(end=StreamEnd.WHOLE)]


def test_a_call_that_is_to_bring_all_ends_where_something_is_lost() -> None:
    call = LmcacheCalls(lmcache()).begin(None, only_whole=True)
    assert list(call.read(page(stored(7), lost=True))) == [StreamedMessage(end=StreamEnd.AGAIN)]


def test_a_server_that_records_nothing_says_what_to_do() -> None:
    (found,) = read(page(enabled=False))
    assert found.end is StreamEnd.REFUSED
    assert "--kv-event-log-size above 0" in found.error


def test_what_its_own_code_streamed_is_read() -> None:
    """The same chunks are named as its coordinator is told of them."""
    told = {one.case: one.message for one in streamed("lmcache-0.5.7rc2")}
    assert read(told["empty"]) == [StreamedMessage(is_latest=True)]
    assert read(told["ahead"], first=998) == [StreamedMessage(end=StreamEnd.WHOLE)]
    assert read(told["disabled"])[0].end is StreamEnd.REFUSED
    found = read(*(told[case] for case in ("stored", "removed", "lost")))
    assert places(found) == [(0, 0), (1, 0), (3, 1), (9, 0)]
    assert places(read(told["stored_behind_lost"])) == [(9, 0), (10, 0)]
    source = open_source(lmcache(), PythonArrayPacker())
    batches = [source.decode([b"", bytes(8), one.payload]) for one in found]
    names = [name[-8:][::-1] for name in chunk_names(range(1000, 1008), 4)]
    for event, name in zip((batches[0].events[0], batches[1].events[0]), names, strict=True):
        assert isinstance(event, StoredBlocks)
        assert (event.hashes, event.block_size, event.medium) == (name, 4, Medium.CPU)
    (removal,) = batches[2].events
    assert isinstance(removal, RemovedBlocks)
    assert removal.hashes == b"".join(names)
    assert [one.reason for one in batches[3].dropped] == [DropReason.EVENTS_MISSING]


# Hostile bytes


@pytest.mark.parametrize(
    "message",
    [
        page(stored(2), stored(2)),
        page(stored(3), up_to=2),
        page(stored(1), born=-1),
        page(stored(1), up_to=2**63 - 1) + b"\xff",
    ],
)
def test_what_cannot_be_is_counted_and_what_it_had_is_missing(message: bytes) -> None:
    found = read(message, page(stored(1), stored(2)), page(stored(5)))
    assert found[0] == UNREADABLE
    assert places(found[1:]) == [(0, 0), (1, 0), (4, 2)]
    found = read(page(stored(1)), message, page(stored(5)))
    assert found[1] == UNREADABLE
    assert places(found[2:]) == [(3, 0), (4, 0)]


def test_no_bytes_raise_an_error(seed: int) -> None:
    chance = random.Random(seed)
    told = [page(stored(1), removed(4, 1, 2)), page(lost=True, up_to=9), page(enabled=False)]
    for _ in range(300):
        call = LmcacheCalls(lmcache()).begin(chance.choice([None, 0, 3]))
        for _ in range(3):
            message = bytearray(chance.choice(told))
            for _ in range(chance.randrange(4)):
                if message and chance.random() < 0.8:
                    message[chance.randrange(len(message))] = chance.randrange(256)
                else:
                    del message[chance.randrange(len(message) + 1) :]
            last = -1
            for found in call.read(bytes(message)):
                assert found.skipped >= 0
                if found.number is not None:
                    assert last < found.number
                    last = found.number


def test_a_message_that_would_grow_is_refused_before_it_does() -> None:
    assert read(page() + b"\x2a\x00" * (SUBMESSAGES_MAX + 1)) == [UNREADABLE]


# As it is followed


@pytest.fixture
def server() -> StreamServer:
    return StreamServer(SERVICE)


async def followed(bench: Bench, *, answers: int = 1) -> Publisher:
    return await bench.follow(lmcache(bench.server.port), answers=answers)


@scenario
async def test_its_records_confirm_the_publisher(server: StreamServer) -> None:
    async with following(server) as bench:
        server.answers = [([page(stored(3), up_to=4)], None)]
        publisher = await followed(bench)
        await until(lambda: publisher.doubted.doubt is None)
        server.send(page(stored(9)))
        await until(lambda: publisher.sequencer.stream.cursor == Cursor(1, 8))
        await until(lambda: publisher.doubted.doubt is None)
        counters = publisher.sequencer.stream.counters
        assert (counters.batches, counters.gaps, counters.lost_batches) == (2, 0, 0)
        told = [one for one in numbers(bench.sink.records) if one[0] == "events"]
        assert (told[0][1], told[-1][2]) == (0, 8)
        folded = bench.folded(publisher.key)
        assert (folded.is_degraded, folded.cursor) == (False, Cursor(1, 8))


@scenario
async def test_a_stream_that_its_server_ends_goes_on(server: StreamServer) -> None:
    async with following(server) as bench:
        told = [page(stored(1), stored(2))]
        server.answers = [(told, None), ([page(stored(2), stored(5))], None)]
        publisher = await followed(bench)
        await until(lambda: publisher.doubted.doubt is None)
        server.send(grpc.StatusCode.CANCELLED)
        await until(lambda: publisher.sequencer.stream.cursor == Cursor(1, 4))
        await until(lambda: publisher.doubted.doubt is None)
        assert [request_of(one).cursor for one in server.requests] == [0, 1]
        counters = publisher.sequencer.stream.counters
        assert (counters.duplicates, counters.gaps, counters.restarts) == (1, 0, 0)


@scenario
async def test_its_call_is_pinged(server: StreamServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.grpc.connection.STREAM_PING_S", 0.1)
    async with following(server) as bench:
        server.answers = [([page(stored(1))], None)]
        await followed(bench)
        await until(lambda: len(server.pings) >= 2)
        asked = request_of(server.requests[0]).instance_id
        pinged = [pb.PingRequest.FromString(one).instance_id for one in server.pings]
        assert set(pinged) == {asked}


@scenario
async def test_a_restart_of_ours_goes_on_from_the_log(server: StreamServer) -> None:
    async with following(server) as bench:
        server.answers = [([page(stored(7), stored(8))], None)]
        anchor = NO_ANCHOR._replace(cursor=Cursor(3, 6), engine_time=float(BORN))
        publisher = await bench.follow(lmcache(server.port), anchor)
        await until(lambda: publisher.doubted.doubt is None)
        assert publisher.sequencer.stream.cursor == Cursor(3, 7)
        assert numbers(bench.sink.records) == [("events", 7, 7)]


@scenario
async def test_what_it_has_lost_leaves_it_degraded(server: StreamServer) -> None:
    async with following(server) as bench:
        server.answers = [([page(stored(1))], None), ([page(stored(7), lost=True)], None)]
        publisher = await followed(bench)
        await until(lambda: publisher.doubted.doubt is None)
        server.live[0].put(page(lost=True, up_to=6))
        dropped = publisher.sequencer.stream.counters.dropped
        await until(lambda: dropped[DropReason.EVENTS_MISSING] == 1)
        await until(lambda: server.ended == 1)  # it was asked for all, and has it no more
        assert len(server.live) == 2
        server.live[0].put(page(stored(7)))
        await until(lambda: publisher.sequencer.stream.cursor == Cursor(1, 6))
        assert publisher.sequencer.stream.degraded
        assert bench.folded(publisher.key).is_degraded


@pytest.mark.parametrize(
    "answer",
    [page(up_to=2, lost=True, born=LATER), page(stored(3), born=LATER)],
    ids=["less", "more"],
)
@scenario
async def test_another_process_begins_anew(server: StreamServer, answer: bytes) -> None:
    async with following(server) as bench:
        told, later = [page(stored(1), stored(2), removed(3, 1))], [page(stored(1), born=LATER)]
        server.answers = [(told, None), ([answer], None), (later, None)]
        publisher = await followed(bench)
        await until(lambda: publisher.doubted.doubt is None)
        server.send(grpc.StatusCode.UNAVAILABLE)
        await until(lambda: publisher.sequencer.stream.cursor == Cursor(2, 0))
        await until(lambda: publisher.doubted.doubt is None)
        assert [request_of(one).cursor for one in server.requests] == [0, 2, 0]
        assert not bench.folded(publisher.key).is_degraded


@scenario
async def test_another_process_is_told_after_a_restart_of_ours(server: StreamServer) -> None:
    async with following(server) as bench:
        whole = [page(*map(stored, range(1, 9)), born=LATER)]
        server.answers = [([page(stored(7), stored(8), born=LATER)], None), (whole, None)]
        anchor = NO_ANCHOR._replace(cursor=Cursor(3, 6), engine_time=float(BORN))
        publisher = await bench.follow(lmcache(server.port), anchor, answers=2)
        await until(lambda: publisher.sequencer.stream.cursor == Cursor(5, 7))
        await until(lambda: publisher.doubted.doubt is None)
        assert not bench.folded(publisher.key).is_degraded


@scenario
async def test_a_log_without_its_beginning_is_partly_known(server: StreamServer) -> None:
    async with following(server) as bench:
        server.answers = [([page(stored(7), lost=True)], None)]
        publisher = await followed(bench)
        await until(lambda: publisher.sequencer.stream.cursor.sequence == 6)
        await until(lambda: publisher.doubted.doubt is Doubt.PARTLY_KNOWN)
        assert not bench.folded(publisher.key).is_degraded


@scenario
async def test_a_server_that_records_nothing_is_told(server: StreamServer) -> None:
    async with following(server) as bench:
        server.answers = [([page(enabled=False)], None)]
        publisher = await followed(bench)
        receiver = bench.pump.engines.receiver
        await until(lambda: "records no KV-cache events" in receiver.trouble(publisher.key))
        await until(lambda: publisher.doubted.doubt is Doubt.LINK_DOWN)
