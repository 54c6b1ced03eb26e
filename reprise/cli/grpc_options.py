"""The options of the commands that answer routers by gRPC."""

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any, Final, TypeVar

from console.settings import setting
from query_api.grpc.grpc_settings import GrpcSettings, read_address
from schemas.identities import DEFAULT_TENANT

R = TypeVar("R")

_OPTIONS: Final = (
    setting(
        "--grpc",
        key="grpc.listen",
        metavar="[HOST:]PORT",
        envvar="REPRISE_GRPC",
        help="Answer SGLang's router and SMG's gateway by gRPC there; a port alone is on"
        " 127.0.0.1.  [default: off]",
    ),
    setting(
        "--grpc-model",
        key="grpc.model",
        is_seldom_set=True,
        metavar="NAME",
        envvar="REPRISE_GRPC_MODEL",
        help="The model that SGLang's router asks about, which names none.  [default: any]",
    ),
    setting(
        "--grpc-tenant",
        key="grpc.tenant",
        is_seldom_set=True,
        metavar="NAME",
        default=DEFAULT_TENANT,
        show_default=True,
        envvar="REPRISE_GRPC_TENANT",
        help="Whose engines are asked by gRPC, where no request names a tenant.",
    ),
    setting(
        "--grpc-insecure",
        key="grpc.insecure",
        is_seldom_set=True,
        is_flag=True,
        envvar="REPRISE_GRPC_INSECURE",
        help="Answer gRPC without keys, also beyond loopback: routers have no place for one.",
    ),
)


def grpc_options(command: Callable[..., R]) -> Callable[..., R]:
    """`--grpc` and what belongs to it, handed over as `grpc`: GrpcSettings or None."""

    @wraps(command)
    def run(
        *args: Any,
        grpc: str | None,
        grpc_model: str | None,
        grpc_tenant: str,
        grpc_insecure: bool,
        **options: Any,
    ) -> R:
        settings = None
        if grpc:
            host, port = read_address(grpc)
            settings = GrpcSettings(
                host=host,
                port=port,
                tenant_id=grpc_tenant,
                model_name=grpc_model or "",
                is_insecure=grpc_insecure,
            )
        return command(*args, grpc=settings, **options)

    return reduce(lambda done, option: option(done), reversed(_OPTIONS), run)
