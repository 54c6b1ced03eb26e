"""Blocks that an engine announces again because a request has hit them are not counted twice."""

import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pytest

from bridge.wire.hit_reports import PythonHitReports, open_hit_reports
from schemas.arrays import HitReports, PythonArrayPacker
from schemas.events import (
    BlockEvent,
    Cleared,
    Removed,
    Stored,
    decode_run,
    encode_events,
    encode_run,
)
from schemas.identities import Medium
from schemas.limits import HIT_REPORT_BLOCKS_MAX, HIT_REPORT_FRESH, HIT_REPORT_SCORE
from schemas.registration import PublisherKind, ReportMode
from streams.kernel import Kernel, array_packer, native_available, open_kernel
from streams.kernel.reference import ReferenceKernel
from tests.building import BLOCK, STREAM, cleared, removed, stored, u64s
from tests.unit.bridge.messages import registration

CHAIN = [1, 2, 3]

Open = Callable[[bool], HitReports]


@pytest.fixture(params=["python", "rust"])
def opened(request: pytest.FixtureRequest) -> Open:
    if request.param == "python":
        return PythonHitReports
    if not native_available():
        pytest.skip("the Rust kernel is not built")

    def native(are_known: bool) -> HitReports:
        made = array_packer().hit_reports(are_known)
        assert made is not None
        return made

    return native


def chain(sequence: int, hashes: Sequence[int], parent: int | None = None) -> Stored:
    return stored(sequence, hashes, [hashes[0]] * BLOCK * len(hashes), parent=parent)


def taken(hits: HitReports, *events: BlockEvent) -> list[BlockEvent]:
    """The events as they are to be written."""
    run, added = encode_run(events), 0
    marked = hits.take(run, len(events))
    if marked is not None:
        run, added, _ = marked
    return decode_run(run, len(events) + added)


def reported(event: Stored) -> Stored:
    return msgspec.structs.replace(event, reported=True)


# Known


def test_of_who_reports_hits_each_chain_that_begins_a_prompt_is_marked(opened: Open) -> None:
    hits = opened(True)
    root, child = chain(0, CHAIN), chain(0, [4], parent=3)
    assert taken(hits, root, child) == [reported(root), child]
    assert hits.take(encode_run([child]), 1) is None


@pytest.mark.parametrize(
    "change",
    [
        {"medium": Medium.CPU},
        {"shared": True},
        {"spec_kind": "mamba"},
        {"tokens": b""},
        {"reported": True},
        {"tokens": b"", "by_hash": True},
        {"tokens": b"", "token_hashes": u64s(CHAIN)},
    ],
)
def test_only_what_is_stored_by_its_tokens_on_the_gpu_can_be_a_report(
    opened: Open, change: dict[str, object]
) -> None:
    event = msgspec.structs.replace(chain(0, CHAIN), **change)
    assert opened(True).take(encode_run([event]), 1) is None


def test_a_mark_stands_where_it_does_in_any_record(opened: Open) -> None:
    event = msgspec.structs.replace(
        chain(2**40, CHAIN),
        lora_name="ad",
        group=3,
        spec_kind="full_attention",
        extra_keys=(b"k", b"", b""),
    )
    marked = opened(True).take(encode_run([event, event]), 2)
    assert marked is not None
    assert tuple(marked) == (encode_run([reported(event)] * 2), 0, 2)


def test_parts_of_a_batch_are_marked_and_nothing_else(opened: Open) -> None:
    root = chain(0, CHAIN)
    marked = opened(True).mark(encode_run([root]), 1)
    assert marked is not None
    assert tuple(marked) == (encode_run([reported(root)]), 0, 1)
    assert opened(True).mark(encode_run([chain(0, [4], parent=3)]), 1) is None
    hits = opened(False)
    for sequence in range(3 * HIT_REPORT_SCORE):
        assert hits.mark(encode_run([chain(sequence, CHAIN)]), 1) is None
    assert not hits.are_known


# Found out


def test_a_chain_that_is_announced_twice_has_two_copies(opened: Open) -> None:
    hits = opened(False)
    for sequence in range(2):
        assert taken(hits, chain(sequence, CHAIN)) == [chain(sequence, CHAIN)]
    assert not hits.are_known


