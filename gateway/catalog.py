"""What engines say that they serve: `GET /v1/models` of each, asked again and again. Asyncio.

Names that no registration has are found here: adapters, which have a parent, and other names of the
same model. A round asks each engine once; who does not answer keeps what it said last.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from bridge.engine_http.client import NoAnswerError, get
from schemas.errors import EndpointError
from schemas.limits import MIB

CATALOG_PAUSE_S: Final = 5.0  # between two rounds
CATALOG_AT_ONCE_MAX: Final = 8  # engines that are asked; a file each
CATALOG_WAIT_S: Final = 2.0  # for an answer
CATALOG_BYTES_MAX: Final = 1 * MIB  # of an answer
CATALOG_MODELS_MAX: Final = 1024  # of one engine; others are not known by name

logger = logging.getLogger(__name__)


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[msgspec.Raw]


_models: Final = msgspec.json.Decoder(_Models)
_model: Final = msgspec.json.Decoder(_Model)


class Catalog:
    """See the module.

    Args:
        engines: base URLs of those that are asked.

    Attributes:
        faults: unexpected errors.
    """

    def __init__(self, engines: Callable[[], Iterable[str]]) -> None:
        self.faults = 0
        self._engines = engines
        self._said: dict[str, dict[str, tuple[str, msgspec.Raw]]] = {}

    def named(self, base_url: str, name: str) -> tuple[str, str] | None:
        """What an engine calls so: its own name, and that of the adapter, "" for none; None: it
        has nothing of that name.
        """
        found = self._said.get(base_url, {}).get(name)
        return None if found is None else (name, found[0])

    def documents(self, base_urls: Iterable[str]) -> dict[str, msgspec.Raw]:
        """What these engines say of each model, by its name; the first one's word counts."""
        found: dict[str, msgspec.Raw] = {}
        for base_url in base_urls:
            for name, (_, document) in self._said.get(base_url, {}).items():
                found.setdefault(name, document)
        return found

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
        engines = list(dict.fromkeys(self._engines()))
        self._said = {url: said for url, said in self._said.items() if url in set(engines)}
        places = asyncio.Semaphore(CATALOG_AT_ONCE_MAX)

        async def one(base_url: str) -> None:
            async with places:
                await self._ask(base_url)

        await asyncio.gather(*map(one, engines))

    async def _ask(self, base_url: str) -> None:
        try:
            reply = await get(
                base_url,
                "/v1/models",
                with_body=True,
                wait_s=CATALOG_WAIT_S,
                bytes_max=CATALOG_BYTES_MAX,
            )
            if reply.status == 200:
                self._said[base_url] = _read(reply.body)
        except (NoAnswerError, EndpointError, msgspec.MsgspecError) as error:
            logger.debug("%s does not say which models it serves: %s", base_url, error)


def _read(body: bytes) -> dict[str, tuple[str, Any]]:
    """By name: the adapter's name, "" for none, and the document."""
    found = {}
    for document in _models.decode(body).data[:CATALOG_MODELS_MAX]:
        one = _model.decode(document)
        found[one.id] = (one.id if one.parent else "", msgspec.Raw(bytes(document)))
    return found
