"""The kernel alone: CPU time of one thread, on top of resident blocks of another instance.

Stored and removed blocks come in calls of about 4096 blocks, encoded before. A hot query asks for
one prompt again and again; cold ones rotate over so many that the index has left the caches.
"""

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Final

import msgspec

from lab.benchmarks.index.blocks import (
    SCOPE,
    Chain,
    chains,
    encoded_calls,
    removed_events,
    stored_events,
    stream_of,
)
from lab.benchmarks.report.figures import Figure, thread_seconds
from lab.benchmarks.sizes import BLOCK_SIZE, CHAIN_BLOCKS, SEED, KernelName, Sizes
from lab.engines.wire import BlockStored, EventEncoder
from schemas.arrays import ArrayPacker
from streams.kernel import Kernel, array_packer, open_kernel
from streams.kernel.interface import PublisherId

EVENT_BLOCKS: Final = (1, 64, 512)
QUERY_TOKENS: Final = (8192, 131_072)
PASSES: Final = 5


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    index = open_kernel(1337, name=kernel)
    resident = list(chains(sizes.resident_blocks, SEED))
    publisher = index.open_publisher(stream_of("resident"), 0)
    for chain in resident:
        for call in encoded_calls(stored_events(chain, 64), 64):
            index.apply(publisher, call, -1)
        index.take_changes()
    figures = []
    for per_event in EVENT_BLOCKS:
        figures += _apply_figures(index, sizes, per_event)
    for tokens in QUERY_TOKENS:
        figures += _query_figures(index, resident, tokens)
    for tokens in QUERY_TOKENS:
        figures += _scan_figures(index, resident[0], tokens)
    figures.append(_pack_figure(array_packer(), resident[0]))
    return figures


def _apply_figures(index: Kernel, sizes: Sizes, per_event: int) -> list[Figure]:
    added = list(chains(sizes.apply_blocks, SEED + per_event, 512))
    stored = [c for chain in added for c in stored_events(chain, per_event)]
    removed = [c for chain in added for c in removed_events(chain, per_event)]
    calls = {
        "stored": list(encoded_calls(stored, per_event)),
        "removed": list(encoded_calls(removed, per_event)),
    }
    publisher = index.open_publisher(stream_of("added"), 0)
    runs: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(sizes.runs):
        for name, encoded in calls.items():
            seconds = thread_seconds(partial(_apply_all, index, publisher, encoded))
            runs[name].append(sizes.apply_blocks / seconds / 1e6)
    return [
        Figure(
            name=f"apply, {name}, {per_event}-block events",
            unit="M blocks/s",
            runs=values,
            note=f"on {sizes.resident_blocks:,} resident blocks",
        )
        for name, values in runs.items()
    ]


def _apply_all(index: Kernel, publisher: PublisherId, calls: list[bytes]) -> None:
    for call in calls:
        index.apply(publisher, call, -1)
    index.take_changes()


def _query_figures(index: Kernel, resident: list[Chain], tokens: int) -> list[Figure]:
    prompts = [chain.prompt(tokens) for chain in resident if chain.blocks == CHAIN_BLOCKS]
    matches = index.query(SCOPE, prompts[0], b"", None)
    assert [match.longest for match in matches if match.longest] == [tokens], "a whole match"
    hot = _microseconds(lambda: index.query(SCOPE, prompts[0], b"", None))
    rotating = cycle(prompts)
    blocks = tokens // BLOCK_SIZE
    cold = _microseconds(lambda: index.query(SCOPE, next(rotating), b"", None))
    return [
        Figure(name=f"query, {_size(tokens)} tokens, hot", unit="us", runs=hot),
        Figure(
            name=f"query, {_size(tokens)} tokens, cold",
            unit="us",
            runs=cold,
            note=f"{len(prompts)} prompts rotate, {len(prompts) * blocks:,} blocks in all",
        ),
    ]


def _scan_figures(index: Kernel, chain: Chain, tokens: int) -> list[Figure]:
    prompt = memoryview(chain.prompt(tokens)).cast("I").tolist()
    fields = {"model": SCOPE.model_name, "block_size": BLOCK_SIZE, "token_ids": prompt}
    body = msgspec.json.encode(fields)
    assert index.scan_query(body) is not None, "a plain body"
    return [
        Figure(
            name=f"scan_query, {_size(tokens)} tokens",
            unit="us",
            runs=_microseconds(lambda: index.scan_query(body)),
            note=f"{len(body) // 1024} KiB of JSON",
        )
    ]


class _WireEvent(msgspec.Struct):
    token_ids: msgspec.Raw


class _WireBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[_WireEvent]


def _pack_figure(packer: ArrayPacker, chain: Chain) -> Figure:
    prompt = memoryview(chain.prompt(8192)).cast("I").tolist()
    event = BlockStored(block_hashes=[1], token_ids=prompt)
    batch = EventEncoder().encode([event], timestamp_s=0.0, dp_rank=0)
    encoded = bytes(msgspec.msgpack.decode(batch, type=_WireBatch).events[0].token_ids)
    return Figure(
        name=f"pack_tokens, {_size(len(prompt))} tokens",
        unit="us",
        runs=_microseconds(lambda: packer.pack_tokens(encoded)),
        note=f"by {type(packer).__name__} of {type(packer).__module__}",
    )


def _microseconds(call: Callable[[], object], total_s: float = 0.1) -> list[float]:
    """CPU time of one call, by pass; each pass has as many calls as fill about `total_s`."""
    once = max(thread_seconds(call), 1e-7)
    calls = max(3, min(200_000, int(total_s / once)))

    def many() -> None:
        for _ in range(calls):
            call()

    return [1e6 * thread_seconds(many) / calls for _ in range(PASSES)]


def _size(tokens: int) -> str:
    return f"{tokens // 1024}K"
