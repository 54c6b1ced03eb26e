"""Of a hybrid model both kernels count what its engine can use: by the rule of each cache group, as
vLLM's own cache manager does.
"""

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bridge.wire import open_source
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks, encode_events
from schemas.identities import COPIES_UNKNOWN, Medium, PrefixScope, StreamKey
from schemas.registration import PublisherKind
from streams.kernel import Kernel, array_packer, native_available, open_kernel
from streams.kernel.interface import PublisherId
from tests.building import registration
from tests.contract.kernels import ALL, kernel_of
from tests.contract.test_kernel_contract import SCOPE, SEED, Bench
from tests.strategies import BLOCK_SIZE, Prompt, prompt_hashes, prompt_prefixes, prompt_tokens, u64s

LONG: Prompt = (0, 1, 2, 3, 0, 1, 2, 3)
VECTORS = Path(__file__).parents[1] / "vectors" / "hybrid"


@pytest.fixture(params=ALL)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(kernel_of(request, SEED))


def named(prompt: Prompt, *places: int) -> bytes:
    """What an engine calls the blocks at these places of a prompt."""
    return b"".join(prompt_hashes(prompt)[8 * place : 8 * place + 8] for place in places)


def sparse(
    bench: Bench, publisher: PublisherId, prompt: Prompt, *places: int, **fields: Any
) -> None:
    """A store of a sparse group, which names some blocks of a chain and has all its tokens."""
    values = {"group": 1, "spec_kind": "mamba", "last_blocks": 1} | fields
    bench.store(publisher, prompt, hashes=named(prompt, *places), **values)


def gone(prompt: Prompt, *places: int, group: int, medium: Medium = Medium.GPU) -> RemovedBlocks:
    hashes = named(prompt, *places)
    return RemovedBlocks(sequence=1, hashes=hashes, group=group, medium=medium)


def limiting(bench: Bench, prompt: Prompt) -> dict[str, int]:
    hashes = u64s(prompt_prefixes(prompt, SEED))
    found = dict(bench.kernel.limiting_groups(SCOPE, hashes, None))
    assert bench.kernel.has_rules() or not found
    return found


def test_a_recurrent_layer_ends_a_prefix_where_its_state_is(bench: Bench) -> None:
    """As in vllm#45238 and dynamo#12169."""
    prompt: Prompt = tuple(number % 4 for number in range(64))
    publisher = bench.publisher()
    bench.store(publisher, prompt)
    assert (bench.ask(prompt), bench.kernel.by_rule(publisher)) == ({"a": 64}, False)
    assert bench.kernel.forms_prefixes(publisher)
    sparse(bench, publisher, prompt, 51)
    assert (bench.ask(prompt), bench.kernel.by_rule(publisher)) == ({"a": 52}, True)
    assert limiting(bench, prompt) == {"a": 1}
    assert bench.ask(prompt[:52]) == {"a": 52}
    assert limiting(bench, prompt[:52]) == {}
    assert bench.ranks(prompt) == {("a", 0): (52, 52, 52, 52)}
    assert bench.ask(prompt[:51]) == {"a": 0}
    bench.apply(publisher, gone(prompt, 51, group=1))
    assert (bench.ask(prompt), limiting(bench, prompt)) == ({"a": 0}, {"a": 1})
    assert bench.kernel.sparse_blocks(publisher) == 1
    assert bench.kernel.left_out(publisher) == []


