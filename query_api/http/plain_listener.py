"""`POST /query`, `/query_by_hash`, `/route` and `/feedback` at their plainest, without Python.

Threads of the Rust kernel (`streams/kernel/native/listener`) accept the clients' connections and
answer whatever is nothing but a query, byte for byte as `query_endpoint` does, or a decision or a
report, as `routing.http.endpoint` does. A connection on
which anything else comes is handed over, with what has come, to the server
(`reprise.http.handover`). So this side answers 200 or nothing, waits for no thread of Python, and
words no error.

What answers say of the table it asks `PlainAnswers`, and keeps for as long as that says, or until
something changes (`query_api.ports.View.notify`).
"""

from collections.abc import Callable, Sequence
from os import cpu_count
from typing import Final, NamedTuple, Protocol

from query_api.access.guard import Guard
from query_api.http.feature import PlainDecisions
from query_api.http.metrics import HttpMetrics, QueryMetrics
from query_api.ports import View
from schemas.answer_states import AnswerState
from schemas.clock import REAL_CLOCK
from schemas.identities import PrefixScope
from schemas.limits import HTTP_IDLE_S, MIB
from streams.kernel import native_listener
from streams.kernel.interface import Kernel

LISTENER_THREADS_MAX: Final = 4  # that answer plain queries; fewer where there are fewer cores
PLAIN_BODY_BYTES_MAX: Final = 2 * MIB  # of a plain query in part; the app has larger ones
PLAIN_BODIES_BYTES_MAX: Final = 64 * MIB  # of all of them; the app has what is beyond
PLAIN_REQUEST_S: Final = 1.0  # for a plain query to come; a slower one goes to the app
PLAIN_STATE_S: Final = 0.25  # after this it is asked again how far answers can be trusted

PATHS: Final = ("/query", "/query_by_hash", "/route", "/feedback")
_ACCEPTED: Final = "/feedback"  # 202, and no prompt is asked about
THREADS: Final = min(cpu_count() or 1, LISTENER_THREADS_MAX)
_STATES: Final = tuple(AnswerState)
_NUMBERS: Final = {state: number for number, state in enumerate(_STATES)}


class HandedOver(NamedTuple):
    """A connection that is the server's from here on.

    Attributes:
        descriptor: of its socket; the caller's to close.
        received: what has come of a request.
        unsent: what is still to be sent of an answer.
        age_s: how long it has waited.
        is_last: whether the listener found no room for it either.
    """

    descriptor: int
    received: bytes
    unsent: bytes
    age_s: float
    is_last: bool


class AnswerCounts(NamedTuple):
    """What was answered on one path: `*_counts` by bucket, `*_sum` of the values."""

    answered: int
    seconds_counts: Sequence[int]
    seconds_sum: float
    tokens_counts: Sequence[int]
    tokens_sum: float
    hit_tokens: int


class PlainListener(Protocol):
    """The threads of the Rust kernel that listen. Any thread may call it.

    Attributes:
        bell: a descriptor that can be read when something was handed over.
        held_bytes: of requests' bodies that have come in part.
    """

    bell: int
    open: int
    held_bytes: int

    def take(self) -> list[tuple[int, bytes, bytes, float, bool]]:
        """What was handed over since the last call, each as a `HandedOver`."""
        ...

    def give(self, descriptor: int, served: bool, has_room: bool, /) -> None:
        """Takes a connection, and its descriptor, on which no request is under way. Where there is
        no room it takes the place of one that is idle, or comes back as the last.
        """
        ...

    def close_idle(self) -> None:
        """Closes one that is idle, soon, where there is one: another takes its place."""
        ...

    def change(self) -> None:
        """What `PlainAnswers` said holds no more."""
        ...

    def admit(
        self,
        field: bytes,
        seconds: float,
        queries: bool,
        routes: bool,
        reports: bool,
        tenants: list[str] | None,
        /,
    ) -> None:
        """Queries, requests to be routed, and reports with that `Authorization` field are answered
        for so long, where keys are needed, if they are about these tenants; None: about any. Others
        are handed over.
        """
        ...

    def forget_admitted(self) -> None:
        """None is any more, until `admit` says so again."""
        ...

    def take_admitted(self) -> list[tuple[bytes, int]]:
        """How many requests of each field were answered since the last call."""
        ...

    def note_others(self, count: int, /) -> None:
        """So many connections are the server's: they count towards the bound of all."""
        ...

    def take_counted(self) -> list[tuple[int, list[int], float, list[int], float, int]]:
        """What was answered since the last call: a `AnswerCounts` for each of `PATHS`."""
        ...

    def take_ended(self) -> tuple[int, int]:
        """Since the last call: how many connections were closed for another one, and how many
        requests were handed over for an unexpected error.
        """
        ...

    def stop(self) -> None:
        """Accepts no more, closes what is idle, hands over what is not; returns once the threads
        have ended.
        """
        ...


