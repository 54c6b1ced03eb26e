"""The operations of routing that are guarded: a decision, its reports, and what is kept of both.

The endpoint is called as its server calls it, without a server; the routing log is a count.
"""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final, cast

import msgspec
from prometheus_client import CollectorRegistry
from starlette.types import Message

from lab.benchmarks.guard.operation import Operation
from lab.benchmarks.sizes import BLOCK_SIZE
from query_api.http.feature import HttpParts
from query_api.http.metrics import HttpMetrics
from query_api.http.requests.bodies import Bodies
from query_api.http.wire import Wire
from query_api.ports import PublisherRegistry, SegmentView, ServiceView, View
from query_api.unknown_scopes import UnknownScopes
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.router import Router
from routing.http.endpoint import FEEDBACK, ROUTE, RoutingEndpoint
from schemas.answer_states import AnswerState, Standing
from schemas.identities import PrefixScope
from schemas.positions import Position, PublisherState
from schemas.registration import Registration
from schemas.routing_records import (
    CandidateRecord,
    CostModel,
    DecidedScope,
    Decision,
    FeedbackReport,
    OutcomeEvent,
    Phase,
    PrefixMark,
)
from schemas.tracing import NO_TRACER
from streams.kernel.interface import Kernel

CANDIDATES: Final = (8, 64)
DECISIONS: Final = 200
REPORTS: Final = 256
LIST: Final = 64
"""Reports in one request."""

BOOKED: Final = 1_600
IN_WINDOW: Final = 16
"""Decisions that are written together, 50 ms after the ones before."""

WINDOW_S: Final = 0.05
FIRST_TOKEN_AFTER, END_AFTER = 3, 6
"""Windows until what was decided is reported of: its record has come back by then."""

RUN: Final = 1_700_000_000_000_000
STARTED: Final = RUN / 1e6
_HEADERS: Final = [(b"host", b"127.0.0.1:13333"), (b"content-type", b"application/json")]
_COSTS: Final = CostModel(0.0, 8000.0, 6e-10, 384_615.0, 60_000.0, 60_000.0, 15_259.0)


class _Table:
    """As much of a `View` as routing asks: engines that are there, and an index that is exact."""

    ready = True

    def __init__(self, kernel: Kernel, registrations: Sequence[Registration]) -> None:
        self.kernel = kernel
        standing = Standing(AnswerState.EXACT, "", 0.0)
        self._services = [
            ServiceView(one, PublisherState(), True, standing) for one in registrations
        ]

    def services(self) -> list[ServiceView]:
        return self._services

    def memory(self) -> list[SegmentView]:
        return []

    def state(self, scope: PrefixScope) -> AnswerState:
        return AnswerState.EXACT

    def positions(self) -> tuple[Position, ...]:
        return (Position(0, 1),)


class _Service:
    """A router behind its endpoint."""

    def __init__(self, kernel: Kernel, registrations: Sequence[Registration]) -> None:
        view = cast(View, _Table(kernel, registrations))
        self.live, self.queue = LiveLoad(), RoutingQueue()
        self.router = Router(view, self.queue, self.live)
        bodies = Bodies()
        metrics = HttpMetrics(CollectorRegistry(), bodies)
        registry = cast(PublisherRegistry, None)  # no registration is asked for
        service = (Wire.JSON, NO_TRACER, "")
        parts = HttpParts(view, registry, bodies, metrics, UnknownScopes(view), *service)
        self._endpoint = RoutingEndpoint(parts, self.router)
        self._offset = 0

    def post(self, path: str, body: bytes) -> bytes:
        """The answer's body."""
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "headers": _HEADERS, "query_string": b""}
        _run(self._endpoint.serve(path, scope, receive, send))
        assert sent[0]["status"] < 300, sent
        answer: bytes = sent[1]["body"]
        return answer

    def write(self, now: float) -> None:
        """What waits is in the log, and has come back."""
        for record in self.queue.take(now):
            self.live.follow(self._offset, record, now)
            self._offset += 1


def _run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Of one that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


