"""Asks engines what they serve, `GET /v1/models`, again and again. Asyncio; one loop.

A round asks each engine once; who does not answer keeps what it said last. One that has not
answered in CATALOG_SILENT_ROUNDS is silent: what waits for it is given up, and the gateway is not
ready while all of them are. One that has refused a model is asked at once.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec

from bridge.engine_http.address import read_base_url
from bridge.engine_http.client import NoAnswerError, get
from bridge.engine_http.keys import ENGINE_KEYS
from gateway.fleet import Fleet
from gateway.names import EngineNames
from schemas.errors import EndpointError
from schemas.limits import MIB

CATALOG_PAUSE_S: Final = 5.0  # between two rounds
CATALOG_DOUBT_PAUSE_S: Final = 0.5  # the same, of engines that have refused a model
CATALOG_AT_ONCE_MAX: Final = 8  # engines that are asked; a file each
CATALOG_WAIT_S: Final = 5.0  # for an answer
CATALOG_SILENT_ROUNDS: Final = 3  # without one; half a minute
CATALOG_BYTES_MAX: Final = 1 * MIB  # of an answer

_PATH: Final = "/v1/models"

logger = logging.getLogger(__name__)


class Catalog:
    """See the module.

    Args:
        names: takes what they say.

    Attributes:
        faults: unexpected errors.
        wait_s: see CATALOG_WAIT_S.
    """

    def __init__(self, fleet: Fleet, names: EngineNames) -> None:
        self.faults = 0
        self.wait_s = CATALOG_WAIT_S
        self._fleet = fleet
        self._names = names
        self._missed: Counter[str] = Counter()

    async def run(self) -> None:
        """Asks until it is cancelled."""
        while True:
            try:
                await self.ask()
            except Exception:
                self.faults += 1
                logger.exception("Unexpected error while engines were asked for models; going on")
            await self._pause()

    async def _pause(self) -> None:
        """Until the next round; engines that refuse a model meanwhile are asked at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CATALOG_PAUSE_S):
                while True:
                    await self._fleet.is_doubted.wait()
                    await self.ask_doubted()
                    await asyncio.sleep(CATALOG_DOUBT_PAUSE_S)

    async def ask_doubted(self) -> None:
        """Those that have refused a model since they were asked."""
        doubted = dict(self._fleet.doubted)
        self._fleet.doubted.clear()
        self._fleet.is_doubted.clear()
        await self._ask_all(doubted)

    async def ask(self) -> None:
        """One round. Cost O(engines)."""
        engines = self._fleet.base_urls()
        self._names.keep(engines)
        ENGINE_KEYS.keep(engines)
        for base_url in self._missed.keys() - engines.keys():
            del self._missed[base_url]
        await self._ask_all(engines)

    async def _ask_all(self, engines: Iterable[str]) -> None:
        places = asyncio.Semaphore(CATALOG_AT_ONCE_MAX)

        async def one(base_url: str) -> None:
            async with places:
                await self._ask(base_url)

        await asyncio.gather(*map(one, engines))
        self._fleet.silent = frozenset(
            url for url, missed in self._missed.items() if missed >= CATALOG_SILENT_ROUNDS
        )

    async def _ask(self, base_url: str) -> None:
        try:
            reply = await get(
                base_url,
                _PATH,
                with_body=True,
                wait_s=self.wait_s,
                bytes_max=CATALOG_BYTES_MAX,
            )
        except (NoAnswerError, EndpointError) as error:
            self._missed[base_url] += 1
            logger.debug("%s does not answer which models it serves: %s", base_url, error)
            if self._missed[base_url] >= CATALOG_SILENT_ROUNDS:
                self._fleet.give_up(base_url)
            return
        del self._missed[base_url]
        ENGINE_KEYS.note(read_base_url(base_url), _PATH, reply.status)
        if reply.status != 200:
            return
        try:
            self._names.note(base_url, reply.body)
        except msgspec.MsgspecError as error:
            logger.debug("%s does not say which models it serves: %s", base_url, error)
