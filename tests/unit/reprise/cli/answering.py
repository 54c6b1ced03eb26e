"""A service that answers what a test tells it to."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar


class Handler(BaseHTTPRequestHandler):
    answer: ClassVar[tuple[int, bytes]] = (200, b"")
    asked: ClassVar[list[tuple[str, str]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Accept"]))
        status, body = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


@contextmanager
def answering() -> Iterator[str]:
    """The URL of a service that answers each GET with `Handler.answer`."""
    Handler.asked.clear()
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()
