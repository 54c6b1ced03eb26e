"""JSON over HTTP, many requests at a time, on one loop."""

from typing import Final, NamedTuple

import aiohttp
import msgspec

from lab.benchmarks.embedded.service import KEPT_ALIVE_S

CONNECT_S: Final = 10.0
_JSON: Final = {"Accept": "application/json", "Content-Type": "application/json"}


class Answer(NamedTuple):
    """Status and body."""

    status: int
    body: bytes


class Wire:
    """Requests to one server, over connections that are kept. Made and closed on the loop."""

    def __init__(self, host: str, port: int) -> None:
        self._session = aiohttp.ClientSession(
            f"http://{host}:{port}",
            headers=_JSON,
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_S),
        )

    async def request(self, method: str, path: str, body: object = None) -> Answer:
        """One request.

        Raises:
            OSError: the server cannot be reached, or what it answers is no HTTP.
        """
        encoded = None if body is None else msgspec.json.encode(body)
        try:
            async with self._session.request(method, path, data=encoded) as answer:
                return Answer(answer.status, await answer.read())
        except aiohttp.ClientError as error:
            raise OSError(f"Expected an answer to {method} {path}, got: {error}") from error

    async def close(self) -> None:
        """Closes what is idle."""
        await self._session.close()
