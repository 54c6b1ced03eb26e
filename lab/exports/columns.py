"""The columns of the Parquet file, schema version 1: one row for each block of each event.

`docs/offline.md` has this table, and a test compares both.
"""

from typing import Final, NamedTuple

SCHEMA_VERSION: Final = 1
"""Columns are only ever added; a column that changes its meaning makes a new version."""


class Column(NamedTuple):
    """One column.

    Attributes:
        name: of it.
        type: as Arrow names it.
        meaning: of a value; what null means.
        is_of_block: whether it may differ between the blocks of one event.
    """

    name: str
    type: str
    meaning: str
    is_of_block: bool = False


COLUMNS: Final = (
    Column("partition", "int32", "partition of the log; 0 of a capture of frames"),
    Column("position", "int64", "offset of the record in it; of frames, its number"),
    Column("event", "int32", "number of the event in its record; null of a record without events"),
    Column("block", "int32", "number of the block in its event; null where it names none", True),
    Column("time", "timestamp[us, tz=UTC]", "when the bridge wrote the record"),
    Column("engine_time", "timestamp[us, tz=UTC]", "of the record's last batch, by the engine"),
    Column(
        "kind",
        "string",
        "stored, removed, cleared (the publisher holds nothing any more), reset (it has restarted"
        " and holds nothing), gap (batches are lost), registered, unregistered",
    ),
    Column("tenant", "string", "of the stream"),
    Column("model", "string", "of the stream"),
    Column("block_size", "int32", "of the stream: tokens of a block"),
    Column("salt", "string", "of the stream; empty for none"),
    Column("instance", "string", "of the stream: the engine"),
    Column("dp_rank", "int32", "data-parallel rank; with the stream it is the publisher"),
    Column("incarnation", "int64", "run of the publisher's process, from 1; null of registrations"),
    Column("sequence", "int64", "of the batch that had the event; of a gap, of its first batch"),
    Column("last_sequence", "int64", "of a gap, of its last batch; else null"),
    Column("reason", "string", "of a reset or a gap; else null"),
    Column("hash", "uint64", "the engine's hash of the block, comparable in one publisher", True),
    Column("parent", "uint64", "the engine's hash of the block before it; null at the root", True),
    Column(
        "prefix",
        "uint64",
        "hash of all tokens up to the block's end (XXH3-64), the same everywhere; null of a removal"
        " and where the chain's beginning is not known",
        True,
    ),
    Column("tokens", "list<item: uint32>", "of the block; null of a placeholder or removal", True),
    Column("tokens_per_block", "uint32", "as the event says it; 0 of a placeholder; else null"),
    Column("medium", "string", "GPU, CPU or DISK; null where no block is named"),
    Column("shared", "bool", "whether the medium is a pool that all instances read"),
    Column("lora", "string", "adapter; empty for the base model; null of what is not stored"),
    Column("cache_group", "uint32", "the engine's cache group"),
    Column("spec_kind", "string", "the group's kind of attention; empty where it was not said"),
    Column("extra_key", "binary", "what enters the hash besides tokens, in msgpack", True),
)