def test_one_that_is_announced_again_and_again_is_reported_and_taken_back(opened: Open) -> None:
    hits, sequence = opened(False), 0
    for sequence in range(HIT_REPORT_SCORE):
        assert taken(hits, chain(sequence, CHAIN)) == [chain(sequence, CHAIN)]
        assert not hits.are_known
    sequence += 1
    found = taken(hits, chain(sequence, CHAIN), chain(sequence, [4], parent=3))
    assert found == [
        chain(sequence, CHAIN),
        *[removed(sequence, CHAIN)] * HIT_REPORT_SCORE,
        chain(sequence, [4], parent=3),
    ]
    assert hits.are_known
    assert taken(hits, chain(9, CHAIN)) == [reported(chain(9, CHAIN))]


def prompts(hits: HitReports, sequence: int, count: int) -> int:
    """Prompts of which nothing is cached, one a batch; returns the next sequence."""
    for number in range(sequence, sequence + count):
        fresh = chain(number, [1000 + 2 * number, 1001 + 2 * number])
        assert taken(hits, fresh) == [fresh]
    return sequence + count


def test_second_copies_now_and_then_are_no_reports_however_long_it_goes_on(opened: Open) -> None:
    hits, sequence = opened(False), 0
    for _ in range(3 * HIT_REPORT_SCORE):
        taken(hits, chain(sequence, CHAIN))
        sequence = prompts(hits, sequence + 1, HIT_REPORT_FRESH)
        assert not hits.are_known


def test_copies_of_before_the_score_has_fallen_are_not_taken_back(opened: Open) -> None:
    hits = opened(False)
    taken(hits, chain(0, CHAIN))
    taken(hits, chain(1, CHAIN))
    sequence = prompts(hits, 2, HIT_REPORT_FRESH)
    found = []
    for number in range(sequence, sequence + HIT_REPORT_SCORE):
        found += taken(hits, chain(number, CHAIN))
    assert hits.are_known
    assert [one for one in found if isinstance(one, Removed)] == [
        removed(sequence + HIT_REPORT_SCORE - 1, CHAIN)
    ] * HIT_REPORT_SCORE


