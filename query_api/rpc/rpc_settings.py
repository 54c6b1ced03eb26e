"""Where Conductor's RPC is served."""

from query_api.grpc.grpc_settings import ListenAddress, read_address
from schemas.setting import part, setting


@part
class RpcSettings:
    """What `--conductor-rpc` and the setting beside it say."""

    listen: ListenAddress = setting(
        "conductor_rpc.listen",
        "Answer clients of Mooncake Conductor's RPC (coro_rpc) there; a port alone is on"
        " 127.0.0.1.  [default: off]",
        flag="--conductor-rpc",
        is_usual=True,
        metavar="[HOST:]PORT",
        read=lambda text: read_address(text, "--conductor-rpc") if text else None,
    )
    is_insecure: bool = setting(
        "conductor_rpc.insecure",
        "Answer Conductor's RPC without keys and TLS, also beyond loopback: its clients have no"
        " place for either.",
        default=False,
    )
