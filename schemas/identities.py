"""Names for the things that Reprise tells apart. One word each, defined in `docs/architecture.md`.

All are named tuples: they hash and compare as tuples, encode as msgpack arrays, and pass to the
Rust kernel without conversion.

Their fields say what they may hold, and `schemas.codec` checks it as it decodes. What `/register`
accepts fits: it counts the bytes of a name where a decoder counts the characters.
"""

from enum import StrEnum
from typing import Annotated, Final, NamedTuple, NewType

from msgspec import Meta

from schemas.limits import BLOCK_SIZE_MAX, DP_RANK_MAX, NAME_BYTES_MAX

Name = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]
"""Of something that must have one."""

Text = Annotated[str, Meta(max_length=NAME_BYTES_MAX)]
"""A name that may be missing."""

BlockSize = Annotated[int, Meta(ge=1, le=BLOCK_SIZE_MAX)]
"""Tokens per block."""

Rank = Annotated[int, Meta(ge=0, le=DP_RANK_MAX)]
"""A data-parallel rank."""

EngineHash = NewType("EngineHash", int)
"""What an engine calls a block, normalised to u64. Opaque; comparable within one publisher only."""

PrefixHash = NewType("PrefixHash", int)
"""Ours: chained XXH3-64 over the prompt's tokens; equal prefixes have equal hashes everywhere."""

Incarnation = NewType("Incarnation", int)
"""One run of a publisher's process, from 1. Sequence numbers restart at 0 in each."""

Sequence = NewType("Sequence", int)
"""A publisher's number for one of its batches, from 0 in each incarnation."""

Offset = NewType("Offset", int)
"""The log's number for one record, from 0, rising; numbers may be missing after retention."""

DEFAULT_TENANT: Final = "default"

WAITING: Final = "\0waiting:"
"""What the LoRA names of those scopes begin with in which objects of a pool wait for an engine to
announce their blocks. Behind it stands the name of the scope in which they are found then.
"""

ALIASES: Final = "\0aliases:"
"""What the LoRA names of those scopes begin with that have what engines call the blocks of which a
pool has objects: the pool remembers it, since engines evict them. Behind it stands the name of the
scope in which the objects are found.
"""

LEFT_OUT: Final = "\0left_out:"
"""What the LoRA names of those scopes begin with that have what a publisher holds and the index
cannot use. Behind it stands the reason.
"""

REPEATED: Final = "\0repeated"
"""The LoRA name of the scopes that have how often publishers have announced blocks again of which
they may hold no further copy (`schemas.events.StoredBlocks.undecided`).
"""

GROUPS: Final = "\0groups"
"""The LoRA name of the scopes that have which cache groups of publishers form prefixes, where these
are more than the first.
"""

RULES: Final = "\0rules"
"""The LoRA name of the scopes that have by which rule engines use the blocks of their sparse cache
groups (`streams.kernel.sparse_groups`).
"""

SPARSE: Final = "\0sparse:"
"""What the LoRA names of the scopes begin with that have the blocks of sparse cache groups."""

UNPLACED: Final = "\0unplaced"
"""The LoRA name of the scopes that have those of which it is not known yet which blocks they are.
"""

COPIES_UNKNOWN: Final = "copies_unknown"
"""The reason, among those for which blocks are left out, of those that a publisher may hold or not:
it has removed them as often as it has surely stored them, and has announced them more often.
"""

GROUPS_DIFFER: Final = "groups_differ"
"""The same, of those that some of a publisher's cache groups hold and others do not, where each
forms prefixes: answers count them, and an engine finds a block only where every group has it.
"""

OBJECTS_WAIT: Final = "objects_wait"
"""The same, of objects of a pool that wait: which blocks they are is not known, so no answer counts
them.
"""

POOL_REMOVED: Final = "pool_removed"
"""Reason of blocks that an engine has removed from a pool, and others have stored there: no event
says whether it is one pool.
"""

HASHES_DIFFER: Final = "hashes_differ"
"""Reason of blocks of which a pool has objects by two hashes: engines that share it do not hash
alike, and find only what engines of their hashes have stored. Answers count these for all of them.
"""

CHUNKS_DIFFER: Final = "chunks_differ"
"""Reason of blocks that a publisher has on another tier than its GPU, in another size than it is
registered with: chunks of several, as connectors keep them. No answer counts them.
"""

ATTENTION_ONLY: Final = "attention_only"
"""Reason of blocks that a publisher has announced of cache groups of `NEEDED_SPEC_KINDS`, since it
began, where the rule of one of them is not known: answers count what its groups of full attention
hold, and its engine may reuse less of that.
"""

