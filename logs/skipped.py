"""Messages that cannot be used: skipped, counted by reason, and the first ones named."""

import logging
from collections import Counter
from collections.abc import Callable

from brokers.client_types import Message
from schemas.errors import EntryError, RecordError
from schemas.limits import ENTRIES_NAMED_MAX

logger = logging.getLogger(__name__)


class SkippedMessages(Counter[str]):
    """How many were skipped, by reason. No message, whatever it is, ends its reading.

    Args:
        spoken: what a message is, as "entry".

    Attributes:
        faults: those that were skipped because of an unexpected error; of no reason.
    """

    def __init__(self, spoken: str) -> None:
        super().__init__()
        self._spoken = spoken
        self.faults = 0

    def guarded(
        self,
        topic: str,
        take: Callable[[Message], None],
        refused: Callable[[Message, EntryError], None] = lambda message, error: None,
    ) -> Callable[[Message], None]:
        """Wraps `take`, for messages of the topic, so that one that it cannot use is skipped.

        Args:
            take: raises EntryError or RecordError for such a message.
            refused: is handed a message that is no usable entry, and why.
        """

        def guarded(message: Message) -> None:
            try:
                take(message)
            except (EntryError, RecordError) as error:
                self.note(topic, message.partition, message.offset, error.reason, error)
                if isinstance(error, EntryError):
                    refused(message, error)
            except Exception:
                self.faults += 1
                logger.exception(
                    "Unexpected error; skipping the %s in %s, partition %d, offset %d",
                    *(self._spoken, topic, message.partition, message.offset),
                )

        return guarded

    def note(self, topic: str, partition: int, offset: int, reason: str, error: object) -> None:
        """One was skipped."""
        self[reason] += 1
        logger.log(
            logging.WARNING if self[reason] <= ENTRIES_NAMED_MAX else logging.DEBUG,
            "Skipping the %s in %s, partition %d, offset %d: %s",
            *(self._spoken, topic, partition, offset, error),
        )
