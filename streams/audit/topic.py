"""Answers that a replica keeps go to the topic PREFIX.answers; a query never waits for it.

All of one run goes to one partition, in the order of its numbers.
"""

from collections.abc import Awaitable, Callable
from typing import Self

from brokers.broker_settings import KafkaSettings
from brokers.client_types import Producer
from brokers.clients import Clients, partition_of
from brokers.options import ClientOptions
from logs.shared_condition import SharedCondition
from logs.topic_writer import TopicWriter, WrittenTopic
from schemas.conditions import Conditions, Part
from schemas.limits import AUDIT_QUEUE_BYTES, MIB
from streams.audit.source import ANSWERS_TOPIC, AnswersSource


class AnswersWriter(TopicWriter[tuple[int, bytes]]):
    """Writes what a queue has."""

    source: AnswersSource

    def __init__(
        self,
        settings: KafkaSettings,
        options: ClientOptions,
        answers: AnswersSource,
        conditions: Conditions,
        *,
        make_producer: Callable[[], Producer] | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Args:
        conditions: set while they cannot be written.
        make_producer, prepare: see `TopicWriter`; None: of the clients' options.
        """
        spec = settings.topic(ANSWERS_TOPIC)
        topic = WrittenTopic(
            settings,
            spec,
            partition_of(answers.key, spec.partitions),
            is_idempotent=False,
            bound=f"once {AUDIT_QUEUE_BYTES // MIB} MiB wait, the next are dropped",
        )
        super().__init__(
            answers,
            topic,
            SharedCondition(conditions, Part.AUDIT),
            make_producer=make_producer or Clients(options).answers_producer,
            prepare=prepare,
        )

    @property
    def writer(self) -> Self:
        """See `ReplicaRun`."""
        return self
