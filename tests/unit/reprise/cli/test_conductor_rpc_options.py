"""`--conductor-rpc` and what belongs to it, as the commands hand it over."""

import click
import pytest
from click.testing import CliRunner

from console.settings import RoleCommand, part_settings
from query_api.grpc.grpc_settings import ListenAddress
from query_api.rpc.rpc_settings import RpcSettings


def given(*arguments: str, **environment: str) -> RpcSettings | None:
    found: list[RpcSettings | None] = []

    @click.command(cls=RoleCommand)
    @part_settings(RpcSettings, "conductor_rpc", required=False)
    def command(conductor_rpc: RpcSettings | None) -> None:
        found.append(conductor_rpc)

    result = CliRunner().invoke(command, arguments, env=environment)
    assert result.exit_code == 0, result.output
    return found[0]


def test_it_is_off_unless_an_address_is_given() -> None:
    assert given() is None
    assert given("--set", "conductor_rpc.insecure=true") is None
    assert given(REPRISE_CONDUCTOR_RPC="") is None


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (("--conductor-rpc", "h:1", "--set", "conductor_rpc.insecure=true"), {}),
        ((), {"REPRISE_CONDUCTOR_RPC": "h:1", "REPRISE_CONDUCTOR_RPC_INSECURE": "true"}),
    ],
)
def test_flags_and_the_environment_say_the_same(
    arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    expected = RpcSettings(listen=ListenAddress("h", 1), is_insecure=True)
    assert given(*arguments, **environment) == expected


def test_a_port_alone_is_on_loopback() -> None:
    assert given("--conductor-rpc", "0") == RpcSettings(listen=ListenAddress("127.0.0.1", 0))
