"""An engine's HTTP server for tests: answers what it is told to, in threads of its own."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lab.engines.publisher import Publisher


class EngineServer:
    """See the module.

    Attributes:
        replies: status and body by path; 404 elsewhere.
        asked: how often, by path.
        posted: bodies that came, in order.
    """

    def __init__(self) -> None:
        self.replies: dict[str, tuple[int, bytes]] = {}
        self.asked: Counter[str] = Counter()
        self.posted: list[bytes] = []
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                engine.asked[self.path] += 1
                status, body = engine.replies.get(self.path, (404, b""))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(ConnectionError):  # whoever asked has read enough
                    self.wfile.write(body)

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                engine.posted.append(self.rfile.read(size))
                self.do_GET()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def starts(self, started_at: float, *ranks: Publisher) -> None:
        """It is a vLLM process from now on that publishes so."""
        sources = {
            str(one.dp_rank): {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": one.endpoint.replace("127.0.0.1", "*"),
                "replay_endpoint": one.replay_endpoint.replace("127.0.0.1", "*") or None,
                "topic": "",
            }
            for one in ranks
        }
        self.replies = {
            "/health": (200, b""),
            "/metrics": (200, f"process_start_time_seconds {started_at!r}\n".encode()),
            "/kv_event_sources": (200, json.dumps(sources).encode()),
        }

    def ends(self) -> None:
        """There is no process: whatever it is asked it answers with an error of a proxy."""
        self.replies = dict.fromkeys(self.replies, (503, b""))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def engine_server() -> Iterator[EngineServer]:
    """One that is closed behind it."""
    server = EngineServer()
    try:
        yield server
    finally:
        server.close()
