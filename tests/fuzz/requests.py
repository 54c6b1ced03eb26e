"""Requests by the grammar of the HTTP interface and of HTTP/1.1 itself, with mutations."""

import json
from random import Random
from typing import Final, NamedTuple

from tests.fuzz.mutation import NUMBERS, Base, Mutator

_QUERY: Final = {
    "model": "m",
    "block_size": 16,
    "token_ids": [1] * 32,
    "tenant_id": "default",
    "lora_name": "",
    "cache_salt": "s",
    "instance_id": "keeping",
}
_KEYS: Final[tuple[dict[str, object], ...]] = (
    {"extra_keys": [["s", ["a3f1", 2]], [["a3f1", -14]]]},
    {"media": [{"hash": "a3f1", "offset": 2, "length": 20}]},
    {
        "features": {
            "mm_hashes": {"image": ["a3f1"]},
            "mm_placeholders": {"image": [{"offset": 2, "length": 20}]},
        }
    },
)
_HASHES: Final = {"model": "m", "block_size": 16, "seq_hashes": [1, 2**64 - 1, 3]}
_REGISTER: Final = {
    "endpoint": "tcp://127.0.0.1:1",
    "type": "vLLM",
    "modelname": "other",
    "instance_id": "nobody",
    "block_size": 16,
    "dp_rank": 0,
    "tenant_id": "nowhere",
    "replay_endpoint": "tcp://127.0.0.1:2",
}
_UNREGISTER: Final = {
    "type": "vLLM",
    "modelname": "other",
    "instance_id": "nobody",
    "dp_rank": 0,
    "tenant_id": "nowhere",
}
_BODIES: Final = (
    *[("/query", Base(_QUERY))] * 8,
    *[("/query", Base(_QUERY | keys)) for keys in _KEYS],
    *[("/query_by_hash", Base(_HASHES))] * 4,
    *[("/register", Base(_REGISTER)), ("/unregister", Base(_UNREGISTER))] * 2,
)
_PATHS: Final = (
    *("/query", "/query?detail=1", "/query?only=exact", "/query?only=all", "/query?" + "a=1&" * 40),
    *("/services", "/global_view", "/health", "/ready", "/digest", "/metrics", "/openapi.json"),
    *("/", "/query/", "//query", "/../etc/passwd", "/%00", "/%ff%fe", "/query%20", "*"),
    *("http://x/query", "/" + "u" * 8000, "/query?detail=%ff&only=%80", "/register"),
)  # fmt: skip
_METHODS: Final = (
    "GET",
    "GET",
    "GET",
    "POST",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "HEAD",
)
_FIELDS: Final = (
    *("Accept: application/msgpack", "Accept: ,,;q=", "Accept: " + "a/b," * 9),
    *("X: " + "v" * 4000, "Content-Type: application/msgpack", "Content-Type: \xff"),
    *("Content-Type: ", "Content-Type: text/plain", "Expect: 100-continue", "Origin: null"),
    *("Origin: http://127.0.0.1", "Connection: keep-alive", "Range: bytes=0-", "Cookie: a=b; c"),
    *("Accept-Encoding: gzip, br", "Host: " + "h" * 300, "If-None-Match: *", "Via: 1.1 x"),
)  # fmt: skip
_BAD_FIELDS: Final = (
    *("Content-Length: -1", "Content-Length: 99999999999999999999", "Content-Length: 0x10"),
    *("Content-Length: 5\r\nContent-Length: 6", "Transfer-Encoding: chunked\r\nContent-Length: 5"),
    *("Transfer-Encoding: gzip, chunked", "Transfer-Encoding: \x0bchunked", "Upgrade: websocket"),
    *("Connection: upgrade\r\nUpgrade: h2c", " folded: yes", ": no name", "no colon", "x\x00y: 1"),
    *("a b: 1", "Cookie: \x01\x02", "X: a\rb", "X: " + "v" * 70_000, "Content-Length: "),
    *("\r\n".join(["X: y"] * 200),),
)  # fmt: skip
_NO_HTTP: Final = (
    *(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200), b"GET /\r\n", b"\x00" * 500),
    *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"),
    *(b"GET /query?\x80 HTTP/1.1\r\n\r\n",),
    *(b"\r\n" * 50, b"GET /" + b"u" * 8300 + b" HTTP/1.1\r\n\r\n"),
    *(b"SSH-2.0-x\r\n", b"GET  /health  HTTP/1.1\r\n\r\n", b"get /health http/1.1\r\n\r\n", b" "),
    *(b"GET /health HTTP/1.1\nHost: x\n\n", b"*1\r\n$4\r\nPING\r\n", b"\xff" + bytes(8) + b"\x7f"),
)  # fmt: skip
_PIPELINED_MAX: Final = 8


