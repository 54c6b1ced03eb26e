"""Hypothesis strategies that several tests share: canonical events, and operations on a kernel.

Prompts are made of three kinds of block, so that they overlap; engine hashes follow from the
prompt, as engines' do, and now and then do not.
"""

from typing import NamedTuple

import xxhash
from hypothesis import strategies as st

from schemas.events import (
    TOKEN_HASH_SEED,
    BlockEvent,
    ClearedBlocks,
    RemovedBlocks,
    StoredBlocks,
    extra_key,
)
from schemas.identities import Medium, ModelContext, PrefixScope, StreamKey
from streams.kernel.hashing import prefix_hashes

BLOCK_SIZE = 2
LORA_NAMES = ("", "adapter")
INSTANCES = ("a", "b")
TENANT, MODEL = "default", "m"
SEED = 2**64 - 5
"""Of the kernels that are compared."""

SEEDS = (SEED, TOKEN_HASH_SEED)
"""The second one can use what is hashed by publishers."""

Prompt = tuple[int, ...]
"""A prompt as a path of block kinds."""


class Apply(NamedTuple):
    publisher: int
    events: list[BlockEvent]
    after: int


class Register(NamedTuple):
    publisher: int
    lora_name: str
    routable: bool
    is_shard: bool = False
    reads: tuple[str, ...] | None = None
    shared_as: str = ""


class Clear(NamedTuple):
    publisher: int


class Unregister(NamedTuple):
    publisher: int


class Reload(NamedTuple):
    """Loads one of the changes that were taken before into the same kernel, again."""

    number: int


class Load(NamedTuple):
    """Loads changes that nobody took, some of which contradict what is there."""

    context: ModelContext
    changes: list[tuple[int, Prompt, int, int, int, int]]


class Take(NamedTuple):
    pass


Operation = Apply | Register | Clear | Unregister | Reload | Load | Take

PUBLISHERS = tuple(
    (StreamKey(TENANT, MODEL, BLOCK_SIZE, "", instance), rank)
    for instance in INSTANCES
    for rank in range(2)
)


def scope_of(lora_name: str) -> PrefixScope:
    return PrefixScope(TENANT, MODEL, lora_name, BLOCK_SIZE, "")


def context_of(lora_name: str, instance: str) -> ModelContext:
    return ModelContext(*scope_of(lora_name), instance)


def u64s(values: list[int]) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def u32s(values: list[int]) -> bytes:
    return b"".join(value.to_bytes(4, "little") for value in values)


def prompt_tokens(prompt: Prompt, block_size: int = BLOCK_SIZE) -> bytes:
    return u32s([100 * kind + i for kind in prompt for i in range(block_size)])


def prompt_key(prompt: Prompt, lora_name: str = "") -> int:
    """The engine hash of the last block of a prompt."""
    return xxhash.xxh3_64_intdigest(repr((prompt, lora_name)).encode())


def prompt_locals(prompt: Prompt) -> list[int]:
    """The hash of the tokens of each block alone, with the seed of publishers that send it."""
    tokens = prompt_tokens(prompt)
    size = 4 * BLOCK_SIZE
    blocks = [tokens[at : at + size] for at in range(0, len(tokens), size)]
    return [xxhash.xxh3_64_intdigest(block, TOKEN_HASH_SEED) for block in blocks]


def prompt_prefixes(prompt: Prompt, seed: int = SEED) -> list[int]:
    """The prefix hash of each block."""
    return list(prefix_hashes(prompt_tokens(prompt), BLOCK_SIZE, seed=seed))


def prompt_hashes(prompt: Prompt, lora_name: str = "", start: int = 0) -> bytes:
    return u64s([prompt_key(prompt[: i + 1], lora_name) for i in range(start, len(prompt))])


media = st.sampled_from(Medium)
lora_names = st.sampled_from(("", "", LORA_NAMES[1]))
groups = st.sampled_from((0, 0, 0, 0, 1, 64))
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)
sequences = st.integers(0, 5)


