"""Codes are kept, and each has its row in the documentation."""

import re
from pathlib import Path

from doctor.document import Code

ROOT = Path(__file__).parents[3]


def test_every_code_has_a_row_and_every_row_a_code() -> None:
    text = (ROOT / "docs/observe.md").read_text()
    section = text.partition("## The doctor")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(Code)
