"""A `POST` route that is served in front of the app of all others.

A framework costs 70 to 190 us a request, this about 10. What it would do is done here: the body's
bound, content types, errors in the shape of all the others, metrics.
"""

import logging
import re
from abc import ABC, abstractmethod
from typing import Final, NamedTuple

from starlette.types import Receive, Scope, Send

from query_api.access.errors import AccessError
from query_api.access.rights import OPEN, Access
from query_api.http.caller import IS_PLAIN, access_of
from query_api.http.errors import (
    INTERNAL,
    ClientGoneError,
    RequestError,
    unsupported_content_type,
)
from query_api.http.metrics import HttpMetrics
from query_api.http.requests.bodies import Bodies, is_whole
from query_api.http.text_bodies import TextBodies
from query_api.http.wire import Wire, body_wire, content_type_of, encode, encode_error
from schemas.errors import RepriseError
from streams.kernel.interface import BodyForm

HttpHeaders = list[tuple[bytes, bytes]]

CLIENT_GONE: Final = 499
_REQUEST_ID: Final = re.compile(rb"[\x20-\x7e]{1,256}")
_OCTETS_TYPE: Final = b"application/octet-stream"
_FORMS: Final = {Wire.JSON: BodyForm.JSON, Wire.MSGPACK: BodyForm.MSGPACK}
_WIRES: Final = {form: wire for wire, form in _FORMS.items()} | {BodyForm.OCTETS: Wire.JSON}
TYPE_HEADERS: Final = {wire: (b"content-type", content_type_of(wire)) for wire in Wire}
logger = logging.getLogger(__name__)


class PostRequest(NamedTuple):
    """One request.

    Attributes:
        body: all of it.
        url_query: what stands behind the `?`.
        headers: as they came.
        missing: why its text has no tokens; see `TextAsTokens`.
        is_proven: whether engines are known to make these tokens of its text; see `TextAsTokens`.
    """

    path: str
    wire: Wire
    form: BodyForm
    body: bytes
    url_query: bytes
    headers: HttpHeaders
    access: Access = OPEN
    missing: str = ""
    is_proven: bool = True


class PostAnswer(NamedTuple):
    """Its answer; `content-length` and `x-request-id` come on top of the headers.

    Attributes:
        is_plain: whether the listener might have given it, and may have the connection.
    """

    status: int
    headers: HttpHeaders
    body: bytes
    is_plain: bool = False


class PostEndpoint(ABC):
    """Serves POST requests of some paths."""

    takes_octets = True
    """Whether a body may be nothing but tokens or hashes."""

    text_paths: frozenset[str] = frozenset()
    """The paths whose bodies may have text for tokens."""

    goes_by_load = False
    """Whether text of which no tokens can be made is answered all the same."""

    def __init__(
        self,
        bodies: Bodies,
        default_wire: Wire,
        metrics: HttpMetrics,
        text: TextBodies | None = None,
    ) -> None:
        """Args:
        default_wire: of requests that name none.
        text: makes tokens of text; None: nothing does.
        """
        self._bodies = bodies
        self._default_wire = default_wire
        self._metrics = metrics
        self._text = text

    @property
    @abstractmethod
    def paths(self) -> frozenset[str]:
        """The paths whose POST requests come here."""

    @abstractmethod
    async def answer(self, posted: PostRequest) -> PostAnswer:
        """The answer to a request.

        Raises:
            RepriseError: it has none; the client is told.
        """

    async def serve(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one POST request of one of the paths."""
        content_type = b""
        request_id: bytes | None = None
        for name, value in scope["headers"]:
            if name == b"content-type":
                content_type = value
            elif name == b"x-request-id":
                request_id = value
        form = self._body_form(content_type)
        wire = self._default_wire if form is None else _WIRES[form]
        try:
            if form is None:
                raise unsupported_content_type(content_type)
            message = await receive()
            if is_whole(message):
                body = message.get("body", b"")
            else:
                body = await self._bodies.complete(message, receive, scope["headers"])
            url_query: bytes = scope.get("query_string", b"")
            access = access_of(scope)
            posted = PostRequest(path, wire, form, body, url_query, scope["headers"], access)
            status, headers, answer, is_plain = await self._answer_any(posted)
            del posted
            if is_plain and "state" in scope:
                scope["state"][IS_PLAIN] = True
        except ClientGoneError:
            self._metrics.count_request(path, CLIENT_GONE)
            return
        except RepriseError as error:
            status, answer = encode_error(error, wire)
            headers = [TYPE_HEADERS[wire]]
            if isinstance(error, RequestError | AccessError):
                headers += [(k.encode(), v.encode()) for k, v in error.headers.items()]
        except Exception:
            logger.exception("Unexpected error in route %s; its client is answered 500", path)
            status, answer = 500, encode(INTERNAL, wire)
            headers = [TYPE_HEADERS[wire]]
        body = b""  # a client that does not read its answer holds no body
        message = {}
        self._metrics.count_request(path, status)
        headers.append((b"content-length", b"%d" % len(answer)))
        if request_id is not None and _REQUEST_ID.fullmatch(request_id):
            headers.append((b"x-request-id", request_id))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _answer_any(self, posted: PostRequest) -> PostAnswer:
        """The answer; text is made tokens of once the body was refused for it."""
        try:
            return await self.answer(posted)
        except RequestError:
            if self._text is None or posted.path not in self.text_paths:
                raise
            if posted.form is BodyForm.OCTETS:
                raise
            found = await self._text.translated(
                posted.body, posted.wire, posted.access, by_load=self.goes_by_load
            )
            if found is None:
                raise
        posted = posted._replace(body=found.body, missing=found.missing, is_proven=found.is_proven)
        status, headers, body, _ = await self.answer(posted)
        return PostAnswer(status, [*headers, found.header], body)

    def _body_form(self, content_type: bytes) -> BodyForm | None:
        """What a body is; None for what the route does not speak."""
        wire = body_wire(content_type, self._default_wire)
        if wire is not None:
            return _FORMS[wire]
        octets = self.takes_octets and content_type.lower() == _OCTETS_TYPE
        return BodyForm.OCTETS if octets else None
