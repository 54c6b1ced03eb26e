"""The ASGI application of the gateway's address: paths, keys, bodies, errors.

POST  of inference      to an engine of the model that the body names: `gateway.paths`
GET   /v1/models        what the engines serve; /v1/models/NAME one of these
GET   /health           200 where there is an engine
GET   /ready            200 where there is one, and not all of them are silent
"""

import asyncio
import logging
from collections import Counter
from typing import Any, Final

import msgspec
from starlette.types import Message, Receive, Scope, Send

from gateway.errors import GatewayError, error_body, refusal_of
from gateway.exchange import BrokenOffError, Exchange, ExchangeParts, State
from gateway.fleet import Fleet, ServedModel
from gateway.names import EngineNames
from gateway.paths import PassedPaths
from gateway.placement import unknown_model
from gateway.requests import (
    API_KEY_HEADER,
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    RESPONSES,
    ClientRequest,
    read_request,
)
from query_api.access.guard import Guard
from query_api.access.rights import OPEN, Access, Right
from query_api.http.caller import BREAK_OFF, CERTIFICATE_NAMES
from query_api.http.errors import ClientGoneError
from query_api.http.origins import check_origin
from query_api.http.requests.bodies import Bodies
from query_api.http.wire import Headers, header
from schemas.errors import RepriseError

MODELS: Final = "/v1/models"
_READY: Final = "/ready"
_PROBES: Final = frozenset({"/health", _READY})
_PATHS: Final = frozenset({CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, MODELS, *_PROBES})
_OTHER: Final = "other"
GONE: Final = 499
BROKEN_OFF: Final = 0

logger = logging.getLogger(__name__)


