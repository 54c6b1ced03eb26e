"""A service of Reprise that is asked what is registered, and told what is to be."""

from typing import Any

import msgspec

from console.service_client import ServiceClient
from query_api.http.models import Service, Services


class PodRegistrar:
    """Asks by the key of REPRISE_KEY.

    Args:
        url: of any replica.

    Raises:
        ConfigurationError: see `ServiceClient`.
    """

    def __init__(self, url: str) -> None:
        self._client = ServiceClient(url)
        self.url = self._client.url

    async def services(self) -> list[Service]:
        """What is registered.

        Raises:
            RefusedError, NoAnswerError, EndpointError: see `ServiceClient.ask`.
            ValueError, RecursionError: it answers something else.
        """
        return msgspec.json.decode(await self._client.ask("/services"), type=Services).services

    async def send(self, path: str, body: dict[str, Any]) -> None:
        """A POST.

        Raises:
            RefusedError, NoAnswerError, EndpointError: see `ServiceClient.ask`.
        """
        await self._client.ask(path, msgspec.json.encode(body))
