"""No role answers strangers unless it is told to, and none starts without its keys."""

from collections.abc import Callable
from pathlib import Path

import pytest

from query_api.access.key_ring import KEY_FILE_CHECK_S


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (("up", "--host", "0.0.0.0", "--port", "0"), "--host"),
        (("up", "--port", "0", "--grpc", "0.0.0.0:0"), "--grpc"),
        (("up", "--port", "0", "--conductor-rpc", "0.0.0.0:0"), "--conductor-rpc"),
        (("serve", "--kafka", "127.0.0.1:1", "--host", "::", "--port", "0"), "--host"),
        (
            ("bridge", "--kafka", "127.0.0.1:1", "--metrics-host", "0.0.0.0", "--metrics-port=0"),
            "--metrics-host",
        ),
        (
            ("streams", "--kafka", "127.0.0.1:1", "--metrics-host", "0.0.0.0", "--metrics-port=0"),
            "--metrics-host",
        ),
    ],
)
def test_no_role_answers_strangers_unless_it_is_told_to(
    refused: Callable[..., str], tmp_path: Path, command: tuple[str, ...], named: str
) -> None:
    said = refused(*command, "--data", str(tmp_path / "data"))
    assert f"Expected a loopback address as {named}" in said or named in said
    assert "--insecure" in said


def test_a_service_without_its_keys_does_not_start(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    up = ("up", "--data", str(tmp_path / "d"), "--port", "0", "--keys")
    assert "Cannot read the file of keys none.toml" in refused(*up, "none.toml")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('[[key]]\nid = "a"\n')
    assert "Expected sha256 to be a text in key 1" in refused(*up, str(wrong))
    assert KEY_FILE_CHECK_S <= 1.0  # a second, as README says


def test_conductors_rpc_does_not_start_beside_what_it_has_no_place_for(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    keys.touch()
    up = ("up", "--data", str(tmp_path / "d"), "--port", "0", "--conductor-rpc", "0")
    text = refused(*up, "--keys", str(keys))
    assert (
        "Expected conductor_rpc.insecure beside --conductor-rpc where the service has keys" in text
    )
    pem = str(tmp_path / "x.pem")
    text = refused(*up, "--set", f"tls.cert={pem}", "--set", f"tls.key={pem}")
    assert "where the service has TLS" in text


def test_an_address_of_conductors_rpc_that_is_none_is_named(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    text = refused("up", "--conductor-rpc", "nowhere", "--data", str(tmp_path / "d"))
    assert "Expected --conductor-rpc to be HOST:PORT" in text
