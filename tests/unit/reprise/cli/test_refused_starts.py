"""What keeps `reprise up` from starting is told at once."""

from collections.abc import Callable
from pathlib import Path


def test_a_malformed_configuration_is_told(refused: Callable[..., str], tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"http_server_port": "many"}')
    text = refused("up", "--config", str(config), "--data", str(tmp_path / "data"))
    assert "http_server_port must be an integer, got a string" in text


def test_an_address_of_grpc_that_is_none_is_named(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    text = refused("up", "--grpc", "nowhere", "--data", str(tmp_path / "data"))
    assert "Expected --grpc to be HOST:PORT" in text