UNHELD_REMOVED: Final = "unheld_removed"
"""Reason of blocks that a publisher has removed from its GPU, and had not announced since it held
nothing, though no batch is missing: its events do not say what its cache does.
"""

PARTIAL_BLOCK: Final = "partial_block"
"""Why a bridge leaves out a block of fewer tokens that hangs on a whole one: the end of a prompt.
No query asks for it, so its publisher's state does not know of it.
"""

UNSURE: Final = (
    *(COPIES_UNKNOWN, GROUPS_DIFFER, HASHES_DIFFER, OBJECTS_WAIT, POOL_REMOVED, ATTENTION_ONLY),
    *(UNHELD_REMOVED, CHUNKS_DIFFER),
)
"""Reasons that leave a publisher unconfirmed; any other one makes it degraded."""


class Medium(StrEnum):
    """The storage tier of a block. Engines' own names for tiers end in the bridge."""

    GPU = "GPU"
    CPU = "CPU"
    DISK = "DISK"


MEDIA: Final = tuple(Medium)
"""The tiers from fastest to slowest; a tier's index is its code in `streams.table.rows.format`."""


class StreamKey(NamedTuple):
    """A ModelContext without its LoRA: the key of a record, and what picks its partition.

    A removal names no LoRA, so a publisher's events may not be split by LoRA: their order would
    break.
    """

    tenant_id: Text
    model_name: Text
    block_size: BlockSize
    additional_salt: Text
    instance_id: Text


class PublisherKey(NamedTuple):
    """One publisher of events: one data-parallel rank of one instance, for one model."""

    stream: StreamKey
    dp_rank: Rank

    def __str__(self) -> str:
        """As logs name it; what does not print is escaped, so that a name cannot end the line."""
        tenant, model, block_size, _, instance = self.stream
        names = [repr(name)[1:-1] for name in (instance, model, tenant)]
        return (
            f"{names[0]} rank {self.dp_rank} (model {names[1]}, tenant {names[2]}, block_size"
            f" {block_size})"
        )


class PrefixScope(NamedTuple):
    """A ModelContext without its instance: what one query walks, over all instances at once."""

    tenant_id: Text
    model_name: Text
    lora_name: Text
    block_size: BlockSize
    additional_salt: Text


def waiting_scope(scope: PrefixScope) -> PrefixScope | None:
    """Where objects wait that are to be found in the scope; None where its name would be too long
    for a row.
    """
    return _beside(scope, WAITING)


def aliases_scope(scope: PrefixScope) -> PrefixScope | None:
    """Where it stands what engines call the blocks in the scope of which a pool has objects;
    likewise.
    """
    return _beside(scope, ALIASES)


def sparse_scope(scope: PrefixScope) -> PrefixScope | None:
    """Where the blocks of sparse cache groups stand that are those of the scope; likewise."""
    return _beside(scope, SPARSE)


def _beside(scope: PrefixScope, begin: str) -> PrefixScope | None:
    name = begin + scope.lora_name
    return scope._replace(lora_name=name) if len(name.encode()) <= NAME_BYTES_MAX else None


def is_waiting(lora_name: str) -> bool:
    """Whether a scope of this LoRA name is one in which objects wait."""
    return lora_name.startswith(WAITING)


def is_aliases(lora_name: str) -> bool:
    """Whether a scope of this LoRA name has what engines call blocks, and no block."""
    return lora_name.startswith(ALIASES)


def is_sparse(lora_name: str) -> bool:
    """Whether a scope of this LoRA name has blocks of sparse cache groups, placed or not."""
    return lora_name.startswith(SPARSE) or lora_name == UNPLACED


def is_left_out(lora_name: str) -> bool:
    """Whether a scope of this LoRA name has blocks that the index cannot use."""
    return lora_name.startswith(LEFT_OUT)


def is_hidden(lora_name: str) -> bool:
    """Whether a scope of this LoRA name is any of these, and in no answer."""
    return lora_name.startswith("\0")


class ModelContext(NamedTuple):
    """The scope of one prefix table, and of its digest."""

    tenant_id: Text
    model_name: Text
    lora_name: Text
    block_size: BlockSize
    additional_salt: Text
    instance_id: Text

    @property
    def stream(self) -> StreamKey:
        """The stream whose records build this context."""
        return StreamKey(
            self.tenant_id, self.model_name, self.block_size, self.additional_salt, self.instance_id
        )

    @property
    def scope(self) -> PrefixScope:
        """The scope in which this context's blocks are found by queries."""
        return PrefixScope(
            self.tenant_id, self.model_name, self.lora_name, self.block_size, self.additional_salt
        )
