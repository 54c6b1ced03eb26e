"""A kernel as its table grows: what a query costs, and how long it and the fold are held up.

One instance stores prompts of 128K tokens in calls of some 1,000 blocks, as a record of the service
has them. Beside it a thread asks for 1K tokens that it holds, every millisecond. At each size
prompts that have left the caches are asked for once, and at the last one prompts of up to 1M
tokens.

The hashing alone is what a query takes beyond one by prefix hashes, both of one prompt again and
again, so that all of it is in the caches.
"""

import threading
import time
from collections.abc import Sequence
from typing import Final

from lab.benchmarks.index.blocks import (
    SCOPE,
    Chain,
    chains,
    encoded_calls,
    stored_events,
    stream_of,
)
from lab.benchmarks.index.hashing import prefix_hashes
from lab.benchmarks.report.figures import Figure, percentile, thread_seconds, times
from lab.benchmarks.sizes import BLOCK_SIZE, CHAIN_BLOCKS, SEED, Sizes
from streams.kernel import Kernel, open_kernel
from streams.kernel.interface import PublisherId

PROMPT_TOKENS: Final = (1024, 8192, 131_072)
LONG_TOKENS: Final = 1_048_576
LINEAR_FROM: Final = 16_384
"""From here on a query's fixed cost is nothing."""
COLD_PROMPTS: Final = 32
QUERY_EVERY_S: Final = 0.001
EVENT_BLOCKS: Final = 64
CALL_BLOCKS: Final = 1024
TIMES: Final = 50


def measure(sizes: Sizes) -> list[Figure]:
    index = open_kernel(1337)
    publisher = index.open_publisher(stream_of("growing"), 0)
    held = COLD_PROMPTS * CHAIN_BLOCKS
    asked = list(chains(held, SEED + 1))
    for chain in asked:
        _store(index, publisher, chain)
    hashing_us = {tokens: _hashing_us(index, asked[0], tokens) for tokens in PROMPT_TOKENS}
    figures: list[Figure] = []
    pauses = _Pauses(index, asked[0].prompt(PROMPT_TOKENS[0]))
    first: dict[int, float] = {}
    for number, blocks in enumerate(sizes.growth_blocks):
        with pauses:
            for chain in chains(max(0, blocks - held), SEED + 2 + number):
                pauses.note(_store(index, publisher, chain))
        held = max(held, blocks)
        cold = _cold_us(index, asked)
        first = first or cold
        figures += _cold_figures(cold, held, hashing_us, first)
    return [*figures, *pauses.figures(held), *_long_figures()]


def _store(index: Kernel, publisher: PublisherId, chain: Chain) -> list[float]:
    """Stores one prompt; the milliseconds of CPU of each call."""
    took_ms = []
    events = stored_events(chain, EVENT_BLOCKS)
    for call in encoded_calls(events, EVENT_BLOCKS, call_blocks=CALL_BLOCKS):
        began = time.thread_time()
        index.apply(publisher, call, -1)
        took_ms.append(1e3 * (time.thread_time() - began))
    index.take_changes()
    return took_ms


def _hashing_us(index: Kernel, chain: Chain, tokens: int) -> float:
    prompt = chain.prompt(tokens)
    hashes = prefix_hashes(prompt)
    by_tokens, by_hash = (
        min(thread_seconds(call) for _ in range(TIMES))
        for call in (
            lambda: index.query(SCOPE, prompt, (), None),
            lambda: index.query_by_hash(SCOPE, hashes, None),
        )
    )
    return 1e6 * (by_tokens - by_hash)


def _cold_us(index: Kernel, asked: Sequence[Chain]) -> dict[int, float]:
    """CPU of a query out of the caches, by its tokens: the median of the prompts."""
    found: dict[int, float] = {}
    for place, tokens in enumerate(PROMPT_TOKENS):
        # Each is asked for once at each size: what was stored since has taken its place.
        prompts = [chain.prompt(tokens) for chain in asked[place :: len(PROMPT_TOKENS)]]
        took_us = []
        for prompt in prompts:
            took_us.append(1e6 * thread_seconds(lambda: index.query(SCOPE, prompt, (), None)))  # noqa: B023
        found[tokens] = percentile(took_us, 50)
    return found


def _cold_figures(
    cold_us: dict[int, float], held: int, hashing_us: dict[int, float], first: dict[int, float]
) -> list[Figure]:
    figures = []
    for tokens, took in cold_us.items():
        query = f"query of {tokens // 1024}K tokens"
        name = f"{query}, {held:,} blocks held"
        ratio = took / max(hashing_us[tokens], 0.1)
        figures += [
            Figure(name=f"{name}: CPU", unit="us", runs=[took]),
            Figure(name=f"{name}: times the hashing alone", unit="x", runs=[ratio]),
        ]
        if cold_us is not first:
            grown = f"{query}: CPU, {held:,} blocks, times first"
            figures.append(Figure(name=grown, unit="x", runs=[took / first[tokens]]))
    return figures


class _Pauses:
    """Asks while the table grows; keeps how long that has taken, and each call of the fold."""

    def __init__(self, index: Kernel, prompt: bytes) -> None:
        self._index = index
        self._prompt = prompt
        self._asked_ms: list[float] = []
        self._stored_ms: list[float] = []
        self._stopping = threading.Event()

    def note(self, took_ms: list[float]) -> None:
        """So long took the calls of the fold."""
        self._stored_ms += took_ms

    def __enter__(self) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _ask(self) -> None:
        is_ending = False
        while not is_ending:  # once at least: a small table has grown before the thread runs
            began = time.monotonic()
            self._index.query(SCOPE, self._prompt, (), None)
            self._asked_ms.append(1e3 * (time.monotonic() - began))
            is_ending = self._stopping.wait(QUERY_EVERY_S)

    def figures(self, held: int) -> list[Figure]:
        """The longest, and nearly the longest: a busy machine takes its own."""
        figures = []
        for name, took_ms in (
            ("a query of 1K tokens", self._asked_ms),
            ("CPU of a call of the fold, 1,024 blocks", self._stored_ms),
        ):
            note = f"while the table grew to {held:,} blocks; {len(took_ms):,} of them"
            longest = Figure(name=f"{name}: longest", unit="ms", runs=[max(took_ms)], note=note)
            usual = percentile(took_ms, 99.9)
            figures += [longest, Figure(name=f"{name}: p99.9", unit="ms", runs=[usual])]
        return figures


def _long_figures() -> list[Figure]:
    """What a token costs as prompts get longer, in a table that holds nothing else."""
    index = open_kernel(1337)
    publisher = index.open_publisher(stream_of("long"), 0)
    blocks = LONG_TOKENS // BLOCK_SIZE
    (chain,) = chains(blocks, SEED, blocks)
    _store(index, publisher, chain)
    figures: list[Figure] = []
    by_tokens: dict[int, list[float]] = {}
    tokens = PROMPT_TOKENS[0]
    while tokens <= LONG_TOKENS:
        prompt = chain.prompt(tokens)
        runs = [
            1e9 * thread_seconds(lambda: index.query(SCOPE, prompt, (), None)) / tokens  # noqa: B023
            for _ in range(5)
        ]
        name = f"query of {tokens // 1024}K tokens: CPU of a token"
        figures.append(Figure(name=name, unit="ns", runs=runs))
        by_tokens[tokens] = runs
        tokens *= 4
    name = f"query of {LONG_TOKENS // 1024}K tokens: CPU of a token, times {LINEAR_FROM // 1024}K"
    return [*figures, times(name, by_tokens[LONG_TOKENS], by_tokens[LINEAR_FROM])]
