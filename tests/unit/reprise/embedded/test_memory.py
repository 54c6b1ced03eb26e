"""Segments of memory, as the write thread looks for them."""

from pathlib import Path

from bridge.memory.watch import MemorySettings
from logs.embedded import EmbeddedLog
from reprise.settings import Settings
from schemas.conditions import Part
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.table import Table
from tests.unit.reprise.embedded.writing import write_path


def test_a_directory_that_is_not_there_is_a_condition_of_the_service(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    table = Table(tmp_path / "table", lambda: Fold(open_kernel(1337, name="reference")), log=log)
    memory = MemorySettings(directory=tmp_path / "none", host="h")
    write = write_path(Settings(data=tmp_path, memory=memory), log, table)
    assert write.thread.memory is not None
    write.thread.memory.look()
    write.thread.memory.take()
    assert write.conditions.has(Part.MEMORY)
    write.thread.stop()
