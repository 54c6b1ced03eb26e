"""What an exact answer says, an engine can reuse: random histories of engines with several cache
groups, tiers, adapters, salts and a pool, against caches of our own that know nothing of the index.

Their wire messages go through the bridge's decoders into the fold; both are started anew now and
then. Where the state of an answer is not `exact`, nothing is said of it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

import msgspec
import pytest

from bridge.publisher.anchor import Anchor
from bridge.sockets.raw_message import RawMessage
from schemas.answer_states import AnswerState, Doubt
from schemas.arrays import PythonArrayPacker
from schemas.events import extra_key
from schemas.identities import Offset, PrefixScope, PublisherKey
from schemas.positions import Confirmation, PublisherState
from schemas.records import encode_record
from streams.kernel import Kernel, array_packer, native_available, open_kernel
from streams.table.fold import Fold
from streams.table.scope_states import ConfirmationSource, ScopeStates
from tests.building import registered_record
from tests.strategies import u32s
from tests.unit.bridge.messages import registration
from tests.unit.bridge.publisher.sequencers import Sequencers

BLOCK_SIZE: Final = 4
ADAPTERS: Final = ("", "x", "y")
FULL, WINDOW, STATE, CROSS = "full_attention", "sliding_window", "mamba", "cross_attention"
SHAPES: Final = (
    *({0: FULL}, {0: FULL}, {0: FULL}),
    *({0: FULL, 1: FULL}, {0: FULL, 1: FULL}),
    *({0: FULL, 1: CROSS}, {0: CROSS, 1: FULL, 2: FULL}),
    *({0: FULL, 1: WINDOW}, {0: STATE, 1: FULL}, {0: FULL, 1: STATE, 2: WINDOW}, {0: WINDOW}),
)
"""Kinds of attention of an engine's cache groups. Of a window and of a recurrent state it has some
blocks of a prompt, and needs the last one of a prefix that it reuses; of cross attention none.
"""

SOURCE: Final = ConfirmationSource(0, "bridge")
KERNELS: Final = ("reference", "rust") if native_available() else ("reference",)


class Block(NamedTuple):
    """A block: all that is before it, too."""

    lora_name: str
    salt: str
    chain: tuple[int, ...]

    @property
    def parent(self) -> "Block | None":
        return self._replace(chain=self.chain[:-1]) if len(self.chain) > 1 else None


class Engine:
    """A vLLM engine that keeps what it holds, and says what it does."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name, self.random = world, name, world.random
        self.kinds = self.random.choice(SHAPES)
        self.prefix = [group for group, kind in self.kinds.items() if kind == FULL]
        self.needed = [group for group, kind in self.kinds.items() if kind in (WINDOW, STATE)]
        self.adapters = [one for one in ADAPTERS if not one or self.random.random() < 0.6]
        endpoint = f"tcp://127.0.0.1:{5000 + len(world.engines)}"
        mode = self.random.choice(("", "", "incremental"))
        self.registration = msgspec.structs.replace(
            registration(instance_id=name, endpoint=endpoint), kv_cache_report_mode=mode
        )
        self.gpu_name = self.random.choice(("GPU", None, "gpu"))
        self.cpu_name = self.random.choice(("CPU", "CPU_PINNED", "cpu:0"))
        self.offloads, self.describes = self.random.random() < 0.5, self.random.random() < 0.5
        self.chunk = 1  # blocks that it keeps as one
        self.has_pool = self.random.random() < 0.4 and len(self.prefix) == 1
        self.owner = self.random.choice(({}, {}, {"medium": "CPU"}, {"medium": "STORAGE"}))
        self.begin()

    def begin(self) -> None:
        """Another process of it, which holds nothing."""
        self.gpu: dict[int, Counter[Block]] = {group: Counter() for group in self.kinds}
        self.cpu: dict[int, set[Block]] = {group: set() for group in self.prefix}
        self.owned: dict[int, set[Block]] = {group: set() for group in self.prefix}  # by KVCR
        self.sequence = 0
        self.known: set[int] = set()  # its groups of which a block was announced
        self.events: list[Mapping[str, object]] = []

    def flush(self, *, is_lost: bool = False) -> None:
        if self.events:
            payload = msgspec.msgpack.encode([self.world.tick(), self.events, 0])
            if not is_lost:
                self.world.deliver(self, self.sequence, payload)
            self.sequence, self.events = self.sequence + 1, []

    def reusable(self, asked: Block) -> int:
        """Of the tokens of a chain, as long as each group of full attention has its blocks, and up
        to where the others have theirs.
        """
        reusable = 0
        for depth in range(1, len(asked.chain) + 1):
            block = asked._replace(chain=asked.chain[:depth])
            on_gpu = all(self.gpu[group][block] for group in self.prefix)
            on_cpu = self.prefix and all(block in self.cpu[group] for group in self.prefix)
            is_owned = self.prefix and all(block in self.owned[group] for group in self.prefix)
            if not (on_gpu or on_cpu or is_owned or block in self.world.pooled):
                break
            if all(self.gpu[group][block] for group in self.needed):
                reusable = depth * BLOCK_SIZE
        return reusable

    # What it does

    def serve(self) -> None:
        asked = Block(self.random.choice(self.adapters), self.world.salt(), self.world.prompt())
        hit = 0
        parts = [asked._replace(chain=asked.chain[: end + 1]) for end in range(len(asked.chain))]
        needed = self.prefix or self.needed
        while hit < len(parts) and all(self.gpu[group][parts[hit]] for group in needed):
            hit += 1
        if self.random.random() < 0.1:
            hit = 0  # as for log-probabilities of prompts
        if hit == len(asked.chain):
            return
        for group in self.kinds:
            share = 1.0 if group in self.prefix else 0.5
            kept = [one for one in range(hit, len(parts)) if self.random.random() < share]
            self.announce(group, asked, hit, self.gpu_name, kept=kept)
            self.gpu[group].update(parts[one] for one in kept)
            if self.random.random() < 0.15:  # its groups come one after the other
                self.flush()
                if self.random.random() < 0.5:
                    self.evict(wholly=True)
            if self.random.random() < 0.03 and self.known >= set(self.kinds):
                return  # the rest never does

    def evict(self, *, wholly: bool = False) -> None:
        group = self.random.choice(list(self.kinds))
        held = sorted(+self.gpu[group])
        self.random.shuffle(held)
        for block in held if wholly else held[: self.random.randrange(1, 4)]:
            for _ in range(self.gpu[group][block] if wholly else 1):
                self.drop(group, block)

    def evict_block(self) -> None:
        """One of all groups."""
        held = sorted(+self.gpu[next(iter(self.kinds))])
        for block in held and [self.random.choice(held)]:
            for group in self.kinds:
                while self.gpu[group][block]:
                    self.drop(group, block)

    def drop(self, group: int, block: Block) -> None:
        self.withdraw(group, block, self.gpu_name)
        self.gpu[group][block] -= 1

    def offload(self) -> None:
        for group in self.prefix if self.offloads else ():
            if self.chunk > 1:
                self.offload_chunks(group)
                continue
            for block in sorted(+self.gpu[group]):
                parent = block.parent
                is_linked = parent is None or self.gpu[group][parent] > 0
                if block in self.cpu[group] or not is_linked or self.random.random() < 0.6:
                    continue
                if self.describes:
                    self.announce(group, block, len(block.chain) - 1, self.cpu_name)
                else:
                    self.name_offloaded(group, block)
                self.cpu[group].add(block)

    def offload_chunks(self, group: int) -> None:
        """Each is named by its last block."""
        for block in sorted(+self.gpu[group]):
            chunk = self.chunk_of(block)
            is_last = len(block.chain) % self.chunk == 0
            is_whole = is_last and all(self.gpu[group][one] for one in chunk)
            if not is_whole or block in self.cpu[group] or self.random.random() < 0.6:
                continue
            self.name_offloaded(group, block)
            self.cpu[group].update(chunk)

    def chunk_of(self, block: Block) -> list[Block]:
        """What is kept as one with a block that is the last of it."""
        ends = range(max(1, len(block.chain) - self.chunk + 1), len(block.chain) + 1)
        return [block._replace(chain=block.chain[:end]) for end in ends]

    def own(self) -> None:
        """Its owner keeps some of what is on the GPU, and says so as often as it likes."""
        owner = self.owner and self.owner | {"ownership": "kvcr"}
        for group in self.prefix if owner else ():
            for block in sorted(+self.gpu[group]):
                if self.random.random() < 0.5:
                    self.name_offloaded(group, block, **owner)
                    self.owned[group].add(block)

    def disown(self) -> None:
        owner = self.owner and self.owner | {"ownership": "kvcr"}
        if owner and self.random.random() < 0.2:
            tag = self.random.choice(("AllBlocksCleared", "TierBlocksCleared"))
            self.events.append({"type": tag, **owner})
            self.owned = {group: set() for group in self.prefix}
        for group in self.prefix if owner else ():
            for block in sorted(self.owned[group]):
                if self.random.random() < 0.5:
                    fields = {"block_hashes": [self.world.name_of(block)], **owner}
                    self.send("BlockRemoved", group, fields)
                    self.owned[group].remove(block)

    def name_offloaded(self, group: int, block: Block, **more: object) -> None:
        named = {"block_hashes": [self.world.name_of(block)], "medium": self.cpu_name, **more}
        empty = {"token_ids": [], "block_size": 0, "parent_block_hash": None}
        self.send("BlockStored", group, named | empty | {"lora_id": None})

    def drop_offloaded(self) -> None:
        for group in self.prefix:
            last = [one for one in self.cpu[group] if len(one.chain) % self.chunk == 0]
            if last:
                block = self.random.choice(sorted(last))
                self.withdraw(group, block, self.cpu_name)
                self.cpu[group] -= {*self.chunk_of(block)}

    def clear(self) -> None:
        """As `/reset_prefix_cache`, which may clear the CPU, too, and says the same then."""
        if self.random.random() < 0.5:
            self.flush()
        self.events.append({"type": "AllBlocksCleared"})
        self.gpu = {group: Counter() for group in self.kinds}
        if self.random.random() < 0.5:
            self.cpu = {group: set() for group in self.prefix}

    def restart(self) -> None:
        self.flush()
        self.begin()
        self.serve()

    def share(self) -> None:
        for block in sorted(+self.gpu[self.prefix[0]]) if self.has_pool else ():
            parent = block.parent
            is_linked = parent is None or self.gpu[self.prefix[0]][parent] > 0
            if is_linked and block not in self.world.pooled and self.random.random() < 0.5:
                last = len(block.chain) - 1
                self.announce(self.prefix[0], block, last, "STORAGE", locality="REMOTE")
                self.world.pooled.add(block)

    def drop_shared(self) -> None:
        if self.has_pool and self.world.pooled:
            block = self.random.choice(sorted(self.world.pooled))
            self.withdraw(self.prefix[0], block, "STORAGE", locality="REMOTE")
            self.world.pooled.remove(block)

    def lose(self) -> None:
        """A batch that nobody gets, and the next one shows it."""
        self.flush()
        self.serve()
        self.flush(is_lost=True)
        self.serve()
        self.evict()

    # What it says

    def announce(
        self,
        group: int,
        block: Block,
        start: int,
        medium: str | None,
        kept: Sequence[int] | None = None,
        **more: object,
    ) -> None:
        """The blocks behind the first ones; of these that are kept, where that is said."""
        self.known.add(group)
        parts = [block._replace(chain=block.chain[: end + 1]) for end in range(len(block.chain))]
        hashes = [self.world.name_of(part) for part in parts]
        kept = range(start, len(parts)) if kept is None else kept
        fields = {
            "block_hashes": [hashes[one] for one in kept],
            "token_ids": tokens_of(block.chain[start:]),
            "block_size": BLOCK_SIZE,
            "parent_block_hash": hashes[start - 1] if start else None,
            "lora_id": None,
            "lora_name": block.lora_name or None,
            "medium": medium,
            "kv_cache_spec_kind": self.kinds[group],
        }
        if block.salt and not start:
            fields["extra_keys"] = [None if one else [block.salt] for one in kept]
        self.send("BlockStored", group, fields | more)

    def withdraw(self, group: int, block: Block, medium: str | None, **more: object) -> None:
        fields = {"block_hashes": [self.world.name_of(block)], "medium": medium}
        self.send("BlockRemoved", group, fields | more)

    def send(self, tag: str, group: int, fields: Mapping[str, object]) -> None:
        of_group = {"group_idx": group} if len(self.kinds) > 1 else {}
        self.events.append({"type": tag, **of_group, **fields})


