"""Flushes and rewriting in slices so small that much comes in between."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from unittest import mock

from streams.kernel.changes import CHANGE_BYTES
from streams.table import driver, table
from streams.table.rows import rewriting, writer

WHOLE = 16_384
SLICES = (1, 3, WHOLE)


def bounds_for(entries: int) -> list[tuple[ModuleType, str, object]]:
    """What has to be replaced for slices of so many entries: module, name and value."""
    return [
        (table, "MAINTAINED_ENTRIES", entries),
        (table, "FLUSH_STEP_BYTES", CHANGE_BYTES * entries),
        (driver, "MAINTAINED_ENTRIES", entries),
        (driver, "REWRITE_AFTER_BYTES", 64 * entries),
        (rewriting, "DUMP_CHUNK_ENTRIES_MAX", entries),
        (writer, "DUMP_CHUNK_ENTRIES_MAX", entries),
    ]


@contextmanager
def sliced(entries: int) -> Iterator[None]:
    """Slices of so many entries, and chunks too."""
    with ExitStack() as stack:
        for module, name, value in bounds_for(entries):
            stack.enter_context(mock.patch.object(module, name, value))
        yield
