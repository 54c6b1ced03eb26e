"""A capture as a Parquet file, written in row groups of bounded size.

The file's metadata has `reprise.schema` (the version), `reprise.header` (the capture's header) and
`reprise.summary` (what was read and skipped, why it ended), the last two as JSON.
"""

from typing import Any, Final, NamedTuple

import msgspec

from lab.exports.columns import COLUMNS, SCHEMA_VERSION
from lab.exports.output import OutputFile
from lab.exports.rows import Rows
from replay.block_events import BlockEvents
from replay.capture.format import Header
from replay.chains import Chains
from schemas.extras import need
from schemas.limits import MIB

EXPORT_ROWS: Final = 65_536  # of a row group, and of what is held
EXPORT_TOKEN_BYTES: Final = 32 * MIB  # of tokens in a row group, and of what is held

_DICTIONARIES: Final = tuple(column.name for column in COLUMNS if column.type == "string")


class ParquetSummary(NamedTuple):
    """What was written.

    Attributes:
        rows: how many.
        row_groups: in how many pieces.
    """

    rows: int
    row_groups: int


def schema_of() -> Any:
    """The `pyarrow.Schema` of the columns, with their meanings."""
    arrow = need("pyarrow")
    types = {
        "int32": arrow.int32(),
        "int64": arrow.int64(),
        "uint32": arrow.uint32(),
        "uint64": arrow.uint64(),
        "bool": arrow.bool_(),
        "string": arrow.string(),
        "binary": arrow.binary(),
        "timestamp[us, tz=UTC]": arrow.timestamp("us", tz="UTC"),
        "list<item: uint32>": arrow.list_(arrow.uint32()),
    }
    return arrow.schema(
        [
            arrow.field(column.name, types[column.type], metadata={"meaning": column.meaning})
            for column in COLUMNS
        ]
    )


def write_parquet(
    steps: BlockEvents, chains: Chains, header: Header, output: OutputFile, notes: list[str]
) -> ParquetSummary:
    """Writes all rows. Memory: a row group, and what `chains` knows.

    Args:
        steps: of the capture.
        chains: of its publishers.
        header: of the capture.
        output: where to.
        notes: what is not whole about the capture.

    Raises:
        MissingExtraError: pyarrow or numpy is not installed.
        CaptureDamagedError, DiskError: the capture cannot be read, or the file not be written.
    """
    parquet = need("pyarrow.parquet")
    schema = schema_of().with_metadata(
        {
            "reprise.schema": str(SCHEMA_VERSION),
            "reprise.header": msgspec.json.encode(header),
        }
    )
    rows = Rows(chains)
    written = groups = 0
    writer = parquet.ParquetWriter(
        output,
        schema,
        compression="zstd",
        use_dictionary=list(_DICTIONARIES),
        data_page_version="2.0",
    )
    with writer:
        for step in steps:
            rows.add(step)
            if rows.count >= EXPORT_ROWS or rows.token_bytes >= EXPORT_TOKEN_BYTES:
                written += rows.count
                groups += 1
                writer.write_table(rows.take(schema))
        if rows.count:
            written += rows.count
            groups += 1
            writer.write_table(rows.take(schema))
        summary = {
            "rows": written,
            "records": steps.records,
            "skipped": steps.skipped,
            "ended": "complete" if steps.ended else "interrupted",
            "notes": notes,
        }
        writer.add_key_value_metadata({"reprise.summary": msgspec.json.encode(summary)})
    return ParquetSummary(written, groups)
