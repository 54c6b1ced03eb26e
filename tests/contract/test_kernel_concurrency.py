"""Queries beside the one writer, from other threads: every kernel answers them all, and rightly."""

import itertools
import random
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks, encode_events
from schemas.identities import MEDIA, StreamKey
from streams.kernel import Kernel, native_available, open_kernel
from streams.kernel.interface import COUNTERS
from tests.contract.kernels import BOTH, kernel_of
from tests.strategies import (
    BLOCK_SIZE,
    INSTANCES,
    LORA_NAMES,
    Prompt,
    context_of,
    prompt_hashes,
    prompt_tokens,
    scope_of,
)

SEED = 23
ROUNDS = 150
"""How often each reader asks; the writer goes on until all readers are done."""
WRITES_MAX = 3000
PUBLISHERS = [
    (StreamKey(*scope_of("")[:2], BLOCK_SIZE, "", f"{instance}{number}"), rank)
    for instance in INSTANCES
    for number in range(4)
    for rank in range(2)
]
PROMPT: Prompt = (0, 1, 2, 0, 1, 2, 0, 1)

Write = Callable[[Kernel], object]
Read = Callable[[Kernel], None]


@pytest.fixture(params=BOTH)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return kernel_of(request, SEED)


@pytest.fixture(autouse=True)
def _threads_alternate_often() -> Iterator[None]:
    """So that they meet in the middle of a call, whatever the machine."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# The writer


def _apply(number: int, events: list[BlockEvent], kernel: Kernel) -> object:
    return kernel.apply(kernel.open_publisher(*PUBLISHERS[number]), encode_events(events), -1)


def _register(number: int, lora_name: str, routable: bool, kernel: Kernel) -> None:
    kernel.register(kernel.open_publisher(*PUBLISHERS[number]), lora_name, routable)


def _clear(number: int, kernel: Kernel) -> object:
    return kernel.clear(kernel.open_publisher(*PUBLISHERS[number]))


def _unregister(number: int, kernel: Kernel) -> object:
    return kernel.unregister(kernel.open_publisher(*PUBLISHERS[number]))


def _take(kernel: Kernel) -> object:
    return sorted(kernel.take_changes())


def _load(changes: list[tuple[str, str]], source: Kernel, kernel: Kernel) -> None:
    for lora_name, instance in changes:
        context = context_of(lora_name, instance)
        for chunk in source.dump(context, 3):
            kernel.load(context, chunk)


def _any_event(choose: random.Random) -> BlockEvent:
    length = choose.randrange(1, len(PROMPT) + 1)
    lora_name = choose.choice(LORA_NAMES)
    start = choose.randrange(length)
    hashes = prompt_hashes(PROMPT[:length], lora_name, start)
    medium, shared = choose.choice(MEDIA), choose.random() < 0.2
    match choose.randrange(12):
        case 0:
            return ClearedBlocks(sequence=1)
        case 1 | 2 | 3 | 4:
            return RemovedBlocks(sequence=1, hashes=hashes, medium=medium, shared=shared)
    return StoredBlocks(
        sequence=1,
        hashes=prompt_hashes(PROMPT[:length], lora_name),
        tokens=prompt_tokens(PROMPT[:length]),
        block_size=BLOCK_SIZE,
        medium=medium,
        shared=shared,
        lora_name=lora_name,
    )


def writes(seed: int) -> Iterator[Write]:
    """All that a writer may do, in random order and without end."""
    choose = random.Random(seed)
    source = open_kernel(SEED, name="reference")
    for number in range(4):
        _apply(number, [_any_event(choose) for _ in range(6)], source)
    held = [(view.context.lora_name, view.context.instance_id) for view in source.contexts()]
    assert held, f"seed {seed} gave nothing to load"
    while True:
        number = choose.randrange(len(PUBLISHERS))
        match choose.randrange(16):
            case 0:
                yield partial(_clear, number)
            case 1 | 2:
                yield partial(_unregister, number)
            case 3 | 4:
                lora_name, routable = choose.choice(LORA_NAMES), choose.random() < 0.8
                yield partial(_register, number, lora_name, routable)
            case 5:
                yield _take
            case 6:
                yield partial(_load, held, source)
            case _:
                events = [_any_event(choose) for _ in range(choose.randrange(1, 5))]
                yield partial(_apply, number, events)


# The readers


def read_matches(kernel: Kernel) -> None:
    tokens = prompt_tokens(PROMPT)
    for lora_name in LORA_NAMES:
        matches = kernel.query(scope_of(lora_name), tokens, (), None)
        names = [match.instance_id for match in matches]
        assert names == sorted(set(names))
        for match in matches:
            depths = (match.longest, match.gpu, match.cpu, match.disk)
            assert max(depths) == match.longest <= len(PROMPT) * BLOCK_SIZE
            assert match.ranks == sorted(match.ranks)
            assert match.ranks, "an instance is there because of its ranks"
            for _, matched, gpu, cpu, disk in match.ranks:
                assert gpu <= cpu <= disk <= match.longest
                assert matched <= match.longest
                assert gpu <= match.gpu


def read_one_instance(kernel: Kernel) -> None:
    for instance in ("a0", "b1", "absent"):
        for match in kernel.query(scope_of(""), prompt_tokens(PROMPT), (), instance):
            assert match.instance_id == instance
    assert all(match.longest == 0 for match in kernel.query_by_hash(scope_of(""), b"", None))
    assert kernel.query(scope_of("absent"), b"", (), None) == []


def read_sizes(kernel: Kernel) -> None:
    stats = kernel.stats()
    assert all(size >= 0 for size in stats.values())
    assert stats["publishers"] <= len(PUBLISHERS)
    assert stats["scopes"] <= len(LORA_NAMES)
    assert stats["holder_sets"] <= stats["blocks"] <= stats["entries"]
    kernel.pending_changes()


def read_views(kernel: Kernel) -> None:
    scopes = kernel.scopes()
    assert [view.scope for view in scopes] == sorted({view.scope for view in scopes})
    assert all(view.blocks or view.instances for view in scopes)
    contexts = kernel.contexts()
    assert [view.context for view in contexts] == sorted({view.context for view in contexts})
    assert all(view.entries > 0 for view in contexts)
    for view in contexts[:2]:
        assert all(len(chunk) % 24 == 0 for chunk in kernel.dump(view.context, 2))


def read_scopes(kernel: Kernel) -> None:
    for lora_name in LORA_NAMES:
        assert kernel.knows(scope_of(lora_name)) in (True, False)
    assert not kernel.knows(scope_of("absent"))
    assert kernel.scan_query(b'{"model":"m","block_size":2,"token_ids":[1]}') is not None


class CountersReader:
    """Counters never go down."""

    def __init__(self) -> None:
        self.seen = dict.fromkeys(COUNTERS, 0)

    def __call__(self, kernel: Kernel) -> None:
        counters = kernel.counters()
        assert all(counters[name] >= self.seen[name] for name in COUNTERS)
        assert counters["repeated"] <= counters["stored"]
        self.seen = counters


class Reader(threading.Thread):
    """Asks `ROUNDS` times; keeps the first error."""

    def __init__(self, kernel: Kernel, read: Read, start: threading.Barrier) -> None:
        super().__init__()
        self._kernel, self._read, self._start = kernel, read, start
        self.error: Exception | None = None

    def run(self) -> None:
        self._start.wait()
        try:
            for _ in range(ROUNDS):
                self._read(self._kernel)
        except Exception as error:  # noqa: BLE001 - the test raises it in its own thread
            self.error = error


def run_beside(kernel: Kernel, reads: list[Read], written: Iterator[Write]) -> list[object]:
    """Writes while the readers read; what the writes returned. Raises a reader's error."""
    start = threading.Barrier(len(reads) + 1)
    readers = [Reader(kernel, read, start) for read in reads]
    for reader in readers:
        reader.start()
    start.wait()
    results: list[object] = []
    while len(results) < WRITES_MAX and any(reader.is_alive() for reader in readers):
        results.append(next(written)(kernel))
    for reader in readers:
        reader.join()
        if reader.error is not None:
            raise reader.error
    return results