@st.composite
def _token_hashes(draw: st.DrawFn, prompt: Prompt, start: int) -> bytes:
    """In place of the tokens of the blocks from `start` on; seldom too few."""
    hashed = prompt_locals(prompt)[start:]
    return u64s(hashed[: draw(st.sampled_from((None, None, None, 1)))])


_left_out = st.sampled_from((*[""] * 20, "unknown_field", "x" * 65))


@st.composite
def stored_events(draw: st.DrawFn) -> StoredBlocks:
    """Mostly a chain that an engine could send; sometimes with one thing wrong with it."""
    prompt = draw(prompts)
    lora_name = draw(lora_names)
    start = draw(st.integers(0, len(prompt) - 1))
    hashes = prompt_hashes(prompt, lora_name, start)
    parent = prompt_key(prompt[:start], lora_name) if start else None
    tokens = prompt_tokens(prompt)[4 * BLOCK_SIZE * start :]
    block_size, spec_kind = BLOCK_SIZE, ""
    extra_keys: tuple[bytes, ...] = ()
    blocks = len(prompt) - start
    by_hash = False
    match draw(st.integers(0, 27)):
        case 0:
            tokens = tokens[4:]
        case 1:
            block_size = BLOCK_SIZE + 1
        case 2:
            spec_kind = draw(st.sampled_from(("sliding_window", "full_attention")))
        case 3 | 10 | 11 | 12:
            tokens, block_size = b"", 0
        case 4:
            extra_keys = tuple(
                draw(st.sampled_from((b"", extra_key(["salt"]), b"x" * 300))) for _ in range(blocks)
            )
        case 5:
            extra_keys = (b"x",) * (blocks + 1)
        case 6:
            hashes = prompt_hashes(draw(prompts), lora_name)[:8] * blocks
        case 7:
            parent = draw(st.integers(0, 2**64 - 1))
        case 8:
            hashes, tokens = b"", b""
        case 9:
            hashes = u64s(draw(st.lists(st.integers(0, 3), min_size=blocks, max_size=blocks)))
        case 13 | 14 | 15:
            by_hash, tokens = True, draw(st.sampled_from((b"", b"", b"", tokens)))
            named = draw(st.booleans())
            hashes = u64s(prompt_prefixes(prompt)[start:]) if named else hashes
            parent = draw(st.sampled_from((None, parent)))
    token_hashes = draw(_token_hashes(prompt, start)) if draw(st.integers(0, 6)) == 0 else b""
    return StoredBlocks(
        sequence=draw(sequences),
        hashes=hashes,
        tokens=draw(st.sampled_from((b"", b"", b"", tokens))) if token_hashes else tokens,
        parent=parent,
        block_size=block_size,
        medium=draw(media),
        shared=draw(st.sampled_from((False, False, True))),
        owned=draw(st.sampled_from((False, False, True))),
        lora_name=lora_name,
        group=draw(groups),
        spec_kind=spec_kind,
        by_hash=by_hash,
        reported=draw(st.sampled_from((False, False, False, True))),
        token_hashes=token_hashes,
        extra_keys=extra_keys,
        left_out=draw(_left_out),
    )


@st.composite
def removed_events(draw: st.DrawFn) -> RemovedBlocks:
    prompt = draw(prompts)
    start = draw(st.integers(0, len(prompt) - 1))
    hashes = prompt_hashes(prompt, draw(lora_names), start)
    if draw(st.integers(0, 4)) == 0:
        hashes = u64s(prompt_prefixes(prompt)[start:])
    return RemovedBlocks(
        sequence=draw(sequences),
        hashes=hashes,
        medium=draw(media),
        shared=draw(st.sampled_from((False, False, True))),
        owned=draw(st.sampled_from((False, False, True))),
        group=draw(groups),
        whole=draw(st.sampled_from((False, False, True))),
        left=draw(st.sampled_from((0, 0, 0, 1, 2, 65_535))),
    )


