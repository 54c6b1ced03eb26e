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

__all__ = [
    "AWAY",
    "CorruptRecordException",
    "KafkaError",
    "KafkaTimeoutError",
    "MessageSizeTooLargeError",
    "NoOffsetForPartitionError",
    "OffsetOutOfRangeError",
]

AWAY: Final = (KafkaError, OSError, TimeoutError)
"""What an attempt raises while brokers are away or not ready: to be tried again."""
