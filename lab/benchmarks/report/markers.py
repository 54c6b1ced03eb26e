"""What commands write into docs/benchmarks.md, each between two markers of its own."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "benchmarks.md"


def put_between(text: str, name: str, begin: str, end: str, lines: Iterable[str]) -> str:
    """The text with other lines between the markers.

    Raises:
        ValueError: it has no such markers, or more than one pair of them.
    """
    pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
    section = "\n".join((begin, "", *lines, "", end))
    text, count = pattern.subn(lambda _: section, text)
    if count != 1:
        raise ValueError(f"Expected one pair of the markers of `{name}`, got: {count}")
    return text
