"""The survivors that are known, each with the reason why no test kills it (`survivors.toml`)."""

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

SURVIVORS = Path(__file__).with_name("survivors.toml")


class Survivor(NamedTuple):
    """A mutant's name: the same wherever its function and its line move. See `operators.Mutant`."""

    module: str
    function: str
    line: str
    change: str


def read_kept(path: Path = SURVIVORS) -> dict[Survivor, str]:
    """The known survivors, and why each is kept.

    Raises:
        ValueError: an entry has no reason, or stands twice.
    """
    kept: dict[Survivor, str] = {}
    for module, entries in tomllib.loads(path.read_text()).items():
        for entry in entries:
            survivor = Survivor(module, entry["function"], entry["line"], entry["change"])
            if not entry.get("why"):
                raise ValueError(
                    f"Expected a reason `why` of each survivor in {path.name}, got none of:"
                    f" {survivor}. Write a test that kills it, or say why none can"
                )
            if survivor in kept:
                raise ValueError(
                    f"Expected each survivor once in {path.name}, got twice: {survivor}"
                )
            kept[survivor] = entry["why"]
    return kept


def as_entries(survivors: Iterable[Survivor]) -> str:
    """The text of entries to be kept, without their reasons."""
    return "\n".join(
        f"[[{json.dumps(one.module)}]]\nfunction = {json.dumps(one.function)}\n"
        f"line = {json.dumps(one.line)}\n"
        f'change = {json.dumps(one.change)}\nwhy = ""\n'
        for one in survivors
    )
