"""The API server of a cluster, as pods reach it: two lists and their watches are all that is asked.

Source: Kubernetes, "Accessing the API from within a Pod".
"""

import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self
from urllib.parse import quote

import aiohttp

from reprise.bounds import WATCH_S
from reprise.discovery.membership import PodSource
from schemas.causes import cause_of
from schemas.errors import ConfigurationError
from schemas.limits import SETTINGS_FILE_BYTES_MAX
from storage.files import read_file

API_SERVER_S: Final = 30.0  # of a list; and beyond the end of a watch

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PATHS: Final = {
    PodSource.PODS: "/api/v1/namespaces/{}/pods",
    PodSource.SLICES: "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices",
}


def _text_of(file: Path) -> str:
    return read_file(file, SETTINGS_FILE_BYTES_MAX).decode().strip()


class ApiError(Exception):
    """The API server refuses."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(f"{status} {reason}")


class ApiSettings(NamedTuple):
    """How it is reached.

    Attributes:
        url: without a path behind it.
        token_file: read anew at each request, for the token is replaced every hour; None: it asks
            for none, as `kubectl proxy`.
        authority_file: PEM; None: those of the system.
    """

    url: str
    token_file: Path | None = None
    authority_file: Path | None = None


def pod_settings(environment: Mapping[str, str] = os.environ) -> ApiSettings:
    """As every pod is told.

    Raises:
        ConfigurationError: this is no pod, or it has no token.
    """
    host, port = (environment.get(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT"))
    token = SERVICE_ACCOUNT / "token"
    if not host or not port or not token.exists():
        raise ConfigurationError(
            "Expected to run in a pod with a service account, or --api-server, got neither:"
            " `kubectl proxy` makes one at http://127.0.0.1:8001"
        )
    host = f"[{host}]" if ":" in host else host
    return ApiSettings(f"https://{host}:{port}", token, SERVICE_ACCOUNT / "ca.crt")


class ApiServer:
    """Asks. Used on one loop, within `async with`.

    Args:
        namespace: whose objects are asked for.
        selector: of their labels.
    """

    def __init__(self, settings: ApiSettings, namespace: str, selector: str) -> None:
        self._settings = settings
        self._namespace = quote(namespace, safe="")
        self._selector = selector
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        authority = self._settings.authority_file
        try:
            data = None if authority is None else _text_of(authority)
            context = ssl.create_default_context(cadata=data)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"Expected a PEM file at {authority}: {cause_of(error)}"
            ) from error
        connector = aiohttp.TCPConnector(ssl=context)
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def ask(
        self, source: PodSource, parameters: Mapping[str, str], *, is_watch: bool = False
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A list, or a watch; its body is still to be read.

        Args:
            parameters: of the URL; as the API names them.
            is_watch: it may last for WATCH_S, and a little.

        Raises:
            ApiError: it refuses.
            aiohttp.ClientError, TimeoutError, OSError: it cannot be asked.
        """
        assert self._session is not None
        url = self._settings.url.rstrip("/") + _PATHS[source].format(self._namespace)
        given = {"labelSelector": self._selector, **parameters}
        total_s = API_SERVER_S + (WATCH_S if is_watch else 0)
        async with self._session.get(
            url,
            params=given,
            headers=self._headers(),
            timeout=aiohttp.ClientTimeout(total=total_s, sock_connect=API_SERVER_S),
            allow_redirects=False,
        ) as answer:
            if answer.status != 200:
                raise ApiError(answer.status, answer.reason or "")
            yield answer

    def _headers(self) -> dict[str, str]:
        token_file = self._settings.token_file
        headers = {"Accept": "application/json"}
        if token_file is not None:
            headers["Authorization"] = f"Bearer {_text_of(token_file)}"
        return headers
