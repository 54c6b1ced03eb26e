"""Blocks of an owner beside the engine (`StoredBlocks.owned`): a set of its own on each medium."""

import random
from collections import Counter
from typing import Any

import pytest

from schemas.events import ClearedBlocks, RemovedBlocks, StoredBlocks
from schemas.identities import Medium
from streams.kernel import open_kernel
from streams.kernel.changes import Op, decode_changes
from streams.kernel.interface import PublisherId
from tests.contract.kernels import ALL, kernel_of
from tests.contract.test_kernel_contract import ABC, SEED, Bench, stored
from tests.strategies import Prompt, prompt_hashes

OWN_MEDIA = (Medium.CPU, Medium.DISK)


@pytest.fixture(params=ALL)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(kernel_of(request, SEED))


def owned(prompt: Prompt, medium: Medium, **fields: Any) -> StoredBlocks:
    return stored(prompt, medium=medium, owned=True, **fields)


def gone(prompt: Prompt, medium: Medium, *, is_owned: bool = True, left: int = 0) -> RemovedBlocks:
    hashes = prompt_hashes(prompt)
    return RemovedBlocks(sequence=1, hashes=hashes, medium=medium, owned=is_owned, left=left)


def cleared(medium: Medium | None = None, *, is_owned: bool = False) -> ClearedBlocks:
    return ClearedBlocks(sequence=1, medium=medium, owned=is_owned)


@pytest.mark.parametrize("medium", OWN_MEDIA)
@pytest.mark.parametrize("undecided", [False, True])
def test_stored_twice_and_removed_once_it_is_gone(
    bench: Bench, medium: Medium, undecided: bool
) -> None:
    publisher = bench.publisher()
    for _ in range(2):
        bench.apply(publisher, owned(ABC, medium, undecided=undecided))
    assert bench.ask(ABC) == {"a": 3}
    bench.apply(publisher, gone(ABC, medium))
    assert (bench.ask(ABC), bench.kernel.left_out(publisher)) == ({}, [])
    assert bench.kernel.contexts() == []


@pytest.mark.parametrize("medium", OWN_MEDIA)
def test_what_the_engine_removes_there_is_its_own_and_so_with_the_owner(
    bench: Bench, medium: Medium
) -> None:
    publisher = bench.publisher()
    bench.apply(publisher, stored(ABC, medium=medium), owned(ABC, medium))
    bench.apply(publisher, gone(ABC, medium, is_owned=False))
    assert bench.ask(ABC) == {"a": 3}
    bench.apply(publisher, stored(ABC, medium=medium), gone(ABC, medium))
    assert bench.ask(ABC) == {"a": 3}
    bench.apply(publisher, gone(ABC, medium, is_owned=False))
    assert bench.ask(ABC) == {}


@pytest.mark.parametrize("medium", OWN_MEDIA)
def test_a_clear_of_the_engine_leaves_it_and_one_of_the_owner_leaves_the_rest(
    bench: Bench, medium: Medium
) -> None:
    publisher = bench.publisher()
    bench.apply(publisher, stored(ABC), owned(ABC[:2], medium))
    bench.apply(publisher, cleared(medium))
    bench.apply(publisher, cleared())
    assert bench.ask(ABC) == {"a": 2}
    # A chain goes on behind a block that the owner alone has.
    bench.apply(publisher, stored(ABC, start=2))
    assert bench.ask(ABC) == {"a": 3}
    bench.apply(publisher, cleared(is_owned=True))
    assert bench.ask(ABC) == {"a": 0}  # without the first ones
    bench.apply(publisher, stored(ABC[:2]), owned(ABC, medium), cleared(medium, is_owned=True))
    assert bench.ask(ABC) == {"a": 3}
    assert bench.blocks() == 3


