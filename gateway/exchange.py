"""One request of a client: engines are tried until one answers, and its answer is passed on.

    placing    an engine is chosen
    waiting    it has the request, and its client has nothing: another engine can still be tried
    passing    the client has the first of its answer: nothing else can answer now
    ended

Until the first byte the request is kept, and of an answer that is no stream all of it, up to a
bound. So an engine that refuses connections, breaks them off, answers 5xx, or not in HTTP costs its
client time alone. What an engine may have begun is tried on GATEWAY_BROKEN_MAX of them at most: the
request may be what they fail over.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple

import aiohttp

from bridge.engine_http.address import read_base_url
from bridge.engine_http.keys import ENGINE_KEYS
from bridge.supervision import cancel as cancel_all
from gateway.bounds import (
    GATEWAY_BROKEN_MAX,
    GATEWAY_TRIED_MAX,
    GATEWAY_WHOLE_BYTES_MAX,
)
from gateway.connections import SentRequest
from gateway.errors import GatewayError
from gateway.events import EventStream
from gateway.fleet import EngineTarget, Fleet, ServedModel
from gateway.held import HeldBytes
from gateway.outcome import Outcome
from gateway.pairs import Handover, are_at_once
from gateway.placement import PlacedRequest, Placement, Placer
from gateway.prompts import Prompts
from gateway.requests import CHAT, COMPLETIONS, RESPONSES, ClientRequest, passed_back
from gateway.upstream import BROKEN, CLOSED_MEANWHILE, NOT_REACHED, Upstream
from gateway.usage import read_usage
from schemas.causes import cause_of
from schemas.clock import REAL_CLOCK, Clock
from schemas.limits import KIB

GATEWAY_FIRST_BYTE_S: Final = 600.0  # for an engine, however it drips
GATEWAY_STALE_S: Final = 1.0  # until it is seen that a kept connection had been closed
GATEWAY_REFUSAL_BYTES_MAX: Final = 64 * KIB  # of an answer that says that there is none

Headers = list[tuple[bytes, bytes]]
SendFn = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_EVENTS: Final = b"text/event-stream"
_BUSY: Final = frozenset({408, 425, 429})
"""Of an engine that works, and takes no more now: another one may."""

_NOT_FOUND: Final = 404
"""Of a model, a response or a path: another engine may have it."""


class State(Enum):
    """See the module."""

    PLACING = "placing"
    WAITING = "waiting"
    PASSING = "passing"
    ENDED = "ended"


class ExchangeParts(NamedTuple):
    """What exchanges share."""

    placer: Placer
    prompts: Prompts
    fleet: Fleet
    upstream: Upstream
    held: HeldBytes
    clock: Clock = REAL_CLOCK


class _Refusal(NamedTuple):
    """An engine's answer that is passed on where no other one answers."""

    status: int
    headers: Headers
    body: bytes


class _FailedAttemptError(Exception):
    """An engine has not answered, and another one may be tried.

    Attributes:
        is_broken: whether it may have begun.
        kind: for counts: `unreachable`, `broken`, `refused`, `key_refused`, `not_found`.
    """

    def __init__(
        self, target: EngineTarget, kind: str, text: str, refusal: _Refusal | None = None
    ) -> None:
        self.kind = kind
        self.target = target
        self.is_broken = kind == "broken" or (refusal is not None and refusal.status == 500)
        self.refusal = refusal
        super().__init__(text)


class _RefusedError(Exception):
    """An engine says that it does not answer, in whole words."""

    def __init__(self, refusal: _Refusal) -> None:
        self.refusal = refusal
        super().__init__()


class _KeyRefusedError(Exception):
    """An engine does not take the key that is the gateway's, and not its client's."""


class BrokenOffError(Exception):
    """An answer ends before it is whole, of which the client has a part."""


