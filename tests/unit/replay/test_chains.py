"""Engine hashes become the prefix hashes that the kernel has of them."""

import random

from replay.chains import Chains, Link
from schemas.events import StoredBlocks, encode_events, extra_key
from schemas.identities import Medium, PublisherKey
from streams.kernel import open_kernel
from tests.building import BLOCK, STREAM, prefix_hashes, stored, u32s, u64s

A = PublisherKey(STREAM, 0)
B = PublisherKey(STREAM._replace(instance_id="b"), 0)
SEED = 1337


def prefixes(links: "list[Link | None] | tuple[Link | None, ...]") -> list[int | None]:
    return [None if link is None else link.prefix for link in links]


def test_prefixes_are_the_published_standard() -> None:
    chains = Chains(SEED)
    tokens = list(range(5 * BLOCK))
    first = chains.stored(A, stored(0, [1, 2], tokens[: 2 * BLOCK]))
    rest = chains.stored(A, stored(0, [3, 4, 5], tokens[2 * BLOCK :], parent=2))
    assert prefixes([*first, *rest]) == prefix_hashes(tokens)
    assert [link.blocks for link in (*first, *rest) if link] == [1, 2, 3, 4, 5]
    assert all(link and link.is_whole for link in (*first, *rest))
    other = chains.stored(B, stored(0, [77, 78], tokens[: 2 * BLOCK]))
    assert prefixes([*other]) == prefixes([*first])


def test_the_kernel_has_the_same_also_with_extra_keys() -> None:
    source = random.Random(5)
    tokens = [source.randrange(2**32) for _ in range(3 * BLOCK)]
    keys = (extra_key(["salt"]), b"", extra_key([["image", 3]]))
    event = StoredBlocks(
        sequence=0, hashes=u64s([1, 2, 3]), tokens=u32s(tokens), block_size=BLOCK, extra_keys=keys
    )
    kernel = open_kernel(SEED)
    publisher = kernel.open_publisher(*A)
    kernel.apply(publisher, encode_events([event]), -1)
    links = Chains(SEED).stored(A, event)
    kernel.register(publisher, "", True)
    by_hash = {link.prefix for link in links if link}
    [(_, changes)] = kernel.take_changes()
    found = {int.from_bytes(changes[at : at + 8], "little") for at in range(0, len(changes) - 7)}
    assert by_hash <= found


def test_a_block_may_be_named_by_its_prefix_hash() -> None:
    chains = Chains(SEED)
    named = StoredBlocks(sequence=0, hashes=u64s([5, 6]), block_size=BLOCK, by_hash=True, parent=4)
    assert chains.stored(A, named) == [Link(5, 1, None, True), Link(6, 1, None, True)]
    assert prefixes([*chains.stored(A, stored(1, [6], []))]) == [6]
    assert not chains.counters.total()


def test_a_placeholder_is_the_block_that_it_names() -> None:
    chains = Chains(SEED)
    links = chains.stored(A, stored(0, [1, 2], range(2 * BLOCK)))
    named = chains.stored(A, stored(1, [2, 9, 1], [], medium=Medium.CPU))
    assert list(named) == [links[1], None, links[0]]
    assert chains.counters == {"unresolved": 1}


def test_a_chain_without_a_beginning_is_one_publishers_own() -> None:
    chains = Chains(SEED)
    one = chains.stored(A, stored(0, [2], range(BLOCK), parent=1))[0]
    same = chains.stored(A, stored(0, [3], range(BLOCK), parent=1))[0]
    other = chains.stored(B, stored(0, [2], range(BLOCK), parent=1))[0]
    behind = chains.stored(A, stored(0, [4], range(BLOCK), parent=2))[0]
    assert one
    assert same
    assert other
    assert behind
    assert one.prefix == same.prefix != other.prefix
    assert [link.is_whole for link in (one, other, behind)] == [False] * 3
    assert chains.counters == {"unknown_parent": 3}


def test_what_is_forgotten_is_not_known() -> None:
    chains = Chains(SEED)
    chains.stored(A, stored(0, [1], range(BLOCK)))
    chains.forget(A)
    [link] = chains.stored(A, stored(0, [2], range(BLOCK), parent=1))
    assert link
    assert not link.is_whole


def test_it_is_bounded_and_the_oldest_go() -> None:
    chains = Chains(SEED, blocks_max=100)
    for number in range(1000):
        parent = number - 1 if number else None
        [link] = chains.stored(A, stored(0, [number], range(BLOCK), parent=parent))
        assert link
        assert link.is_whole
        assert chains._count == sum(map(len, chains._known.values())) <= 100
    assert chains.counters["forgotten"] >= 900


def test_what_no_fold_takes_is_no_chain() -> None:
    chains = Chains(SEED)
    sparse = StoredBlocks(
        sequence=0,
        hashes=u64s([1]),
        tokens=u32s(range(BLOCK)),
        block_size=BLOCK,
        spec_kind="sliding_window",
    )
    short = StoredBlocks(
        sequence=0, hashes=u64s([1, 2]), tokens=u32s(range(BLOCK)), block_size=BLOCK
    )
    assert list(chains.stored(A, sparse)) == [None]
    assert list(chains.stored(A, short)) == [None, None]
    assert chains.counters == {"skipped_group": 1, "mismatch": 2}
