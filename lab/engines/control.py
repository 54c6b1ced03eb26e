"""HTTP of a simulated engine: JSON in, JSON out, connections kept open, a thread for each."""

import socketserver
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple

import msgspec

BODY_BYTES_MAX: Final = 32 * 1024 * 1024
_STOP_POLL_S: Final = 0.05

JsonRoute = Callable[[bytes], object]
"""Takes a body, returns what is to be encoded; raises `RequestError` or `msgspec.MsgspecError`."""


class RankRoute(NamedTuple):
    """As a `JsonRoute`, for what a gateway sends: the rank stands in a header, if anywhere."""

    answer: Callable[[bytes, int | None], object]


class EventStream(NamedTuple):
    """What a route may return: server-sent events, each sent as it is made."""

    events: Iterable[object]


class RequestError(Exception):
    """A request that cannot be served; its text is the answer."""


class EngineServer:
    """Serves `routes` in the background until closed."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        routes: Mapping[tuple[str, str], JsonRoute | RankRoute],
        any_port_if_taken: bool = False,
    ) -> None:
        """Bind and serve.

        Args:
            host: address to bind.
            port: 0 lets the system choose.
            routes: by method and path.
            any_port_if_taken: let the system choose where the wanted port is in use.

        Raises:
            OSError: the address is taken.
        """
        handler = type("_RoutedHandler", (_Handler,), {"routes": routes})
        try:
            self._server = _Server((host, port), handler)
        except OSError:
            if not (any_port_if_taken and port):
                raise
            self._server = _Server((host, 0), handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_STOP_POLL_S,), name="engine-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop accepting. Open connections end with the process or with their client."""
        self._server.is_ending = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    is_ending = False

    def server_bind(self) -> None:
        # Not `HTTPServer.server_bind`: that looks the host's name up, which can take seconds.
        socketserver.TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)

    def handle_error(self, request: object, client_address: object) -> None:
        # A client that was killed is no fault of ours, nor a request that the engine's end meets.
        if not (self.is_ending or isinstance(sys.exception(), ConnectionError)):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body leave in one segment: two writes would wait for the client's delayed ACK.
    wbufsize = -1
    disable_nagle_algorithm = True
    routes: Mapping[tuple[str, str], JsonRoute | RankRoute] = {}

    def do_GET(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self._respond()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the requests are the traffic of a simulation."""

    def _respond(self) -> None:
        size_bytes = int(self.headers.get("Content-Length") or 0)
        if not 0 <= size_bytes <= BODY_BYTES_MAX:
            self.close_connection = True
            self._send(413, {"error": f"Expected at most {BODY_BYTES_MAX} bytes"})
            return
        body = self.rfile.read(size_bytes)
        route = self.routes.get((self.command, self.path))
        if route is None:
            self._send(404, {"error": f"no route: {self.command} {self.path}"})
            return
        try:
            if isinstance(route, RankRoute):
                answer = route.answer(body, self._rank())
            else:
                answer = route(body)
        except (RequestError, msgspec.MsgspecError, OverflowError) as error:
            self._send(400, {"error": str(error)})
            return
        if isinstance(answer, EventStream):
            self._send_events(answer)
        else:
            self._send(200, answer)

    def _rank(self) -> int | None:
        """The header of vLLM. Raises RequestError: it is no rank."""
        text = self.headers.get("X-data-parallel-rank", "")
        if text and not (text.isascii() and text.isdigit() and len(text) < 10):
            raise RequestError(f"Expected X-data-parallel-rank to be a rank, got: {text[:64]!r}")
        return int(text) if text else None

    def _send_events(self, stream: EventStream) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in stream.events:
            self._send_chunk(b"data: %s\n\n" % msgspec.json.encode(event))
        self._send_chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _send(self, status: int, answer: object) -> None:
        encoded = msgspec.json.encode(answer)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)