class Exchange:
    """See the module.

    Args:
        model: that serves it.
        send: to the client, as ASGI has it.

    Attributes:
        state: see the module.
        failures: what became of those that did not answer, by kind.
    """

    def __init__(
        self, parts: ExchangeParts, request: ClientRequest, model: ServedModel, send: SendFn
    ) -> None:
        self.state = State.PLACING
        self.tries = 0
        self.failures: list[str] = []
        self._parts = parts
        self._request = request
        self._model = model
        self._send = send
        self._placed: PlacedRequest | None = None
        self._placement: Placement | None = None
        self._kept_bytes = 0
        self._complete: Callable[[], None] | None = None  # from the last event on
        self._waiting: dict[asyncio.Timeout, str] = {}

    async def run(self) -> None:
        """Answers it.

        Raises:
            GatewayError: no engine does; the client has nothing.
            BrokenOffError: the engine broke off; the client has a part.
        """
        parts = self._parts
        self._kept_bytes = len(self._request.body)
        try:
            parts.held.take(self._kept_bytes)
            tokens = await parts.prompts.of(self._request, self._model)
            if not self._model.has_pairs:
                self._request = self._request._replace(fields=None)
            self._placed = PlacedRequest(self._request, self._model, tokens)
            await self._try_engines(self._placed)
        finally:
            self._give_back()

    def gone(self) -> bool:
        """Its client has gone; what is under way was ended. Whether the client has all of it: many
        close their connection at the last event, and wait for no end in HTTP.
        """
        if self._placement is not None and self.state in (State.WAITING, State.PASSING):
            if self._complete is None:
                self._parts.placer.cancelled(self._placement)
            else:
                self._complete()
        self.state = State.ENDED
        return self._complete is not None

    async def _try_engines(self, placed: PlacedRequest) -> None:
        broken = 0
        last: _FailedAttemptError | None = None
        while self.tries < GATEWAY_TRIED_MAX and broken < GATEWAY_BROKEN_MAX:
            if last is not None and not placed.left:
                break
            self.state = State.PLACING
            placement = self._placement = self._parts.placer.place(placed)
            self.state = State.WAITING
            self.tries += 1
            try:
                await self._attempt(placement)
                return
            except _FailedAttemptError as error:
                last = error
                broken += error.is_broken
                self.failures.append(error.kind)
                placed.tried.add(error.target.key)
                status = 0 if error.refusal is None else error.refusal.status
                if 400 <= status < 500:
                    self._parts.placer.cancelled(placement)
                    if status not in _BUSY and status != _NOT_FOUND:
                        break
                else:
                    self._parts.placer.failed(placement, str(error))
        assert last is not None, "the first engine was tried"
        if last.refusal is None:
            # What is wrong with it, and where it is, is for operators: the decision has it.
            text = f"No engine answered, of {self.tries:d} that were tried: {last.kind}"
            raise GatewayError(502, "engines_failed", text)
        await self._pass_refusal(last.refusal, placement)

    async def _attempt(self, placement: Placement) -> None:
        """By one engine, or by two of which one computes the prompt."""
        prefill, body = placement.prefill, self._request.body
        if prefill is not None and self._request.fields is not None:
            handover = Handover(prefill)
            if are_at_once(prefill):
                await self._attempt_at_once(placement, prefill, *handover.both(body))
                return
            first = handover.first(self._request.fields)
            asked_at = self._parts.clock.monotonic()
            answer = await self._converse(prefill, first, self._compute)
            self._parts.placer.began(placement, self._parts.clock.monotonic() - asked_at)
            body = handover.second(body, answer)
        await self._answer_by(placement, body)

    async def _answer_by(self, placement: Placement, body: bytes) -> None:
        parts, placed = self._parts, self._placed
        assert placed is not None, "it is placed"
        outcome = Outcome(parts.placer, parts.prompts, placed, placement, parts.clock)

        async def take(answer: aiohttp.ClientResponse) -> bytes:
            passed = passed_back(answer.raw_headers)
            if answer.headers.get("Content-Type", "").encode().lower().startswith(_EVENTS):
                await self._pass_events(placement, answer, passed, outcome)
            else:
                await self._pass_body(placement, answer, passed, outcome)
            return b""

        await self._converse(placement.target, body, take)

    async def _attempt_at_once(
        self, placement: Placement, prefill: EngineTarget, first: bytes, second: bytes
    ) -> None:
        """Whichever fails ends the other, which would wait for it."""
        computing = asyncio.create_task(self._converse(prefill, first, self._compute))
        answering = asyncio.create_task(self._answer_by(placement, second))
        try:
            done, _ = await asyncio.wait(
                (computing, answering), return_when=asyncio.FIRST_COMPLETED
            )
            if computing in done and self.state is not State.PASSING:
                computing.result()
            await answering
        finally:
            await cancel_all(computing, answering)

    async def _compute(self, answer: aiohttp.ClientResponse) -> bytes:
        """All of what an engine says that computes a prompt for another one."""
        body = bytearray()
        while piece := await answer.content.readany():
            if len(body) < GATEWAY_WHOLE_BYTES_MAX:
                body += piece
        if answer.status >= 400:
            refusal = _Refusal(answer.status, passed_back(answer.raw_headers), bytes(body))
            raise _RefusedError(refusal)
        return bytes(body)

    async def _converse(
        self,
        target: EngineTarget,
        body: bytes,
        take: Callable[[aiohttp.ClientResponse], Awaitable[bytes]],
    ) -> bytes:
        """Sends a body to an engine and has its answer taken; once more where the connection had
        been closed meanwhile.

        Raises:
            _FailedAttemptError: the client has nothing yet.
            BrokenOffError: the client has a part.
        """
        self._parts.fleet.begin(target)
        try:
            for is_last in (False, True):
                sent, sent_at = SentRequest(), self._parts.clock.monotonic()
                try:
                    async with asyncio.timeout(GATEWAY_FIRST_BYTE_S) as patience:
                        self._wait_for(target, patience)
                        try:
                            return await self._ask(target, body, sent, take)
                        finally:
                            self._stop_waiting(patience)
                except NOT_REACHED as error:
                    raise _FailedAttemptError(target, "unreachable", cause_of(error)) from error
                except _RefusedError as error:
                    refusal = error.refusal
                    text = f"it answers HTTP {refusal.status}"
                    kind = "refused"
                    if refusal.status == _NOT_FOUND:
                        kind = "not_found"
                        self._parts.fleet.refused(target, self._request.model)
                    raise _FailedAttemptError(target, kind, text, refusal) from error
                except _KeyRefusedError as error:
                    raise _FailedAttemptError(target, "key_refused", str(error)) from error
                except BROKEN as error:
                    is_stale = isinstance(error, CLOSED_MEANWHILE) and sent.is_reused
                    # What is said of a connection that was closed before is said at once.
                    took_s = self._parts.clock.monotonic() - sent_at
                    is_stale = is_stale and took_s < GATEWAY_STALE_S
                    if not is_stale or is_last or self.state is State.PASSING:
                        self._break(target, error)
            raise AssertionError("the second one returns or raises")
        finally:
            self._parts.fleet.end(target)

    def _wait_for(self, target: EngineTarget, patience: asyncio.Timeout) -> None:
        self._waiting[patience] = target.base_url
        self._parts.fleet.wait_for(target.base_url, patience)

    def _stop_waiting(self, patience: asyncio.Timeout) -> None:
        base_url = self._waiting.pop(patience, None)
        if base_url is not None:
            self._parts.fleet.stop_waiting(base_url, patience)

    def _break(self, target: EngineTarget, error: Exception) -> None:
        """Raises what becomes of an answer that the engine has broken off."""
        placement = self._placement
        is_answering = placement is not None and target.key == placement.target.key
        if self.state is State.PASSING and placement is not None and is_answering:
            self._parts.placer.failed(placement, cause_of(error))
            self.failures.append("broken_off")
            self.state = State.ENDED
            raise BrokenOffError(cause_of(error)) from error
        raise _FailedAttemptError(target, "broken", cause_of(error)) from error

    async def _ask(
        self,
        target: EngineTarget,
        body: bytes,
        sent: SentRequest,
        take: Callable[[aiohttp.ClientResponse], Awaitable[bytes]],
    ) -> bytes:
        request = self._request
        headers = [*request.headers, ("Accept-Encoding", "identity")]
        url = read_base_url(target.base_url)
        key = ENGINE_KEYS.of(url)
        if key:  # the client's own is none of the engine's
            headers = [one for one in headers if one[0] != "authorization"]
            headers.append(("Authorization", key))
        if target.has_ranks:
            headers.append(("X-data-parallel-rank", str(target.key[1])))
        path = request.path
        if request.url_query:
            path += "?" + request.url_query.decode("latin-1")
        async with self._parts.upstream.ask(
            "POST", target.base_url, path, headers=headers, body=body, sent=sent
        ) as answer:
            if ENGINE_KEYS.note(url, request.path, answer.status):
                text = f"it refuses its key of engines.keys: HTTP {answer.status}"
                raise _KeyRefusedError(text)
            if 500 <= answer.status < 600 or answer.status in _BUSY:
                raise _RefusedError(await _refusal_of(answer))
            if answer.status == _NOT_FOUND and self._has_other(target):
                raise _RefusedError(await _refusal_of(answer))
            if not (200 <= answer.status < 300 or 400 <= answer.status < 600):
                raise ValueError(f"it answers HTTP {answer.status} to a request")
            return await take(answer)

    def _has_other(self, target: EngineTarget) -> bool:
        """Whether another engine may be tried, too."""
        if self._placed is None or self.tries >= GATEWAY_TRIED_MAX:
            return False
        return any(one.key != target.key for one in self._placed.left)

    # Answers

    async def _pass_events(
        self,
        placement: Placement,
        answer: aiohttp.ClientResponse,
        headers: Headers,
        outcome: Outcome,
    ) -> None:
        content = answer.content
        are_named = self._request.path == RESPONSES
        events = EventStream(leaves_out=self._request.leaves_out, are_named=are_named)
        piece = await content.readany()
        if not piece:
            raise ValueError("its stream ended before it began")
        if self._request.leaves_out:
            headers = [one for one in headers if one[0] != b"content-length"]
        self._pass()
        await self._send_head(answer.status, headers, placement)
        try:
            while piece:
                passed = events.feed(piece)
                if events.has_begun:
                    outcome.begin()
                if events.is_last:
                    self._complete = partial(outcome.complete, answer.status, events.usage)
                if passed:
                    await self._send({"type": _BODY, "body": passed, "more_body": True})
                piece = await content.readany()
                outcome.progress()
            last = events.end()
            if last:
                await self._send({"type": _BODY, "body": last, "more_body": True})
            if self._request.path in (CHAT, COMPLETIONS, RESPONSES) and not (
                events.is_done or _tells_its_end(answer)
            ):
                raise aiohttp.ClientPayloadError("its connection ended before its last event")
        except BROKEN:
            if events.is_between:
                event = _NAMED_BROKEN_OFF if are_named else _BROKEN_OFF
                await self._send({"type": _BODY, "body": event, "more_body": True})
            raise
        await self._send({"type": _BODY, "body": b""})
        self.state = State.ENDED
        outcome.complete(answer.status, events.usage)

    async def _pass_body(
        self,
        placement: Placement,
        answer: aiohttp.ClientResponse,
        headers: Headers,
        outcome: Outcome,
    ) -> None:
        pieces: list[bytes] = []
        size = 0
        content = answer.content
        while piece := await content.readany():
            pieces.append(piece)
            size += len(piece)
            if size > GATEWAY_WHOLE_BYTES_MAX or not self._parts.held.has_room(size):
                break
            if _is_played(answer):
                break
        self._pass()
        outcome.begin()
        await self._send_head(answer.status, headers, placement)
        body = b"".join(pieces)
        pieces.clear()
        usage = None
        if piece:
            await self._send({"type": _BODY, "body": body, "more_body": True})
            while piece := await content.readany():
                await self._send({"type": _BODY, "body": piece, "more_body": True})
            await self._send({"type": _BODY, "body": b""})
        else:
            await self._send({"type": _BODY, "body": body})
            said = read_usage(body)
            usage = None if said is None else said.usage
        self.state = State.ENDED
        outcome.complete(answer.status, usage)

    def _pass(self) -> None:
        """The first byte: no other engine can be tried now."""
        self.state = State.PASSING
        for patience in list(self._waiting):
            self._stop_waiting(patience)
            patience.reschedule(None)
        self._request = self._request._replace(body=b"", fields=None)
        if self._placed is not None:
            self._placed.request = self._request
        self._give_back()

    async def _pass_refusal(self, refusal: _Refusal, placement: Placement) -> None:
        self.state = State.PASSING
        await self._send_head(refusal.status, refusal.headers, placement)
        await self._send({"type": _BODY, "body": refusal.body})
        self.state = State.ENDED

    async def _send_head(self, status: int, headers: Headers, placement: Placement) -> None:
        headers = [*headers, *placement.headers()]
        await self._send({"type": _START, "status": status, "headers": headers})

    def _give_back(self) -> None:
        self._parts.held.give_back(self._kept_bytes)
        self._kept_bytes = 0


