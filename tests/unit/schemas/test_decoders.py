"""Decoders are made when a module is imported, never by the first of several threads.

Two threads that are the first to decode one Struct end the process (msgspec 0.22.0): one of them
uses what the other has only begun to fill in. `decode(..., type=...)` does just that.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("bridge", "brokers", "logs", "query_api", "replay", "schemas", "storage", "streams")


def typed_decodes(source: str) -> list[int]:
    """The lines of the calls of `decode` with a `type`."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "decode"
        and any(keyword.arg == "type" for keyword in call.keywords)
    ]


def test_no_type_is_prepared_by_the_first_to_decode_it() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for line in typed_decodes(path.read_text())
    }
    assert not found, "make a decoder where the module is imported"


def test_what_it_looks_for_is_found() -> None:
    assert typed_decodes("a = 1\nb = msgspec.json.decode(c, type=D)\n_d.decode(c)") == [2]
