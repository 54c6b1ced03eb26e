"""Canonical forms of single fields, common to all engines.

Each function takes a field as an engine sent it and returns it as `schemas.events` has it, or
raises `EventError` with the reason under which the event is counted.
"""

from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from bridge.wire.drop_reasons import DropReason
from schemas.arrays import ArrayPacker, hash_to_u64
from schemas.errors import EventError
from schemas.events import paired_key
from schemas.identities import Medium
from schemas.limits import (
    BLOCK_SIZE_MAX,
    EVENT_BLOCKS_MAX,
    GROUP_NUMBER_MAX,
    LORA_NAMES_MAX,
    NAME_BYTES_MAX,
)
from schemas.positions import (
    DESCRIBED,
    DISK_STORED,
    DISK_TAKEN_BACK_SHIFT,
    LOWER_DESCRIBED,
    LOWER_TAKEN_BACK,
    OUTLIVING,
    OWNED_ON_CPU,
    OWNED_ON_CPU_TAKEN_BACK,
    OWNED_ON_DISK,
    OWNED_ON_DISK_TAKEN_BACK,
    SHARED_TAKEN_BACK,
    TAKEN_BACK,
)
from schemas.registration import Registration

NIL: Final = msgspec.Raw(b"\xc0")
"""The default of fields that stay encoded."""

_NIL_BYTES: Final = b"\xc0"

_NOTHING_BEFORE: Final = 5740354900026072187
"""CPython's hash(()), by which SGLang up to 0.5.0 says that nothing is before a page."""

_REMOTE: Final = "REMOTE"

_MEDIA: Final[dict[str | None, Medium]] = {
    None: Medium.GPU,
    "GPU": Medium.GPU,
    "CPU": Medium.CPU,
    "CPU_PINNED": Medium.CPU,
    "DISK": Medium.DISK,
    "STORAGE": Medium.DISK,
    "FS": Medium.DISK,
    "OBJ": Medium.DISK,
    "EXTERNAL": Medium.DISK,
}


MEDIA: Final = ("CPU", "CPU_PINNED", "DISK", "STORAGE", "FS", "OBJ", "EXTERNAL")
"""Those of tiers that have several names; what is stored by one has its bit."""

_MEDIA_BITS: Final = {name: 1 << place for place, name in enumerate(MEDIA)}

TIERS: Final = tuple(
    sum(1 << place for place, name in enumerate(MEDIA) if _MEDIA[name] is medium)
    for medium in (Medium.CPU, Medium.DISK)
)
"""The bits of each tier."""


TIER_CLEARED: Final = 1 << 9
"""That nothing is left on such a tier, beside which of its names that was said of."""


class Origin(NamedTuple):
    """What is known of a publisher.

    Attributes:
        lora_names: those that its events have named: each makes a context of the table.
    """

    packer: ArrayPacker
    registration: Registration
    lora_names: set[str]

    @property
    def lora_name(self) -> str:
        """What its registration adds to its events."""
        return self.registration.lora_name


def is_nil(encoded: msgspec.Raw) -> bool:
    """Whether the field is nil, or is not there."""
    return bytes(encoded) == _NIL_BYTES


def medium_of(name: str | None) -> Medium:
    """The tier; engines spell it in either case, with a device index (`cpu:0`), or not at all."""
    medium = _MEDIA.get(name)
    if medium is not None:
        return medium
    assert name is not None
    medium = _MEDIA.get(name.partition(":")[0].upper())
    if medium is None:
        raise EventError(DropReason.UNKNOWN_MEDIUM, f"Expected a storage tier, got: {name[:80]}")
    return medium


def media_bit(name: str | None) -> int:
    """Which of the names of its tier it is; 0 where that has no other, or it is none."""
    return 0 if name is None else _MEDIA_BITS.get(name.partition(":")[0].upper(), 0)


def stored_bits(name: str | None, *, has_tokens: bool, is_owned: bool = False) -> int:
    """What a store by this name, which says nothing of extra keys, tells of what is to be taken
    back there (`schemas.positions.never_taken_back`).
    """
    bit = media_bit(name)
    if bit & OUTLIVING:
        return OWNED_ON_DISK if is_owned else DISK_STORED
    if not bit or not has_tokens:
        return 0
    if is_owned:
        return OWNED_ON_CPU
    return LOWER_DESCRIBED if _is_lower(name) else DESCRIBED


def taken_back_bits(name: str | None, *, is_owned: bool = False, is_shared: bool = False) -> int:
    """What a removal by this name tells of it."""
    bit = media_bit(name)
    if not bit:
        return 0
    if is_owned:
        return OWNED_ON_DISK_TAKEN_BACK if bit & OUTLIVING else OWNED_ON_CPU_TAKEN_BACK
    shared = SHARED_TAKEN_BACK if is_shared else 0
    if bit & OUTLIVING:
        return shared | bit << DISK_TAKEN_BACK_SHIFT
    return shared | (LOWER_TAKEN_BACK if _is_lower(name) else TAKEN_BACK)


