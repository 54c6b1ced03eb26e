"""Routers that misbehave, before a service as a process: HTTP and other routers are not hurt."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from query_api.grpc.bounds import GRPC_MESSAGE_BYTES_MAX, GRPC_STREAMS_MAX
from tests.processes import START_S, Service, until
from tests.router_protos import PACKED, RADIX

pytestmark = pytest.mark.timeout(180)

MATCH_PREFIX = "/kv_indexer.v1.KVIndexer/MatchExternalKvPrefix"
SUBSCRIBE = "/radix_index.RadixIndex/Subscribe"
REQUEST = PACKED.MatchExternalKvPrefixRequest(hashes=list(range(512))).SerializeToString()
CONNECTIONS = 8
QUERIES = 50


class Routed(Service):
    @property
    def address(self) -> str:
        found: str = re.findall(r"Answering gRPC on (\S+)", self.whole_log())[-1]
        return found

    def client(self) -> Any:
        # A connection of its own: the library shares one between channels that are alike.
        return grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])

    def refused(self, reason: str) -> float:
        return self.metric("reprise_grpc_refused_total", reason=reason)

    def asked_in_s(self) -> float:
        """How long the slowest of some HTTP queries took."""
        took = []
        for _ in range(QUERIES):
            begin = time.perf_counter()
            self.query(list(range(64)))
            took.append(time.perf_counter() - begin)
        return max(took)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routed]:
    with Routed(tmp_path_factory.mktemp("grpc") / "data", "--grpc", "0") as started:
        yield started


def ask(channel: Any, message: bytes = REQUEST, timeout: float = START_S) -> bytes:
    reply: bytes = channel.unary_unary(MATCH_PREFIX)(message, timeout=timeout)
    return reply


def code_of(channel: Any, message: bytes, timeout: float = START_S) -> str:
    try:
        ask(channel, message, timeout)
    except grpc.RpcError as error:
        failed: Any = error
        return str(failed.code().name)
    return "OK"


def test_bad_messages_are_counted_and_hurt_nobody(service: Routed) -> None:
    with closing(service.client()) as channel:
        before = service.refused("malformed")
        texts = b"\x0a\x017" * 400_000
        large = bytes(GRPC_MESSAGE_BYTES_MAX + 1)
        million = PACKED.MatchExternalKvPrefixRequest(hashes=[7] * 1_000_000).SerializeToString()
        codes = [code_of(channel, one) for one in (b"\xff" * 99, b"", texts, large, million)]
        assert codes == [
            "INVALID_ARGUMENT",
            "INVALID_ARGUMENT",
            "RESOURCE_EXHAUSTED",
            "RESOURCE_EXHAUSTED",
            "OK",
        ]
        assert service.refused("malformed") == before + 2
        assert service.refused("too_large") == 1
        assert service.metric("reprise_grpc_hashes_ignored_total") > 900_000
        assert service.is_ready()


def test_streams_without_end_and_unread_answers_leave_room_for_http_and_routers(
    service: Routed,
) -> None:
    held = []
    channels = [service.client() for _ in range(CONNECTIONS)]
    query = RADIX.Query(query_id=1, keyspace=RADIX.Keyspace(model="m", block_size=16))

    def endless() -> Iterator[bytes]:
        while True:
            yield query.SerializeToString()

    for channel in channels[:-1]:
        held += [channel.stream_stream(SUBSCRIBE)(endless()) for _ in range(4)]
    assert service.asked_in_s() < START_S
    with closing(service.client()) as router:
        assert ask(router) is not None
    assert 0 < service.metric("reprise_grpc_streams") <= GRPC_STREAMS_MAX
    for stream in held:
        stream.cancel()
    for channel in channels:
        channel.close()
    until(lambda: service.metric("reprise_grpc_streams") == 0, what="streams to end")


def test_a_port_in_use_ends_the_start_with_its_reason(service: Routed, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "reprise", "up", "--data", str(tmp_path / "other")]
    ended = subprocess.run(
        [*command, "--port", "0", "--grpc", service.address],
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert ended.returncode == 1
    assert f"Cannot listen on {service.address}" in ended.stderr
    assert "Traceback" not in ended.stderr
