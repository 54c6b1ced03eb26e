"""The Rust kernel equals the reference whatever engines call their blocks.

A block's key stands with the block once, as its first holder calls it, and who calls it otherwise
has a key of its own. So these are publishers that agree in their keys, that disagree, and that do
both; the first holder leaves, comes back under another key, and is hidden while others stay.
"""

import random

import pytest
import xxhash

from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks, encode_events
from schemas.identities import MEDIA, ModelContext, PrefixScope, StreamKey
from streams.kernel import Kernel, native_available, open_kernel
from streams.kernel.interface import ContextDump
from tests.strategies import u32s, u64s

pytestmark = pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")

BLOCK_SIZE = 2
LORA_NAMES = ("", "adapter")
INSTANCES = ("a", "b", "c")
SEED = 7
ENDS = (0, 1, 2, 2**63, 2**64 - 2, 2**64 - 1)
REPEATED = 0x0001_0001_0001_0001

Held = tuple[int, int]
"""A key and a tier."""
Prompt = tuple[int, ...]


class World:
    """Both kernels under random events, and a dump that is gathered beside them."""

    def __init__(self, seed: int, cleared_at_once: int | None) -> None:
        self.random = random.Random(seed)
        rust = open_kernel(seed, name="rust", cleared_at_once=cleared_at_once)
        self.kernels: tuple[Kernel, Kernel] = (rust, open_kernel(seed, name="reference"))
        self.rust = rust
        self.prompts: list[Prompt] = [(0,)]
        self.held: list[dict[Held, None]] = [{} for _ in INSTANCES]
        self.dump: tuple[ModelContext, ContextDump] | None = None
        self.since: list[tuple[ModelContext, bytes]] = []
        # How long a dump takes is by chance: what is drawn for it draws nothing from the events.
        self.of_dumps = random.Random(seed)
        self.dumps = 0
        self.found = 0

    def key(self, instance: int, prompt: Prompt, lora_name: str) -> int:
        """The first two instances agree, the third now and then; some keys are odd ones."""
        named = xxhash.xxh3_64_intdigest(repr((prompt, lora_name)).encode())
        chosen = self.random.random()
        if chosen < 0.02:
            return self.random.choice(ENDS)
        if chosen < 0.1:
            return named % 65_535 * REPEATED
        return named ^ instance if instance == 2 and chosen < 0.6 else named

    def prompt(self) -> Prompt:
        if self.random.random() < 0.7:
            return self.random.choice(self.prompts)
        old = self.random.choice(self.prompts)
        fresh = [self.random.randrange(5000) for _ in range(self.random.randrange(1, 50))]
        prompt = (*old[: self.random.randrange(len(old) + 1)], *fresh)[:150]
        self.prompts.append(prompt)
        return prompt

    def store(self, instance: int) -> BlockEvent:
        prompt = self.prompt()
        lora_name = self.random.choice(LORA_NAMES)
        keys = [self.key(instance, prompt[: i + 1], lora_name) for i in range(len(prompt))]
        start = self.random.choice((0, 0, self.random.randrange(len(prompt))))
        tier = self.random.choice((0, 0, 0, 1, 2, 3, 5))
        by_hash = self.random.random() < 0.2
        if by_hash:  # other keys than those of blocks with tokens
            keys = [key ^ 1 << 40 for key in keys]
        self.held[instance] |= dict.fromkeys((key, tier) for key in keys[start:])
        return StoredBlocks(
            sequence=0,
            hashes=u64s(keys[start:]),
            parent=keys[start - 1] if start else None,
            tokens=b"" if by_hash else tokens_of(prompt[start:]),
            by_hash=by_hash,
            block_size=BLOCK_SIZE,
            medium=MEDIA[tier % 3],
            shared=tier >= 3,
            lora_name=lora_name,
        )

    def remove(self, instance: int, share: float) -> list[BlockEvent]:
        """In random order, from the end, or as stored; some once too often."""
        held = list(self.held[instance])
        self.random.choice((self.random.shuffle, list.reverse, list.copy))(held)
        events: list[BlockEvent] = []
        gone = held[: int(len(held) * share)]
        for key in gone:
            del self.held[instance][key]
        for tier in range(6):
            keys = [key for key, of in gone if of == tier]
            keys += keys[:3]
            if keys:
                medium, shared = MEDIA[tier % 3], tier >= 3
                removed = RemovedBlocks(sequence=0, hashes=u64s(keys), medium=medium, shared=shared)
                events += [removed] if self.random.random() < 0.7 else [removed, removed]
        return events

    def apply(self, instance: int, events: list[BlockEvent]) -> None:
        encoded = encode_events(events)
        stream = StreamKey("default", "m", BLOCK_SIZE, "", INSTANCES[instance])
        for kernel in self.kernels:
            kernel.apply(kernel.open_publisher(stream, 0), encoded, -1)

    def take(self) -> None:
        taken = [sorted(kernel.take_changes()) for kernel in self.kernels]
        assert taken[0] == taken[1]
        self.since += taken[0]

    def gather(self, entries: int) -> None:
        """Some more of a dump; once it is whole, it and the changes since are what there is."""
        if self.dump is None:
            self.take()
            self.since.clear()
            context = self.of_dumps.choice(self.rust.contexts()).context
            self.dump = (context, self.rust.open_dump(context))
        context, dump = self.dump
        if dump.gather(entries) >= entries:
            return
        self.take()
        copy = open_kernel(self.rust.seed, name="rust")
        while chunk := dump.take(1000):
            copy.load(context, chunk)
        for changed, changes in self.since:
            if changed == context:
                copy.load(changed, changes)
        expected = [view for view in self.rust.contexts() if view.context == context]
        assert copy.contexts() == expected
        self.dump = None
        self.dumps += 1

    def check(self) -> None:
        rust, reference = self.kernels
        assert rust.contexts() == reference.contexts()
        assert rust.counters() == reference.counters()
        for prompt in self.random.sample(self.prompts, min(8, len(self.prompts))):
            for lora_name in LORA_NAMES:
                scope = PrefixScope("default", "m", lora_name, BLOCK_SIZE, "")
                asked = scope, tokens_of(prompt), (), None
                assert rust.query(*asked) == reference.query(*asked)
                self.check_names(prompt, lora_name)

    def check_names(self, prompt: Prompt, lora_name: str) -> None:
        """What each instance holds under the names of any, a part of one that is odd included."""
        for instance in range(len(INSTANCES)):
            keys = u64s(
                [self.key(instance, prompt[: i + 1], lora_name) for i in range(len(prompt))]
            )
            rust, reference = (
                one.query_by_engine_hash("default", "m", keys) for one in self.kernels
            )
            assert rust == reference
            self.found += bool(rust)

    def entries(self) -> list[int]:
        """How many each instance has."""
        views = self.rust.contexts()
        return [
            sum(view.entries for view in views if view.context.instance_id == instance)
            for instance in INSTANCES
        ]

    def check_sizes(self) -> None:
        while self.rust.release_left(500):
            pass
        ours, theirs = (kernel.stats() | {"memory_bytes": 0} for kernel in self.kernels)
        assert ours == theirs


