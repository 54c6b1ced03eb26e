"""The routes that a router calls for each request, served in front of the app.

They are declared among the others all the same (`routes`), for the documentation.

The path of a query: read the body (`post_endpoint`), have the kernel's own scanner read it (JSON),
or else decode and check it field by field; ask the kernel; encode; two sends. Both ways give the
same answers, and only the second words errors.
"""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

from query_api.access.rights import Access
from query_api.http.answers import encode_detailed, encode_matches
from query_api.http.audit import AnswerAudit, SteppedAnswer
from query_api.http.errors import no_history, recovering
from query_api.http.feature import HttpParts
from query_api.http.metrics import QueryMetrics
from query_api.http.post_endpoint import (
    TYPE_HEADERS,
    HttpHeaders,
    PostAnswer,
    PostEndpoint,
    PostRequest,
)
from query_api.http.requests.options import AnswerOptions, read_options
from query_api.http.requests.queries import (
    Query,
    answer_hash_query,
    answer_query,
    is_known,
    limiting_groups,
    prefixes_of,
    read_hash_query,
    read_octets_query,
    read_prompt,
)
from query_api.http.traces import context_of
from query_api.http.wire import Wire
from query_api.ports import History, PastQuestion, PastView, Positions, View, positions_text
from query_api.traces import query_attributes
from query_api.unknown_scopes import HEADER
from schemas.answer_states import TOKENS_UNPROVEN, AnswerState, Standing
from schemas.clock import REAL_CLOCK
from schemas.identities import PrefixScope
from schemas.tracing import NO_SPAN, Span, SpanName
from streams.kernel.interface import BodyForm, InstanceMatch, PlainAnswer, ReadOnlyKernel

Answerer = Callable[[ReadOnlyKernel, Query], tuple[PrefixScope, list[InstanceMatch]]]

_STATE_HEADERS: Final = {state: (b"reprise-state", state.value.encode()) for state in AnswerState}
_UNPROVEN: Final = Standing(AnswerState.UNCONFIRMED, TOKENS_UNPROVEN, 0.0)
"""Of an instance that would be exact, where its engine may make other tokens of the text."""

_PLAIN: Final = AnswerOptions()
_HITS_ONLY: Final = AnswerOptions(hits_only=True)
_longest = attrgetter("longest")


class _Route(NamedTuple):
    """One hot route."""

    path: str
    by_hash: bool
    answer: Answerer
    metrics: QueryMetrics


class _Request(NamedTuple):
    """What one request asks; `wire` is that of its answer, and `span` its own."""

    wire: Wire
    form: BodyForm
    body: bytes
    url_query: bytes
    options: AnswerOptions
    access: Access
    span: Span
    is_proven: bool

    def state_of(self, state: AnswerState) -> AnswerState:
        """Of an answer by its tokens: no better than these are known to be an engine's."""
        return state if self.is_proven or state is not AnswerState.EXACT else _UNPROVEN.state


