"""The Rust kernel shows what the reference shows, after each step of random histories.

Unlike `test_kernel_equivalence`, a step looks at what is held before it removes or replaces some of
that, the bounds are so low that all of them are reached, and prompts may have hundreds of blocks.
"""

import struct
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import pytest
import xxhash

from schemas.events import (
    TOKEN_HASH_SEED,
    BlockEvent,
    ClearedBlocks,
    RemovedBlocks,
    StoredBlocks,
    encode_events,
)
from schemas.identities import (
    ALIASES,
    COPIES_UNKNOWN,
    LEFT_OUT,
    MEDIA,
    REPEATED,
    ModelContext,
    PrefixScope,
    StreamKey,
    waiting_scope,
)
from streams.kernel import Kernel, native_available, open_kernel
from streams.kernel.changes import (
    OWNED,
    SHARED,
    TIER_COUNT,
    Change,
    Op,
    answered_tier,
    decode_changes,
    engine_key,
    is_shared,
)
from streams.kernel.hashing import prefix_hashes
from streams.kernel.interface import PublisherId
from streams.kernel.reference import ALIASES_MASK, GROUPS_MASK, LEFT_OUT_MASK, REPEATED_MASK
from tests.strategies import u32s, u64s

pytestmark = pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")

BLOCK_SIZE = 2
LORA_NAMES = ("", "x")
INSTANCES = ("a", "b", "c", "pool")
"""The third one has keys of its own for most blocks, the last one is a pool now and then."""
MODELS = ("m", "n")
GROUPS = (0, 0, 0, 0, 1, 63, 64)
LAST_BLOCKS = {2: 1, 3: 2, 62: 5}
"""Of sparse groups, mostly; the first one's spans are those of a recurrent layer."""
OWN, OBJECT, NAMED = 1 << 60, 1 << 62, 1 << 61
"""What tells keys of one publisher's own, keys of objects, and prefix hashes from other keys."""


class Bounds(NamedTuple):
    """What differs between histories; `longest` is of a prompt, in blocks."""

    seed: int
    cleared_at_once: int
    waiting_max: int
    left_out_max: int
    longest: int
    prompts: int
    steps: int


Entry = tuple[str, Change]
"""What is held: the scope's LoRA name, and the entry as a change."""


def stream_of(instance: str, model: str) -> StreamKey:
    return StreamKey("t", model, BLOCK_SIZE, "", instance)


def scope_of(lora_name: str, model: str = "m") -> PrefixScope:
    return PrefixScope("t", model, lora_name, BLOCK_SIZE, "")


OWN_TIERS = [tier for tier in range(TIER_COUNT) if not is_shared(tier)]


def place_of(tier: int) -> dict[str, object]:
    medium = MEDIA[answered_tier(tier) % SHARED]
    return {"medium": medium, "shared": is_shared(tier), "owned": tier >= OWNED}


def tokens_of(blocks: list[int]) -> bytes:
    return u32s([token for block in blocks for token in (block, block + 1)])


def locals_of(blocks: list[int], seed: int) -> bytes:
    hashed = (xxhash.xxh3_64_intdigest(tokens_of([block]), seed) for block in blocks)
    return u64s(list(hashed))


