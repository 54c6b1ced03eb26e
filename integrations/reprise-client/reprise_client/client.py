"""Asks Reprise where a request should go (`POST /route`), tells what became of it (`/feedback`).

Nothing here fails a request: whoever asks gets an answer within the time-out, or `Unanswered` with
a reason out of a closed set, and chooses by itself.
"""

import asyncio
import atexit
import json
import logging
import queue
import threading
import time
import uuid
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

ROUTE_TIMEOUT_S: Final = 0.1
"""Of one question, from the connection to the last byte of the answer."""

FEEDBACK_TIMEOUT_S: Final = 1.0
"""Of one report; nobody waits for it."""

ANSWER_BYTES_MAX: Final = 1 << 20
"""Of an answer, whoever sends it; a longer one is `garbage`."""

RETRY_AFTER_MAX_S: Final = 60
"""The longest that a refusal can ask for by the contract; what is more counts as this."""

OUTCOMES_MAX: Final = 4096
"""Outcomes that wait to be sent; one more is dropped (`outcomes_dropped`)."""

OUTCOMES_PER_POST_MAX: Final = 1024
"""By the contract of `/feedback`."""

OUTCOMES_GATHERED_S: Final = 0.05
"""Outcomes of so long go together: a report each would take the router's processor."""

QUESTIONS_JUDGED: Final = 20
"""By the last so many it is judged whether to ask at all."""

FAILURES_BEFORE_PAUSE: Final = 5
"""So many of these, in whatever order, and nothing is asked for `PAUSE_S`: one that is down, or too
busy to answer in time, costs requests nothing, rather than the time-out of every second one.
"""

PAUSE_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0
"""Then one question is a trial: where it fails, the next pause is twice as long, up to this."""

CONNECTIONS_MAX: Final = 256
"""To all servers together, of one event loop; a question that finds none free times out."""

KEPT_S: Final = 3.0
"""How long an idle connection is kept: less than servers do (5 s, as a rule), or a question meets
one that its server is closing.
"""

LOG_PERIOD_S: Final = 60.0
"""Failures are logged at most once in this time, all together."""


class Unanswered(Exception):
    """There is no decision.

    Attributes:
        reason: `timeout`, `unreachable`, `paused`, `no_candidate`, `rejected` (4xx), `status`
            (any other but 200), or `garbage`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Decision:
    """Where to send the request. `decision_id` is what outcomes name."""

    decision_id: str
    instance_id: str
    dp_rank: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """No instance can meet the objective now (429); one may in `retry_after_s` whole seconds."""

    reason: str
    retry_after_s: int


class Report:
    """Counts by name, and logs failures together, once a minute; of any thread."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        """`logger` is told; `clock` is monotonic, seconds."""
        self._logger = logger
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._untold: Counter[str] = Counter()
        self._told_at = -LOG_PERIOD_S

    @property
    def counts(self) -> dict[str, int]:
        """By name since the process began."""
        with self._lock:
            return dict(self._counts)

    def count(self, name: str, of: int = 1) -> None:
        """Nothing is wrong."""
        with self._lock:
            self._counts[name] += of

    def fail(self, name: str, of: int = 1) -> None:
        """Counts, and logs what was not logged yet if that was a minute ago."""
        with self._lock:
            self._counts[name] += of
            self._untold[name] += of
            now = self._clock()
            if now - self._told_at < LOG_PERIOD_S:
                return
            told = ", ".join(f"{key} {value}" for key, value in sorted(self._untold.items()))
            self._untold.clear()
            self._told_at = now
        self._logger.warning(
            "Reprise was no help to some requests, which went where they go without it: %s", told
        )


class Pause:
    """Whether to ask somebody at all: not for a while, where many of the last questions failed."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic, seconds."""
        self._clock = clock
        self._failed: deque[bool] = deque(maxlen=QUESTIONS_JUDGED)
        self._length_s = 0.0  # of the pause; 0 for none
        self._since = self._until = 0.0

    @property
    def active(self) -> bool:
        """Whether it lasts."""
        return self._clock() < self._until

    @property
    def failures(self) -> int:
        """Of the last questions."""
        return sum(self._failed)

    def begin(self) -> float:
        """A question is asked; its name. Behind a pause it is a trial, and others wait for it."""
        now = self._clock()
        if self._length_s:
            self._until = now + self._length_s
        return now

    def failed(self, began: float) -> None:
        """That question has no answer."""
        if self._length_s:
            if began <= self._since:  # it was asked before the pause
                return
            self._length_s = min(2 * self._length_s, PAUSE_MAX_S)
        else:
            self._failed.append(True)
            if self.failures < FAILURES_BEFORE_PAUSE:
                return
            self._length_s = PAUSE_S
        self._since = self._clock()
        self._until = self._since + self._length_s

    def worked(self, began: float) -> None:
        """That question was answered."""
        if not self._length_s:
            self._failed.append(False)
        elif began > self._since:
            self._failed.clear()
            self._length_s = self._until = 0.0


