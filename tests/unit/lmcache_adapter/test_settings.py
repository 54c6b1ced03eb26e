import json
from pathlib import Path

import pytest

from lmcache_adapter.settings import (
    Address,
    CoordinatorSettings,
    LmcacheSettings,
    Model,
    TopicSettings,
    read_address,
    read_coordinator,
    read_models,
    read_topic,
)
from schemas.errors import ConfigurationError
from schemas.registration import HashProfile


@pytest.mark.parametrize(
    ("text", "host", "ports"),
    [
        ("127.0.0.1", "127.0.0.1", (8300, 8400, 8401)),
        ("h:1,2,3", "h", (1, 2, 3)),
        ("h:0,0,0", "h", (0, 0, 0)),
        ("[::1]", "[::1]", (8300, 8400, 8401)),
        ("[::1]:1,2,3", "[::1]", (1, 2, 3)),
    ],
)
def test_an_address_has_three_ports(text: str, host: str, ports: tuple[int, int, int]) -> None:
    pull, reply, heartbeat = ports
    assert read_address(text, "x") == Address(
        host=host, pull_port=pull, reply_port=reply, heartbeat_port=heartbeat, advertised="x"
    )


@pytest.mark.parametrize(
    "text", ["", ":1,2,3", "h:1", "h:1,2", "h:1,2,3,4", "h:a,b,c", "h:1,2,65536"]
)
def test_what_is_no_address_is_told_with_an_example(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"127\.0\.0\.1:8300,8400,8401"):
        read_address(text)


def test_without_a_file_all_are_of_one_model() -> None:
    models = read_models(None, "m")
    assert models.of("any").modelname == "m"
    assert models.of("any").block_size == 256
    assert models.of("any").hash_profile is None


def test_a_file_has_the_model_of_each_instance(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    b = {"modelname": "n", "hash_algorithm": "sha256_cbor", "hash_seed": "0"}
    path.write_text(json.dumps({"default": {"block_size": 64}, "instances": {"b": b}}))
    models = read_models(path, "m")
    assert models.of("a") == Model(modelname="m", block_size=64)
    assert models.of("b").modelname == "n"
    assert models.of("b").hash_profile == HashProfile(
        strategy="lmcache",
        algorithm="sha256_cbor",
        python_hash_seed="0",
        index_projection="first_8_bytes_big_endian",
    )


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"defaults": {}}', '{"default": {"block_size": 0}}', '{"default": {"model": "m"}}'],
)
def test_what_is_no_file_of_models_is_told_with_its_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "models.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"models\.json"):
        read_models(path)


def test_a_hash_that_cannot_be_computed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    path.write_text('{"default": {"hash_algorithm": "md5"}}')
    with pytest.raises(ConfigurationError, match="sha256_cbor or builtin or blake3, got: md5"):
        read_models(path)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Cannot read"):
        read_models(tmp_path / "none.json")


def test_models_of_the_topic_are_those_of_the_file_or_the_default(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    path.write_text('{"default": {"block_size": 8}, "models": {"m": {"block_size": 4}}}')
    models = read_models(path)
    assert (models.named("m").block_size, models.named("n").block_size) == (4, 8)


def test_a_topic_is_at_servers() -> None:
    assert read_topic("a:1,b:2", "t") == TopicSettings(bootstrap="a:1,b:2", topic="t")


@pytest.mark.parametrize("bootstrap", ["", "a", "a:", ":1", "a:x", "a:0", "a:65536", "a:1,b"])
def test_what_is_no_server_is_told(bootstrap: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        read_topic(bootstrap, "t")
    with pytest.raises(ConfigurationError, match="name a topic"):
        read_topic("a:1", "")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("0.0.0.0", "0.0.0.0", 9300), ("h:0", "h", 0), ("[::1]", "::1", 9300), ("[::1]:7", "::1", 7)],
)
def test_a_coordinator_has_a_port(text: str, host: str, port: int) -> None:
    assert read_coordinator(text) == CoordinatorSettings(host=host, port=port)


@pytest.mark.parametrize("text", [":9300", "h:", "h:x", "h:70000", "h:1,2"])
def test_what_is_no_coordinator_is_told(text: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST or HOST:PORT"):
        read_coordinator(text)


def test_servers_tell_by_their_topic_or_the_coordinator() -> None:
    with pytest.raises(ConfigurationError, match="got both"):
        LmcacheSettings(kafka="a:1", coordinated="a").check()
    LmcacheSettings(coordinated="a").check()
    beside = LmcacheSettings(listen="a", coordinated="a", kafka="").without_servers()
    assert (beside.listen, beside.coordinated) == ("a", "")
