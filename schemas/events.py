"""Canonical block events: the only form of an engine's event that exists after the bridge.

In a record they are msgpack maps tagged by `type`, in the order in which the publisher sent them.
Fields that hold their default are left out. Arrays are `bin`: engine hashes little-endian u64,
tokens little-endian u32, so any language reads them and the kernel takes them without parsing
numbers.

That a publisher restarted, or that batches were lost, is not an event but a record of its own
(`schemas.records`): the bridge finds it out, no publisher says it.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from schemas.identities import Medium

SPARSE_SPEC_KINDS: Final = frozenset(
    {
        "sliding_window",
        "sliding_window_mla",
        "chunked_local_attention",
        "mamba",
        "encoder_only_attention",
        "cross_attention",
    }
)
"""Cache groups whose blocks form no prefix: what is kept of them stands beside the others
(`streams.kernel.sparse_groups`). Blocks of any other kind are indexed where they carry the tokens
that they stand for, as those of full attention do, and else left out.
"""

NEEDED_SPEC_KINDS: Final = SPARSE_SPEC_KINDS - {"encoder_only_attention", "cross_attention"}
"""Those of them whose state an engine needs at the end of a prefix, so that it may reuse less of
one than its full attention holds. vLLM (0.32) looks up no prefix in a group of the other two.
"""

KVCR: Final = "kvcr"
OWNERS: Final = frozenset({KVCR})
"""Who owns blocks beside the engine and says of each that it is gone, as events name them
(`ownership` of vLLM 0.30 on, and of SGLang's linker): the tier of KVCR. Its blocks are a set.
"""

TOKEN_HASH_SEED: Final = 1337
"""Of `StoredBlocks.token_hashes`: Dynamo's, and the default of our own prefix hash."""


class StoredBlocks(
    msgspec.Struct, tag="stored", tag_field="type", omit_defaults=True, kw_only=True, frozen=True
):
    """Consecutive blocks that one publisher now holds on one medium.

    Attributes:
        sequence: of the batch that carried the event.
        hashes: (n,) engine hashes, u64 LE, in chain order.
        tokens: (n * block_size,) tokens, u32 LE; empty where the event is `by_hash` or has
            `token_hashes`, and for a placeholder, which names blocks that the publisher already
            holds on another medium, or has removed from it in the same batch.
        parent: engine hash of the block before the first; None at the root.
        block_size: tokens per block; a placeholder may have 0.
        medium: where the blocks are.
        shared: True where the medium is a pool that every instance of the scope can read.
        owned: True where an owner beside the engine has the blocks, on its CPU or DISK (`OWNERS`):
            one of them is held once, however often it is announced, and what the engine itself
            holds, removes or clears there says nothing of it. Of a pool, or of the GPU, nothing.
        lora_name: adapter, "" for the base model.
        group: the engine's cache group. The same hash in two groups is two blocks. Of an object
            the shard of its block, 0 for the first: objects of several shards have several names.
        spec_kind: the group's kind of attention, see `SPARSE_SPEC_KINDS`.
        last_blocks: of a sparse group, how many of its blocks the engine needs at the end of a
            prefix, or as many as that has; 0 where that is not known. Any but the blocks of full
            attention that it calls by the same hashes: its tokens may cover more than its hashes.
        by_hash: True where each hash is the prefix hash of its block: the publisher names blocks by
            a chain of hashes that queries by hash use too. Such an event has a block size and no
            tokens; whatever parent or extra keys it has, the hashes contain.
        aliases: () or (n,) u64 LE: what others call the blocks, where the hashes name objects of a
            shared pool. A prefix hash each where the event is `by_hash`; else the hash of an engine
            of the scope, of cache group 0: the object is of the block that the engine announces
            under it with its tokens, before or after. An object is held once, however often it is
            announced, and an event of objects has a block size and no tokens.
        reported: True where the publisher says again what it holds, and has stored nothing: a block
            that it holds on that medium is not counted once more.
        undecided: True where the publisher stores further copies of blocks that it holds on that
            medium, or only says again that it holds them: nothing on the wire tells which.
        token_hashes: in place of tokens, (n,) u64 LE: of each block the XXH3-64 of its tokens, and
            of whatever else enters it, with TOKEN_HASH_SEED. A kernel of another seed cannot use
            them.
        extra_keys: () or n byte strings: what besides tokens enters each block's hash (salt,
            multimodal keys), b"" for nothing. See `extra_key` and `paired_key`.
        left_out: why the bridge cannot use the event, "" where it can: the publisher holds the
            blocks, and no answer counts them. Such an event has hashes and a place, and no more.
    """

    sequence: int
    hashes: bytes
    tokens: bytes = b""
    parent: int | None = None
    block_size: int = 0
    medium: Medium = Medium.GPU
    shared: bool = False
    owned: bool = False
    lora_name: str = ""
    group: int = 0
    spec_kind: str = ""
    last_blocks: int = 0
    by_hash: bool = False
    aliases: bytes = b""
    reported: bool = False
    undecided: bool = False
    left_out: str = ""
    token_hashes: bytes = b""
    extra_keys: tuple[bytes, ...] = ()


class RemovedBlocks(
    msgspec.Struct, tag="removed", tag_field="type", omit_defaults=True, kw_only=True, frozen=True
):
    """Blocks that one publisher no longer holds on one medium.

    Attributes:
        sequence: of the batch that carried the event.
        hashes: (n,) u64 LE, any order.
        medium, shared, owned, group: see `StoredBlocks`.
        whole: True where no copy is left, however often a block was announced.
        left: how many copies are left of each, where the publisher says it, likewise. 0 where it
            does not: one is removed.
    """

    sequence: int
    hashes: bytes
    medium: Medium = Medium.GPU
    shared: bool = False
    owned: bool = False
    group: int = 0
    whole: bool = False
    left: int = 0


class ClearedBlocks(
    msgspec.Struct, tag="cleared", tag_field="type", omit_defaults=True, kw_only=True, frozen=True
):
    """The publisher no longer holds any block: on that medium, its own or shared, or on any; but
    for those that are `owned`, or of these alone.
    """

    sequence: int
    medium: Medium | None = None
    owned: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left of what the engine itself holds."""
        return self.medium is None and not self.owned


BlockEvent = StoredBlocks | RemovedBlocks | ClearedBlocks

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[BlockEvent])

ARRAY_HEADER: Final = struct.Struct(">BI")
"""Of an array in msgpack's widest form, so that its size is known beforehand: ARRAY32, length."""

ARRAY32: Final = 0xDD


def is_placeholder(event: BlockEvent) -> bool:
    """Whether it names blocks of which nothing but their engine hashes is said."""
    if not isinstance(event, StoredBlocks):
        return False
    named = event.tokens or event.by_hash or event.token_hashes or event.aliases
    return not (named or event.left_out)


def named_again(event: BlockEvent) -> bytes:
    """The engine hashes, (n,) u64 LE, by which it may name blocks that its batch has removed: those
    of a placeholder, or what a chain on another tier than the GPU hangs on. An engine tells what it
    has evicted before it tells what it has kept of that.
    """
    if not isinstance(event, StoredBlocks):
        return b""
    if is_placeholder(event):
        return event.hashes
    is_elsewhere = event.medium is not Medium.GPU or event.shared
    return event.parent.to_bytes(8, "little") if is_elsewhere and event.parent is not None else b""


def encode_events(events: list[BlockEvent]) -> bytes:
    """The events as one msgpack array, the form that a kernel's `apply` takes."""
    return _encoder.encode(events)


def decode_events(encoded: bytes | msgspec.Raw) -> list[BlockEvent]:
    """The inverse of `encode_events`.

    Raises:
        msgspec.DecodeError: the bytes are not an array of block events.
    """
    return _decoder.decode(encoded)


def encode_run(events: Iterable[BlockEvent]) -> bytes:
    """The events one after the other, as an array has them behind its header."""
    return b"".join(map(_encoder.encode, events))


def decode_run(run: bytes, count: int) -> list[BlockEvent]:
    """The inverse of `encode_run`.

    Raises:
        msgspec.DecodeError: the bytes are not that many block events.
    """
    return decode_events(ARRAY_HEADER.pack(ARRAY32, count) + run)


NEXT_TOKEN: Final = b"\xc1"
"""Stands before the token behind a block (`paired_key`): no msgpack value begins so."""


def paired_key(key: bytes, next_token: bytes) -> bytes:
    """What enters the hash of a block of pairs beside its tokens: `extra_key`, and the token behind
    it, u32 LE. An engine with EAGLE keeps what it computes of each two tokens that follow on one
    another, so that such a block is of one token more than it has.
    """
    return key + NEXT_TOKEN + next_token


def split_key(key: bytes) -> tuple[bytes, bytes]:
    """The inverse of `paired_key`; the token is b"" where it is the key of a plain block."""
    if key[-5:-4] != NEXT_TOKEN:
        return key, b""
    try:
        msgspec.msgpack.decode(key)
    except (msgspec.MsgspecError, RecursionError):
        return key[:-5], key[-4:]
    return key, b""


def extra_key(keys: list[object]) -> bytes:
    """What enters a block's hash beside its tokens, as bytes: the msgpack array of the keys.

    The keys are the engine's, without the LoRA's name (that is a level of the table): a cache salt
    as a string, a multimodal key as a string or as [identifier, offset]. b"" when there are none,
    so that such a block and a plain one hash alike. `extra_key([salt])` is what a query for that
    salt uses.
    """
    return _encoder.encode(keys) if keys else b""


def without_adapter(row: Sequence[object] | None, lora_name: str) -> list[object]:
    """The keys of a block as `extra_key` takes them, of a row as engines write it: the adapter's
    name stands first where they hash one.
    """
    return list(row[1:] if row and lora_name and row[0] == lora_name else row or ())
