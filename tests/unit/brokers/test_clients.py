"""What the clients are opened with; none of them is started."""

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from brokers.client_types import Epoch
from brokers.clients import CODEC, Clients
from brokers.options import client_options
from lmcache_adapter.commands.executor import LMCACHE_COMMAND_LATE_S

CLIENTS = Clients(client_options(KafkaSettings(bootstrap="127.0.0.1:1")))
PRODUCERS = {
    "producer": lambda: CLIENTS.producer(),
    "fenced": lambda: CLIENTS.fenced_producer(Epoch(1, 1), batch_bytes_max=1000),
    "epoch": lambda: CLIENTS.epoch_producer("id"),
    "entry": lambda: CLIENTS.entry_producer(),
    "command": lambda: CLIENTS.command_producer(),
}


def made(make: Any) -> dict[str, Any]:
    """The attributes of a client, which is closed again."""

    async def on_a_loop() -> dict[str, Any]:
        client = make()
        await client.stop()
        return dict(vars(client))

    return asyncio.run(on_a_loop())


@pytest.mark.parametrize("name", PRODUCERS)
def test_every_producer_waits_for_all_replicas_and_writes_the_one_codec(name: str) -> None:
    producer = made(PRODUCERS[name])
    assert producer["_sender"]._acks == -1
    assert producer["_compression_type"] == CODEC


def test_only_the_producers_of_entries_and_commands_may_give_up() -> None:
    idempotent = {name: made(make)["_txn_manager"] is not None for name, make in PRODUCERS.items()}
    assert {name for name, never in idempotent.items() if not never} == {"entry", "command"}


def test_a_command_is_given_up_before_a_bridge_would_refuse_it_as_late() -> None:
    assert made(PRODUCERS["command"])["_request_timeout_ms"] < 1000 * LMCACHE_COMMAND_LATE_S


def test_a_workers_options_are_those_of_its_consumer() -> None:
    options = CLIENTS.worker_consumer_options("g", session_s=7.0)
    assert options["group_id"] == "g"
    assert options["session_timeout_ms"] == 7_000
    assert options["enable_auto_commit"] is False
    assert options["bootstrap_servers"] == ["127.0.0.1:1"]
    one = made(lambda: AIOKafkaConsumer(**options))
    other = made(lambda: CLIENTS.worker_consumer("g", session_s=7.0))
    settings = [
        {key: value for key, value in consumer.items() if isinstance(value, str | int)}
        for consumer in (one, other)
    ]
    assert settings[0] == settings[1]
    assert settings[0]["_isolation_level"] == "read_committed"


@pytest.mark.parametrize(
    ("make", "isolation", "reset"),
    [
        (lambda: CLIENTS.reader(committed=True), "read_committed", "earliest"),
        (lambda: CLIENTS.reader(committed=False), "read_uncommitted", "earliest"),
        (lambda: CLIENTS.replica_reader(), "read_committed", "none"),
    ],
)
def test_readers_are_in_no_group(make: Any, isolation: str, reset: str) -> None:
    reader = made(make)
    assert reader["_group_id"] is None
    assert (reader["_isolation_level"], reader["_auto_offset_reset"]) == (isolation, reset)
