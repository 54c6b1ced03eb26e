"""The rooms that an installation can leave out: LMCache's, the gateway, and the lab.

All of `reprise` sees the first two through this module, and none of the service sees the lab.
"""

from importlib import import_module
from typing import TYPE_CHECKING, ClassVar, Final

from schemas.errors import ConfigurationError
from schemas.setting import part

if TYPE_CHECKING:
    from gateway.gateway import Gateway as Gateway
    from gateway.room import GatewayRoom
    from gateway.settings import GatewaySettings as GatewaySettings
    from lmcache_adapter.acting.actor import Actor as Actor
    from lmcache_adapter.acting.settings import ActingSettings as ActingSettings
    from lmcache_adapter.distributed import LmcacheBridge as LmcacheBridge
    from lmcache_adapter.embedded import EmbeddedLmcache as EmbeddedLmcache
    from lmcache_adapter.http.workers import WorkerSource as WorkerSource
    from lmcache_adapter.parts import LmcacheParts as LmcacheParts
    from lmcache_adapter.ports import WorkerCommands as WorkerCommands
    from lmcache_adapter.replica import ReplicaLmcache as ReplicaLmcache
    from lmcache_adapter.room import LmcacheRoom
    from lmcache_adapter.settings import LmcacheSettings as LmcacheSettings

LMCACHE: Final = "lmcache_adapter"
GATEWAY: Final = "gateway"
LAB: Final = "lab"


@part
class NoSettings:
    """What can be set of a room that is left out."""

    is_on: ClassVar[bool] = False

    def check(self) -> None:
        """Nothing is wrong with them."""


class MissingRoomError(ConfigurationError):
    """Operator action: install Reprise with all of its packages."""


def is_installed(room: str) -> bool:
    """Whether an installation has the room of this name."""
    try:
        import_module(room)
    except ModuleNotFoundError as error:
        if error.name != room:
            raise
        return False
    return True


def need(room: str, what: str) -> None:
    """Raises MissingRoomError where `what` needs a room that is not installed."""
    if not is_installed(room):
        raise MissingRoomError(
            f"Expected the package {room} for `{what}`, but this installation leaves it out."
            " Install Reprise with all of its packages: `pip install --force-reinstall` its wheel"
        )


def lmcache() -> "LmcacheRoom | None":
    """The room of LMCache, or None where the installation leaves it out."""
    if not is_installed(LMCACHE):
        return None
    from lmcache_adapter.room import ROOM

    return ROOM


def lmcache_settings() -> "type[LmcacheSettings]":
    """Of roles that workers connect to; `NoSettings` without the room."""
    room = lmcache()
    return NoSettings if room is None else room.settings  # type: ignore[return-value]


def acting_settings() -> "type[ActingSettings]":
    """Of roles that can act on advice; `NoSettings` without the room."""
    room = lmcache()
    return NoSettings if room is None else room.acting_settings  # type: ignore[return-value]


def gateway() -> "GatewayRoom | None":
    """The room of the gateway, or None where the installation leaves it out."""
    if not is_installed(GATEWAY):
        return None
    from gateway.room import ROOM

    return ROOM


def gateway_settings() -> "type[GatewaySettings]":
    """Of roles that have a router; `NoSettings` without the room."""
    room = gateway()
    return NoSettings if room is None else room.settings  # type: ignore[return-value]