def object_key(prompt: Prompt, backend: int = 0) -> int:
    """What a pool calls the object that has the last block of a prompt."""
    return xxhash.xxh3_64_intdigest(repr((prompt, backend)).encode(), 1)


@st.composite
def object_events(draw: st.DrawFn) -> StoredBlocks:
    """Objects of a pool, named by an engine's hashes or by prefix hashes; now and then oddly."""
    prompt = draw(prompts)
    lora_name = draw(lora_names)
    backend = draw(st.sampled_from((0, 0, 1)))
    blocks = range(draw(st.integers(0, len(prompt) - 1)), len(prompt))
    by_hash = draw(st.sampled_from((False, False, False, True)))
    hashes = [object_key(prompt[: i + 1], backend) for i in blocks]
    aliases = prompt_hashes(prompt, lora_name, blocks.start)
    odd = draw(st.integers(0, 15))
    if by_hash != (odd == 0):
        aliases = u64s(prompt_prefixes(prompt)[blocks.start :])
    elif odd == 1:
        aliases = u64s(
            draw(st.lists(st.integers(0, 3), min_size=len(blocks), max_size=len(blocks)))
        )
    return StoredBlocks(
        sequence=draw(sequences),
        hashes=u64s(hashes),
        tokens=prompt_tokens(prompt) if odd == 2 else b"",
        block_size=BLOCK_SIZE + (odd == 3),
        medium=draw(media),
        shared=draw(st.sampled_from((True, True, False))),
        lora_name=lora_name,
        group=draw(st.sampled_from((0, 0, 0, 0, 1))),
        spec_kind="mamba" if odd == 4 else "",
        by_hash=by_hash,
        aliases=aliases,
    )


@st.composite
def object_removals(draw: st.DrawFn) -> RemovedBlocks:
    prompt = draw(prompts)
    backend = draw(st.sampled_from((0, 0, 1)))
    return RemovedBlocks(
        sequence=draw(sequences),
        hashes=u64s([object_key(prompt[: i + 1], backend) for i in range(len(prompt))]),
        medium=draw(media),
        shared=draw(st.sampled_from((True, True, False))),
    )


block_events: st.SearchStrategy[BlockEvent] = st.one_of(
    stored_events(),
    stored_events(),
    removed_events(),
    object_events(),
    object_removals(),
    st.builds(
        ClearedBlocks,
        sequence=sequences,
        medium=st.one_of(st.none(), media),
        owned=st.sampled_from((False, False, True)),
    ),
)
event_lists = st.lists(block_events, min_size=1, max_size=6)

_numbers = st.integers(0, len(PUBLISHERS) - 1)

_changes = st.lists(
    st.tuples(
        st.integers(0, 5), prompts, st.integers(0, 2), st.integers(0, 5),
        st.sampled_from((0, 0, 0, 0, 1)), st.sampled_from((0, 1, 1, 2, 65_535)),
    ),
    max_size=6,
)  # fmt: skip

operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(Apply, _numbers, event_lists, st.sampled_from((-1, -1, -1, 2))),
    st.builds(Apply, _numbers, event_lists, st.just(-1)),
    st.builds(Apply, _numbers, event_lists, st.just(-1)),
    st.builds(
        Register,
        _numbers,
        st.sampled_from(LORA_NAMES),
        st.booleans(),
        st.booleans(),
        st.sampled_from((None, (), ("a",), ("b",), ("p",), ("b", "p"))),
        st.sampled_from(("", "", "p")),
    ),
    st.builds(Clear, _numbers),
    st.builds(Unregister, _numbers),
    st.builds(Reload, st.integers(0, 7)),
    st.builds(
        Load,
        st.builds(context_of, st.sampled_from(LORA_NAMES), st.sampled_from(INSTANCES)),
        _changes,
    ),
    st.just(Take()),
)
operation_lists = st.lists(operations, min_size=1, max_size=14)