class _Connector(aiohttp.TCPConnector):
    """Is left open: its loop is the host's, and ends as that ends it."""

    def __del__(self, _warnings: Any = None) -> None:
        """Warns of nothing, which aiohttp would do."""


class _Http:
    """POST with kept connections and bounded answers, from any number of event loops."""

    def __init__(self) -> None:
        # A connection belongs to the loop that opened it.
        self._sessions: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, aiohttp.ClientSession
        ] = weakref.WeakKeyDictionary()

    async def post(
        self, url: str, content: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[int, Mapping[str, str], bytes]:
        """The status, the headers and the body, of at most ANSWER_BYTES_MAX as they were sent.

        Raises:
            Unanswered: `timeout`, `unreachable` or `garbage`.
        """
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session().post(
                    url,
                    data=content,
                    headers={"Content-Type": "application/json", **headers},
                    allow_redirects=False,
                ) as response,
            ):
                body = bytearray()
                async for part in response.content.iter_any():
                    body += part
                    if len(body) > ANSWER_BYTES_MAX:
                        raise Unanswered("garbage")
                return response.status, response.headers, bytes(body)
        except TimeoutError:
            raise Unanswered("timeout") from None
        except (aiohttp.ClientError, ValueError, OSError):
            raise Unanswered("unreachable") from None

    async def close(self) -> None:
        """Ends the connections of the loop that runs."""
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            atexit.unregister(session.detach)
            await session.close()

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None:
            # Inside a cluster: no proxy of the environment, no cookies, nothing compressed.
            session = self._sessions[loop] = aiohttp.ClientSession(
                connector=_Connector(limit=CONNECTIONS_MAX, keepalive_timeout=KEPT_S),
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept-Encoding": "identity"},
                auto_decompress=False,
            )
            atexit.register(session.detach)  # or aiohttp says that nobody closed it
        return session


class Client:
    """One Reprise service, for all requests of a process."""

    def __init__(
        self,
        url: str,
        report: Report,
        *,
        api_key: str = "",
        timeout_s: float = ROUTE_TIMEOUT_S,
    ) -> None:
        """`url` as `http://reprise:13333`; nothing is connected yet."""
        self._url = url.rstrip("/")
        self._report = report
        self._timeout_s = timeout_s
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = _Http()
        self._pause = Pause()
        self._outbox = _Outbox(f"{self._url}/feedback", self._headers, self._http, report)

    async def route(self, question: Mapping[str, Any]) -> Decision | Refusal:
        """What it answers to the fields of `/route`; `request_id` is added.

        Raises:
            Unanswered: it has no answer, or none in time; whatever it may have booked is cancelled.
            TypeError, ValueError: the question cannot be JSON.
        """
        self._outbox.start()
        if self._pause.active:
            raise Unanswered("paused")
        request_id = uuid.uuid4().hex
        asked = {"request_id": request_id, **question}
        content = json.dumps(asked, separators=(",", ":")).encode()
        began = self._pause.begin()
        try:
            status, headers, body = await self._http.post(
                f"{self._url}/route", content, self._headers, self._timeout_s
            )
            answer = _decoded(status, headers, body)
        except Unanswered as error:
            # "No candidate" is an answer of a service that works.
            if error.reason == "no_candidate":
                self._pause.worked(began)
            else:
                self._pause.failed(began)
            if error.reason in ("timeout", "garbage"):
                self.tell({"request_id": request_id, "event": "cancelled"})
            raise
        except asyncio.CancelledError:
            self.tell({"request_id": request_id, "event": "cancelled"})
            raise
        self._pause.worked(began)
        # Its text could not be made tokens of, which Reprise's own log and metrics explain.
        if headers.get("Reprise-Tokens", "").startswith("none"):
            self._report.count("route_by_load")
        return answer

    def tell(self, outcome: dict[str, Any]) -> None:
        """Queues an outcome, the time of which is now; of any thread."""
        self._outbox.put({**outcome, "at": time.time()})

    def close(self, timeout_s: float = FEEDBACK_TIMEOUT_S) -> None:
        """Sends what waits, for at most that long; blocks."""
        self._outbox.close(timeout_s)


