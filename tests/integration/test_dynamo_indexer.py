"""Reprise and Dynamo's standalone indexer under the same events, against the engines' own truth.

Skipped where `ai-dynamo-runtime` is not installed; `pytest -rP` prints the figures that
docs/compatibility.md shows.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import count
from typing import Final, NamedTuple

import pytest
import xxhash

from devtools import dynamo
from lab.engines.publisher import Publisher, PublisherOptions
from lab.engines.wire import BlockRemoved, BlockStored, EngineEvent
from tests.dynamo import DynamoIndexer
from tests.processes import Service, until

pytestmark = [
    pytest.mark.skipif(
        not dynamo.interpreter(),
        reason=f"no {dynamo.PACKAGE}; {dynamo.VARIABLE} may name a Python that has it",
    ),
    pytest.mark.timeout(600),
]

BLOCK_SIZE: Final = 4
WORKERS: Final = 3
DEPTH_MAX: Final = 8
SEEDS: Final = 5
ROUNDS: Final = 4
STEPS: Final = 25
THREADS: Final = (1, 4)
MEASURED: Final = "1.6.1"

Path = tuple[int, ...]
"""A block by the kinds of blocks from the root to it."""


class Mode(NamedTuple):
    """What the engines' caches do beside storing chains and evicting leaves."""

    copies: bool
    holes: bool


MODES: Final = {
    "plain": Mode(copies=False, holes=False),
    "copies": Mode(copies=True, holes=False),
    "holes": Mode(copies=False, holes=True),
    "copies and holes": Mode(copies=True, holes=True),
}


def tokens_of(path: Path) -> list[int]:
    return [100 * kind + i for kind in path for i in range(BLOCK_SIZE)]


def hash_of(path: Path) -> int:
    return xxhash.xxh3_64_intdigest(repr(path).encode())


class Engine:
    """One worker's cache, which is the truth, and the events that it sends about it.

    Attributes:
        number: the worker's name in Dynamo, where no two models may have the same.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.publisher = Publisher(PublisherOptions(replay_endpoint=""))
        self.copies: Counter[Path] = Counter()

    def store(self, path: Path, depths: Sequence[int]) -> None:
        """Stores the blocks of the path at these depths (from 1, rising), in chains."""
        events: list[EngineEvent] = []
        chain: list[int] = []
        for depth in depths:
            if chain and depth != chain[-1] + 1:
                events.append(self._stored(path, chain))
                chain = []
            chain.append(depth)
            self.copies[path[:depth]] += 1
        events.append(self._stored(path, chain))
        self.publisher.publish(events)

    def remove(self, paths: Sequence[Path]) -> None:
        for path in paths:
            assert self.copies[path] > 0
            self.copies[path] -= 1
        removed = BlockRemoved(block_hashes=[hash_of(path) for path in paths], medium="GPU")
        self.publisher.publish([removed])

    def longest(self, path: Path) -> int:
        """The continuous prefix that it holds, in tokens."""
        depth = 0
        while depth < len(path) and self.copies[path[: depth + 1]]:
            depth += 1
        return depth * BLOCK_SIZE

    def held(self) -> list[Path]:
        return sorted(path for path, copies in self.copies.items() if copies)

    @staticmethod
    def _stored(path: Path, chain: Sequence[int]) -> BlockStored:
        first, last = chain[0], chain[-1]
        return BlockStored(
            block_hashes=[hash_of(path[:depth]) for depth in chain],
            parent_block_hash=hash_of(path[: first - 1]) if first > 1 else None,
            token_ids=tokens_of(path[first - 1 : last]),
            block_size=BLOCK_SIZE,
            medium="GPU",
        )


class Bench:
    """Reprise, and Dynamo's indexer with one and with several threads."""

    def __init__(self, reprise: Service, dynamos: dict[int, DynamoIndexer]) -> None:
        self.reprise = reprise
        self.dynamos = dynamos
        self._numbers = count()
        self._markers = count(1000)

    def open(self, stack: ExitStack, workers: int) -> tuple[str, list[Engine]]:
        """Engines of a model of their own, which everybody follows."""
        engines = [Engine(next(self._numbers)) for _ in range(workers)]
        model = f"m{engines[0].number}"
        for engine in engines:
            stack.callback(engine.publisher.close)
            name, endpoint = f"w{engine.number}", engine.publisher.endpoint
            self.reprise.register(
                endpoint, instance_id=name, modelname=model, block_size=BLOCK_SIZE
            )
            for one in self.dynamos.values():
                one.follow(model, engine.number, endpoint, BLOCK_SIZE)
        everybody = 1 + len(self.dynamos)
        until(
            lambda: all(engine.publisher.subscribers == everybody for engine in engines),
            what="everybody subscribes to every engine",
        )
        return model, engines

    def ask(self, model: str, path: Path, engines: list[Engine]) -> dict[str, list[int]]:
        """Tokens of each worker, by who says so."""
        tokens = tokens_of(path)
        found = self.reprise.query(tokens, model=model, block_size=BLOCK_SIZE)
        workers = [engine.number for engine in engines]
        said = {"reprise": [found[f"w{worker}"]["longest_matched"] for worker in workers]}
        for threads, one in self.dynamos.items():
            scores = one.longest_of_workers(model, tokens)
            said[f"dynamo {threads}"] = [scores.get(worker, 0) for worker in workers]
        return said

    def settle(self, model: str, engines: list[Engine]) -> None:
        """Waits until everybody has seen what every engine has sent."""
        marker = (next(self._markers),)
        for engine in engines:
            engine.store(marker, [1])
        expected = [BLOCK_SIZE] * len(engines)

        def all_see() -> bool:
            said = self.ask(model, marker, engines)
            return all(answer == expected for answer in said.values())

        until(all_see, what="everybody sees the last events")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("dynamo")
    with ExitStack() as stack:
        reprise = stack.enter_context(Service(directory / "data"))
        dynamos = {}
        for threads in THREADS:
            dynamos[threads] = DynamoIndexer(threads, directory / f"dynamo-{threads}.log")
            stack.callback(dynamos[threads].close)
        yield Bench(reprise, dynamos)


