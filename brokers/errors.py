"""The errors of Kafka's client under one roof, for those that catch them.

All of them are `KafkaError`s. A broker that is away also shows as OSError or TimeoutError: see
`AWAY`.
"""

from typing import Final

from aiokafka.errors import (  # type: ignore[import-untyped]
    CorruptRecordException,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)

from brokers.client_types import Partition

__all__ = [
    "AWAY",
    "CorruptRecordException",
    "DamagedPartitionError",
    "KafkaError",
    "KafkaTimeoutError",
    "MessageSizeTooLargeError",
    "NoOffsetForPartitionError",
    "OffsetOutOfRangeError",
]

AWAY: Final = (KafkaError, OSError, TimeoutError)
"""What an attempt raises while brokers are away or not ready: to be tried again."""


class DamagedPartitionError(CorruptRecordException):  # type: ignore[misc]
    """A partition cannot be read at an offset: by its checksum, by its offsets, or by the broker.

    Attributes:
        partition: of which topic.
        offset: the one that was asked for.
        readable_from: the first one behind it that can be read; None where that is not known.
        is_proven: its bytes show it; else the broker gives none, or an error.
    """

    def __init__(
        self,
        partition: Partition,
        offset: int,
        readable_from: int | None,
        *,
        is_proven: bool = False,
    ) -> None:
        super().__init__(
            f"Offset {offset} of {partition.topic}:{partition.partition} cannot be read: its batch"
            " is damaged on the broker's disk"
        )
        self.partition = partition
        self.offset = offset
        self.readable_from = readable_from
        self.is_proven = is_proven
