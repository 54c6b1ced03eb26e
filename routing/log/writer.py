"""What a replica decided, and was told, goes to the topic PREFIX.routing.

Readers drop what comes again, by run and number: so what Kafka may or may not have taken is written
again. A record has the time at which it is handed on, not that of the window: after an outage it
would set the time of the fold back.
"""

import time
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from brokers.clients import Clients
from brokers.interface import Producer
from brokers.options import ClientOptions
from brokers.settings import KafkaSettings
from logs.shared_condition import SharedCondition
from logs.topic_writer import Entry, WindowTopic, WindowWriter
from routing.decisions.queue import RoutingQueue, items_of
from routing.log.recovery import ROUTING_PARTITION
from schemas.limits import RECORD_SEND_BYTES_MAX, ROUTING_QUEUE_ITEMS
from schemas.routing_records import RoutingRecord, encode_routing
from schemas.topics import encode_run

WRITER = "writer"


class RoutingWriter(WindowWriter[RoutingRecord]):
    """Writes what a queue has.

    Args:
        settings: of the deployment.
        options: of its clients.
        queue: of decisions, reports and samples.
        condition: set while they cannot be written.
        make_producer: makes the producer; None: of the clients' options.
        prepare: see `WindowWriter`.
        clock: Unix seconds.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        options: ClientOptions,
        queue: RoutingQueue,
        condition: SharedCondition,
        *,
        make_producer: Callable[[], Producer] | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._queue = queue
        self._condition = condition
        self._clock = clock
        spec = settings.routing.log
        super().__init__(
            WindowTopic("decisions", settings, spec, ROUTING_PARTITION, is_idempotent=True),
            make_producer=make_producer or Clients(options).producer,
            prepare=prepare,
        )

    def take(self) -> Iterable[tuple[int, RoutingRecord]]:
        """See `WindowWriter`."""
        return [(items_of(record), record) for record in self._queue.take(self._clock())]

    def encode(self, item: RoutingRecord) -> Entry | None:
        """See `WindowWriter`."""
        value = encode_routing(msgspec.structs.replace(item, time=self._clock()))
        return Entry(encode_run(item.run), value) if len(value) <= RECORD_SEND_BYTES_MAX else None

    def note(self, reason: str, problem: str) -> None:
        """See `WindowWriter`."""
        self._condition.note(WRITER, reason, problem)

    def clear(self) -> None:
        """See `WindowWriter`."""
        self._condition.clear(WRITER)

    @property
    def bound(self) -> str:
        """See `WindowWriter`."""
        return (
            "others do not know of them meanwhile; once"
            f" {ROUTING_QUEUE_ITEMS} wait, the next are dropped"
        )
