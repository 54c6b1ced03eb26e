"""The gap ledgers that a whole log gives, by the one fold: beside a running service, or without."""

from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

from brokers.broker_settings import KafkaSettings
from brokers.options import client_options
from logs.embedded import ReadOnlyLog
from logs.topic import read_once
from schemas.identities import Offset, PublisherKey
from schemas.limits import TABLE_FLUSH_CHANGES_MAX
from schemas.positions import Position, PublisherState
from streams.kernel import open_kernel
from streams.log.tail import TailOptions, events_partitions, kafka_batches
from streams.table.fold import Fold
from streams.table.ledger import Ledger
from streams.table.verification import fresh_fold


class FoldedLedgers(NamedTuple):
    """What a log comes to.

    Attributes:
        positions: what was folded of each partition that has anything.
    """

    positions: tuple[Position, ...]
    ledgers: dict[PublisherKey, Ledger]
    states: dict[PublisherKey, PublisherState]


def _of(folds: dict[int, Fold]) -> FoldedLedgers:
    found = sorted(folds.items())
    return FoldedLedgers(
        tuple(Position(number, fold.offset) for number, fold in found if fold.offset >= 0),
        {key: ledger for _, fold in found for key, ledger in fold.ledgers.current.items()},
        {key: state for _, fold in found for key, state in fold.publishers.items()},
    )


def ledgers_of_log(data: Path, seed: int) -> FoldedLedgers:
    """Of the log in a data directory of `reprise up`.

    Raises:
        StorageError: there is no log, or it cannot be read.
    """
    log = ReadOnlyLog(data / "log")
    try:
        fold = Fold(open_kernel(seed))
        fresh_fold(fold, log)
        return _of({0: fold})
    finally:
        log.close()


def ledgers_of_topic(settings: KafkaSettings, seed: int) -> FoldedLedgers:
    """Of the events topic, as far as it goes now.

    Raises:
        ConfigurationError: no broker answers or lets us in, or there is no such topic.
        StorageError: Kafka went away.
    """
    return read_once(settings, _of_topic(settings, seed))


async def _of_topic(settings: KafkaSettings, seed: int) -> FoldedLedgers:
    clients = client_options(settings)
    places = await events_partitions(settings, clients)
    kernel = open_kernel(seed)  # shared: a stream is in one partition
    folds: dict[int, Fold] = {}
    async with aclosing(kafka_batches(clients, places, TailOptions())) as batches:
        async for entries in batches:
            for partition, offset, value in entries:
                fold = folds.get(partition)
                if fold is None:
                    fold = folds[partition] = Fold(kernel)
                    if offset > 0:  # retention has dropped what was before
                        fold.distrust(Offset(offset))
                fold.apply(Offset(offset), value or b"")
            if kernel.pending_changes() >= TABLE_FLUSH_CHANGES_MAX:
                for fold in folds.values():
                    fold.take_changes()
    return _of(folds)
