"""The options of every command that uses Kafka, each by flag and by environment variable."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from brokers.broker_settings import KafkaSettings
from console.settings import part_settings

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_OF_NEW_TOPICS: Final = (
    "kafka.events_partitions",
    "kafka.registry_partitions",
    "kafka.replication",
)


def kafka_options(*, makes_topics: bool = False) -> Callable[[CommandT], CommandT]:
    """Adds the options, for a command that has other sources, too, and hands over `kafka`: its
    `KafkaSettings`, or None without `--kafka`.

    Args:
        makes_topics: False for a command that only reads what is there.
    """
    without = () if makes_topics else _OF_NEW_TOPICS
    return part_settings(KafkaSettings, "kafka", required=False, without=without)


def is_by_flag(context: click.Context) -> bool:
    """Whether `--kafka` itself is given, and not the variable alone."""
    return context.get_parameter_source("kafka_brokers") is ParameterSource.COMMANDLINE
