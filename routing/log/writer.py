"""What a replica decided, and was told, goes to the topic PREFIX.routing.

Readers drop what comes again, by run and number: so what Kafka may or may not have taken is written
again.
"""

from collections.abc import Awaitable, Callable

from brokers.broker_settings import KafkaSettings
from brokers.client_types import Producer
from brokers.clients import Clients
from brokers.options import ClientOptions
from logs.shared_condition import SharedCondition
from logs.topic_writer import TopicWriter, WrittenTopic
from routing.bounds import ROUTING_QUEUE_ITEMS
from routing.decisions.queue import RoutingQueue
from routing.log.source import WaitingSource
from routing.log.topics import ROUTING_PARTITION, ROUTING_TOPIC
from schemas.clock import REAL_CLOCK
from schemas.routing_records import RoutingRecord


class RoutingWriter(TopicWriter[RoutingRecord]):
    """Writes what a queue has."""

    def __init__(
        self,
        settings: KafkaSettings,
        options: ClientOptions,
        queue: RoutingQueue,
        condition: SharedCondition,
        *,
        make_producer: Callable[[], Producer] | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
        clock: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        """Args:
        condition: set while they cannot be written.
        make_producer: makes the producer; None: of the clients' options.
        prepare: see `TopicWriter`.
        clock: Unix seconds.
        """
        topic = WrittenTopic(
            settings,
            settings.topic(ROUTING_TOPIC),
            ROUTING_PARTITION,
            is_idempotent=True,
            bound=(
                "others do not know of them meanwhile; once"
                f" {ROUTING_QUEUE_ITEMS} wait, the next are dropped"
            ),
        )
        super().__init__(
            WaitingSource(queue, clock),
            topic,
            condition,
            make_producer=make_producer or Clients(options).producer,
            prepare=prepare,
        )
