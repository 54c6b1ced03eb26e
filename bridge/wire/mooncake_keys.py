"""Which block an object of a Mooncake store has, by what it is called.

Source: Mooncake, `mooncake-store/include/kv_event/key_util.h` of its branches `main` and
`dev/conductor`. The forms of keys that name a block:

    17 | 0x11                                                       the hash itself
    [namespace@]model@tp_rank:0@pcp0@dcp0@pp_rank:0[@group:0]@HEX   vLLM's connector
    model@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@HEX                 the one of vLLM Ascend
    model@pcp0@dcp0@head_or_tp_rank:0@HEX@0                         the same, by layer
    [[tag_]model_]HEX_0[_0]_k, ..._v, HEX__k                        SGLang's HiCache

Where several ranks share a model each has an object of its own, a shard of the block; so have the
layers, and keys and values. An engine finds the block where all of them are there, under the prefix
(`namespace`) that it was started with.

HEX is the engine's whole digest. vLLM announces its last 8 bytes, SGLang the first; of SGLang's
side pools (drafts, sliding windows, Mamba), whose keys have a word more, nothing is found.

Source of SGLang's: `sglang/srt/mem_cache/storage/mooncake_store/mooncake_store.py`.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

_NUMBER: Final = re.compile(r"0[xX]([0-9a-fA-F]+)|([0-9]+)", re.ASCII)
_HEX: Final = re.compile(r"(?:0[xX])?([0-9a-fA-F]{16,})", re.ASCII)
_VLLM: Final = re.compile(
    r"(?:(?P<prefix>.*)@)?(?P<model>[^@]+)@tp_rank:(?P<tp>[0-9]+)@pcp(?P<pcp>[0-9]+)@dcp(?P<dcp>[0-9]+)"
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
    r"(?:(?P<tag>.+)_)?(?P<high>[0-9a-f]{16})[0-9a-f]{48}"
    r"_(?:(?P<tp>[0-9]+)(?:_(?P<pp>[0-9]+))?)?_(?P<half>[kv])",
    re.ASCII | re.DOTALL,
)
_PLACES: Final = ("tp", "pcp", "dcp", "pp", "layer", "half", "prefix")
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
            for engines of which prefix; "" for the first one, without a prefix.
    """

    hash: int
    model_name: str = ""
    group: str = ""
    tag: str = ""
    shard: str = ""

    def is_of(self, model_name: str) -> bool:
        """Whether it may be a block of the model."""
        if self.tag:
            name = model_name.replace("/", "-")
            return self.tag == name or self.tag.endswith(f"_{name}")
        return self.model_name in ("", model_name)


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
