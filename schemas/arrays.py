"""Packing of the engines' number arrays into the `bin` fields of canonical events.

Nine tenths of an event's bytes are its tokens and hashes. They are packed from the encoded msgpack
array without making a Python object of each number; the Rust kernel brings a fast packer of this
shape (`streams.kernel`), and the one here says what it must do. The kernel's packs whole batches,
too: what it must do there, `bridge.wire` says.
"""

import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Annotated, Protocol

import msgspec

_U32_MASK = 2**32 - 1
_U64_MASK = 2**64 - 1

Token = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**32 - 1)]
"""A token as it is written: some write their 32 bits as i32, as Conductor's clients do."""


class MessageRun(Protocol):
    """Messages of one publisher as they came, one after the other: topic, number of 8 bytes, and
    payload of each, in one buffer of the Rust kernel, which makes no object of any of them.
    """

    def __len__(self) -> int:
        """How many they are."""
        ...

    @property
    def size_bytes(self) -> int:
        """The bytes of all their frames."""
        ...

    def begins(self, number: int, /) -> bool:
        """Whether the first of them has this number, big-endian."""
        ...

    def message(self, at: int, /) -> list[bytes]:
        """The frames of one. Cost O(bytes)."""
        ...

    def first(self, count: int, /) -> "MessageRun":
        """So many of the first, or all; the buffer is shared, and nothing is copied."""
        ...

    def after(self, count: int, /) -> "MessageRun":
        """Those behind so many of the first, likewise."""
        ...

    def fitting(self, messages_max: int, bytes_until: int, bytes_max: int, /) -> int:
        """How many of the first can be taken: none behind `bytes_until` bytes of those before, and
        none beyond `bytes_max`.
        """
        ...


class BatchPacker(Protocol):
    """Packs one publisher's batches; any thread."""

    def pack(
        self, payload: bytes, sequence: int, /
    ) -> tuple[int, float, int, bool, bytes, Sequence[str], int, bytes] | None:
        """One encoded batch, without the interpreter's lock where it is large. Cost O(bytes).

        Returns:
            The payload's XXH3-64, the engine's time, how many events there are, whether one is a
            `ClearedBlocks`, the events by `schemas.events.encode_run`, the LoRA names that they
            give, and of `DecodedBatch` `media` and `first_blocks`. None where something is bad or
            unusual.
        """
        ...

    def pack_run(
        self, messages: list[list[bytes]] | MessageRun, sequence: int, bytes_max: int, /
    ) -> tuple[bytes, float, int, bytes, Sequence[str], int, bytes]:
        """As many of the first messages as are plain batches that follow on one another, together:
        three frames, the next number, nothing bad or unusual, and no `ClearedBlocks`. Cost
        O(bytes).

        Args:
            messages: their frames, or a run.
            sequence: the first one's.
            bytes_max: of their events.

        Returns:
            Each one's digest, as u64 of this machine, the last one's time, how many events there
            are, these, the LoRA names that they give, `media` and `first_blocks`; as `pack` has
            them. No digest where the first is not plain.
        """
        ...


