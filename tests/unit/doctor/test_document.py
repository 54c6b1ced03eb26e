"""Codes are kept, and each has its row in the documentation; conditions have a remedy."""

import re
from pathlib import Path

import pytest

from doctor.doctor import doctor_document
from doctor.document import Code
from doctor.examination import examine
from schemas.conditions import Condition, Level, Part
from tests.unit.doctor.conftest import NOW, Clinic

ROOT = Path(__file__).parents[3]


def test_every_code_has_a_row_and_every_row_a_code() -> None:
    text = (ROOT / "docs/observe.md").read_text()
    section = text.partition("## The doctor")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(Code)


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("no_library", "`.venv/bin/pip install -e '.[text]'`, and start again"),
        ("unreadable", "name the files that the engines serve in `tokens`, and start again"),
    ],
)
def test_remedy_of_tokens_is_of_what_is_missing(clinic: Clinic, reason: str, remedy: str) -> None:
    clinic.register()
    examined = examine(clinic.table, clinic.service.router, NOW)
    condition = Condition(Part.TOKENS, reason, "tokens of the model m: ...", 1.0, Level.DEGRADED)
    health = examined.health._replace(conditions=(condition,))
    [found] = doctor_document(examined._replace(health=health)).findings
    assert (found.code, found.got, found.remedy) == ("condition", reason, remedy)
