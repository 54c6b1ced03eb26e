"""The hot routes of routing: one for each request of a client, and one for what came of it."""

from collections.abc import Callable
from typing import Any, Final

from query_api.http.errors import RequestError
from query_api.http.feature import HttpParts
from query_api.http.origins import check_origin
from query_api.http.post_endpoint import TYPE_HEADERS, PostAnswer, PostEndpoint, PostRequest
from query_api.http.requests.queries import is_known
from query_api.http.traces import context_of
from query_api.http.wire import Wire, encode
from query_api.unknown_scopes import HEADER
from routing.decisions.kernel_decisions import is_plain
from routing.decisions.router import FeedbackCounts, Router
from routing.http.documents import (
    LoadDocument,
    feedback_document,
    refusal_document,
    retry_after,
    route_document,
)
from routing.http.requests import (
    candidates_as_posted,
    has_objective,
    read_feedback,
    read_load,
    read_route,
)
from routing.http.traces import note_route, take_traced
from routing.policies.table import PolicyError
from schemas.clock import REAL_CLOCK
from schemas.identities import PrefixScope
from schemas.routing_records import Refusal
from schemas.tracing import Span, SpanName

ROUTE: Final = "/route"
FEEDBACK: Final = "/feedback"
LOAD: Final = "/load"


class RoutingEndpoint(PostEndpoint):
    """Answers `POST /route`, `/feedback` and `/load`."""

    takes_octets = False
    text_paths = frozenset({ROUTE})
    goes_by_load = True

    def __init__(
        self,
        parts: HttpParts,
        router: Router,
        *,
        monotonic: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        """Args:
        monotonic: seconds since some moment.
        """
        super().__init__(parts.bodies, parts.default_wire, parts.metrics, parts.text)
        self._view = parts.view
        self._router = router
        self._unknown = parts.unknown
        self._tracer = parts.tracer
        self._monotonic = monotonic
        self._decided = parts.metrics.queries(ROUTE)
        self._answers: dict[str, Callable[[PostRequest], PostAnswer]] = {
            ROUTE: self._route,
            FEEDBACK: self._feedback,
            LOAD: self._load,
        }

    @property
    def paths(self) -> frozenset[str]:
        """See `PostEndpoint`."""
        return frozenset(self._answers)

    async def answer(self, posted: PostRequest) -> PostAnswer:
        """See `PostEndpoint`."""
        check_origin("POST", posted.headers)
        return self._answers[posted.path](posted)

    def _route(self, posted: PostRequest) -> PostAnswer:
        # Kept with the decision whether tracing is on or not: others may have it on.
        with self._tracer.begin(SpanName.ROUTE, context_of(posted.headers)) as span:
            return self._decide(posted, span)

    def begin(self) -> object | None:
        """See `PlainDecisions`. Where requests have spans, each is decided here."""
        if self._tracer.is_on:
            return None
        kernel = self._router.share_with_kernel()
        return None if kernel is None else kernel.boards

    def _decide(self, posted: PostRequest, span: Span) -> PostAnswer:
        started = self._monotonic()
        view, shared = self._view, self._router.kernel
        may_share = posted.wire is Wire.JSON and not (span.context or posted.missing)
        may_share = shared is not None and may_share and not has_objective(posted.headers)
        if shared is not None and may_share and view.ready:
            answered = shared.answer(view.kernel, posted.body, self._state, posted.access)
            if answered is not None:
                body, tokens, held = answered
                self._decided.count((self._monotonic() - started, tokens, held))
                headers = [TYPE_HEADERS[posted.wire]]
                return PostAnswer(200, headers, body, _has_length(posted))
        asked = read_route(
            posted.body,
            posted.wire,
            posted.headers,
            view.kernel,
            posted.access,
            is_ready=view.ready,
        )
        if span.context:
            asked = asked._replace(context=span.context)
        try:
            routed = self._router.route(asked)
        except PolicyError as error:
            raise RequestError("invalid_policy", str(error), field="policy") from error
        if span.is_recorded:
            note_route(span, asked, routed)
        decision = routed.decision
        if shared is not None and may_share and is_plain(asked) and routed.run == self._router.run:
            named = None if asked.candidates is None else candidates_as_posted(posted.body)
            shared.offer(asked, named)
        if posted.missing:
            self._router.live.note_by_load(routed.run, decision.number, posted.missing)
        headers = [TYPE_HEADERS[posted.wire]]
        why = None
        if not asked.matches and not is_known(view.kernel, asked.scope):
            why = self._unknown.note(asked.scope)
        if why is not None:
            headers.append((HEADER, why.text.encode()))
        if decision.refused is Refusal.NO:
            document = route_document(routed, explain=asked.explain, unknown=why)
            status, body = 200, encode(document, posted.wire)
        else:
            status = 503 if decision.refused is Refusal.NO_CANDIDATE else 429
            if status == 429:
                headers.append((b"retry-after", b"%d" % retry_after(routed)))
            body = encode(refusal_document(routed, why), posted.wire)
        self._decided.count((self._monotonic() - started, asked.prompt_tokens, decision.held))
        return PostAnswer(status, headers, body)

    def _state(self, *scope: Any) -> str:
        return self._view.state(PrefixScope(*scope)).value

    def _feedback(self, posted: PostRequest) -> PostAnswer:
        taken = self._taken_plainly(posted)
        is_plain = taken is not None and _has_length(posted)
        if taken is None:
            told = read_feedback(posted.body, posted.wire, posted.access)
            taken = take_traced(self._tracer, self._router, told, posted.headers)
        body = encode(feedback_document(taken), posted.wire)
        return PostAnswer(202, [TYPE_HEADERS[posted.wire]], body, is_plain)

    def _taken_plainly(self, posted: PostRequest) -> FeedbackCounts | None:
        """What came on a connection that the listener has not got, and is as it takes it."""
        shared = self._router.kernel
        if shared is None or posted.wire is not Wire.JSON or self._tracer.is_on:
            return None
        accepted = shared.report(posted.body, posted.access)
        return None if accepted is None else FeedbackCounts(accepted)

    def _load(self, posted: PostRequest) -> PostAnswer:
        samples = read_load(posted.body, posted.wire, self._router.now(), posted.access)
        self._router.observe(samples)
        body = encode(LoadDocument(len(samples)), posted.wire)
        return PostAnswer(202, [TYPE_HEADERS[posted.wire]], body)


def _has_length(posted: PostRequest) -> bool:
    """Whether the listener may read it: a body in chunks it hands over again and again."""
    return any(name == b"content-length" for name, _ in posted.headers)
