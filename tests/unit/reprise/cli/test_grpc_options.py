"""`--grpc` and what belongs to it, as the commands hand it over."""

import click
import pytest
from click.testing import CliRunner

from console.settings import RoleCommand, part_settings
from query_api.grpc.grpc_settings import GrpcSettings, ListenAddress


def given(*arguments: str, **environment: str) -> GrpcSettings | None:
    found: list[GrpcSettings | None] = []

    @click.command(cls=RoleCommand)
    @part_settings(GrpcSettings, "grpc", required=False)
    def command(grpc: GrpcSettings | None) -> None:
        found.append(grpc)

    result = CliRunner().invoke(command, arguments, env=environment)
    assert result.exit_code == 0, result.output
    return found[0]


def test_it_is_off_unless_an_address_is_given() -> None:
    assert given() is None
    assert given("--set", "grpc.model=m") is None
    assert given(REPRISE_GRPC="") is None


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (("--grpc", "h:1", "--set", "grpc.model=m", "--set", "grpc.tenant=t"), {}),
        ((), {"REPRISE_GRPC": "h:1", "REPRISE_GRPC_MODEL": "m", "REPRISE_GRPC_TENANT": "t"}),
    ],
)
def test_flags_and_the_environment_say_the_same(
    arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    expected = GrpcSettings(listen=ListenAddress("h", 1), model_name="m", tenant_id="t")
    assert given(*arguments, **environment) == expected


def test_a_port_alone_is_on_loopback_for_any_model_of_the_default_tenant() -> None:
    listen = ListenAddress("127.0.0.1", 0)
    expected = GrpcSettings(listen=listen, model_name="", tenant_id="default")
    assert given("--grpc", "0") == expected
