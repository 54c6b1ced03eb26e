"""A worker's disk as a copy of its partition of the table topic: how it is brought up to date."""

import msgspec

from schemas.errors import RowCorruptError
from schemas.limits import TABLE_COPY_AGE_MAX_S
from streams.table.rows import format as rows
from streams.table.rows.format import RowWrite
from streams.table.store import LocalCopy, TableStore
from streams.table.topic_interface import TableTopic


class TopicCopy:
    """A copy is stale once the cleaner may have removed tombstones that it has not seen."""

    def __init__(self, store: TableStore, topic: TableTopic) -> None:
        self._store = store
        self._topic = topic

    async def update(self, now: float) -> tuple[bool, str]:
        """Reads what the topic has beyond the store's copy, or all of it where that is no use.

        Args:
            now: Unix seconds.

        Returns:
            Whether the topic has what the store has, and why its copy was given up, or "".
        """
        try:
            local, table = self._store.local(), self._store.table()
        except RowCorruptError as error:
            reason = str(error)
        else:
            if local is None:
                reason = ""
            elif await self._is_empty(local.position):
                is_lost = await self._is_empty(0)
                if is_lost and not local.is_partial:
                    return False, ""
                reason = "the topic was recreated"
                if is_lost:
                    reason = "the topic was lost, and this disk had read it on in part"
            elif now - local.written_at > TABLE_COPY_AGE_MAX_S:
                reason = "this disk's copy was too old"
            elif await self._read_on(local.position, now, table=table, before=local):
                return True, ""
            else:
                reason = "this disk had another table"
        await self.renew(now)
        return True, reason

    async def renew(self, now: float) -> None:
        """Reads all that the topic has; what the store had is set aside."""
        self._store.set_aside()
        await self._read_on(0, now)

    async def _read_on(
        self,
        start: int,
        now: float,
        *,
        table: bytes | None = None,
        before: LocalCopy | None = None,
    ) -> bool:
        """Copies rows from `start` on; False where they are not those of the table named.

        A copy that was there `before` is partial until all of them are here: those of a flush may
        come in several batches, and take the place of rows that its `covered` row still counts.
        """
        partial = None if before is None else msgspec.structs.replace(before, is_partial=True)
        position = None
        async for batch in self._topic.read(start):
            found = [
                RowWrite(row.key, rows.as_found(row.key, row.value, row.offset)) for row in batch
            ]
            for row, (key, value) in zip(batch, found, strict=True):
                if key != rows.COVERED_KEY or value is None:
                    continue
                position = row.offset
                if table is not None and _table_named(value) != table:
                    return False
            self._store.commit(found, partial)
        if position is not None:
            self._store.commit([], LocalCopy(position, now))
        return table is None or position is not None

    async def _is_empty(self, start: int) -> bool:
        async for batch in self._topic.read(start):
            if batch:
                return False
        return True


def _table_named(covered: bytes) -> bytes | None:
    """The table that a `covered` row names; None where it cannot be read."""
    try:
        return rows.decode_row(rows.COVERED_KEY, covered).body
    except RowCorruptError:
        return None
