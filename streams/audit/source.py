"""Answers that are kept, as a log of either form takes them."""

from collections.abc import Callable, Iterable
from typing import Final

from logs.source import RecordSource, WindowEntry
from schemas.answer_records import encode_answers
from schemas.clock import REAL_CLOCK
from schemas.limits import ANSWERS_PARTITION_BYTES, EVENTS_RETENTION_MS
from schemas.topics import LARGEST, Cleanup, TopicShape, encode_run
from streams.kernel.interface import AuditQueue

ANSWERS_RETENTION_MS: Final = EVENTS_RETENTION_MS  # an older answer can be proven no more
ANSWERS_PARTITIONS: Final = 4

ANSWERS_TOPIC: Final = TopicShape(
    "answers",
    ANSWERS_PARTITIONS,
    Cleanup.DELETE,
    {
        "retention.ms": str(ANSWERS_RETENTION_MS),
        "retention.bytes": str(ANSWERS_PARTITION_BYTES),
    }
    | LARGEST,
)
"""Readers take it with any number of partitions."""


class AnswersSource(RecordSource[tuple[int, bytes]]):
    """What a queue has of answers: as records of one run, in the order of its numbers.

    Args:
        queue: of answers.
        seed: of the prefix hash.
        replica: what tells this replica from others: host and port; "" in the embedded form.
        clock: Unix seconds: a run is named by its start.
    """

    def __init__(
        self,
        queue: AuditQueue,
        *,
        seed: int,
        replica: str = "",
        clock: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        super().__init__("answers")
        self.queue = queue
        self._seed = seed
        self._replica = replica
        self._run_number = int(clock() * 1e6)
        self.key = encode_run(self._run_number)

    @property
    def written(self) -> int:
        """Answers in the log, of this run, or about to be."""
        return self.queue.counts()[0] - self.unwritten

    @property
    def dropped(self) -> int:
        """Answers that were to be kept, and are not: the queue was full, or the log failed."""
        return self.queue.counts()[1] + self.unwritten

    @property
    def unsettled(self) -> int:
        """Answers that were to be kept, and were given while the table was half changed."""
        return self.queue.counts()[2]

    def take(self) -> Iterable[tuple[int, tuple[int, bytes]]]:
        """See `RecordSource`: chunks of answers."""
        return [(chunk[0], chunk) for chunk in self.queue.take()]

    def encode(self, item: tuple[int, bytes]) -> WindowEntry:
        """See `RecordSource`."""
        value = encode_answers(self._run_number, self._seed, *item, replica=self._replica)
        return WindowEntry(self.key, value)
