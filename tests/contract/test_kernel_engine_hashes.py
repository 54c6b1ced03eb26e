"""What every kernel answers to hashes of engines: each publisher by its own names."""

import pytest

from schemas.events import ClearedBlocks, StoredBlocks, encode_events
from schemas.identities import Medium, PrefixScope, PublisherKey, StreamKey
from streams.kernel import Kernel
from streams.kernel.hashing import prefix_hashes
from streams.kernel.interface import EngineMatch, PublisherId
from tests.contract.kernels import ALL, kernel_of
from tests.strategies import u32s, u64s

BLOCK_SIZE = 2
SEED = 17
PROMPT = tuple(range(1, 9))


@pytest.fixture(params=ALL)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return kernel_of(request, SEED)


def stream(instance: str = "a", *, model: str = "m", tenant: str = "default") -> StreamKey:
    return StreamKey(tenant, model, BLOCK_SIZE, "", instance)


def store(
    kernel: Kernel,
    key: StreamKey,
    prompt: tuple[int, ...],
    names: list[int],
    *,
    rank: int = 0,
    lora_name: str = "",
    medium: Medium = Medium.GPU,
    shared: bool = False,
) -> PublisherId:
    """Each number of the prompt is a block of its own."""
    publisher = kernel.open_publisher(key, rank)
    tokens = u32s([token for block in prompt for token in (block, block)])
    event = StoredBlocks(
        sequence=1,
        hashes=u64s(names),
        tokens=tokens,
        parent=None,
        block_size=BLOCK_SIZE,
        lora_name=lora_name,
        medium=medium,
        shared=shared,
    )
    kernel.apply(publisher, encode_events([event]), -1)
    return publisher


def ask(
    kernel: Kernel, names: list[int], model: str | None = "m", tenant: str = "default"
) -> dict[tuple[str, int], int]:
    """How many blocks each instance and rank holds."""
    found = {}
    for publisher, blocks in kernel.query_by_engine_hash(tenant, model, u64s(names)):
        key = kernel.publisher(publisher)
        assert key is not None
        found[key.stream.instance_id, key.dp_rank] = blocks
    return found


NAMES = [2**63 + 5 * block for block in PROMPT]


def test_a_publisher_is_asked_by_its_own_names(kernel: Kernel) -> None:
    store(kernel, stream("a"), PROMPT, NAMES)
    store(kernel, stream("b"), PROMPT, [name ^ 1 for name in NAMES])
    assert ask(kernel, NAMES) == {("a", 0): 8}
    assert ask(kernel, [name ^ 1 for name in NAMES]) == {("b", 0): 8}


def test_one_name_for_two_blocks_is_each_publishers_own(kernel: Kernel) -> None:
    store(kernel, stream("a"), PROMPT, NAMES)
    store(kernel, stream("b"), tuple(reversed(PROMPT)), NAMES)
    assert ask(kernel, NAMES) == {("a", 0): 8, ("b", 0): 8}


def test_a_gap_ends_it_though_more_is_held_behind(kernel: Kernel) -> None:
    for instance, length in (("a", 8), ("b", 5), ("c", 1)):
        store(kernel, stream(instance), PROMPT[:length], NAMES[:length])
    assert ask(kernel, NAMES) == {("a", 0): 8, ("b", 0): 5, ("c", 0): 1}
    assert ask(kernel, [NAMES[0], 7, *NAMES[1:]]) == {("a", 0): 1, ("b", 0): 1, ("c", 0): 1}
    assert ask(kernel, [7, *NAMES]) == {}
    assert ask(kernel, []) == {}


def test_ranks_are_told_apart(kernel: Kernel) -> None:
    store(kernel, stream("a"), PROMPT, NAMES, rank=0)
    store(kernel, stream("a"), PROMPT[:2], NAMES[:2], rank=3)
    assert ask(kernel, NAMES) == {("a", 0): 8, ("a", 3): 2}


def test_any_medium_of_its_own_counts_and_a_shared_pool_does_not(kernel: Kernel) -> None:
    store(kernel, stream("a"), PROMPT, NAMES, medium=Medium.DISK)
    store(kernel, stream("b"), PROMPT, NAMES, shared=True)
    store(kernel, stream("c"), PROMPT[:3], NAMES[:3])
    store(kernel, stream("c"), PROMPT, NAMES, medium=Medium.CPU, shared=True)
    assert ask(kernel, NAMES) == {("a", 0): 8, ("c", 0): 3}


def test_adapters_are_told_apart_by_the_engine_alone(kernel: Kernel) -> None:
    store(kernel, stream("a"), PROMPT, NAMES, lora_name="adapter")
    store(kernel, stream("b"), PROMPT, NAMES)
    assert ask(kernel, NAMES) == {("a", 0): 8, ("b", 0): 8}


def test_of_another_model_or_tenant_nothing_is_said(kernel: Kernel) -> None:
    store(kernel, stream("a"), PROMPT, NAMES)
    store(kernel, stream("b", model="n"), PROMPT, NAMES)
    store(kernel, stream("c", tenant="t"), PROMPT, NAMES)
    assert ask(kernel, NAMES) == {("a", 0): 8}
    assert ask(kernel, NAMES, model=None) == {("a", 0): 8, ("b", 0): 8}
    assert ask(kernel, NAMES, model=None, tenant="t") == {("c", 0): 8}


