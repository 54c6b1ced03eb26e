"""Which block an object of a Mooncake store has, by what it is called.

Source: Mooncake, `mooncake-store/include/kv_event/key_util.h` of its branches `main` and
`dev/conductor`. The forms of keys that name a block:

    17 | 0x11                                                       the hash itself
    [namespace@]model[@store_tp:2][@store_pp:1@store_format:x]@tp_rank:0@pcp0@dcp0@pp_rank:0[@group:0]@HEX
                                                                    vLLM's connector
    model@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@HEX                 the one of vLLM Ascend
    model@pcp0@dcp0@head_or_tp_rank:0@HEX@0                         the same, by layer
    [[tag_]model_]HEX_0[_0]_k, ..._v, HEX__k                        SGLang's HiCache
    [[tag_]model_]tp2_dcp2_page16_pp1_cp1_HEX_dcp0_cp0[_0]_k        the same, context parallel
    [[tag_]model_]HEX_[tp0_]cp0_pp0_k                               its direct linker
    ..._draft_k, ..._indexer, ..._swa_v, ..._temporal, ..._conv_0   its side pools

Where several ranks share a model each has an object of its own, a shard of the block; so have the
layers, and keys and values. An engine finds the block where all of them are there, under the prefix
(`namespace`) and in the layout (`store_...`, `tp2_...`) that it was started with. The connectors of
vLLM call a model by the last part of its path, SGLang by all of it with `-` for `/`.

HEX is the engine's whole digest. vLLM announces its last 8 bytes, SGLang the first. What a side
pool (drafts, indexers, sliding windows, Mamba) has of a page is a shard of it, too: where such
pools are, a page is of use with all of them.

Source of SGLang's: `sglang/srt/mem_cache/storage/mooncake_store/mooncake_store.py`.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_NUMBER: Final = re.compile(r"0[xX]([0-9a-fA-F]+)|([0-9]+)", re.ASCII)
_HEX: Final = re.compile(r"(?:0[xX])?([0-9a-fA-F]{16,})", re.ASCII)
_VLLM: Final = re.compile(
    r"(?:(?P<prefix>.*)@)?(?P<model>(?!store_(?:tp|pp|format):)[^@]+)(?P<layout>(?:@store_[^@]+)*)"
    r"@tp_rank:(?P<tp>[0-9]+)@pcp(?P<pcp>[0-9]+)@dcp(?P<dcp>[0-9]+)"
    r"@pp_rank:(?P<pp>[0-9]+)"
    r"(?:@group:(?P<group>[0-9]+))?@(?P<hash>[^@]+)",
    re.ASCII | re.DOTALL,
)
_ASCEND: Final = re.compile(
    r"(?P<model>.+?)@pcp(?P<pcp>[0-9]+)@dcp(?P<dcp>[0-9]+)@head_or_tp_rank:(?P<tp>[0-9]+)@"
    r"(?:pp_rank:(?P<pp>[0-9]+)@(?P<hash>[^@]+)|(?P<layered>[^@]+)@(?P<layer>[0-9]+))",
    re.ASCII | re.DOTALL,
)


_SGLANG: Final = re.compile(
    r"(?:(?P<tag>.+?)_)??(?:(?P<layout>tp[0-9]+_dcp[0-9]+_page[0-9]+_pp[0-9]+_cp[0-9]+)_)?"
    r"(?P<high>[0-9a-f]{16})[0-9a-f]{48}_"
    r"(?:dcp(?P<dcp>[0-9]+)_cp(?P<pcp>[0-9]+)_?|(?P<linker>(?:tp[0-9]+_)?cp[0-9]+_pp[0-9]+))?"
    r"(?:(?P<tp>[0-9]+)(?:_(?P<pp>[0-9]+))?)?_(?P<half>[a-z][a-z0-9_]*)",
    re.ASCII | re.DOTALL,
)
_PLACES: Final = ("tp", "pcp", "dcp", "pp", "layer", "half", "layout", "linker", "prefix")
_FIRST: Final = ("", "k")


class NamedBlock(NamedTuple):
    """What a key says.

    Attributes:
        hash: by which engines announce the block, u64.
        model_name: "" where the key has none.
        group: the cache group, as text; "" where the key has none.
        tag: the model, with `-` for `/`, behind whatever else SGLang was told to put there; ""
            where the key has none.
        shard: which part of the block the object has, as the ranks that share the model say, and
            for engines of which prefix and layout; "" for the first one, without these.
    """

    hash: int
    model_name: str = ""
    group: str = ""
    tag: str = ""
    shard: str = ""

    def is_of(self, model_name: str) -> bool:
        """Whether it may be a block of the model."""
        if self.tag:
            return f"_{self.tag}".endswith(f"_{_dashed(model_name)}")
        last = model_name.rstrip("/").rpartition("/")[2]
        return self.model_name in ("", model_name, last)

    def shard_of(self, model_name: str) -> str:
        """The shard, with what SGLang was told to put before the model (`extra_backend_tag`)."""
        before = self.tag.removesuffix(_dashed(model_name))
        return f"{self.shard},tag:{before}" if before else self.shard


def _dashed(model_name: str) -> str:
    return model_name.replace("/", "-")


def block_of(object_key: str) -> NamedBlock | None:
    """The block that an object of this key has; None where the key does not say. Cost O(bytes)."""
    if found := _NUMBER.fullmatch(object_key):
        in_hex, decimal = found.groups()
        value = int(in_hex, 16) if in_hex else _decimal(decimal)
        return NamedBlock(value) if value < 2**64 else None
    if found := _SGLANG.fullmatch(object_key):
        parts = found.groupdict()
        return NamedBlock(int(found["high"], 16), tag=found["tag"] or "", shard=shard_of(parts))
    found = _VLLM.fullmatch(object_key) or _ASCEND.fullmatch(object_key)
    if found is None:
        return None
    parts = found.groupdict()
    digest = low64(parts["hash"] or parts["layered"])
    if digest is None:
        return None
    return NamedBlock(digest, parts["model"], parts.get("group") or "", shard=shard_of(parts))


def shard_of(places: Mapping[str, str | None]) -> str:
    """Which part of a block an object has, and for which engines; "" for the first one."""
    told = ((name, places.get(name) or "") for name in _PLACES)
    return ",".join(f"{name}:{place}" for name, place in told if place.lstrip("0") not in _FIRST)


def low64(digest: str) -> int | None:
    """The last 8 bytes of a digest in hex, big-endian; None where it is no such digest."""
    found = _HEX.fullmatch(digest)
    if found is None or len(found[1]) % 2:
        return None
    return int(found[1][-16:], 16)


def _decimal(digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= len(str(2**64)) else 2**64
