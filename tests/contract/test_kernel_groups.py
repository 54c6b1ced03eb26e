"""An engine finds a block where each of its cache groups that form prefixes has it: while these
differ, both kernels say so.
"""

from typing import Any

import pytest

from schemas.events import SPARSE_SPEC_KINDS, ClearedBlocks, RemovedBlocks, StoredBlocks
from schemas.identities import GROUPS_DIFFER, Medium
from streams.bounds import GROUP_MAX
from streams.kernel import open_kernel
from streams.kernel.changes import engine_key
from streams.kernel.interface import PublisherId
from streams.kernel.reference import GROUPS_MASK
from tests.contract.kernels import ALL, kernel_of
from tests.contract.test_kernel_contract import ABC, SEED, Bench, placeholder
from tests.strategies import BLOCK_SIZE, prompt_hashes, scope_of, u64s


@pytest.fixture(params=ALL)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(kernel_of(request, SEED))


def removed(start: int = 0, group: int = 0, medium: Medium = Medium.GPU) -> RemovedBlocks:
    hashes = prompt_hashes(ABC, start=start)
    return RemovedBlocks(sequence=1, hashes=hashes, group=group, medium=medium)


def differing(bench: Bench, publisher: PublisherId) -> int:
    """Blocks, by tier, that not all groups hold; nothing else is left out."""
    left_out = dict(bench.kernel.left_out(publisher))
    blocks = left_out.pop(GROUPS_DIFFER, 0)
    assert not left_out
    return blocks


@pytest.mark.parametrize("groups", [(0, 1), (1, 0), (3, 64), (2, 0, 7)])
def test_groups_agree_where_each_has_the_same_blocks(bench: Bench, groups: tuple[int, ...]) -> None:
    publisher = bench.publisher()
    for number, group in enumerate(groups):
        bench.store(publisher, ABC, group=group)
        assert differing(bench, publisher) == 0
        assert bench.kernel.stats()["entries"] == 3 * (number + 1)


@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("start", [0, 2])
def test_what_one_of_them_has_removed_differs_until_the_others_have(
    bench: Bench, group: int, start: int
) -> None:
    publisher = bench.publisher()
    for one in (0, 1):
        bench.store(publisher, ABC, group=one)
    bench.apply(publisher, removed(start, group))
    assert (bench.ask(ABC), differing(bench, publisher)) == ({"a": 3}, 3 - start)
    bench.apply(publisher, removed(start, 1 - group))
    assert differing(bench, publisher) == 0
    assert bench.ask(ABC) == ({"a": start} if start else {})


def test_what_one_of_them_has_stored_differs_until_the_others_have(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, (7,))
    bench.store(publisher, ABC[:1], group=1)
    assert differing(bench, publisher) == 2, "not one block of both"
    bench.store(publisher, (7,), group=1)
    bench.store(publisher, ABC)
    assert differing(bench, publisher) == 2
    bench.store(publisher, ABC, group=1)
    assert differing(bench, publisher) == 0
    bench.store(publisher, ABC, group=1)
    assert differing(bench, publisher) == 0, "a further copy"


def test_a_group_is_known_until_the_engine_ends_though_it_holds_nothing(bench: Bench) -> None:
    publisher = bench.publisher()
    for group in (0, 1):
        bench.store(publisher, ABC, group=group)
    for group in (0, 1):
        bench.apply(publisher, removed(group=group))
    assert (differing(bench, publisher), bench.kernel.stats()["entries"]) == (0, 0)
    bench.store(publisher, ABC)
    assert differing(bench, publisher) == 3
    bench.apply(publisher, ClearedBlocks(sequence=2))
    assert (differing(bench, publisher), bench.kernel.stats()["entries"]) == (0, 0)
    bench.store(publisher, ABC)
    assert differing(bench, publisher) == 3
    bench.store(publisher, ABC, group=1)
    assert differing(bench, publisher) == 0
    bench.kernel.clear(publisher)
    assert (differing(bench, publisher), bench.kernel.contexts()) == (0, [])
    bench.store(publisher, ABC)
    assert differing(bench, publisher) == 0


