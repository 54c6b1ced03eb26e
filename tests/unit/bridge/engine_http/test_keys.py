"""Keys of engines go to the engines that they are for, and are said nowhere."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.engine_http.address import read_base_url
from bridge.engine_http.client import get, post
from bridge.engine_http.keys import (
    ENGINE_KEY_CHARS_MAX,
    ENGINE_KEYS,
    ENGINE_KEYS_BYTES_MAX,
    ENGINE_KEYS_LOOK_S,
    EngineKey,
    EngineKeys,
    read_engine_keys,
)
from schemas.conditions import Conditions
from schemas.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _no_keys_left() -> Iterator[None]:
    yield
    ENGINE_KEYS.use(())
    ENGINE_KEYS.name(())


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://10.0.0.7:8000", "Bearer seven"),
        ("https://10.0.0.7:8000/v", "Bearer seven"),
        ("http://10.0.0.7:8001", "Bearer named"),
        ("http://10.0.0.8:8000", ""),
        ("http://a.engines.svc:9000", "Bearer pods"),
        ("http://engines.svc:9000", ""),
        ("http://10.0.0.9:1", "Bearer nine"),
    ],
)
def test_key_goes_to_the_addresses_that_it_is_for(url: str, key: str) -> None:
    keys = EngineKeys()
    keys.name(["http://10.0.0.7:8001"])
    keys.use(
        [
            EngineKey("10.0.0.7:8000", "seven"),
            EngineKey("10.0.0.7:8000", "later"),
            EngineKey("*.engines.svc", "pods"),
            EngineKey("10.0.0.9", "nine"),
            EngineKey("", "named"),
        ]
    )
    assert [keys.of(read_base_url(url)) for _ in range(2)] == [key, key]


def test_file_of_keys_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "# of the team\nhttp://10.0.0.7:8000/ one\n\n  *.Engines.svc  two \nthree\n"
    expected = [
        EngineKey("10.0.0.7:8000", "one"),
        EngineKey("*.engines.svc", "two"),
        EngineKey("", "three"),
    ]
    path = tmp_path / "keys"
    path.write_text(text)
    assert read_engine_keys(str(path)) == expected
    monkeypatch.setenv("TEAM_KEYS", text)
    assert read_engine_keys("env:TEAM_KEYS") == expected


@pytest.mark.parametrize(
    "text",
    ["a SECRET b", "a SEC\u20acRET", "a SEC\x07RET", "a " + "SECRET" * ENGINE_KEY_CHARS_MAX],
)
def test_what_is_no_key_is_refused_without_what_it_says(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text("a b\n" + text)
    with pytest.raises(ConfigurationError, match="line 2") as refused:
        read_engine_keys(str(path))
    assert "SECRET" not in str(refused.value)


def test_keys_that_are_not_there_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Cannot read the keys of engines"):
        read_engine_keys(str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match="in the variable 'NO_SUCH'"):
        read_engine_keys("env:NO_SUCH")
    large = tmp_path / "large"
    large.write_bytes(b"#" * (ENGINE_KEYS_BYTES_MAX + 1))
    with pytest.raises(ConfigurationError, match="got more"):
        read_engine_keys(str(large))


def test_engine_is_asked_with_its_key() -> None:
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        for keys in ([EngineKey(f"127.0.0.1:{port}", "k-1")], [EngineKey("127.0.0.1:1", "k-1")]):
            ENGINE_KEYS.use(keys)
            await get(url, "/v1/models", with_body=True)
            await post(url, "/tokenize", b"{}", wait_s=5.0, bytes_max=1000)
        server.close()

    asyncio.run(scenario())
    assert ["Authorization: Bearer k-1" in one for one in heads] == [True, True, False, False]


def test_file_that_changes_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    keys, url = EngineKeys(lambda: now), read_base_url("http://10.0.0.7:8000")
    path = tmp_path / "keys"
    path.write_text("10.0.0.7 one\n")
    keys.follow(str(path))
    assert keys.of(url) == "Bearer one"
    for text, key in (("10.0.0.7 second\n", "second"), ("a SECRET b", "second"), ("* x", "x")):
        path.write_text(text)
        now += ENGINE_KEYS_LOOK_S
        assert keys.of(url) == f"Bearer {key}"
    assert "in line 1" in caplog.text
    assert "SECRET" not in caplog.text
    path.unlink()
    now += ENGINE_KEYS_LOOK_S
    assert keys.of(url) == "Bearer x"


def test_engine_refuses_its_key_until_it_takes_it_where_one_is_wanted() -> None:
    keys, url = EngineKeys(), read_base_url("http://10.0.0.7:8000")
    conditions = keys.conditions = Conditions(lambda: 0.0)
    assert not keys.note(url, "/v1/models", 401), "it has none"
    keys.use([EngineKey("10.0.0.7", "k")])
    assert not keys.note(url, "/v1/models", 200)
    assert not conditions.all()
    assert keys.note(url, "/v1/models", 403)
    assert not keys.note(url, "/tokenize", 200), "which wants no key"
    assert [one.reason for one in conditions.all()] == ["key_refused"]
    keys.keep(["http://10.0.0.7:8000"])
    assert conditions.all()
    keys.keep([])
    assert not conditions.all()
    keys.note(url, "/v1/models", 401)
    keys.note(url, "/v1/models", 200)
    assert not conditions.all()
