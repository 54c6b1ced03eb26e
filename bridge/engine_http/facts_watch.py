"""Asks engines again and again what they are, for whoever looks for mistakes. Asyncio; one loop.

An engine is asked soon after one of its ranks is followed, and then every FACTS_AGAIN_S: settings
change with its process, and it is put to sleep at any time. At most one engine is asked every
FACTS_PAUSE_S, so that ten thousand take no more of the loop than a hundred; nobody waits for an
answer but this.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from bridge.engine_http.client import NoAnswerError
from bridge.engine_http.engine import Bodies, NoEngineError, can_ask
from bridge.supervision import cancel
from schemas.clock import REAL_CLOCK
from schemas.engine_facts import EngineFacts
from schemas.errors import EndpointError
from schemas.registration import Registration
from schemas.troubles import shortened

FACTS_AGAIN_S: Final = 5.0  # how often an engine is asked what it is: four requests
FACTS_RETRY_S: Final = 2.0  # how often one is asked that has not answered
FACTS_LOOK_S: Final = 1.0  # how often it is looked who is to be asked
FACTS_PAUSE_S: Final = 0.1  # from one engine to the next: more than 50 are asked more rarely
FACTS_AT_ONCE_MAX: Final = 4  # that are asked; a file each

_logger = logging.getLogger(__name__)


class DescribedPublisher(Protocol):
    """A publisher, as it is followed; see `bridge.publisher.publisher.Publisher`."""

    registration: Registration
    facts: EngineFacts | None
    http_trouble: str

    def note_clock(self, apart_most: float) -> None:
        """See `Lateness.note_clock`."""
        ...


class FactsSource(Protocol):
    """Asks engines; see `bridge.engine_http.engine.EngineHttp`."""

    async def bodies(self, registration: Registration) -> Bodies:
        """What it answers that says what it is, by path; see `EngineHttp.bodies`."""
        ...

    def facts(self, registration: Registration, bodies: dict[str, bytes]) -> EngineFacts:
        """What that says of the registered rank."""
        ...


class FactsWatch:
    """See the module.

    Args:
        followed: the publishers; what is found out is set as their `facts`.
        on_fault: an unexpected error of ours; the engine is asked again.
        clock: monotonic seconds.

    Attributes:
        asking: questions that are under way.
    """

    def __init__(
        self,
        source: FactsSource,
        followed: Callable[[], Iterable[DescribedPublisher]],
        *,
        on_fault: Callable[[], None],
        clock: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        self._source = source
        self._followed = followed
        self._on_fault = on_fault
        self._clock = clock
        self._asked_at: dict[str, float] = {}  # by base URL
        self.asking: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Asks until it is cancelled."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(FACTS_LOOK_S)
        finally:
            await cancel(*self.asking)

    async def look(self) -> None:
        """Those that are due. Cost O(publishers)."""
        ranks: dict[str, list[DescribedPublisher]] = {}
        for one in list(self._followed()):
            registration = one.registration
            if registration.http_url and can_ask(registration.kind):
                ranks.setdefault(registration.http_url, []).append(one)
        self._asked_at = {url: self._asked_at.get(url, -FACTS_AGAIN_S) for url in ranks}
        for url, its in ranks.items():
            is_new = any(one.facts is None for one in its)
            pause_s = FACTS_RETRY_S if is_new else FACTS_AGAIN_S
            if self._clock() < self._asked_at[url] + pause_s:
                continue
            self._asked_at[url] = self._clock()
            while len(self.asking) >= FACTS_AT_ONCE_MAX:
                await asyncio.wait(self.asking, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.create_task(self._ask(its))
            self.asking.add(task)
            task.add_done_callback(self.asking.discard)
            await asyncio.sleep(FACTS_PAUSE_S)

    async def _ask(self, its: list[DescribedPublisher]) -> None:
        registration = its[0].registration
        found: list[EngineFacts | None] = [None] * len(its)
        trouble = ""
        try:
            bodies = await self._source.bodies(registration)
            found = [self._source.facts(one.registration, bodies) for one in its]
            for one in its:
                one.note_clock(bodies.apart_most)
        except NoEngineError as error:
            trouble = shortened(str(error))
        except (NoAnswerError, EndpointError) as error:
            _logger.debug("%s does not say what it is: %s", registration.http_url, error)
        except Exception:
            self._on_fault()
            _logger.exception(
                "Unexpected error while %s was asked what it is; asking it again later",
                registration.http_url,
            )
            return
        for one, facts in zip(its, found, strict=True):
            one.facts, one.http_trouble = facts, trouble
