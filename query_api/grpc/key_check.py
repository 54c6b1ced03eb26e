"""Keys of gRPC's callers: `authorization: Bearer rk_...` in the metadata of each call."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from query_api.access.errors import AccessError
from query_api.access.guard import Guard
from query_api.access.rights import Right

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"


class KeyCheck(grpc.aio.ServerInterceptor):
    """Lets calls through whose key may ask about the tenant that is asked by gRPC.

    A stream is asked once, when it is opened: it goes on when its key is revoked meanwhile.
    """

    def __init__(self, guard: Guard, tenant_id: str) -> None:
        """Args:
        guard: of the gRPC server alone.
        tenant_id: whose publishers are asked; see `GrpcSettings`.
        """
        self._guard = guard
        self._tenant_id = tenant_id

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        given = dict(handler_call_details.invocation_metadata or ())
        text = given.get("authorization", "")
        try:
            header = text if isinstance(text, bytes) else text.encode()
            self._guard.admit(header, "", Right.QUERY).tenant_of(self._tenant_id)
        except AccessError as error:
            return _refused(handler, error)
        return handler


def status_of(error: AccessError) -> grpc.StatusCode:
    """What a caller without access is told."""
    return {
        401: grpc.StatusCode.UNAUTHENTICATED,
        429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    }.get(error.status, grpc.StatusCode.PERMISSION_DENIED)


def _refused(handler: Handler, error: AccessError) -> Handler:
    code = status_of(error)

    async def refuse(_: object, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        await context.abort(code, f"{error.reason}: {error.message}")

    if handler is not None and handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(refuse)
    return grpc.unary_unary_rpc_method_handler(refuse)
