"""Servers that stream, and what released ones streamed."""

import json
import queue
from collections.abc import Iterator
from concurrent import futures
from typing import Any, NamedTuple

import grpc

from schemas.registration import PublisherKind, Registration
from tests.unit.bridge.messages import VECTORS, VLLM

SERVICE = "vllm.grpc.engine.VllmEngine"


class Streamed(NamedTuple):
    """One message of a stream, and what its engine had published."""

    case: str
    kind: PublisherKind
    frames: list[bytes]
    message: bytes


def streamed(name: str) -> list[Streamed]:
    lines = (VECTORS / "streams" / f"{name}.jsonl").read_text().splitlines()
    return [
        Streamed(
            one["case"],
            PublisherKind(one["type"]),
            [bytes.fromhex(frame) for frame in one["frames_hex"]],
            bytes.fromhex(one["message_hex"]),
        )
        for one in map(json.loads, lines)
    ]


def message_of(case: str, name: str = "smg-0.14.1") -> bytes:
    return next(one.message for one in streamed(name) if one.case == case)


class StreamServer:
    """Streams what it is told to; one call at a time may be under way beside another.

    Args:
        sources: what it answers to who asks where its engine publishes; b"" for nothing.

    Attributes:
        requests: that came, in order.
        answers: what each call gets, in order: messages, and how it ends: None where it goes on
            until `send` ends it.
        ended: how many calls have ended.
        pings: questions of LMCache's that came, in order.
    """

    def __init__(
        self, service: str = SERVICE, port: int = 0, *, streams: bool = True, sources: bytes = b""
    ) -> None:
        self.requests: list[bytes] = []
        self.answers: list[tuple[list[bytes], grpc.StatusCode | None]] = []
        self.ended = 0
        self.live: list[queue.SimpleQueue[bytes | grpc.StatusCode]] = []
        self._server = grpc.server(
            futures.ThreadPoolExecutor(8), options=[("grpc.max_send_message_length", -1)]
        )
        self.pings: list[bytes] = []
        calls: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        if streams:
            calls["SubscribeKvEvents"] = grpc.unary_stream_rpc_method_handler(self._stream)
        if sources:
            calls["GetKvEventSources"] = grpc.unary_unary_rpc_method_handler(
                lambda request, context: sources
            )
        ping: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        ping["Ping"] = grpc.unary_unary_rpc_method_handler(self._ping)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(service, calls),
                grpc.method_handlers_generic_handler("lmcache.mp.ManagementService", ping),
            )
        )
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    def _ping(self, request: bytes, context: Any) -> bytes:
        self.pings.append(request)
        return b""

    def _stream(self, request: bytes, context: Any) -> Iterator[bytes]:
        live: queue.SimpleQueue[bytes | grpc.StatusCode] = queue.SimpleQueue()
        self.requests.append(request)
        messages, code = self.answers.pop(0) if self.answers else ([], None)
        self.live.append(live)
        context.add_callback(lambda: self._end(live))
        context.send_initial_metadata(())
        yield from messages
        while code is None:
            said = live.get()
            if isinstance(said, bytes):
                yield said
            else:
                code = said
        context.abort(code, "for a test")

    def _end(self, live: "queue.SimpleQueue[bytes | grpc.StatusCode]") -> None:
        self.ended += 1
        live.put(grpc.StatusCode.CANCELLED)

    def send(self, message: bytes | grpc.StatusCode) -> None:
        """Over the call that came last; a status ends it."""
        self.live[-1].put(message)

    def stop(self) -> None:
        self._server.stop(0).wait()


def registration(port: int, kind: PublisherKind = VLLM, *, dp_rank: int = 0) -> Registration:
    return Registration(
        endpoint=f"grpc://127.0.0.1:{port}",
        kind=kind,
        model_name="m",
        instance_id="w-1",
        block_size=4,
        dp_rank=dp_rank,
        kv_cache_groups="one",
        kv_cache_report_mode="incremental" if kind == VLLM else "",
    )