def routing_operations(
    kernel: Kernel, registrations: Sequence[Registration], prompt: Sequence[int]
) -> Iterator[Operation]:
    """Of decisions about a prompt that the first engines hold whole.

    Args:
        kernel: that says so.
        registrations: of engines, at least as many as the most candidates.
        prompt: its tokens.
    """
    model = registrations[0].model_name
    body = msgspec.json.encode({"model": model, "block_size": BLOCK_SIZE, "token_ids": prompt})
    for count in CANDIDATES:
        known = registrations[:count]
        tokens = f"{len(prompt) // 1024}K tokens"
        yield Operation(
            f"route, {count} candidates, {tokens}", DECISIONS, partial(_routes, kernel, known, body)
        )
    known = registrations[: CANDIDATES[0]]
    for size, name in ((1, "one report"), (LIST, f"{LIST} reports, each")):
        reports = partial(_reports, kernel, known, body, size)
        yield Operation(f"feedback, {name}", REPORTS, reports)
    yield Operation("routing, a decision and its reports kept", BOOKED, _bookkeeping)


def _routes(kernel: Kernel, known: Sequence[Registration], body: bytes) -> Callable[[], object]:
    service = _Service(kernel, known)
    service.post(ROUTE, body)

    def work() -> None:
        for _ in range(DECISIONS):
            service.post(ROUTE, body)

    return work


def _reports(
    kernel: Kernel, known: Sequence[Registration], body: bytes, size: int
) -> Callable[[], object]:
    service = _Service(kernel, known)
    told = []
    for _ in range(REPORTS):
        answer = msgspec.json.decode(service.post(ROUTE, body))
        told.append({"decision_id": answer["decision_id"], "event": "first_token", "ttft_ms": 40})
    service.write(service.router.now())
    lists = [told[start : start + size] for start in range(0, REPORTS, size)]
    bodies = [msgspec.json.encode(one) for one in lists]

    def work() -> None:
        for one in bodies:
            service.post(FEEDBACK, one)

    return work


# What is kept of a decision and of its reports, by this service and by its fold of the log


def _bookkeeping() -> Callable[[], object]:
    live, queue = LiveLoad(), RoutingQueue()
    decided = [_decision(number) for number in range(BOOKED)]
    first = [
        _report(OutcomeEvent.FIRST_TOKEN, number, FIRST_TOKEN_AFTER) for number in range(BOOKED)
    ]
    ends = [_report(OutcomeEvent.COMPLETED, number, END_AFTER) for number in range(BOOKED)]
    windows = [range(start, start + IN_WINDOW) for start in range(0, BOOKED, IN_WINDOW)]
    reports = ((FIRST_TOKEN_AFTER, first), (END_AFTER, ends))

    def work() -> None:
        offset = 0
        for window in range(len(windows) + END_AFTER):
            if window < len(windows):
                for number in windows[window]:
                    live.book(RUN, decided[number])
                    queue.push_decision(RUN, decided[number])
            for after, outcomes in reports:
                if 0 <= window - after < len(windows):
                    for number in windows[window - after]:
                        live.report(RUN, outcomes[number])
                        queue.push_outcomes([(RUN, outcomes[number])])
            now = STARTED + WINDOW_S * (window + 1)
            for record in queue.take(now):
                live.follow(offset, record, now)
                offset += 1
        assert live.counts()["under_way"] == 0, "all of them have ended"

    return work


def _time(number: int, windows: int = 0) -> float:
    return STARTED + WINDOW_S * (number // IN_WINDOW + windows)


def _decision(number: int) -> Decision:
    count = CANDIDATES[0]
    return Decision(
        number,
        _time(number),
        f"{number:032x}",
        DecidedScope("default", "guard", "", BLOCK_SIZE, ""),
        "least-delay",
        (),
        AnswerState.EXACT.value,
        1024,
        100,
        Phase.COMBINED,
        0.0,
        0.0,
        0,
        "",
        0,
        0,
        False,
        (_COSTS,),
        tuple(
            CandidateRecord(f"engine-{one}", 0, cached=512, gpu=512, prefix=512, prefill_s=0.06)
            for one in range(count)
        ),
        number % count,
        -1,
        predicted_s=0.1,
        marks=tuple(PrefixMark(1 << depth, number << 8 | depth) for depth in range(7)),
        held=512,
    )


def _report(event: OutcomeEvent, number: int, windows: int) -> FeedbackReport:
    time = _time(number, windows)
    if event is OutcomeEvent.COMPLETED:
        return FeedbackReport(number, event, time, output_tokens=100)
    seconds = windows * WINDOW_S
    return FeedbackReport(
        number, event, time, prompt_tokens=1024, cached_tokens=512, ttft_s=seconds
    )
