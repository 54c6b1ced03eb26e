"""Where gRPC is served, as `--grpc` says it."""

import pytest

from query_api.grpc.grpc_settings import read_address
from schemas.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("50051", ("127.0.0.1", 50051)),
        ("0", ("127.0.0.1", 0)),
        ("0.0.0.0:50051", ("0.0.0.0", 50051)),
        ("index.local:1", ("index.local", 1)),
        ("[::1]:50051", ("::1", 50051)),
    ],
)
def test_an_address_is_read(text: str, address: tuple[str, int]) -> None:
    assert read_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":50051", "::1:50051", "host:65536", "host:1x", "host:-1", "1.5"]
)
def test_what_is_none_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Expected --grpc to be HOST:PORT"):
        read_address(text)
