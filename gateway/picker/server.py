"""gRPC: the streams of proxies and the probes of who watches; one loop, that of the gateway.

Messages are taken and given as bytes, so that one that cannot be decoded is counted here, and not
logged by the library with its stack.
"""

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from gateway.errors import GatewayError
from gateway.exchange import ExchangeParts
from gateway.picker import answers
from gateway.picker.bounds import (
    PICKER_CONNECTIONS_MAX,
    PICKER_HEALTH_S,
    PICKER_MESSAGE_BYTES_MAX,
    PICKER_SPARE_CALLS,
    PICKER_STREAM_S,
    PICKER_STREAMS_MAX,
    PICKER_WATCHES_MAX,
    PICKER_WRITE_S,
)
from gateway.picker.messages.ext_proc_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    ProcessingRequest,
    ProcessingResponse,
)
from gateway.picker.picked_request import OrderError, PickedRequest, State
from query_api.access.errors import AccessError
from query_api.access.guard import Guard
from query_api.access.rights import OPEN, Access, Right
from query_api.grpc.credentials import GrpcTls, server_credentials
from query_api.grpc.key_check import status_of
from query_api.ports import View
from schemas.causes import cause_of
from schemas.errors import ConfigurationError

EXTERNAL_PROCESSOR: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH: Final = "grpc.health.v1.Health"
LIVENESS: Final = "liveness"
_READY: Final = frozenset({"", "readiness", EXTERNAL_PROCESSOR})
PICKER_GRACE_S: Final = 4.0  # for the answers under way, at the end
PICKER_KEEPALIVE_S: Final = 60.0  # without a message; a proxy that answers no ping is gone

logger = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # else two servers could have one port
    ("grpc.max_receive_message_length", PICKER_MESSAGE_BYTES_MAX),
    ("grpc.max_concurrent_streams", PICKER_STREAMS_MAX),
    ("grpc.max_allowed_incoming_connections", PICKER_CONNECTIONS_MAX),
    ("grpc.keepalive_time_ms", int(1000 * PICKER_KEEPALIVE_S)),
    ("grpc.keepalive_timeout_ms", int(1000 * PICKER_WRITE_S)),
)


