"""JSON over one HTTP connection that stays open."""

import http.client
from typing import Final
from urllib.parse import urlsplit

import msgspec

REQUEST_TIMEOUT_S: Final = 5.0


class HttpAnswer(msgspec.Struct, frozen=True):
    """Status and body of an answer."""

    status: int
    body: bytes


class JsonConnection:
    """Sends requests one after another to one server. For one thread."""

    def __init__(
        self, base_url: str, timeout_s: float = REQUEST_TIMEOUT_S, *, key: str = ""
    ) -> None:
        """Nothing is sent yet.

        Args:
            base_url: of the server.
            timeout_s: of each request.
            key: that the server asks for; "" for none.

        Raises:
            ValueError: not an `http://host[:port]` address.
        """
        url = urlsplit(base_url)
        if url.scheme != "http" or not url.hostname:
            raise ValueError(f"Expected an address such as `http://127.0.0.1:13333`: {base_url}")
        self._prefix = url.path.rstrip("/")
        self._headers = {"Accept": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._connection = http.client.HTTPConnection(url.hostname, url.port, timeout=timeout_s)

    def request(self, method: str, path: str, body: object = None) -> HttpAnswer:
        """One request, resent once where the server has closed the kept connection.

        Raises:
            OSError: the server cannot be reached, or did not answer in time.
        """
        encoded = None if body is None else msgspec.json.encode(body)
        kept = self._connection.sock is not None
        try:
            return self._exchange(method, path, encoded)
        except (ConnectionResetError, BrokenPipeError):
            if not kept:
                raise
        return self._exchange(method, path, encoded)

    def close(self) -> None:
        """Close; a later request opens the connection again."""
        self._connection.close()

    def _exchange(self, method: str, path: str, encoded: bytes | None) -> HttpAnswer:
        headers = dict(self._headers)
        if encoded is not None:
            headers["Content-Type"] = "application/json"
        try:
            self._connection.request(method, self._prefix + path, body=encoded, headers=headers)
            answer = self._connection.getresponse()
            return HttpAnswer(answer.status, answer.read())
        except OSError:
            self._connection.close()
            raise
        except http.client.HTTPException as error:
            self._connection.close()
            raise OSError(f"{method} {path}: no HTTP answered ({error})") from error