def _decoded(status: int, headers: Mapping[str, str], body: bytes) -> Decision | Refusal:
    if status == 503:
        raise Unanswered("no_candidate")
    if status not in (200, 429):
        raise Unanswered("rejected" if 400 <= status < 500 else "status")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise Unanswered("garbage") from None
    if not isinstance(document, dict):
        raise Unanswered("garbage")
    if status == 429:
        return Refusal(str(document.get("reason", ""))[:64], _retry_after_s(headers))
    chosen = document.get("prefill")
    decision_id = document.get("decision_id")
    if not isinstance(chosen, dict) or not isinstance(decision_id, str):
        raise Unanswered("garbage")
    instance_id, dp_rank = chosen.get("instance_id"), chosen.get("dp_rank", 0)
    if not isinstance(instance_id, str) or type(dp_rank) is not int:
        raise Unanswered("garbage")
    return Decision(decision_id, instance_id, dp_rank)


def _retry_after_s(headers: Mapping[str, str]) -> int:
    text = headers.get("Retry-After", "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return 1
    return min(max(int(text), 1), RETRY_AFTER_MAX_S)


class _Outbox:
    """Outcomes on their way, sent by a thread of its own: no event loop waits for them.

    Each is sent once. One that is lost costs the accuracy of the load that Reprise sees, until its
    booking expires.
    """

    def __init__(self, url: str, headers: Mapping[str, str], http: _Http, report: Report) -> None:
        self._url = url
        self._headers = headers
        self._http = http
        self._report = report
        self._waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread with the first request, so after a server has forked its workers."""
        if self._thread is not None and self._thread.is_alive():
            return
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="reprise", daemon=True)
                self._thread.start()

    def put(self, outcome: dict[str, Any]) -> None:
        """Queues it, or drops it where too many wait."""
        if self._waiting.qsize() >= OUTCOMES_MAX:
            self._report.fail("outcomes_dropped")
        else:
            self._waiting.put(outcome)

    def close(self, timeout_s: float) -> None:
        """Ends the thread behind what waits; gives up after `timeout_s`."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        asyncio.run(self._send_all())

    async def _send_all(self) -> None:
        """Has a loop to itself, which may block."""
        closing = False
        while not closing:
            batch = [self._waiting.get()]
            if batch[0] is not None:
                await asyncio.sleep(OUTCOMES_GATHERED_S)
            with suppress(queue.Empty):
                while len(batch) < OUTCOMES_PER_POST_MAX and batch[-1] is not None:
                    batch.append(self._waiting.get_nowait())
            closing = batch[-1] is None
            outcomes = [one for one in batch if one is not None]
            if outcomes:
                await self._send(outcomes)
        await self._http.close()

    async def _send(self, outcomes: list[dict[str, Any]]) -> None:
        try:
            content = json.dumps(outcomes, separators=(",", ":")).encode()
            status, _, _ = await self._http.post(
                self._url, content, self._headers, FEEDBACK_TIMEOUT_S
            )
        except (Unanswered, ValueError, TypeError):
            status = 0
        if 200 <= status < 300:
            self._report.count("outcomes_sent", len(outcomes))
        else:
            self._report.fail("outcomes_lost", len(outcomes))
