"""The private parts of aiokafka, and of its loop, that Reprise uses; no other module uses any.

The version is pinned for them, and `tests/unit/brokers/test_client_internals.py` checks each name
against the installed version.
"""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any, Final

import aiokafka.client  # type: ignore[import-untyped]
from aiokafka.protocol.metadata import MetadataRequest  # type: ignore[import-untyped]

from brokers.errors import AWAY
from brokers.interface import Epoch
from schemas.limits import CLIENT_LEAVE_S

_LOST_PASSES: Final = 3
"""Passes of a loop from `abort` to a closed socket."""


def forbid_topic_creation() -> None:
    """Keeps the clients of this process from asking brokers to create missing topics.

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
    """Lets an idempotent producer that was not started write under another one's epoch."""
    producer._txn_manager.set_pid_and_epoch(*epoch)  # noqa: SLF001


async def start_client(client: Any) -> None:
    """Starts a consumer or producer; a cancellation waits for that to end, CLIENT_LEAVE_S at most.

    Cut short in the middle, aiokafka forgets a connection that is open.

    Raises:
        KafkaError, OSError: as its `start`.
    """
    starting = asyncio.ensure_future(client.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait((starting,), timeout=CLIENT_LEAVE_S)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise


async def abandon_producer(producer: Any, timeout_s: float) -> None:
    """Stops a producer at once: what it has not sent yet, or wants to send again, is never sent.

    Args:
        producer: started.
        timeout_s: for each of two steps, in seconds.
    """
    producer._closed = True  # noqa: SLF001 -- else it warns of itself
    with suppress(*AWAY):
        await _close_producer(producer, timeout_s)


async def stop_producer(producer: Any, timeout_s: float) -> None:
    """Stops a producer; drops what it has not written, where the broker does not take it in time.

    Args:
        producer: of table rows; what it leaves unwritten is refused once the next one has started.
        timeout_s: for each of three steps, in seconds.
    """
    with suppress(*AWAY):
        try:
            async with asyncio.timeout(timeout_s):
                await producer.stop()
        except TimeoutError:  # it waits for a broker; a second `stop` would do nothing
            await _close_producer(producer, timeout_s)


async def close_connections(consumer: Any, timeout_s: float) -> None:
    """Closes the connections of a consumer whose `stop` was cut short before it did.

    Args:
        consumer: stopped.
        timeout_s: give up after it.
    """
    with suppress(*AWAY):
        async with asyncio.timeout(timeout_s):
            await consumer._client.close()  # noqa: SLF001


async def abort_connections() -> None:
    """Closes what is open on the running loop, which is about to be closed; its tasks have ended.

    A client that is cancelled while it connects forgets the connection, and may connect once more
    after its `stop`.
    """
    loop = asyncio.get_running_loop()
    for transport in list(getattr(loop, "_transports", {}).values()):
        transport.abort()
    for _ in range(_LOST_PASSES):
        await asyncio.sleep(0)


async def _close_producer(producer: Any, timeout_s: float) -> None:
    # `asyncio.wait_for` would swallow a cancellation that comes just as its work ends.
    try:
        async with asyncio.timeout(timeout_s):
            await producer._sender.close()  # noqa: SLF001 -- waits for what a silent broker owes
    finally:
        async with asyncio.timeout(timeout_s):
            await producer.client.close()
