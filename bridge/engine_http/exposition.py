"""Picks series out of a Prometheus exposition (text format 0.0.4) without reading the rest. Pure.

An engine's metrics are tens to hundreds of kilobytes of histograms, of which five lines are wanted,
once a second: so these are searched for, and nothing else is looked at. The cost is that of
searching the text once for each name, about 1 ms for a megabyte and five names, and of parsing
`LOAD_LINES_MAX` lines at the most.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from bridge.engine_http.bounds import LOAD_LINES_MAX
from schemas.limits import KIB

LOAD_LINE_BYTES_MAX: Final = 16 * KIB  # of a line of metrics: "long_line"
LOAD_HEADS_MAX: Final = 4096  # of lines, with their labels, that are remembered: 24 MiB at the most
LOAD_HEAD_BYTES_MAX: Final = 2 * KIB  # a longer one is read each time

_LABEL: Final = re.compile(
    rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"([^"\\]*(?:\\.[^"\\]*)*)"[ \t]*,?', re.DOTALL
)
_CLOSED: Final = re.compile(rb"[ \t]*\}")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


class Series(NamedTuple):
    """One line: a sample of a metric.

    Attributes:
        labels: by name; not to be changed.
        value: finite, and not below 0.
    """

    name: bytes
    labels: Mapping[str, str]
    value: float


def metrics_path(*names: bytes) -> str:
    """Where an engine is asked for these alone; one that cannot choose answers with all."""
    return "/metrics?" + "&".join(f"name%5B%5D={name.decode()}" for name in names)


def read_series(text: bytes, names: Collection[bytes], dropped: Counter[str]) -> list[Series]:
    """The series of these names, in the order of the names and then of the text.

    Args:
        text: as it came, or its beginning.
        dropped: what is left out is counted here, by reason: `too_many`, `cut` (a line without an
            end), `long_line`, `bad_line`, `bad_number`, `repeated` (the first one counts).
    """
    found: list[Series] = []
    seen: set[bytes] = set()
    for name, line in _lines(text, names, dropped):
        if len(line) > LOAD_LINE_BYTES_MAX:
            dropped["long_line"] += 1
            continue
        parsed = _parse(name, line)
        if parsed is None:
            dropped["bad_line"] += 1
            continue
        series, key = parsed
        if not (math.isfinite(series.value) and series.value >= 0):
            dropped["bad_number"] += 1
        elif key in seen:
            dropped["repeated"] += 1
        else:
            seen.add(key)
            found.append(series)
    return found


def _lines(
    text: bytes, names: Collection[bytes], dropped: Counter[str]
) -> Iterator[tuple[bytes, bytes]]:
    text = b"\n" + text
    left = LOAD_LINES_MAX
    for name in names:
        wanted = b"\n" + name
        at = text.find(wanted)
        while at >= 0:
            end = text.find(b"\n", at + 1)
            if end < 0:
                dropped["cut"] += 1
                break
            if left == 0:
                dropped["too_many"] += 1
                return
            left -= 1
            after = at + len(wanted)
            if text[after : after + 1] in (b"{", b" ", b"\t"):  # else it is another, longer name
                yield name, text[at + 1 : end]
            at = text.find(wanted, end)


def _parse(name: bytes, line: bytes) -> tuple[Series, bytes] | None:
    """The series, and what makes it the same as another; None where it is no such line."""
    at = line.rfind(b"}") + 1 or len(name)  # neither a number nor a time has one
    head = line[:at]
    labels = (_labels if at <= LOAD_HEAD_BYTES_MAX else _read_labels)(name, head)
    words = line[at:].split()
    # The second word is a time.
    if labels is None or not 1 <= len(words) <= 2 or b"_" in words[0]:
        return None
    try:
        number = float(words[0])
    except ValueError:
        return None
    return Series(name, labels, number), head


def _read_labels(name: bytes, head: bytes) -> Mapping[str, str] | None:
    """What stands between a name and its value; None where that is something else."""
    labels: dict[str, str] = {}
    if head == name:
        return labels
    at = len(head) - len(head[len(name) :].lstrip(b" \t"))
    if head[at : at + 1] != b"{":
        return None
    at += 1
    while (label := _LABEL.match(head, at)) is not None:
        try:
            value = label[2].decode()
        except UnicodeDecodeError:
            return None
        labels[label[1].decode()] = _ESCAPE.sub(_unescaped, value) if "\\" in value else value
        at = label.end()
    return labels if _CLOSED.fullmatch(head, at) else None


_labels: Final = lru_cache(LOAD_HEADS_MAX)(_read_labels)
"""The same: an engine's lines differ in nothing but their values from one second to the next."""


def _unescaped(escape: "re.Match[str]") -> str:
    return "\n" if escape[1] == "n" else escape[1]