class PickerServer:
    """See the module.

    Args:
        guard: who may ask; None: everybody.
        session_cookie: that names a session; "" for none.

    Attributes:
        address: where it listens, HOST:PORT; "" for nowhere.
        watches: calls that watch its health.
        results: requests, by what became of them: `picked`, or why they were refused.
        ended: streams, by why.
        elsewhere: requests that a proxy sent to another engine than the chosen one.
        faults: unexpected errors.
    """

    def __init__(
        self,
        parts: ExchangeParts,
        view: View,
        guard: Guard | None = None,
        *,
        session_cookie: str = "",
    ) -> None:
        self.address = ""
        self.streams = 0
        self.watches = 0
        self.results: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.elsewhere = 0
        self.faults = 0
        self._parts = parts
        self._view = view
        self._guard = None if guard is None or guard.is_open else guard
        self._session_cookie = session_cookie
        self._server: grpc.aio.Server | None = None
        self._closing = asyncio.Event()

    async def open(self, listening: socket.socket, tls: GrpcTls | None) -> None:
        """Begins to answer; on the loop.

        Args:
            listening: bound to the address, which the library binds itself: it is closed.
            tls: how it is encrypted; None: it is not.

        Raises:
            ConfigurationError: another process took the address meanwhile.
        """
        host, port = listening.getsockname()[:2]
        listening.close()
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        # The library writes to stderr what we say in better words.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        server = grpc.aio.server(
            options=_OPTIONS, maximum_concurrent_rpcs=PICKER_STREAMS_MAX + PICKER_SPARE_CALLS
        )
        process: Any = grpc.stream_stream_rpc_method_handler(self._process)
        check: Any = grpc.unary_unary_rpc_method_handler(self._check)
        watch: Any = grpc.unary_stream_rpc_method_handler(self._watch)
        server.add_generic_rpc_handlers(
            (
                _service(EXTERNAL_PROCESSOR, {"Process": process}),
                _service(HEALTH, {"Check": check, "Watch": watch}),
            )
        )
        try:
            if tls is None:
                server.add_insecure_port(address)
            else:
                server.add_secure_port(address, server_credentials(tls))
        except RuntimeError as error:
            raise ConfigurationError(
                f"Cannot listen on {address}. Stop what listens there, or choose another address"
                f" with --ext-proc: {cause_of(error)}"
            ) from error
        self._server = server
        await server.start()
        self.address = address
        logger.info("The endpoint picker listens on %s", address)

    async def close(self, *, is_forced: bool) -> None:
        """Ends, once what is under way is answered or PICKER_GRACE_S are over; at once, where it is
        forced.
        """
        self._closing.set()
        if self._server is not None:
            await self._server.stop(None if is_forced else PICKER_GRACE_S)

    # Health

    async def _check(self, message: bytes, context: Context) -> bytes:
        status = self._health(await _service_of(message, context))
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            text = f"Expected {LIVENESS}, readiness or {EXTERNAL_PROCESSOR}, got another service"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        return HealthCheckResponse(status=status).SerializeToString()

    async def _watch(self, message: bytes, context: Context) -> None:
        """Tells the status, and each change of it, to a proxy that keeps the call open."""
        service = await _service_of(message, context)
        if self.watches >= PICKER_WATCHES_MAX:
            text = f"Expected at most {PICKER_WATCHES_MAX} calls of Watch at once, got more: Check"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self.watches += 1
        told = None
        try:
            while told is None or not self._closing.is_set():
                status = self._health(service)
                if status != told:
                    async with asyncio.timeout(PICKER_WRITE_S):
                        await context.write(HealthCheckResponse(status=status).SerializeToString())
                    told = status
                with suppress(TimeoutError):
                    async with asyncio.timeout(PICKER_HEALTH_S):
                        await self._closing.wait()
        except (TimeoutError, grpc.aio.InternalError):  # the status is not taken, or the call over
            return
        finally:
            self.watches -= 1

    def _health(self, service: str) -> "HealthCheckResponse.ServingStatus":
        if service == LIVENESS:
            return HealthCheckResponse.SERVING
        if service not in _READY:
            return HealthCheckResponse.SERVICE_UNKNOWN
        if self._view.ready or self._parts.fleet.models():
            return HealthCheckResponse.SERVING
        return HealthCheckResponse.NOT_SERVING

    # Streams

    async def _process(self, requests: object, context: Context) -> None:
        try:
            access = self._admit(context)
        except AccessError as error:
            self.ended["no_access"] += 1
            await context.abort(status_of(error), f"{error.reason}: {error.message}")
        if self.streams >= PICKER_STREAMS_MAX:
            self.ended["too_many_streams"] += 1
            text = f"Expected at most {PICKER_STREAMS_MAX} requests under way at once, got more"
            full = GatewayError(503, "too_many_streams", text, headers={"retry-after": "1"})
            await self._write([answers.refusal(full)], context)
            return
        self.streams += 1
        request = PickedRequest(self._parts, access, session_cookie=self._session_cookie)
        why = "gone"  # unless it ends by itself
        status = None
        try:
            why = await self._converse(request, context)
        except OrderError as error:
            why = "malformed"
            status = grpc.StatusCode.INVALID_ARGUMENT, str(error)
        except Exception:
            why = "internal_error"
            status = grpc.StatusCode.INTERNAL, "The picker has failed; its log says why"
            self.faults += 1
            logger.exception("Unexpected error in the endpoint picker; its proxy is told INTERNAL")
        finally:
            self.streams -= 1
            if why == "gone" and request.state is State.ENDED:
                why = "complete"  # the proxy needs no more
            request.end()
            self.ended[why] += 1
            self.elsewhere += request.is_elsewhere
            if request.result:
                self.results[request.result] += 1
        if status is not None:
            with suppress(grpc.aio.InternalError):  # the stream is over
                await context.abort(*status)

    def _admit(self, context: Context) -> Access:
        """Raises AccessError where the proxy may not ask."""
        if self._guard is None:
            return OPEN
        given: str | bytes = dict(context.invocation_metadata() or ()).get("authorization", "")
        key = given if isinstance(given, bytes) else given.encode()
        return self._guard.admit(key, "", Right.ROUTE)

    async def _converse(self, request: PickedRequest, context: Context) -> str:
        """Why the stream ended, in one word.

        Raises:
            OrderError: a message may not come, or is none.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + PICKER_STREAM_S
        while True:
            try:
                until = min(loop.time() + request.patience_s, end)
                async with asyncio.timeout_at(until):
                    message = await context.read()
            except TimeoutError:
                if loop.time() >= end:
                    return "too_long"
                is_waiting = request.state in (State.OPENED, State.TAKING)
                await self._write(request.late(), context)
                return "too_slow" if is_waiting else "silent"
            if not isinstance(message, bytes):  # the library's end of a stream
                return "complete" if request.state is State.ENDED else "gone"
            told = await request.take(_decoded(message))
            if why := await self._write(told, context):
                return why
            if told and told[-1].HasField("immediate_response"):
                return "refused"

    @staticmethod
    async def _write(told: Iterable[ProcessingResponse], context: Context) -> str:
        """Why the proxy has not taken it, in one word; "" where it has."""
        try:
            for one in told:
                async with asyncio.timeout(PICKER_WRITE_S):
                    await context.write(one.SerializeToString())
        except TimeoutError:
            return "unread"
        except grpc.aio.InternalError:  # the stream is over, which this task has yet to hear
            return "gone"
        return ""


async def _service_of(message: bytes, context: Context) -> str:
    """The service whose health is asked for; ends the call where the message names none."""
    try:
        return HealthCheckRequest.FromString(message).service
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Expected a HealthCheckRequest")


def _decoded(message: bytes) -> ProcessingRequest:
    try:
        return ProcessingRequest.FromString(message)
    except DecodeError as error:
        raise OrderError(f"a message {EXTERNAL_PROCESSOR} understands") from error


def _service(name: str, methods: Mapping[str, Any]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(name, dict(methods))
