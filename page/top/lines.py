"""What `reprise top` shows, as lines of text: pure."""

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from console.terminal import printable, table_lines
from page.fleet import STATES, InstanceRow
from page.top.fleet import Fleet
from query_api.http.memory_models import MemorySegment

_HEADER: Final = (
    *("TENANT", "INSTANCE", "STATE", "REASON", "FOR", "ACTIVITY", "BLOCKS", "HITS", "PROMISED"),
    *("WAIT", "REQUESTS", "KV", "PRESSURE", "LOST"),
)
_WORDS: Final = frozenset({"TENANT", "INSTANCE", "STATE", "REASON", "ACTIVITY"})
_NUMBERS: Final = frozenset(_HEADER) - _WORDS
_BAR_CELLS: Final = 32
_HALF_FULL, _NEARLY_FULL = 0.5, 0.8


class Tone(StrEnum):
    """How a line is to look; its words say the same."""

    PLAIN = "plain"
    HEAD = "head"
    GOOD = "good"
    DOUBT = "doubt"
    BAD = "bad"


class Line(NamedTuple):
    """One line, without its end."""

    text: str
    tone: Tone = Tone.PLAIN


class Order(StrEnum):
    """What the instances are sorted by; but for names the most, or the worst, comes first."""

    NAME = "name"
    STATE = "state"
    BLOCKS = "blocks"
    HITS = "hits"
    WAIT = "wait"
    REQUESTS = "requests"
    KV = "kv"
    PRESSURE = "pressure"
    LOST = "lost"


_KEYS: Final[dict[Order, Callable[[InstanceRow], float | None]]] = {
    Order.STATE: lambda row: STATES[row.state],
    Order.BLOCKS: lambda row: row.blocks,
    Order.HITS: lambda row: row.hit_rate,
    Order.WAIT: lambda row: row.wait_ms,
    Order.REQUESTS: lambda row: row.requests,
    Order.KV: lambda row: row.kv_usage,
    Order.PRESSURE: lambda row: row.pressure,
    Order.LOST: lambda row: row.lost_batches,
}
_TONES: Final = {
    "exact": Tone.GOOD,
    "unconfirmed": Tone.DOUBT,
    "degraded": Tone.BAD,
    "stale": Tone.BAD,
}


def head_of(fleet: Fleet) -> list[Line]:
    """What the service says of itself, and what could not be had."""
    one = fleet.service
    counts = {state: 0 for state in STATES}
    for row in fleet.instances:
        counts[row.state] += 1
    said = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    lag = "" if one.lag is None else f"  lag {one.lag.seconds:.1f} s"
    text = (
        f"reprise {one.version}  {one.role}  {one.kernel}  {fleet.url}"
        f"  {len(fleet.instances)} instances{': ' if said else ''}{said}{lag}"
        f"  position {one.position or '-'}"
    )
    lines = [Line(printable(text), Tone.HEAD)]
    if not one.ready:
        lines.append(Line("It is not ready: it cannot do its work", Tone.BAD))
    lines += [
        Line(printable(f"{condition.part}: {condition.message}"), Tone.BAD)
        for condition in one.conditions
    ]
    lines += [
        Line(printable(f"Not shown, for want of {path}: {why}"), Tone.DOUBT)
        for path, why in fleet.missing.items()
    ]
    return lines


def chosen_of(
    rows: Iterable[InstanceRow], order: Order, *, is_reversed: bool = False, wanted: str = ""
) -> list[InstanceRow]:
    """Those whose tenant, name, model, state or reason has the wanted text, in that order; of whom
    it is not known come last.
    """
    text = wanted.lower()
    kept = [row for row in rows if not text or text in _words_of(row)]
    if order is Order.NAME:
        return sorted(kept, key=lambda row: (row.tenant_id, row.instance_id), reverse=is_reversed)
    key = _KEYS[order]
    known = [(value, row) for row in kept if (value := key(row)) is not None]
    known.sort(key=lambda one: one[0], reverse=not is_reversed)
    return [row for _, row in known] + [row for row in kept if key(row) is None]


def _words_of(row: InstanceRow) -> str:
    words = (row.tenant_id, row.instance_id, row.state, row.reason, row.activity, *row.models)
    return "\n".join(words).lower()


def rows_of(rows: Sequence[InstanceRow], now: float) -> list[Line]:
    """The table of instances, with its header."""
    cells = [_cells(row, now) for row in rows]
    texts = list(table_lines(_HEADER, cells, _NUMBERS))
    tones = [_TONES[row.state] for row in rows]
    return [
        Line(texts[0], Tone.HEAD),
        *(Line(text, tone) for text, tone in zip(texts[1:], tones, strict=True)),
    ]


def _cells(row: InstanceRow, now: float) -> tuple[str, ...]:
    return (
        printable(row.tenant_id),
        printable(row.instance_id),
        row.state,
        row.reason or "-",
        duration(now - row.since) if row.since else "-",
        row.activity or "-",
        _number(row.blocks),
        _percent(row.hit_rate),
        _percent(row.promised_rate),
        "-" if row.wait_ms is None else f"{row.wait_ms:,.0f} ms",
        _number(row.requests),
        _percent(row.kv_usage),
        _percent(row.pressure),
        _number(row.lost_batches),
    )


def segments_of(segments: Sequence[MemorySegment]) -> list[Line]:
    """Each with a bar: `#` used, `=` reserved beside that, `-` free."""
    if not segments:
        return []
    names = [printable(f"{one.host} {one.segment}") for one in segments]
    width = max(map(len, names))
    lines = [Line("MEMORY (kvcached): # used, = preallocated, - free", Tone.HEAD)]
    for name, one in zip(names, segments, strict=True):
        tone = Tone.GOOD
        if one.pressure >= _HALF_FULL:
            tone = Tone.DOUBT if one.pressure < _NEARLY_FULL else Tone.BAD
        gib = 2.0**30
        sizes = f"{one.used / gib:.2f} + {one.preallocated / gib:.2f} of {one.total / gib:.2f} GiB"
        text = f"{name.ljust(width)}  [{_bar(one)}] {_percent(one.pressure):>7}  {sizes}"
        lines.append(Line(f"{text}  {one.state}", tone))
    return lines


def _bar(segment: MemorySegment) -> str:
    total = max(segment.total, 1)
    used = min(round(_BAR_CELLS * segment.used / total), _BAR_CELLS)
    reserved = min(round(_BAR_CELLS * segment.preallocated / total), _BAR_CELLS - used)
    return "#" * used + "=" * reserved + "-" * (_BAR_CELLS - used - reserved)


def duration(seconds: float) -> str:
    """In its largest unit: `12 s`, `3 min`, `5 h`, `9 d`."""
    for size, unit in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
