"""One request of a proxy, from its headers to the end of its answer.

    OPENED      nothing has come
    TAKING      its body comes, and is kept
    PLACED      the proxy was told where it goes
    ANSWERING   the answer comes
    ENDED       all is told of it

A body is kept until it is whole where the proxy waits for that: in full duplex, and where the proxy
itself keeps it (BUFFERED). In the other modes a request is placed by its headers alone: by load.
"""

from enum import Enum
from typing import Final

from google.protobuf.struct_pb2 import Struct

from gateway.bounds import GATEWAY_WHOLE_BYTES_MAX
from gateway.errors import GatewayError, refusal_of
from gateway.events import EventStream
from gateway.exchange import ExchangeParts
from gateway.fleet import EngineTarget, ServedModel
from gateway.outcome import Outcome
from gateway.picker import answers
from gateway.picker.bounds import PICKER_BODY_BYTES_MAX, PICKER_BODY_S, PICKER_SILENCE_S
from gateway.picker.endpoint import endpoint_of, in_order, reachable, subset_of
from gateway.picker.messages.ext_proc_pb2 import (
    BUFFERED,
    FULL_DUPLEX_STREAMED,
    NONE,
    STREAMED,
    HttpBody,
    HttpHeaders,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
)
from gateway.placement import PlacedRequest, unknown_model
from gateway.requests import RESPONSES, ClientRequest, read_request
from gateway.usage import Usage, read_usage
from query_api.access.rights import Access
from query_api.http.errors import body_too_large, body_too_slow
from query_api.http.wire import header
from schemas.errors import RepriseError

_SUBSET_HINT: Final = "envoy.lb.subset_hint"
_SERVED: Final = ("envoy.lb", "x-gateway-destination-endpoint-served")
_EVENTS: Final = b"text/event-stream"
_JSON: Final = (b"content-type", b"application/json")

_UNSAID: Final = ProtocolConfiguration(
    request_body_mode=FULL_DUPLEX_STREAMED, response_body_mode=STREAMED
)
"""What the protocol asks of proxies, where one does not say what it does."""

Headers = list[tuple[bytes, bytes]]
Answers = list[ProcessingResponse]


class State(Enum):
    """See the module."""

    OPENED = "opened"
    TAKING = "taking"
    PLACED = "placed"
    ANSWERING = "answering"
    ENDED = "ended"


class OrderError(Exception):
    """A message that may not come now, or is none.

    Attributes:
        expected: in place of it.
    """

    def __init__(self, expected: str) -> None:
        self.expected = expected
        super().__init__(f"Expected {expected}, got something else")