def test_a_group_of_another_block_size_has_no_rule(bench: Bench) -> None:
    """As in llm-d-router#2362: windows of smaller blocks, with fewer hashes than their span has."""
    publisher = bench.publisher()
    bench.store(publisher, LONG, spec_kind="mla_attention")
    for group, size in enumerate((BLOCK_SIZE // 2, BLOCK_SIZE // 2, 1, 1), start=1):
        fields: dict[str, Any] = {"spec_kind": "sliding_window_mla", "block_size": size}
        sparse(bench, publisher, LONG, 6, 7, group=group, last_blocks=3, **fields)
    assert bench.ask(LONG) == {"a": 8}
    assert (bench.kernel.by_rule(publisher), limiting(bench, LONG)) == (False, {})
    assert bench.kernel.left_out(publisher) == []


@pytest.mark.parametrize("is_first", [True, False])
def test_a_window_needs_its_last_blocks_whichever_group_comes_first(
    bench: Bench, is_first: bool
) -> None:
    publisher = bench.publisher()
    window: dict[str, Any] = {"group": 0, "spec_kind": "sliding_window", "last_blocks": 3}
    if is_first:
        sparse(bench, publisher, LONG, 2, 3, 4, 6, 7, **window)
    bench.store(publisher, LONG, group=1)
    if not is_first:
        sparse(bench, publisher, LONG, 2, 3, 4, 6, 7, **window)
    assert (bench.ask(LONG), limiting(bench, LONG)) == ({"a": 5}, {"a": 0})
    sparse(bench, publisher, LONG, 5, **window)
    assert bench.ask(LONG) == {"a": 8}
    bench.apply(publisher, gone(LONG, 4, group=1))
    assert (bench.ask(LONG), limiting(bench, LONG)) == ({"a": 0}, {"a": 0})
    sparse(bench, publisher, LONG, 0, 1, **window)
    assert (bench.ask(LONG), limiting(bench, LONG)) == ({"a": 4}, {})


def test_a_block_is_placed_by_full_attention_that_has_moved_to_another_tier(bench: Bench) -> None:
    publisher = bench.publisher()
    sparse(bench, publisher, LONG, 0)
    bench.store(publisher, LONG)
    state = StoredBlocks(
        sequence=1,
        hashes=named(LONG, 7),
        tokens=prompt_tokens(LONG),
        block_size=BLOCK_SIZE,
        group=1,
        spec_kind="mamba",
        last_blocks=1,
    )
    moved = StoredBlocks(sequence=1, hashes=named(LONG, *range(8)), medium=Medium.CPU)
    batch: list[BlockEvent] = [gone(LONG, *range(8), group=0), state, moved]
    bench.kernel.apply(publisher, encode_events(batch), 0)
    assert bench.ask(LONG) == {"a": 8}


def test_the_group_that_cuts_shortest_is_the_one_that_ended_it(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, LONG)
    sparse(bench, publisher, LONG, 4, 5, group=3, last_blocks=1)
    sparse(bench, publisher, LONG, 1, 3, 4, group=2, last_blocks=2, spec_kind="sliding_window")
    assert (bench.ask(LONG), limiting(bench, LONG)) == ({"a": 5}, {"a": 2})


def test_a_state_on_the_cpu_counts_where_the_cpu_does(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, LONG)
    sparse(bench, publisher, LONG, 3, 5)
    placeholder: dict[str, Any] = {"tokens": b"", "block_size": 0, "last_blocks": 0}
    sparse(bench, publisher, LONG, 5, medium=Medium.CPU, **placeholder)
    bench.apply(publisher, gone(LONG, 5, group=1))
    assert bench.kernel.by_rule(publisher)
    assert bench.ranks(LONG) == {("a", 0): (6, 4, 6, 6)}
    [match] = bench.kernel.query(SCOPE, prompt_tokens(LONG), (), None)
    assert (match.longest, match.gpu) == (6 * BLOCK_SIZE, 4 * BLOCK_SIZE)


@pytest.mark.parametrize("mark", ["reported", "undecided"])
def test_a_report_of_a_hit_adds_no_block_that_the_group_has_not(bench: Bench, mark: str) -> None:
    """vLLM's names all blocks of the prefix for each group, and the group has but the last ones."""
    publisher = bench.publisher()
    bench.store(publisher, LONG)
    sparse(bench, publisher, LONG, 3, **{mark: True})
    sparse(bench, publisher, LONG[:4], 0, 1, 2, 3, **{mark: True})
    assert bench.ask(LONG[:3]) == {"a": 0}
    assert bench.ask(LONG) == {"a": 4}
    assert bench.kernel.left_out(publisher) == [(COPIES_UNKNOWN, 3)]


def test_an_engine_with_sparse_groups_is_not_believed_to_report_alone(bench: Bench) -> None:
    """Registered so, or not: where a window has lost a block, a prompt is computed again."""
    publisher = bench.publisher()
    bench.store(publisher, LONG, reported=True)
    window: dict[str, Any] = {"spec_kind": "sliding_window", "last_blocks": 2, "reported": True}
    sparse(bench, publisher, LONG, *range(8), **window)
    bench.apply(publisher, gone(LONG, 7, group=1))
    bench.store(publisher, LONG, reported=True)
    sparse(bench, publisher, LONG, *range(8), **window)
    bench.apply(publisher, gone(LONG, *range(8), group=0))
    assert bench.kernel.left_out(publisher) == [(COPIES_UNKNOWN, 8)]
    bench.apply(publisher, gone(LONG, *range(8), group=0))
    assert bench.ask(LONG).get("a", 0) == 0
    assert bench.kernel.left_out(publisher) == []


def test_what_may_be_a_report_or_further_copies_is_doubted(bench: Bench) -> None:
    """All that a hit needs is held, and of the rest not all: it may have been computed again."""
    publisher = bench.publisher()
    bench.store(publisher, LONG)
    window: dict[str, Any] = {"spec_kind": "sliding_window", "last_blocks": 2, "undecided": True}
    sparse(bench, publisher, LONG, 5, 6, 7, **window)
    assert bench.kernel.left_out(publisher) == []
    sparse(bench, publisher, LONG, *range(8), **window)
    assert bench.kernel.left_out(publisher) == [(COPIES_UNKNOWN, 5)]
    assert bench.ask(LONG[:5]) == {"a": 0}
    assert bench.ask(LONG) == {"a": 8}
    bench.apply(publisher, gone(LONG, *range(5), group=1))
    assert bench.kernel.left_out(publisher) == []


@pytest.mark.parametrize("mark", ["reported", "undecided"])
def test_what_is_computed_again_is_stored_though_some_of_it_is_left(
    bench: Bench, mark: str
) -> None:
    """Full attention was evicted, and of the window no more than its middle is left."""
    publisher = bench.publisher()
    bench.store(publisher, LONG)
    window: dict[str, Any] = {"spec_kind": "sliding_window", "last_blocks": 3, mark: True}
    sparse(bench, publisher, LONG, *range(8), **window)
    bench.apply(publisher, gone(LONG, *range(8), group=0))
    bench.apply(publisher, gone(LONG, 0, 1, 2, 6, 7, group=1))
    bench.store(publisher, LONG, **{mark: True})
    sparse(bench, publisher, LONG, *range(8), **window)
    assert (bench.ask(LONG), bench.ask(LONG[:3])) == ({"a": 8}, {"a": 3})
    assert bench.kernel.left_out(publisher) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"last_blocks": 0},
        {"group": 1, "last_blocks": 2},
        {"group": 64},
        {"block_size": 2 * BLOCK_SIZE},
        {"spec_kind": "chunked_local_attention", "last_blocks": 0},
        {"left_out": "unknown_field", "tokens": b""},
    ],
)
def test_one_group_without_a_rule_leaves_attention_alone(
    bench: Bench, fields: dict[str, Any]
) -> None:
    publisher = bench.publisher()
    bench.store(publisher, LONG)
    sparse(bench, publisher, LONG, 3)
    assert bench.ask(LONG) == {"a": 4}
    sparse(bench, publisher, LONG, 3, **({"group": 2} | fields))
    assert (bench.ask(LONG), bench.kernel.by_rule(publisher)) == ({"a": 8}, False)
    bench.apply(publisher, ClearedBlocks(sequence=2))
    bench.store(publisher, LONG)
    sparse(bench, publisher, LONG, 3)
    assert (bench.ask(LONG), bench.kernel.by_rule(publisher)) == ({"a": 8}, False)
    bench.kernel.clear(publisher)
    bench.store(publisher, LONG)
    sparse(bench, publisher, LONG, 3)
    assert bench.ask(LONG) == {"a": 4}, "another engine"


