"""What we use of aiokafka that it does not promise to keep. Nothing else of ours does.

The version is pinned for it, and `tests/unit/brokers/test_client_internals.py` holds each name
against the version that is installed.
"""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

import aiokafka.client  # type: ignore[import-untyped]
from aiokafka.protocol.metadata import MetadataRequest  # type: ignore[import-untyped]

from brokers.errors import AWAY
from brokers.interface import Epoch


def forbid_topic_creation() -> None:
    """Has the clients of this process never ask a broker to make a topic that is missing.

    They ask by default, for each topic that they read or write, whenever they refresh what they
    know; with Kafka's default `auto.create.topics.enable=true` a topic that is deleted beneath them
    comes back at once with the broker's partition count instead of ours. The client has no option
    for it.
    """
    aiokafka.client.MetadataRequest = partial(MetadataRequest, allow_auto_topic_creation=False)


def epoch_of(producer: Any) -> Epoch:
    """The epoch that its start gave a transactional producer."""
    transactions = producer._txn_manager  # noqa: SLF001
    return Epoch(transactions.producer_id, transactions.producer_epoch)


def adopt_epoch(producer: Any, epoch: Epoch) -> None:
    """Has an idempotent producer that was not started write under an epoch that another one got."""
    producer._txn_manager.set_pid_and_epoch(*epoch)  # noqa: SLF001


async def stop_producer(producer: Any, timeout_s: float) -> None:
    """Stops a producer, with what it still wanted to write where the broker does not take it.

    Args:
        producer: of table rows; what it leaves unwritten is refused once the next one has begun.
        timeout_s: for each of three steps, in seconds.
    """
    with suppress(*AWAY):
        try:
            await asyncio.wait_for(producer.stop(), timeout_s)
        except TimeoutError:  # it waits for a broker; a second `stop` would do nothing
            await asyncio.wait_for(producer._sender.close(), timeout_s)  # noqa: SLF001
            await asyncio.wait_for(producer.client.close(), timeout_s)