class PlainAnswers:
    """What such a listener asks of one app. Its threads call it.

    Args:
        metrics: of the app; shows what the listener has answered.
        guard: says whose queries may be answered there; None: everybody's.
        is_traced: whether queries that have a `traceparent` are to have spans, and so are handed
            over.
        decisions: what it decides by; None: it hands over all of `/route`.
        monotonic: seconds.

    Attributes:
        answered: requests, as of the last `count`.
        paths: that it answers, once it listens.
    """

    def __init__(
        self,
        view: View,
        metrics: HttpMetrics,
        guard: Guard | None = None,
        *,
        is_traced: bool = False,
        decisions: PlainDecisions | None = None,
        monotonic: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._view = view
        self._is_traced = is_traced
        self._metrics = metrics
        self._guard = guard
        self._decisions = decisions
        self._listener: PlainListener | None = None
        self.answered = 0
        self.paths: frozenset[bytes] = frozenset()
        metrics.when_collected = self.count

    def listen(
        self,
        descriptor: int,
        *,
        connections_max: int,
        descriptor_max: int,
        threads: int = THREADS,
    ) -> PlainListener:
        """Starts a listener.

        Args:
            descriptor: of a socket that listens; it is given up.
            connections_max: that may be open at once, those of the server included.
            descriptor_max: the highest that a connection may have.
        """
        assert native_listener is not None, "there is none without the Rust kernel"
        queries = QueryMetrics()
        boards = None if self._decisions is None else self._decisions.begin()
        answered = PATHS if boards is not None else PATHS[:2]
        self.paths = frozenset(path.encode() for path in answered)
        listener: PlainListener = native_listener(
            descriptor,
            self,
            threads=threads,
            states=[state.value for state in _STATES],
            seconds=queries.seconds.bounds,
            tokens=queries.tokens.bounds,
            body_bytes=PLAIN_BODY_BYTES_MAX,
            bodies_bytes=PLAIN_BODIES_BYTES_MAX,
            request_s=PLAIN_REQUEST_S,
            idle_s=HTTP_IDLE_S,
            connections=connections_max,
            descriptor_max=descriptor_max,
            needs_keys=self._guard is not None,
            answers_traced=not self._is_traced,
            boards=boards,
        )
        self._listener = listener
        if self._guard is not None:
            self._guard.when_admitted = listener.admit
            self._guard.when_changed = listener.forget_admitted
        self._view.notify(listener.change)
        return listener

    # What the listener asks

    def kernel(self) -> tuple[Kernel, float] | None:
        """What is answered from, and for how many seconds; None where the app has to answer."""
        view = self._view
        kernel = view.kernel
        if not view.ready or kernel.name != "rust":
            return None
        return kernel, PLAIN_STATE_S  # type: ignore[return-value]

    def state(
        self, tenant_id: str, model_name: str, lora_name: str, block_size: int, salt: str
    ) -> tuple[int, float]:
        """The state of answers in a scope, as a number, and for how many seconds it holds."""
        scope = PrefixScope(tenant_id, model_name, lora_name, block_size, salt)
        state, until = self._view.verdict(scope)
        return _NUMBERS[state], max(min(until - self._monotonic(), PLAIN_STATE_S), 0.0)

    def renew(self) -> None:
        """Lets those through for longer whose keys are still keys; to be called about once a
        second, on the loop.
        """
        if self._guard is not None and self._listener is not None:
            self._guard.renew(self._listener.take_admitted())

    # Metrics

    def count(self) -> None:
        """Adds what the listener has answered to the app's metrics. On the loop."""
        if self._listener is None:
            return
        self.renew()
        taken = map(AnswerCounts._make, self._listener.take_counted())
        for path, counted in zip(PATHS, taken, strict=True):
            if not counted.answered:
                continue
            self.answered += counted.answered
            if path == _ACCEPTED:
                self._metrics.requests[path, 202] += counted.answered
            else:
                self._metrics.requests[path, 200] += counted.answered
                self._metrics.queries(path).add(
                    (counted.seconds_counts, counted.seconds_sum),
                    (counted.tokens_counts, counted.tokens_sum),
                    counted.hit_tokens,
                )


def plain_answers(
    view: View,
    metrics: HttpMetrics,
    *,
    only_exact: bool,
    guard: Guard | None = None,
    is_traced: bool = False,
    decisions: PlainDecisions | None = None,
) -> PlainAnswers | None:
    """None where there can be none: without the Rust kernel, where answers leave out what is not
    exact, and where each address may ask so often only.
    """
    if native_listener is None or only_exact or view.kernel.name != "rust":
        return None
    if guard is not None and guard.address_rate is not None:
        return None
    return PlainAnswers(view, metrics, guard, is_traced=is_traced, decisions=decisions)
