"""Deaths in the middle of opening, rebuilding and flushing a table: an exception between any two of
its effects on the log, the disk and the topic.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from logs.embedded import EmbeddedLog
from streams.table.rows.format import RowWrite
from streams.table.store import TableStore
from tests.unit.streams.table_topic import OwnedTopic


class Killed(BaseException):
    """The process is dead; what it wrote before is there."""


class Kill:
    """Comes before or after an effect. `left` is how many such moments pass before it; None for
    never.
    """

    def __init__(self) -> None:
        self.left: int | None = None

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """It does not come meanwhile."""
        left, self.left = self.left, None
        yield
        self.left = left

    def come(self) -> None:
        """Raises Killed if the moment has come; the one after is out of danger."""
        if self.left is None:
            return
        if self.left == 0:
            self.left = None
            raise Killed
        self.left -= 1


@contextmanager
def kills() -> Iterator[Kill]:
    """A kill that all tables are under while this lasts."""
    kill = Kill()
    write = TableStore.write

    def in_halves(store: TableStore, written: Iterable[RowWrite]) -> None:
        chunks = list(written)
        kill.come()
        write(store, chunks[: len(chunks) // 2])
        kill.come()
        write(store, chunks[len(chunks) // 2 :])
        kill.come()

    def around(effect: Callable[..., Any]) -> Callable[..., Any]:
        def killable(*args: Any, **options: Any) -> Any:
            kill.come()
            result = effect(*args, **options)
            kill.come()
            return result

        return killable

    def around_async(effect: Callable[..., Any]) -> Callable[..., Any]:
        async def killable(*args: Any) -> Any:
            kill.come()
            result = await effect(*args)
            kill.come()
            return result

        return killable

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableStore, "write", in_halves)
        for owner, name in [
            (TableStore, "commit"),
            (TableStore, "set_aside"),
            (EmbeddedLog, "sync"),
            (EmbeddedLog, "advance_to"),
        ]:
            patch.setattr(owner, name, around(getattr(owner, name)))
        for name in ("take", "write"):
            patch.setattr(OwnedTopic, name, around_async(getattr(OwnedTopic, name)))
        yield kill
