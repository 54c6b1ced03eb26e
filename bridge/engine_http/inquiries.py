"""Asks engines over HTTP beside everything else, one question at a time of each. One loop.

The pump looks at its publishers, and says of whom something is to be asked; a repair waits for the
answer, for what is held meanwhile may be of another process (`bridge.engine_http.watch`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Final, Protocol

from bridge.engine_http.answers import Process, PublisherSource, source_of
from bridge.engine_http.bounds import HTTP_ENGINE_WAIT_S
from bridge.engine_http.client import NoAnswerError
from bridge.engine_http.watch import EngineWatch
from bridge.link_numbers import LinkNumber
from bridge.supervision import cancel
from schemas.clock import REAL_CLOCK
from schemas.errors import OpenFilesError, RegistrationError
from schemas.identities import PublisherKey
from schemas.registration import Registration

PROCESS_SETTLE_S: Final = 0.25  # from a process's end to its link's end, as the bridge sees it

_logger = logging.getLogger(__name__)


class EngineSource(Protocol):
    """Asks engines; see `EngineHttp`."""

    requests: Counter[str]

    async def is_there(self, registration: Registration) -> bool:
        """Whether the engine answers."""
        ...

    async def process(self, registration: Registration) -> Process | None:
        """Which process it is; None where that is not known."""
        ...

    async def sources(self, registration: Registration) -> list[PublisherSource]:
        """Where it publishes; see `EngineHttp.sources`."""
        ...


class LinkStates(Protocol):
    """What is known of links; see `bridge.publisher.ports.Receiver`."""

    def connected(self, publisher: PublisherKey) -> bool:
        """Whether the link is up."""
        ...

    def links(self, publisher: PublisherKey) -> LinkNumber:
        """The last one that has come up: how often one has."""
        ...


class Inquiries:
    """See the module.

    Args:
        on_answer: called after a question was answered, or not, with whose engine it was.
        on_named: called where an engine that was registered by its base URL has said, over a link
            that is up, where it publishes; returns whether that is where the link leads.
        on_fault: an unexpected error of ours; nothing else comes of it.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        source: EngineSource,
        links: LinkStates,
        *,
        on_answer: Callable[[PublisherKey], None],
        on_named: Callable[[PublisherKey, str, LinkNumber], bool],
        on_fault: Callable[[], None],
        clock: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        self._clock = clock
        self._source = source
        self._links = links
        self._on_answer = on_answer
        self._on_named = on_named
        self._on_fault = on_fault
        self._under_way: set[asyncio.Task[None]] = set()

    def probe(self, registration: Registration, engine: EngineWatch) -> None:
        """Asks whether the engine is there, unless something else is being asked."""
        self._begin(registration, engine, lambda: self._probe(registration, engine))

    def read_process(self, registration: Registration, engine: EngineWatch) -> None:
        """Asks which process it is, likewise."""
        self._begin(registration, engine, lambda: self._read_process(registration, engine))

    async def process_read(self, registration: Registration, engine: EngineWatch) -> None:
        """Returns once the engine has said over the link that is up which process it is, or does
        not say now: within twice HTTP_ENGINE_WAIT_S.
        """
        publisher = registration.publisher
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * HTTP_ENGINE_WAIT_S):
                for _ in range(2):  # a probe may be under way, and this comes behind it
                    if engine.reads_at(self._links.links(publisher)) > self._clock():
                        return
                    self.read_process(registration, engine)
                    assert engine.inquiry is not None
                    await asyncio.wait({engine.inquiry})

    def forget(self, engine: EngineWatch) -> None:
        """Asks it nothing more."""
        asking, engine.inquiry = engine.inquiry, None
        if asking is not None:
            asking.cancel()

    async def close(self) -> None:
        """Ends; what is under way is not answered."""
        await cancel(*self._under_way)

    def _begin(
        self,
        registration: Registration,
        engine: EngineWatch,
        ask: Callable[[], Coroutine[None, None, None]],
    ) -> None:
        if engine.inquiry is None:
            task = asyncio.create_task(self._ask(registration.publisher, engine, ask))
            engine.inquiry = task
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _ask(
        self,
        publisher: PublisherKey,
        engine: EngineWatch,
        ask: Callable[[], Coroutine[None, None, None]],
    ) -> None:
        try:
            await ask()
        except Exception:
            self._on_fault()
            _logger.exception(
                "Unexpected error while asking the engine of %s; asking again later", publisher
            )
        finally:
            if engine.inquiry is asyncio.current_task():
                engine.inquiry = None
        self._on_answer(publisher)

    async def _probe(self, registration: Registration, engine: EngineWatch) -> None:
        is_there = await self._source.is_there(registration)
        engine.probed(self._clock(), is_there=is_there)

    async def _read_process(self, registration: Registration, engine: EngineWatch) -> None:
        publisher = registration.publisher
        link = self._links.links(publisher)
        process: Process | None = None
        if self._links.connected(publisher):
            process = await self._source.process(registration)
            # The end of a process shows at its link only after this.
            await asyncio.sleep(PROCESS_SETTLE_S)
            if registration.has_url and not await self._is_its(registration, link):
                process = None
        if not self._links.connected(publisher) or self._links.links(publisher) != link:
            process = None  # of which of two links it was said is not known
        engine.read(self._clock(), link, process)

    async def _is_its(self, registration: Registration, link: LinkNumber) -> bool:
        """Whether the link leads to where the engine says that it publishes."""
        try:
            source = source_of(await self._source.sources(registration), registration)
        except (NoAnswerError, OpenFilesError, RegistrationError):
            return False
        return self._on_named(registration.publisher, source.endpoint, link)
