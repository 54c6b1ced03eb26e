"""The gateway between engines that do as they are told and clients that look at each byte; one
loop, real sockets.
"""

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum
from typing import Any, NamedTuple

import httptools

from gateway.exchange import GATEWAY_STALE_S
from gateway.gateway import Gateway
from gateway.settings import GatewaySettings
from gateway.upstream import Upstream
from query_api.access.guard import Guard
from query_api.grpc.grpc_settings import ListenAddress
from reprise.http.listening import bind
from reprise.roles.door import Door
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.router import Router
from schemas.registration import NO_EVENTS, Registration
from tests.fakes import FakeTable
from tokens.interface import PromptTokenizer

CHAT = "/v1/chat/completions"
EVENTS = 4
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "total_tokens": 107,
    "prompt_tokens_details": {"cached_tokens": 64},
}
RESPONSE_USAGE = {
    "input_tokens": 100,
    "output_tokens": 7,
    "total_tokens": 107,
    "input_tokens_details": {"cached_tokens": 64},
}


class Deed(Enum):
    """What an engine does with a request."""

    ANSWER = "answer"
    CLOSE = "close"
    HALF_HEAD = "half_head"
    HALF_BODY = "half_body"
    HEAD_ALONE = "head_alone"
    HALF_STREAM = "half_stream"
    EMPTY_STREAM = "empty_stream"
    GARBAGE = "garbage"
    EARLY_HINTS = "early_hints"
    HINTS_WITHOUT_END = "hints_without_end"
    STATUS_600 = "600"
    CLOSED_STREAM = "closed_stream"
    CLOSED_WHOLE = "closed_whole"
    ANSWER_AND_MORE = "answer_and_more"
    ANSWER_AND_MORE_LATER = "answer_and_more_later"
    SWITCH = "switch"
    REDIRECT = "redirect"
    HEADER_BOMB = "header_bomb"
    MANY_HEADERS = "many_headers"
    BAD_CHUNK = "bad_chunk"
    TWO_LENGTHS = "two_lengths"
    ERROR_500 = "500"
    ERROR_503 = "503"
    BUSY = "429"
    BAD_REQUEST = "400"
    SILENCE = "silence"
    SLOW_HEAD = "slow_head"
    SLOW_STREAM = "slow_stream"
    DRIP = "drip"
    LATE_BREAK = "late_break"
    HANG = "hang"
    DONE_WITHOUT_END = "done_without_end"
    LATE_CLOSE = "late_close"
    SOUND = "sound"
    SLOW_JSON = "slow_json"


BROKEN_DEEDS = (
    Deed.CLOSE,
    Deed.HALF_HEAD,
    Deed.HALF_BODY,
    Deed.HEAD_ALONE,
    Deed.EMPTY_STREAM,
    Deed.GARBAGE,
    Deed.SWITCH,
    Deed.HINTS_WITHOUT_END,
    Deed.REDIRECT,
    Deed.HEADER_BOMB,
    Deed.MANY_HEADERS,
    Deed.BAD_CHUNK,
    Deed.TWO_LENGTHS,
    Deed.ERROR_500,
    Deed.STATUS_600,
    Deed.SILENCE,
)
"""Before the first byte, so that another engine can be tried."""


_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_LAST_WORDS = {
    Deed.HALF_HEAD: b"HTTP/1.1 200 OK\r\ncontent-ty",
    Deed.HALF_BODY: b'HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{"half":',
    Deed.LATE_BREAK: b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{",
    Deed.HEAD_ALONE: _STREAM,
    Deed.EMPTY_STREAM: _STREAM + b"0\r\n\r\n",
    Deed.GARBAGE: b"\x00\x01\xff SSH-2.0 what\r\n\r\n" * 3,
    Deed.SWITCH: b"HTTP/1.1 101 X\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nraw",
    Deed.HINTS_WITHOUT_END: b"HTTP/1.1 103 Early Hints\r\n\r\n" * 11
    + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    Deed.STATUS_600: b"HTTP/1.1 600 X\r\ncontent-length: 2\r\n\r\n{}",
    Deed.CLOSED_STREAM: b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    b'data: {"word":"w0"}\n\n',
    Deed.CLOSED_WHOLE: b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    b'data: {"word":"w0"}\n\ndata: [DONE]\n\n',
    Deed.REDIRECT: b"HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n",
    Deed.HEADER_BOMB: b"HTTP/1.1 200 OK\r\nx-bomb: " + b"a" * 200_000 + b"\r\n\r\n",
    Deed.MANY_HEADERS: b"HTTP/1.1 200 OK\r\n" + b"x-a: b\r\n" * 5000 + b"\r\n",
    Deed.BAD_CHUNK: b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    Deed.TWO_LENGTHS: b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}x",
}
"""What an engine writes before it closes the connection."""

