import msgspec
import pytest
import zmq

from lab.engines.wire import AllBlocksCleared, BlockRemoved, BlockStored
from lab.traffic.event_load import LoadPlan, LoadPublisher, encode_load
from tests.unit.lab.demo.stub_service import NaiveFollower
from tests.unit.lab.event_batch import EventBatch

WAIT_MS = 10_000
PLAN = LoadPlan(blocks=1000, blocks_per_event=64, chain_events=4, events_per_batch=3)


def decoded(payloads: list[bytes]) -> list[EventBatch]:
    return [msgspec.msgpack.decode(payload, type=EventBatch) for payload in payloads]


def test_same_plan_gives_the_same_bytes() -> None:
    assert encode_load(PLAN) == encode_load(PLAN)
    other = msgspec.structs.replace(PLAN, seed=1)
    assert encode_load(other).payloads != encode_load(PLAN).payloads


def test_stored_blocks_are_whole_and_chained() -> None:
    load = encode_load(PLAN)
    batches = decoded(load.payloads)
    events = [event for batch in batches for event in batch.events]
    assert (load.stored_blocks, load.removed_blocks, load.events) == (1000, 0, 16)
    assert [len(batch.events) for batch in batches] == [3, 3, 3, 3, 3, 1]
    assert {batch.dp_rank for batch in batches} == {0}
    parent: int | bytes | None = None
    for number, event in enumerate(events):
        assert isinstance(event, BlockStored)
        assert event.parent_block_hash == (parent if number % 4 else None)
        assert len(event.token_ids) == len(event.block_hashes) * 16
        parent = event.block_hashes[-1]
        assert len(event.block_hashes) == (64 if number < 15 else 1000 % 64)


def test_mixed_load_keeps_the_table_at_its_size() -> None:
    plan = msgspec.structs.replace(PLAN, pattern="mixed", live_blocks=256)
    follower = NaiveFollower()
    most = 0
    for batch in decoded(encode_load(plan).payloads):
        for event in batch.events:
            follower.apply(event)
            most = max(most, len(follower.held))
    assert most == 256
    assert 192 < len(follower.held) <= 256


def test_removed_load_leaves_nothing() -> None:
    load = encode_load(msgspec.structs.replace(PLAN, pattern="removed"))
    follower = NaiveFollower()
    for batch in decoded(load.payloads):
        for event in batch.events:
            assert isinstance(event, BlockStored | BlockRemoved)
            follower.apply(event)
    assert load.removed_blocks == load.stored_blocks == 1000
    assert not follower.held


def test_plan_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected counts of 1 or more"):
        encode_load(LoadPlan(blocks_per_event=0))


def test_every_batch_reaches_a_slow_subscriber_across_a_small_queue() -> None:
    load = encode_load(msgspec.structs.replace(PLAN, blocks_per_event=1, events_per_batch=1))
    publisher = LoadPublisher(high_water_mark=10)
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.set(zmq.LINGER, 0)
        subscriber.subscribe(b"")
        subscriber.connect(publisher.endpoint)
        assert publisher.wait_for_subscriber(WAIT_MS / 1000)
        publisher.send(load)
        publisher.send(load)
        for expected in range(2000):
            assert subscriber.poll(WAIT_MS)
            assert int.from_bytes(subscriber.recv_multipart()[1], "big") == expected
        publisher.close()


def test_without_a_subscriber_nothing_is_awaited_for_ever() -> None:
    publisher = LoadPublisher()
    assert not publisher.wait_for_subscriber(0.01)
    publisher.close(0)


def test_adapters_are_named_chain_by_chain_and_cleared_now_and_then() -> None:
    plan = msgspec.structs.replace(PLAN, lora_names=2, clear_every=5)
    load = encode_load(plan)
    kinds = [type(event) for batch in decoded(load.payloads) for event in batch.events]
    assert [at for at, kind in enumerate(kinds) if kind is AllBlocksCleared] == [5, 11, 17]
    stored = [
        event
        for batch in decoded(load.payloads)
        for event in batch.events
        if isinstance(event, BlockStored)
    ]
    assert load.events == len(stored) + 3
    names = [event.lora_name for event in stored]
    assert names == (["adapter-0"] * 4 + ["adapter-1"] * 4) * 2


def test_cleared_load_clears_once_for_each_event_that_stored() -> None:
    load = encode_load(msgspec.structs.replace(PLAN, pattern="cleared"))
    events = [event for batch in decoded(load.payloads) for event in batch.events]
    assert [type(event) for event in events] == [BlockStored] * 16 + [AllBlocksCleared] * 16