class PickedRequest:
    """See the module. One loop.

    Args:
        session_cookie: that names a session; "" for none.

    Attributes:
        state: see the module.
        result: what became of it, in one word: `picked`, or why it was refused; "" before.
        is_elsewhere: whether the proxy sent it to another engine than the chosen one.
    """

    def __init__(self, parts: ExchangeParts, access: Access, *, session_cookie: str = "") -> None:
        self.state = State.OPENED
        self.result = ""
        self.is_elsewhere = False
        self._parts = parts
        self._access = access
        self._session_cookie = session_cookie
        self._modes = _UNSAID
        self._headers: Headers = []
        self._subset: list[str] | None = None
        self._body = bytearray()
        self._kept_bytes = 0
        self._outcome: Outcome | None = None
        self._engines: list[EngineTarget] = []  # that the proxy was told
        self._at: EngineTarget | None = None  # whose request it is counted as
        self._status = 0
        self._events: EventStream | None = None
        self._reads_whole = False
        self._is_begun = False
        self._opened_at = parts.clock.monotonic()

    @property
    def patience_s(self) -> float:
        """How long the next message may take."""
        if self.state in (State.OPENED, State.TAKING):
            return max(self._opened_at + PICKER_BODY_S - self._parts.clock.monotonic(), 0.0)
        return PICKER_SILENCE_S

    async def take(self, message: ProcessingRequest) -> Answers:
        """What the proxy is told when a message has come.

        Raises:
            OrderError: the message may not come now.
        """
        try:
            return await self._take(message)
        except RepriseError as error:
            return self._refuse(refusal_of(error))

    def late(self) -> Answers:
        """The next message did not come in time: the client's of its body, or the engine's."""
        if self.state in (State.OPENED, State.TAKING):
            return self._refuse(refusal_of(body_too_slow()))
        if self._outcome is not None and self.state is not State.ENDED:
            self._fail(self._outcome, f"nothing came of its answer in {PICKER_SILENCE_S:.0f} s")
        self._close()
        return []

    def end(self) -> None:
        """No other message comes; what is not whole was cancelled. A stream is whole from its last
        event on, where many clients close their connection.
        """
        if self._outcome is not None and self.state is not State.ENDED:
            if self._events is not None and self._events.is_last:
                self._outcome.complete(self._status, self._usage())
            else:
                self._parts.placer.cancelled(self._outcome.placement)
        self._close()

    def _close(self) -> None:
        self.state = State.ENDED
        if self._at is not None:
            self._parts.fleet.end(self._at)
            self._at = None
        self._give_back()

    def _refuse(self, error: GatewayError) -> Answers:
        self.result = error.code
        self._close()
        return [answers.refusal(error)]

    async def _take(self, message: ProcessingRequest) -> Answers:
        name = message.WhichOneof("request")
        if message.observability_mode:
            raise OrderError("a proxy that takes answers, with observability_mode off")
        if name == "request_headers":
            return await self._take_headers(message)
        if self.state is State.OPENED:
            raise OrderError("the headers of a request first, with request_header_mode SEND")
        if name == "request_body":
            return await self._take_body(message.request_body)
        if name == "request_trailers":
            return await self._take_trailers()
        if name == "response_headers":
            return self._take_answer(message)
        if name == "response_body":
            return self._pass(message.response_body)
        if name == "response_trailers":
            return self._end_answer()
        raise OrderError("headers, a body or trailers in a message")

    # The request

    async def _take_headers(self, message: ProcessingRequest) -> Answers:
        if self.state is not State.OPENED:
            raise OrderError("the headers of a request once, a stream for each request")
        self.state = State.TAKING
        if message.HasField("protocol_config"):
            self._modes = message.protocol_config
        self._headers = _headers_of(message.request_headers)
        hints = message.metadata_context.filter_metadata
        self._subset = subset_of(hints[_SUBSET_HINT]) if _SUBSET_HINT in hints else None
        if message.request_headers.end_of_stream:
            return [(await self._pick(is_body=False))[1]]
        if self._is_duplex:
            return []
        if self._modes.request_body_mode == BUFFERED:
            return [answers.unchanged("request_headers")]
        return [(await self._pick(is_body=False))[1]]

    @property
    def _is_duplex(self) -> bool:
        return self._modes.request_body_mode == FULL_DUPLEX_STREAMED

    @property
    def _is_answered_in_duplex(self) -> bool:
        return self._modes.response_body_mode == FULL_DUPLEX_STREAMED

    async def _take_body(self, body: HttpBody) -> Answers:
        if self.state is not State.TAKING:  # it is answered before it was whole, or has no part
            if self._is_duplex:
                return answers.streamed("request_body", body.body, is_end=body.end_of_stream)
            return [answers.unchanged("request_body")]
        self._keep(body.body)
        if not body.end_of_stream:
            return [] if self._is_duplex else [answers.unchanged("request_body")]
        if not self._is_duplex:
            return [(await self._pick(is_body=True))[1]]
        return await self._place_streamed(is_end=True)

    async def _take_trailers(self) -> Answers:
        passed = [answers.unchanged("request_trailers")]
        if self.state is not State.TAKING:
            return passed
        if self._is_duplex:
            return await self._place_streamed(is_end=False) + passed
        raise OrderError("the end of a body that the proxy keeps, before trailers")

    async def _place_streamed(self, *, is_end: bool) -> Answers:
        """In full duplex: the headers, and the body behind them."""
        body, told = await self._pick(is_body=False)
        return [told, *answers.streamed("request_body", body, is_end=is_end)]

    def _keep(self, piece: bytes) -> None:
        if len(self._body) + len(piece) > PICKER_BODY_BYTES_MAX:
            raise body_too_large()
        self._hold(len(piece))
        self._body += piece

    def _hold(self, size_bytes: int) -> None:
        self._kept_bytes += size_bytes
        self._parts.held.take(size_bytes)

    def _give_back(self) -> None:
        self._parts.held.give_back(self._kept_bytes)
        self._kept_bytes = 0
        self._body = bytearray()

    async def _pick(self, *, is_body: bool) -> tuple[bytes, ProcessingResponse]:
        """The body that goes to the engine, and what tells the proxy where that is.

        Raises:
            RepriseError: nowhere.
        """
        parts = self._parts
        request = self._read()
        model = reachable(self._model(request), self._subset)
        tokens = await parts.prompts.of(request, model)
        placed = PlacedRequest(request._replace(body=b"", fields=None), model, tokens)
        placement = parts.placer.place(placed)
        self._outcome = Outcome(parts.placer, parts.prompts, placed, placement, parts.clock)
        fallbacks = parts.placer.fallbacks(placed, placement)
        self._engines = in_order(placement.target, fallbacks)
        are_named = request.path == RESPONSES
        self._events = EventStream(leaves_out=request.leaves_out, are_named=are_named)
        self._count_at(placement.target)
        self.state, self.result = State.PLACED, "picked"
        self._give_back()
        return request.body, answers.destination(self._engines, is_body=is_body)

    def _read(self) -> ClientRequest:
        path, _, url_query = header(self._headers, b":path").partition(b"?")
        headers = [one for one in self._headers if one[0] != b"content-type" or self._body]
        if self._body and not header(self._headers, b"content-type"):
            headers.append(_JSON)  # as the extension's own pickers take it
        return read_request(
            path.decode("latin-1"),
            url_query,
            headers,
            bytes(self._body),
            keeps_authorization=True,
            session_cookie=self._session_cookie,
            asks_usage=self._is_duplex and self._is_answered_in_duplex,
        )

    def _model(self, request: ClientRequest) -> ServedModel:
        tenant_id = self._access.tenant_of(request.tenant_id)
        found = self._parts.fleet.model(tenant_id, request.model, request.lora_path)
        if found is not None:
            return found
        served = self._parts.fleet.models(frozenset({tenant_id}))
        if request.model or not served:
            raise unknown_model(self._parts.fleet, tenant_id, request.model)
        return served[0]  # whichever: the request names none

    def _count_at(self, target: EngineTarget) -> None:
        if self._at is not None:
            self._parts.fleet.end(self._at)
        self._parts.fleet.begin(target)
        self._at = target

    # Its answer

    def _take_answer(self, message: ProcessingRequest) -> Answers:
        if self.state is State.ANSWERING:
            raise OrderError("the headers of an answer once")
        outcome = self._outcome
        if outcome is None or self.state is not State.PLACED:  # the proxy's own answer
            self.end()
            return [answers.unchanged("response_headers")]
        self.state = State.ANSWERING
        found = _headers_of(message.response_headers)
        status = header(found, b":status")
        self._status = int(status) if status.isdigit() and len(status) == 3 else 0
        self._note_served(outcome, message)
        is_events = header(found, b"content-type").lower().startswith(_EVENTS)
        is_plain = not header(found, b"content-encoding")
        self._reads_whole = is_plain and not is_events
        if not (is_plain and is_events):
            self._events = None
        told = answers.response_headers(outcome.placement.headers())
        if self._status >= 500 or not self._status:
            self._fail(outcome, f"it answers HTTP {self._status}")
        elif message.response_headers.end_of_stream or self._modes.response_body_mode == NONE:
            outcome.begin()
            self._complete(outcome, None)
        return [told]

    def _note_served(self, outcome: Outcome, message: ProcessingRequest) -> None:
        """Where the request really went, where the proxy says so."""
        namespace, name = _SERVED
        metadata = message.metadata_context.filter_metadata
        said = _text_of(metadata[namespace], name) if namespace in metadata else ""
        found = next((one for one in self._engines if endpoint_of(one.base_url) == said), None)
        if found is None or found.key == outcome.placement.target.key:
            return
        self.is_elsewhere = True
        self._count_at(found)
        outcome.placement = outcome.placement._replace(went=found.key)

    def _pass(self, body: HttpBody) -> Answers:
        """A piece of the answer."""
        passed, is_end = body.body, body.end_of_stream
        if self.state is State.ANSWERING and self._outcome is not None:
            passed = self._read_answer(self._outcome, passed, is_end=is_end)
        if self._is_answered_in_duplex:
            return answers.streamed("response_body", passed, is_end=is_end)
        return [answers.unchanged("response_body")]

    def _read_answer(self, outcome: Outcome, piece: bytes, *, is_end: bool) -> bytes:
        """What passes of it."""
        passed = piece
        if self._events is not None:
            passed = self._events.feed(piece)
            if is_end:
                passed += self._events.end()
        elif self._reads_whole:
            self._collect(piece)
        if self._is_begun:
            outcome.progress()
        elif (piece or is_end) and (self._events is None or self._events.has_begun):
            self._is_begun = True
            outcome.begin()
        if is_end:
            self._complete(outcome, self._usage())
        return passed

    def _collect(self, piece: bytes) -> None:
        """Keeps an answer that is no stream, up to a bound, for what it says of tokens."""
        is_small = len(self._body) + len(piece) <= GATEWAY_WHOLE_BYTES_MAX
        if is_small and self._parts.held.has_room(len(piece)):
            self._hold(len(piece))
            self._body += piece
        else:
            self._reads_whole = False
            self._give_back()

    def _end_answer(self) -> Answers:
        """Its trailers; in full duplex what was kept of its body comes before."""
        passed: Answers = []
        if self.state is State.ANSWERING and self._outcome is not None:
            kept = b"" if self._events is None else self._events.end()
            if self._is_answered_in_duplex:
                passed = answers.streamed("response_body", kept, is_end=False)
            self._complete(self._outcome, self._usage())
        return [*passed, answers.unchanged("response_trailers")]

    def _usage(self) -> Usage | None:
        if self._events is not None:
            return self._events.usage
        said = read_usage(bytes(self._body)) if self._reads_whole else None
        return None if said is None else said.usage

    def _complete(self, outcome: Outcome, usage: Usage | None) -> None:
        outcome.complete(self._status, usage)
        self._close()

    def _fail(self, outcome: Outcome, text: str) -> None:
        self._parts.placer.failed(outcome.placement, text)
        self._close()


def _headers_of(message: HttpHeaders) -> Headers:
    return [
        (one.key.lower().encode(), one.raw_value or one.value.encode())
        for one in message.headers.headers
    ]


def _text_of(fields: Struct, name: str) -> str:
    return fields.fields[name].string_value if name in fields.fields else ""