_PART = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n3\r\n[1,\r\n"
_LAST_WORDS[Deed.SOUND] = _PART % b"audio/wav"
_LAST_WORDS[Deed.SLOW_JSON] = _PART % b"application/json"
_ENDLESS = (Deed.DONE_WITHOUT_END, Deed.SOUND, Deed.SLOW_JSON)
"""What an engine writes without an end, until its client goes."""

_PAUSES_S = {Deed.LATE_BREAK: 0.15, Deed.LATE_CLOSE: GATEWAY_STALE_S + 0.2}

_DONE = b'data: {"choices":[],"usage":%s}\n\ndata: [DONE]\n\n' % json.dumps(USAGE).encode()
_LAST_WORDS[Deed.DONE_WITHOUT_END] = _STREAM + b"%x\r\n%s\r\n" % (len(_DONE), _DONE)

_MORE = b'HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{"of": "none"}'


async def until(holds: Callable[[], bool], within_s: float = 10.0) -> None:
    """Waits for a condition."""
    end = asyncio.get_running_loop().time() + within_s
    while asyncio.get_running_loop().time() < end:
        if holds():
            return
        await asyncio.sleep(0.005)
    assert holds()


class Seen(NamedTuple):
    """A request as an engine got it."""

    path: str
    headers: dict[str, str]
    body: bytes
    port: int = 0

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


class ScriptedEngine:
    """An engine whose deeds are told; ANSWER where none are left.

    Attributes:
        deeds: the next ones.
        seen: requests.
        whole: answers that were written whole.
        is_silent: whether it takes requests and answers nothing, whatever it is asked.
        gone: connections that ended while something was to be answered.
        answers_with: the document of an answer, where it is another one.
        lacks: the document of a 404, of requests that ask for what it does not have.
        key: that it wants, as vLLM for all paths below `/v1`; "" for none.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.deeds: deque[Deed] = deque()
        self.seen: list[Seen] = []
        self.whole = 0
        self.gone = 0
        self.models: list[dict[str, Any]] = []
        self.is_silent = False
        self.key = ""
        self.lacks: Callable[[Seen], object] = lambda seen: None
        self.answers_with: Callable[[Seen], bytes] | None = None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """As `kill -9`: no connection is left."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
                headers = {}
                for line in head.decode("latin-1").split("\r\n")[1:-2]:
                    name, _, value = line.partition(":")
                    headers[name.strip().lower()] = value.strip()
                body = await _body_of(headers, reader)
                if self.is_silent:
                    await reader.read()
                    return
                if self.key and headers.get("authorization") != f"Bearer {self.key}":
                    self._write_json(writer, {"error": "Unauthorized"}, 401)
                    continue
                if method == "GET":
                    self._write_json(writer, {"object": "list", "data": self.models})
                    continue
                seen = Seen(path, headers, body, writer.get_extra_info("peername")[1])
                self.seen.append(seen)
                if (document := self.lacks(seen)) is not None:
                    self._write_json(writer, document, 404)
                    continue
                deed = self.deeds.popleft() if self.deeds else Deed.ANSWER
                if deed in (Deed.ANSWER_AND_MORE, Deed.ANSWER_AND_MORE_LATER):
                    await self._answer_and_more(deed, writer)
                elif not await self._do(deed, seen, reader, writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            with suppress(ConnectionError):
                writer.close()

    def _write_json(self, writer: asyncio.StreamWriter, document: Any, status: int = 200) -> None:
        self._write_body(writer, json.dumps(document).encode(), status)

    @staticmethod
    def _write_body(writer: asyncio.StreamWriter, body: bytes, status: int = 200) -> None:
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"x-engine: yes\r\n\r\n" % (status, len(body)) + body
        )

    async def _do(
        self,
        deed: Deed,
        seen: Seen,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Whether the connection stays."""
        write = writer.write
        if deed is Deed.EARLY_HINTS:
            write(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
            deed = Deed.ANSWER
        if deed is Deed.SLOW_HEAD:
            for byte in b"HTTP/1.1 200 OK\r\nx-slow: yes\r\n":
                write(bytes([byte]))
                await asyncio.sleep(0.001)
            body = self._document(seen)
            write(b"content-length: %d\r\ncontent-type: application/json\r\n\r\n" % len(body))
            write(body)
            self.whole += 1
            return True
        if deed is Deed.SLOW_STREAM:
            await self._answer(seen, writer, pause_s=0.1)
            return True
        if deed is Deed.ANSWER or (deed is Deed.HALF_STREAM and not _is_stream(seen)):
            await self._answer(seen, writer)
            return True
        if deed in (Deed.ERROR_500, Deed.ERROR_503, Deed.BUSY, Deed.BAD_REQUEST):
            self._write_json(writer, {"error": {"message": "own words"}}, int(deed.value))
            return True
        if deed in (Deed.SILENCE, Deed.HANG, *_ENDLESS):
            write(_LAST_WORDS.get(deed, b""))
            if await reader.read(1) == b"":
                self.gone += 1
            return False
        if deed is Deed.DRIP:
            writer.write(b"HTTP/1.1 200 OK\r\n")
            for number in range(1000):
                writer.write(b"x: yy\r\n"[number % 7 : number % 7 + 1])
                await asyncio.sleep(0.01)
            return False
        if deed is Deed.HALF_STREAM:
            writer.write(_STREAM + _chunk(_event(seen, self.name, "w0")))
        writer.write(_LAST_WORDS.get(deed, b""))
        await asyncio.sleep(_PAUSES_S.get(deed, 0.002))
        return False

    async def _answer_and_more(self, deed: Deed, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{")
        await asyncio.sleep(0.05)
        writer.write(b"}" + (_MORE if deed is Deed.ANSWER_AND_MORE else b""))
        if deed is Deed.ANSWER_AND_MORE_LATER:
            await asyncio.sleep(0.05)
            writer.write(_MORE)
        self.whole += 1

    async def _answer(self, seen: Seen, writer: asyncio.StreamWriter, pause_s: float = 0.0) -> None:
        if _is_stream(seen):
            writer.write(_STREAM)
            if seen.path == "/v1/responses":
                for event in _named_events(self.response()):
                    writer.write(_chunk(event))
                    await asyncio.sleep(pause_s)
                writer.write(b"0\r\n\r\n")
                self.whole += 1
                return
            for number in range(EVENTS):
                writer.write(_chunk(_event(seen, self.name, f"w{number}")))
                await asyncio.sleep(pause_s)
            if (seen.document.get("stream_options") or {}).get("include_usage"):
                writer.write(_chunk(_data({"choices": [], "usage": USAGE})))
            writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        else:
            self._write_body(writer, self._document(seen))
        await writer.drain()
        self.whole += 1

    def response(self) -> dict[str, Any]:
        """The last one."""
        name = f"resp_{self.name}_{len(self.seen)}"
        return {"id": name, "object": "response", "usage": RESPONSE_USAGE}

    def _document(self, seen: Seen) -> bytes:
        if self.answers_with is not None:
            return self.answers_with(seen)
        document = {"engine": self.name, "echo": seen.document.get("user"), "usage": USAGE}
        if seen.path == "/v1/responses":
            document |= self.response()
        return json.dumps(document).encode()


async def _body_of(headers: dict[str, str], reader: asyncio.StreamReader) -> bytes:
    if headers.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return body


def _is_stream(seen: Seen) -> bool:
    return bool(seen.body and seen.document.get("stream"))


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _data(document: object) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def _named_events(response: dict[str, Any]) -> list[bytes]:
    """As vLLM sends them for a response: the first two before it has computed anything."""
    taken = response | {"usage": None}
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": taken}),
        ("response.in_progress", {"response": taken}),
        *(("response.output_text.delta", {"delta": "w"}) for _ in range(EVENTS)),
        ("response.completed", {"response": response}),
    ]
    return [
        f"event: {name}\n".encode() + _data({"type": name, **fields}) for name, fields in events
    ]


def _event(seen: Seen, engine: str, word: str) -> bytes:
    choice = {"index": 0, "delta": {"content": word}}
    return _data({"engine": engine, "echo": seen.document.get("user"), "choices": [choice]})


class ClientAnswer(NamedTuple):
    """What a client got.

    Attributes:
        is_whole: whether HTTP says that it has all of it.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    is_whole: bool

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key.lower() == name.encode()]
        return found[0].decode() if found else None

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        return [
            line.removeprefix("data: ")
            for line in self.body.decode().split("\n")
            if line.startswith("data: ")
        ]


class _Parsed:
    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self.is_whole = False
        self.begun = 0

    def on_message_begin(self) -> None:
        self.begun += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_whole = True


class Client:
    """Of the gateway: one connection for each request."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def post(
        self,
        document: Any,
        path: str = CHAT,
        *,
        headers: dict[str, str] | None = None,
        leaves_after_bytes: int | None = None,
        leaves_after_s: float | None = None,
        leaves_at: bytes | None = None,
    ) -> ClientAnswer:
        """Sends a request and reads until the answer is whole, or the connection ends."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        named = {"content-type": "application/json"} | (headers or {})
        lines = [f"POST {path} HTTP/1.1", "host: x", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in named.items()]
        data = "\r\n".join([*lines, "", ""]).encode() + body
        return await self.send(
            data,
            leaves_after_bytes=leaves_after_bytes,
            leaves_after_s=leaves_after_s,
            leaves_at=leaves_at,
        )

    async def get(self, path: str, headers: dict[str, str] | None = None) -> ClientAnswer:
        lines = [f"GET {path} HTTP/1.1", "host: x"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        return await self.send("\r\n".join([*lines, "", ""]).encode())

    async def send(
        self,
        data: bytes,
        *,
        leaves_after_bytes: int | None = None,
        leaves_after_s: float | None = None,
        leaves_at: bytes | None = None,
    ) -> ClientAnswer:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        parsed = _Parsed()
        parser = httptools.HttpResponseParser(parsed)
        got = 0
        try:
            writer.write(data)
            if leaves_after_s is not None:
                await asyncio.sleep(leaves_after_s)
                writer.transport.abort()
                return ClientAnswer(0, [], b"", False)
            while not parsed.is_whole:
                piece = await reader.read(65536)
                if not piece:
                    break
                got += len(piece)
                parser.feed_data(piece)
                if leaves_after_bytes is not None and got >= leaves_after_bytes:
                    writer.transport.abort()
                    break
                if leaves_at is not None and leaves_at in parsed.body:
                    break
        except ConnectionError:
            pass
        finally:
            writer.close()
        assert parsed.begun <= 1, "a request has one answer"
        status = parser.get_status_code() if parsed.begun else 0
        return ClientAnswer(status, parsed.headers, bytes(parsed.body), parsed.is_whole)


class World:
    """A gateway, its engines and its client.

    Attributes:
        engines: by name.
    """

    def __init__(self, gateway: Gateway, table: FakeTable, router: Router, port: int) -> None:
        self.gateway = gateway
        self.table = table
        self.router = router
        self.client = Client(port)
        self.engines: dict[str, ScriptedEngine] = {}

    async def add(self, name: str, *, model: str = "m", ranks: int = 1) -> ScriptedEngine:
        """One more engine, registered as one without events."""
        engine = self.engines[name] = ScriptedEngine(name)
        await engine.start()
        for rank in range(ranks):
            await self.table.register(
                Registration(
                    endpoint="",
                    kind=NO_EVENTS,
                    model_name=model,
                    instance_id=name,
                    block_size=16,
                    dp_rank=rank,
                    http_endpoint=engine.url,
                )
            )
        self.gateway.fleet.forget()
        return engine

    async def reconnect(self) -> None:
        """No connection to an engine is left, nor an address that was looked up."""
        upstream = self.gateway.endpoint._parts.upstream
        await upstream.close()
        upstream.open()

    def seen(self) -> Counter[str]:
        """How many requests each engine got."""
        return Counter({name: len(one.seen) for name, one in self.engines.items()})

    async def until_quiet(self) -> None:
        """Nothing is under way, in any count."""
        await until(lambda: self.under_way() == (0, 0, 0, {}))

    def under_way(self) -> tuple[int, int, int, dict[Any, int]]:
        """Exchanges, bytes that are kept, bookings, and requests at engines."""
        gateway = self.gateway
        return (
            gateway.endpoint.under_way,
            gateway.held.size_bytes,
            self.router.live.counts()["under_way"],
            dict(gateway.fleet.under_way),
        )


@asynccontextmanager
async def world(
    settings: GatewaySettings | None = None,
    *,
    silence_s: float = 10.0,
    guard: Guard | None = None,
    picker_guard: Guard | None = None,
    tokenizer: PromptTokenizer | None = None,
) -> AsyncIterator[World]:
    """A gateway without engines yet."""
    table = FakeTable()
    router = Router(table, RoutingQueue(), LiveLoad())
    gateway = Gateway(
        settings or GatewaySettings(listen=ListenAddress()),
        table,
        table,
        router,
        guard=guard,
        picker_guard=picker_guard,
        tokenizer=tokenizer,
        upstream=Upstream(silence_s=silence_s),
    )
    listening = bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    picking = bind("127.0.0.1", 0) if gateway.picker is not None else None
    door = Door(gateway, listening, None, picking)
    await door.open()
    found = World(gateway, table, router, port)
    try:
        yield found
    finally:
        await door.close(is_forced=lambda: True)
        for engine in found.engines.values():
            await engine.kill()
