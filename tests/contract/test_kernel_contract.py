"""What every kernel does with events: who holds what, under which counts, and what is left out."""

from collections.abc import Sequence
from typing import Any

import pytest
import xxhash

from schemas.errors import EventsFormatError
from schemas.events import (
    TOKEN_HASH_SEED,
    ClearedBlocks,
    RemovedBlocks,
    StoredBlocks,
    encode_events,
    extra_key,
)
from schemas.identities import MEDIA, Medium, ModelContext, PrefixScope, StreamKey
from schemas.limits import HOLD_COUNT_MAX
from streams.kernel import Kernel, open_kernel
from streams.kernel.changes import Change, Op, decode_changes, engine_key
from streams.kernel.hashing import prefix_hashes
from streams.kernel.interface import PublisherId, ScopeView
from tests.contract.kernels import ALL, BOTH, kernel_of
from tests.strategies import (
    BLOCK_SIZE,
    Prompt,
    context_of,
    prompt_hashes,
    prompt_key,
    prompt_locals,
    prompt_tokens,
    scope_of,
    u64s,
)

SEED = 17
SCOPE = scope_of("")
ABC: Prompt = (0, 1, 2)


class Bench:
    """A kernel with short ways to store, remove and ask. Depths are in blocks."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def publisher(self, instance: str = "a", rank: int = 0) -> PublisherId:
        stream = StreamKey(SCOPE.tenant_id, SCOPE.model_name, BLOCK_SIZE, "", instance)
        return self.kernel.open_publisher(stream, rank)

    def apply(
        self,
        publisher: PublisherId,
        *events: StoredBlocks | RemovedBlocks | ClearedBlocks,
        after: int = -1,
    ) -> None:
        self.kernel.apply(publisher, encode_events([*events]), after)

    def store(self, publisher: PublisherId, prompt: Prompt, **fields: Any) -> None:
        self.apply(publisher, stored(prompt, **fields))

    def remove(self, publisher: PublisherId, hashes: bytes, medium: Medium = Medium.GPU) -> None:
        self.apply(publisher, RemovedBlocks(sequence=1, hashes=hashes, medium=medium))

    def ask(
        self, prompt: Prompt, scope: PrefixScope = SCOPE, keys: Sequence[bytes] = ()
    ) -> dict[str, int]:
        """Longest match of each instance, in blocks."""
        answer = self.kernel.query(scope, prompt_tokens(prompt), keys, None)
        return {match.instance_id: match.longest // BLOCK_SIZE for match in answer}

    def ranks(self, prompt: Prompt) -> dict[tuple[str, int], tuple[int, int, int, int]]:
        """(matched, gpu, cpu, disk walk) of each rank, in blocks."""
        answer = self.kernel.query(SCOPE, prompt_tokens(prompt), (), None)
        found = {}
        for match in answer:
            for rank, *depths in match.ranks:
                matched, gpu, cpu, disk = (depth // BLOCK_SIZE for depth in depths)
                found[match.instance_id, rank] = (matched, gpu, cpu, disk)
        return found

    def counted(self) -> dict[str, int]:
        """Counters that are not 0."""
        return {name: count for name, count in self.kernel.counters().items() if count}

    def blocks(self) -> int:
        while self.kernel.release_left(1):
            pass
        return self.kernel.stats()["blocks"]


def stored(prompt: Prompt, *, start: int = 0, lora_name: str = "", **fields: Any) -> StoredBlocks:
    """The blocks of a prompt from `start` on, as an engine announces them."""
    values: dict[str, Any] = {
        "sequence": 1,
        "hashes": prompt_hashes(prompt, lora_name, start),
        "tokens": prompt_tokens(prompt)[4 * BLOCK_SIZE * start :],
        "parent": prompt_key(prompt[:start], lora_name) if start else None,
        "block_size": BLOCK_SIZE,
        "lora_name": lora_name,
    }
    return StoredBlocks(**(values | fields))


@pytest.fixture(params=ALL)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(kernel_of(request, SEED))


def test_prefix_hashes_are_chained_xxh3_with_the_seed(bench: Bench) -> None:
    bench.store(bench.publisher(), ABC)
    local = [xxhash.xxh3_64_intdigest(prompt_tokens((kind,)), SEED) for kind in ABC]
    prefixes = [local[0]]
    for value in local[1:]:
        link = prefixes[-1].to_bytes(8, "little") + value.to_bytes(8, "little")
        prefixes.append(xxhash.xxh3_64_intdigest(link, SEED))
    [(context, changes)] = bench.kernel.take_changes()
    assert context == context_of("", "a")
    assert [change.prefix for change in decode_changes(changes)] == prefixes
    answer = bench.kernel.query_by_hash(SCOPE, u64s(prefixes), None)
    assert answer == bench.kernel.query(SCOPE, prompt_tokens(ABC), (), None)
    assert answer[0].longest == 3 * BLOCK_SIZE


def test_a_digest_is_the_sum_over_live_entries(bench: Bench) -> None:
    bench.store(bench.publisher(), ABC)
    bench.store(bench.publisher(), ABC)
    [(_, changes)] = bench.kernel.take_changes()
    live = [change.encode() for change in decode_changes(changes)][3:]
    [view] = bench.kernel.contexts()
    assert (view.context, view.entries) == (context_of("", "a"), 3)
    assert view.digest == sum(xxhash.xxh3_64_intdigest(change) for change in live) % 2**64


def test_a_block_goes_with_its_last_announcement(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    bench.store(publisher, ABC)
    bench.remove(publisher, prompt_hashes(ABC))
    assert bench.ask(ABC) == {"a": 3}
    bench.remove(publisher, prompt_hashes(ABC))
    assert bench.ask(ABC) == {}
    assert bench.counted() == {"stored": 6, "repeated": 3, "removed": 6}
    [(_, changes)] = bench.kernel.take_changes()
    assert [change.holds for change in decode_changes(changes)] == [1] * 3 + [2] * 3 + [1] * 3 + [
        0
    ] * 3


def test_counting_stops_at_the_bound(bench: Bench) -> None:
    publisher = bench.publisher()
    prefix = xxhash.xxh3_64_intdigest(prompt_tokens((0,)), SEED)
    full = Change(prompt_key((0,)), prefix, 0, 0, Op.SET, HOLD_COUNT_MAX).encode()
    bench.kernel.load(context_of("", "a"), full)
    bench.store(publisher, (0,))
    assert bench.counted() == {"stored": 1, "hold_count_overflow": 1}
    assert bench.kernel.left_out(publisher) == [("hold_count", 1)]
    bench.kernel.take_changes()
    bench.remove(publisher, prompt_hashes((0,)))
    [(_, changes)] = bench.kernel.take_changes()
    assert [change.holds for change in decode_changes(changes)] == [HOLD_COUNT_MAX - 1]


def test_two_keys_of_one_block_hold_it_until_both_are_removed(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, (0,))
    bench.store(publisher, (0,), hashes=u64s([7]))
    bench.remove(publisher, prompt_hashes((0,)))
    assert (bench.ask((0,)), bench.blocks()) == ({"a": 1}, 1)
    bench.remove(publisher, u64s([7]))
    assert (bench.ask((0,)), bench.blocks()) == ({}, 0)


def test_adapters_are_scopes_of_their_own(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    bench.store(publisher, (0, 1), lora_name="adapter")
    assert bench.ask(ABC) == {"a": 3}
    assert bench.ask(ABC, scope_of("adapter")) == {"a": 2}
    assert [view.context.lora_name for view in bench.kernel.contexts()] == ["", "adapter"]
    # A removal names no adapter: the key says which block it is.
    bench.remove(publisher, prompt_hashes((0, 1), "adapter"))
    assert bench.ask(ABC, scope_of("adapter")) == {}
    assert bench.ask(ABC) == {"a": 3}


def test_a_parent_of_another_adapter_is_unknown(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    child = stored((0, 1, 2, 0), start=3, lora_name="adapter", parent=prompt_key(ABC))
    bench.apply(publisher, child)
    assert bench.counted() == {"stored": 3, "unknown_parent": 1}


def test_blocks_after_an_unknown_parent_are_left_out(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC, start=1)
    assert bench.counted() == {"unknown_parent": 2}
    assert bench.kernel.scopes() == []
    assert bench.kernel.left_out(publisher) == [("unknown_parent", 2)]


def test_ranks_and_instances_are_told_apart(bench: Bench) -> None:
    bench.store(bench.publisher("b", 1), (0,))
    bench.store(bench.publisher("b", 0), (0, 1))
    bench.store(bench.publisher("a", 3), ABC)
    assert bench.ask(ABC) == {"a": 3, "b": 2}
    assert {key: depths[0] for key, depths in bench.ranks(ABC).items()} == {
        ("a", 3): 3,
        ("b", 0): 2,
        ("b", 1): 1,
    }
    [view] = bench.kernel.scopes()
    assert (view.scope, view.blocks, view.instances) == (SCOPE, 3, {"a": [3], "b": [0, 1]})


def test_media_are_told_apart(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC, medium=Medium.DISK)
    bench.store(publisher, (0, 1), medium=Medium.CPU)
    bench.store(publisher, (0,))
    [match] = bench.kernel.query(SCOPE, prompt_tokens(ABC), (), None)
    assert match[1:5] == (3 * BLOCK_SIZE, BLOCK_SIZE, 2 * BLOCK_SIZE, 3 * BLOCK_SIZE)


def test_ranks_of_an_instance_complete_each_other(bench: Bench) -> None:
    bench.store(bench.publisher("a", 0), (0,))
    bench.store(bench.publisher("a", 1), (0, 1))
    bench.remove(bench.publisher("a", 1), prompt_hashes((0,)))
    assert bench.ask(ABC) == {"a": 2}
    assert {rank: depths[0] for (_, rank), depths in bench.ranks(ABC).items()} == {0: 1, 1: 0}


def test_shards_of_an_instance_have_what_all_of_them_have(bench: Bench) -> None:
    first, second = (bench.publisher("a", rank) for rank in (0, 1))
    for one in (first, second):
        bench.kernel.register(one, "", True, True)
        bench.store(one, ABC, medium=Medium.CPU)
        bench.store(one, (0, 1), medium=Medium.DISK)
    assert bench.ask(ABC) == {"a": 3}
    bench.remove(second, prompt_hashes(ABC)[8:], medium=Medium.CPU)
    [match] = bench.kernel.query(SCOPE, prompt_tokens(ABC), (), None)
    assert match[1:5] == (2 * BLOCK_SIZE, 0, BLOCK_SIZE, 2 * BLOCK_SIZE)
    assert bench.ranks(ABC) == {("a", 0): (2, 0, 2, 2), ("a", 1): (2, 0, 1, 2)}
    bench.kernel.clear(second)
    assert bench.ask(ABC) == {"a": 0}
    bench.store(bench.publisher("pool"), (0, 1), medium=Medium.DISK, shared=True)
    assert bench.ask(ABC) == {"a": 2}
    bench.kernel.unregister(second)
    assert bench.ask(ABC) == {"a": 3}
    bench.kernel.register(first, "", True, False)
    bench.store(bench.publisher("a", 1), (0,))
    assert bench.ask(ABC) == {"a": 3}


def test_a_shared_pool_counts_for_every_instance_and_is_none_itself(bench: Bench) -> None:
    pool = bench.publisher("pool")
    bench.store(pool, ABC, medium=Medium.CPU, shared=True)
    assert bench.ask(ABC) == {}
    assert not bench.kernel.knows(SCOPE)
    bench.kernel.register(bench.publisher("a"), "", True)
    bench.kernel.register(pool, "", False)
    bench.store(bench.publisher("b"), (0,))
    assert bench.ask(ABC) == {"a": 3, "b": 3}
    assert bench.ranks(ABC) == {("a", 0): (0, 0, 3, 3), ("b", 0): (1, 1, 3, 3)}


def reading(bench: Bench, instance: str, reads: list[str] | None, rank: int = 0) -> PublisherId:
    publisher = bench.publisher(instance, rank)
    bench.kernel.register(publisher, "", True, False, reads)
    return publisher


def walk_of(bench: Bench, instance: str) -> tuple[int, ...]:
    """What an answer says of ABC: longest, GPU, CPU and DISK, in blocks."""
    [match] = bench.kernel.query(SCOPE, prompt_tokens(ABC), (), instance)
    return tuple(depth // BLOCK_SIZE for depth in match[1:5])


def test_a_shared_pool_counts_for_those_alone_that_read_it(bench: Bench) -> None:
    member, other = bench.publisher("pool#3"), bench.publisher("other")
    bench.kernel.register(member, "", False, False, None, "pool")
    bench.kernel.register(other, "", False)
    bench.store(member, (0, 1), medium=Medium.CPU, shared=True)
    bench.store(other, ABC, medium=Medium.DISK, shared=True)
    reading(bench, "every", None)
    bench.store(reading(bench, "none", []), (0,))
    for some in ("pool", "other"):
        reading(bench, some[0], ["absent", some])
    assert bench.ask(ABC) == {"every": 3, "none": 1, "o": 3, "p": 2}
    assert walk_of(bench, "every") == (3, 0, 2, 3)
    assert walk_of(bench, "none") == (1, 1, 0, 0)
    assert (walk_of(bench, "p"), walk_of(bench, "o")) == ((2, 0, 2, 0), (3, 0, 0, 3))
    assert bench.ranks(ABC) == {
        ("every", 0): (0, 0, 2, 3),
        ("none", 0): (1, 1, 1, 1),
        ("o", 0): (0, 0, 0, 3),
        ("p", 0): (0, 0, 2, 2),
    }


def test_what_is_read_is_another_at_once_and_no_block_is_lost(bench: Bench) -> None:
    stores, reads = reading(bench, "a", []), reading(bench, "b", [])
    bench.store(stores, ABC, medium=Medium.CPU, shared=True)
    assert bench.ask(ABC) == {"a": 3, "b": 0}, "its own always count for it"
    bench.store(reads, (0,))
    reading(bench, "b", ["a"])
    assert bench.ask(ABC) == {"a": 3, "b": 3}
    reading(bench, "b", ["c"])
    assert bench.ask(ABC) == {"a": 3, "b": 1}
    reading(bench, "b", None)
    assert bench.ask(ABC) == {"a": 3, "b": 3}


def test_who_begins_to_share_or_comes_back_is_read_by_its_name(bench: Bench) -> None:
    reading(bench, "b", ["a"])
    for _ in range(3):
        stores = bench.publisher("a")
        assert bench.ask(ABC) == {"b": 0}
        bench.store(stores, ABC, medium=Medium.CPU, shared=True)
        assert bench.ask(ABC) == {"b": 3}
        bench.kernel.clear(stores)
        bench.store(bench.publisher("c"), ABC, medium=Medium.CPU, shared=True)
        assert bench.ask(ABC) == {"b": 0}
        bench.store(stores, (0,), medium=Medium.CPU, shared=True)
        assert bench.ask(ABC) == {"b": 1}
        bench.kernel.unregister(stores)
        bench.kernel.unregister(bench.publisher("c"))


def test_each_rank_reads_what_it_is_registered_with_in_each_adapters_scope(bench: Bench) -> None:
    first, second = reading(bench, "a", []), reading(bench, "a", ["pool"], rank=1)
    pool = bench.publisher("pool")
    bench.kernel.register(pool, "", False)
    for lora_name in ("", "x"):
        bench.store(pool, ABC, medium=Medium.CPU, shared=True, lora_name=lora_name)
        bench.store(first, (0,), lora_name=lora_name)
    assert bench.ranks(ABC) == {("a", 0): (1, 1, 1, 1), ("a", 1): (0, 0, 3, 3)}
    assert bench.ask(ABC) == {"a": 3}
    adapted = scope_of("x")
    assert bench.ask(ABC, adapted) == {"a": 1}
    bench.store(second, (2,), lora_name="x")
    assert bench.ask(ABC, adapted) == {"a": 3}


def test_a_shard_that_does_not_read_a_pool_lacks_what_it_has_not_itself(bench: Bench) -> None:
    first, second = (bench.publisher("a", rank) for rank in (0, 1))
    bench.store(bench.publisher("pool"), ABC, medium=Medium.DISK, shared=True)
    for one, reads in ((first, ["pool"]), (second, ["other"])):
        bench.kernel.register(one, "", True, True, reads)
    assert bench.ask(ABC) == {"a": 0}
    bench.store(second, (0, 1), medium=Medium.CPU)
    assert bench.ask(ABC) == {"a": 2}
    bench.kernel.register(second, "", True, True, ["pool"])
    assert bench.ask(ABC) == {"a": 3}


def test_the_walk_goes_down_the_tiers_and_never_up(bench: Bench) -> None:
    publisher = bench.publisher()
    tiers = (Medium.GPU, Medium.DISK, Medium.CPU, Medium.DISK)
    prompt = (0, 1, 2, 0)
    for i, medium in enumerate(tiers):
        bench.store(publisher, prompt[: i + 1], start=i, medium=medium)
    # From the GPU's block on there is none on the CPU, and one on disk.
    assert bench.ranks(prompt) == {("a", 0): (4, 1, 1, 2)}


def test_a_walk_goes_on_in_a_shared_pool(bench: Bench) -> None:
    bench.store(bench.publisher(), (0,))
    bench.store(bench.publisher("pool"), (0, 1), medium=Medium.CPU, shared=True)
    bench.store(bench.publisher("pool"), ABC, medium=Medium.DISK, shared=True)
    assert bench.ranks(ABC)["a", 0] == (1, 1, 2, 3)


def test_a_hole_ends_the_match_until_it_is_stored_again(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    bench.remove(publisher, prompt_hashes((0, 1))[8:])
    assert bench.ask(ABC) == {"a": 1}
    bench.store(publisher, (0, 1), start=1)
    assert bench.ask(ABC) == {"a": 3}


def test_nobody_is_credited_with_what_another_one_stored_below_a_common_prefix(
    bench: Bench,
) -> None:
    """Dynamo's indexer, with more than one thread, gives the first one all four blocks."""
    one, other = bench.publisher("one"), bench.publisher("other")
    bench.store(one, (0, 1, 2, 4, 5, 6, 7))
    bench.store(other, (0,))
    bench.store(other, (0, 1, 2, 3), start=1)
    bench.remove(other, prompt_hashes((0, 1, 2)))
    assert bench.ask((0, 1, 2, 3)) == {"one": 3, "other": 0}