def _is_lower(name: str | None) -> bool:
    return name is not None and name.startswith("cpu")


def media_of(bits: int) -> str:
    """Their names, for people."""
    return ", ".join(name for place, name in enumerate(MEDIA) if bits >> place & 1)


def is_remote(locality: str | None) -> bool:
    """Whether every instance can read the blocks."""
    return locality is not None and locality.upper() == _REMOTE


def hashes_of(encoded: msgspec.Raw, packer: ArrayPacker) -> bytes:
    """Engine hashes as (n,) u64 LE."""
    try:
        hashes = packer.pack_hashes(bytes(encoded))
    except (ValueError, RecursionError) as error:
        raise EventError(DropReason.BAD_HASHES, str(error)) from error
    if len(hashes) > 8 * EVENT_BLOCKS_MAX:
        detail = f"Expected at most {EVENT_BLOCKS_MAX} blocks, got {len(hashes) // 8}"
        raise EventError(DropReason.TOO_MANY_BLOCKS, detail)
    return hashes


def tokens_of(encoded: msgspec.Raw, packer: ArrayPacker) -> bytes:
    """Tokens as (n,) u32 LE; nil and a field that is not there are no tokens."""
    content = bytes(encoded)
    if content == _NIL_BYTES:
        return b""
    try:
        return packer.pack_tokens(content)
    except (ValueError, RecursionError) as error:
        raise EventError(DropReason.BAD_TOKENS, str(error)) from error


def paired_keys(
    keys: tuple[bytes, ...], encoded: msgspec.Raw, hashes: bytes, block_size: int, origin: Origin
) -> tuple[bytes, ...]:
    """The keys of an event's blocks; where its tokens are pairs, with the token behind each block,
    which is the second one of its last pair. As they are where the tokens or the keys are not those
    of so many blocks, which the kernel counts.
    """
    if bytes(encoded) == _NIL_BYTES or not block_size:
        return keys
    seconds = origin.packer.pack_seconds(bytes(encoded))
    blocks, width = len(hashes) // 8, 4 * block_size
    if not seconds or len(seconds) != width * blocks or len(keys) not in (0, blocks):
        return keys
    return tuple(
        paired_key(key, seconds[end - 4 : end])
        for key, end in zip(
            keys or (b"",) * blocks, range(width, len(seconds) + 1, width), strict=True
        )
    )


def parent_of(value: int | bytes | None) -> int | None:
    """The parent's engine hash as u64."""
    if value is None:
        return None
    try:
        parent = hash_to_u64(value)
    except ValueError as error:
        raise EventError(DropReason.BAD_PARENT, str(error)) from error
    return None if parent == _NOTHING_BEFORE else parent


def block_size_of(value: int | None) -> int:
    """Tokens per block; 0 where the engine gives none, as in a placeholder."""
    size = value or 0
    if not 0 <= size <= BLOCK_SIZE_MAX:
        detail = f"Expected a block size from 0 to {BLOCK_SIZE_MAX}, got: {size}"
        raise EventError(DropReason.BAD_BLOCK_SIZE, detail)
    return size


def group_of(value: int | None) -> int:
    """The cache group; 0 where the engine has only one."""
    group = value or 0
    if not 0 <= group <= GROUP_NUMBER_MAX:
        raise EventError(DropReason.BAD_GROUP, f"Expected a cache group from 0 on, got: {group}")
    return group


def name_of(value: str | None) -> str:
    """A name within its bound; "" where there is none."""
    if not value:
        return ""
    if len(value.encode()) > NAME_BYTES_MAX:
        detail = f"Expected a name of at most {NAME_BYTES_MAX} bytes, got: {value[:80]}..."
        raise EventError(DropReason.NAME_TOO_LONG, detail)
    return value


def lora_name_of(name: str | UnsetType | None, lora_id: int | str | None, origin: Origin) -> str:
    """The adapter's level in the table: by the event's name, the registration's, or the id. An
    event that has the field and names none there is of the base model, whatever is registered.
    """
    if isinstance(name, UnsetType) or not name:
        if name is not UNSET and lora_id is None:
            return ""
        if origin.lora_name or lora_id is None:
            return origin.lora_name
        name = f"lora_id:{lora_id}"
    if name not in origin.lora_names:
        name = name_of(name)
        if len(origin.lora_names) >= LORA_NAMES_MAX:
            detail = f"Expected at most {LORA_NAMES_MAX} LoRA names, got one more: {name[:80]}"
            raise EventError(DropReason.TOO_MANY_LORA_NAMES, detail)
        origin.lora_names.add(name)
    return name