class HotRoutes(PostEndpoint):
    """Answers `POST /query` and `POST /query_by_hash`."""

    text_paths = frozenset({"/query"})

    def __init__(
        self,
        parts: HttpParts,
        *,
        only_exact: bool = False,
        history: History | None = None,
        audit: AnswerAudit | None = None,
        monotonic: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        """Args:
        only_exact: what a request that does not say otherwise gets; see `AnswerOptions`.
        history: answers what is asked of the past.
        audit: keeps a share of the answers of now.
        monotonic: seconds.
        """
        self._monotonic = monotonic
        super().__init__(parts.bodies, parts.default_wire, parts.metrics, parts.text)
        self._view = parts.view
        self._unknown = parts.unknown
        self._audit = audit
        self._tracer = parts.tracer
        self._history = history
        self._default = _PLAIN._replace(only_exact=True) if only_exact else _PLAIN
        self._routes = {
            path: _Route(path, by_hash, answer, parts.metrics.queries(path))
            for path, by_hash, answer in (
                ("/query", False, answer_query),
                ("/query_by_hash", True, answer_hash_query),
            )
        }
        self._position: tuple[Positions, tuple[bytes, bytes]] = ((), (b"reprise-position", b""))

    @property
    def paths(self) -> frozenset[str]:
        """See `PostEndpoint`."""
        return frozenset(self._routes)

    async def answer(self, posted: PostRequest) -> PostAnswer:
        """See `PostEndpoint`."""
        # Nearly all queries are answered without Python: those that are not begin no traces.
        if self._tracer.is_on and (parent := context_of(posted.headers)):
            with self._tracer.begin(SpanName.QUERY, parent) as span:
                return await self._answered(posted, span)
        return await self._answered(posted, NO_SPAN)

    async def _answered(self, posted: PostRequest, span: Span) -> PostAnswer:
        route = self._routes[posted.path]
        _, wire, form, body, url_query, _, access, _, is_proven = posted
        options = read_options(url_query, self._default) if url_query else self._default
        request = _Request(wire, form, body, url_query, options, access, span, is_proven)
        headers, answer = self._answer(route, request) or await self._answer_past(route, request)
        return PostAnswer(200, headers, answer)

    def _answer(self, route: _Route, request: _Request) -> tuple[HttpHeaders, bytes] | None:
        """Of now; None where the past is asked for."""
        if request.options.as_of is not None:
            return None
        started = self._monotonic()
        view = self._view
        if not view.ready:
            raise recovering(view.health().problem)
        kernel = view.kernel
        position = self._position_header(view.positions())  # before it is asked: at least this
        plain = None
        wire, form, body, url_query, options, access, span, is_proven = request
        # The kernel looks before it says whose; the time that takes would tell of other tenants.
        if access.tenants is None and is_proven and options in (_PLAIN, _HITS_ONLY):
            if options is _PLAIN and form is not BodyForm.OCTETS:
                url_query = b""  # it says nothing
            plain = kernel.answer(body, form, route.by_hash, url_query)
        scope, tokens, hit_tokens, answer, audited = plain or self._take_steps(
            route, view, kernel, self._read(route, kernel, request), request, self._audit
        )
        state = request.state_of(view.state(scope))
        if audited is not None and self._audit is not None:
            self._audit.push(audited, state)
        headers = [TYPE_HEADERS[wire], position, _STATE_HEADERS[state]]
        # The kernel leaves what it does not know to the steps.
        if plain is None and not is_known(kernel, scope):
            why = self._unknown.note(scope)
            if why is not None:
                headers.append((HEADER, why.text.encode()))
        if span.is_recorded:
            of_index = (position[1].decode(), state.value)
            span.note(query_attributes(scope, tokens, hit_tokens, *of_index))
        route.metrics.count((self._monotonic() - started, tokens, hit_tokens))
        return headers, answer

    async def _answer_past(self, route: _Route, request: _Request) -> tuple[HttpHeaders, bytes]:
        """Of the past. Cost: of the flush before it, and the records since; see
        `streams.history.past_fold`.
        """
        view, as_of = self._view, request.options.as_of
        assert as_of is not None
        if self._history is None:
            raise no_history()
        if not view.ready:
            raise recovering(view.health().problem)
        query = self._read(route, view.kernel, request)
        asked = PastQuestion(
            query.tenant_id,
            query.model,
            query.block_size,
            query.lora_name,
            partial(prefixes_of, view.kernel, query, by_hash=route.by_hash),
        )
        past = await self._history.view_as_of(as_of, asked)
        scope, tokens, hit_tokens, answer, _ = self._take_steps(
            route, past, past.kernel, query, request
        )
        positions = positions_text(past.positions())
        state = request.state_of(past.state(scope))
        if request.span.is_recorded:
            of_index = (positions, state.value)
            request.span.note(query_attributes(scope, tokens, hit_tokens, *of_index))
        position = (b"reprise-position", positions.encode())
        headers = [TYPE_HEADERS[request.wire], position, _STATE_HEADERS[state]]
        return headers, answer

    def _take_steps(
        self,
        route: _Route,
        view: View | PastView,
        kernel: ReadOnlyKernel,
        query: Query,
        request: _Request,
        audit: AnswerAudit | None = None,
    ) -> PlainAnswer:
        """What the kernel's `answer` does by one call where all is plain."""
        wire, options = request.wire, request.options
        begun = None if audit is None else audit.begin(kernel)
        scope, matches = route.answer(kernel, query)
        audited = None
        if audit is not None and begun is not None:
            audited = audit.end(begun, kernel, SteppedAnswer(route.by_hash, query, scope, matches))
        if options.hits_only:
            matches = [match for match in matches if match.longest]
        if options.detail or options.only_exact:
            standings = view.instance_standings(scope)
            if not request.is_proven:
                standings = {
                    name: _UNPROVEN if one.state is AnswerState.EXACT else one
                    for name, one in standings.items()
                }
            groups: dict[str, int] = {}
            if options.detail:
                groups = limiting_groups(kernel, query, by_hash=route.by_hash)
            matches, answer = self._encode(query, standings, groups, matches, request)
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
        groups: dict[str, int],
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
            return matches, encode_detailed(query.tenant_id, matches, standings, groups, wire)
        return matches, encode_matches(query.tenant_id, matches, wire)

    @staticmethod
    def _read(route: _Route, kernel: ReadOnlyKernel, request: _Request) -> Query:
        wire, body, access = request.wire, request.body, request.access
        if request.form is BodyForm.OCTETS:
            return read_octets_query(body, request.url_query, access, by_hash=route.by_hash)
        if route.by_hash:
            return read_hash_query(body, wire, access)
        return read_prompt(kernel, body, wire, access)

    def _position_header(self, positions: Positions) -> tuple[bytes, bytes]:
        shown, header = self._position
        if positions != shown:
            header = (b"reprise-position", positions_text(positions).encode())
            self._position = (positions, header)
        return header
