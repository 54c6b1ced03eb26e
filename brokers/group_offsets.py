"""What a consumer group has committed: how far its members are."""

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from brokers.client_types import Partition
from brokers.clients import Clients
from brokers.errors import KafkaError


class GroupOffset(NamedTuple):
    """How far a group is in a partition.

    Attributes:
        offset: that it will read next.
        metadata: what its member said with it.
    """

    offset: int
    metadata: str = ""


class GroupOffsets:
    """Asks for the offsets of one group and topic. One loop; calls may not overlap.

    Args:
        topic: whose partitions.
    """

    def __init__(self, clients: Clients, group: str, topic: str) -> None:
        self._clients = clients
        self._group = group
        self._topic = topic
        self._admin: Any = None
        self._coordinator: int | None = None

    async def fetch(self, partitions: Iterable[int]) -> dict[int, GroupOffset]:
        """By partition, how far the group is; those without one are left out.

        Raises:
            KafkaError, OSError, TimeoutError: the brokers do not answer, or refuse it.
        """
        try:
            admin = await self._started()
            if self._coordinator is None:
                self._coordinator = await admin.find_coordinator(self._group)
            wanted = [Partition(self._topic, number) for number in partitions]
            found = await admin.list_consumer_group_offsets(
                self._group, group_coordinator_id=self._coordinator, partitions=wanted
            )
        except AttributeError as error:
            # What the client does with an error of a partition: it looks for that of the answer.
            await self.close()
            raise KafkaError(f"the offsets of {self._group} cannot be read now") from error
        except BaseException:
            await self.close()  # the next one asks anew who the coordinator is
            raise
        return {
            place.partition: GroupOffset(one.offset, one.metadata or "")
            for place, one in found.items()
            if one.offset >= 0
        }

    async def _started(self) -> Any:
        if self._admin is None:
            admin = self._clients.admin()
            try:
                await admin.start()
            except BaseException:
                await asyncio.shield(admin.close())
                raise
            self._admin = admin
        return self._admin

    async def close(self) -> None:
        """Ends the connections; the next `fetch` makes new ones."""
        admin, self._admin, self._coordinator = self._admin, None, None
        if admin is not None:
            await asyncio.shield(admin.close())
