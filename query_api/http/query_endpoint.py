"""The routes that a router calls for each request, served in front of the FastAPI app.

FastAPI costs 70 to 190 us a request, this about 10. What FastAPI would do is done here: the body's
bound, content types, errors in the shape of all the others, metrics. The routes are declared in
FastAPI all the same (`routes`), for the documentation.

The path of a query: read the body, have the kernel's own scanner read it (JSON), or else decode
and check it field by field; ask the kernel; encode; two sends. Both ways give the same answers,
and only the second words errors.
"""

import logging
import re
from collections.abc import Callable
from operator import attrgetter
from time import perf_counter
from typing import Final, NamedTuple

from starlette.types import Receive, Scope, Send

from query_api.http.answers import encode_detailed, encode_matches
from query_api.http.audit import AnswerAudit, Stepped
from query_api.http.errors import (
    INTERNAL,
    ClientGoneError,
    RequestError,
    no_history,
    recovering,
    unsupported_content_type,
)
from query_api.http.metrics import HttpMetrics, QueryMetrics
from query_api.http.requests.bodies import Bodies, is_whole
from query_api.http.requests.options import AnswerOptions, read_options
from query_api.http.requests.queries import (
    Query,
    answer_hash_query,
    answer_query,
    prefixes_of,
    read_hash_query,
    read_octets_query,
    read_query,
    scan_query,
)
from query_api.http.wire import Wire, body_wire, content_type_of, encode, encode_error
from query_api.ports import Asked, History, PastView, Positions, View, positions_text
from schemas.answer_states import AnswerState, Standing
from schemas.errors import RepriseError
from schemas.identities import PrefixScope
from streams.kernel.interface import BodyForm, InstanceMatch, PlainAnswer, ReadOnlyKernel

HttpHeaders = list[tuple[bytes, bytes]]
Answerer = Callable[[ReadOnlyKernel, Query], tuple[PrefixScope, list[InstanceMatch]]]

CLIENT_GONE: Final = 499
_REQUEST_ID: Final = re.compile(rb"[\x20-\x7e]{1,256}")
_TYPE_HEADERS: Final = {wire: (b"content-type", content_type_of(wire)) for wire in Wire}
_STATE_HEADERS: Final = {state: (b"reprise-state", state.value.encode()) for state in AnswerState}
_OCTETS_TYPE: Final = b"application/octet-stream"
_PLAIN: Final = AnswerOptions()
_HITS_ONLY: Final = AnswerOptions(hits_only=True)
_FORMS: Final = {Wire.JSON: BodyForm.JSON, Wire.MSGPACK: BodyForm.MSGPACK}
_WIRES: Final = {form: wire for wire, form in _FORMS.items()} | {BodyForm.OCTETS: Wire.JSON}
_longest = attrgetter("longest")
logger = logging.getLogger(__name__)


class _Route(NamedTuple):
    """One hot route."""

    path: str
    by_hash: bool
    answer: Answerer
    metrics: QueryMetrics


class _Request(NamedTuple):
    """What one request asks; `wire` is that of its answer."""

    wire: Wire
    form: BodyForm
    body: bytes
    url_query: bytes
    options: AnswerOptions


