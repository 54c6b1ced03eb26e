"""Reading of request bodies, bounded before they are in memory: each, all together, and in time."""

import asyncio
from collections import Counter
from typing import Final

from starlette.types import Message, Receive

from query_api.bounds import BODY_PIECE_BYTES, BODY_PIECE_S
from query_api.http.errors import (
    ClientGoneError,
    RequestError,
    body_too_large,
    body_too_slow,
    no_room_for_body,
)
from query_api.http.wire import Headers, header
from schemas.limits import BODY_BYTES_MAX, BODY_READ_S, KIB, MIB

BODY_DRAIN_BYTES_MAX: Final = 2 * BODY_BYTES_MAX  # of a larger body, which is read for its 413

# Of all bodies that have come in part, by reprise_http_bodies_refused_total{reason="no_room"} and
# status="503". What has come whole at once is read as it comes. A body of up to BODY_SMALL_BYTES is
# taken as long as there is any room, a larger one up to BODIES_LARGE_BYTES_MAX.
BODIES_BYTES_MAX: Final = 256 * MIB  # of all of them
BODIES_LARGE_BYTES_MAX: Final = 192 * MIB  # of all, while a body is large
BODY_SMALL_BYTES: Final = 64 * KIB  # of a body that is small

assert BODY_BYTES_MAX <= BODIES_LARGE_BYTES_MAX < BODIES_BYTES_MAX, "the largest body has room"
assert BODY_DRAIN_BYTES_MAX > BODY_BYTES_MAX, "a body a little too large is read to its end"

NO_ROOM: Final = "no_room"
TOO_SLOW: Final = "too_slow"


def is_whole(message: Message) -> bool:
    """Whether this first message is all of a body, and within the bound."""
    return (
        not message.get("more_body", False)
        and message["type"] == "http.request"
        and len(message.get("body", b"")) <= BODY_BYTES_MAX
    )


class Bodies:
    """The bodies of one app. What is whole with its first message costs nothing here.

    Of the others no more than BODIES_BYTES_MAX is kept, of which the large ones may take
    BODIES_LARGE_BYTES_MAX, so that small ones find room beside them. On top come one body that is
    complete and being answered, twice, and what the server has read before the app has.

    Attributes:
        held_bytes: of bodies whose end has not come.
        refused: how many were, by reason: `no_room` and `too_slow`.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self.refused: Counter[str] = Counter()

    async def read(self, receive: Receive, headers: Headers) -> bytes:
        """The whole body of a request.

        Raises:
            RequestError: longer than the bound, by its Content-Length or by what came; too slow;
                or no room for it.
            ClientGoneError: the client left before the end.
        """
        return await self.complete(await receive(), receive, headers)

    async def complete(self, first: Message, receive: Receive, headers: Headers) -> bytes:
        """The body whose first message was received already; for the rest see `read`.

        A body that is refused is read on up to a bound and discarded: most clients write all of
        their body before they look for an answer, and a connection closed under them would hide it.
        """
        if is_whole(first):
            whole: bytes = first.get("body", b"")
            return whole
        pieces: _Pieces | None = None
        try:
            async with asyncio.timeout(BODY_PIECE_S) as until:
                pieces = _Pieces(first, receive, until)
                return await self._complete(pieces, headers)
        except TimeoutError as error:
            if pieces is not None and pieces.refused is not None:
                raise pieces.refused from error  # it was counted under that reason
            self.refused[TOO_SLOW] += 1
            raise body_too_slow() from error

    async def _complete(self, pieces: "_Pieces", headers: Headers) -> bytes:
        if _declared(headers) > BODY_BYTES_MAX:
            raise await pieces.drained(body_too_large())
        chunks: list[bytes] = []
        held = 0
        has_room = True
        try:
            while pieces.more and pieces.size <= BODY_BYTES_MAX and has_room:
                chunks.append(await pieces.next())
                self.held_bytes += pieces.size - held
                held = pieces.size
                has_room = self._has_room(held)
        finally:
            self.held_bytes -= held
        if not pieces.more and held <= BODY_BYTES_MAX:
            return b"".join(chunks)
        chunks.clear()
        if not has_room:
            self.refused[NO_ROOM] += 1
        raise await pieces.drained(body_too_large() if has_room else no_room_for_body())

    def _has_room(self, size: int) -> bool:
        is_small = size <= BODY_SMALL_BYTES
        return self.held_bytes <= (BODIES_BYTES_MAX if is_small else BODIES_LARGE_BYTES_MAX)


class _Pieces:
    """What comes of one body: each BODY_PIECE_BYTES in time, and all of it. Keeps none of it.

    Attributes:
        size: of what has come.
        more: whether more is to come.
        refused: why it was refused, once it was; the rest is discarded.
    """

    def __init__(self, first: Message, receive: Receive, until: asyncio.Timeout) -> None:
        self.size = 0
        self.more = True
        self.refused: RequestError | None = None
        self._first: Message | None = first
        self._receive = receive
        self._until = until
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + BODY_READ_S
        self._missing_bytes = BODY_PIECE_BYTES

    async def next(self) -> bytes:
        """The next of it."""
        first, self._first = self._first, None
        message = await self._receive() if first is None else first
        if message["type"] != "http.request":
            raise ClientGoneError("the client left before its request was complete")
        self.more = message.get("more_body", False)
        chunk: bytes = message.pop("body", b"")  # whoever else has the first message, has no body
        self.size += len(chunk)
        self._missing_bytes -= len(chunk)
        if self._missing_bytes <= 0:
            self._missing_bytes = BODY_PIECE_BYTES
            self._until.reschedule(min(self._loop.time() + BODY_PIECE_S, self._end))
        return chunk

    async def drained(self, refused: RequestError) -> RequestError:
        """Reads on, up to a bound; returns why the body was refused."""
        self.refused = refused
        while self.more and self.size <= BODY_DRAIN_BYTES_MAX:
            await self.next()
        return refused


def _declared(headers: Headers) -> int:
    """The Content-Length; 0 where there is none that can be read."""
    value = header(headers, b"content-length")
    return int(value) if value.isdigit() and len(value) < 20 else 0