@pytest.mark.parametrize("clears", [False, True])
def test_the_first_group_is_known_though_it_was_evicted_before_another_stores(
    bench: Bench, clears: bool
) -> None:
    publisher = bench.publisher()
    assert not bench.kernel.has_base_group(publisher)
    bench.store(publisher, ABC)
    gone = ClearedBlocks(sequence=1) if clears else removed()
    bench.apply(publisher, gone)
    assert bench.kernel.has_base_group(publisher)
    assert bench.kernel.contexts() == [], "no row says so"
    bench.store(publisher, ABC, group=1)
    assert differing(bench, publisher) == 3
    bench.kernel.clear(publisher)
    assert not bench.kernel.has_base_group(publisher)
    bench.store(publisher, ABC, group=1)
    assert differing(bench, publisher) == 0, "another engine may have no other group"


def test_a_first_group_that_forms_no_prefix_is_none_of_them(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, (7,), spec_kind="sliding_window")
    bench.store(publisher, ABC, group=1)
    bench.apply(publisher, ClearedBlocks(sequence=2))
    bench.store(publisher, ABC, group=1)
    assert differing(bench, publisher) == 0
    assert not bench.kernel.has_base_group(publisher)


def test_the_first_group_is_known_where_rows_said_so(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.kernel.set_base_group(publisher)
    bench.store(publisher, ABC, group=1)
    assert differing(bench, publisher) == 3


def test_a_block_that_is_named_like_a_group_stays_a_block(bench: Bench) -> None:
    for group in (0, 1):
        publisher = bench.publisher(str(group))
        named = u64s([engine_key(GROUPS_MASK ^ group, 0)])
        bench.apply(
            publisher,
            by_hash := StoredBlocks(sequence=1, hashes=named, block_size=BLOCK_SIZE, by_hash=True),
        )
        bench.store(publisher, ABC)
        bench.store(publisher, ABC, group=1)
        assert bench.ask(ABC)[str(group)] == 3
        bench.remove(publisher, by_hash.hashes)
        answer = bench.kernel.query_by_hash(scope_of(""), named, str(group))
        assert [one.longest for one in answer] == [0]


@pytest.mark.parametrize("kind", sorted(SPARSE_SPEC_KINDS))
def test_blocks_of_groups_that_an_engine_needs_are_counted_until_it_ends(
    bench: Bench, kind: str
) -> None:
    publisher, blocks_of = bench.publisher(), bench.kernel.sparse_blocks
    is_needed = kind not in ("encoder_only_attention", "cross_attention")
    bench.store(publisher, ABC)
    bench.store(publisher, ABC, group=1, spec_kind="lightning_indexer")
    assert blocks_of(publisher) is None
    rows = bench.kernel.contexts()
    for _ in range(2):
        bench.store(publisher, ABC, group=2, spec_kind=kind)
    assert blocks_of(publisher) == (6 if is_needed else None)
    bench.apply(publisher, removed(group=2))
    assert bench.kernel.contexts() == rows, "no row says so"
    assert bench.kernel.left_out(publisher) == []
    for medium in (Medium.GPU, None):
        bench.apply(publisher, ClearedBlocks(sequence=2, medium=medium))
        assert blocks_of(publisher) == (6 if is_needed else None)
    bench.store(publisher, ABC, group=2, spec_kind=kind, medium=Medium.CPU)
    assert blocks_of(publisher) == (9 if is_needed else None)
    bench.kernel.clear(publisher)
    assert blocks_of(publisher) is None, "another engine may have no such group"


def test_an_event_without_blocks_tells_of_a_group(bench: Bench) -> None:
    publisher = bench.publisher()
    event = StoredBlocks(sequence=1, hashes=b"", group=1, spec_kind="mamba", block_size=BLOCK_SIZE)
    bench.apply(publisher, event)
    assert bench.kernel.sparse_blocks(publisher) == 0


def test_what_was_counted_before_counts_on(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.kernel.set_sparse_blocks(publisher, 2**40, False)
    bench.store(publisher, ABC, spec_kind="mamba")
    assert bench.kernel.sparse_blocks(publisher) == 2**40 + 3


def test_tiers_differ_apart_and_a_clear_of_one_forgets_no_group(bench: Bench) -> None:
    publisher = bench.publisher()
    for group in (0, 1):
        bench.store(publisher, ABC, group=group)
    bench.apply(publisher, placeholder(ABC))
    assert differing(bench, publisher) == 3
    bench.apply(publisher, placeholder(ABC, group=1))
    assert differing(bench, publisher) == 0
    bench.apply(publisher, ClearedBlocks(sequence=2, medium=Medium.GPU))
    bench.apply(publisher, removed(1, group=1, medium=Medium.CPU))
    assert (bench.ask(ABC), differing(bench, publisher)) == ({"a": 3}, 2)


UNUSABLE: dict[str, dict[str, Any]] = {
    "block_size": {"block_size": BLOCK_SIZE + 1},
    "unknown_parent": {"parent": 5},
    "unknown_field": {"tokens": b"", "left_out": "unknown_field"},
}


@pytest.mark.parametrize("fields", UNUSABLE.values(), ids=list(UNUSABLE))
def test_a_group_whose_blocks_cannot_be_used_has_none_of_the_others(
    bench: Bench, fields: dict[str, Any]
) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    bench.store(publisher, (7,), group=1, **fields)
    bench.apply(publisher, RemovedBlocks(sequence=1, hashes=prompt_hashes((7,)), group=1))
    assert differing(bench, publisher) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"spec_kind": "sliding_window"},
        {"spec_kind": "lightning_indexer", "tokens": b"\1\0\0\0"},
        {"tokens": b"", "block_size": 0},
    ],
)
def test_sparse_groups_and_placeholders_show_no_group(bench: Bench, fields: dict[str, Any]) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    bench.store(publisher, ABC, group=1, **fields)
    assert dict(bench.kernel.left_out(publisher)).keys().isdisjoint({GROUPS_DIFFER})


