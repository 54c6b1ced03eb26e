"""The tables of docs/benchmarks.md: Markdown, made of the model and of nothing else."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import structs

from lab.benchmarks.report.document import number_text
from lab.benchmarks.report.markers import put_between
from lab.benchmarks.scaling.model import Limit, Model, Workload, first_limit
from schemas.limits import GIB, MIB, RECORD_WINDOW_MS

SIZES: Final = (10, 1_000, 10_000, 100_000)
RETENTION_SHORT_HOURS: Final = 48
TIB: Final = 1024 * GIB


def assumed_lines(model: Model) -> list[str]:
    """What nobody has measured: put your own in."""
    load, machines, prices = Workload(engines=1), model.machines, model.prices
    rows = {
        "each engine: publishers (data-parallel ranks)": load.ranks,
        "blocks of 16 tokens that it stores, and as many removed": f"{load.blocks_per_s:g}/s",
        "messages that it sends": f"{load.messages_per_s:g}/s",
        "blocks that it holds": f"{load.held:,}",
        "queries for each engine, 8K tokens, `hits_only`": f"{load.queries_per_s:g}/s",
        "retention of `events`": f"{load.retention_hours:g} h",
        "replication of all topics; brokers at least, memory of each": f"{machines.replication};"
        f" {machines.brokers}, {machines.broker_memory_gib:g} GiB",
        "how busy the thread of a fold or of a bridge may be": f"{machines.busy:.0%}",
        "memory of a machine, of which half may be filled": f"{machines.memory_gib:g} GiB",
        "open files of a process": f"{machines.open_files:,}",
        "cores of a replica for queries, beside its fold": machines.query_cores,
        "price of a reserved core, an hour": f"{prices.core_hour:g}",
        "price of a GiB of memory, an hour": f"{prices.memory_gib_hour:g}",
        "price of a GiB on a broker's disk, a month": f"{prices.disk_gib_month:g}",
    }
    return _table(("", "assumed"), ((name, str(value)) for name, value in rows.items()))


def measured_lines(model: Model) -> list[str]:
    """What it is computed from."""
    figures = (getattr(model.figures, name) for name in model.figures.__struct_fields__)
    rows = (
        (one.what, f"{number_text(one.value)} {one.unit}".rstrip(), one.source) for one in figures
    )
    return _table(("", "measured", "where"), rows)


def embedded_lines(model: Model) -> list[str]:
    """Everything in one process, whether or not it fits one."""
    loads = [Workload(engines=engines) for engines in SIZES]
    needs = [model.embedded(load) for load in loads]
    limits = [model.embedded_limits(load) for load in loads]
    rows: list[Sequence[str]] = [
        ("cores, busy", *(number_text(one.cores) for one in needs)),
        ("memory", *(_size(one.memory) for one in needs)),
        ("open files of publishers", *(f"{one.files:,.0f}" for one in needs)),
        ("log, written", *(f"{_size(one.log_bytes_per_s)}/s" for one in needs)),
        ("the log of 8 GiB reaches back", *(_hours(one.log_hours) for one in needs)),
        ("cost a month, without its disk", *(f"{one.cost_a_month:,.0f}" for one in needs)),
        *_limit_rows(limits, loads),
    ]
    return _table(_head("one process"), rows)


def distributed_lines(model: Model) -> list[str]:
    """All deployments together, where a line does not say otherwise."""
    loads = [Workload(engines=engines) for engines in SIZES]
    windowed = [model.windowed(load) for load in loads]
    needs = [model.needs(load) for load in windowed]
    shorter = [
        model.needs(structs.replace(load, retention_hours=RETENTION_SHORT_HOURS))
        for load in windowed
    ]

    def row(name: str, text: Callable[[int], str]) -> Sequence[str]:
        return (name, *(text(place) for place in range(len(SIZES))))

    rows = [
        row("`bridge.window_ms`", lambda n: f"{windowed[n].window_ms:,.0f}"),
        row("deployments", lambda n: f"{needs[n].deployments:,}"),
        row("each: partitions of `events`", lambda n: f"{needs[n].partitions:,}"),
        row("partitions of all topics", lambda n: f"{needs[n].all_partitions:,}"),
        row("each: bridges, one of them spare", lambda n: f"{needs[n].bridges:,}"),
        row("each: workers", lambda n: f"{needs[n].workers:,}"),
        row("each: replicas, one of them spare", lambda n: f"{needs[n].replicas:,}"),
        row("CPU of a query without `hits_only`", lambda n: f"{needs[n].full_query_us:,.0f} us"),
        row("memory of a bridge", lambda n: _size(needs[n].bridge_memory)),
        row("memory of a worker", lambda n: _size(needs[n].worker_memory)),
        row("memory of a replica", lambda n: _size(needs[n].replica_memory)),
        row("open files of a bridge, one being away", lambda n: f"{needs[n].bridge_files:,.0f}"),
        row("cores, busy: bridges", lambda n: number_text(needs[n].bridge_cores)),
        row("cores, busy: workers", lambda n: number_text(needs[n].worker_cores)),
        row("cores, busy: replicas", lambda n: number_text(needs[n].replica_cores)),
        row("cores, busy: brokers", lambda n: number_text(needs[n].broker_cores)),
        row("Kafka, written to `events`", lambda n: f"{_size(needs[n].events_bytes_per_s)}/s"),
        row("Kafka, written to `table`", lambda n: f"{_size(needs[n].table_bytes_per_s)}/s"),
        row(
            "Kafka, read by workers and replicas", lambda n: f"{_size(needs[n].read_bytes_per_s)}/s"
        ),
        row("Kafka, `events` on disks", lambda n: _size(needs[n].events_stored)),
        row("Kafka, `table` on disks", lambda n: _size(needs[n].table_stored)),
        row("cores, reserved", lambda n: f"{needs[n].reserved_cores:,.0f}"),
        row("memory", lambda n: _size(needs[n].memory)),
        row("cost a month", lambda n: f"{needs[n].cost_a_month:,.0f}"),
        row("cost a month of an engine", lambda n: number_text(needs[n].cost_a_month / SIZES[n])),
        row(
            f"the same with {RETENTION_SHORT_HOURS} h of `events`",
            lambda n: number_text(shorter[n].cost_a_month / SIZES[n]),
        ),
        *_limit_rows(
            [model.limits(load) for load in loads],
            loads,
            f"first limit of one deployment, `bridge.window_ms = {RECORD_WINDOW_MS}`",
        ),
    ]
    return _table(_head("distributed"), rows)


def limit_lines(model: Model) -> list[str]:
    """All limits of both forms, the lowest first."""
    load = Workload(engines=1)
    rows = [
        (form, limit.name, f"{limit.engines:,}", limit.remedy)
        for form, limits in (
            ("one process", model.embedded_limits(load)),
            ("one deployment", model.limits(load)),
        )
        for limit in limits
    ]
    return _table(("form", "limit", "engines", "remedy"), rows)


SECTIONS: Final[dict[str, Callable[[Model], list[str]]]] = {
    "assumed": assumed_lines,
    "measured": measured_lines,
    "embedded": embedded_lines,
    "distributed": distributed_lines,
    "limits": limit_lines,
}
"""By the name between the markers of the document."""


def written(text: str, model: Model) -> str:
    """The document with the tables as they are now.

    Raises:
        ValueError: a section has no markers, or more than one pair of them.
    """
    for name, lines in SECTIONS.items():
        begin, end = f"<!-- scaling: {name} -->", f"<!-- scaling: end of {name} -->"
        text = put_between(text, name, begin, end, lines(model))
    return text


def _limit_rows(
    limits: Sequence[Sequence[Limit]], loads: Sequence[Workload], name: str = "first limit"
) -> list[Sequence[str]]:
    firsts: list[str] = []
    remedies: list[str] = []
    for some, load in zip(limits, loads, strict=True):
        limit = first_limit(some, load.engines)
        nearest = limit or some[0]
        said = f"{nearest.name}: at {nearest.engines:,} engines"
        firsts.append(said if limit else f"none; the nearest at {nearest.engines:,} engines")
        remedies.append(limit.remedy if limit else "")
    return [(name, *firsts), ("remedy", *remedies)]


def _head(form: str) -> Sequence[str]:
    return (form, *(f"{engines:,} engines" for engines in SIZES))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _size(size: float) -> str:
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB")):
        if size >= unit:
            return f"{number_text(size / unit)} {name}"
    return f"{number_text(size / 1024)} KiB"


def _hours(hours: float) -> str:
    return f"{number_text(hours)} h" if hours >= 1 else f"{number_text(60 * hours)} min"
