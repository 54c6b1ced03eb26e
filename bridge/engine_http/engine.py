"""Asks engines over HTTP, each kind in its own way. Asyncio; one loop.

    kind    whether it is there   which process it is   where it publishes
    vLLM    /health               /metrics              /kv_event_sources (from 0.31.0 on)
    SGLang  /model_info           /server_info          /server_info

SGLang's own `/health` generates a token where nothing else runs, and so publishes events where its
pages are of one token, and takes at least a second (Source: SGLang 0.5.23, `http_server.py`). What
`/model_info` answers is known to its HTTP server alone; but SGLang ends all its processes with any.

Any answer below 500 says that the engine's HTTP server is there: an older release has not each
path, and one with an API key answers 401.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

from bridge.engine_http.address import BaseUrl, read_base_url
from bridge.engine_http.answers import (
    Process,
    PublisherSource,
    read_kv_event_sources,
    read_kv_events,
    read_server_info_process,
    read_start_time,
)
from bridge.engine_http.bounds import HTTP_ENGINE_BYTES_MAX, HTTP_ENGINE_WAIT_S
from bridge.engine_http.client import NoAnswerError, Reply, Room, get
from bridge.engine_http.exposition import metrics_path
from bridge.engine_http.facts import (
    CACHE_METRIC,
    HYBRID_METRICS_PATH,
    SLEEP_METRIC,
    sglang_facts,
    vllm_facts,
)
from bridge.engine_http.load_answers import WAYS
from bridge.sockets.allowed_engines import ALLOWED
from schemas.clock import REAL_CLOCK
from schemas.engine_facts import EngineFacts
from schemas.errors import EndpointError, RegistrationError
from schemas.limits import KIB, PUBLISHERS_MAX
from schemas.registration import NO_EVENTS, SGLANG, VLLM, PublisherKind, Registration

HTTP_METRICS_BYTES: Final = 256 * KIB  # of metrics: what tells of the process stands first
HTTP_ENGINES_AT_ONCE_MAX: Final = 64  # that are asked; a file each
HTTP_SILENT_AT_ONCE_MAX: Final = 16  # that are asked, of those that did not answer the last time

_logger = logging.getLogger(__name__)
_NOT_FOUND: Final = (404, 405)
_METRICS: Final = "/metrics"
_FILTERED: Final = metrics_path(CACHE_METRIC, SLEEP_METRIC)
_SLEEPING: Final = "/is_sleeping"


class Bodies(dict[str, bytes]):
    """What an engine answers with status 200, by path.

    Attributes:
        apart_most: by how much our monotonic clock is ahead of the engine's of Unix seconds, at the
            most, as its answers say; infinite where they say no time.
    """

    apart_most = math.inf


class NoEngineError(Exception):
    """What answers at an HTTP address is no engine; the text says what it answers."""


class _Kind(NamedTuple):
    """How a kind of engine is asked; of several paths the first that is known there."""

    health: str
    process: tuple[str, ...]
    read_process: Callable[[bytes], Process | None]
    sources: tuple[str, ...]
    read_sources: Callable[[bytes, BaseUrl], list[PublisherSource]]
    since: str
    facts: tuple[str, ...]
    read_facts: Callable[[Mapping[str, bytes], int], EngineFacts]


_KINDS: Final = {
    VLLM: _Kind(
        health="/health",
        process=(_METRICS,),
        read_process=read_start_time,
        sources=("/kv_event_sources",),
        read_sources=read_kv_event_sources,
        since="vLLM says it from 0.31.0 on",
        facts=("/version", "/v1/models", "/kv_event_sources"),
        read_facts=vllm_facts,
    ),
    SGLANG: _Kind(
        health="/model_info",
        process=("/server_info", "/get_server_info"),
        read_process=read_server_info_process,
        sources=("/server_info", "/get_server_info"),
        read_sources=read_kv_events,
        since="SGLang says it in `/server_info`",
        facts=("/model_info", HYBRID_METRICS_PATH),
        read_facts=sglang_facts,
    ),
}


def can_ask(kind: PublisherKind) -> bool:
    """Whether such engines are asked whether they are there, which process they are, and where they
    publish. Others may be asked for their load (`bridge.engine_http.load_answers`).
    """
    return kind in _KINDS


def check_http(registration: Registration) -> None:
    """Accepts a registration without an HTTP address, or with one that can be asked.

    Raises:
        EndpointError: it is no base URL, may not be connected to, or engines of its kind are not
            asked over HTTP.
    """
    if not registration.http_url:
        return
    ALLOWED.check(read_base_url(registration.http_url).host)
    if registration.has_url:
        read_base_url(registration.endpoint)
    kinds = tuple(_KINDS if registration.has_url else WAYS)
    if registration.kind not in kinds:
        kinds = tuple(kind for kind in kinds if kind != NO_EVENTS)
        raise EndpointError(
            f"Expected a `tcp://` or `ipc://` address and no `http_endpoint` for a publisher of"
            f" type {registration.kind}: only {', '.join(kinds)} are asked over HTTP"
        )


class EngineHttp:
    """See the module.

    Args:
        wait_s: for each answer.
        requests: where they are counted; None: apart.
        clock: monotonic seconds.

    Attributes:
        requests: by what came of them: `answered`, `refused` (500 and above), `silent`.
    """

    def __init__(
        self,
        *,
        wait_s: float = HTTP_ENGINE_WAIT_S,
        requests: Counter[str] | None = None,
        clock: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        self.requests: Counter[str] = Counter() if requests is None else requests
        self._wait_s = wait_s
        self._clock = clock
        # Engines that do not answer leave places to those that do.
        self._places = asyncio.Semaphore(HTTP_ENGINES_AT_ONCE_MAX)
        self._silent_places = asyncio.Semaphore(HTTP_SILENT_AT_ONCE_MAX)
        self._silent: dict[str, None] = {}  # base URLs that did not answer the last time
        self._room = Room()

    async def is_there(self, registration: Registration) -> bool:
        """Whether the engine's HTTP server answers, and says of itself that it works."""
        path = _KINDS[registration.kind].health
        try:
            reply = await self._get(registration.http_url, path, with_body=False)
        except NoAnswerError:
            return False
        return reply.status < 500

    async def process(self, registration: Registration) -> Process | None:
        """Which process the engine is; None where it does not answer, or does not say."""
        kind = _KINDS[registration.kind]
        try:
            reply = await self._first(registration.http_url, kind.process)
        except NoAnswerError:
            return None
        return kind.read_process(reply.body) if reply.status == 200 else None

    async def sources(self, registration: Registration) -> list[PublisherSource]:
        """Where the engine publishes that was registered by its base URL, by rising rank.

        Raises:
            NoAnswerError: it does not answer now.
            RegistrationError: it publishes nothing, or does not say where.
        """
        url = read_base_url(registration.endpoint)
        kind = _KINDS[registration.kind]
        reply = await self._first(registration.endpoint, kind.sources)
        if reply.status in _NOT_FOUND:
            raise RegistrationError(
                f"{url.authority} does not say where it publishes (HTTP {reply.status} for"
                f" {kind.sources[0]}; {kind.since}): register its `endpoint`, a `tcp://` address"
            )
        if reply.status >= 500:
            raise NoAnswerError(f"{url.authority} answers HTTP {reply.status}: it is not ready")
        if reply.status != 200:
            raise RegistrationError(
                f"{url.authority} answers HTTP {reply.status} for {kind.sources[0]}: register its"
                " `endpoint`, a `tcp://` address"
            )
        sources = kind.read_sources(reply.body, url)
        if not sources:
            raise RegistrationError(
                f"{url.authority} publishes no KV-cache events: start it with --kv-events-config"
            )
        return sources

    async def bodies(self, registration: Registration) -> Bodies:
        """What it answers that says what it is, by path: two to six requests, one after the
        other.

        Raises:
            NoAnswerError: it does not answer.
            NoEngineError: it answers, and has nothing that an engine of its kind has.
        """
        kind, url = _KINDS[registration.kind], registration.http_url
        has_metrics = kind.process == (_METRICS,)
        reply = await self._first(url, (_FILTERED, _METRICS) if has_metrics else kind.process)
        if has_metrics and reply.status == 200 and CACHE_METRIC not in reply.body:
            reply = await self._get(url, _METRICS, with_body=True)
        found = Bodies({kind.process[0]: reply.body} if reply.status == 200 else {})
        for path in kind.facts:
            said = await self._get(url, path, with_body=True)
            # Of a time that is up to a second earlier, and was told a while ago.
            with suppress(ValueError, TypeError, OverflowError):
                told_at = parsedate_to_datetime(said.date).timestamp()
                found.apart_most = min(found.apart_most, self._clock() - told_at)
            if said.status == 200:
                found[path] = said.body
        if has_metrics and SLEEP_METRIC not in found.get(_METRICS, b""):
            said = await self._get(url, _SLEEPING, with_body=True)
            if said.status == 200:
                found[_SLEEPING] = said.body
        if not found and reply.status in _NOT_FOUND:
            asked = ", ".join((*kind.process, *kind.facts))
            raise NoEngineError(f"HTTP {reply.status} for each of {asked}")
        return found

    def facts(self, registration: Registration, bodies: dict[str, bytes]) -> EngineFacts:
        """What these say of the registered rank."""
        return _KINDS[registration.kind].read_facts(bodies, registration.dp_rank)

    async def _first(self, url: str, paths: tuple[str, ...]) -> Reply:
        reply = Reply(404, b"")
        for path in paths:
            reply = await self._get(url, path, with_body=True)
            if reply.status not in _NOT_FOUND:
                break
        return reply

    async def _get(self, url: str, path: str, *, with_body: bool) -> Reply:
        is_metrics = path.startswith(_METRICS)
        async with self._silent_places if url in self._silent else self._places:
            try:
                reply = await get(
                    url,
                    path,
                    with_body=with_body,
                    wait_s=self._wait_s,
                    bytes_max=HTTP_METRICS_BYTES if is_metrics else HTTP_ENGINE_BYTES_MAX,
                    cut=is_metrics,
                    room=self._room,
                )
            except NoAnswerError as error:
                self._note_silent(url)
                self.requests["silent"] += 1
                _logger.debug("No answer to %s: %s", path, error)
                raise
        self._silent.pop(url, None)
        self.requests["refused" if reply.status >= 500 else "answered"] += 1
        return reply

    def _note_silent(self, url: str) -> None:
        if len(self._silent) >= PUBLISHERS_MAX:
            self._silent.pop(next(iter(self._silent)))
        self._silent[url] = None
