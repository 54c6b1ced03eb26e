"""Objects of the API server, listed and then watched, for as long as the process runs.

The contract of Kubernetes: a list has a resource version, a watch goes on from it, and where that
is too old (410) there is a list anew. What happens between two watches is not lost: the next one
goes on from the last version that was seen.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Protocol

import aiohttp

from logs.attempts import Attempts, LogLostError
from reprise.bounds import WATCH_S
from reprise.discovery.api_server import ApiError, ApiServer
from reprise.discovery.engines import part
from reprise.discovery.membership import PodSource
from schemas.limits import MIB

DISCOVERED_PODS_MAX: Final = 65_536  # of a listing; beyond it nothing is changed, which is logged
API_ANSWER_BYTES_MAX: Final = 64 * MIB  # of a list, or an event, of Kubernetes' API server
DISCOVERY_RETRY_S: Final = 0.5  # before the next attempt at a server; doubled each time
DISCOVERY_RETRY_MAX_S: Final = 30.0  # between two attempts at a server that does not answer
LIST_PAGE: Final = 500  # objects

logger = logging.getLogger(__name__)

_GONE: Final = 410

Object = Mapping[str, Any]


class ObjectSink(Protocol):
    """Who is told. `Object`s are as the API server sends them."""

    def listed(self, objects: list[Object]) -> None:
        """All that there is."""
        ...

    def changed(self, found: Object) -> None:
        """One is new, or another."""
        ...

    def deleted(self, found: Object) -> None:
        """One is there no more."""
        ...


class ObjectFollower(Attempts):
    """Follows one kind of objects.

    Attributes:
        is_listed: whether all there is has been told once.
        failures: requests that failed.
    """

    away_when = (ApiError, aiohttp.ClientError, OSError, ValueError, RecursionError)

    def __init__(self, source: PodSource, server: ApiServer, sink: ObjectSink) -> None:
        super().__init__(retry_first_s=DISCOVERY_RETRY_S, retry_max_s=DISCOVERY_RETRY_MAX_S)
        self.is_listed = False
        self.failures = 0
        self._source = source
        self._server = server
        self._sink = sink
        self._version = ""  # up to which it is followed; "": what there is is to be listed
        self._said = ""

    async def attempt(self) -> None:
        """See `Attempts`: a watch, behind a list where that is needed."""
        began = time.monotonic()
        try:
            if not self._version:
                self._version = await self._list()
            self._version = await self._watch(self._version)
        except ApiError as error:
            if error.status == _GONE and self._version:
                raise LogLostError(str(error)) from error
            raise
        self._recovered()
        if time.monotonic() - began < DISCOVERY_RETRY_S:
            await asyncio.sleep(DISCOVERY_RETRY_S)  # nobody is asked all the time
        self.backoff.reset()

    def lost(self, error: LogLostError) -> bool:
        """See `Attempts`: the version is too old, so what there is is listed again."""
        self._version = ""
        return True

    def away(self, error: Exception) -> None:
        """See `Attempts`: a server that does not answer as it should is asked more and more
        rarely.
        """
        self._failed(str(error) or repr(error))

    async def _list(self) -> str:
        found: list[Object] = []
        more = ""
        while True:
            given = {"limit": str(LIST_PAGE)} | ({"continue": more} if more else {})
            async with self._server.ask(self._source, given) as answer:
                document = json.loads(b"".join([piece async for piece in _pieces(answer)]))
            if not isinstance(document, dict) or not isinstance(document.get("items"), list):
                raise ValueError("expected a list of objects")  # nothing may be taken for none
            found += [one for one in document["items"] if isinstance(one, dict)]
            meta = part(document, "metadata")
            if len(found) > DISCOVERED_PODS_MAX:
                text = (
                    f"expected at most {DISCOVERED_PODS_MAX} of them, got more: narrow the selector"
                )
                raise ValueError(text)
            more = meta.get("continue") or ""
            if not more:
                break
        self._sink.listed(found)
        self.is_listed = True
        self._recovered()
        return str(meta.get("resourceVersion") or "0")

    async def _watch(self, version: str) -> str:
        """Tells what happens, for WATCH_S or until the server ends it; the last version seen."""
        given = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_S),
        }
        async with self._server.ask(self._source, given, is_watch=True) as answer:
            async for line in _lines(answer):
                event = json.loads(line)
                found = event.get("object") if isinstance(event, dict) else None
                if not isinstance(found, dict):
                    raise ValueError("expected an event with an object")
                kind = event.get("type")
                if kind == "ERROR":
                    raise ApiError(found.get("code") or 0, found.get("message") or "no reason")
                version = str(part(found, "metadata").get("resourceVersion") or version)
                if kind in ("ADDED", "MODIFIED"):
                    self._sink.changed(found)
                elif kind == "DELETED":
                    self._sink.deleted(found)
        return version

    def _failed(self, reason: str) -> None:
        self.failures += 1
        if reason != self._said:  # once for each reason, until it is over
            logger.warning(
                "Cannot follow %s: %s; what is registered stays, trying again",
                self._source.value,
                reason,
            )
        self._said = reason

    def _recovered(self) -> None:
        if self._said:
            logger.info("Following %s again", self._source.value)
        self._said = ""


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Of a list, which may be anybody's where the API server is not what it should be."""
    size_bytes = 0
    async for piece in answer.content.iter_any():
        size_bytes += len(piece)
        if size_bytes > API_ANSWER_BYTES_MAX:
            raise ValueError(f"expected at most {API_ANSWER_BYTES_MAX} bytes of a list, got more")
        yield piece


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Of a watch. aiohttp's own iterator refuses lines above 64 KiB, which pods can have."""
    kept = bytearray()
    async for piece in answer.content.iter_any():
        kept += piece
        if len(kept) > API_ANSWER_BYTES_MAX:
            raise ValueError(f"expected at most {API_ANSWER_BYTES_MAX} bytes of an event, got more")
        while (end := kept.find(b"\n")) >= 0:
            line = bytes(kept[:end])
            del kept[: end + 1]
            if line.strip():
                yield line