def test_a_partial_block_does_not_count(bench: Bench) -> None:
    bench.store(bench.publisher(), ABC)
    [match] = bench.kernel.query(SCOPE, prompt_tokens(ABC)[:-4], (), None)
    assert match.longest == 2 * BLOCK_SIZE
    [match] = bench.kernel.query(SCOPE, b"", (), None)
    assert match.longest == 0


def test_an_instance_can_be_asked_alone(bench: Bench) -> None:
    for instance in ("a", "b"):
        bench.store(bench.publisher(instance), ABC)
    everyone = bench.kernel.query(SCOPE, prompt_tokens(ABC), (), None)
    assert bench.kernel.query(SCOPE, prompt_tokens(ABC), (), "b") == everyone[1:]
    assert bench.kernel.query(SCOPE, prompt_tokens(ABC), (), "c") == []


def test_a_registered_rank_is_part_of_answers_without_blocks(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.kernel.register(publisher, "", True)
    assert bench.ask(ABC) == {"a": 0}
    assert bench.kernel.stats()["scopes"] == 1
    bench.kernel.register(publisher, "adapter", True)
    assert (bench.ask(ABC), bench.ask(ABC, scope_of("adapter"))) == ({}, {"a": 0})
    bench.kernel.register(publisher, "adapter", False)
    assert not bench.kernel.knows(scope_of("adapter"))
    assert bench.kernel.stats()["scopes"] == 0


def test_unknown_scopes_have_no_answer(bench: Bench) -> None:
    assert bench.ask(ABC) == {}
    assert not bench.kernel.knows(SCOPE)
    assert bench.kernel.query_by_hash(SCOPE, u64s([1]), None) == []
    assert bench.kernel.dump(context_of("", "a"), 5) == []


def test_sparse_groups_are_counted_and_left_out(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC, spec_kind="sliding_window", group=1)
    bench.store(publisher, ABC, spec_kind="mamba", group=64)
    bench.apply(publisher, RemovedBlocks(sequence=1, hashes=prompt_hashes(ABC), group=1))
    bench.apply(publisher, RemovedBlocks(sequence=1, hashes=prompt_hashes(ABC), group=64))
    assert bench.counted() == {"skipped_group": 9, "unknown_removed": 3}
    for kind in ("", "full_attention", "mla_attention", "sink_full_attention"):
        bench.store(publisher, ABC, spec_kind=kind, group=2)
    assert bench.counted()["stored"] == 12


def test_one_hash_in_two_groups_is_two_entries_of_one_block(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, (0,))
    bench.store(publisher, (0,), group=3)
    changes = dict(bench.kernel.take_changes())[context_of("", "a")]
    key = prompt_key((0,))
    assert [change.engine_key for change in decode_changes(changes)] == [key, engine_key(key, 3)]
    assert bench.kernel.stats()["entries"] == 2
    assert bench.blocks() == 1


def test_events_that_do_not_cover_their_blocks_are_left_out(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC, block_size=BLOCK_SIZE + 1)
    bench.store(publisher, ABC, tokens=prompt_tokens((0, 1)))
    bench.store(publisher, ABC, extra_keys=(b"x", b"y"))
    assert bench.counted() == {
        "block_size_mismatch": 3,
        "token_count_mismatch": 3,
        "extra_keys_mismatch": 3,
    }


def test_a_placeholder_brings_a_known_block_to_another_medium(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, (0, 1))
    bench.store(publisher, ABC, tokens=b"", block_size=0, medium=Medium.CPU)
    [match] = bench.kernel.query(SCOPE, prompt_tokens(ABC), (), None)
    assert (match.gpu, match.cpu) == (2 * BLOCK_SIZE, 2 * BLOCK_SIZE)
    assert bench.counted() == {"stored": 4, "unresolved": 1}


def placeholder(prompt: Prompt, sequence: int = 1, **fields: Any) -> StoredBlocks:
    """The blocks of a prompt on the CPU, without their tokens."""
    defaults: dict[str, Any] = {"tokens": b"", "block_size": 0, "medium": Medium.CPU}
    return stored(prompt, **(defaults | {"sequence": sequence, "parent": None} | fields))


def test_a_block_known_by_its_name_is_where_that_was_said_once_it_is_stored(bench: Bench) -> None:
    publisher = bench.publisher()
    on_disk = placeholder(ABC, 2, medium=Medium.DISK)
    bench.apply(publisher, placeholder(ABC), on_disk, placeholder((0,), 3))
    assert bench.kernel.left_out(publisher) == [("unresolved", 6)]
    assert bench.ask(ABC) == {}
    bench.apply(publisher, stored((0, 1), sequence=4))
    assert bench.kernel.left_out(publisher) == [("unresolved", 2)]
    [match] = bench.kernel.query(SCOPE, prompt_tokens(ABC), (), None)
    assert (match.gpu, match.cpu, match.disk) == (2 * BLOCK_SIZE,) * 3
    bench.store(publisher, ABC, start=2)
    assert bench.kernel.left_out(publisher) == []
    for times, cpu in ((1, 3 * BLOCK_SIZE), (2, 0)):
        first = prompt_hashes((0,))
        gone = RemovedBlocks(sequence=4 + times, hashes=first, medium=Medium.CPU)
        bench.apply(publisher, gone)
        [match] = bench.kernel.query(SCOPE, prompt_tokens(ABC), (), None)
        assert (match.gpu, match.cpu, match.disk) == (3 * BLOCK_SIZE, cpu, 3 * BLOCK_SIZE)
    bench.apply(publisher, RemovedBlocks(sequence=7, hashes=prompt_hashes(ABC)))
    [match] = bench.kernel.query(SCOPE, prompt_tokens(ABC), (), None)
    assert (match.gpu, match.disk) == (0, 3 * BLOCK_SIZE)


@pytest.mark.parametrize("group", [1, 64])
def test_a_placeholder_of_a_group_is_of_that_groups_block(bench: Bench, group: int) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC, group=group)
    bench.apply(publisher, placeholder(ABC))
    assert bench.counted() == {"stored": 3, "unresolved": 3}
    bench.apply(publisher, placeholder(ABC, group=group))
    assert bench.counted() == {"stored": 6, "unresolved": 3}
    [match] = bench.kernel.query(SCOPE, prompt_tokens(ABC), (), None)
    assert (match.gpu, match.cpu) == (3 * BLOCK_SIZE, 3 * BLOCK_SIZE)


