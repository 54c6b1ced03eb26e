"""A large deterministic stream of block events, as fast as a subscriber takes it: for benchmarks.

The whole stream is encoded before it is sent. That makes sending cheap, and costs about 80 bytes of
memory a block of 16 tokens.

The stream is made of chains: `chain_events` stored events in a row, each hanging on the one before.

    stored    only stores
    mixed     stores; from `live_blocks` on each store is preceded by the removal of as many of the
              oldest blocks, so the subscriber's table keeps its size
    removed   stores everything, then removes everything, oldest first
    cleared   stores everything, then clears once for each event that stored

Equal `LoadPlan`s give equal bytes except for the hashes' meaning: they are random numbers, not
hashes, as a follower may not look into them anyway.
"""

import sys
from array import array
from collections import deque
from collections.abc import Iterator
from random import Random
from typing import Final, Literal

import msgspec
import zmq

from lab.engines.publisher import HIGH_WATER_MARK
from lab.engines.wire import (
    GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineEvent,
    EventEncoder,
)

Pattern = Literal["stored", "mixed", "removed", "cleared"]
_TOKEN_BITS: Final = 17  # 131,072 token ids: the size of today's vocabularies


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to publish.

    Attributes:
        blocks: stored in all.
        blocks_per_event: the last event may have fewer.
        events_per_batch: events in one message.
        chain_events: stored events from root to tail of one prompt.
        live_blocks: of the pattern `mixed`.
        lora_names: adapters that chains name in turn; 0 for none.
        clear_every: stored events between two clears; 0 for none.
        sequence_step: from one message to the next; above 1 each has a gap before it.
    """

    blocks: int = 1_000_000
    blocks_per_event: int = 64
    block_size: int = 16
    events_per_batch: int = 1
    chain_events: int = 8
    pattern: Pattern = "stored"
    live_blocks: int = 100_000
    lora_names: int = 0
    clear_every: int = 0
    sequence_step: int = 1
    seed: int = 0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The encoded stream: one payload a batch; `events` and block counts are over all of them."""

    payloads: list[bytes]
    events: int
    stored_blocks: int
    removed_blocks: int


def plan_events(plan: LoadPlan) -> Iterator[EngineEvent]:
    """The events of a plan, in order."""
    random = Random(plan.seed)
    stored: deque[list[int]] = deque()
    live = 0
    parent: int | None = None
    names: list[str | None] = [f"adapter-{one}" for one in range(plan.lora_names)]
    names = names or [None]
    for number, start in enumerate(range(0, plan.blocks, plan.blocks_per_event)):
        count = min(plan.blocks_per_event, plan.blocks - start)
        hashes = array("Q", random.randbytes(8 * count)).tolist()
        if number % plan.chain_events == 0:
            parent = None
        if plan.pattern == "mixed" and live + count > plan.live_blocks and stored:
            live -= len(stored[0])
            yield _removed(stored.popleft())
        yield BlockStored(
            block_hashes=hashes,
            parent_block_hash=parent,
            token_ids=_random_tokens(random, count * plan.block_size),
            block_size=plan.block_size,
            medium=GPU,
            group_idx=0,
            kv_cache_spec_kind="full_attention",
            lora_name=names[number // plan.chain_events % len(names)],
        )
        parent = hashes[-1]
        if plan.clear_every and (number + 1) % plan.clear_every == 0:
            yield AllBlocksCleared()
        if plan.pattern != "stored":
            stored.append(hashes)
            live += count
    if plan.pattern == "removed":
        yield from map(_removed, stored)
    if plan.pattern == "cleared":
        yield from (AllBlocksCleared() for _ in stored)


def encode_load(plan: LoadPlan) -> Load:
    """The whole stream, ready to be sent. O(blocks) time and memory.

    Raises:
        ValueError: a count of the plan is below 1.
    """
    counts = (plan.blocks, plan.blocks_per_event, plan.block_size, plan.events_per_batch)
    if min(*counts, plan.chain_events) < 1:
        raise ValueError(f"Expected counts of 1 or more, got: {plan}")
    encoder = EventEncoder()
    payloads: list[bytes] = []
    batch: list[EngineEvent] = []
    events = stored = removed = 0

    def finish_batch() -> None:
        timestamp_s = 1_700_000_000.0 + len(payloads) / 1000
        payloads.append(encoder.encode(batch, timestamp_s=timestamp_s, dp_rank=0))
        batch.clear()

    for event in plan_events(plan):
        events += 1
        stored += len(event.block_hashes) if isinstance(event, BlockStored) else 0
        removed += len(event.block_hashes) if isinstance(event, BlockRemoved) else 0
        batch.append(event)
        if len(batch) == plan.events_per_batch:
            finish_batch()
    if batch:
        finish_batch()
    return Load(payloads=payloads, events=events, stored_blocks=stored, removed_blocks=removed)


class LoadPublisher:
    """Sends loads from one socket; sequences continue from load to load.

    Unlike an engine it does not drop where the subscriber is slow: it waits, so that what is
    measured is the subscriber.
    """

    def __init__(self, *, high_water_mark: int = HIGH_WATER_MARK) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._socket.set_hwm(high_water_mark)
        self._socket.set(zmq.XPUB_NODROP, 1)
        self._socket.bind("tcp://127.0.0.1:0")
        self.endpoint = self._socket.get_string(zmq.LAST_ENDPOINT)
        self._sequence = 0

    def wait_for_subscriber(self, timeout_s: float) -> bool:
        """Waits for one more; False when none came in time."""
        if not self._socket.poll(int(timeout_s * 1000)):
            return False
        return self._socket.recv()[:1] == b"\x01"

    def send(self, load: Load) -> None:
        """Sends it all, as fast as it can."""
        for payload in load.payloads:
            self._socket.send_multipart((b"", self._sequence.to_bytes(8, "big"), payload))
            self._sequence += 1

    def close(self, linger_s: float = 5.0) -> None:
        """Close; what is queued has `linger_s` to reach the subscriber."""
        self._socket.close(linger=int(linger_s * 1000))
        self._context.term()


def _removed(hashes: list[int]) -> BlockRemoved:
    return BlockRemoved(block_hashes=hashes[::-1], medium=GPU, group_idx=0)


def _random_tokens(random: Random, count: int) -> list[int]:
    # One big number is masked instead of each token: this is most of the time of making a load.
    mask = int.from_bytes(((1 << _TOKEN_BITS) - 1).to_bytes(4, "little") * count, "little")
    bits = random.getrandbits(32 * count) & mask
    tokens = array("I", bits.to_bytes(4 * count, "little"))
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tolist()
