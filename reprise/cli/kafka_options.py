"""The options of every command that uses Kafka, each by flag and by environment variable."""

from collections.abc import Callable
from pathlib import Path
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


def check_one_source(
    context: click.Context, kafka: KafkaSettings | None, data: Path | None
) -> None:
    """Accepts a log in Kafka, or in a data directory, which counts more than the variable.

    Raises:
        click.UsageError: neither is given, or both.
    """
    if (data is None and kafka is None) or (data is not None and is_by_flag(context)):
        got = "neither" if data is None else "both"
        raise click.UsageError(f"Expected one of --kafka and --data, got {got}")