class ArrayPacker(Protocol):
    """Packs one encoded msgpack array; raises ValueError with what is wrong with it."""

    def pack_hashes(self, encoded: bytes) -> bytes:
        """Engine hashes as (n,) u64 LE.

        Accepts u64 and i64 (same bits), and `bin` of 8 bytes or more (last 8, big-endian).
        """
        ...

    def pack_tokens(self, encoded: bytes) -> bytes:
        """Tokens as (n,) u32 LE.

        Accepts integers -2**31..2**32-1 (i32 and u32 with the same bits are the same token), and
        pairs of them, of which the first counts (SGLang's EAGLE pages).
        """
        ...

    def pack_seconds(self, encoded: bytes) -> bytes:
        """Of tokens that are pairs, the second ones, as `pack_tokens` has the first ones: their low
        32 bits; else b"".
        """
        ...

    def count_values(self, encoded: bytes, most: int) -> int:
        """How many msgpack values there are, nested ones included, up to `most`; 0 where they
        cannot be counted without the interpreter's lock, or are malformed.
        """
        ...

    def split_run(
        self, run: bytes, count: int, bytes_max: int, /
    ) -> Sequence[tuple[int, bytes]] | None:
        """The parts of a large batch, as `bridge.wire.batch_parts` says, without the interpreter's
        lock; None where that does it itself.
        """
        ...

    def batch_packer(
        self,
        *,
        arrays: Mapping[str, Sequence[str]],
        maps: Mapping[str, Sequence[str]],
        dp_rank: int,
        lora_name: str,
        roots: str,
        all_chains: bool,
        scopeless_tiers: bool,
        has_rules: bool,
    ) -> BatchPacker | None:
        """A packer of whole batches; None where there is none for events with these fields.

        Args:
            arrays: of events that are arrays, the names of their fields in order, by tag.
            maps: the same of those that are maps.
            dp_rank: of the publisher.
            roots: which field marks chains that begin a prompt, as `bridge.wire.hit_reports` says.
            all_chains: whether it marks those that hang on a block, too.
            scopeless_tiers: whether events without extra keys name their blocks alone, where these
                are not on the GPU of their instance.
            has_rules: whether what an engine needs of sparse groups is as vLLM needs it
                (`bridge.wire.vllm.last_blocks_of`).
        """
        ...


_hashes = msgspec.msgpack.Decoder(list[int | bytes])
_tokens = msgspec.msgpack.Decoder(list[Token] | None)
_pairs = msgspec.msgpack.Decoder(list[tuple[Token, int]])


def hash_to_u64(value: int | bytes) -> int:
    """One engine hash as u64.

    Raises:
        ValueError: out of the 64-bit range, or fewer than 8 bytes.
    """
    if isinstance(value, bytes):
        if len(value) < 8:
            raise ValueError(f"Expected a hash of 8 bytes or more, got {len(value)} bytes")
        return int.from_bytes(value[-8:], "big")
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"Expected a 64-bit hash, got `{value}`")
    return value & _U64_MASK


def to_little_endian(numbers: "array[int]") -> bytes:
    """The array's bytes in the order that records use, whatever the machine's."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def tokens_to_bytes(tokens: list[int]) -> bytes:
    """Tokens (see `Token`) as (n,) u32 LE; a negative one is its two's complement."""
    try:
        return to_little_endian(array("I", tokens))
    except OverflowError:
        return to_little_endian(array("I", [token & _U32_MASK for token in tokens]))


class PythonArrayPacker:
    """The specification, and the fallback without the Rust kernel. Cost O(n) Python objects."""

    def pack_hashes(self, encoded: bytes) -> bytes:
        """See `ArrayPacker`."""
        try:
            values = _hashes.decode(encoded)
        except msgspec.MsgspecError as error:
            raise ValueError(f"Expected an array of hashes: {error}") from error
        return to_little_endian(array("Q", map(hash_to_u64, values)))

    def pack_tokens(self, encoded: bytes) -> bytes:
        """See `ArrayPacker`."""
        try:
            values = _tokens.decode(encoded) or []
        except msgspec.MsgspecError as error:
            try:
                values = [first for first, _ in _pairs.decode(encoded)]
            except msgspec.MsgspecError:
                raise ValueError(f"Expected an array of tokens: {error}") from error
        return tokens_to_bytes(values)

    def pack_seconds(self, encoded: bytes) -> bytes:
        """See `ArrayPacker`."""
        try:
            return tokens_to_bytes([second & _U32_MASK for _, second in _pairs.decode(encoded)])
        except msgspec.MsgspecError:
            return b""

    def count_values(self, encoded: bytes, most: int) -> int:
        """See `ArrayPacker`: not counted."""
        return 0

    def split_run(self, run: bytes, count: int, bytes_max: int, /) -> None:
        """See `ArrayPacker`: not split here."""

    def batch_packer(
        self,
        *,
        arrays: Mapping[str, Sequence[str]],
        maps: Mapping[str, Sequence[str]],
        dp_rank: int,
        lora_name: str,
        roots: str,
        all_chains: bool,
        scopeless_tiers: bool,
        has_rules: bool,
    ) -> None:
        """See `ArrayPacker`: there is none."""
