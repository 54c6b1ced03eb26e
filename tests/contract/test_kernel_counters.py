"""What every kernel counts: each of `COUNTERS` is reached here, with the same values in each."""

from collections.abc import Callable
from typing import Any

import pytest
import xxhash

from schemas.events import ClearedBlocks, RemovedBlocks, StoredBlocks, encode_events
from schemas.identities import Medium, StreamKey
from schemas.limits import HOLD_COUNT_MAX
from streams.bounds import GROUP_MAX
from streams.kernel import Kernel
from streams.kernel.changes import Change, Op
from streams.kernel.interface import COUNTERS, PublisherId
from tests.contract.kernels import BOTH, kernel_of
from tests.strategies import (
    BLOCK_SIZE,
    Prompt,
    context_of,
    object_key,
    prompt_hashes,
    prompt_key,
    prompt_tokens,
    scope_of,
    u64s,
)

SCOPE = scope_of("")
ABC: Prompt = (0, 1, 2)


@pytest.fixture(params=BOTH)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return kernel_of(request, 11, waiting_max=5, left_out_max=4)


def opened(kernel: Kernel) -> PublisherId:
    return kernel.open_publisher(StreamKey(*SCOPE[:2], BLOCK_SIZE, "", "a"), 0)


def stored(prompt: Prompt = ABC, **fields: Any) -> StoredBlocks:
    values: dict[str, Any] = {
        "sequence": 1,
        "hashes": prompt_hashes(prompt),
        "tokens": prompt_tokens(prompt),
        "block_size": BLOCK_SIZE,
    }
    return StoredBlocks(**(values | fields))


def objects(prompt: Prompt = ABC, backend: int = 0) -> StoredBlocks:
    keys = [object_key(prompt[: i + 1], backend) for i in range(len(prompt))]
    return stored(prompt, tokens=b"", hashes=u64s(keys), aliases=prompt_hashes(prompt), shared=True)


def removed(prompt: Prompt = ABC, **fields: Any) -> RemovedBlocks:
    return RemovedBlocks(sequence=1, hashes=prompt_hashes(prompt), **fields)


def clear(kernel: Kernel) -> None:
    kernel.clear(opened(kernel))


def unregister(kernel: Kernel) -> None:
    kernel.unregister(opened(kernel))


def fill_count(kernel: Kernel) -> None:
    """The first block was announced as often as can be counted."""
    prefix = xxhash.xxh3_64_intdigest(prompt_tokens((0,)), kernel.seed)
    full = Change(prompt_key((0,)), prefix, 0, 0, Op.SET, HOLD_COUNT_MAX)
    kernel.load(context_of("", "a"), full.encode())


Step = StoredBlocks | RemovedBlocks | ClearedBlocks | Callable[[Kernel], None]

