"""`GET /events`: what the live page shows, as it changes, in a stream of server-sent events.

    history     {"points": [...], "counted": [...]}: a `HistoryPoint` for each ten seconds of the
                last hour, and what was counted in the last minute; first of all, and not for who
                may see some tenants
    summary     a `Summary`, about once a second
    instances   {"whole": ..., "rows": [...], "gone": [[tenant, instance], ...]}: those that have
                changed since the last such event; all of them first, and after something was lost
    decisions   {"decisions": [...], "skipped": n}: new ones, the latest first

One producer looks for all clients, and only while there are some; what the history is made of is
counted always. A client that reads slowly loses
what is oldest, which is counted, and then gets everything anew. The `id` of an event names the last
decision that was told, so that `Last-Event-ID` goes on behind it.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from typing import Final

import msgspec
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import StreamingResponse

from page.fleet import InstanceKey
from page.history import History
from page.summary import Summary, SummarySource
from query_api.access.rights import Access
from query_api.http.caller import access_of
from query_api.http.errors import RequestError
from query_api.http.route_table import Routes
from query_api.http.wire import header
from routing.http.decisions import decision_summary
from schemas.clock import REAL_CLOCK, Clock

EVENT_STREAMS_OF_KEY_MAX: Final = 8  # clients with one key that is for some tenants
EVENT_STREAMS_MAX: Final = 32  # clients of `GET /events`: reason="too_many_streams"
EVENTS_WAITING_MAX: Final = 64  # for one client that reads slowly; the oldest go: `dropped`
EVENTS_PERIOD_S: Final = 1.0  # between two looks; longer where that takes EVENTS_CPU_SHARE
EVENTS_CPU_SHARE: Final = 0.05  # of a core, that looks for the streams may take
EVENTS_COMMENT_S: Final = 15.0  # without an event, before a comment shows that it is alive
EVENTS_STREAM_S: Final = 600.0  # of one stream; then the client asks again, and shows its key
EVENTS_DECISIONS_MAX: Final = 10  # in one period; further ones are counted: `skipped`
HISTORY_PERIOD_S: Final = 10.0  # between two points of the live page's charts

logger = logging.getLogger(__name__)

_HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}
_encode = msgspec.json.encode


class _Row(msgspec.Struct):
    """An instance, and how it is sent."""

    tenant_id: str
    state: str
    encoded: bytes


class EventStream:
    """What one client is told. Used on the loop.

    Attributes:
        dropped: events that it was too slow for.
    """

    def __init__(self, access: Access, told: int) -> None:
        """Args:
        told: the place of the last decision that it knows.
        """
        self.access = access
        self.dropped = 0
        self._told = told
        self._sent: dict[InstanceKey, bytes] = {}
        self._is_whole = True
        self._waiting: deque[bytes] = deque()
        self._bell = asyncio.Event()
        self._ended = False

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._bell.set()

    def put(self, event: str, run: int, body: bytes) -> None:
        """One more event, for when the client reads it."""
        if len(self._waiting) >= EVENTS_WAITING_MAX:
            self.dropped += len(self._waiting)
            self._waiting.clear()
            self._sent.clear()
            self._is_whole = True
            return
        head = f"event: {event}\nid: {run:x}-{self._told:x}\ndata: "
        self._waiting.append(head.encode() + body + b"\n\n")
        self._bell.set()

    def put_rows(self, run: int, rows: dict[InstanceKey, _Row]) -> None:
        """What has changed of the instances that it may see. Cost O(rows)."""
        sent = self._sent
        news = [
            (key, row.encoded)
            for key, row in rows.items()
            if sent.get(key) != row.encoded and self.access.admits(row.tenant_id)
        ]
        gone = [key for key in sent if key not in rows]
        if not news and not gone and not self._is_whole:
            return
        whole = b"true" if self._is_whole else b"false"
        body = b"".join(
            (
                *(b'{"whole":', whole, b',"rows":[', b",".join(encoded for _, encoded in news)),
                *(b'],"gone":', _encode(gone), b"}"),
            )
        )
        self._is_whole = False
        for key in gone:
            del sent[key]
        sent.update(news)
        self.put("instances", run, body)

    def put_decisions(self, run: int, source: SummarySource) -> None:
        """New decisions that it may see, as far as there is room."""
        if source.router is None:
            return
        noted, found = source.router.live.recent_after(
            self._told, EVENTS_DECISIONS_MAX, self.access.admits
        )
        if not found:
            self._told = noted
            return
        skipped = noted - self._told - len(found) if self.access.tenants is None else 0
        self._told = noted
        shown = [decision_summary(one) for one in found]
        self.put("decisions", run, _encode({"decisions": shown, "skipped": skipped}))

    async def events(self) -> AsyncIterator[bytes]:
        """What is to be sent, for EVENTS_STREAM_S at the most: then a key is asked for anew."""
        yield b"retry: 2000\n\n"
        clock = asyncio.get_running_loop().time
        until = clock() + EVENTS_STREAM_S
        while not self._ended and clock() < until:
            while self._waiting:
                yield self._waiting.popleft()
            self._bell.clear()
            if self._ended:
                return
            try:
                await asyncio.wait_for(self._bell.wait(), EVENTS_COMMENT_S)
            except TimeoutError:
                yield b": still here\n\n"


class EventProducer(Collector):
    """Looks at the service for all streams. Used on its loop, which it takes from the first client.

    Attributes:
        run: names what this process has told: Unix microseconds of its start.
        history: of the last hour.
        dropped: events that clients were too slow for.
        failed_looks: that ended in an error, which was logged.
    """

    def __init__(self, source: SummarySource, *, clock: Clock = REAL_CLOCK) -> None:
        self._clock = clock
        self.run = int(clock.unix() * 1e6)
        self.history = History()
        self.dropped = self.failed_looks = 0
        self._source = source
        self._streams: set[EventStream] = set()
        self._looking: asyncio.Task[None] | None = None
        self._remembering: asyncio.Task[None] | None = None
        self._look_soon = asyncio.Event()
        self._is_closed = False

    def open(self, access: Access, last_id: str = "") -> EventStream:
        """A stream for one more client.

        Args:
            last_id: of the last event that it has, or "".

        Raises:
            RequestError: 503; there are EVENT_STREAMS_MAX already, or EVENT_STREAMS_OF_KEY_MAX of
                a key that is for some tenants, or the service stops.
        """
        if self._is_closed or len(self._streams) >= EVENT_STREAMS_MAX:
            text = f"Expected at most {EVENT_STREAMS_MAX} streams, got one more; close a page"
            if self._is_closed:
                text = "The service stops; try again"
            raise _too_many(text)
        if access.tenants is not None:
            of_key = sum(one.access.key_id == access.key_id for one in self._streams)
            if of_key >= EVENT_STREAMS_OF_KEY_MAX:
                text = f"Expected at most {EVENT_STREAMS_OF_KEY_MAX} streams of a key, got one more"
                raise RequestError(
                    "too_many_streams", text, status=503, headers={"retry-after": "5"}
                )
        self.begin()
        stream = EventStream(access, self._told(last_id))
        if access.tenants is None:
            told = {"points": self.history.points(), "counted": self.history.counted()}
            stream.put("history", self.run, _encode(told))
        self._streams.add(stream)
        self._look_soon.set()
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look_on())
        return stream

    def begin(self) -> None:
        """The history begins, if it has not; to be called on the loop once the service serves."""
        if self._remembering is None and not self._is_closed:
            self._remembering = asyncio.get_running_loop().create_task(self._remember())

    def _told(self, last_id: str) -> int:
        """The place of the last decision that a client knows. Who knows none of this run is told of
        the latest few.
        """
        run, _, place = last_id.partition("-")
        with suppress(ValueError):
            if len(last_id) <= 40 and int(run, 16) == self.run:
                return max(int(place, 16), 0)
        router = self._source.router
        return 0 if router is None else max(router.live.noted() - EVENTS_DECISIONS_MAX, 0)

    def close(self, stream: EventStream) -> None:
        """The client has gone."""
        self._streams.discard(stream)
        self.dropped += stream.dropped
        stream.dropped = 0
        stream.end()

    def end(self) -> None:
        """All streams end, and no more are opened: the service stops."""
        self._is_closed = True
        if self._remembering is not None:
            self._remembering.cancel()
        for stream in list(self._streams):
            stream.end()

    async def _remember(self) -> None:
        while not self._is_closed:
            try:
                self.history.note(self._source.counted())
            except Exception:
                self.failed_looks += 1
                logger.exception("Unexpected error in what the history is made of; going on")
            await asyncio.sleep(HISTORY_PERIOD_S)

    async def _look_on(self) -> None:
        while self._streams and not self._is_closed:
            self._look_soon.clear()
            took_s = 0.0
            try:
                took_s = await self._look()
            except Exception:
                self.failed_looks += 1
                logger.exception("Unexpected error in what /events tells; going on")
            pause_s = max(EVENTS_PERIOD_S, took_s / EVENTS_CPU_SHARE)
            with suppress(TimeoutError):  # who has just come waits no longer than a period
                await asyncio.wait_for(self._look_soon.wait(), pause_s)
                await asyncio.sleep(min(EVENTS_PERIOD_S, pause_s) / 4)
        self._looking = None

    async def _look(self) -> float:
        """One look for all; the seconds of CPU that it took."""
        summary = self._source.summary()
        rows, took_s = await asyncio.to_thread(self._rows)
        began = self._clock.thread_cpu()
        summary.event_streams = len(self._streams)
        summary.instances = len(rows)
        summary.states = _states(rows.values())
        for_all = _encode(summary)
        for stream in list(self._streams):
            if stream.access.tenants is None:
                body = for_all
            else:
                body = _encode(_for_some(summary, rows, stream.access))
            stream.put("summary", self.run, body)
            stream.put_rows(self.run, rows)
            stream.put_decisions(self.run, self._source)
            self.dropped += stream.dropped
            stream.dropped = 0
        return took_s + self._clock.thread_cpu() - began

    def _rows(self) -> tuple[dict[InstanceKey, _Row], float]:
        began = self._clock.thread_cpu()
        rows = {
            (one.tenant_id, one.instance_id): _Row(one.tenant_id, one.state, _encode(one))
            for one in self._source.rows()
        }
        return rows, self._clock.thread_cpu() - began

    def describe(self) -> list[Metric]:
        """See `Collector`: the families, without samples."""
        return [GaugeMetricFamily("reprise_event_streams", "")]

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        yield GaugeMetricFamily(
            "reprise_event_streams",
            "Clients that read /events: open live pages, mostly.",
            value=len(self._streams),
        )
        yield CounterMetricFamily(
            "reprise_events_dropped",
            "Events of /events that clients were too slow for; they got everything anew.",
            value=self.dropped,
        )
        yield CounterMetricFamily(
            "reprise_event_looks_failed",
            "Looks for /events that ended in an error, which is in the log.",
            value=self.failed_looks,
        )


def _too_many(text: str) -> RequestError:
    return RequestError("too_many_streams", text, status=503, headers={"retry-after": "5"})


def _states(rows: Iterable[_Row]) -> dict[str, int]:
    return dict(Counter(row.state for row in rows))


def _for_some(summary: Summary, rows: dict[InstanceKey, _Row], access: Access) -> Summary:
    """Of its tenants alone; the health of the service is everybody's."""
    own = [row for row in rows.values() if access.admits(row.tenant_id)]
    return msgspec.structs.replace(
        summary,
        instances=len(own),
        states=_states(own),
        queries=None,
        routing=None,
        index=None,
        event_streams=None,
    )


def event_routes(producer: EventProducer) -> Routes:
    """The one route."""
    routes = Routes(tags=["views"])

    @routes.get(
        "/events",
        summary="What the live page shows, as it changes: server-sent events",
        response_class=StreamingResponse,
    )
    async def events(request: Request) -> StreamingResponse:
        last_id = header(request.headers.raw, b"last-event-id").decode("latin-1")
        stream = producer.open(access_of(request), last_id)

        async def told() -> AsyncIterator[bytes]:
            try:
                async for event in stream.events():
                    yield event
            finally:
                producer.close(stream)

        return StreamingResponse(told(), media_type="text/event-stream", headers=_HEADERS)

    return routes