@pytest.mark.parametrize("elsewhere", [{"medium": Medium.CPU}, {"shared": True}], ids=str)
def test_what_hangs_on_a_block_that_its_batch_has_removed_is_of_its_chain(
    bench: Bench, elsewhere: dict[str, Any]
) -> None:
    """SGLang's write-back (0.5.15 to 0.5.20) says children first which pages it keeps."""
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    first, second, third = (prompt_hashes(ABC)[at : at + 8] for at in (0, 8, 16))
    removed = [RemovedBlocks(sequence=2, hashes=one) for one in (third, second)]
    kept = [
        stored(ABC, start=2, sequence=2, **elsewhere),
        stored(ABC[:2], start=1, sequence=2, **elsewhere),
    ]
    bench.apply(publisher, *removed, *kept)
    assert (bench.ask(ABC), bench.kernel.left_out(publisher)) == ({"a": 3}, [])
    bench.apply(publisher, RemovedBlocks(sequence=3, hashes=first + second, **elsewhere))
    late = RemovedBlocks(sequence=3, hashes=third, **elsewhere)
    bench.apply(publisher, late, stored(ABC, start=2, sequence=4, **elsewhere))
    assert bench.kernel.left_out(publisher) == [("unknown_parent", 1)], "of an earlier batch"
    bench.apply(publisher, RemovedBlocks(sequence=5, hashes=first))
    again = stored(ABC[:2], start=1, sequence=5, lora_name="adapter", parent=prompt_key(ABC[:1]))
    bench.apply(publisher, again)
    assert bench.kernel.left_out(publisher) == [("unknown_parent", 2)]


