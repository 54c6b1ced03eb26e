"""The HTTP application, asked from within the process in Conductor's own wire form.

So a call of the RPC is checked, answered and counted as the request over HTTP that says the same.
"""

from typing import Final, NamedTuple

from starlette.types import ASGIApp, Message, Scope

from query_api.access.rights import Access
from query_api.http.caller import note_access
from query_api.http.wire import Wire, content_type_of, encode

_TYPE: Final = content_type_of(Wire.MSGPACK)


class Reply(NamedTuple):
    """What the application has answered; `body` is msgpack."""

    status: int
    body: bytes


class InProcess:
    """Asks one application, on its loop.

    Args:
        access: what the requests may do.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def get(self, path: str) -> Reply:
        """The answer to a GET."""
        return await self._ask("GET", path, b"")

    async def post(self, path: str, fields: dict[str, object]) -> Reply:
        """The answer to a POST of these fields."""
        return await self._ask("POST", path, encode(fields, Wire.MSGPACK))

    async def _ask(self, method: str, path: str, body: bytes) -> Reply:
        status, pieces = 0, []

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                pieces.append(message.get("body", b""))

        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", _TYPE), (b"accept", _TYPE)],
        }
        note_access(scope, self._access)
        await self._app(scope, receive, send)
        return Reply(status, b"".join(pieces))
