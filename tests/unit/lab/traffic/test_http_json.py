import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from lab.engines.control import EngineServer
from lab.traffic.http_json import JsonConnection

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextmanager
def scripted(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that gives its listening socket to `serve`, once."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def answer_once_then_close(listening: socket.socket) -> None:
    for _ in range(2):
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(ANSWER)


def close_at_once(listening: socket.socket) -> None:
    listening.accept()[0].close()


def talk_nonsense(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 two hundred\r\n\r\n")


def test_request_is_sent_again_where_the_kept_connection_was_closed() -> None:
    with scripted(answer_once_then_close) as url:
        connection = JsonConnection(url)
        assert connection.request("POST", "/", {"a": 1}).body == b"{}"
        assert connection.request("POST", "/", {"a": 2}).status == 200
        connection.close()


@pytest.mark.parametrize("serve", [close_at_once, talk_nonsense])
def test_server_that_does_not_answer_is_an_os_error(
    serve: Callable[[socket.socket], None],
) -> None:
    with scripted(serve) as url:
        connection = JsonConnection(url)
        with pytest.raises(OSError):  # noqa: PT011
            connection.request("GET", "/")
        connection.close()


def test_path_of_the_base_address_is_kept() -> None:
    server = EngineServer("127.0.0.1", 0, routes={("GET", "/base/x"): lambda _: [1]})
    try:
        connection = JsonConnection(f"http://127.0.0.1:{server.port}/base/")
        assert connection.request("GET", "/x").body == b"[1]"
        connection.close()
    finally:
        server.close()


@pytest.mark.parametrize("address", ["127.0.0.1:80", "https://x", "http://"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="Expected an address"):
        JsonConnection(address)
