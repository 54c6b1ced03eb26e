"""Where gRPC is served, and about what."""

import re
from typing import Final, NamedTuple

from schemas.errors import ConfigurationError
from schemas.identities import DEFAULT_TENANT
from schemas.limits import PORT_MAX, SETTING_SHOWN_CHARS_MAX
from schemas.setting import part, setting

_ADDRESS: Final = re.compile(r"(?:(?P<host>\[[^\]]+\]|[^:\[\]]+):)?(?P<port>[0-9]{1,5})")
_LOOPBACK: Final = "127.0.0.1"


class ListenAddress(NamedTuple):
    """Where something listens.

    Attributes:
        host: the address or name.
        port: 0 for any.
    """

    host: str = _LOOPBACK
    port: int = 0


def read_address(text: str, option: str = "--grpc") -> ListenAddress:
    """That of `HOST:PORT`, `[IPv6]:PORT` or `PORT`, which is on loopback.

    Raises:
        ConfigurationError: it is none of these.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > PORT_MAX:
        raise ConfigurationError(
            f"Expected {option} to be HOST:PORT, [IPV6]:PORT or PORT, got:"
            f" {text[:SETTING_SHOWN_CHARS_MAX]}"
        )
    return ListenAddress((found["host"] or _LOOPBACK).strip("[]"), int(found["port"]))


@part
class GrpcSettings:
    """What `--grpc` and the settings beside it say."""

    listen: ListenAddress = setting(
        "grpc.listen",
        "Answer SGLang's router and SMG's gateway by gRPC there; a port alone is on"
        " 127.0.0.1.  [default: off]",
        flag="--grpc",
        is_usual=True,
        metavar="[HOST:]PORT",
        read=lambda text: read_address(text) if text else None,
    )
    model_name: str = setting(
        "grpc.model",
        "The model that SGLang's router asks about, which names none.  [default: any]",
        metavar="NAME",
        default="",
    )
    tenant_id: str = setting(
        "grpc.tenant",
        "Whose engines are asked by gRPC, where no request names a tenant.",
        metavar="NAME",
        default=DEFAULT_TENANT,
    )
    is_insecure: bool = setting(
        "grpc.insecure",
        "Answer gRPC without keys, also beyond loopback: routers have no place for one.",
        default=False,
    )
