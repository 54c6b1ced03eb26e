"""Images and the like in a prompt, and the keys that engines give to the blocks of them."""

from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from schemas.limits import NAME_BYTES_MAX

Place = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Length = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class MediaItem(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One image, or the like.

    Attributes:
        hash: what the engine calls its content: vLLM's `mm_hashes`.
        offset: the first of its placeholder tokens in the prompt.
        length: how many these are.
        modality: as `image`; it enters no key.
    """

    hash: Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]
    offset: Place
    length: Length
    modality: Annotated[str, Meta(max_length=NAME_BYTES_MAX)] = ""

    @property
    def end(self) -> int:
        """The first token behind it."""
        return self.offset + self.length


class Placeholder(msgspec.Struct, frozen=True):
    """Where one is."""

    offset: Place
    length: Length


class MediaFeatures(msgspec.Struct, frozen=True):
    """Those of a prompt by vLLM's names, by modality. Tensors, and what a later release adds, are
    passed over.
    """

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[Placeholder]]

    def items(self) -> list[MediaItem]:
        """In any order.

        Raises:
            ValueError: there are not as many hashes as places, or one that is none.
        """
        hashes, places = self.mm_hashes, self.mm_placeholders
        counts = [{name: len(each) for name, each in one.items()} for one in (places, hashes)]
        if counts[0] != counts[1]:
            text = "as many mm_placeholders as mm_hashes of each modality"
            raise ValueError(f"expected {text}, got {counts[0]} and {counts[1]}"[:200])
        found = [
            {"hash": name, "offset": place.offset, "length": place.length, "modality": modality}
            for modality, names in hashes.items()
            for name, place in zip(names, places[modality], strict=True)
        ]
        return msgspec.convert(found, list[MediaItem])


def _placed(item: MediaItem, start: int) -> object:
    """VLLM 0.19 to 0.33: its name, and where it begins in the block; below 0 where before that."""
    return [item.hash, item.offset - start]


def _named(item: MediaItem, start: int) -> object:
    """VLLM 0.17 and 0.18: its name alone."""
    return item.hash


MEDIA_FORMS: Final[tuple[Callable[[MediaItem, int], object], ...]] = (_placed, _named)
"""How releases write an item among the keys of a block that begins at a token; the newest first.

Source: `_gen_mm_extra_hash_keys` of `vllm/v1/core/kv_cache_utils.py`, as its events have the keys.
"""


def media_rows(
    items: Sequence[MediaItem],
    blocks: int,
    block_size: int,
    form: Callable[[MediaItem, int], object],
) -> list[list[object]]:
    """The keys of each whole block, up to the last one that an item is in. Cost O(keys).

    Args:
        items: by place, none within another.
        blocks: whole ones of the prompt.
        block_size: tokens.
        form: of `MEDIA_FORMS`.
    """
    rows: list[list[object]] = []
    for item in items:
        end = min(blocks, -(-item.end // block_size))
        rows += [[] for _ in range(end - len(rows))]
        for block in range(item.offset // block_size, end):
            rows[block].append(form(item, block * block_size))
    return rows


def media_keys_bytes(items: Sequence[MediaItem], blocks: int, block_size: int) -> int:
    """What `media_rows` take as keys, about, and no less. Cost O(items)."""
    return sum(
        max(min(blocks, -(-item.end // block_size)) - item.offset // block_size, 0)
        * (len(item.hash.encode(errors="replace")) + 16)
        for item in items
    )
