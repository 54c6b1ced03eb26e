"""What the room adds to each role. Roles find it through `reprise.rooms`, and do without it where
an installation leaves it out.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from gateway.options import LISTEN_OPTION, gateway_options
from gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from click import Context

    from gateway.gateway import Gateway
    from query_api.access.guard import Guard
    from query_api.http.feature import MakeFeature
    from query_api.ports import PublisherRegistry, View
    from routing.decisions.router import Router
    from tokens.interface import PromptTokenizer

R = TypeVar("R")


class GatewayRoom:
    """See the module. Each method imports what it needs, and no more."""

    def options(self, command: Callable[..., R]) -> Callable[..., R]:
        """The options of roles that have a router."""
        return gateway_options(command)

    def name_listen_option(self, context: "Context", option: str) -> None:
        """That option says where it listens, in place of --gateway."""
        context.meta[LISTEN_OPTION] = option

    def gateway(
        self,
        settings: GatewaySettings,
        view: "View",
        registry: "PublisherRegistry",
        router: "Router",
        tokenizer: "PromptTokenizer",
        guard: "Guard",
        picker_guard: "Guard | None",
    ) -> "Gateway":
        """The gateway of a service; see `Gateway`."""
        from gateway.gateway import Gateway

        return Gateway(
            settings,
            view,
            registry,
            router,
            guard=guard,
            picker_guard=picker_guard,
            tokenizer=tokenizer,
        )

    def feature(self, gateway: "Gateway") -> "MakeFeature":
        """What it adds to the HTTP service."""
        from gateway.feature import gateway_feature

        return gateway_feature(gateway)


ROOM: Final = GatewayRoom()