def test_the_owners_clear_of_one_medium_leaves_the_other(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.apply(publisher, owned(ABC, Medium.CPU), owned(ABC[:1], Medium.DISK))
    bench.apply(publisher, cleared(Medium.GPU, is_owned=True))
    assert bench.ask(ABC) == {"a": 3}
    bench.apply(publisher, cleared(Medium.CPU, is_owned=True))
    assert bench.ask(ABC) == {"a": 1}


def test_answers_count_it_as_the_engines_own_medium(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.apply(publisher, stored(ABC[:1]), owned(ABC[:2], Medium.CPU), owned(ABC, Medium.DISK))
    assert bench.ranks(ABC) == {("a", 0): (3, 1, 2, 3)}


def test_of_the_gpu_and_of_a_pool_there_is_no_owner(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.apply(publisher, owned(ABC, Medium.GPU), owned(ABC, Medium.CPU, shared=True))
    bench.apply(publisher, cleared())
    assert bench.ask(ABC) == {}


@pytest.mark.parametrize("left", [1, 5])
def test_copies_that_are_left_are_one(bench: Bench, left: int) -> None:
    publisher = bench.publisher()
    bench.apply(publisher, owned(ABC, Medium.CPU), gone(ABC, Medium.CPU, left=left))
    assert bench.ask(ABC) == {"a": 3}
    bench.apply(publisher, gone(ABC, Medium.CPU))
    assert bench.ask(ABC) == {}


def test_what_is_left_out_of_an_owner_is_held_once_and_outlives_a_clear_too(bench: Bench) -> None:
    publisher = bench.publisher()
    for _ in range(3):
        bench.apply(publisher, owned(ABC, Medium.CPU, tokens=b"", left_out="bad_tokens"))
    bench.apply(publisher, cleared())
    assert bench.kernel.left_out(publisher) == [("bad_tokens", 3)]
    bench.apply(publisher, gone(ABC, Medium.CPU))
    assert bench.kernel.left_out(publisher) == []


def test_rows_have_it(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.apply(publisher, stored(ABC), owned(ABC, Medium.CPU), owned(ABC[:2], Medium.DISK))
    bench.apply(publisher, cleared())
    changes = bench.kernel.take_changes()
    [(context, encoded)] = changes
    kept = list(decode_changes(encoded))
    at = next(place for place, change in enumerate(kept) if change.op == Op.CLEAR)
    assert sorted(change.tier for change in kept[at + 1 :]) == [6, 6, 6, 7, 7]
    copy = open_kernel(SEED, name=bench.kernel.name)
    copy.load(context, encoded)
    assert copy.contexts() == bench.kernel.contexts()
    again = Bench(copy)
    assert again.ranks(ABC) == bench.ranks(ABC) == {("a", 0): (3, 0, 3, 3)}


class _Engine:
    """What an engine and its owner hold, as plain sets and counts of prefixes."""

    def __init__(self) -> None:
        self.own: dict[Medium, Counter[Prompt]] = {one: Counter() for one in Medium}
        self.of_owner: dict[Medium, set[Prompt]] = {one: set() for one in OWN_MEDIA}

    def holds(self, prefix: Prompt) -> bool:
        counted = any(held[prefix] > 0 for held in self.own.values())
        return counted or any(prefix in held for held in self.of_owner.values())

    def longest(self, prompt: Prompt) -> int:
        for length in range(1, len(prompt) + 1):
            if not self.holds(prompt[:length]):
                return length - 1
        return len(prompt)


def _step(
    random_: random.Random, engine: _Engine, prompts: list[Prompt]
) -> StoredBlocks | RemovedBlocks | ClearedBlocks:
    """One event that a right engine may send, after which it holds what `engine` says."""
    prompt, medium = random_.choice(prompts), random_.choice(list(Medium))
    is_owned = medium in OWN_MEDIA and random_.random() < 0.6
    kind = random_.randrange(20)
    if kind == 0:
        every = random_.random() < 0.5
        held: dict[Medium, Any] = {**(engine.of_owner if is_owned else engine.own)}
        for place in held if every else (medium,):
            held[place].clear()
        return cleared(None if every else medium, is_owned=is_owned)
    if kind < 11:
        start = next((n for n in range(len(prompt)) if not engine.holds(prompt[: n + 1])), 0)
        prefixes = [prompt[: n + 1] for n in range(start, len(prompt))]
        if is_owned:
            engine.of_owner[medium].update(prefixes)
        else:
            engine.own[medium].update(prefixes)
        return stored(prompt, start=start, medium=medium, owned=is_owned)
    there = engine.of_owner[medium] if is_owned else +engine.own[medium]
    some = [one for one in sorted(there) if random_.random() < 0.4]
    for one in some:
        if is_owned:
            engine.of_owner[medium].discard(one)
        else:
            engine.own[medium][one] -= 1
    hashes = b"".join(prompt_hashes(one)[-8:] for one in some)
    return RemovedBlocks(sequence=1, hashes=hashes, medium=medium, owned=is_owned)


@pytest.mark.parametrize("seed", range(40))
def test_the_index_is_what_the_engine_and_its_owner_hold(bench: Bench, seed: int) -> None:
    random_ = random.Random(seed)
    prompts: list[Prompt] = [
        tuple(random_.randrange(3) for _ in range(random_.randrange(1, 6))) for _ in range(8)
    ]
    engine, publisher = _Engine(), PublisherId(bench.publisher())
    for number in range(120):
        event = _step(random_, engine, prompts)
        bench.apply(publisher, event)
        for prompt in prompts:
            longest = bench.ask(prompt).get("a", 0)
            assert longest == engine.longest(prompt), f"seed {seed}, event {number}: {event}"
    assert bench.kernel.left_out(publisher) == []
