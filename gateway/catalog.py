"""Asks engines what they serve, `GET /v1/models`, again and again. Asyncio; one loop.

A round asks each engine once; who does not answer keeps what it said last. One that has not
answered in CATALOG_SILENT_ROUNDS is silent: what waits for it is given up. The gateway is
not ready while all of them are.
"""

import asyncio
import logging
from collections import Counter
from typing import Final

import msgspec

from bridge.engine_http.client import NoAnswerError, get
from gateway.fleet import Fleet
from gateway.names import EngineNames
from schemas.errors import EndpointError
from schemas.limits import MIB

CATALOG_PAUSE_S: Final = 5.0  # between two rounds
CATALOG_AT_ONCE_MAX: Final = 8  # engines that are asked; a file each
CATALOG_WAIT_S: Final = 5.0  # for an answer
CATALOG_SILENT_ROUNDS: Final = 3  # without one; half a minute
CATALOG_BYTES_MAX: Final = 1 * MIB  # of an answer

logger = logging.getLogger(__name__)


class Catalog:
    """See the module.

    Args:
        fleet: the engines.
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
            await asyncio.sleep(CATALOG_PAUSE_S)

    async def ask(self) -> None:
        """One round. Cost O(engines)."""
        engines = self._fleet.base_urls()
        self._names.keep(engines)
        for base_url in self._missed.keys() - engines.keys():
            del self._missed[base_url]
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
                "/v1/models",
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
        if reply.status != 200:
            return
        try:
            self._names.note(base_url, reply.body)
        except msgspec.MsgspecError as error:
            logger.debug("%s does not say which models it serves: %s", base_url, error)
