"""What the room adds to each role. Roles find it through `reprise.rooms`, and do without it where
an installation leaves it out.
"""

from typing import TYPE_CHECKING, Final

from gateway.settings import GatewaySettings, read_listen
from schemas.setting import changed

if TYPE_CHECKING:
    from gateway.gateway import Gateway
    from query_api.access.guard import Guard
    from query_api.http.feature import MakeFeature
    from query_api.ports import PublisherRegistry, View
    from routing.decisions.router import Router
    from tokens.interface import PromptTokenizer


class GatewayRoom:
    """See the module. Each method imports what it needs, and no more."""

    settings = GatewaySettings

    def listening(self, settings: GatewaySettings, text: str, option: str) -> GatewaySettings:
        """The settings with the address that the text of this option says.

        Raises:
            ConfigurationError: it is none.
        """
        return changed(settings, listen=read_listen(text, option), option=option)

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