class HotRoutes:
    """Answers `POST /query` and `POST /query_by_hash`."""

    def __init__(
        self,
        view: View,
        metrics: HttpMetrics,
        bodies: Bodies,
        default_wire: Wire,
        *,
        only_exact: bool = False,
        history: History | None = None,
        audit: AnswerAudit | None = None,
    ) -> None:
        """Args:
        only_exact: what a request that does not say otherwise gets; see `AnswerOptions`.
        history: answers what is asked of the past.
        audit: keeps a share of the answers of now.
        """
        self._view = view
        self._audit = audit
        self._history = history
        self._bodies = bodies
        self._default_wire = default_wire
        self._default = _PLAIN._replace(only_exact=True) if only_exact else _PLAIN
        self._metrics = metrics
        self._routes = {
            path: _Route(path, by_hash, answer, metrics.queries(path))
            for path, by_hash, answer in (
                ("/query", False, answer_query),
                ("/query_by_hash", True, answer_hash_query),
            )
        }
        self._position: tuple[Positions, tuple[bytes, bytes]] = ((), (b"reprise-position", b""))

    @property
    def paths(self) -> frozenset[str]:
        """The paths whose POST requests come here."""
        return frozenset(self._routes)

    async def serve(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one POST request of one of the paths."""
        route = self._routes[path]
        content_type = b""
        url_query: bytes = scope.get("query_string", b"")
        request_id: bytes | None = None
        for name, value in scope["headers"]:
            if name == b"content-type":
                content_type = value
            elif name == b"x-request-id":
                request_id = value
        form = _body_form(content_type, self._default_wire)
        wire = self._default_wire if form is None else _WIRES[form]
        try:
            if form is None:
                raise unsupported_content_type()
            message = await receive()
            if is_whole(message):
                body = message.get("body", b"")
            else:
                body = await self._bodies.complete(message, receive, scope["headers"])
            status = 200
            options = read_options(url_query, self._default) if url_query else self._default
            request = _Request(wire, form, body, url_query, options)
            headers, answer = self._answer(route, request) or await self._answer_past(
                route, request
            )
        except ClientGoneError:
            self._metrics.count_request(route.path, CLIENT_GONE)
            return
        except RepriseError as error:
            status, answer = encode_error(error, wire)
            headers = [_TYPE_HEADERS[wire]]
            if isinstance(error, RequestError):
                headers += [(k.encode(), v.encode()) for k, v in error.headers.items()]
        except Exception:
            logger.exception("Unexpected error in route: %s", route.path)
            status, answer = 500, encode(INTERNAL, wire)
            headers = [_TYPE_HEADERS[wire]]
        body = b""  # a client that does not read its answer holds no body
        message = {}
        self._metrics.count_request(route.path, status)
        headers.append((b"content-length", b"%d" % len(answer)))
        if request_id is not None and _REQUEST_ID.fullmatch(request_id):
            headers.append((b"x-request-id", request_id))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def _answer(self, route: _Route, request: _Request) -> tuple[HttpHeaders, bytes] | None:
        """Of now; None where the past is asked for."""
        if request.options.as_of is not None:
            return None
        started = perf_counter()
        view = self._view
        if not view.ready:
            raise recovering(view.health().problem)
        kernel = view.kernel
        position = self._position_header(view.positions())  # before it is asked: at least this
        plain = None
        wire, form, body, url_query, options = request
        if options in (_PLAIN, _HITS_ONLY):
            if options is _PLAIN and form is not BodyForm.OCTETS:
                url_query = b""  # it says nothing
            plain = kernel.answer(body, form, route.by_hash, url_query)
        scope, tokens, hit_tokens, answer, audited = plain or self._take_steps(
            route, view, kernel, request, self._audit
        )
        state = view.state(scope)
        if audited is not None and self._audit is not None:
            self._audit.push(audited, state)
        headers = [_TYPE_HEADERS[wire], position, _STATE_HEADERS[state]]
        route.metrics.count((perf_counter() - started, tokens, hit_tokens))
        return headers, answer

    async def _answer_past(self, route: _Route, request: _Request) -> tuple[HttpHeaders, bytes]:
        """Of the past. Cost: of the flush before it, and the records since; see
        `streams.history.past`.
        """
        view, as_of = self._view, request.options.as_of
        assert as_of is not None
        if self._history is None:
            raise no_history()
        if not view.ready:
            raise recovering(view.health().problem)
        query = self._read(route, view.kernel, request)
        asked = Asked(
            query.tenant_id,
            query.model,
            query.block_size,
            query.lora_name,
            prefixes_of(query, view.kernel.seed, by_hash=route.by_hash),
        )
        past = await self._history.view_as_of(as_of, asked)
        scope, _, _, answer, _ = self._take_steps(route, past, past.kernel, request)
        position = (b"reprise-position", positions_text(past.positions()).encode())
        headers = [_TYPE_HEADERS[request.wire], position, _STATE_HEADERS[past.state(scope)]]
        return headers, answer

    def _take_steps(
        self,
        route: _Route,
        view: View | PastView,
        kernel: ReadOnlyKernel,
        request: _Request,
        audit: AnswerAudit | None = None,
    ) -> PlainAnswer:
        """What the kernel's `answer` does by one call where all is plain."""
        wire, options = request.wire, request.options
        query = self._read(route, kernel, request)
        begun = None if audit is None else audit.begin(kernel)
        scope, matches = route.answer(kernel, query)
        audited = None
        if audit is not None and begun is not None:
            audited = audit.end(begun, kernel, Stepped(route.by_hash, query, scope, matches))
        if options.hits_only:
            matches = [match for match in matches if match.longest]
        if options.detail or options.only_exact:
            standings = view.instance_standings(scope)
            matches, answer = self._encode(query, standings, matches, request)
        else:
            answer = encode_matches(query.tenant_id, matches, wire)
        tokens = len(query.content) // 4
        if route.by_hash:
            tokens = len(query.content) // 8 * query.block_size
        return PlainAnswer(scope, tokens, max(map(_longest, matches), default=0), answer, audited)

    @staticmethod
    def _encode(
        query: Query,
        standings: dict[str, Standing],
        matches: list[InstanceMatch],
        request: _Request,
    ) -> tuple[list[InstanceMatch], bytes]:
        """The matches that are wanted, and the answer. Cost O(publishers of the scope) more."""
        wire, options = request.wire, request.options
        if options.hits_only:
            held = {match[0] for match in matches}
            standings = {name: one for name, one in standings.items() if name in held}
        if query.instance_id is not None:
            standings = {
                name: standing for name, standing in standings.items() if name == query.instance_id
            }
        if options.only_exact:
            standings = {
                name: standing
                for name, standing in standings.items()
                if standing.state is AnswerState.EXACT
            }
            matches = [match for match in matches if match[0] in standings]
        if options.detail:
            return matches, encode_detailed(query.tenant_id, matches, standings, wire)
        return matches, encode_matches(query.tenant_id, matches, wire)

    @staticmethod
    def _read(route: _Route, kernel: ReadOnlyKernel, request: _Request) -> Query:
        wire, body = request.wire, request.body
        if request.form is BodyForm.OCTETS:
            return read_octets_query(body, request.url_query, by_hash=route.by_hash)
        if route.by_hash:
            return read_hash_query(body, wire)
        if wire is Wire.JSON:
            scanned = scan_query(kernel, body)
            if scanned is not None:
                return scanned
        return read_query(body, wire)

    def _position_header(self, positions: Positions) -> tuple[bytes, bytes]:
        shown, header = self._position
        if positions != shown:
            header = (b"reprise-position", positions_text(positions).encode())
            self._position = (positions, header)
        return header


def _body_form(content_type: bytes, default: Wire) -> BodyForm | None:
    """What a body is; None for what the API does not speak."""
    wire = body_wire(content_type, default)
    if wire is not None:
        return _FORMS[wire]
    return BodyForm.OCTETS if content_type.lower() == _OCTETS_TYPE else None
