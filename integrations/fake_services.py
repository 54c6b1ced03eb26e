"""Servers for the tests of the integrations: Reprise as its contract has it, and engines."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

DEADLINE_S = 20.0
"""Of what a test waits for; it waits for events, and this long only to fail."""


class Server(ThreadingHTTPServer):
    """Answers `POST`s in threads, and keeps what it was sent: `(path, body)`."""

    daemon_threads = True
    request_queue_size = 128
    handler: ClassVar[type[BaseHTTPRequestHandler]]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), self.handler)
        self.requests: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.changed = threading.Condition()
        self.opened = threading.Event()
        self.opened.set()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def bodies(self, path: str) -> list[Any]:
        with self.changed:
            return [body for at, body in self.requests if at == path]

    def wait(self, found: Callable[[], Any]) -> Any:
        """What `found` returns once that is true."""
        with self.changed:
            self.changed.wait_for(found, DEADLINE_S)
            result = found()
        assert result, f"it did not come: {str(self.requests)[-2000:]}"
        return result

    def close(self) -> None:
        self.opened.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, format: str, *args: object) -> None:
        pass

    def read(self) -> Any:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null")
        with self.server.changed:
            self.server.requests.append((self.path, body))
            self.server.headers.append(dict(self.headers))
            self.server.changed.notify_all()
        return body

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


class _RepriseHandler(_Handler):
    def do_POST(self) -> None:
        body = self.read()
        if self.path == "/feedback":
            self.reply(202, b"{}")
            return
        try:
            self.server.answer(self, body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True


class FakeReprise(Server):
    """Chooses `chosen` where that is a candidate, or else the first one.

    Attributes:
        chosen: an instance.
        dp_rank: of it.
        answer: what is done with a question instead; see `replies`.
    """

    handler = _RepriseHandler

    def __init__(self) -> None:
        self.chosen = ""
        self.dp_rank = 0
        self.answer: Callable[[Any, Any], None] = self._choose
        self._decisions = 0
        super().__init__()

    def replies(self, status: int, body: bytes, **headers: str) -> None:
        self.answer = lambda handler, _question: handler.reply(status, body, **headers)

    def recovers(self) -> None:
        self.answer = self._choose

    def hangs(self) -> None:
        """No answer before the server closes, or `opened` is set."""
        self.opened.clear()
        self.answer = lambda handler, _question: self.opened.wait(DEADLINE_S)

    def trickles(self) -> None:
        """A byte at a time, for ever: each read is quick, the answer never comes."""

        def answer(handler: Any, _question: Any) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", "1000000")
            handler.end_headers()
            self.opened.clear()
            while not self.opened.wait(0.01):
                handler.wfile.write(b" ")
                handler.wfile.flush()

        self.answer = answer

    def floods(self) -> None:
        """As fast as it can, without an end."""

        def answer(handler: Any, _question: Any) -> None:
            handler.send_response(200)
            handler.end_headers()
            while True:
                handler.wfile.write(b"[" * 65536)

        self.answer = answer

    def hangs_up(self) -> None:
        def answer(handler: Any, _question: Any) -> None:
            handler.close_connection = True

        self.answer = answer

    def _choose(self, handler: Any, question: Any) -> None:
        names = [one["instance_id"] for one in question["candidates"]]
        chosen = self.chosen if self.chosen in names else names[0]
        handler.reply(200, self.decision(chosen))

    def decision(self, instance_id: str) -> bytes:
        with self.changed:
            self._decisions += 1
            number = self._decisions
        document = {
            "decision_id": f"d{number}",
            "request_id": "r",
            "policy": "wait-and-work",
            "prefill": {
                "instance_id": instance_id,
                "dp_rank": self.dp_rank,
                "cached_tokens": 16,
            },
            "decode": None,
            "index": {"position": "0:592", "state": "exact", "age_ms": 12},
        }
        return json.dumps(document).encode()

    def outcomes(self, event: str) -> list[dict[str, Any]]:
        return [
            one
            for body in self.bodies("/feedback")
            for one in (body if isinstance(body, list) else [body])
            if one["event"] == event
        ]

    def outcome(self, event: str) -> dict[str, Any]:
        """The first one of that kind, once it has come."""
        found: dict[str, Any] = self.wait(lambda: self.outcomes(event))[0]
        return found


class _EngineHandler(_Handler):
    def do_POST(self) -> None:
        body = self.read()
        engine = self.server
        if engine.failing:
            self.reply(500, b'{"error": {"message": "the engine fails"}}')
        elif engine.refusal:
            self.reply(engine.refusal, b'{"error": {"message": "the engine refuses this"}}')
        elif body.get("stream"):
            self._stream()
        else:
            kind, content = (
                ("chat.completion", {"message": {"role": "assistant", "content": engine.name}})
                if self.path.endswith("/chat/completions")
                else ("text_completion", {"text": engine.name})
            )
            choice = {"index": 0, "finish_reason": "stop", **content}
            answer = {"id": "x", "object": kind, "created": 1, "model": "m", "choices": [choice]}
            self.reply(200, json.dumps({**answer, "usage": USAGE}).encode())

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self._chunk([{"index": 0, "delta": {"role": "assistant", "content": "a"}}])
            self.server.opened.wait(DEADLINE_S)
            self._chunk([{"index": 0, "delta": {"content": "b"}, "finish_reason": "stop"}])
            self._chunk([], usage=USAGE)
            self.wfile.write(b"data: [DONE]\n\n")
        except (BrokenPipeError, ConnectionResetError):
            with self.server.changed:
                self.server.requests.append(("hung up", None))
                self.server.changed.notify_all()

    def _chunk(self, choices: list[dict[str, Any]], **fields: Any) -> None:
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        document = json.dumps({**chunk, "choices": choices, **fields})
        self.wfile.write(f"data: {document}\n\n".encode())
        self.wfile.flush()


USAGE = {
    "prompt_tokens": 40,
    "completion_tokens": 2,
    "total_tokens": 42,
    "prompt_tokens_details": {"cached_tokens": 32},
}


class FakeEngine(Server):
    """An OpenAI-compatible server; its answers are its name.

    Attributes:
        failing: it answers completions with 500.
        refusal: the status that it answers them with, 4xx; 0 for none.
        opened: cleared, it stops a stream behind the first token until it is set.
    """

    handler = _EngineHandler

    def __init__(self, name: str) -> None:
        self.name = name
        self.failing = False
        self.refusal = 0
        super().__init__()

    @property
    def completions(self) -> int:
        with self.changed:
            return sum(path.endswith("/completions") for path, _ in self.requests)


@contextmanager
def closed_behind(server: Any) -> Iterator[Any]:
    """The server, for a `with`."""
    try:
        yield server
    finally:
        server.close()
