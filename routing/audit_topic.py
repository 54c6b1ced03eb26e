"""Proof of the decisions of all replicas, which are in a topic."""

from contextlib import AsyncExitStack

from brokers.availability import check_access, until_reached
from brokers.broker_settings import KafkaSettings
from brokers.options import client_options
from logs.partition_log import opened_partitions
from logs.topic import bounds_in, read_once
from routing.audit import VerifiedDecisions
from routing.log.topics import ROUTING_TOPIC
from schemas.errors import ConfigurationError
from schemas.identities import Offset
from schemas.limits import TAIL_REACH_S
from streams.audit.topics_verification import Tell, silent


def verify_routing_topic(settings: KafkaSettings, on_progress: Tell = silent) -> VerifiedDecisions:
    """Verifies the decisions of all replicas that are in Kafka now, in no consumer group. Where
    there is no such topic, there are none.

    Raises:
        ConfigurationError: no broker answers or lets us in.
        StorageError: Kafka went away, or retention dropped meanwhile what is read.
    """
    return read_once(settings, _verify_routing_topic(settings, on_progress))


async def _verify_routing_topic(settings: KafkaSettings, on_progress: Tell) -> VerifiedDecisions:
    options, verified = client_options(settings), VerifiedDecisions()
    topic = settings.topic(ROUTING_TOPIC).name
    await until_reached(
        lambda: check_access(options), servers=settings.bootstrap, patience_s=TAIL_REACH_S
    )
    try:
        bounds = await bounds_in(options, topic)
    except ConfigurationError:
        return verified
    async with AsyncExitStack() as opened:
        for log in await opened_partitions(opened, options, topic, bounds):
            first, end = log.bounds
            async for entry in log.entries(Offset(end - 1)):
                if entry.value:  # a marker of a transaction, or retention, leaves none
                    verified.take(entry)
                on_progress(entry.offset + 1 - first, end - first)
    return verified
