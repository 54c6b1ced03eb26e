"""Where the gateway listens, and for which engines."""

from enum import StrEnum
from typing import Final

import msgspec

LOOPBACK: Final = "127.0.0.1"


class Affinity(StrEnum):
    """Whether the requests of a session go to one engine."""

    OFF = "off"
    SOFT = "soft"
    """Where that engine is nearly the best, as the policy says: `routing`."""
    HARD = "hard"
    """As long as it is there, and its requests do not fail."""


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `--gateway`, `--engine`, `--ext-proc` and the keys beside them say.

    Attributes:
        host: the address or name to listen on; "" for nowhere: engines are registered alone.
        port: 0 for any.
        engines: base URLs of those that are asked what they are, and registered.
        affinity: of sessions.
        session_cookie: the name of the cookie that names a session; "" for none.
        paths: that are passed on beside those of inference.
        option: that says where it listens, as errors name it.
        is_insecure: whether it listens beyond loopback without keys.
        picker_host: the address or name that the endpoint picker listens on; "" for nowhere.
        picker_port: 0 for any.
        is_picker_insecure: whether it is asked without keys: proxies may have no place for one.
    """

    host: str = ""
    port: int = 0
    engines: tuple[str, ...] = ()
    affinity: Affinity = Affinity.SOFT
    session_cookie: str = ""
    paths: tuple[str, ...] = ()
    option: str = "--gateway"
    is_insecure: bool = False
    picker_host: str = ""
    picker_port: int = 0
    is_picker_insecure: bool = False