class _Listed(msgspec.Struct):
    """A model of which no engine has said anything yet."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "reprise"


class GatewayEndpoint:
    """See the module. One loop.

    Args:
        parts: what exchanges share.
        names: what engines call their models.
        guard: who may ask; None: everybody.
        session_cookie: that names a session; "" for none.
        paths: that are passed on.

    Attributes:
        answered: requests by path and status; GONE: the client had gone, BROKEN_OFF: it has a part.
        tries: requests by how many engines were tried.
        failures: engines that did not answer a request, by kind.
        under_way: exchanges.
        faults: unexpected errors.
    """

    def __init__(
        self,
        parts: ExchangeParts,
        names: EngineNames,
        guard: Guard | None = None,
        *,
        session_cookie: str = "",
        paths: PassedPaths = PassedPaths(),  # noqa: B008 -- immutable
    ) -> None:
        self.answered: Counter[tuple[str, int]] = Counter()
        self.tries: Counter[int] = Counter()
        self.failures: Counter[str] = Counter()
        self.under_way = 0
        self.faults = 0
        self._parts = parts
        self._names = names
        self._guard = None if guard is None or guard.is_open else guard
        self._session_cookie = session_cookie
        self._paths = paths
        self._bodies = Bodies()

    @property
    def fleet(self) -> Fleet:
        """The engines."""
        return self._parts.fleet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        path = scope["path"]
        answer = _Answer(send)
        try:
            access = self._admit(scope)
            if self._guard is None or self._guard.ring is None:  # no page knows a key
                check_origin(scope["method"], scope["headers"])
            if scope["method"] == "POST":
                self._paths.check(path)
                self.under_way += 1
                try:
                    await self._exchange(scope, access, receive, answer)
                finally:
                    self.under_way -= 1
            else:
                await self._answer_view(scope["method"], path, access, answer)
        except ClientGoneError:
            answer.status = GONE
        except RepriseError as error:
            await answer.refuse(refusal_of(error))
        except BrokenOffError as error:
            answer.status = BROKEN_OFF
            logger.debug("An engine broke its answer to %s off: %s", path, error)
            break_off = scope.get("state", {}).get(BREAK_OFF)
            if break_off is None:
                raise
            break_off()
        self.answered[path if path in _PATHS else _OTHER, answer.status] += 1

    def _admit(self, scope: Scope) -> Access:
        """Raises AccessError where the caller may not ask."""
        if self._guard is None:
            return OPEN
        client = scope.get("client")
        return self._guard.admit(
            _authorization(scope["headers"]),
            client[0] if client else "",
            Right.ROUTE,
            certificate=scope.get("state", {}).get(CERTIFICATE_NAMES, ()),
            is_probe=scope["path"] in _PROBES and scope["method"] == "GET",
        )

    # Requests to engines

    async def _exchange(
        self, scope: Scope, access: Access, receive: Receive, answer: "_Answer"
    ) -> None:
        headers = scope["headers"]
        await self.fleet.wait_started()
        request = read_request(
            scope["path"],
            scope.get("query_string", b""),
            headers,
            await self._bodies.read(receive, headers),
            keeps_authorization=self._guard is None or self._guard.ring is None,
            session_cookie=self._session_cookie,
        )
        model = self._model(access.tenant_of(request.tenant_id), request)
        exchange = Exchange(self._parts, request, model, answer.send)
        del request
        task = asyncio.current_task()
        assert task is not None, "a request is answered by a task"
        watch = asyncio.create_task(_watch(receive, exchange, task))
        try:
            await exchange.run()
        except asyncio.CancelledError:
            is_whole = exchange.gone()
            if not (watch.done() and watch.result()):
                await self._stop(answer)
                return
            task.uncancel()
            if is_whole:
                return
            raise ClientGoneError("the client left before its answer was complete") from None
        except RepriseError:
            raise
        except BrokenOffError:
            raise
        except Exception as error:
            self.faults += 1
            exchange.gone()
            logger.exception("Unexpected error in the gateway; its client is answered 500")
            if answer.status:
                raise BrokenOffError("an unexpected error") from error
            raise GatewayError(500, "internal_error", "Internal server error") from error
        finally:
            watch.cancel()
            self.tries[exchange.tries] += 1
            self.failures.update(exchange.failures)

    @staticmethod
    async def _stop(answer: "_Answer") -> None:
        """The service stops, and has waited for the answer."""
        if answer.status:
            raise BrokenOffError("the service stops")
        text = "The service stops; try again"
        raise GatewayError(503, "stopping", text, headers={"retry-after": "1"})

    def _model(self, tenant_id: str, request: ClientRequest) -> ServedModel:
        found = self.fleet.model(tenant_id, request.model, request.lora_path)
        if found is None:
            raise unknown_model(self.fleet, tenant_id, request.model)
        return found

    # Views

    async def _answer_view(self, method: str, path: str, access: Access, answer: "_Answer") -> None:
        if method not in ("GET", "HEAD"):
            text = f"Expected POST of a request, or GET {MODELS}, got: {method[:20]}"
            raise GatewayError(405, "method_not_allowed", text)
        if path in _PROBES:
            wrong = "" if self.fleet.models() else "no engine is there"
            if path == _READY and not wrong and not self.fleet.has_answering:
                wrong = "no engine answers"
            await answer.json(503 if wrong else 200, {"status": wrong or "ok"})
        elif path == MODELS:
            documents = list(self._documents(access).values())
            await answer.json(200, {"object": "list", "data": documents})
        elif path.startswith(MODELS + "/"):
            name = path.removeprefix(MODELS + "/")
            found = self._documents(access).get(name)
            if found is None:
                tenant = access.tenant_of("")
                raise unknown_model(self.fleet, tenant, name)
            await answer.json(200, found)
        else:
            text = f"Expected POST of a request, or GET {MODELS}, got: GET {path[:80]}"
            raise GatewayError(404, "not_found", text)

    def _documents(self, access: Access) -> dict[str, Any]:
        """By the name of the model: in the engine's own words, or ours."""
        found: dict[str, Any] = {}
        for model in self.fleet.models(access.tenants):
            urls = [one.base_url for one in model.targets.values()]
            found.update(self._names.documents(urls))
            found.setdefault(model.lora_name or model.name, _Listed(model.lora_name or model.name))
        return dict(sorted(found.items()))


def _authorization(headers: Headers) -> bytes:
    """As clients say it, those of Anthropic's API in a header of their own."""
    key = header(headers, API_KEY_HEADER)
    return header(headers, b"authorization") or (b"Bearer " + key if key else b"")


async def _watch(receive: Receive, exchange: Exchange, task: "asyncio.Task[Any]") -> bool:
    """Cancels an exchange once its client has gone; whether it did."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if exchange.state is State.ENDED:
        return False
    task.cancel()
    return True


class _Answer:
    """What a client gets.

    Attributes:
        status: 0 until it has begun.
    """

    def __init__(self, send: Send) -> None:
        self.status = 0
        self._send = send

    async def send(self, message: Message) -> None:
        """As ASGI has it."""
        if not self.status:
            self.status = message["status"]
        await self._send(message)

    async def json(self, status: int, document: Any) -> None:
        """All of it."""
        await self._whole(status, msgspec.json.encode(document), {})

    async def refuse(self, error: GatewayError) -> None:
        """In place of an engine's answer; nothing, where that has begun."""
        if not self.status:
            await self._whole(error.status, error_body(error), error.headers)

    async def _whole(self, status: int, body: bytes, headers: Any) -> None:
        pairs = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *((name.encode(), value.encode()) for name, value in headers.items()),
        ]
        await self.send({"type": "http.response.start", "status": status, "headers": pairs})
        await self.send({"type": "http.response.body", "body": body})
