"""What is watched as it happens, at the broker and at disks: no look at the end tells it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from aiokafka import TopicPartition  # type: ignore[import-untyped]

from bridge.delivery.spool import Spool
from schemas.codec import decode_record
from schemas.errors import RecordError
from schemas.identities import PublisherKey
from schemas.records import EventsRecord, Record
from streams.table.rows.format import OWNER_KEY
from tests.simulation.broker import Group, KeyAndValue, Message, SimulatedBroker
from tests.simulation.engines import SimulatedEngine
from tests.simulation.ledgers import told_by
from tests.simulation.loop import Process, current


class TableOwners:
    """Of two workers that both believe that a partition is theirs, only the later one writes it.

    Args:
        topic: of the table.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._owners: dict[int, Process | None] = {}

    def look(self, message: Message) -> str:
        """A message is in the log: what is wrong with that, or ""."""
        if message.topic != self._topic:
            return ""
        writer = current()
        if message.key == OWNER_KEY:
            self._owners[message.partition] = writer
        owner = self._owners.get(message.partition, writer)
        if writer is None or owner is writer:
            return ""
        assert owner is not None, "the world takes no partition"
        return f"{writer.name} writes the table's partition {message.partition} of {owner.name}"

    def forget(self) -> None:
        """The topic was made again."""
        self._owners.clear()


class Leases:
    """No bridge begins to write batches that the group may have given to another one."""

    def __init__(self, broker: SimulatedBroker, group: str, topic: str) -> None:
        self._broker, self._name, self._topic = broker, group, topic

    def look(self, part: TopicPartition, messages: Iterable[KeyAndValue]) -> str:
        """A bridge that has partitions of the registry sends: what is wrong with that, or ""."""
        process = current()
        group = self._broker.groups.get(self._name)
        if part.topic != self._topic or process is None or group is None:
            return ""
        if not any(map(_has_batches, messages)) or self._is_member(group, process):
            return ""
        return f"{process.name} sends batches, and its group has not heard of it for a session"

    def _is_member(self, group: Group, process: Process) -> bool:
        now = self._broker.loop.now
        return any(
            now - member.seen_at <= member.session_s
            for consumer, member in group.members.items()
            if consumer.process is process
        )


def _has_batches(message: KeyAndValue) -> bool:
    with suppress(RecordError):
        return isinstance(decode_record(message[1] or b""), EventsRecord)
    return False


@dataclass(frozen=True)
class SpooledBatch:
    """A whole batch that was in the spool of a bridge as it died.

    Attributes:
        registrations: of its publisher, that there had been by then.
    """

    incarnation: int
    sequence: int
    registrations: int


class SpooledBatches:
    """What the spools of killed bridges had."""

    def __init__(self) -> None:
        self._batches: defaultdict[PublisherKey, set[SpooledBatch]] = defaultdict(set)

    def add(self, spool: Spool, registrations: Mapping[PublisherKey, int]) -> None:
        """A bridge has died, and its disk has all that was written to it."""
        for publisher in spool.publishers():
            count = registrations[publisher]
            for _, record in spool.decoded(publisher):
                if isinstance(record, EventsRecord) and not record.is_unfinished:
                    self._batches[publisher].add(
                        SpooledBatch(record.incarnation, record.last_sequence, count)
                    )

    def forget(self) -> None:
        """A disk has lost some of what was written to it."""
        self._batches.clear()

    def lost(
        self, engine: SimulatedEngine, records: Iterable[Record], registrations: int
    ) -> list[SpooledBatch]:
        """Those that the log does not have.

        Args:
            engine: whose.
            records: its own, of the log.
            registrations: that there have been of it: with each, all starts over.
        """
        told = told_by(records, engine)
        return [
            one
            for one in self._batches.get(engine.publisher, ())
            if one.registrations == registrations
            and (one.incarnation not in told or one.sequence not in told[one.incarnation].got)
        ]
