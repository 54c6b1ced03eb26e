"""Base URLs of engines."""

import pytest

from bridge.engine_http.address import read_base_url
from schemas.errors import EndpointError


@pytest.mark.parametrize(
    ("text", "authority", "path"),
    [
        ("http://10.0.0.7:8000", "10.0.0.7:8000", ""),
        ("http://10.0.0.7:65535/", "10.0.0.7:65535", ""),
        ("https://engine.example", "engine.example:443", ""),
        ("http://[fd00::7]:1/engines/1/", "[fd00::7]:1", "/engines/1"),
    ],
)
def test_a_url_is_read(text: str, authority: str, path: str) -> None:
    url = read_base_url(text)
    assert (url.authority, url.path) == (authority, path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tcp://10.0.0.7:5557",
        "file:///etc/passwd",
        "http://",
        "http://a:b",
        "http://a:0",
        "http://a:65536",
        "http://user@a:8000",
        "http://:secret@a:8000",
        "http://a:8000/?q=1",
        "http://a:8000/#f",
        "http://a b:8000",
        "http://a:8000/x\r\nX-Injected: 1",
        "http://a:8000/x\0",
        "http://ä.example",
        "http://[::1",
    ],
)
def test_what_is_no_base_url_is_refused(text: str) -> None:
    with pytest.raises(EndpointError, match="Expected a"):
        read_base_url(text)