def everything(kernel: Kernel) -> list[object]:
    tokens = prompt_tokens(PROMPT)
    answers = [kernel.query(scope_of(name), tokens, (), None) for name in LORA_NAMES]
    stats = kernel.stats()
    del stats["memory_bytes"]
    return [kernel.contexts(), kernel.scopes(), kernel.counters(), stats, answers, _take(kernel)]


@pytest.mark.parametrize("seed", range(3))
def test_all_reading_beside_a_writer_is_answered(kernel: Kernel, seed: int) -> None:
    reads: list[Read] = [
        read_matches,
        read_one_instance,
        read_sizes,
        read_views,
        read_scopes,
        CountersReader(),
    ]
    results = run_beside(kernel, reads, writes(seed))
    # And the writer was not disturbed: the same writes alone lead to the same.
    alone = open_kernel(SEED, name=kernel.name)
    assert [write(alone) for write in itertools.islice(writes(seed), len(results))] == results
    assert everything(alone) == everything(kernel)


def test_a_query_beside_a_writer_sees_one_state(kernel: Kernel) -> None:
    """One publisher at a time on the GPU alone: all depths of an answer are then the same."""
    prompt = PROMPT * 40
    hashes = prompt_hashes(prompt)
    tokens = prompt_tokens(prompt)
    store: list[BlockEvent] = [
        StoredBlocks(sequence=1, hashes=hashes, tokens=tokens, block_size=BLOCK_SIZE)
    ]
    remove: list[BlockEvent] = [RemovedBlocks(sequence=1, hashes=hashes)]

    def read(kernel: Kernel) -> None:
        for match in kernel.query(scope_of(""), tokens, (), None):
            [rank] = match.ranks
            assert match.longest <= len(prompt) * BLOCK_SIZE
            assert {match.longest, match.gpu, rank.matched, rank.gpu_walk} == {match.longest}

    def written() -> Iterator[Write]:
        for number in itertools.cycle(range(0, len(PUBLISHERS), 2)):
            yield partial(_apply, number, store)
            yield partial(_apply, number, remove) if number % 4 else partial(_clear, number)

    run_beside(kernel, [read, read, read], written())