def tokens_of(prompt: Prompt) -> bytes:
    return u32s([block + i for block in prompt for i in range(BLOCK_SIZE)])


@pytest.mark.parametrize(("seed", "cleared_at_once"), [(SEED, None), (SEED + 1, 0)])
def test_both_kernels_agree_whatever_blocks_are_called(
    seed: int, cleared_at_once: int | None
) -> None:
    world = World(seed, cleared_at_once)
    most = 0
    for turn in range(180):
        # Tables grow through several splits of their shards, and shrink again, twice.
        is_growing = turn % 90 < 60
        instance = world.random.randrange(len(INSTANCES))
        events: list[BlockEvent] = []
        if is_growing:
            events = [world.store(instance) for _ in range(30)]
        if not is_growing or world.random.random() < 0.3:
            events += world.remove(instance, 0.01 if is_growing else 0.4)
        if world.random.random() < (0.01 if is_growing else 0.04):
            world.held[instance].clear()
            events = [ClearedBlocks(sequence=0), *events]
        world.apply(instance, events)
        world.gather(2000)
        if turn % 30 == 29:
            world.check()
            most = max(most, *world.entries())
            world.check_sizes()
        elif turn % 3 == 0:
            world.rust.release_left(world.random.choice((1, 64, 600)))
    assert most > 16_000, f"seed {seed}: {most} entries of an instance split no shard"
    assert world.dumps > 5
    assert world.found > 50
    for instance in range(len(INSTANCES)):
        world.apply(instance, [ClearedBlocks(sequence=0)])
    world.check()
    world.check_sizes()
    assert world.rust.stats()["blocks"] == 0
