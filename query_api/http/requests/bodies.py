"""Reading of request bodies, bounded before they are in memory."""

import asyncio

from starlette.types import Message, Receive

from query_api.http.errors import ClientGoneError, body_too_large
from query_api.http.wire import Headers, header
from schemas.limits import BODY_BYTES_MAX, BODY_DRAIN_BYTES_MAX, BODY_READ_S


async def read_body(receive: Receive, headers: Headers) -> bytes:
    """The whole body of a request.

    Raises:
        RequestError: longer than the bound, by its Content-Length or by what came.
        ClientGoneError: the client left before the end.
    """
    return await complete_body(await receive(), receive, headers)


def is_whole(message: Message) -> bool:
    """Whether this first message is all of a body, and within the bound."""
    return (
        not message.get("more_body", False)
        and message["type"] == "http.request"
        and len(message.get("body", b"")) <= BODY_BYTES_MAX
    )


async def complete_body(first: Message, receive: Receive, headers: Headers) -> bytes:
    """The body whose first message was received already; for the rest see `read_body`.

    A body that is too large is read on up to a bound and discarded: most clients write all of their
    body before they look for an answer, and a connection closed under them would hide it.
    """
    if is_whole(first):
        return _chunk(first)[0]
    try:
        async with asyncio.timeout(BODY_READ_S):
            return await _complete(first, receive, headers)
    except TimeoutError as error:
        raise ClientGoneError(f"the body took longer than {BODY_READ_S:.0f} s") from error


async def _complete(first: Message, receive: Receive, headers: Headers) -> bytes:
    body, more = _chunk(first)
    if not more:
        raise body_too_large()
    if _declared(headers) > BODY_BYTES_MAX:
        await _drain(receive, len(body))
        raise body_too_large()
    return await _collect(receive, body)


def _chunk(message: Message) -> tuple[bytes, bool]:
    """One piece of the body, and whether more is to come."""
    if message["type"] != "http.request":
        raise ClientGoneError("the client left before its request was complete")
    return message.get("body", b""), message.get("more_body", False)


async def _collect(receive: Receive, first: bytes) -> bytes:
    chunks = [first]
    size = len(first)
    more = True
    while more and size <= BODY_BYTES_MAX:
        chunk, more = _chunk(await receive())
        chunks.append(chunk)
        size += len(chunk)
    if size <= BODY_BYTES_MAX:
        return b"".join(chunks)
    chunks.clear()
    if more:
        await _drain(receive, size)
    raise body_too_large()


async def _drain(receive: Receive, size: int) -> None:
    more = True
    while more and size <= BODY_DRAIN_BYTES_MAX:
        chunk, more = _chunk(await receive())
        size += len(chunk)


def _declared(headers: Headers) -> int:
    """The Content-Length; 0 where there is none that can be read."""
    value = header(headers, b"content-length")
    return int(value) if value.isdigit() and len(value) < 20 else 0