def test_an_engine_whose_prompts_seldom_hit_is_found_out_too(opened: Open) -> None:
    hits, sequence = opened(False), 1
    taken(hits, chain(0, CHAIN))
    for number in range(HIT_REPORT_SCORE):
        taken(hits, chain(sequence, CHAIN), chain(sequence, [500 + number], parent=3))
        if hits.are_known:
            return
        sequence = prompts(hits, sequence + 1, HIT_REPORT_FRESH // 2)
    pytest.fail("it has not been found out")


def test_two_are_enough_where_the_same_batch_goes_on_behind_them(opened: Open) -> None:
    hits = opened(False)
    taken(hits, chain(0, CHAIN))
    taken(hits, chain(1, CHAIN), chain(1, [4], parent=3))
    assert not hits.are_known
    found = taken(hits, chain(2, CHAIN), chain(2, [5], parent=3))
    assert found[2:] == [removed(2, CHAIN), removed(2, CHAIN)]
    assert hits.are_known


def test_what_follows_in_the_same_run_is_marked(opened: Open) -> None:
    """A run has several batches."""
    hits = opened(False)
    events = [chain(sequence, CHAIN) for sequence in range(HIT_REPORT_SCORE + 3)]
    found = taken(hits, *events)
    assert found[HIT_REPORT_SCORE + 1 : 2 * HIT_REPORT_SCORE + 1] == (
        [removed(HIT_REPORT_SCORE, CHAIN)] * HIT_REPORT_SCORE
    )
    assert found[-2:] == [reported(event) for event in events[-2:]]


@pytest.mark.parametrize(
    "between",
    [
        [cleared(1)],
        [removed(1, [2])],
        [removed(1, CHAIN)],
    ],
)
def test_what_is_stored_anew_is_no_report(opened: Open, between: list[BlockEvent]) -> None:
    hits = opened(False)
    for turn in range(3 * HIT_REPORT_SCORE):
        at = 2 * turn
        gone = [msgspec.structs.replace(event, sequence=at + 1) for event in between]
        assert taken(hits, chain(at, CHAIN)) == [chain(at, CHAIN)]
        assert taken(hits, *gone) == gone
    assert not hits.are_known


def test_a_chain_of_which_a_part_is_new_is_no_report(opened: Open) -> None:
    """As several prompts with one beginning that are loaded at the same time."""
    hits = opened(False)
    for sequence in range(3 * HIT_REPORT_SCORE):
        taken(hits, chain(sequence, [1, 2, 100 + sequence]))
    assert not hits.are_known


def test_a_prompt_of_one_block_is_computed_again_whatever_is_cached(opened: Open) -> None:
    hits = opened(False)
    for sequence in range(3 * HIT_REPORT_SCORE):
        taken(hits, chain(sequence, [1]))
    assert not hits.are_known


def test_copies_within_one_batch_are_no_reports(opened: Open) -> None:
    hits = opened(False)
    taken(hits, *[chain(0, CHAIN)] * (3 * HIT_REPORT_SCORE))
    assert not hits.are_known


def test_a_removal_of_another_group_or_medium_is_of_other_blocks(opened: Open) -> None:
    hits = opened(False)
    others = [
        removed(1, CHAIN, medium=Medium.CPU),
        Removed(sequence=1, hashes=u64s(CHAIN), group=1),
        Removed(sequence=1, hashes=u64s(CHAIN), shared=True),
    ]
    for sequence in range(HIT_REPORT_SCORE + 1):
        taken(hits, chain(sequence, CHAIN), *others)
    assert hits.are_known


def test_groups_are_told_apart_and_taken_back_each(opened: Open) -> None:
    hits, found = opened(False), []
    for sequence in range(HIT_REPORT_SCORE):
        groups = [msgspec.structs.replace(chain(sequence, CHAIN), group=one) for one in (0, 7)]
        found += taken(hits, *groups)
    assert hits.are_known
    groups_of = [event.group for event in found if isinstance(event, Removed)]
    assert sorted(groups_of) == [0] * (HIT_REPORT_SCORE // 2) + [7] * (HIT_REPORT_SCORE // 2)


def test_behind_a_loss_all_begins_anew(opened: Open) -> None:
    hits = opened(False)
    for sequence in range(3 * HIT_REPORT_SCORE):
        taken(hits, chain(sequence, CHAIN))
        hits.forget()
    assert not hits.are_known


def test_what_is_remembered_is_bounded(opened: Open) -> None:
    """A chain that does not fit is never a report; others push out what was before them."""
    hits = opened(False)
    large = list(range(1, HIT_REPORT_BLOCKS_MAX + 2))
    for sequence in range(3 * HIT_REPORT_SCORE):
        taken(hits, chain(sequence, large))
    assert not hits.are_known
    fits = large[:-1]
    for sequence in range(3 * HIT_REPORT_SCORE):
        taken(hits, chain(2 * sequence, CHAIN))
        taken(hits, chain(2 * sequence + 1, [10_000 + sequence, *fits[3:]]))
    assert not hits.are_known
    found = []
    for sequence in range(HIT_REPORT_SCORE + 1):
        found += taken(hits, chain(100 + sequence, fits))
    assert hits.are_known
    assert [len(event.hashes) for event in found if isinstance(event, Removed)] == [8 * len(fits)]


# In the index


class Engine:
    """vLLM's cache for prompts that begin alike; each batch in the one mode and in the other.

    Chains are cached once, evicted from their ends, and hit from their first block on.
    """

    def __init__(self, seed: int, capacity: int) -> None:
        self._random = random.Random(seed)
        self._capacity = capacity
        self._cached: OrderedDict[int, int | None] = OrderedDict()  # each with its parent
        self._sequence = -1

    def steps(self, count: int) -> Iterator[tuple[list[BlockEvent], list[BlockEvent]]]:
        for _ in range(count):
            self._sequence += 1
            plain: list[BlockEvent] = []
            full: list[BlockEvent] = []
            for _ in range(self._random.choice((0, 1, 1, 2))):
                self._request(plain, full)
            yield plain, full

    def _request(self, plain: list[BlockEvent], full: list[BlockEvent]) -> None:
        prompt = self._prompt()
        hits = 0
        while hits < len(prompt) - 1 and prompt[hits] in self._cached:
            hits += 1
        if hits:
            full.append(self._chain(prompt, 0, hits))
        new = [block for block in prompt[hits:] if block not in self._cached]
        if not new:
            return
        for block in prompt[:hits]:
            self._cached.move_to_end(block)
        gone: list[int] = []
        while len(self._cached) + len(new) > self._capacity:
            gone.append(self._evicted(prompt))
        if gone:
            plain.append(removed(self._sequence, gone))
            full.append(plain[-1])
        for at in range(hits, hits + len(new)):
            self._cached[prompt[at]] = prompt[at - 1] if at else None
        plain.append(self._chain(prompt, hits, hits + len(new)))
        full.append(plain[-1])

    def _prompt(self) -> list[int]:
        """Blocks of a tree: each names its path."""
        block, path = 0, []
        for _ in range(self._random.randrange(2, 9)):
            block = 4 * block + self._random.choice((1, 1, 2, 3))
            path.append(block)
        return path

    def _evicted(self, prompt: list[int]) -> int:
        parents = set(self._cached.values())
        leaf = next(one for one in self._cached if one not in parents and one not in prompt)
        del self._cached[leaf]
        return leaf

    def _chain(self, prompt: list[int], first: int, end: int) -> Stored:
        tokens = [token for block in prompt[first:end] for token in [block] * BLOCK]
        parent = prompt[first - 1] if first else None
        return stored(self._sequence, prompt[first:end], tokens, parent=parent)


def folded(kernel: Kernel, events: Sequence[BlockEvent]) -> list[object]:
    """What the index says of them all."""
    publisher = kernel.open_publisher(STREAM, 0)
    kernel.apply(publisher, encode_events(list(events)), -1)
    return [(one.context, one.digest, one.entries) for one in kernel.contexts()]


@pytest.mark.parametrize("are_known", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_the_index_is_that_of_an_engine_that_reports_no_hits(
    opened: Open, seed: int, are_known: bool
) -> None:
    hits, differed, equal = opened(are_known), 0, 0
    plain_kernel, full_kernel = ReferenceKernel(1337), open_kernel(1337)
    for plain, full in Engine(seed, 40).steps(300):
        mine = folded(full_kernel, taken(hits, *full))
        if mine == folded(plain_kernel, plain):
            equal += 1
        else:
            assert not hits.are_known, "once it is known nothing is counted twice"
            differed += 1
    assert hits.are_known
    assert equal > 200
    assert (differed > 0) == (not are_known)
    assert full_kernel.counters()["reported"] > 0
    assert full_kernel.counters()["unknown_removed"] == 0


@pytest.mark.parametrize("seed", range(12))
def test_an_engine_that_reports_no_hits_is_taken_for_none_that_does(
    opened: Open, seed: int
) -> None:
    hits = opened(False)
    for plain, _ in Engine(seed, 40).steps(300):
        assert taken(hits, *plain) == plain
    assert not hits.are_known


# Whom it is asked of


@pytest.mark.parametrize(
    ("kind", "mode", "expected"),
    [
        ("vLLM", "", False),
        ("vLLM", "full", True),
        ("vLLM", "incremental", None),
        ("SGLang", "", None),
        ("SGLang", "full", True),
    ],
)
def test_who_is_looked_at(kind: str, mode: ReportMode, expected: bool | None) -> None:
    one = registration(kind=PublisherKind(kind))
    registered = msgspec.structs.replace(one, kv_cache_report_mode=mode)
    for packer in (PythonArrayPacker(), array_packer()):
        hits = open_hit_reports(registered, packer)
        assert (None if hits is None else hits.are_known) == expected


def test_a_clear_leaves_nothing_to_take_back(opened: Open) -> None:
    hits = opened(False)
    for sequence in range(HIT_REPORT_SCORE):
        taken(hits, chain(sequence, CHAIN))
    found = []
    for sequence in range(10, 11 + HIT_REPORT_SCORE):
        found += taken(
            hits, *([Cleared(sequence=10)] if sequence == 10 else []), chain(sequence, CHAIN)
        )
    assert sum(isinstance(event, Removed) for event in found) == HIT_REPORT_SCORE
