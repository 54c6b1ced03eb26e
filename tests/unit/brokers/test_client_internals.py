"""Names of aiokafka that it does not promise, as the installed version has them.

Where one of these fails after an upgrade, `brokers.client_internals` has to be read against the new
version before the pin in pyproject.toml is moved.
"""

import asyncio
import inspect
import random
import tomllib
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiokafka.client  # type: ignore[import-untyped]
import cramjam
import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import (  # type: ignore[import-untyped]
    AIOKafkaConnection,
    AIOKafkaProtocol,
    collect_hosts,
    create_conn,
)
from aiokafka.producer.message_accumulator import (  # type: ignore[import-untyped]
    BatchBuilder,
)
from aiokafka.producer.sender import Sender  # type: ignore[import-untyped]
from aiokafka.producer.transaction_manager import TransactionManager  # type: ignore[import-untyped]
from aiokafka.protocol.metadata import MetadataRequest, MetadataRequest_v5  # type: ignore[import-untyped]
from aiokafka.record.memory_records import MemoryRecords  # type: ignore[import-untyped]

from brokers import client_internals
from brokers.broker_settings import KafkaSettings
from brokers.client_internals import adopt_epoch, epoch_of, start_client
from brokers.client_types import Epoch
from brokers.clients import Clients
from brokers.options import client_options

CLIENTS = Clients(client_options(KafkaSettings(bootstrap="127.0.0.1:1")))


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("name", ["aiokafka", "faust-streaming", "mode-streaming"])
def test_the_version_that_is_pinned_is_installed(name: str) -> None:
    root = Path(__file__).parents[3]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert f"{name}=={version(name)}" in project["dependencies"]
    assert f"{name}=={version(name)}" in (root / "constraints.txt").read_text().splitlines()


def test_an_epoch_is_set_and_read_by_the_names_that_we_use() -> None:
    assert parameters(TransactionManager.set_pid_and_epoch) == ["pid", "epoch"]
    for name in ("producer_id", "producer_epoch"):
        assert isinstance(inspect.getattr_static(TransactionManager, name), property)


def test_a_fenced_producer_asks_for_no_producer_id_of_its_own() -> None:
    epoch = Epoch(producer_id=77, epoch=5)

    async def adopt() -> None:
        producer: Any = CLIENTS.fenced_producer(epoch, batch_bytes_max=1)
        await producer.stop()
        transactions = producer._txn_manager
        assert transactions.has_pid(), "its sender waits for none"
        await transactions.wait_for_pid()
        assert transactions.transactional_id is None
        assert (transactions.producer_id, transactions.producer_epoch) == epoch

    asyncio.run(adopt())


def test_an_epoch_that_was_adopted_is_the_one_that_is_read() -> None:
    async def adopted() -> Epoch:
        producer = CLIENTS.epoch_producer("id")
        await producer.stop()
        adopt_epoch(producer, Epoch(3, 4))
        return epoch_of(producer)

    assert asyncio.run(adopted()) == Epoch(3, 4)


def test_a_producer_is_stopped_by_the_names_that_we_use() -> None:
    assert inspect.iscoroutinefunction(Sender.close)
    assert parameters(Sender.close) == []
    assert inspect.iscoroutinefunction(AIOKafkaClient.close)

    async def names() -> None:
        producer: Any = CLIENTS.producer()
        await producer.stop()
        assert isinstance(producer._sender, Sender)
        assert isinstance(producer.client, AIOKafkaClient)

    asyncio.run(names())


class Starting:
    def __init__(self, takes_s: float) -> None:
        self.takes_s = takes_s
        self.told: list[str] = []

    async def start(self) -> None:
        try:
            await asyncio.sleep(self.takes_s)
        except asyncio.CancelledError:
            self.told.append("cut short")
            raise
        self.told.append("started")


