"""Tables: how far each is folded and written, what became of records, and the index."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from schemas.metric_family import Family, Samples, counters, gauge, gauges

if TYPE_CHECKING:
    from query_api.ports import Positions
    from streams.kernel.interface import ReadOnlyKernel
    from streams.table.fold import Fold


class WrittenPartition(NamedTuple):
    """One partition's fold, and what was written of its table."""

    fold: "Fold"
    flushed_offset: int
    rows: int
    size_bytes: int
    generations: int


Tables = Mapping[int, WrittenPartition]
"""By partition; the embedded log is partition 0."""


class RecoverySource(Protocol):
    """What recovers when it starts."""

    @property
    def recovery_s(self) -> float:
        """How long it took the last time; 0.0 before."""
        ...


def _each(value: Callable[[WrittenPartition], float]) -> Callable[[Tables], Samples]:
    def samples(tables: Tables) -> Samples:
        return [((str(number),), float(value(table))) for number, table in sorted(tables.items())]

    return samples


def _outcomes(counts: "Callable[[Fold], Mapping[str, int]]") -> Callable[[Tables], Samples]:
    def samples(tables: Tables) -> Samples:
        for number, table in sorted(tables.items()):
            for outcome, count in sorted(dict(counts(table.fold)).items()):
                yield (str(number), outcome), count

    return samples


FOLDED_OFFSETS: Final["tuple[Family[Positions], ...]"] = (
    gauges(
        "reprise_table_folded_offset",
        "Last offset of the log that is folded into the table in memory, by partition.",
        ("partition",),
        lambda positions: [((str(position.partition),), position.offset) for position in positions],
    ),
)

TABLES: Final[tuple[Family[Tables], ...]] = (
    gauges(
        "reprise_table_flushed_offset",
        "Last offset of the log that the written table rows cover, by partition.",
        ("partition",),
        _each(lambda table: table.flushed_offset),
    ),
    counters(
        "reprise_table_flushed_rows",
        "Table rows written, by partition of the log.",
        ("partition",),
        _each(lambda table: table.rows),
    ),
    counters(
        "reprise_table_flushed_bytes",
        "Bytes of the table rows written, by partition of the log.",
        ("partition",),
        _each(lambda table: table.size_bytes),
    ),
    counters(
        "reprise_table_generations",
        "Full dumps of contexts among the table rows written, by partition of the log.",
        ("partition",),
        _each(lambda table: table.generations),
    ),
    gauges(
        "reprise_table_entries",
        "Live entries of the table, by partition of the log.",
        ("partition",),
        _each(lambda table: table.fold.kernel.stats()["entries"]),
    ),
    gauges(
        "reprise_table_memory_bytes",
        "Memory of the table's index in bytes, by partition of the log.",
        ("partition",),
        _each(lambda table: table.fold.kernel.stats()["memory_bytes"]),
    ),
    counters(
        "reprise_fold_records",
        "Records of the log, by outcome of the fold.",
        ("partition", "outcome"),
        _outcomes(lambda fold: fold.counters),
    ),
    counters(
        "reprise_kernel_blocks",
        "Blocks of events, by outcome in the kernel.",
        ("partition", "outcome"),
        _outcomes(lambda fold: fold.kernel.counters()),
    ),
)

RECOVERY: Final[tuple[Family[RecoverySource], ...]] = (
    gauge(
        "reprise_recovery_seconds",
        "Seconds the last recovery or reading of the table took.",
        lambda recovers: recovers.recovery_s,
    ),
)

INDEX: Final["tuple[Family[ReadOnlyKernel], ...]"] = (
    gauges(
        "reprise_kernel_info",
        "1 for the name of the kernel that is in use.",
        ("kernel",),
        lambda kernel: [((kernel.name,), 1.0)],
    ),
    gauge(
        "reprise_index_blocks",
        "Distinct blocks in the index that answers queries.",
        lambda kernel: kernel.stats()["blocks"],
    ),
    gauge(
        "reprise_index_entries",
        "Entries in the index that answers queries: one for each block of each holder.",
        lambda kernel: kernel.stats()["entries"],
    ),
    gauge(
        "reprise_index_publishers",
        "Publishers in the index that answers queries.",
        lambda kernel: kernel.stats()["publishers"],
    ),
    gauge(
        "reprise_index_scopes",
        "Scopes in the index that answers queries.",
        lambda kernel: kernel.stats()["scopes"],
    ),
    gauge(
        "reprise_index_holder_sets",
        "Distinct holder sets in the index that answers queries.",
        lambda kernel: kernel.stats()["holder_sets"],
    ),
    gauge(
        "reprise_index_waiting",
        "Objects of pools in that index that wait for an engine to announce their blocks.",
        lambda kernel: kernel.stats()["waiting"],
    ),
    gauge(
        "reprise_index_memory_bytes",
        "Memory of the index that answers queries, in bytes.",
        lambda kernel: kernel.stats()["memory_bytes"],
    ),
)