CASES: dict[str, tuple[list[Step], dict[str, int]]] = {
    "stored": ([stored()], {"stored": 3}),
    "stored again": ([stored(), stored()], {"stored": 6, "repeated": 3}),
    "stored on two media": ([stored(), stored(medium=Medium.CPU)], {"stored": 6}),
    "stored in a pool too": ([stored(), stored(shared=True)], {"stored": 6}),
    "removed": ([stored(), removed((0, 1))], {"stored": 3, "removed": 2}),
    "counted down": (
        [stored(), stored(), removed(), removed(), removed()],
        {"stored": 6, "repeated": 3, "removed": 6, "unknown_removed": 3},
    ),
    "cleared by an event": (
        [stored(), stored(medium=Medium.DISK), ClearedBlocks(sequence=1)],
        {"stored": 6, "cleared": 6},
    ),
    "cleared by a call": ([stored(), stored(), clear], {"stored": 6, "repeated": 3, "cleared": 3}),
    "cleared with the publisher": ([stored(), unregister], {"stored": 3, "cleared": 3}),
    "cleared of nothing": ([clear, ClearedBlocks(sequence=1), unregister], {}),
    "an unknown parent": ([stored(parent=5)], {"unknown_parent": 3}),
    "a parent of another adapter": (
        [stored((0,)), stored((1, 2), parent=prompt_key((0,)), lora_name="adapter")],
        {"stored": 1, "unknown_parent": 2},
    ),
    "a parent that was removed": (
        [stored((0,)), removed((0,)), stored((1, 2), parent=prompt_key((0,)))],
        {"stored": 1, "removed": 1, "unknown_parent": 2},
    ),
    "removed and never stored": ([removed()], {"unknown_removed": 3}),
    "removed from another medium": (
        [stored(), removed(medium=Medium.CPU)],
        {"stored": 3, "unknown_removed": 3},
    ),
    "a placeholder": (
        [stored((0,)), stored(tokens=b"", block_size=0, medium=Medium.CPU)],
        {"stored": 2, "unresolved": 2},
    ),
    "by their hashes": (
        [stored(tokens=b"", by_hash=True), removed((0, 1)), removed((0,))],
        {"stored": 3, "removed": 2, "unknown_removed": 1},
    ),
    "by their hashes, after a parent that nobody knows": (
        [stored(tokens=b"", by_hash=True, parent=5, extra_keys=(b"x",))],
        {"stored": 3},
    ),
    "by their hashes and by tokens": ([stored(by_hash=True)], {"token_count_mismatch": 3}),
    "by their hashes, of another size": (
        [stored(tokens=b"", by_hash=True, block_size=0)],
        {"block_size_mismatch": 3},
    ),
    "by their hashes, of a sparse group": (
        [stored(tokens=b"", by_hash=True, spec_kind="mamba")],
        {"skipped_group": 3},
    ),
    "a hash that is another block's by its tokens": (
        [stored(), stored(tokens=b"", by_hash=True)],
        {"stored": 3, "hash_conflict": 3},
    ),
    "a placeholder of what is known by its hash": (
        [
            stored(tokens=b"", by_hash=True),
            stored(tokens=b"", block_size=0, medium=Medium.CPU),
        ],
        {"stored": 6},
    ),
    "removed and announced anew by its hash": (
        [stored((0,)), removed((0,)), stored((0,), tokens=b"", by_hash=True)],
        {"stored": 2, "removed": 1},
    ),
    "objects that wait, and one too many": (
        [objects(), objects(backend=1), stored()],
        {"stored": 8, "waiting": 5, "waiting_overflow": 1, "joined": 5},
    ),
    "said again": ([stored(), stored(reported=True)], {"stored": 3, "reported": 3}),
    "said again, and not known in part": (
        [stored((0,)), stored(reported=True), removed(), removed()],
        {"stored": 3, "reported": 1, "removed": 3, "unknown_removed": 3},
    ),
    "said again of another tier": (
        [stored(), stored(reported=True, medium=Medium.CPU)],
        {"stored": 6},
    ),
    "said again without tokens": (
        [
            stored(),
            stored(tokens=b"", block_size=0, medium=Medium.CPU, reported=True),
            stored(tokens=b"", block_size=0, medium=Medium.CPU, reported=True),
        ],
        {"stored": 6, "reported": 3},
    ),
    "said again by its hash": (
        [stored(tokens=b"", by_hash=True), stored(tokens=b"", by_hash=True, reported=True)],
        {"stored": 3, "reported": 3},
    ),
    "said again of another block": (
        [stored((0,)), stored((1,), hashes=prompt_hashes((0,)), reported=True)],
        {"stored": 1, "hash_conflict": 1},
    ),
    "hashes of tokens of another seed": (
        [stored(tokens=b"", token_hashes=u64s([1, 2, 3]))],
        {"seed_mismatch": 3},
    ),
    "too few hashes of tokens": (
        [stored(tokens=b"", token_hashes=u64s([1, 2]))],
        {"token_count_mismatch": 3},
    ),
    "tokens and hashes of tokens": (
        [stored(token_hashes=u64s([1, 2, 3]))],
        {"token_count_mismatch": 3},
    ),
    "a prefix hash and a hash of tokens": (
        [stored(tokens=b"", by_hash=True, token_hashes=u64s([1, 2, 3]))],
        {"token_count_mismatch": 3},
    ),
    "hashes of tokens with extra keys": (
        [stored(tokens=b"", token_hashes=u64s([1, 2, 3]), extra_keys=(b"x",) * 3)],
        {"extra_keys_mismatch": 3},
    ),
    "another block size": ([stored(block_size=BLOCK_SIZE + 1)], {"block_size_mismatch": 3}),
    "no block size": ([stored(block_size=0)], {"block_size_mismatch": 3}),
    "too few tokens": ([stored(tokens=prompt_tokens((0, 1)))], {"token_count_mismatch": 3}),
    "too many tokens": ([stored(hashes=u64s([1]))], {"token_count_mismatch": 1}),
    "too few extra keys": ([stored(extra_keys=(b"a", b"b"))], {"extra_keys_mismatch": 3}),
    "too many extra keys": ([stored(extra_keys=(b"a",) * 4)], {"extra_keys_mismatch": 3}),
    "a sparse group": (
        [stored(spec_kind="mamba", group=GROUP_MAX), removed(group=GROUP_MAX)],
        {"skipped_group": 6},
    ),
    "a sparse group that is not remembered": (
        [stored(spec_kind="mamba", group=GROUP_MAX + 1), removed(group=GROUP_MAX + 1)],
        {"skipped_group": 3, "unknown_removed": 3},
    ),
    "a key of another block": (
        [stored((0,)), stored((1,), hashes=prompt_hashes((0,)))],
        {"stored": 1, "hash_conflict": 1},
    ),
    "left out by the bridge": (
        [stored(tokens=b"", left_out="unknown_field"), removed((0,)), removed(whole=True)],
        {"unusable": 3, "left_out_removed": 3, "unknown_removed": 1},
    ),
    "cleared of one medium": (
        [stored(), stored(medium=Medium.CPU), ClearedBlocks(sequence=1, medium=Medium.CPU)],
        {"stored": 6, "cleared": 3},
    ),
    "removed with all copies": (
        [stored(), stored(), removed(whole=True), removed()],
        {"stored": 6, "repeated": 3, "removed": 3, "unknown_removed": 3},
    ),
    "left out, and removed": (
        [stored(parent=5), removed((0, 1)), removed((0, 1))],
        {"unknown_parent": 3, "left_out_removed": 2, "unknown_removed": 2},
    ),
    "left out, and cleared": (
        [stored(parent=5), ClearedBlocks(sequence=1)],
        {"unknown_parent": 3, "cleared": 3},
    ),
    "left out, more than is kept": (
        [stored(parent=5), stored(parent=5, hashes=u64s([1, 2, 3]))],
        {"unknown_parent": 6, "left_out_overflow": 2},
    ),
    "one announcement too many": (
        [fill_count, stored((0, 1))],
        {"stored": 2, "hold_count_overflow": 1},
    ),
    "nothing in an event": (
        [stored((), hashes=b"", tokens=b""), RemovedBlocks(sequence=1, hashes=b"")],
        {},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_happens_is_counted(kernel: Kernel, case: str) -> None:
    steps, expected = CASES[case]
    for step in steps:
        if callable(step):
            step(kernel)
        else:
            kernel.apply(opened(kernel), encode_events([step]), -1)
    counted = {name: count for name, count in kernel.counters().items() if count}
    assert counted == expected


def test_every_counter_is_reached_by_a_case() -> None:
    reached = {name for _, expected in CASES.values() for name in expected}
    assert reached == set(COUNTERS)


def test_counters_are_those_of_the_interface_in_its_order(kernel: Kernel) -> None:
    assert list(kernel.counters().items()) == [(name, 0) for name in COUNTERS]


def test_counters_stay_with_the_process(kernel: Kernel) -> None:
    kernel.apply(opened(kernel), encode_events([stored()]), -1)
    kernel.unregister(opened(kernel))
    kernel.take_changes()
    before = kernel.counters()
    kernel.load(context_of("", "a"), Change(1, 2, 0, 0, Op.SET, 1).encode())
    kernel.query(SCOPE, prompt_tokens(ABC), (), None)
    assert kernel.counters() == before
    # What was folded before is skipped, and not counted again.
    kernel.apply(opened(kernel), encode_events([stored(), removed()]), 1)
    assert kernel.counters() == before
