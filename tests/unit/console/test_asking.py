"""A service that is asked, and all ways in which it does not answer."""

import socket
from collections.abc import Iterator

import click
import msgspec
import pytest

from console.asking import asked
from tests.unit.reprise.cli.answering import Handler, answering


class Document(msgspec.Struct):
    count: int


@pytest.fixture
def url() -> Iterator[str]:
    with answering() as url:
        yield url


def ask(url: str, **parameters: object) -> Document:
    return asked(url, "/it", parameters, Document)


def test_a_document_is_asked_for_with_the_parameters_that_are_given(url: str) -> None:
    Handler.answer = 200, b'{"count": 3, "of a later version": 1}'
    assert ask(url, by="a&b", since=None, model="", at=0.5).count == 3
    assert ask(url).count == 3
    assert Handler.asked == [
        ("/it?by=a%26b&at=0.5", "application/json"),
        ("/it", "application/json"),
    ]


@pytest.mark.parametrize("body", [b"", b"{", b'{"count": "x"}', b"[]", b'"\xff"'])
def test_another_answer_is_refused_with_what_was_expected(url: str, body: bytes) -> None:
    Handler.answer = 200, body
    with pytest.raises(click.ClickException, match="Expected what GET /it answers"):
        ask(url)


def test_a_refusal_is_shown_without_what_could_move_the_cursor(url: str) -> None:
    Handler.answer = 404, b"no\x1b[2Jsuch route\xff"
    with pytest.raises(click.ClickException) as raised:
        ask(url)
    assert "such route" in raised.value.message
    assert "\x1b" not in raised.value.message


def test_a_refusal_has_its_text_without_the_json(url: str) -> None:
    Handler.answer = 400, b'{"error":"limit must be 1 to 9, got: x","reason":"invalid_value"}'
    with pytest.raises(click.ClickException, match=r"^limit must be 1 to 9, got: x$"):
        ask(url)


UP = r"Connection refused\. Is the service up\? --url or REPRISE_URL names it$"
ADDRESS = (
    r"^Expected a URL such as `http://.*`, got: .*\. Give the service's address as --url or RE"
)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://127.0.0.1:{port}", UP),
        ("nonsense", ADDRESS),
        ("127.0.0.1:{port}", ADDRESS),
        ("ftp://127.0.0.1:{port}", ADDRESS),
        ("http://127.0.0.1:x", ADDRESS),
    ],
)
def test_a_service_that_cannot_be_asked_is_said(url: str, text: str) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and nobody listens
        with pytest.raises(click.ClickException, match=text):
            ask(url.format(port=held.getsockname()[1]))


def test_tls_to_a_service_without_it_is_said(url: str) -> None:
    with pytest.raises(click.ClickException, match=r"it answers without TLS: ask it as http://"):
        ask(url.replace("http:", "https:"))
