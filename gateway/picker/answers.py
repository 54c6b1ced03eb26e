"""What a proxy is told, as messages. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from gateway.errors import GatewayError, error_body
from gateway.fleet import EngineTarget
from gateway.picker.bounds import PICKER_PIECE_BYTES
from gateway.picker.endpoint import endpoint_of
from gateway.picker.messages.ext_proc_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    HeaderValue,
    HeaderValueOption,
    HttpStatus,
    ImmediateResponse,
    ProcessingResponse,
    StreamedBodyResponse,
)

DESTINATION: Final = "x-gateway-destination-endpoint"
_NAMESPACE: Final = "envoy.lb"
_RANK: Final = "x-data-parallel-rank"
_TENANT: Final = "x-reprise-tenant"
_OVERWRITE: Final = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def destination(engines: Sequence[EngineTarget], *, is_body: bool) -> ProcessingResponse:
    """Where a request goes, in a header and in metadata.

    Args:
        engines: the first is to take it, the others in order where it does not.
        is_body: whether it answers a body, which was kept; else headers.
    """
    value = ",".join(endpoint_of(one.base_url) for one in engines)
    headers = [(DESTINATION.encode(), value.encode())]
    removed = [_TENANT]
    if engines[0].has_ranks:
        headers.append((_RANK.encode(), str(engines[0].key[1]).encode()))
    else:
        removed.append(_RANK)
    common = CommonResponse(header_mutation=_mutation(headers, removed), clear_route_cache=True)
    if is_body:
        answer = ProcessingResponse(request_body=BodyResponse(response=common))
    else:
        answer = ProcessingResponse(request_headers=HeadersResponse(response=common))
    answer.dynamic_metadata.update({_NAMESPACE: {DESTINATION: value}})
    return answer


def unchanged(name: str) -> ProcessingResponse:
    """The answer to headers, trailers, or a piece of a body that stays as it is.

    Args:
        name: of the field that came.
    """
    answer = ProcessingResponse()
    getattr(answer, name).SetInParent()
    return answer


def response_headers(headers: Iterable[tuple[bytes, bytes]]) -> ProcessingResponse:
    """The answer's headers with these beside them."""
    common = CommonResponse(header_mutation=_mutation(headers, ()))
    return ProcessingResponse(response_headers=HeadersResponse(response=common))


def streamed(name: str, body: bytes, *, is_end: bool) -> list[ProcessingResponse]:
    """What passes of a body in full duplex; nothing where nothing does, and more is to come.

    Args:
        name: `request_body` or `response_body`.
        body: a piece.
    """
    starts = range(0, len(body), PICKER_PIECE_BYTES) if body else range(1 if is_end else 0)
    found = []
    for start in starts:
        piece = body[start : start + PICKER_PIECE_BYTES]
        is_last = is_end and start + PICKER_PIECE_BYTES >= len(body)
        passed = StreamedBodyResponse(body=piece, end_of_stream=is_last)
        common = CommonResponse(body_mutation=BodyMutation(streamed_response=passed))
        answer = ProcessingResponse()
        getattr(answer, name).CopyFrom(BodyResponse(response=common))
        found.append(answer)
    return found


def refusal(error: GatewayError) -> ProcessingResponse:
    """What the client is answered in place of an engine's answer."""
    headers = [(b"content-type", b"application/json")]
    headers += [(name.encode(), value.encode()) for name, value in error.headers.items()]
    return ProcessingResponse(
        immediate_response=ImmediateResponse(
            status=HttpStatus(code=error.status),
            headers=_mutation(headers, ()),
            body=error_body(error),
            details=f"reprise_{error.code}",
        )
    )


def _mutation(headers: Iterable[tuple[bytes, bytes]], removed: Sequence[str]) -> HeaderMutation:
    options = [
        HeaderValueOption(
            header=HeaderValue(key=name.decode(), raw_value=value), append_action=_OVERWRITE
        )
        for name, value in headers
    ]
    return HeaderMutation(set_headers=options, remove_headers=removed)
