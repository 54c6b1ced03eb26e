"""The answer to hashes of engines equals counting by hand, over random histories."""

import random
from itertools import takewhile

import pytest

from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks, encode_events
from schemas.identities import MEDIA, StreamKey
from streams.kernel import Kernel, native_available, open_kernel
from streams.kernel.interface import PublisherId
from tests.strategies import u32s, u64s

BLOCK_SIZE = 2
INSTANCES = ("a", "b", "c", "d")
CHAINS = [tuple(range(start, start + 12)) for start in (0, 100, 200)]
# Chains that begin alike, and part.
CHAINS += [(*CHAINS[0][:5], *range(300, 307)), (*CHAINS[0][:5], *range(400, 407))]

Held = dict[int, int]
"""How often each name is held on own tiers, by the name."""


class History:
    """A kernel under random events, and what every publisher must hold after them."""

    def __init__(self, name: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.kernel: Kernel = open_kernel(seed, name=name, cleared_at_once=seed % 2 or None)
        self.held: dict[str, Held] = {instance: {} for instance in INSTANCES}

    def name_of(self, instance: str, chain: tuple[int, ...], depth: int) -> int:
        """The last instance has names of its own for the later blocks."""
        own = 1 << 50 if instance == INSTANCES[-1] and depth > 4 else 0
        return hash(chain[: depth + 1]) % 2**49 | own

    def step(self) -> None:
        instance = self.random.choice(INSTANCES)
        chain = self.random.choice(CHAINS)
        held = self.held[instance]
        length = self.random.randrange(1, len(chain) + 1)
        names = [self.name_of(instance, chain, depth) for depth in range(length)]
        event: BlockEvent
        match self.random.random():
            case chance if chance < 0.05:
                held.clear()
                event = ClearedBlocks(sequence=0)
            case chance if chance < 0.4:
                gone = [name for name in names if self.random.random() < 0.3]
                for name in gone:
                    if name in held:
                        held[name] -= 1
                        if not held[name]:
                            del held[name]
                event = RemovedBlocks(sequence=0, hashes=u64s(gone))
            case _:
                tokens = u32s([token for block in chain[:length] for token in (block, block)])
                event = StoredBlocks(
                    sequence=0,
                    hashes=u64s(names),
                    parent=None,
                    tokens=tokens,
                    block_size=BLOCK_SIZE,
                    medium=MEDIA[0],
                )
                for name in names:
                    held[name] = held.get(name, 0) + 1
        publisher = self.kernel.open_publisher(
            StreamKey("default", "m", BLOCK_SIZE, "", instance), 0
        )
        self.kernel.apply(publisher, encode_events([event]), -1)

    def instance_of(self, publisher: PublisherId) -> str:
        key = self.kernel.publisher(publisher)
        assert key is not None
        return key.stream.instance_id

    def check(self) -> int:
        """How many answers named somebody."""
        answered = 0
        for chain in CHAINS:
            for asked in INSTANCES[:1] + INSTANCES[-1:]:
                names = [self.name_of(asked, chain, depth) for depth in range(len(chain))]
                expected = {
                    instance: sum(1 for _ in takewhile(held.__contains__, names))
                    for instance, held in self.held.items()
                }
                expected = {instance: depth for instance, depth in expected.items() if depth}
                answer = self.kernel.query_by_engine_hash("default", None, u64s(names))
                assert {self.instance_of(one): blocks for one, blocks in answer} == expected
                answered += bool(expected)
        return answered


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ["reference", "rust"])
def test_every_publisher_holds_what_was_counted_by_hand(name: str, seed: int) -> None:
    if name == "rust" and not native_available():
        pytest.skip("the Rust kernel is not built")
    history = History(name, seed)
    answered = 0
    for _ in range(120):
        history.step()
        answered += history.check()
    assert answered > 100