@pytest.mark.parametrize("group", [0, 1])
def test_whether_there_is_full_attention_at_all_is_told(bench: Bench, group: int) -> None:
    publisher = bench.publisher()
    sparse(bench, publisher, LONG, 3, group=2)
    assert not bench.kernel.forms_prefixes(publisher)
    bench.store(publisher, LONG, group=group)
    bench.apply(publisher, ClearedBlocks(sequence=2))
    assert bench.kernel.forms_prefixes(publisher)
    bench.kernel.clear(publisher)
    assert not bench.kernel.forms_prefixes(publisher)


@pytest.mark.parametrize("medium", [Medium.CPU, None])
def test_rules_outlive_a_clear(bench: Bench, medium: Medium | None) -> None:
    publisher = bench.publisher()
    sparse(bench, publisher, LONG)
    bench.apply(publisher, ClearedBlocks(sequence=2, medium=medium))
    bench.store(publisher, LONG)
    assert (bench.ask(LONG), limiting(bench, LONG)) == ({"a": 0}, {"a": 1})
    assert bench.kernel.by_rule(publisher)


def test_rows_say_it_all_and_what_another_version_has_folded_is_not_believed(
    bench: Bench,
) -> None:
    publisher = bench.publisher()
    sparse(bench, publisher, LONG, 1, 3)
    bench.store(publisher, LONG[:6])
    read = Bench(open_kernel(SEED, name=bench.kernel.name))
    for context, changes in bench.kernel.take_changes():
        read.kernel.load(context, changes)
    assert (read.ask(LONG), read.kernel.contexts()) == ({"a": 4}, bench.kernel.contexts())
    again = read.publisher()
    assert not read.kernel.by_rule(again), "rows do not say how much was announced"
    read.kernel.set_sparse_blocks(again, 2, True)
    assert (read.ask(LONG), read.kernel.by_rule(again)) == ({"a": 4}, True)
    read.kernel.set_sparse_blocks(again, 2, False)
    assert (read.ask(LONG), read.kernel.by_rule(again)) == ({"a": 6}, False)
    [(context, changes)] = read.kernel.take_changes()
    bench.kernel.load(context, changes)
    assert bench.ask(LONG) == {"a": 6}, "so a replica reads it"