def test_what_moved_is_of_its_own_scope(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    of_other: dict[str, Any] = {
        "lora_name": "adapter",
        "parent": prompt_key(ABC[:1]),
        "medium": Medium.CPU,
    }
    bench.apply(
        publisher,
        RemovedBlocks(sequence=2, hashes=prompt_hashes(ABC)),
        stored(ABC[:2], start=1, sequence=2, **of_other),
    )
    assert bench.kernel.left_out(publisher) == [("unknown_parent", 1)]


def test_a_block_that_one_batch_removes_and_announces_again_has_moved(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    bench.store(publisher, ABC, lora_name="adapter")
    gone = prompt_hashes(ABC), prompt_hashes(ABC, "adapter")
    removed = [RemovedBlocks(sequence=2, hashes=hashes) for hashes in gone]
    again = [placeholder(ABC, 2), placeholder(ABC, 2, lora_name="adapter")]
    bench.apply(publisher, *removed, *again)
    for scope in (SCOPE, scope_of("adapter")):
        [match] = bench.kernel.query(scope, prompt_tokens(ABC), (), None)
        assert (match.gpu, match.cpu) == (0, 3 * BLOCK_SIZE)
    assert bench.counted() == {"stored": 12, "removed": 6}
    bench.store(publisher, (0, 1, 2, 3), start=3)
    assert bench.ask((0, 1, 2, 3)) == {"a": 4}


def test_a_block_of_a_group_has_moved_within_that_group(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC, group=1)
    removed = RemovedBlocks(sequence=2, hashes=prompt_hashes(ABC), group=1)
    bench.apply(publisher, removed, placeholder(ABC, 2), placeholder(ABC, 2, group=1))
    [match] = bench.kernel.query(SCOPE, prompt_tokens(ABC), (), None)
    assert (match.gpu, match.cpu) == (0, 3 * BLOCK_SIZE)
    assert bench.counted() == {"stored": 6, "removed": 3, "unresolved": 3}


def test_a_block_has_moved_within_its_batch_only(bench: Bench) -> None:
    """Else the table would depend on how batches were packed into records."""
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    removed = RemovedBlocks(sequence=2, hashes=prompt_hashes(ABC))
    bench.apply(publisher, removed, placeholder(ABC, 3))
    bench.apply(publisher, placeholder(ABC, 2))
    assert bench.ask(ABC) == {}
    assert bench.counted() == {"stored": 3, "removed": 3, "unresolved": 6}


def test_what_another_publisher_removed_has_not_moved_here(bench: Bench) -> None:
    bench.store(bench.publisher("b"), ABC)
    publisher = bench.publisher("a")
    removed = RemovedBlocks(sequence=2, hashes=prompt_hashes(ABC))
    bench.apply(publisher, removed, placeholder(ABC, 2))
    assert bench.counted() == {"stored": 3, "unknown_removed": 3, "unresolved": 3}


def test_a_block_that_is_held_under_the_key_wins_over_one_that_was_removed(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, (0,))
    removed = RemovedBlocks(sequence=2, hashes=prompt_hashes((0,)))
    other = stored((1,), sequence=2, hashes=prompt_hashes((0,)))
    bench.apply(publisher, removed, other, placeholder((0,), 2))
    [match] = bench.kernel.query(SCOPE, prompt_tokens((1,)), (), None)
    assert (match.gpu, match.cpu) == (BLOCK_SIZE, BLOCK_SIZE)
    assert bench.ask((0,)) == {"a": 0}


def test_a_block_that_is_named_by_its_prefix_hash_is_found_by_it(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.kernel.register(publisher, "", True)
    chunks = [7, 2**63 + 5, 9]
    named = StoredBlocks(
        sequence=1,
        hashes=u64s(chunks),
        block_size=BLOCK_SIZE,
        medium=Medium.CPU,
        lora_name="adapter",
        by_hash=True,
    )
    bench.apply(publisher, named)
    adapter = scope_of("adapter")
    [match] = bench.kernel.query_by_hash(adapter, u64s(chunks), None)
    assert (match.longest, match.gpu, match.cpu) == (3 * BLOCK_SIZE, 0, 3 * BLOCK_SIZE)
    assert bench.kernel.query_by_hash(SCOPE, u64s(chunks), None)[0].longest == 0
    [(context, changes)] = bench.kernel.take_changes()
    assert context == context_of("adapter", "a")
    assert [(one.engine_key, one.prefix) for one in decode_changes(changes)] == [
        (chunk, chunk) for chunk in chunks
    ]
    bench.remove(publisher, u64s(chunks[1:]), medium=Medium.CPU)
    [match] = bench.kernel.query_by_hash(adapter, u64s(chunks), None)
    assert match.longest == BLOCK_SIZE


def test_a_prefix_hash_is_the_same_block_as_one_of_these_tokens(bench: Bench) -> None:
    bench.store(bench.publisher(), ABC)
    other = bench.publisher("b")
    named = u64s(list(prefix_hashes(prompt_tokens(ABC), BLOCK_SIZE, seed=SEED)))
    bench.apply(other, StoredBlocks(sequence=1, hashes=named, block_size=BLOCK_SIZE, by_hash=True))
    assert bench.ask(ABC) == {"a": 3, "b": 3}
    assert bench.blocks() == 3
    bench.remove(other, named[8:16])
    assert bench.ask(ABC) == {"a": 3, "b": 1}


def test_blocks_may_follow_on_one_that_was_named_by_its_prefix_hash(bench: Bench) -> None:
    publisher = bench.publisher()
    first, *_ = prefix_hashes(prompt_tokens(ABC), BLOCK_SIZE, seed=SEED)
    named = StoredBlocks(sequence=1, hashes=u64s([first]), block_size=BLOCK_SIZE, by_hash=True)
    bench.apply(publisher, named, stored(ABC, start=1, parent=first))
    assert bench.ask(ABC) == {"a": 3}


def test_in_two_groups_a_prefix_hash_is_one_block(bench: Bench) -> None:
    publisher = bench.publisher()
    for group in (0, 1):
        named = StoredBlocks(
            sequence=1, hashes=u64s([5]), block_size=BLOCK_SIZE, by_hash=True, group=group
        )
        bench.apply(publisher, named)
    assert (bench.blocks(), bench.kernel.stats()["entries"]) == (1, 2)


@pytest.fixture(params=BOTH)
def standard(request: pytest.FixtureRequest) -> Bench:
    """A kernel with the seed of publishers that hash tokens themselves."""
    return Bench(kernel_of(request, TOKEN_HASH_SEED))


def test_blocks_of_which_the_tokens_hashes_are_known_are_those_of_the_tokens(
    standard: Bench,
) -> None:
    bench = standard
    publisher, other = bench.publisher(), bench.publisher("b")
    hashed = u64s(prompt_locals(ABC))
    bench.apply(
        publisher,
        stored(ABC[:1], tokens=b"", token_hashes=hashed[:8]),
        stored(ABC, start=1, tokens=b"", token_hashes=hashed[8:]),
    )
    bench.store(other, ABC)
    assert bench.ask(ABC) == {"a": 3, "b": 3}
    assert bench.blocks() == 3
    bench.remove(publisher, prompt_hashes(ABC)[8:16])
    assert bench.ask(ABC) == {"a": 1, "b": 3}
    bench.apply(publisher, stored(ABC[:2], start=1, tokens=b"", token_hashes=hashed[8:16]))
    assert bench.ask(ABC) == {"a": 3, "b": 3}


def test_blocks_may_follow_on_one_whose_tokens_hash_alone_is_known(standard: Bench) -> None:
    bench = standard
    publisher = bench.publisher()
    hashed = u64s(prompt_locals(ABC))
    bench.apply(publisher, stored(ABC[:1], tokens=b"", token_hashes=hashed[:8]))
    bench.store(publisher, ABC, start=1)
    assert bench.ask(ABC) == {"a": 3}


def test_what_is_said_again_is_held_as_often_as_before(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    bench.kernel.take_changes()
    digest = bench.kernel.contexts()
    for _ in range(3):
        bench.store(publisher, ABC, reported=True)
    assert bench.kernel.take_changes() == []
    assert bench.kernel.contexts() == digest
    bench.remove(publisher, prompt_hashes(ABC))
    assert bench.ask(ABC) == {}


def test_two_copies_stay_two_whatever_is_said_again(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    bench.store(publisher, ABC, reported=True)
    bench.store(publisher, ABC)
    bench.remove(publisher, prompt_hashes(ABC))
    assert bench.ask(ABC) == {"a": 3}
    bench.remove(publisher, prompt_hashes(ABC))
    assert bench.ask(ABC) == {}


def test_a_salt_separates_prompts_from_the_first_block_on(bench: Bench) -> None:
    salt = extra_key(["salt"])
    bench.store(bench.publisher(), ABC, extra_keys=(salt, b"", b""))
    assert bench.ask(ABC) == {"a": 0}
    assert bench.ask(ABC, keys=[salt]) == {"a": 3}


def test_long_keys_enter_the_hash_whole(bench: Bench) -> None:
    keys = tuple(b"%d" % i * 400 for i in range(3))
    bench.store(bench.publisher(), ABC, extra_keys=keys)
    local = [
        xxhash.xxh3_64_intdigest(prompt_tokens((kind,)) + key, SEED)
        for kind, key in zip(ABC, keys, strict=True)
    ]
    [(_, changes)] = bench.kernel.take_changes()
    first, second, _ = decode_changes(changes)
    link = local[0].to_bytes(8, "little") + local[1].to_bytes(8, "little")
    assert (first.prefix, second.prefix) == (local[0], xxhash.xxh3_64_intdigest(link, SEED))


def test_a_key_that_names_another_block_keeps_the_first(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, (0,))
    bench.store(publisher, (1, 2), hashes=prompt_hashes((0,)) + u64s([9]))
    assert bench.counted() == {"stored": 2, "hash_conflict": 1}
    assert bench.ask((0,)) == {"a": 1}
    # The chain goes on behind the block that was refused: its tail is there, its head is not.
    assert bench.ask((1, 2)) == {"a": 0}


def test_cleared_drops_all_tiers_and_writes_one_change(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    bench.store(publisher, ABC)
    bench.store(publisher, ABC, medium=Medium.DISK)
    bench.store(bench.publisher("b"), (0,))
    bench.kernel.take_changes()
    bench.apply(publisher, ClearedBlocks(sequence=2))
    assert bench.ask(ABC) == {"b": 1}
    assert bench.counted()["cleared"] == 6
    [(_, changes)] = bench.kernel.take_changes()
    assert changes == Change(0, 0, 0, 0, Op.CLEAR, 0).encode()
    bench.apply(publisher, ClearedBlocks(sequence=3))
    assert bench.kernel.pending_changes() == 0


def test_unregister_voids_the_handle(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.kernel.register(publisher, "", True)
    bench.store(publisher, ABC)
    assert bench.kernel.unregister(publisher) == 3
    assert bench.ask(ABC) == {}
    assert bench.kernel.stats()["publishers"] == 0
    for call in (bench.kernel.clear, bench.kernel.unregister):
        with pytest.raises(KeyError):
            call(publisher)
    with pytest.raises(KeyError):
        bench.kernel.register(publisher, "", True)
    with pytest.raises(KeyError):
        bench.kernel.apply(publisher, b"no events at all", -1)
    assert bench.publisher() != publisher


def test_events_up_to_a_sequence_are_skipped(bench: Bench) -> None:
    publisher = bench.publisher()
    events = [stored((kind,), sequence=kind) for kind in range(3)]
    bench.apply(publisher, *events, after=1)
    assert [bench.ask((kind,))["a"] for kind in range(3)] == [0, 0, 1]


@pytest.mark.parametrize("blocks", [511, 512, 513, 1024])
def test_an_event_may_fill_the_turn_of_a_writer_exactly(bench: Bench, blocks: int) -> None:
    """The Rust kernel lets queries in behind each 512 blocks, and goes on."""
    prompt = tuple(range(blocks))
    publisher = bench.publisher()
    bench.store(publisher, prompt)
    assert bench.ask(prompt) == {"a": blocks}
    bench.remove(publisher, prompt_hashes(prompt[:1]))
    assert bench.ask(prompt) == {"a": 0}
    assert bench.blocks() == blocks - 1


def test_what_was_cleared_is_hidden_at_once_however_much_it_is(bench: Bench) -> None:
    """Of more blocks than are released beside the clear; another rank of the instance stays."""
    prompts = [(kind, *range(1000, 1400)) for kind in range(20)]
    for instance in "ab":
        bench.apply(bench.publisher(instance), *map(stored, prompts))
    bench.store(bench.publisher("a", rank=1), (2000,))
    bench.apply(bench.publisher("a"), ClearedBlocks(sequence=2))
    assert [bench.ask(prompt) for prompt in prompts] == 20 * [{"a": 0, "b": 401}]
    assert bench.blocks() == 20 * 401 + 1
    assert [bench.ask(prompt) for prompt in prompts] == 20 * [{"a": 0, "b": 401}]


def test_the_last_clear_that_was_folded_is_returned(bench: Bench) -> None:
    publisher = bench.publisher()
    kernel = bench.kernel

    def applied(*sequences: int, after: int) -> int | None:
        events = [stored(ABC, sequence=sequence) for sequence in sequences]
        cleared = [ClearedBlocks(sequence=sequence) for sequence in sequences]
        return kernel.apply(publisher, encode_events([*events, *cleared]), after)

    assert applied(3, 4, after=-1) == 4
    assert applied(3, 4, after=3) == 4
    assert applied(3, 4, after=4) is None
    assert applied(after=-1) is None
    # In the order of the events, whatever their sequences; the largest there are fit.
    assert applied(9, 7, after=3) == 7
    assert applied(9, 7, after=7) == 9
    assert applied(2**64 - 1, after=2**63 - 1) == 2**64 - 1
    assert applied(-(2**63) + 1, after=-(2**63)) == -(2**63) + 1
    only_stored = encode_events(
        [stored(ABC), RemovedBlocks(sequence=8, hashes=prompt_hashes((0,)))]
    )
    assert kernel.apply(publisher, only_stored, -1) is None


def test_a_clear_of_nothing_is_returned_too(bench: Bench) -> None:
    cleared = encode_events([ClearedBlocks(sequence=5)])
    assert bench.kernel.apply(bench.publisher(), cleared, -1) == 5
    assert bench.kernel.pending_changes() == 0


def test_checking_events_folds_none_of_them(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    before = (bench.kernel.counters(), bench.kernel.stats(), bench.kernel.pending_changes())
    encoded = encode_events([stored((1, 2), sequence=9), ClearedBlocks(sequence=9)])
    bench.kernel.check_events(encoded)
    for wrong in [encoded[:cut] for cut in range(len(encoded))] + [encoded + b"\0"]:
        with pytest.raises(EventsFormatError, match=r"^Expected"):
            bench.kernel.check_events(wrong)
    after = (bench.kernel.counters(), bench.kernel.stats(), bench.kernel.pending_changes())
    assert after == before
    assert bench.ask(ABC) == {"a": 3}


def test_names_sort_by_code_point(bench: Bench) -> None:
    names = ["z", "\u00e9", "\uffee", "\U0001f600", "", "a"]
    for name in names:
        bench.store(bench.publisher(name), (0,))
    assert list(bench.ask((0,))) == sorted(names)
    assert [view.context.instance_id for view in bench.kernel.contexts()] == sorted(names)


def test_a_kernel_says_which_one_it_is(bench: Bench) -> None:
    assert bench.kernel.name in ("rust", "reference")
    assert bench.kernel.seed == SEED


def test_an_error_in_the_last_event_leaves_all_as_it_was(bench: Bench) -> None:
    publisher = bench.publisher()
    encoded = encode_events([stored(ABC), RemovedBlocks(sequence=1, hashes=b"")])
    for cut in range(len(encoded)):
        with pytest.raises(EventsFormatError):
            bench.kernel.apply(publisher, encoded[:cut], -1)
    with pytest.raises(EventsFormatError):
        bench.kernel.apply(publisher, encoded + b"\x00", -1)
    assert bench.kernel.contexts() == []
    assert bench.counted() == {}


def test_changes_that_are_none_leave_all_as_it_was(bench: Bench) -> None:
    good = Change(1, 2, 0, 0, Op.SET, 1).encode()
    for bad in (b"\0" * 23, good[:20] + b"\x08" + good[21:], good[:21] + b"\x02" + good[22:]):
        with pytest.raises(ValueError, match=r"Expected"):
            bench.kernel.load(context_of("", "a"), good + bad)
    assert bench.kernel.contexts() == []
    assert bench.kernel.stats()["publishers"] == 0


def test_a_table_is_rebuilt_from_its_changes_or_its_dump(bench: Bench) -> None:
    for instance in ("a", "b"):
        for rank in range(2):
            bench.store(bench.publisher(instance, rank), ABC)
    bench.store(bench.publisher(), ABC, lora_name="adapter")
    bench.remove(bench.publisher("b", 1), prompt_hashes(ABC)[8:])
    taken = bench.kernel.take_changes()
    dumped: list[tuple[ModelContext, bytes]] = []
    for view in bench.kernel.contexts():
        chunks = bench.kernel.dump(view.context, 2)
        assert all(len(chunk) == 48 for chunk in chunks[:-1])
        dumped += [(view.context, chunk) for chunk in chunks]
    for rows in (taken, dumped):
        other = Bench(open_kernel(SEED, name=bench.kernel.name))
        for context, changes in rows:
            other.kernel.load(context, changes)
        assert other.kernel.contexts() == bench.kernel.contexts()
        assert other.kernel.scopes() == bench.kernel.scopes()
        assert other.ranks(ABC) == bench.ranks(ABC)
        assert other.kernel.pending_changes() == 0
        assert other.counted() == {}


def test_a_loaded_entry_replaces_one_of_another_block(bench: Bench) -> None:
    bench.store(bench.publisher(), (0,))
    change = Change(prompt_key((0,)), 5, 0, 1, Op.SET, 1)
    bench.kernel.load(context_of("", "a"), change.encode())
    assert bench.ask((0,)) == {"a": 0}
    [view] = bench.kernel.contexts()
    assert bench.kernel.dump(view.context, 9) == [change.encode()]
    bench.kernel.load(context_of("", "a"), change._replace(prefix=6, holds=0).encode())
    assert bench.kernel.contexts() == [view]


@pytest.mark.parametrize("media", [[Medium.CPU], [Medium.GPU, Medium.DISK]])
def test_a_loaded_entry_replaces_one_on_whatever_tiers_it_was(
    bench: Bench, media: list[Medium]
) -> None:
    for medium in media:
        bench.store(bench.publisher(), (0,), medium=medium)
    change = Change(prompt_key((0,)), 5, 0, 0, Op.SET, 1)
    bench.kernel.load(context_of("", "a"), change.encode())
    assert bench.ask((0,)) == {"a": 0}
    assert (bench.blocks(), bench.kernel.stats()["entries"]) == (1, 1)
    gone = change._replace(holds=0)
    bench.kernel.load(context_of("", "a"), gone._replace(tier=1).encode())
    assert bench.blocks() == 1
    bench.kernel.load(context_of("", "a"), gone.encode())
    assert (bench.blocks(), bench.kernel.scopes()) == (0, [])


def test_a_loaded_clear_takes_the_rank_out_of_its_context_alone(bench: Bench) -> None:
    for rank in range(2):
        bench.store(bench.publisher(rank=rank), ABC)
    bench.store(bench.publisher(), ABC, lora_name="adapter")
    clear = Change(0, 0, 0, 0, Op.CLEAR, 0)
    bench.kernel.load(context_of("", "a"), clear.encode())
    assert bench.ranks(ABC).keys() == {("a", 1)}
    assert bench.ask(ABC, scope_of("adapter")) == {"a": 3}
    assert bench.kernel.stats()["publishers"] == 2


@pytest.mark.parametrize("medium", MEDIA)
def test_who_holds_only_shared_blocks_is_no_participant_on_any_medium(
    bench: Bench, medium: Medium
) -> None:
    pool = bench.publisher("pool")
    bench.store(pool, ABC, medium=medium, shared=True)
    assert bench.kernel.knows(SCOPE) is False
    bench.store(pool, ABC, medium=medium)
    assert bench.kernel.knows(SCOPE) is True
    bench.remove(pool, prompt_hashes(ABC), medium=medium)
    assert bench.kernel.knows(SCOPE) is False
    gone = RemovedBlocks(sequence=1, hashes=prompt_hashes(ABC), medium=medium, shared=True)
    bench.apply(pool, gone)
    bench.store(pool, (0,), medium=medium)
    assert bench.kernel.knows(SCOPE) is True


def test_a_scope_is_listed_while_it_has_blocks_or_a_registered_rank(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    assert bench.kernel.scopes() == [ScopeView(SCOPE, 3, {"a": [0]})]
    bench.remove(publisher, prompt_hashes(ABC))
    assert bench.kernel.scopes() == []
    bench.kernel.register(publisher, "", True)
    assert bench.kernel.scopes() == [ScopeView(SCOPE, 0, {"a": [0]})]
    bench.kernel.register(publisher, "", False)
    assert bench.kernel.scopes() == []


def test_a_publisher_answers_for_its_own_model_alone(bench: Bench) -> None:
    other = StreamKey(SCOPE.tenant_id, "another", BLOCK_SIZE, "", "b")
    bench.kernel.register(bench.kernel.open_publisher(other, 0), "", True)
    bench.store(bench.publisher(), ABC)
    assert bench.ask(ABC) == {"a": 3}
    assert bench.kernel.knows(SCOPE._replace(model_name="another")) is True


def test_what_waits_to_be_taken_is_counted_in_changes_and_in_contexts(bench: Bench) -> None:
    bench.store(bench.publisher(), ABC)
    bench.store(bench.publisher(), (0,), lora_name="adapter")
    assert (bench.kernel.pending_changes(), bench.kernel.pending_contexts()) == (4, 2)
    bench.kernel.take_changes()
    assert (bench.kernel.pending_changes(), bench.kernel.pending_contexts()) == (0, 0)


def test_a_refused_event_makes_no_group_a_sparse_one(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC, tokens=prompt_tokens(ABC)[:-4])
    bench.remove(publisher, prompt_hashes(ABC))
    bench.remove(publisher, prompt_hashes(ABC))
    counted = {"token_count_mismatch": 3, "left_out_removed": 3, "unknown_removed": 3}
    assert bench.counted() == counted
