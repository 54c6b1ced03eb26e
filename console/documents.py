"""A JSON document as lines for people: its values by name, and each list of objects as a table.

What lies in an object has the object's name before its own, as `tokens.prompt`. A list of objects
below another one is a table of its own: `2.1` is the first row that belongs to the second one.
"""

import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from console.terminal import printable, table_lines

_MOMENTS: Final = ("at", "since", "until", "time", "last_asked")
_MOMENT_MIN: Final = 1e9
"""Numbers above it, of these names, are Unix seconds."""

_NUMBER: Final = "#"

Row = dict[str, Any]


def chosen_of(document: Any, *, wanted: str = "", sort: str = "") -> Any:
    """The document with less in the lists of objects that it has.

    Args:
        document: as JSON is decoded.
        wanted: text that the rest has somewhere in it, in any case of letters.
        sort: the column that the rest is sorted by, the largest numbers first; what has none of
            that name comes last.
    """
    if isinstance(document, dict):
        return {name: chosen_of(one, wanted=wanted, sort=sort) for name, one in document.items()}
    if not _is_table(document):
        return document
    rows = [one for one in document if wanted.lower() in _json(one).lower()]
    return sorted(rows, key=lambda one: _rank(_flat(one).get(sort))) if sort else rows


def terminal_width() -> int | None:
    """Of standard output; None where it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def document_lines(
    document: Any, *, columns: Collection[str] = (), width: int | None = None
) -> Iterator[str]:
    """The document for people.

    Args:
        document: as JSON is decoded.
        columns: the only ones that are shown, in this order; all, where there are none.
        width: of the lines; a wider table is a block of lines for each row. None: any.
    """
    tables: dict[str, list[Row]] = {}
    flat = _flat(document, tables)
    if columns:
        flat = {name: value for name, value in flat.items() if name in columns}
    yield from _value_lines(flat)
    has_numbers = any("." in row[_NUMBER] for rows in tables.values() for row in rows)
    for name, rows in tables.items():
        if columns and not any(column in row for row in rows for column in columns):
            continue
        yield f"{printable(name) or 'list'} ({len(rows)})"
        for line in _table(rows, columns, width, has_numbers=has_numbers):
            yield f"  {line}".rstrip()


def _table(
    rows: Sequence[Row], columns: Collection[str], width: int | None, *, has_numbers: bool
) -> Iterator[str]:
    found = dict.fromkeys(name for row in rows for name, value in row.items() if value != "")
    names = [name for name in columns or found if name in found]
    if has_numbers:
        names = [_NUMBER, *(name for name in names if name != _NUMBER)]
    elif _NUMBER not in columns:
        names = [name for name in names if name != _NUMBER]
    cells = [[_text(name, row.get(name, "")) for name in names] for row in rows]
    numbers = {
        printable(name)
        for name in names
        if all(isinstance(row.get(name, 0), int | float) for row in rows)
    }
    lines = list(table_lines([printable(name) for name in names], cells, numbers))
    if width is None or max(map(len, lines)) + 2 <= width:
        yield from lines
        return
    for row in rows:
        yield from _value_lines({name: row[name] for name in names if row.get(name, "") != ""})
        yield ""


def _value_lines(flat: Row) -> Iterator[str]:
    names = {name: printable(name) for name in flat}
    width = max(map(len, names.values()), default=0)
    for name, value in flat.items():
        yield f"{names[name]:<{width}}  {_text(name, value)}".rstrip()


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(one, dict) for one in value)


def _flat(
    value: Any,
    tables: dict[str, list[Row]] | None = None,
    name: str = "",
    path: str = "",
    number: str = "",
) -> Row:
    """The values below one, by name; lists of objects go to the tables."""
    if isinstance(value, dict):
        found: Row = {}
        for key, one in value.items():
            below = (f"{name}.{key}" if name else key, f"{path}.{key}" if path else key)
            found |= _flat(one, tables, *below, number)
        return found
    if not _is_table(value):
        return {name: "" if value in (None, []) else value}
    if tables is not None:
        rows = tables.setdefault(path, [])
        for place, one in enumerate(value, 1):
            numbered = f"{number}.{place}" if number else str(place)
            row: Row = {_NUMBER: numbered}
            rows.append(row)
            row |= _flat(one, tables, "" if isinstance(one, dict) else "value", path, numbered)
    return {}


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, float):
        last = name.rpartition(".")[2].lower()
        if value >= _MOMENT_MIN and (last in _MOMENTS or last.endswith("_at")):
            return _moment(value)
        return f"{value:.3f}".rstrip("0").rstrip(".") if abs(value) >= 1 else f"{value:.3g}"
    if isinstance(value, list) and not any(isinstance(one, list | dict) for one in value):
        return ", ".join(_text("", one) for one in value)
    return printable(_json(value))


def _moment(seconds: float) -> str:
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.3f}"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _rank(value: Any) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return 0, -value, ""
    return (2, 0.0, "") if value in (None, "") else (1, 0.0, str(value))
