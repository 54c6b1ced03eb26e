"""What a released engine is made to say: each kind of event that any release has."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from devtools.publishers.released import Event

BLOCK_SIZE: Final = 4


def stored(
    hashes: Sequence[int | str],
    parent: int | None = None,
    *,
    first_token: int = 1000,
    **fields: Any,
) -> Event:
    """Blocks of `BLOCK_SIZE` tokens that count up, on the GPU where nothing else is said."""
    tokens = range(first_token, first_token + BLOCK_SIZE * len(hashes))
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": BLOCK_SIZE,
        "medium": "GPU",
    } | fields


def removed(hashes: Sequence[int], **fields: Any) -> Event:
    """Blocks that are gone from the GPU, where nothing else is said."""
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"} | fields


CLEARED: Final[Event] = {"type": "AllBlocksCleared"}


def batches(fields: Mapping[str, Sequence[str]]) -> list[list[Event]]:
    """The batches of a release whose events have these fields, by tag: all that it can say."""
    return [list(batch) for batch in _batches(frozenset(fields["BlockStored"]))]


def _batches(names: frozenset[str]) -> Iterator[Sequence[Event]]:
    # Engines say more than their types: a page of EAGLE has pairs for tokens, hashes may be bytes.
    yield [stored([-91], token_ids=[[1, 2], [2, 3], [3, 4], [4, 5]])]
    yield [stored(["01" * 32, "02" * 32])]
    yield [stored([11, 12, 13])]
    yield [stored([14], 13, first_token=1012), removed([12])]
    yield []
    if "medium" in names:
        yield [stored([11, 12], medium="CPU"), removed([11], medium="CPU")]
        yield [stored([11], medium="CPU", token_ids=[], block_size=0)]
    if "lora_name" in names:
        yield [stored([21, 22], lora_name="sql")]
    else:
        yield [stored([21, 22], lora_id=7)]
    if "extra_keys" in names:
        yield [stored([31, 32], extra_keys=[["salt"], None])]
    if "cache_salt" in names:
        yield [stored([41, 42], cache_salt="salt", session_id="one")]
    if "group_idx" in names:
        yield [stored([11], group_idx=1)]
    if "kv_cache_spec_kind" in names:
        window = stored([53], group_idx=1, kv_cache_spec_kind="sliding_window")
        window = {**window, "kv_cache_spec_sliding_window": 8}
        yield [stored([51, 52], kv_cache_spec_kind="mla_attention"), window]
    if "locality" in names:
        yield [stored([61], medium="CPU", locality="REMOTE", ownership=None)]
    if "lookahead_token_ids" in names:
        yield [stored([71, 72], lookahead_token_ids=[[1004], [1008]], session_id="one")]
    yield [removed([13]), CLEARED, stored([81, 82])]
