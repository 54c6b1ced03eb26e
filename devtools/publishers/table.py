"""The table of docs/compatibility.md: rendered, found in the document, and put there."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from devtools.publishers.trial_row import TrialRow

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "compatibility.md"
BEGIN: Final = "<!-- make publishers: begin -->\n"
END: Final = "<!-- make publishers: end -->\n"
HEAD: Final = (
    "| publisher | version | tried | events | replies of its replay | live | replayed | stored "
    "| removed | cleared | blocks | passed over | not used |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
)
CODE: Final = "its code"
FRAMES: Final = "its frames"


class Row(NamedTuple):
    """One line, by what it is of."""

    kind: str
    version: str
    how: str
    line: str

    @property
    def order(self) -> tuple[object, ...]:
        """By kinds, then the numbers of versions."""
        numbers = [int(number) for number in re.findall(r"\d+", self.version)]
        return self.kind.lower(), re.sub(r"[\d.]+", "", self.version), numbers, self.how


def row(tried: TrialRow) -> Row:
    """What was tried as a line."""
    how = CODE if tried.code else FRAMES
    counts = [tried.live, tried.replayed, tried.stored, tried.removed, tried.cleared]
    form = tried.form or "in an envelope"
    cells = (tried.kind, tried.version, how, form, tried.replies or "none tried")
    counts += [tried.blocks, tried.passed_over, tried.unused]
    line = f"| {' | '.join([*cells, *map(str, counts)])} |\n"
    return Row(tried.kind, tried.version, how, line)


def render(rows: Iterable[Row]) -> str:
    """The table, in order of kinds and versions."""
    return HEAD + "".join(row.line for row in sorted(rows, key=lambda row: row.order))


def in_document() -> list[Row]:
    """The rows that stand in the document."""
    _, found, rest = DOCUMENT.read_text().partition(BEGIN)
    lines, ended, _ = rest.partition(END)
    assert found, f"expected {BEGIN!r} in {DOCUMENT}"
    assert ended, f"expected {END!r} in {DOCUMENT}"
    rows = lines.removeprefix(HEAD).splitlines(keepends=True)
    return [_read(line) for line in rows]


def _read(line: str) -> Row:
    kind, version, how = (cell.strip() for cell in line.split("|")[1:4])
    return Row(kind, version, how, line)


def write(rows: Iterable[Row]) -> None:
    """Puts them into the document instead of those that are there."""
    before, begin, rest = DOCUMENT.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{begin}{render(rows)}{end}{after}")