@pytest.mark.skipif(not native_available(), reason="the reference kernel is Python throughout")
@pytest.mark.parametrize(
    "write",
    ["an event that clears", "clear", "unregister", "many removed", "many released", "a dump"],
)
def test_a_long_write_leaves_the_interpreter_to_other_threads(write: str) -> None:
    """However short the event is: queries come from threads of Python, too."""
    kernel = open_kernel(SEED, name="rust", cleared_at_once=2**60)
    publisher = kernel.open_publisher(*PUBLISHERS[0])
    blocks = 300_000
    hashes = array("Q", range(blocks)).tobytes()
    tokens = array("I", range(blocks * BLOCK_SIZE)).tobytes()
    stored = StoredBlocks(sequence=1, hashes=hashes, tokens=tokens, block_size=BLOCK_SIZE)
    kernel.apply(publisher, encode_events([stored]), -1)
    [context] = [view.context for view in kernel.contexts()]
    clears = encode_events([ClearedBlocks(sequence=2)])
    removed = encode_events([RemovedBlocks(sequence=2, hashes=hashes)])
    writes: dict[str, Callable[[], object]] = {
        "an event that clears": lambda: kernel.apply(publisher, clears, -1),
        "clear": lambda: kernel.clear(publisher),
        "unregister": lambda: kernel.unregister(publisher),
        "many removed": lambda: kernel.apply(publisher, removed, -1),
        "many released": lambda: kernel.release_left(blocks),
        # One alone is over before a busy machine has let the other thread run.
        "a dump": lambda: [kernel.open_dump(context).gather(blocks) for _ in range(100)],
    }
    if write == "many released":
        kernel = open_kernel(SEED, name="rust", cleared_at_once=0)
        publisher = kernel.open_publisher(*PUBLISHERS[0])
        kernel.apply(publisher, encode_events([stored]), -1)
        kernel.clear(publisher)
    state = "not begun"

    def run() -> None:
        nonlocal state
        state = "under way"
        writes[write]()
        state = "done"

    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # so that the interpreter changes threads where one gives it up only
    try:
        writer = threading.Thread(target=run)
        writer.start()
        seen = set()
        while state != "done":
            seen.add(state)
            time.sleep(0)
        writer.join()
    finally:
        sys.setswitchinterval(interval)
    assert "under way" in seen