def tokens_of(chain: Sequence[int]) -> list[int]:
    return [10 * block + place for block in chain for place in range(BLOCK_SIZE)]


class World:
    """Engines, a pool that they share, and what the index makes of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.time = 1000.0
        self.pooled: set[Block] = set()
        self.names: dict[Block, int] = {}
        self.prompts: list[tuple[int, ...]] = []
        self.packer = self.random.choice((PythonArrayPacker, array_packer))()
        self.fold = Fold(self.new_kernel())
        self.offset = 0
        self.engines: list[Engine] = []
        while not self.engines or self.random.random() < 0.5:
            self.engines.append(Engine(self, f"engine-{len(self.engines)}"))
        for engine in self.engines:
            self.append(registered_record(engine.registration))
        self.sequencers = Sequencers(self.packer)
        self.restart_bridge()

    def new_kernel(self) -> Kernel:
        return open_kernel(1337, name=self.random.choice(KERNELS))

    def tick(self) -> float:
        self.time += 0.5
        return self.time

    def name_of(self, block: Block) -> int:
        return self.names.setdefault(block, self.random.getrandbits(64))

    def salt(self) -> str:
        return self.random.choice(("", "", "salt"))

    def prompt(self) -> tuple[int, ...]:
        known = self.random.choice(self.prompts) if self.prompts else ()
        chain = known[: self.random.randrange(len(known) + 1)]
        while not chain or (len(chain) < 5 and self.random.random() < 0.6):
            chain += (self.random.randrange(6),)
        self.prompts = [*self.prompts, chain][-8:]
        return chain

    def append(self, record: bytes) -> None:
        skipped = self.fold.apply(Offset(self.offset), record)
        assert skipped is None, skipped
        self.offset += 1

    def deliver(self, engine: Engine, sequence: int, payload: bytes) -> None:
        frames = [b"", sequence.to_bytes(8, "big"), payload]
        message = RawMessage(engine.registration.publisher, frames, self.time)
        for record in self.sequencers.process([message], self.time):
            self.append(encode_record(record))

    def restart_bridge(self) -> None:
        self.sequencers = Sequencers(self.packer)
        for engine in self.engines:
            publisher = engine.registration.publisher
            self.sequencers.add(engine.registration)
            if publisher in self.fold.publishers:
                anchor = Anchor.of(self.fold.publishers[publisher])
                self.sequencers[publisher].set_anchor(anchor)

    def restart_table(self) -> None:
        """From its rows, as they would be now."""
        kernel = self.new_kernel()
        for view in self.fold.kernel.contexts():
            for rows in self.fold.kernel.dump(view.context, 100):
                kernel.load(view.context, rows)
        for engine in self.engines:
            kernel.register(kernel.open_publisher(*engine.registration.publisher), "", True)
        encoded = msgspec.msgpack.encode(list(self.fold.publishers.items()))
        before, self.fold = self.fold, Fold(kernel)
        publishers = dict(
            msgspec.msgpack.decode(encoded, type=list[tuple[PublisherKey, PublisherState]])
        )
        self.fold.restore(before.offset, publishers, before.registrations)

    def step(self) -> None:
        engine = self.random.choice(self.engines)
        engine_steps = (
            *(engine.serve,) * 40,
            *(engine.evict,) * 12,
            *(engine.evict_block,) * 8,
            *(lambda: engine.evict(wholly=True),) * 4,
            *(engine.offload,) * 9,
            *(engine.drop_offloaded,) * 5,
            *(engine.own,) * 6,
            *(engine.disown,) * 3,
            *(engine.clear, engine.restart, engine.share) * 4,
            engine.drop_shared,
            engine.lose,
            *(self.restart_table,) * 3,
            *(self.restart_bridge,) * 5,
        )
        self.random.choice(engine_steps)()
        if self.random.random() < 0.7:
            engine.flush()

    def exact(self, scope: PrefixScope) -> list[Engine]:
        """Those of which an answer is exact, where all links are up, and nothing is held up; none
        where another one is doubted for what it holds.
        """
        states = ScopeStates()
        for publisher, state in self.fold.publishers.items():
            states.register(publisher, True)
            said = Confirmation(SOURCE.bridge)
            states.put(publisher, msgspec.structs.replace(state, confirmation=said))
        known = [
            (engine, states.standing(engine.registration.publisher, {SOURCE: 9.0}, 1.0))
            for engine in self.engines
            if engine.registration.publisher in self.fold.publishers
        ]
        exact = [engine for engine, standing in known if standing.state is AnswerState.EXACT]
        doubted = {standing.reason for engine, standing in known if engine not in exact}
        if self.fold.kernel.without_adapter(scope) or doubted - {Doubt.ATTENTION_ONLY}:
            return []
        verdict = states.verdict(scope, {SOURCE: 9.0}, 1.0).state
        assert (verdict is AnswerState.EXACT) is (not doubted)
        return exact

    def check(self) -> int:
        """Of how many engines an answer is exact; it is right of each that has the adapter."""
        asked = Block(self.random.choice(ADAPTERS[:2]), self.salt(), self.prompt())
        scope = PrefixScope("default", "m", asked.lora_name, BLOCK_SIZE, "")
        exact = self.exact(scope)
        keys = (extra_key([asked.salt]),) if asked.salt else ()
        matches = self.fold.kernel.query(scope, u32s(tokens_of(asked.chain)), keys, None)
        found = {match.instance_id: match.longest for match in matches}
        for engine in exact:
            if asked.lora_name in engine.adapters:
                assert found.get(engine.name, 0) == engine.reusable(asked), (engine.name, asked)
        return len(exact)


@pytest.mark.parametrize("seed", range(100))
def test_what_an_exact_answer_says_the_engine_can_reuse(seed: int) -> None:
    world = World(seed)
    exact = _run(world)
    behind_loss = {key for key, one in world.fold.publishers.items() if one.tiers_unheard}
    # One engine that is doubted for what it holds, perhaps for good, leaves no answer exact.
    doubted = behind_loss or [engine for engine in world.engines if engine.has_pool]
    assert exact > 0 or doubted or all(engine.needed for engine in world.engines)


@pytest.mark.parametrize("seed", range(50))
def test_nor_is_an_answer_exact_of_chunks_that_nobody_has_named(seed: int) -> None:
    world = World(seed)
    for engine in world.engines:
        engine.offloads, engine.describes, engine.chunk = True, False, 2
        engine.owner = {}  # its chunks are those of the tier above
    _run(world)


def _run(world: World) -> int:
    """Of how many engines answers were exact, in all."""
    exact = 0
    for _ in range(80):
        world.step()
        for engine in world.engines:
            engine.flush()
        exact += sum(world.check() for _ in range(3))
    # What an engine says of its cache never contradicts itself, but where some of it was lost.
    assert not any(one.contradicts_itself for one in world.fold.publishers.values())
    return exact
