"""The gateway, made of its parts; lives on the loop of the HTTP server beside it."""

import asyncio
import socket
from collections import Counter
from typing import TYPE_CHECKING

from bridge.engine_http.engine import EngineHttp
from bridge.engine_http.keys import ENGINE_KEYS
from bridge.supervision import cancel
from gateway.catalog import Catalog
from gateway.endpoint import GatewayEndpoint
from gateway.enrollment import Enrollment
from gateway.exchange import ExchangeParts
from gateway.fleet import Fleet
from gateway.held import HeldBytes
from gateway.names import EngineNames
from gateway.paths import PassedPaths
from gateway.placement import Placer
from gateway.prompts import Prompts
from gateway.settings import GatewaySettings
from gateway.upstream import Upstream
from query_api.access.guard import Guard
from query_api.ports import PublisherRegistry, View
from routing.decisions.router import Router
from tokens.interface import PromptTokenizer

if TYPE_CHECKING:
    from gateway.picker.server import PickerServer
    from query_api.grpc.credentials import GrpcTls


class Gateway:
    """See the module.

    Args:
        registry: takes the engines that are named by their address.
        guard: who may ask; None: everybody.
        picker_guard: who may ask the endpoint picker; likewise.
        tokenizer: makes token ids; None: requests without them are routed by load.

        upstream: asks the engines; None: one with the usual bounds.

    Attributes:
        address: where it answers, as a base URL; "" for nowhere.
        refused: what its server has refused or ended, by reason.
        catalog, enrollment, fleet, held, placer, prompts: its parts.
        endpoint: answers, as an ASGI application, while it is open.
        picker: answers proxies; None: there is none.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        view: View,
        registry: PublisherRegistry,
        router: Router,
        *,
        guard: Guard | None = None,
        picker_guard: Guard | None = None,
        tokenizer: PromptTokenizer | None = None,
        upstream: Upstream | None = None,
    ) -> None:
        self.address = ""
        self.refused: Counter[str] = Counter()
        names = EngineNames()
        self.fleet = Fleet(view, names)
        self.catalog = Catalog(self.fleet, names)
        self.held = HeldBytes()
        self.placer = Placer(view, router, self.fleet, settings.affinity)
        self.prompts = Prompts(tokenizer)
        ENGINE_KEYS.name(settings.engines)
        self.enrollment = Enrollment(settings.engines, view, registry, EngineHttp())
        self._upstream = Upstream() if upstream is None else upstream
        parts = ExchangeParts(self.placer, self.prompts, self.fleet, self._upstream, self.held)
        self.endpoint = GatewayEndpoint(
            parts,
            names,
            guard,
            session_cookie=settings.session_cookie,
            paths=PassedPaths(settings.paths),
        )
        self.picker: PickerServer | None = None
        if settings.picker is not None:
            # Imported here: gRPC takes a tenth of a second that nobody needs who has it off.
            from gateway.picker.server import PickerServer as Server

            self.picker = Server(parts, view, picker_guard, session_cookie=settings.session_cookie)
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Begins to answer, and to ask engines what they are."""
        self._upstream.open()
        self.placer.end_former()
        self._tasks = [
            asyncio.create_task(self.enrollment.run()),
            asyncio.create_task(self.catalog.run()),
        ]

    async def open_picker(self, listening: socket.socket, tls: "GrpcTls | None") -> None:
        """See `PickerServer.open`."""
        assert self.picker is not None, "settings name its address"
        await self.picker.open(listening, tls)

    async def close(self, *, is_forced: bool = True) -> None:
        """Ends: proxies' requests within a bound, whatever else is under way at once."""
        if self.picker is not None:
            await self.picker.close(is_forced=is_forced)
        await cancel(*self._tasks)
        await self._upstream.close()
