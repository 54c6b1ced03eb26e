"""Objects of the API server, listed and then watched, for as long as the process runs.

The contract of Kubernetes: a list has a resource version, a watch goes on from it, and where that
is too old (410) there is a list anew. What happens between two watches is not lost: the next one
goes on from the last version that was seen.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from kubernetes_asyncio.client import ApiException

from schemas.limits import (
    DISCOVERED_PODS_MAX,
    DISCOVERY_RETRY_MAX_S,
    DISCOVERY_RETRY_S,
    LIST_PAGE,
    WATCH_S,
)

logger = logging.getLogger(__name__)

_OK: Final = 200
_GONE: Final = 410

Object = Mapping[str, Any]


class Sink(Protocol):
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


Call = Callable[..., Awaitable[Any]]
"""A `list_namespaced_...` of `kubernetes_asyncio`, without its namespace."""


class Follower:
    """Follows one kind of objects.

    Args:
        name: of the kind, for the log.
        call: lists and watches them.
        selector: of labels.
        sink: is told.

    Attributes:
        is_listed: whether all there is has been told once.
        relists: listings after the first.
        failures: requests that failed.
    """

    def __init__(self, name: str, call: Call, selector: str, sink: Sink) -> None:
        self.is_listed = False
        self.relists = self.failures = 0
        self._name = name
        self._call = call
        self._selector = selector
        self._sink = sink
        self._said = ""

    async def run(self) -> None:
        """Until it is cancelled. A server that does not answer is asked again, more and more
        rarely.
        """
        version, pause_s = "", DISCOVERY_RETRY_S
        while True:
            began = time.monotonic()
            try:
                if not version:
                    version = await self._list()
                version = await self._watch(version)
                self._recovered()
                if time.monotonic() - began < DISCOVERY_RETRY_S:
                    await asyncio.sleep(DISCOVERY_RETRY_S)  # nobody is asked all the time
                pause_s = DISCOVERY_RETRY_S
            except ApiException as error:
                if error.status == _GONE and version:  # it is too old: what there is, anew
                    version = ""
                    self.relists += 1
                    continue
                self._failed(f"{error.status} {error.reason}")
            except Exception as error:  # noqa: BLE001 -- of the library and the network: many kinds
                self._failed(str(error) or repr(error))
            else:
                continue
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, DISCOVERY_RETRY_MAX_S)

    async def _list(self) -> str:
        found: list[Object] = []
        more = ""
        while True:
            given = {"_continue": more} if more else {}
            answer = await self._ask(limit=LIST_PAGE, **given)
            document = json.loads(await answer.read())
            if not isinstance(document, dict) or "items" not in document:
                raise ValueError("expected a list of objects")  # nothing may be taken for none
            found += document.get("items") or ()
            meta = document.get("metadata") or {}
            if len(found) > DISCOVERED_PODS_MAX:
                text = f"expected at most {DISCOVERED_PODS_MAX} {self._name}: narrow the selector"
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
        answer = await self._ask(
            watch=True,
            allow_watch_bookmarks=True,
            resource_version=version,
            timeout_seconds=WATCH_S,
            _request_timeout=WATCH_S + 30,
        )
        async for line in _lines(answer):
            event = json.loads(line)
            found = event.get("object") if isinstance(event, dict) else None
            if not isinstance(found, dict):
                raise ValueError("expected an event with an object")
            kind = event.get("type")
            if kind == "ERROR":
                status, reason = found.get("code") or 0, found.get("message") or "no reason"
                raise ApiException(status=status, reason=reason)
            version = str((found.get("metadata") or {}).get("resourceVersion") or version)
            if kind in ("ADDED", "MODIFIED"):
                self._sink.changed(found)
            elif kind == "DELETED":
                self._sink.deleted(found)
        return version

    async def _ask(self, **given: Any) -> Any:
        """The answer, whose body is still to be read.

        Raises:
            ApiException: the server refuses: the library only says so of bodies that it reads.
        """
        answer = await self._call(label_selector=self._selector, _preload_content=False, **given)
        if answer.status != _OK:
            answer.close()
            raise ApiException(status=answer.status, reason=answer.reason)
        return answer

    def _failed(self, reason: str) -> None:
        self.failures += 1
        if reason != self._said:  # once for each reason, until it is over
            logger.warning(
                "Cannot follow %s: %s; what is registered stays, trying again", self._name, reason
            )
        self._said = reason

    def _recovered(self) -> None:
        if self._said:
            logger.info("Following %s again", self._name)
        self._said = ""


async def _lines(answer: Any) -> AsyncIterator[bytes]:
    """Of a watch. aiohttp's own iterator refuses lines above 64 KiB, which pods can have."""
    kept = bytearray()
    async for part in answer.content.iter_any():
        kept += part
        while (end := kept.find(b"\n")) >= 0:
            line = bytes(kept[:end])
            del kept[: end + 1]
            if line.strip():
                yield line
