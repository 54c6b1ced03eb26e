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