class Sent(NamedTuple):
    """What is sent at once.

    Attributes:
        content: of one connection.
        methods: of the requests in it; each is answered. None where that cannot be said: nothing
            more is sent on the connection then.
    """

    content: bytes
    methods: list[str] | None


class Requests:
    """Equal seeds make equal ones."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._mutator = Mutator(self._random)

    def next(self, most: int) -> Sent:
        """The next ones, of at most so many requests, from 1."""
        if self._random.randrange(6) == 0:
            return Sent(self._broken(), None)
        count = self._random.randrange(1, min(most, _PIPELINED_MAX) + 1)
        whole = [self._whole() for _ in range(count)]
        return Sent(b"".join(content for content, _ in whole), [method for _, method in whole])

    # Whole ones, whatever they ask for

    def _whole(self) -> tuple[bytes, str]:
        if self._random.randrange(4) == 0:
            method = self._random.choice(_METHODS)
            return self._head(method, self._path(), [], b""), method
        path, body, form = self._body()
        if self._random.randrange(4) == 0:
            path = self._path()
        lines = [form] * bool(self._random.randrange(20))
        if self._random.randrange(4) == 0:
            lines.append("Transfer-Encoding: chunked")
            return self._head("POST", path, lines, self._chunked(body)), "POST"
        lines.append(f"Content-Length: {len(body)}")
        return self._head("POST", path, lines, body), "POST"

    def _path(self) -> str:
        path = self._random.choice(_PATHS)
        # A page of these costs a millisecond or more, whoever asks.
        if path in ("/metrics", "/openapi.json", "/digest") and self._random.randrange(20):
            return "/health"
        return path

    def _head(self, method: str, path: str, lines: list[str], body: bytes) -> bytes:
        fields = ["Host: x", *lines]
        if self._random.randrange(4) == 0:
            fields += self._random.sample(_FIELDS, self._random.randrange(1, 4))
        head = f"{method} {path} HTTP/1.1\r\n" + "\r\n".join(fields) + "\r\n\r\n"
        return head.encode("latin-1") + body

    def _body(self) -> tuple[str, bytes, str]:
        """Path, body, and its form."""
        path, base = self._random.choice(_BODIES)
        if self._random.randrange(3) == 0:
            return path, self._mutator.encoded(base), "Content-Type: application/msgpack"
        valid = json.dumps(base.value).encode()
        match self._random.randrange(4):
            case 0:
                body = valid
            case 1:
                body = self._mutator.raw(valid)
            case _:
                body = json.dumps(self._mutator.changed(base), default=list).encode()
        if self._random.randrange(50) == 0:
            number = str(self._random.choice((*NUMBERS, 1e400, -0.0, "1e5", "01", "NaN")))
            body = valid.replace(b"16", number.encode())
        if self._random.randrange(200) == 0:
            body = self._random.choice((b"[", b'{"a":')) * self._random.choice((100, 5000, 50_000))
        return path, body, "Content-Type: application/json"

    def _chunked(self, body: bytes) -> bytes:
        chunks = []
        while body:
            size = self._random.randrange(1, len(body) + 1)
            extension = self._random.choice((b"", b"", b";x=y"))
            chunks.append(b"%x%s\r\n%s\r\n" % (size, extension, body[:size]))
            body = body[size:]
        trailer = self._random.choice((b"", b"", b"", b"X: y\r\n"))
        return b"".join(chunks) + b"0\r\n" + trailer + b"\r\n"

    # Others

    def _broken(self) -> bytes:
        choice = self._random.randrange(8)
        if choice == 0:
            return self._random.choice(_NO_HTTP)
        if choice == 1:
            return self._random.randbytes(self._random.randrange(1, 2000))
        whole, _ = self._whole()
        if choice == 2:
            return whole[: self._random.randrange(len(whole))]
        if choice == 3:
            return self._mutator.raw(whole)
        if choice == 4:
            return whole * self._random.choice((2, 17, 40))  # more than may wait
        path, body, form = self._body()
        if choice == 5:
            size = max(len(body) + self._random.choice((-7, -1, 1, 9, 2**31, 2**40)), 0)
            return self._head("POST", path, [form, f"Content-Length: {size}"], body)
        if choice == 6:
            fields = [form, "Transfer-Encoding: chunked"]
            return self._head("POST", path, fields, self._mutator.raw(self._chunked(body)))
        return self._head("POST", path, [form, self._random.choice(_BAD_FIELDS)], body)
