"""Blocks of pairs, as SGLang has them with EAGLE: each is of the token behind it, too."""

import struct
from collections.abc import Sequence
from typing import Any

import pytest

from schemas.events import (
    RemovedBlocks,
    StoredBlocks,
    encode_events,
    extra_key,
    paired_key,
    split_key,
)
from schemas.identities import Medium, PrefixScope, StreamKey
from streams.kernel import Kernel, native_available, open_kernel
from streams.kernel.hashing import prefix_hashes
from streams.kernel.interface import PublisherId
from tests.building import u64s
from tests.contract.kernels import BOTH, kernel_of

SCOPE = PrefixScope("t", "m", "", 16, "")
PROMPT = list(range(1000, 1065))
"""Four pages of 16, and the token behind the last one."""


@pytest.fixture(params=BOTH)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return kernel_of(request, 1337)


def u32s(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def publisher(kernel: Kernel, instance: str = "a", size: int = 16, dp_rank: int = 0) -> PublisherId:
    return kernel.open_publisher(StreamKey("t", "m", size, "", instance), dp_rank)


def store(
    kernel: Kernel,
    of: PublisherId,
    tokens: Sequence[int],
    *,
    pairs: bool = True,
    first: int = 0,
    size: int = 16,
    salt: bytes = b"",
    **fields: Any,
) -> None:
    """The pages of the prompt from this one on, each by its number, from 1 on."""
    blocks = (len(tokens) - pairs) // size
    keys = [salt if block == 0 else b"" for block in range(blocks)]
    if pairs:
        behind = [u32s(tokens[size * end : size * end + 1]) for end in range(1, blocks + 1)]
        keys = [paired_key(key, token) for key, token in zip(keys, behind, strict=True)]
    values: dict[str, Any] = {
        "sequence": 1,
        "hashes": struct.pack(f"<{blocks - first}Q", *range(first + 1, blocks + 1)),
        "tokens": u32s(tokens[size * first : size * blocks]),
        "parent": first or None,
        "block_size": size,
        "extra_keys": tuple(keys[first:]) if any(keys) else (),
    }
    kernel.apply(of, encode_events([StoredBlocks(**values | fields)]), -1)


def test_a_key_of_a_pair_is_told_from_every_other() -> None:
    keys = [extra_key([]), extra_key(["salt"]), extra_key([["image", 0xC100000000]])]
    for key in keys:
        assert split_key(key) == (key, b"")
        assert split_key(paired_key(key, u32s([7]))) == (key, u32s([7]))


def remove(kernel: Kernel, of: PublisherId, *hashes: int) -> None:
    event = RemovedBlocks(sequence=1, hashes=struct.pack(f"<{len(hashes)}Q", *hashes))
    kernel.apply(of, encode_events([event]), -1)


def ask(kernel: Kernel, tokens: Sequence[int], salt: bytes = b"", size: int = 16) -> dict[str, int]:
    scope = SCOPE._replace(block_size=size)
    return {
        one.instance_id: one.longest for one in kernel.query(scope, u32s(tokens), (salt,), None)
    }


def test_a_page_counts_with_its_last_pair_alone(kernel: Kernel) -> None:
    store(kernel, publisher(kernel), PROMPT)
    assert ask(kernel, PROMPT) == {"a": 64}
    assert ask(kernel, [*PROMPT, 5]) == {"a": 64}
    assert ask(kernel, [*PROMPT[:64], 5]) == {"a": 48}
    assert ask(kernel, PROMPT[:64]) == {"a": 48}
    assert ask(kernel, PROMPT[:16]) == {"a": 0}


def test_of_pages_of_one_token_each_needs_the_next(kernel: Kernel) -> None:
    store(kernel, publisher(kernel, size=1), PROMPT[:11], size=1)
    assert ask(kernel, [*PROMPT[:10], 5], size=1) == {"a": 9}


def test_tiers_are_told_apart(kernel: Kernel) -> None:
    of = publisher(kernel)
    store(kernel, of, PROMPT[:17])
    store(kernel, of, PROMPT[:33], first=1, medium=Medium.CPU)
    (found,) = kernel.query(SCOPE, u32s([*PROMPT[:32], 5]), (), None)
    assert (found.longest, found.gpu, found.cpu) == (16, 16, 0)
    (found,) = kernel.query(SCOPE, u32s(PROMPT[:33]), (), None)
    assert [rank[1:] for rank in found.ranks] == [(32, 16, 32, 32)]


def test_of_two_pages_with_the_same_tokens_one_may_be_removed(kernel: Kernel) -> None:
    of = publisher(kernel)
    store(kernel, of, PROMPT)
    other = [*PROMPT[:64], 7]
    store(kernel, of, other, first=3, hashes=struct.pack("<Q", 9))
    assert (ask(kernel, PROMPT), ask(kernel, other)) == ({"a": 64}, {"a": 64})
    remove(kernel, of, 4)
    assert (ask(kernel, PROMPT), ask(kernel, other)) == ({"a": 48}, {"a": 64})


def test_a_salt_enters_the_first_page_all_the_same(kernel: Kernel) -> None:
    salt = extra_key(["s"])
    store(kernel, publisher(kernel), PROMPT, salt=salt)
    assert (ask(kernel, PROMPT, salt), ask(kernel, PROMPT)) == ({"a": 64}, {"a": 0})


def test_engines_with_pairs_and_without_have_one_answer(kernel: Kernel) -> None:
    store(kernel, publisher(kernel), PROMPT)
    store(kernel, publisher(kernel, "b"), PROMPT[:32], pairs=False)
    store(kernel, publisher(kernel, "b", dp_rank=1), PROMPT[:16], pairs=False)
    assert ask(kernel, PROMPT) == {"a": 64, "b": 32}
    (found,) = kernel.query(SCOPE, u32s(PROMPT), (), "a")
    assert found.longest == 64
    found = kernel.query(SCOPE, u32s(PROMPT), (), None)[1]
    assert [(one.dp_rank, one.matched) for one in found.ranks] == [(0, 32), (1, 16)]


def test_the_hashes_of_a_prompt_are_those_by_which_it_is_held(kernel: Kernel) -> None:
    def found() -> dict[str, int]:
        hashes = kernel.prefix_hashes(SCOPE, u32s(PROMPT), (), 9)
        return {one.instance_id: one.longest for one in kernel.query_by_hash(SCOPE, hashes, None)}

    of = publisher(kernel)
    assert len(kernel.prefix_hashes(SCOPE, u32s(PROMPT), (), 9)) == 4 * 8
    store(kernel, of, PROMPT)
    assert found() == {"a": 64}
    assert len(kernel.prefix_hashes(SCOPE, u32s(PROMPT), (), 3)) == 3 * 8
    store(kernel, publisher(kernel, "b"), PROMPT[:32], pairs=False)
    assert found() == {"a": 0, "b": 32}, "no list has both: plain blocks come first"


@pytest.mark.parametrize("pairs", [False, True])
def test_a_prompt_is_hashed_either_way_whatever_is_held(kernel: Kernel, pairs: bool) -> None:
    store(kernel, publisher(kernel), PROMPT, pairs=not pairs)
    keys = (extra_key(["s"]), b"", extra_key([["image", 3]]))
    for tokens in (PROMPT, PROMPT[:64], PROMPT[:15], [], list(range(70_000))):
        hashes = prefix_hashes(u32s(tokens), 16, seed=kernel.seed, keys=keys, pairs=pairs)
        assert kernel.hash_blocks(u32s(tokens), 16, keys, pairs) == u64s(list(hashes))
    assert kernel.hash_blocks(u32s(PROMPT), 2**62, (), pairs) == b"", "no block is so long"


@pytest.mark.parametrize("pairs", [False, True])
def test_both_kernels_answer_alike(pairs: bool) -> None:
    if not native_available():
        pytest.skip("the Rust kernel is not built")
    both = [open_kernel(1337, name=name) for name in ("reference", "rust")]
    for one in both:
        store(one, publisher(one), PROMPT)
        if pairs:
            store(one, publisher(one, "b"), PROMPT[:48], pairs=False)
    for length in range(len(PROMPT) + 2):
        tokens = u32s([*PROMPT, 5][:length])
        answers = [one.query(SCOPE, tokens, (), None) for one in both]
        assert answers[0] == answers[1]
        hashes = [one.prefix_hashes(SCOPE, tokens, (), 9) for one in both]
        assert hashes[0] == hashes[1]
        hashed = [one.hash_blocks(tokens, 16, (b"k", b"", b"i"), pairs) for one in both]
        assert hashed[0] == hashed[1]
    assert both[0].contexts() == both[1].contexts()