@pytest.mark.parametrize(("takes_s", "told"), [(0.05, "started"), (60.0, "cut short")])
def test_a_start_that_is_cancelled_may_come_to_its_end(
    monkeypatch: pytest.MonkeyPatch, takes_s: float, told: str
) -> None:
    """Else the connection over which it asks for the brokers stays open."""
    monkeypatch.setattr(client_internals, "CLIENT_LEAVE_S", 0.2)
    client = Starting(takes_s)

    async def scenario() -> None:
        starting = asyncio.create_task(start_client(client))
        await asyncio.sleep(0.01)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())
    assert client.told == [told]


def test_a_start_that_fails_says_so() -> None:
    class Failing:
        async def start(self) -> None:
            raise OSError("no broker")

    with pytest.raises(OSError, match="no broker"):
        asyncio.run(start_client(Failing()))


def test_a_consumer_has_the_connections_that_we_close() -> None:
    async def names() -> None:
        consumer: Any = CLIENTS.reader(committed=True)
        assert isinstance(consumer._client, AIOKafkaClient)
        await consumer.stop()

    asyncio.run(names())


def test_no_client_has_the_broker_make_a_topic() -> None:
    made = aiokafka.client.MetadataRequest
    assert isinstance(made, partial)
    assert "MetadataRequest(" in inspect.getsource(AIOKafkaClient._metadata_update)
    assert parameters(MetadataRequest.__init__) == ["topics", "allow_auto_topic_creation"]
    assert made(["t"]).build(MetadataRequest_v5).allow_auto_topic_creation is False
    assert MetadataRequest(["t"]).build(MetadataRequest_v5).allow_auto_topic_creation is True


def test_a_connection_is_made_and_asked_by_the_names_that_we_use() -> None:
    known = parameters(create_conn)
    options = client_options(KafkaSettings(bootstrap="127.0.0.1:1"))
    assert {"host", "port", "request_timeout_ms", *options} - {"bootstrap_servers"} <= {*known}
    assert parameters(AIOKafkaConnection.send)[:1] == ["request"]
    assert [place[:2] for place in collect_hosts(["h:1", "i:2"], randomize=False)] == [
        ("h", 1),
        ("i", 2),
    ]


@pytest.mark.parametrize("answered", [False, True])
def test_a_connection_that_its_client_forgot_is_closed(answered: bool) -> None:
    async def scenario() -> None:
        ended = asyncio.Event()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if answered:  # which nobody has read when it ends
                writer.write(bytes(100))
            await reader.read()
            writer.close()
            ended.set()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        thread_loop = asyncio.new_event_loop()
        address = server.sockets[0].getsockname()

        async def forget() -> None:
            connection = AIOKafkaConnection(*address, max_idle_ms=None)
            reader = asyncio.StreamReader()
            loop = asyncio.get_running_loop()
            protocol = AIOKafkaProtocol(loop.create_future(), reader, loop=loop)
            transport, _ = await loop.create_connection(lambda: protocol, *address)
            connection._reader = reader  # as its `connect` does
            while answered and not reader._buffer:  # type: ignore[attr-defined] # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert connection.connected()
            await client_internals.abort_connections()
            assert transport.get_extra_info("socket").fileno() == -1
            assert not connection.connected(), "it would warn of itself"

        await asyncio.to_thread(thread_loop.run_until_complete, forget())
        thread_loop.close()
        await asyncio.wait_for(ended.wait(), 5)
        server.close()

    asyncio.run(scenario())


def test_what_is_written_is_compressed_with_zstd_at_level_1() -> None:
    value = random.Random(0).choices(b"abcdefgh", k=20_000)
    batch: Any = BatchBuilder(2**20, 4)
    batch.append(key=None, value=bytes(value), timestamp=1)
    written = bytes(batch._build())
    records = MemoryRecords(written).next_batch()
    assert [record.value for record in records] == [bytes(value)]
    plain: Any = BatchBuilder(2**20, 0)
    plain.append(key=None, value=bytes(value), timestamp=1)
    payload = bytes(plain._build())[61:]
    assert written[61:] == bytes(cramjam.zstd.compress(payload, level=1))
    assert written[61:] != bytes(cramjam.zstd.compress(payload, level=3))
