"""The calls that routers make: which method is answered by what, within which bounds.

Messages are taken and given as bytes, so that one that cannot be decoded is answered and counted
here, and not logged by the library with its stack.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import grpc.aio

from query_api.grpc.bounds import GRPC_STREAMS_MAX, GRPC_WRITE_S
from query_api.grpc.counts import GrpcCounts
from query_api.grpc.grpc_settings import GrpcSettings
from query_api.grpc.holders import Holders
from query_api.grpc.kv_indexer import KvIndexer
from query_api.grpc.radix_index import RadixIndex
from query_api.grpc.refusals import (
    GrpcRefusal,
    expired,
    internal,
    not_read,
    not_ready,
    not_served,
    too_many_streams,
)
from query_api.grpc.traces import begin_query, parent_of
from query_api.ports import View
from schemas.clock import REAL_CLOCK
from schemas.tracing import NO_TRACER, Span, Tracer

logger = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Answer = Callable[[bytes, Span], bytes]

KV_INDEXER: Final = "kv_indexer.v1.KVIndexer"
RADIX_INDEX: Final = "radix_index.RadixIndex"

_KV_INDEXER_ELSEWHERE: Final = (
    "ConfigureExpectedWorkers",
    "ReplaceExternalKvSnapshot",
    "ApplyExternalKvBatch",
    "MatchExternalKv",
    "GetExternalKvHitCounts",
)
_RADIX_INDEX_ELSEWHERE: Final = ("Pull", "Digests", "PullHolders")


class Calls:
    """What both services answer from one table.

    Args:
        only_exact: whether publishers are left out that are not `exact`.
        tracer: makes the spans of queries whose call has a `traceparent`.
        monotonic: seconds.
    """

    def __init__(
        self,
        view: View,
        counts: GrpcCounts,
        settings: GrpcSettings,
        *,
        only_exact: bool,
        tracer: Tracer = NO_TRACER,
        monotonic: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        self._view = view
        self._monotonic = monotonic
        self._tracer = tracer
        self._counts = counts
        holders = Holders(view)
        self._kv_indexer = KvIndexer(view, holders, counts, settings, only_exact=only_exact)
        self._radix_index = RadixIndex(view, holders, counts, settings, only_exact=only_exact)

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """Of both services."""
        kv_indexer = {
            "MatchExternalKvPrefix": self._unary(
                KV_INDEXER, "MatchExternalKvPrefix", self._kv_indexer.match_prefix
            )
        } | {
            method: self._refused(
                method,
                not_served(
                    method,
                    "Reprise follows engines itself: register each with POST /register, and ask"
                    " for MatchExternalKvPrefix",
                ),
            )
            for method in _KV_INDEXER_ELSEWHERE
        }
        radix_index = {
            "Subscribe": self._stream(
                RADIX_INDEX, "Subscribe", self._radix_index.match, is_query=True
            ),
            "Publish": self._stream(
                RADIX_INDEX, "Publish", self._radix_index.acknowledge, is_query=False
            ),
        } | {
            method: self._refused(
                method,
                not_served(method, "Reprise is no replica of a radix index, and none of it is"),
            )
            for method in _RADIX_INDEX_ELSEWHERE
        }
        return (_service(KV_INDEXER, kv_indexer), _service(RADIX_INDEX, radix_index))

    def _unary(self, service: str, method: str, answer: Answer) -> Any:
        async def call(message: bytes, context: Context) -> bytes:
            began = self._monotonic()
            try:
                with begin_query(self._tracer, service, method, self._parent(context)) as span:
                    reply = self._answered(answer, message, context, span)
            except GrpcRefusal as refusal:
                await self._abort(method, refusal, context)
            self._counts.calls[method, grpc.StatusCode.OK.name] += 1
            self._counts.observe(method, self._monotonic() - began)
            return reply

        return grpc.unary_unary_rpc_method_handler(call)

    def _stream(self, service: str, method: str, answer: Answer, *, is_query: bool) -> Any:
        async def call(requests: AsyncIterator[bytes], context: Context) -> None:
            if self._counts.streams >= GRPC_STREAMS_MAX:
                await self._abort(method, too_many_streams(GRPC_STREAMS_MAX), context)
            self._counts.streams += 1
            status = grpc.StatusCode.CANCELLED  # unless it ends by itself
            parent = self._parent(context) if is_query else ""
            try:
                async for message in requests:
                    began = self._monotonic()
                    with begin_query(self._tracer, service, method, parent) as span:
                        reply = self._answered(answer, message, context, span)
                    if is_query:
                        self._counts.observe(method, self._monotonic() - began)
                    async with asyncio.timeout(GRPC_WRITE_S):
                        await context.write(reply)
                status = grpc.StatusCode.OK
            except TimeoutError:
                status = not_read().code
                await self._abort(method, not_read(), context)
            except GrpcRefusal as refusal:
                status = refusal.code
                await self._abort(method, refusal, context)
            finally:
                self._counts.streams -= 1
                if status in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED):
                    self._counts.calls[method, status.name] += 1

        return grpc.stream_stream_rpc_method_handler(call)

    def _refused(self, method: str, refusal: GrpcRefusal) -> Any:
        """A method that is not served; whether it would stream matters to nobody then."""

        async def call(requests: AsyncIterator[bytes], context: Context) -> None:
            await self._abort(method, refusal, context)

        return grpc.stream_stream_rpc_method_handler(call)

    def _parent(self, context: Context) -> str:
        return parent_of(context.invocation_metadata() or ()) if self._tracer.is_on else ""

    def _answered(self, answer: Answer, message: bytes, context: Context, span: Span) -> bytes:
        """The answer.

        Raises:
            GrpcRefusal: there is none.
        """
        left_s: float | None = context.time_remaining()  # None without a deadline
        if left_s is not None and left_s <= 0:
            raise expired()
        if not self._view.ready:
            raise not_ready()
        try:
            return answer(message, span)
        except GrpcRefusal:
            raise
        except Exception as error:
            logger.exception("Unexpected error in a gRPC call; its client is answered INTERNAL")
            raise internal() from error

    async def _abort(self, method: str, refusal: GrpcRefusal, context: Context) -> NoReturn:
        self._counts.refused[refusal.reason] += 1
        self._counts.calls[method, refusal.code.name] += 1
        await context.abort(refusal.code, refusal.text)


def _service(name: str, methods: Mapping[str, Any]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(name, dict(methods))
