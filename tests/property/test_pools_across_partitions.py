"""Engines in several partitions, and a pool that is a publisher in each: a replica answers from the
rows of all of them what the pool and the engines hold.
"""

from collections import Counter, defaultdict
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks, encode_events
from schemas.identities import Medium, StreamKey
from streams.kernel import Kernel, open_kernel
from streams.table.rows.loader import net
from tests.building import BLOCK, SCOPE, prefix_hashes, u32s, u64s

PARTITIONS = 3
ENGINES = ("a", "b", "c", "d")  # engine n is in partition n % PARTITIONS
READS: dict[str, list[str]] = {"b": ["a", "pool"], "c": ["pool#0"], "d": []}  # "a" reads all
BLOCKS = 4
SEED = 1337


class Step(NamedTuple):
    """`who` does it: an engine by its number, or the pool; `shard`: which object of the block."""

    who: int
    what: str
    block: int
    shard: int = 0


POOL = len(ENGINES)

steps = st.lists(
    st.one_of(
        st.builds(
            Step,
            st.integers(0, POOL - 1),
            st.sampled_from(("store", "store", "remove", "clear")),
            st.integers(0, BLOCKS - 1),
        ),
        st.builds(
            Step,
            st.just(POOL),
            st.sampled_from(("store", "store", "store", "remove", "clear")),
            st.integers(0, BLOCKS - 1),
            st.integers(0, 1),
        ),
    ),
    max_size=40,
)


def tokens_of(block: int) -> list[int]:
    """All blocks are first ones: which prefix they end is no matter here."""
    return [10 * block + place for place in range(BLOCK)]


def event_of(step: Step) -> BlockEvent:
    if step.what == "clear":
        return ClearedBlocks(sequence=1)
    hashes: Any = u64s([step.block + 1])
    if step.who != POOL:
        if step.what == "remove":
            return RemovedBlocks(sequence=1, hashes=hashes)
        tokens = u32s(tokens_of(step.block))
        return StoredBlocks(sequence=1, hashes=hashes, tokens=tokens, block_size=BLOCK)
    key = u64s([100 + 10 * step.block + step.shard])
    if step.what == "remove":
        return RemovedBlocks(sequence=1, hashes=key, medium=Medium.CPU, shared=True)
    return StoredBlocks(
        sequence=1, hashes=key, aliases=hashes, block_size=BLOCK, medium=Medium.CPU, shared=True
    )


class Naive:
    """What everybody holds, and in which partitions an object's block is known."""

    def __init__(self) -> None:
        self.engines: list[Counter[int]] = [Counter() for _ in ENGINES]
        self.objects: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        self.stored: set[tuple[int, int]] = set()

    def do(self, step: Step) -> None:
        if step.who == POOL:
            self._pool(step)
            return
        held = self.engines[step.who]
        if step.what == "clear":
            held.clear()
        elif step.what == "remove":
            held[step.block] = max(held[step.block] - 1, 0)
        else:
            held[step.block] += 1
            for name in self.stored:
                if name[0] == step.block:
                    self.objects[name].add(step.who % PARTITIONS)

    def _pool(self, step: Step) -> None:
        name = step.block, step.shard
        if step.what == "clear":
            self.stored.clear()
            self.objects.clear()
        elif step.what == "remove":
            self.stored.discard(name)
            self.objects.pop(name, None)
        elif name not in self.stored:
            self.stored.add(name)
            self.objects[name] = {
                number % PARTITIONS for number, held in enumerate(self.engines) if held[step.block]
            }

    def is_in_pool(self, block: int) -> bool:
        return any(places for name, places in self.objects.items() if name[0] == block)


class Worker:
    """Folds one partition."""

    def __init__(self, partition: int) -> None:
        self.kernel: Kernel = open_kernel(SEED)
        self.handles = {
            name: self.kernel.open_publisher(stream_of(name), 0)
            for name in (*ENGINES[partition::PARTITIONS], f"pool#{partition}")
        }
        for name, handle in self.handles.items():
            self.kernel.register(handle, "", not name.startswith("pool"))

    def apply(self, name: str, event: BlockEvent) -> None:
        self.kernel.apply(self.handles[name], encode_events([event]), -1)


def stream_of(name: str) -> StreamKey:
    return StreamKey(SCOPE.tenant_id, SCOPE.model_name, BLOCK, SCOPE.additional_salt, name)


def replica_of(workers: list[Worker]) -> Kernel:
    """From the rows of all partitions, in any order of these."""
    kernel = open_kernel(SEED)
    for name in ENGINES:
        kernel.register(kernel.open_publisher(stream_of(name), 0), "", True, False, READS.get(name))
    for partition in range(PARTITIONS):
        member = kernel.open_publisher(stream_of(f"pool#{partition}"), 0)
        kernel.register(member, "", False, False, None, "pool")
    for worker in reversed(workers):
        for context, changes in worker.kernel.take_changes():
            kernel.load(context, net(changes))
    return kernel


@settings(max_examples=200)
@given(steps)
def test_what_a_replica_answers_is_what_the_pool_and_the_engines_hold(history: list[Step]) -> None:
    workers = [Worker(partition) for partition in range(PARTITIONS)]
    naive = Naive()
    for step in history:
        naive.do(step)
        event = event_of(step)
        if step.who == POOL:
            for partition, worker in enumerate(workers):
                worker.apply(f"pool#{partition}", event)
        else:
            workers[step.who % PARTITIONS].apply(ENGINES[step.who], event)
    replica = replica_of(workers)
    for block in range(BLOCKS):
        hashes = u64s(prefix_hashes(tokens_of(block)))
        found = {one.instance_id: one for one in replica.query_by_hash(SCOPE, hashes, None)}
        assert found.keys() == set(ENGINES)
        for name, held in zip(ENGINES, naive.engines, strict=True):
            assert found[name].gpu == (BLOCK if held[block] else 0)
            is_read = "pool" in READS.get(name, ["pool"])
            assert found[name].cpu == (BLOCK if is_read and naive.is_in_pool(block) else 0)