def test_an_instance_holds_what_its_ranks_hold_together(bench: Bench) -> None:
    ranks = [bench.publisher(rank=rank) for rank in (0, 1)]
    for rank in ranks:
        bench.store(rank, LONG)
    sparse(bench, ranks[0], LONG, 1, 4, last_blocks=2)
    sparse(bench, ranks[1], LONG, 0, 3, last_blocks=2)
    assert bench.ask(LONG) == {"a": 5}
    assert {rank: depths[0] for (_, rank), depths in bench.ranks(LONG).items()} == {0: 0, 1: 1}


def test_random_histories_are_counted_as_vllm_would(bench: Bench) -> None:
    """By a model of a cache: what each group holds, and the longest prefix that all can serve."""
    rng = random.Random(5)
    rules = {1: 1, 2: 3, 3: 2}
    for life in range(30):
        publisher = bench.publisher(str(life))
        held: dict[int, set[int]] = {group: set() for group in (0, *rules)}
        for group, needed in rules.items():
            sparse(bench, publisher, LONG, group=group, last_blocks=needed)
        for _ in range(12):
            group = rng.choice(list(held))
            places = rng.sample(range(8), rng.randrange(1, 6))
            if rng.randrange(3) == 0:
                places = [place for place in places if place in held[group]]
                bench.apply(publisher, gone(LONG, *places, group=group))
                held[group] -= set(places)
            elif group == 0:
                bench.store(publisher, LONG)
                whole = [place for place in range(8) if place in held[0]]
                bench.apply(publisher, gone(LONG, *whole, group=0))
                held[0] = set(range(8))
            else:
                places = [place for place in places if place not in held[group]]
                sparse(bench, publisher, LONG, *places, group=group, last_blocks=rules[group])
                held[group] |= set(places)
            fits = [
                length
                for length in range(9)
                if set(range(length)) <= held[0]
                and all(
                    set(range(max(0, length - needed), length)) <= held[group]
                    for group, needed in rules.items()
                )
            ]
            assert bench.ask(LONG).get(str(life), 0) == max(fits), held


@pytest.mark.parametrize("number", range(4))
def test_events_of_a_released_cache_manager_mean_the_hits_that_it_finds(number: int) -> None:
    """`devtools.publishers.hybrid` says how they were made."""
    for path in VECTORS.glob("*.jsonl"):
        model = json.loads(path.read_text().splitlines()[number])
        block_size = 4
        for name in ("reference", *(("rust",) if native_available() else ())):
            kernel: Kernel = open_kernel(SEED, name=name)
            stream = StreamKey("default", "m", block_size, "", "a")
            publisher = kernel.open_publisher(stream, 0)
            kernel.register(publisher, "", True)
            one = msgspec.structs.replace(
                registration(kind=PublisherKind("vLLM")), block_size=block_size
            )
            source = open_source(one, array_packer())
            prompts, steps = model["steps"][0]["prompts"], model["steps"][1:]
            scope = PrefixScope("default", "m", "", block_size, "")
            cut = 0
            for sequence, step in enumerate(steps):
                payload = bytes.fromhex(step["events"])
                batch = source.decode([b"", sequence.to_bytes(8, "big"), payload])
                assert batch.dropped == []
                kernel.apply(publisher, encode_events(batch.events), sequence - 1)
                for tokens, expected in zip(prompts, step["hits"], strict=True):
                    packed = b"".join(token.to_bytes(4, "little") for token in tokens)
                    [match] = kernel.query(scope, packed, (), None)
                    assert match.longest == expected, f"{path.name}, batch {sequence}"
                    assert match.ranks[0].gpu_walk == expected
                    hashes = kernel.prefix_hashes(scope, packed, (), len(tokens))
                    cut += len(kernel.limiting_groups(scope, hashes, None))
            assert cut
            assert kernel.by_rule(publisher)
            assert kernel.left_out(publisher) == []