def test_matches_are_sorted_by_handles_which_say_who_has_them(kernel: Kernel) -> None:
    handles = {}
    for instance in ("b", "é", "a"):
        for rank in (1, 0):
            handle = store(kernel, stream(instance), PROMPT[:1], NAMES[:1], rank=rank)
            handles[handle] = PublisherKey(stream(instance), rank)
    answer = kernel.query_by_engine_hash("default", "m", u64s(NAMES))
    assert answer == [EngineMatch(handle, 1) for handle in sorted(handles)]
    assert {handle: kernel.publisher(handle) for handle in handles} == handles


def test_a_handle_of_one_who_is_gone_is_nobodys(kernel: Kernel) -> None:
    gone = store(kernel, stream("a"), PROMPT, NAMES)
    kernel.unregister(gone)
    assert kernel.publisher(gone) is None
    assert store(kernel, stream("a"), PROMPT, NAMES) != gone
    assert kernel.publisher(gone) is None


def test_what_was_cleared_is_held_no_more(kernel: Kernel) -> None:
    gone = store(kernel, stream("a"), PROMPT, NAMES)
    store(kernel, stream("b"), PROMPT, NAMES)
    kernel.apply(gone, encode_events([ClearedBlocks(sequence=2)]), -1)
    assert ask(kernel, NAMES) == {("b", 0): 8}
    store(kernel, stream("a"), PROMPT[:2], NAMES[:2])
    assert ask(kernel, NAMES) == {("a", 0): 2, ("b", 0): 8}
    kernel.unregister(gone)
    assert ask(kernel, NAMES) == {("b", 0): 8}


def test_a_block_that_its_first_holder_named_otherwise_is_found_by_both(kernel: Kernel) -> None:
    mine = [*NAMES[:4], *(name ^ 2 for name in NAMES[4:])]
    store(kernel, stream("a"), PROMPT, mine)
    store(kernel, stream("b"), PROMPT, NAMES)
    assert ask(kernel, NAMES) == {("a", 0): 4, ("b", 0): 8}
    assert ask(kernel, mine) == {("a", 0): 8, ("b", 0): 4}


def test_hashes_of_tokens_become_prefix_hashes(kernel: Kernel) -> None:
    tokens = u32s([token for block in PROMPT for token in (block, block)])
    prefixes = u64s(list(prefix_hashes(tokens, BLOCK_SIZE, seed=SEED)))
    singles = [tokens[start : start + 8] for start in range(0, len(tokens), 8)]
    locals_ = b"".join(
        kernel.prefix_hashes(PrefixScope("t", "m", "", BLOCK_SIZE, ""), one, (), 1)
        for one in singles
    )
    assert kernel.chain_hashes(locals_) == prefixes
    assert kernel.chain_hashes(b"") == b""


def named(kernel: Kernel, instance: str, *, rank: int = 0, lora_name: str = "") -> list[int]:
    """What a publisher calls the blocks of the prompt."""
    tokens = u32s([token for block in PROMPT for token in (block, block)])
    scope = PrefixScope("default", "m", lora_name, BLOCK_SIZE, "")
    hashes = u64s(list(prefix_hashes(tokens, BLOCK_SIZE, seed=SEED)))
    names = kernel.engine_hashes(scope, hashes, instance, rank)
    return [int.from_bytes(names[at : at + 8], "little") for at in range(0, len(names), 8)]


def test_what_a_publisher_calls_the_blocks_of_a_prompt(kernel: Kernel) -> None:
    store(kernel, stream("a"), PROMPT, NAMES)
    store(kernel, stream("b"), PROMPT[:3], NAMES[:3], medium=Medium.CPU)
    store(kernel, stream("b"), PROMPT[:2], NAMES[:2], rank=1)
    assert named(kernel, "a") == NAMES
    assert named(kernel, "b") == NAMES[:3]
    assert named(kernel, "b", rank=1) == NAMES[:2]
    assert named(kernel, "c") == named(kernel, "a", rank=1) == []
    assert named(kernel, "a", lora_name="adapter") == []


def test_no_block_has_the_name_that_others_call_it_by(kernel: Kernel) -> None:
    others = [name ^ 1 for name in NAMES]
    store(kernel, stream("a"), PROMPT, NAMES)
    store(kernel, stream("b"), PROMPT, others)
    assert named(kernel, "a") == NAMES
    assert named(kernel, "b") in ([], others)


def test_what_is_in_a_pool_or_gone_has_no_name(kernel: Kernel) -> None:
    store(kernel, stream("a"), PROMPT, NAMES)
    store(kernel, stream("b"), PROMPT, NAMES, shared=True)
    assert named(kernel, "b") == []
    publisher = kernel.open_publisher(stream("a"), 0)
    kernel.apply(publisher, encode_events([ClearedBlocks(sequence=2)]), -1)
    assert named(kernel, "a") == []