def u64s_in(encoded: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(encoded) // 8}Q", encoded))


class History:
    """Both kernels, and what is told to them."""

    def __init__(self, number: int, bounds: Bounds) -> None:
        self.random = Random(number)
        self.bounds = bounds
        more = {"waiting_max": bounds.waiting_max, "left_out_max": bounds.left_out_max}
        at_once = bounds.cleared_at_once
        self.rust = open_kernel(bounds.seed, name="rust", cleared_at_once=at_once, **more)
        self.reference = open_kernel(bounds.seed, name="reference", **more)
        self.kernels: tuple[Kernel, Kernel] = (self.rust, self.reference)
        self.sequence = 0
        self.left_most = 0
        self.limited = 0
        self.taken: list[tuple[ModelContext, bytes]] = []
        self.prompts: list[list[int]] = [[]]
        while len(self.prompts) < bounds.prompts:
            old = self.random.choice(self.prompts)
            prompt = old[: self.random.randrange(len(old) + 1)]
            length = self.random.randrange(1, bounds.longest + 1)
            prompt += [self.random.randrange(1000) for _ in range(length - len(prompt))]
            self.prompts.append(prompt)

    def chance(self, of: int) -> bool:
        return self.random.randrange(of) == 0

    def entries(self, stream: StreamKey, dp_rank: int) -> Iterator[Entry]:
        """What a publisher holds, of hidden scopes, too."""
        for view in self.reference.contexts():
            context = view.context
            if stream_of(context.instance_id, context.model_name) == stream:
                dumped = b"".join(self.reference.dump(context, 1000))
                for change in decode_changes(dumped):
                    if change.dp_rank == dp_rank:
                        yield context.lora_name, change

    # What is told

    def keys(self, prompt: list[int], lora_name: str, *, has_own: bool) -> list[int]:
        """What a publisher calls a prompt's blocks; now and then one has the name of another."""
        odd = OWN if has_own and not self.chance(4) else 0
        keys, named = [], len(lora_name)
        for block in prompt:
            named = xxhash.xxh3_64_intdigest(f"{named} {block}".encode()) % OWN
            keys.append(named ^ odd)
        if keys and self.chance(20):
            keys[self.random.randrange(len(keys))] = 7
        if keys and self.chance(30):  # or a name that kernels have for themselves
            keys[self.random.randrange(len(keys))] = GROUPS_MASK ^ self.random.choice(GROUPS)
        return keys

    def stored(self, stream: StreamKey) -> StoredBlocks:
        prompt = self.random.choice(self.prompts)
        lora_name = self.random.choice(LORA_NAMES)
        keys = self.keys(prompt, lora_name, has_own=stream.instance_id == INSTANCES[2])
        is_sharer = stream.instance_id == INSTANCES[3] or self.chance(8)
        tiers = range(TIER_COUNT) if is_sharer else OWN_TIERS
        start = self.random.randrange(len(prompt)) if prompt and self.chance(2) else 0
        blocks, hashes = prompt[start:], keys[start:]
        fields: dict[str, object] = {"hashes": u64s(hashes), "tokens": tokens_of(blocks)}
        match self.random.randrange(20):
            case 0:
                fields |= {"tokens": b""}  # placeholders
            case 12 | 13 | 14 | 15 | 16 | 17 | 18:
                fields |= self.sparse(hashes)
            case 1 | 2:
                fields |= {
                    "by_hash": True,
                    "tokens": b"",
                    "hashes": u64s([h ^ NAMED for h in hashes]),
                }
            case 3 | 4 if hashes:
                fields |= {"tokens": b"", "aliases": u64s(hashes), "by_hash": self.chance(4)}
                fields |= {"hashes": u64s([h ^ OBJECT for h in hashes])}
            case 5:
                fields |= {"tokens": b"", "token_hashes": locals_of(blocks, self.bounds.seed)}
            case 6:
                fields |= {"extra_keys": (b"key"[: len(blocks) % 3],) * len(blocks)}
            case 7 if self.chance(2):
                fields |= self.spoilt(blocks)
        return StoredBlocks(
            **{
                "sequence": self.sequence,
                "parent": keys[start - 1] if start else None,
                "block_size": BLOCK_SIZE,
                "lora_name": lora_name,
                "group": self.random.choice(GROUPS),
                "reported": self.chance(4),
                "undecided": self.chance(2),
                **place_of(self.random.choice(tiers)),
                **fields,
            }  # type: ignore[arg-type]
        )

    def sparse(self, hashes: list[int]) -> dict[str, object]:
        """Of a group that has but some of a prompt's blocks."""
        group, needed = self.random.choice(list(LAST_BLOCKS.items()))
        share = self.random.randrange(2, 5)
        kept = [one for one in hashes if self.random.randrange(4) < share]
        fields: dict[str, object] = {"group": group, "spec_kind": "mamba", "last_blocks": needed}
        if self.chance(60):
            odd = {"last_blocks": needed + 1}, {"last_blocks": 0}, {"group": 64}, {"block_size": 3}
            fields |= self.random.choice(odd)
        if self.chance(4):
            fields |= {"tokens": b"", "block_size": self.random.choice((0, BLOCK_SIZE))}
            fields |= place_of(self.random.randrange(1, SHARED))
        return fields | {"hashes": u64s(kept)}

    def spoilt(self, blocks: list[int]) -> dict[str, object]:
        """What makes an event one that is left out."""
        hashed = {"tokens": b"", "token_hashes": locals_of(blocks, self.bounds.seed)}
        many = len(blocks)
        return self.random.choice(
            [
                {"block_size": BLOCK_SIZE + 1},
                {"tokens": tokens_of(blocks) + u32s([1])},
                {"extra_keys": (b"one too many",) * (many + 1)},
                {"spec_kind": "sliding_window"},
                {"spec_kind": "cross_attention"},
                {"by_hash": True},
                {"token_hashes": u64s([1] * many)},
                {"tokens": b"", "token_hashes": u64s([1] * (many + 1))},
                {"tokens": b"", "left_out": "unknown_field"},
                {"tokens": b"", "left_out": "bad_tokens"},
                hashed | {"extra_keys": (b"",) * many},
            ]
        )

    def removed(self, held: list[Entry]) -> RemovedBlocks:
        """Some of what is held, whatever it is known by; now and then twice, or nothing, or what
        others hold.
        """
        tier = self.random.randrange(TIER_COUNT)
        keys = []
        for lora_name, change in held:
            if change.tier == tier and len(lora_name) < len(REPEATED):
                keys.append(change.engine_key)
            if lora_name.startswith(LEFT_OUT):
                keys.append(change.engine_key ^ LEFT_OUT_MASK)
            if lora_name in (REPEATED, LEFT_OUT + COPIES_UNKNOWN):
                keys.append(change.engine_key ^ (REPEATED_MASK + tier))
        share = self.random.randrange(1, 5)
        keys = [key for key in keys if self.random.randrange(4) < share]
        if self.chance(4):
            prompt = self.random.choice(self.prompts)
            keys += self.keys(prompt, self.random.choice(LORA_NAMES), has_own=False)
        if self.chance(3):
            keys += [5, 7]
            keys += keys[:2]
        # By whichever group it is asked for, a key is that of the hash that it masks.
        group = self.random.choice((1, 2, 3, 62, 63, 64)) if self.chance(3) else 0
        return RemovedBlocks(
            sequence=self.sequence,
            hashes=u64s([engine_key(key, group) for key in keys]),
            group=group,
            whole=self.chance(5),
            left=self.random.randrange(1, 4) if self.chance(4) else 0,
            **place_of(tier),  # type: ignore[arg-type]
        )

    def moved(self, removed: RemovedBlocks) -> StoredBlocks:
        """What was removed, on another tier in the same batch."""
        hashes = u64s_in(removed.hashes)
        is_object = self.chance(2)
        return StoredBlocks(
            sequence=removed.sequence,
            hashes=u64s(hashes),
            aliases=u64s([hashed ^ OBJECT for hashed in hashes]) if is_object else b"",
            block_size=BLOCK_SIZE,
            lora_name=self.random.choice(LORA_NAMES) if is_object else "",
            group=removed.group,
            medium=MEDIA[(MEDIA.index(removed.medium) + 1) % SHARED],
        )

    def replaced(self, held: list[Entry]) -> list[BlockEvent]:
        """A block of which a pool remembers what engines call it: all that the pool has of the
        block goes, and another object of it comes.
        """
        known = [(name, change) for name, change in held if name.startswith(ALIASES)]
        if not known:
            return []
        name, of_alias = self.random.choice(known)
        lora_name, alias = name.removeprefix(ALIASES), of_alias.engine_key ^ ALIASES_MASK
        events: list[BlockEvent] = []
        for tier in range(TIER_COUNT):
            gone = [
                change.engine_key
                for name, change in held
                if (name, change.prefix, change.tier) == (lora_name, of_alias.prefix, tier)
            ]
            if gone:
                place = place_of(tier)
                events.append(
                    RemovedBlocks(sequence=self.sequence, hashes=u64s(gone), whole=True, **place)  # type: ignore[arg-type]
                )
        another = alias ^ self.random.choice((OBJECT, OBJECT | 1 << 59))
        place = place_of(self.random.randrange(TIER_COUNT))
        return [
            *events,
            StoredBlocks(
                sequence=self.sequence,
                hashes=u64s([another]),
                aliases=u64s([alias]),
                block_size=BLOCK_SIZE,
                lora_name=lora_name,
                **place,  # type: ignore[arg-type]
            ),
        ]

    def events(self, stream: StreamKey, held: list[Entry]) -> list[BlockEvent]:
        """Events of a batch or two."""
        events: list[BlockEvent] = []
        for _ in range(self.random.randrange(1, 5)):
            self.sequence += self.chance(3)
            match self.random.randrange(14):
                case 0:
                    medium = self.random.choice((None, *MEDIA))
                    owned = self.chance(3)
                    events.append(ClearedBlocks(sequence=self.sequence, medium=medium, owned=owned))
                case 1 | 2 | 3 | 4:
                    events.append(self.removed(held))
                case _:
                    events.append(self.stored(stream))
        first = events[0]
        if isinstance(first, RemovedBlocks) and self.chance(4):
            events.insert(1, self.moved(first))
        if self.chance(2):
            self.sequence += self.chance(2)
            events += self.replaced(held)
        return events

    # Steps

    def step(self) -> None:
        stream = stream_of(self.random.choice(INSTANCES), MODELS[self.chance(9)])
        dp_rank = self.random.randrange(2)
        handles = [kernel.open_publisher(stream, dp_rank) for kernel in self.kernels]
        opened: list[tuple[Kernel, PublisherId]] = list(zip(self.kernels, handles, strict=True))
        match self.random.randrange(40):
            case 0:
                assert len({kernel.clear(one) for kernel, one in opened}) == 1
            case 1:
                assert len({kernel.unregister(one) for kernel, one in opened}) == 1
            case 2 | 3 | 4:
                lora_name, routable = self.random.choice(LORA_NAMES), not self.chance(4)
                is_shard, domain = self.chance(4), int(self.chance(6))
                names = [name for name in (*INSTANCES, "shared", "absent") if self.chance(3)]
                reads = names if self.chance(2) else None
                shared_as = "shared" if self.chance(4) else ""
                for kernel, one in opened:
                    kernel.register(one, lora_name, routable, is_shard, reads, shared_as)
                    kernel.set_domain(one, domain)
            case 5 | 6:
                self.load()
            case 7:
                self.rust.release_left(self.random.choice((0, 1, 40, 1000)))
            case _:
                events = encode_events(self.events(stream, list(self.entries(stream, dp_rank))))
                after = self.sequence - 1 - self.random.randrange(5)
                assert len({kernel.apply(one, events, after) for kernel, one in opened}) == 1

    def load(self) -> None:
        """Loads what was taken before, from somewhere on, some of it changed."""
        if not self.taken:
            return
        context, taken = self.random.choice(self.taken)
        changes = list(decode_changes(taken))
        loaded = b""
        for change in changes[self.random.randrange(len(changes)) :]:
            if change.op == Op.SET:
                match self.random.randrange(12):
                    case 0:
                        change = change._replace(prefix=change.prefix ^ 1)
                    case 1:
                        change = change._replace(holds=self.random.randrange(3))
                    case 2:
                        change = change._replace(tier=self.random.randrange(TIER_COUNT))
            loaded += change.encode()
        for kernel in self.kernels:
            kernel.load(context, loaded)

    # What is shown

    def check(self) -> None:
        rust, reference = self.kernels
        assert rust.counters() == reference.counters()
        assert rust.contexts() == reference.contexts()
        assert rust.pending_changes() == reference.pending_changes()
        assert rust.pending_contexts() == reference.pending_contexts()
        for instance in INSTANCES:
            for model in MODELS:
                ours, theirs = (
                    [
                        (
                            dict(kernel.left_out(one)),
                            kernel.has_base_group(one),
                            kernel.sparse_blocks(one),
                            kernel.by_rule(one),
                            kernel.forms_prefixes(one),
                            kernel.unheld_removed(one),
                        )
                        for one in (
                            kernel.open_publisher(stream_of(instance, model), rank)
                            for rank in range(2)
                        )
                    ]
                    for kernel in self.kernels
                )
                assert ours == theirs

    def check_views(self) -> None:
        """Blocks and holder sets only where nothing is yet to be released."""
        left = self.rust.release_left(0)
        ours, theirs = (kernel.stats() for kernel in self.kernels)
        shown, expected = (kernel.scopes() for kernel in self.kernels)
        if left:
            for stats in (ours, theirs):
                del stats["blocks"], stats["holder_sets"]
            assert [one[:1] + one[2:] for one in shown] == [one[:1] + one[2:] for one in expected]
        else:
            assert shown == expected
        assert ours | {"memory_bytes": 0} == theirs | {"memory_bytes": 0}

    def check_answers(self) -> None:
        prompt = list(self.random.choice(self.prompts)) + [3] * self.chance(4)
        lora_name = self.random.choice(LORA_NAMES)
        keys = self.keys(prompt, lora_name, has_own=self.chance(2))
        tokens = tokens_of(prompt)
        block_keys = self.random.choice(((), (b"k",), (b"", b"k"), (b"ke",) * len(prompt)))
        named = u64s([key ^ NAMED for key in keys])
        seed = self.bounds.seed
        hashes = list(prefix_hashes(tokens, BLOCK_SIZE, seed=seed, keys=block_keys))
        scope = scope_of(lora_name)
        waits = waiting_scope(scope)
        assert waits is not None
        odd = [*keys[:-1], keys[-1] ^ OWN] if keys and len(prompt) % 3 == 0 else keys
        ours, theirs = (
            [
                kernel.knows(scope),
                kernel.knows(waits),
                kernel.without_adapter(scope),
                *(
                    (
                        kernel.query(scope, tokens + b"\0" * 7, block_keys, instance),
                        kernel.query_by_hash(scope, named, instance),
                        kernel.query_by_hash(scope, u64s(hashes), instance),
                        kernel.limiting_groups(scope, u64s(hashes), instance),
                    )
                    for instance in (None, INSTANCES[len(prompt) % 4], "absent")
                ),
                *(
                    [
                        (kernel.publisher(one), depth)
                        for one, depth in kernel.query_by_engine_hash("t", model, u64s(odd))
                    ]
                    for model in (None, "m", "n", "o")
                ),
                kernel.query_by_engine_hash("u", None, u64s(odd)),
            ]
            for kernel in self.kernels
        )
        assert ours == theirs
        self.limited += len(self.rust.limiting_groups(scope, u64s(hashes), None))

    def check_dumps(self) -> None:
        dumped = [
            [
                (view.context, sorted(decode_changes(b"".join(kernel.dump(view.context, 7)))))
                for view in kernel.contexts()
            ]
            for kernel in self.kernels
        ]
        assert dumped[0] == dumped[1]

    def take(self) -> None:
        ours, theirs = (sorted(kernel.take_changes()) for kernel in self.kernels)
        assert ours == theirs
        self.taken += ours

    def run(self) -> None:
        for step in range(self.bounds.steps):
            self.step()
            self.left_most = max(self.left_most, self.rust.release_left(0))
            self.check()
            self.check_answers()
            if step % 3 == 0:
                self.take()
                self.check_views()
            if step % 40 == 39:
                self.check_dumps()
        while self.rust.release_left(100):
            pass
        self.check_views()
        for instance in INSTANCES:
            for model in MODELS:
                for rank in range(2):
                    for kernel in self.kernels:
                        handle = kernel.open_publisher(stream_of(instance, model), rank)
                        kernel.unregister(handle)
        while self.rust.release_left(100):
            pass
        self.check()
        self.take()
        self.check_views()
        assert self.rust.stats()["entries"] == self.rust.stats()["scopes"] == 0


@pytest.mark.parametrize("number", [*range(12), 1012])
def test_both_kernels_show_the_same_of_few_blocks(number: int) -> None:
    seed, at_once = number or TOKEN_HASH_SEED, (4096, 0, 5)[number % 3]
    history = History(number, Bounds(seed, at_once, 4, 9, longest=6, prompts=8, steps=250))
    history.run()
    assert history.left_most or at_once == 4096
    assert history.limited


@pytest.mark.parametrize("number", range(20, 26))
def test_both_kernels_show_the_same_of_long_prompts(number: int) -> None:
    at_once = (4096, 0, 100)[number % 3]
    bounds = Bounds(TOKEN_HASH_SEED, at_once, 150, 300, longest=200, prompts=12, steps=80)
    history = History(number, bounds)
    history.run()
    assert history.left_most or at_once == 4096
    assert history.limited