def test_no_more_groups_are_known_than_an_engine_can_have(bench: Bench) -> None:
    publisher = bench.publisher()
    for group in range(GROUP_MAX + 3):
        bench.store(publisher, (0,), group=group)
    [view] = [one for one in bench.kernel.contexts() if one.context.lora_name == "\0groups"]
    assert view.entries == GROUP_MAX + 1


def test_an_adapters_blocks_are_counted_as_well(bench: Bench) -> None:
    publisher = bench.publisher()
    for lora_name in ("", "adapter"):
        bench.store(publisher, ABC, lora_name=lora_name)
    bench.store(publisher, ABC, group=1)
    assert differing(bench, publisher) == 3
    bench.store(publisher, ABC, group=1, lora_name="adapter")
    assert differing(bench, publisher) == 0


def test_rows_have_it(bench: Bench) -> None:
    publisher = bench.publisher()
    for group in (0, 1):
        bench.store(publisher, ABC, group=group)
    bench.apply(publisher, removed(1, group=1))
    loaded = Bench(open_kernel(SEED, name=bench.kernel.name))
    for view in bench.kernel.contexts():
        for rows in bench.kernel.dump(view.context, 2):
            loaded.kernel.load(view.context, rows)
    replayed = Bench(open_kernel(SEED, name=bench.kernel.name))
    for context, changes in reversed(bench.kernel.take_changes()):
        replayed.kernel.load(context, changes)
    for other in (loaded, replayed):
        assert other.kernel.contexts() == bench.kernel.contexts()
        again = other.publisher()
        assert differing(other, again) == 2
        other.apply(again, removed(1))
        assert (other.ask(ABC), differing(other, again)) == ({"a": 1}, 0)
        other.kernel.clear(again)
        assert (differing(other, again), other.kernel.contexts()) == (0, [])


def test_a_row_that_clears_forgets_the_groups_or_the_blocks(bench: Bench) -> None:
    for kept in ("", "\0groups"):
        publisher = bench.publisher()
        bench.store(publisher, ABC)
        bench.store(publisher, ABC[:1], group=1)
        assert differing(bench, publisher) == 2
        other = Bench(open_kernel(SEED, name=bench.kernel.name))
        other.store(other.publisher(), ABC[:1])
        other.store(other.publisher(), ABC[:1], group=1)
        other.kernel.take_changes()
        other.kernel.clear(other.publisher())
        for context, changes in other.kernel.take_changes():
            if context.lora_name != kept:
                bench.kernel.load(context, changes)
        assert differing(bench, publisher) == 0
        bench.kernel.clear(publisher)


def test_an_engine_that_names_an_entry_of_these_changes_what_is_known_alike(bench: Bench) -> None:
    publisher = bench.publisher()
    for group in (0, 1):
        bench.store(publisher, ABC, group=group)
    bench.apply(publisher, removed(2, group=1))
    [groups] = [one for one in bench.kernel.contexts() if one.context.lora_name == "\0groups"]
    [rows] = bench.kernel.dump(groups.context, 2)
    bench.remove(publisher, u64s([int.from_bytes(rows[:8], "little")]))
    assert differing(bench, publisher) == 0
    assert bench.kernel.stats()["entries"] == 5
