"""The topics of a deployment: created where they are missing, checked where they are not.

Every role does it at its start, several at the same time: the second one checks what the first one
created.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient, NewTopic  # type: ignore[import-untyped]
from aiokafka.admin.config_resource import (  # type: ignore[import-untyped]
    ConfigResource,
    ConfigResourceType,
)
from aiokafka.errors import (  # type: ignore[import-untyped]
    ClusterAuthorizationFailedError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidTopicError,
    KafkaTimeoutError,
    NoError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    for_code,
)

from brokers.availability import check_access, describe, until_reached
from brokers.broker_settings import KafkaSettings
from brokers.clients import Clients
from brokers.options import ClientOptions, client_options
from brokers.outages import Outage
from schemas.clock import REAL_CLOCK, Clock
from schemas.conditions import Conditions
from schemas.errors import ConfigurationError
from schemas.limits import KAFKA_ATTEMPT_MS
from schemas.topics import TopicSpec

TOPIC_SETTLE_S: Final = 20.0  # until all brokers know a topic that was just created
TOPIC_SETTLE_PAUSE_S: Final = 0.05  # between two looks whether all brokers know it

logger = logging.getLogger(__name__)

_REFUSALS: Final = (
    ClusterAuthorizationFailedError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidTopicError,
    PolicyViolationError,
    TopicAuthorizationFailedError,
)
"""Answers to the creation of a topic that waiting does not change."""


class _Partitions(NamedTuple):
    total: int
    led: int  # how many of them have a leader, that is, can be used


async def ensure_topics(
    settings: KafkaSettings,
    outage: Outage | None = None,
    *,
    specs: Sequence[TopicSpec] | None = None,
) -> None:
    """Returns once the topics exist, can be used, and are as they must be.

    Waits for brokers that are away for as long as it takes; cancel it to give up.

    Args:
        outage: told while it waits, and what for.
        specs: the topics; None: the four that every deployment has.

    Raises:
        ConfigurationError: a topic has another shape than it must have or may not be created, or
            the brokers refuse the credentials.
    """
    options = client_options(settings)
    attempt = partial(_ensure, settings, options, settings.topics if specs is None else specs)
    await until_reached(attempt, servers=settings.bootstrap, outage=outage)


async def ensure_topics_now(
    settings: KafkaSettings, specs: Sequence[TopicSpec], *, clock: Clock = REAL_CLOCK
) -> None:
    """As `ensure_topics`, for one that says itself that Kafka is away, and tries again.

    Raises:
        ConfigurationError: see there.
        KafkaError, OSError, TimeoutError: the brokers do not answer in time.
    """
    silent = Outage(settings.bootstrap, conditions=Conditions(clock.unix))
    async with asyncio.timeout(KAFKA_ATTEMPT_MS / 1000):
        await ensure_topics(settings, silent, specs=specs)


async def count_partitions(options: ClientOptions, topic: str) -> int:
    """How many partitions a topic has. Asking does not create it.

    Raises:
        ConfigurationError: there is no such topic.
        KafkaError, OSError, TimeoutError: the brokers do not answer.
    """
    async with _admin(options) as admin:
        found = (await _describe(admin)).get(topic)
    if found is None:
        raise ConfigurationError(
            f"Topic does not exist: {topic}. The roles create it when they start;"
            " see also --topic-prefix"
        )
    return found.total


async def _ensure(
    settings: KafkaSettings, options: ClientOptions, specs: Sequence[TopicSpec]
) -> None:
    await check_access(options)
    async with _admin(options) as admin:
        await _create_missing(admin, specs, settings.replication)
        await _check_configs(admin, specs)


@asynccontextmanager
async def _admin(options: ClientOptions) -> AsyncIterator[AIOKafkaAdminClient]:
    admin: AIOKafkaAdminClient = Clients(options).admin()
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


async def _create_missing(
    admin: AIOKafkaAdminClient, specs: Sequence[TopicSpec], replication: int
) -> None:
    end = asyncio.get_running_loop().time() + TOPIC_SETTLE_S
    while True:
        present = await _describe(admin)
        missing = [spec for spec in specs if spec.name not in present]
        for spec in specs:
            if spec not in missing:
                _check_partitions(spec, present[spec.name])
        if not missing and all(present[spec.name].led == spec.partitions for spec in specs):
            return
        if asyncio.get_running_loop().time() > end:
            raise KafkaTimeoutError("the topics are not usable yet: partitions have no leader")
        if missing:
            await _create(admin, missing, replication)
        await asyncio.sleep(TOPIC_SETTLE_PAUSE_S)


async def _describe(admin: AIOKafkaAdminClient) -> dict[str, _Partitions]:
    # Of all topics: a request by name would create them, where brokers create topics on demand.
    return {
        topic["topic"]: _Partitions(
            len(topic["partitions"]), sum(part["leader"] >= 0 for part in topic["partitions"])
        )
        for topic in await admin.describe_topics()
        if not topic["error_code"]
    }


def _check_partitions(spec: TopicSpec, got: _Partitions) -> None:
    if got.total == spec.partitions:
        return
    if not spec.setting:
        raise ConfigurationError(
            f"Expected `{spec.partitions}` partitions, got `{got.total}` in topic: {spec.name}."
            " Delete the topic to have it created again, or choose another --topic-prefix"
        )
    raise ConfigurationError(
        f"Expected `{spec.partitions}` partitions, got `{got.total}` in topic: {spec.name}."
        f" Start every role with kafka.{spec.setting} = {got.total} to use the topic as it is,"
        " choose another --topic-prefix, or delete the topic to have it created again"
    )


async def _create(admin: AIOKafkaAdminClient, specs: Sequence[TopicSpec], replication: int) -> None:
    topics = [
        NewTopic(
            spec.name,
            spec.partitions,
            replication,
            topic_configs={"cleanup.policy": spec.cleanup.value, **spec.configs},
        )
        for spec in specs
    ]
    response = await admin.create_topics(topics, timeout_ms=KAFKA_ATTEMPT_MS)
    for name, code, message in response.topic_errors:
        error = for_code(code)
        if error in (NoError, TopicAlreadyExistsError):
            if error is NoError:
                logger.info("Created topic %s", name)
        elif error in _REFUSALS:
            raise ConfigurationError(
                f"Cannot create topic {name}: {_why(error, message)}."
                " Create it beforehand, as docs/topics.md says, or allow this user to create it"
            )
        else:  # as too few brokers for the copies: more may be on their way
            raise error(f"topic {name} cannot be created: {_why(error, message)}")


async def _check_configs(admin: AIOKafkaAdminClient, specs: Sequence[TopicSpec]) -> None:
    wanted = [ConfigResource(ConfigResourceType.TOPIC, spec.name) for spec in specs]
    by_name = {spec.name: spec for spec in specs}
    for response in await admin.describe_configs(wanted):
        for code, message, _, name, entries in response.resources:
            error = for_code(code)
            if error is TopicAuthorizationFailedError:
                logger.warning("Not authorized to read the config of %s; skipping the check", name)
            elif error is not NoError:
                raise error(f"config of topic {name}: {message}")
            else:
                _check_config(by_name[name], {entry[0]: entry[1] for entry in entries})


def _check_config(spec: TopicSpec, got: dict[str, str]) -> None:
    policy = got.get("cleanup.policy", "")
    if policy != spec.cleanup:
        raise ConfigurationError(
            f"Expected cleanup.policy `{spec.cleanup}`, got `{policy}` in topic: {spec.name}."
            f" Fix it with kafka-configs.sh --alter --entity-type topics --entity-name {spec.name}"
            f" --add-config cleanup.policy={spec.cleanup}, or choose another --topic-prefix"
        )
    largest = "max.message.bytes"
    if largest in spec.configs and int(got.get(largest, 0)) < int(spec.configs[largest]):
        raise ConfigurationError(
            f"Expected {largest} of at least `{spec.configs[largest]}`, got `{got.get(largest)}`"
            f" in topic: {spec.name}. Fix it with kafka-configs.sh --alter --entity-type topics"
            f" --entity-name {spec.name} --add-config {largest}={spec.configs[largest]}"
        )


def _why(error: type[Exception], message: str | None) -> str:
    """The broker's own words, or its error's name in words."""
    return message or describe(error())
