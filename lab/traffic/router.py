"""A small router: asks Reprise who should get a prompt, sends it there, reports what became of it.

Beside the real engines others exist in memory only (`lab.traffic.shadows`), which get the
same requests routed in other ways. The difference is what `/route` is worth.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from threading import Event
from typing import Final, NamedTuple

import msgspec

from lab.engines.engine import EngineReady, GenerateAnswer, GenerateRequest
from lab.traffic.conversations import Turn
from lab.traffic.http_json import JsonConnection
from lab.traffic.index_client import (
    Candidate,
    IndexClient,
    OutcomeReport,
    RouteAnswer,
    ServiceError,
)
from lab.traffic.scoring import Scorer, Target, Weights
from lab.traffic.shadows import Alternatives, Comparison, ShadowOutcome
from lab.traffic.stats import Promise, Stats

IN_FLIGHT_MAX: Final = 64
"""Requests wait for others beyond that: engines that stand still get no more."""

ENGINE_TIMEOUT_S: Final = 20.0
_STOP_POLL_S: Final = 0.05


class DispatchedRequest(NamedTuple):
    """A request under way.

    Attributes:
        at: when, on the monotonic clock.
        answer: what `/route` said; None where it did not answer.
        compared: what becomes of it elsewhere.
    """

    at: float
    turn: Turn
    target: Target
    answer: RouteAnswer | None
    compared: Comparison


class Router:
    """Routes turns over engines. All calls from one thread; requests wait in others."""

    def __init__(
        self,
        index: IndexClient,
        engines: Sequence[EngineReady],
        *,
        alternatives: Alternatives,
        weights: Weights | None = None,
    ) -> None:
        """All engines must serve the same model with the same block size."""
        if len({(engine.model, engine.block_size) for engine in engines}) != 1:
            raise ValueError("Expected engines of one model and one block size")
        self.stats = Stats()
        self.in_flight = 0
        self._index = index
        self._model, self._block_size = engines[0].model, engines[0].block_size
        self._urls = {e.instance_id: f"http://{e.http_host}:{e.http_port}" for e in engines}
        targets = [Target(e.instance_id, r.dp_rank) for e in engines for r in e.ranks]
        self._candidates = [
            Candidate(instance_id=name, dp_rank=rank, endpoint=self._urls[name])
            for name, rank in targets
        ]
        self._scorer = Scorer(targets, weights)
        self._alternatives = alternatives
        self._generated = msgspec.json.Decoder(GenerateAnswer)
        self._idle: dict[str, deque[JsonConnection]] = {name: deque() for name in self._urls}
        self._finished: SimpleQueue[tuple[DispatchedRequest, GenerateAnswer | None]] = SimpleQueue()
        self._pool = ThreadPoolExecutor(IN_FLIGHT_MAX, thread_name_prefix="router")
        self._closed = False

    def run(
        self,
        turns: Iterator[Turn],
        *,
        requests_per_s: float,
        stop: Event,
        then: Callable[[float], None],
    ) -> None:
        """Routes until `stop` is set; `then` is called with the time (monotonic) all along."""
        next_request = time.monotonic()
        while not stop.is_set():
            if time.monotonic() >= next_request and self.in_flight < IN_FLIGHT_MAX:
                self.send(next(turns))
                # What could not be kept up with is not caught up with.
                next_request = max(next_request + 1 / requests_per_s, time.monotonic())
            wait_s = next_request - time.monotonic()
            if self.in_flight >= IN_FLIGHT_MAX:
                wait_s = _STOP_POLL_S
            self.settle(min(max(wait_s, 0.0), _STOP_POLL_S))
            then(time.monotonic())

    def send(self, turn: Turn) -> None:
        """Sends one turn to whom `/route` names, or, where it does not answer, to whoever had the
        least to do lately.
        """
        answer = self._ask(turn.prompt)
        if answer is None:
            target = self._scorer.choose({}, len(turn.prompt))
        else:
            target = Target(answer.prefill.instance_id, answer.prefill.dp_rank)
        now = time.monotonic()
        compared = self._alternatives.run(turn, now)
        self.in_flight += 1
        self._pool.submit(self._wait, DispatchedRequest(now, turn, target, answer, compared))

    def settle(self, wait_s: float) -> list[GenerateAnswer | None]:
        """Takes what has come, and reports it; waits at most so long for the first one.

        Returns:
            What engines did; None for each that did not answer.
        """
        finished = []
        try:
            finished.append(self._finished.get(timeout=wait_s) if wait_s else self._next())
            while True:
                finished.append(self._next())
        except Empty:
            pass
        self.in_flight -= len(finished)
        reports = [report for one in finished for report in self._take(*one)]
        if reports:
            try:
                self._index.feedback(reports)
            except (OSError, ServiceError) as error:
                self.stats.failures[_named("POST /feedback", error)] += 1
        return [generated for _, generated in finished]

    def close(self) -> None:
        """Sends nothing more and closes the connections; the index client is the caller's."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._close_idle()

    def _next(self) -> tuple[DispatchedRequest, GenerateAnswer | None]:
        return self._finished.get_nowait()

    def _ask(self, prompt: Sequence[int]) -> RouteAnswer | None:
        start = time.perf_counter()
        try:
            answer = self._index.route(
                prompt,
                model=self._model,
                block_size=self._block_size,
                candidates=self._candidates,
            )
        except (OSError, ServiceError) as error:
            self.stats.failures[_named("POST /route", error)] += 1
            return None
        self.stats.record_latency(time.monotonic(), time.perf_counter() - start)
        return answer

    def _take(
        self, sent: DispatchedRequest, generated: GenerateAnswer | None
    ) -> list[OutcomeReport]:
        """Counts it; what is to be reported."""
        prompt_tokens = len(sent.turn.prompt)
        if generated is None:
            self.stats.failures[sent.target.instance_id] += 1
            # The engine that fails looks busy for a while, so that others are asked.
            self._scorer.record(sent.target, prompt_tokens)
            if sent.answer is None:
                return []
            return [OutcomeReport(decision_id=sent.answer.decision_id, event="failed")]
        self._scorer.record(sent.target, prompt_tokens - generated.cached_tokens)
        promise = None
        if sent.answer is not None:
            prefill = sent.answer.prefill
            # An engine always computes one token at least.
            reusable = (prompt_tokens - 1) // self._block_size * self._block_size
            cached_tokens = min(prefill.cached_tokens, reusable)
            promise = Promise(cached_tokens, prefill.ttft_ms.expected / 1000)
        outcome = ShadowOutcome(generated.cached_tokens, generated.ttft_s)
        self.stats.record_request(sent.at, prompt_tokens, outcome, sent.compared, promise)
        return [] if sent.answer is None else _reports(sent.answer.decision_id, generated)

    def _wait(self, sent: DispatchedRequest) -> None:
        """On a thread of its own."""
        self._finished.put((sent, self._generate(sent.target, sent.turn)))

    def _generate(self, target: Target, turn: Turn) -> GenerateAnswer | None:
        body = GenerateRequest(
            token_ids=list(turn.prompt), answer_ids=list(turn.answer), dp_rank=target.dp_rank
        )
        idle = self._idle[target.instance_id]
        try:
            connection = idle.pop()
        except IndexError:
            connection = JsonConnection(self._urls[target.instance_id], ENGINE_TIMEOUT_S)
        try:
            answer = connection.request("POST", "/generate", body)
            return self._generated.decode(answer.body) if answer.status == 200 else None
        except (OSError, msgspec.MsgspecError):
            return None
        finally:
            idle.append(connection)
            if self._closed:
                self._close_idle()

    def _close_idle(self) -> None:
        for idle in self._idle.values():
            while idle:
                idle.pop().close()


def _named(call: str, error: Exception) -> str:
    """What failed, for people; a refusal says itself what was asked."""
    return str(error) if isinstance(error, ServiceError) else f"{call} (no connection)"


def _reports(decision_id: str, generated: GenerateAnswer) -> list[OutcomeReport]:
    """Decoding takes simulated engines no time: the first token is the end as well."""
    return [
        OutcomeReport(
            decision_id=decision_id,
            event="first_token",
            ttft_ms=1000 * generated.ttft_s,
            queue_ms=1000 * generated.queue_s,
            prompt_tokens=generated.prompt_tokens,
            cached_tokens=generated.cached_tokens,
        ),
        OutcomeReport(decision_id=decision_id, event="completed"),
    ]
