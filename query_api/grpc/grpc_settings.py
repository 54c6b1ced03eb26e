"""Where gRPC is served, and about what."""

import re
from typing import Final

import msgspec

from schemas.errors import ConfigurationError
from schemas.identities import DEFAULT_TENANT
from schemas.limits import PORT_MAX, SETTING_SHOWN_CHARS_MAX

_ADDRESS: Final = re.compile(r"(?:(?P<host>\[[^\]]+\]|[^:\[\]]+):)?(?P<port>[0-9]{1,5})")
_LOOPBACK: Final = "127.0.0.1"


class GrpcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `--grpc` and the options beside it say.

    Attributes:
        host: the address or name to listen on.
        port: 0 for any.
        tenant_id: whose publishers are asked: no request names a tenant.
        model_name: the model that SGLang's router asks about, which names none; "" for any.
        is_insecure: whether it is asked without keys: routers have no place for one.
    """

    host: str = _LOOPBACK
    port: int = 0
    tenant_id: str = DEFAULT_TENANT
    model_name: str = ""
    is_insecure: bool = False


def read_address(text: str, option: str = "--grpc") -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[IPv6]:PORT` or `PORT`, which is on loopback.

    Raises:
        ConfigurationError: it is none of these.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > PORT_MAX:
        raise ConfigurationError(
            f"Expected {option} to be HOST:PORT, [IPV6]:PORT or PORT, got:"
            f" {text[:SETTING_SHOWN_CHARS_MAX]}"
        )
    return (found["host"] or _LOOPBACK).strip("[]"), int(found["port"])
