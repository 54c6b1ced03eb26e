"""The options of the commands that serve LMCache's workers, or read its topic."""

from collections.abc import Callable
from functools import reduce, wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from console.settings import setting
from lmcache_adapter.settings import (
    TOPIC,
    LmcacheSettings,
    read_address,
    read_models,
    read_topic,
)

R = TypeVar("R")

_OPTIONS: Final = (
    setting(
        "--lmcache",
        key="lmcache.listen",
        metavar="HOST[:PULL,REPLY,HEARTBEAT]",
        envvar="REPRISE_LMCACHE",
        help="Serve LMCache's workers there, as their controller; without ports 8300,8400,8401."
        "  [default: off]",
    ),
    setting(
        "--lmcache-advertise",
        key="lmcache.advertise",
        is_seldom_set=True,
        metavar="HOST",
        envvar="REPRISE_LMCACHE_ADVERTISE",
        help="The host that workers send heartbeats to.  [default: that by which they reach us]",
    ),
    setting(
        "--lmcache-model",
        key="lmcache.model",
        is_seldom_set=True,
        metavar="NAME",
        envvar="REPRISE_LMCACHE_MODEL",
        help="The model of LMCache's workers.  [default: that of lmcache.models, or lmcache]",
    ),
    setting(
        "--lmcache-kafka",
        key="lmcache.kafka",
        is_seldom_set=True,
        metavar="HOST:PORT[,...]",
        envvar="REPRISE_LMCACHE_KAFKA",
        help="Read LMCache's own topic there; one process alone.  [default: off]",
    ),
    setting(
        "--lmcache-topic",
        key="lmcache.topic",
        is_seldom_set=True,
        metavar="NAME",
        default=TOPIC,
        show_default=True,
        envvar="REPRISE_LMCACHE_TOPIC",
        help="That topic.",
    ),
    setting(
        "--lmcache-models",
        key="lmcache.models",
        is_seldom_set=True,
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="REPRISE_LMCACHE_MODELS",
        help="A file with the model, tenant and chunk size of each instance (JSON).",
    ),
)


def lmcache_options(command: Callable[..., R]) -> Callable[..., R]:
    """`--lmcache` and what belongs to it, handed over as `lmcache`: LmcacheSettings or None."""

    @wraps(command)
    def run(
        *args: Any,
        lmcache: str | None,
        lmcache_advertise: str | None,
        lmcache_model: str | None,
        lmcache_kafka: str | None,
        lmcache_topic: str,
        lmcache_models: Path | None,
        **options: Any,
    ) -> R:
        settings = None
        if lmcache or lmcache_kafka:
            settings = LmcacheSettings(
                address=read_address(lmcache, lmcache_advertise or "") if lmcache else None,
                models=read_models(lmcache_models, lmcache_model or None),
                topic=read_topic(lmcache_kafka, lmcache_topic) if lmcache_kafka else None,
            )
        return command(*args, lmcache=settings, **options)

    return reduce(lambda done, option: option(done), reversed(_OPTIONS), run)