def step(choose: random.Random, engine: Engine, prompts: list[Path], mode: Mode) -> Path:
    """One thing that the engine does; the path that it was about."""
    held = engine.held()
    if held and choose.random() < 0.45:
        leaves = held
        if not mode.holes:
            parents = {path[:-1] for path in held}
            leaves = [path for path in held if path not in parents or engine.copies[path] > 1]
        gone = choose.sample(leaves, min(len(leaves), choose.randint(1, 3)))
        engine.remove(gone)
        return gone[0]
    path = choose.choice(prompts)[: choose.randint(1, DEPTH_MAX)]
    starts = [0, *(depth for depth in range(1, len(path)) if engine.copies[path[:depth]])]
    depths = [depth for depth in range(1, len(path) + 1) if not engine.copies[path[:depth]]]
    if mode.copies and choose.random() < 0.5:
        depths = list(range(choose.choice(starts) + 1, len(path) + 1))
    if depths:
        engine.store(path, depths)
    return path


@pytest.mark.parametrize("name", MODES)
def test_random_histories(bench: Bench, name: str) -> None:
    answers = 0
    above: Counter[str] = Counter()
    below: Counter[str] = Counter()
    for seed in range(SEEDS):
        choose = random.Random(f"{name} {seed}")
        prompts = [tuple(choose.choices(range(3), k=DEPTH_MAX)) for _ in range(6)]
        with ExitStack() as stack:
            model, engines = bench.open(stack, WORKERS)
            for _ in range(ROUNDS):
                for _ in range(STEPS):
                    step(choose, choose.choice(engines), prompts, MODES[name])
                bench.settle(model, engines)
                for path in prompts:
                    truth = [engine.longest(path) for engine in engines]
                    answers += WORKERS
                    for who, said in bench.ask(model, path, engines).items():
                        above[who] += sum(one > true for one, true in zip(said, truth, strict=True))
                        below[who] += sum(one < true for one, true in zip(said, truth, strict=True))
    for who in ("reprise", *(f"dynamo {threads}" for threads in THREADS)):
        print(f"{name}: {who}: {answers} answers, {above[who]} too long, {below[who]} too short")
    assert (above["reprise"], below["reprise"]) == (0, 0)
    if not any(MODES[name]):
        assert not +above, "without copies and holes all of them are right"
        assert not +below, "without copies and holes all of them are right"


A, B, C, D, E, F, G, H = range(8)
ABCD, ABCEFGH = (A, B, C, D), (A, B, C, E, F, G, H)


def copies(engines: list[Engine]) -> Iterator[None]:
    engines[0].store((A, B), [1, 2])
    engines[0].store((A, B), [1, 2])
    engines[0].remove([(A, B)])
    yield


def hole(engines: list[Engine]) -> Iterator[None]:
    engines[0].store(ABCD, [1, 2, 3, 4])
    engines[0].remove([(A, B)])
    engines[0].store((A, B), [2])
    yield


def false_hit(engines: list[Engine]) -> Iterator[None]:
    engines[0].store(ABCEFGH, range(1, 8))
    yield
    engines[1].store((A,), [1])
    engines[1].store(ABCD, [2, 3, 4])
    engines[1].remove([(A, B, C)])
    yield


@pytest.mark.parametrize(
    ("history", "prompt", "truth", "measured"),
    [
        (copies, (A, B), 2, {1: 1, 4: 1}),
        (hole, ABCD, 4, {1: 2, 4: 2}),
        (false_hit, ABCD, 3, {1: 3, 4: 4}),
    ],
)
def test_each_class_of_differences_reduced(
    bench: Bench,
    history: Callable[[list[Engine]], Iterator[None]],
    prompt: Path,
    truth: int,
    measured: dict[int, int],
) -> None:
    """What the first worker is credited with, in blocks."""
    with ExitStack() as stack:
        model, engines = bench.open(stack, 2)
        for _ in history(engines):
            bench.settle(model, engines)
        said = bench.ask(model, prompt, engines)
        true = [engine.longest(prompt) for engine in engines]
    assert true[0] == truth * BLOCK_SIZE
    assert said["reprise"] == true
    found = {threads: said[f"dynamo {threads}"][0] // BLOCK_SIZE for threads in THREADS}
    print(f"truth {truth}, dynamo {found}")
    if dynamo.version() == MEASURED:
        assert found == measured
