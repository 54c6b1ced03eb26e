"""A proxy that asks an endpoint picker, by our own messages or by Envoy's, as a test tells it."""

import importlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc.aio
import pytest

from gateway.picker.messages import ext_proc_pb2

ENVOY: Final = Path(__file__).parents[1] / ".make/envoy"
"""Where `make envoy` puts an Envoy, and its own messages."""
PROCESS: Final = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
CHECK: Final = "/grpc.health.v1.Health/Check"
WATCH: Final = "/grpc.health.v1.Health/Watch"
STREAMED, BUFFERED, DUPLEX = 1, 2, 4
MODES: Final = {"request_body_mode": DUPLEX, "response_body_mode": DUPLEX}
DESTINATION: Final = "x-gateway-destination-endpoint"


class Told(NamedTuple):
    """What a proxy is told of a request, or of an answer.

    Attributes:
        headers: that are set.
        removed: headers that are removed.
        metadata: that is set, by namespace.
        body: that passes.
        refused: the status of an answer in place of an engine's; 0 for none.
        order: names of the messages.
        is_end: whether the body that passes is at its end.
    """

    headers: dict[str, str]
    removed: list[str]
    metadata: dict[str, Any]
    body: bytes
    refused: int
    order: list[str]
    is_end: bool

    @property
    def endpoints(self) -> list[str]:
        """Where the request goes, by the header; metadata must say the same."""
        assert self.metadata["envoy.lb"][DESTINATION] == self.headers[DESTINATION]
        return self.headers[DESTINATION].split(",")

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])


class ProxyStream:
    """One request of the proxy."""

    def __init__(self, call: Any, kind: Any) -> None:
        self.call = call
        self._kind = kind

    async def send(self, metadata: dict[str, Any] | None = None, **fields: Any) -> None:
        """One message."""
        message = self._kind(**fields)
        for namespace, values in (metadata or {}).items():
            message.metadata_context.filter_metadata[namespace].update(values)
        await self.call.write(message)

    async def headers(
        self,
        path: str = "/v1/chat/completions",
        *,
        headers: Sequence[tuple[str, str]] = (),
        modes: dict[str, int] | None = MODES,
        subset: Any = None,
        is_end: bool = False,
        method: str = "POST",
        content_type: str = "application/json",
    ) -> None:
        """The headers of a request."""
        named = [(":method", method), (":path", path), *headers]
        named += [("content-type", content_type)] if content_type else []
        fields: dict[str, Any] = {} if modes is None else {"protocol_config": modes}
        hint = {"x-gateway-destination-endpoint-subset": subset}
        await self.send(
            None if subset is None else {"envoy.lb.subset_hint": hint},
            request_headers={"headers": _map(named), "end_of_stream": is_end},
            **fields,
        )

    async def body(self, piece: bytes, *, is_end: bool = True) -> None:
        """A piece of a request's body."""
        await self.send(request_body={"body": piece, "end_of_stream": is_end})

    async def told(self, *until: str) -> Told:
        """What is told, up to the last piece of a body or one of these messages."""
        headers: dict[str, str] = {}
        removed: list[str] = []
        metadata: dict[str, Any] = {}
        order: list[str] = []
        body = b""
        while True:
            answer = await self.call.read()
            assert answer is not grpc.aio.EOF, order
            name = answer.WhichOneof("response")
            order.append(name)
            for namespace, values in answer.dynamic_metadata.items():
                metadata[namespace] = dict(values.items())
            if name == "immediate_response":
                mutation = answer.immediate_response.headers
                headers.update(_set(mutation))
                status = answer.immediate_response.status.code
                whole = answer.immediate_response.body
                return Told(headers, removed, metadata, whole, status, order, True)
            if name.endswith("trailers"):
                return Told(headers, removed, metadata, body, 0, order, True)
            common = getattr(answer, name).response
            headers.update(_set(common.header_mutation))
            removed += common.header_mutation.remove_headers
            streamed = common.body_mutation.streamed_response
            body += streamed.body
            if streamed.end_of_stream or name in until:
                return Told(headers, removed, metadata, body, 0, order, streamed.end_of_stream)

    async def request(self, document: Any, **options: Any) -> Told:
        """A whole request in full duplex."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        await self.headers(**options)
        await self.body(body)
        return await self.told()

    async def answer(
        self,
        pieces: Sequence[bytes] = (b"{}",),
        *,
        status: int = 200,
        content_type: str = "application/json",
        served: str = "",
    ) -> Told:
        """A whole answer in full duplex."""
        said = {"x-gateway-destination-endpoint-served": served} if served else {}
        named = [(":status", str(status)), ("content-type", content_type)]
        await self.send(
            {"envoy.lb": said},
            response_headers={"headers": _map(named), "end_of_stream": False},
        )
        for number, piece in enumerate(pieces, 1):
            is_end = number == len(pieces)
            await self.send(response_body={"body": piece, "end_of_stream": is_end})
        return await self.told()

    async def ended(self) -> grpc.StatusCode:
        """The status with which the stream ends."""
        found: grpc.StatusCode = await self.call.code()
        return found


class Proxy:
    """Opens streams.

    Args:
        address: of the picker.
        protos: the module of the messages.

    Attributes:
        watch: calls `Watch` of the picker's health.
    """

    def __init__(self, channel: grpc.aio.Channel, protos: Any) -> None:
        self._protos = protos
        self.channel = channel
        self._process = channel.stream_stream(
            PROCESS,
            request_serializer=protos.ProcessingRequest.SerializeToString,
            response_deserializer=protos.ProcessingResponse.FromString,
        )
        self._check = channel.unary_unary(
            CHECK,
            request_serializer=ext_proc_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=ext_proc_pb2.HealthCheckResponse.FromString,
        )

        self.watch = channel.unary_stream(
            WATCH,
            request_serializer=ext_proc_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=ext_proc_pb2.HealthCheckResponse.FromString,
        )

    def open(self, key: str = "") -> ProxyStream:
        """One more stream."""
        metadata = (("authorization", f"Bearer {key}"),) if key else ()
        return ProxyStream(self._process(metadata=metadata), self._protos.ProcessingRequest)

    async def health(self, service: str) -> int:
        """What the picker says of a service of its own: 1 serves, 2 does not."""
        found = await self._check(ext_proc_pb2.HealthCheckRequest(service=service))
        return int(found.status)


@asynccontextmanager
async def proxy(address: str, protos: Any = ext_proc_pb2) -> AsyncIterator[Proxy]:
    """A proxy's connection."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield Proxy(channel, protos)


def _map(named: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {"headers": [{"key": key, "raw_value": value.encode()} for key, value in named]}


def _set(mutation: Any) -> dict[str, str]:
    assert all(one.append_action == 2 for one in mutation.set_headers), "what a client sent is gone"
    return {one.header.key: one.header.raw_value.decode() for one in mutation.set_headers}


def envoys_own() -> Any:
    """Envoy's own messages; skips the test where they are not installed."""
    places = [str(one) for one in ENVOY.glob("lib/python3*/site-packages")]
    sys.path += places
    try:
        return importlib.import_module("envoy.service.ext_proc.v3.external_processor_pb2")
    except ImportError:
        pytest.skip("no xds-protos are installed (make envoy): Envoy's own messages are not tried")
    finally:
        for one in places:
            sys.path.remove(one)
