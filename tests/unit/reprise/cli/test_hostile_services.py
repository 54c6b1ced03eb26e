"""Whatever answers at the address of a service, a command ends, in a line that a terminal shows."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from console import service_client
from console.asking import asked
from reprise.cli.main import main
from schemas.limits import KIB

COMMANDS = [
    ["gaps"],
    ["get", "/promises"],
    ["get", "/explain", "--body", "-"],
]
SOME = pytest.mark.parametrize("command", COMMANDS)
"""Of a GET and of a POST: all commands ask by the same function."""

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


class Hostile:
    """Answers each connection with some bytes, and then with others until that is closed."""

    def __init__(self, first: bytes, again: bytes = b"", *, pause_s: float = 0.0) -> None:
        self._first, self._again, self._pause_s = first, again, pause_s
        self.sent = 0
        self.ended = threading.Event()

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.recv(64 * KIB)
                connection.sendall(self._first)
                while self._again and not self.ended.wait(self._pause_s):
                    connection.sendall(self._again)
                    self.sent += len(self._again)


@contextmanager
def serving(hostile: Hostile) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=hostile.serve, args=(listener,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            hostile.ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def answer(body: bytes, head: bytes = HEAD) -> Hostile:
    return Hostile(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def run(command: list[str], url: str) -> Result:
    return CliRunner().invoke(main, [*command, "--url", url], input=b'{"model": "m"}')


def ended_with_a_line(result: Result) -> str:
    assert result.exit_code == 1, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.output.startswith("Error: ")
    line = result.output.removesuffix("\n")
    assert line.isprintable()
    return line.removeprefix("Error: ")


@SOME
def test_an_endless_answer_is_given_up_at_its_bound(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_client, "SERVICE_ANSWER_BYTES_MAX", 64 * KIB)
    hostile = Hostile(HEAD + b"\r\n", b"[" * KIB)
    with serving(hostile) as url:
        assert "answers with more than 65536 bytes" in ended_with_a_line(run(command, url))
    assert hostile.sent < 32 * 1024 * KIB, "no more than sockets hold"


@SOME
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"services":' + b'{"a":' * 100_000,
        b"",
        b'\x1b]0;owned\x07{"\x9b31m": "\xe2\x80\xae"}',
    ],
    ids=["deep", "deep map", "nothing", "escapes"],
)
def test_what_is_no_document_is_said(command: list[str], body: bytes) -> None:
    with serving(answer(body)) as url:
        assert ended_with_a_line(run(command, url)).startswith("Expected what ")


def test_what_is_another_document_is_said() -> None:
    with serving(answer(b'{"services": 3, "ended_by": {"tokens": []}}')) as url:
        assert ended_with_a_line(run(["gaps"], url)).startswith("Expected what ")


@SOME
def test_a_redirect_says_where_to_ask(command: list[str]) -> None:
    head = b"HTTP/1.1 301 Moved\r\nLocation: http://10.0.0.9:1/\x9b2J\r\n"
    with serving(answer(b"", head)) as url:
        line = ended_with_a_line(run(command, url))
    assert "answers 301, a redirect to http://10.0.0.9:1/" in line


@SOME
def test_a_refusal_without_words_says_its_status(command: list[str]) -> None:
    with serving(answer(b"", b"HTTP/1.1 503 Busy\r\n")) as url:
        assert "answers 503" in ended_with_a_line(run(command, url))


@SOME
def test_a_refusal_moves_no_cursor_and_turns_no_text_round(command: list[str]) -> None:
    text = "no \x1b[2J \x9b31m \u202e \x00 route".encode()
    with serving(answer(text, b"HTTP/1.1 404 No\r\n")) as url:
        line = ended_with_a_line(run(command, url))
    assert line == "no \\x1b[2J \\x9b31m \\u202e \\x00 route"


def test_a_server_that_dribbles_is_given_up_when_its_time_is_over() -> None:
    """Each of its pieces comes in time."""
    with (
        serving(Hostile(HEAD + b"\r\n", b" ", pause_s=0.02)) as url,
        pytest.raises(click.ClickException, match=r"did not answer within 0\.2 s"),
    ):
        asked(url, "/gaps", {}, dict, wait_s=0.2)


def test_json_is_the_same_and_shows_each_character_as_it_is() -> None:
    said = {"instance_id": "a\x9b31m\u202e\x7f\U000e0001模型", "n": 1}
    body = json.dumps(said, ensure_ascii=False).encode()
    with serving(answer(body)) as url:
        result = run(["get", "/services", "--json"], url)
    assert result.exit_code == 0, result.output
    assert result.output.removesuffix("\n").isprintable()
    assert "模型" in result.output
    assert json.loads(result.output) == said


def test_a_certificate_that_is_no_file_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRISE_CA", "/dev/zero")
    line = ended_with_a_line(run(["gaps"], "https://127.0.0.1:1"))
    assert "REPRISE_CA" in line
    assert "no regular file" in line


def test_a_key_that_no_header_can_have_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRISE_KEY", "rk_a\r\nX: y")
    with serving(answer(b"{}")) as url:
        assert "a header has characters" in ended_with_a_line(run(["gaps"], url))