_START: Final = "http.response.start"
_BODY: Final = "http.response.body"

_ERROR: Final = (
    b'"error":{"message":"The engine broke its answer off","type":"api_error","param":null,'
    b'"code":"broken_off"}}\n\n'
)
_BROKEN_OFF: Final = b"data: {" + _ERROR
"""What tells a client that its stream is not whole: without it many take it for the end."""

_NAMED_BROKEN_OFF: Final = (
    b'event: error\ndata: {"type":"error","code":"broken_off","param":null,'
    b'"message":"The engine broke its answer off",' + _ERROR
)
"""The same, as streams of `/v1/responses` say it, and as their clients look for it."""


async def _refusal_of(answer: aiohttp.ClientResponse) -> _Refusal:
    """What an engine says that does not answer now."""
    body = bytearray()
    while piece := await answer.content.readany():
        body += piece
        if len(body) > GATEWAY_REFUSAL_BYTES_MAX:
            raise ValueError(f"it answers HTTP {answer.status} without end")
    return _Refusal(answer.status, passed_back(answer.raw_headers), bytes(body))


def _is_played(answer: aiohttp.ClientResponse) -> bool:
    """Whether a client has use of an answer's parts, as of sound: nobody knows yet how long it is,
    and it is no JSON.
    """
    kind = answer.headers.get("Content-Type", "").lower()
    is_whole = not kind or kind.startswith("application/json") or answer.status >= 400
    return not (is_whole or "Content-Length" in answer.headers)


def _tells_its_end(answer: aiohttp.ClientResponse) -> bool:
    """Whether HTTP says where it ends, and not the end of the connection alone."""
    return "Content-Length" in answer.headers or "Transfer-Encoding" in answer.headers
