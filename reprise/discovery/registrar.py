"""A service of Reprise that is asked what is registered, and told what is to be."""

import asyncio
from typing import Any
from urllib.request import Request, urlopen

import msgspec

from query_api.http.models import Service, Services
from reprise.cli.asking import request_headers, tls_context
from schemas.limits import EXPLAIN_S


class Registrar:
    """Asks by the key of REPRISE_KEY. Each request is one thread's, so no loop waits for it.

    Args:
        url: of any replica.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._context = tls_context(url)

    async def services(self) -> list[Service]:
        """What is registered.

        Raises:
            OSError: it cannot be asked, or refuses.
            ValueError: it answers something else.
        """
        body = await asyncio.to_thread(self._ask, "/services", None)
        return msgspec.json.decode(body, type=Services).services

    async def send(self, path: str, body: dict[str, Any]) -> None:
        """A POST.

        Raises:
            HTTPError: it refuses.
            OSError: it cannot be asked.
        """
        await asyncio.to_thread(self._ask, path, msgspec.json.encode(body))

    def _ask(self, path: str, body: bytes | None) -> bytes:
        headers = request_headers() | ({"Content-Type": "application/json"} if body else {})
        request = Request(self.url + path, body, headers)
        with urlopen(request, timeout=EXPLAIN_S, context=self._context) as answer:
            found: bytes = answer.read()
            return found
