"""Answers that a replica keeps go to the topic PREFIX.answers; a query never waits for it.

All of one run goes to one partition, in the order of its numbers.
"""

import time
from collections.abc import Awaitable, Callable, Iterable

from brokers.clients import Clients, partition_of
from brokers.interface import Producer
from brokers.options import ClientOptions
from brokers.settings import KafkaSettings
from logs.topic_writer import Entry, WindowTopic, WindowWriter
from schemas.answer_records import encode_answers
from schemas.conditions import Conditions, Part
from schemas.limits import AUDIT_QUEUE_BYTES, MIB, RECORD_SEND_BYTES_MAX
from schemas.topics import encode_run
from streams.kernel.interface import AuditQueue


class AnswersWriter(WindowWriter[bytes]):
    """Writes what a queue has.

    Args:
        settings: of the deployment.
        options: of its clients.
        queue: of answers.
        seed: of the prefix hash.
        replica: what tells this replica from others: host and port.
        conditions: set while answers cannot be written.
        make_producer: makes the producer; None: of the clients' options.
        prepare: see `WindowWriter`.

    Attributes:
        queue: of answers.
        unwritten: answers that were taken from the queue and could not be written.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        options: ClientOptions,
        queue: AuditQueue,
        *,
        seed: int,
        replica: str,
        conditions: Conditions,
        make_producer: Callable[[], Producer] | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.queue = queue
        self._seed = seed
        self._replica = replica
        self._conditions = conditions
        self._run_number = int(time.time() * 1e6)
        self._key = encode_run(self._run_number)
        spec = settings.answers
        partition = partition_of(self._key, spec.partitions)
        super().__init__(
            WindowTopic("answers", settings, spec, partition, is_idempotent=False),
            make_producer=make_producer or Clients(options).answers_producer,
            prepare=prepare,
        )

    @property
    def written(self) -> int:
        """Answers in the topic, of this run, or about to be."""
        return self.queue.counts()[0] - self.unwritten

    @property
    def dropped(self) -> int:
        """Answers that were to be kept, and are not: the queue was full, or Kafka refused them."""
        return self.queue.counts()[1] + self.unwritten

    @property
    def unsettled(self) -> int:
        """Answers that were to be kept, and were given while rows were half applied."""
        return self.queue.counts()[2]

    def take(self) -> Iterable[tuple[int, bytes]]:
        """See `WindowWriter`."""
        for count, answers in self.queue.take():
            yield (
                count,
                encode_answers(self._run_number, self._seed, count, answers, replica=self._replica),
            )

    def encode(self, item: bytes) -> Entry | None:
        """See `WindowWriter`."""
        return Entry(self._key, item) if len(item) <= RECORD_SEND_BYTES_MAX else None

    def note(self, reason: str, problem: str) -> None:
        """See `WindowWriter`."""
        self._conditions.set(Part.AUDIT, reason, problem)

    def clear(self) -> None:
        """See `WindowWriter`."""
        self._conditions.clear(Part.AUDIT)

    @property
    def bound(self) -> str:
        """See `WindowWriter`."""
        return f"once {AUDIT_QUEUE_BYTES // MIB} MiB wait, the next are dropped"
