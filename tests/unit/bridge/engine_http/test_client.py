"""One GET, of servers that behave and of ones that do not."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from bridge.engine_http.address import read_base_url
from bridge.engine_http.client import KeepAlivePool, NoAnswerError, Reply, Room, get

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    """A server on loopback; its base URL."""
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def answering(*parts: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()

    return serve


def ask(
    serve: Serve,
    *,
    with_body: bool = True,
    wait_s: float = 5.0,
    bytes_max: int = 100_000,
    cut: bool = False,
    room: Room | None = None,
) -> Reply:
    async def run() -> Reply:
        async with serving(serve) as url:
            return await get(
                url,
                "/x",
                with_body=with_body,
                wait_s=wait_s,
                bytes_max=bytes_max,
                cut=cut,
                room=room,
            )

    return asyncio.run(run())


def test_an_answer_is_read_with_its_body() -> None:
    reply = ask(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", b"lo"))
    assert reply == Reply(200, b"hello")


def test_an_answer_in_chunks_is_read() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert ask(answering(head, b"3\r\nhel\r\n", b"2\r\nlo\r\n0\r\n\r\n")).body == b"hello"


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    assert ask(answering(b"HTTP/1.0 200 OK\r\n\r\nhello")) == Reply(200, b"hello")


def test_no_more_than_the_head_is_read_where_the_body_is_not_wanted() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 1000000000\r\n\r\n")
        await asyncio.Event().wait()

    assert ask(serve, with_body=False) == Reply(503, b"")


def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: /secret\r\nContent-Length: 0\r\n\r\n")

    assert ask(serve).status == 302
    assert len(asked) == 1
    assert asked[0].startswith(b"GET /x HTTP/1.1\r\nHost: 127.0.0.1:")


def test_an_answer_without_end_is_given_up_at_its_bound() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        for _ in range(10_000):
            writer.write(b"x" * 1000)
            await writer.drain()

    with pytest.raises(NoAnswerError, match="more than 5000 bytes"):
        ask(serve, bytes_max=5000)


def test_of_an_answer_of_which_the_beginning_is_enough_that_is_taken() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nfirst"
    reply = ask(answering(head, *[b"x" * 1000] * 100), bytes_max=5000, cut=True)
    assert reply.status == 200
    assert reply.body.startswith(b"firstx")
    assert len(reply.body) < 100_000
    with pytest.raises(NoAnswerError, match="more than 5000 bytes"):
        ask(answering(b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n"] * 2000), bytes_max=5000, cut=True)


def test_answers_that_come_at_once_share_their_room_and_give_it_back() -> None:
    room = Room(3000)
    small = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000)
    for _ in range(3):
        assert len(ask(small, room=room).body) == 2000
    assert room.take(2000)
    with pytest.raises(NoAnswerError, match="fill the room that"):
        ask(small, room=room)
    room.give_back(2000)
    assert len(ask(small, room=room).body) == 2000


def test_a_head_without_end_is_given_up_at_its_bound() -> None:
    with pytest.raises(NoAnswerError):
        ask(answering(b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n"] * 2000), bytes_max=5000)


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    with pytest.raises(NoAnswerError, match=r"within 0\.05 s"):
        ask(serve, wait_s=0.05)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([b"\x00\x01\x02 no HTTP\r\n\r\n"], "what is not HTTP"),
        ([], "without an answer"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel"], "broke its answer off"),
        (
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel"],
            "broke its answer off",
        ),
    ],
)
def test_what_is_no_whole_answer_is_none(parts: list[bytes], why: str) -> None:
    with pytest.raises(NoAnswerError, match=why):
        ask(answering(*parts))


def test_nobody_there_is_no_answer() -> None:
    async def run() -> None:
        async with serving(answering()) as url:
            pass
        await get(url, "/x", with_body=False)

    with pytest.raises(NoAnswerError, match=r"cannot reach 127\.0\.0\.1"):
        asyncio.run(run())


def test_a_host_without_address_is_no_answer() -> None:
    with pytest.raises(NoAnswerError):
        asyncio.run(get("http://nobody.invalid:1", "/", with_body=False, wait_s=5.0))


def test_tls_to_a_server_without_it_is_no_answer() -> None:
    async def run() -> None:
        async with serving(answering(b"HTTP/1.1 400 Bad\r\n\r\n")) as url:
            await get(url.replace("http", "https"), "/", with_body=False, wait_s=5.0)

    assert issubclass(ssl.SSLError, OSError)
    with pytest.raises(NoAnswerError):
        asyncio.run(run())


# Connections that are kept


class Answering:
    """Answers each question on a connection in turn; an empty answer closes it.

    Attributes:
        connections: how many there were.
        asked: the heads of the questions.
        closed: set whenever one has ended.
    """

    def __init__(self, *answers: bytes) -> None:
        self.connections = 0
        self.asked: list[bytes] = []
        self.closed = asyncio.Event()
        self._answers = answers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            for answer in self._answers:
                self.asked.append(await reader.readuntil(b"\r\n\r\n"))
                if not answer:
                    return
                writer.write(answer)
            await reader.read()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()
            self.closed.set()


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def ask_twice(server: Answering, *, count_max: int = 8, with_body: bool = True) -> list[Reply]:
    async def run() -> list[Reply]:
        kept = KeepAlivePool(count_max)
        async with serving(server.serve) as url:
            asking = {"with_body": with_body, "kept": kept, "wait_s": 5.0}
            replies = [await get(url, "/x", **asking) for _ in range(2)]  # type: ignore[arg-type]
            kept.close()
            return replies

    return asyncio.run(run())


def test_a_connection_that_is_kept_brings_the_next_answer() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n"
    server = Answering(WHOLE, chunked)
    assert ask_twice(server) == [Reply(200, b"ok"), Reply(200, b"no")]
    assert server.connections == 1
    assert all(b"Connection: keep-alive\r\n" in head for head in server.asked)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    ],
)
def test_a_connection_whose_server_ends_it_is_not_kept(answer: bytes) -> None:
    server = Answering(answer, WHOLE)
    assert ask_twice(server) == [Reply(200, b"ok")] * 2
    assert server.connections == 2


def test_an_answer_that_was_not_read_to_its_end_ends_its_connection() -> None:
    server = Answering(WHOLE[:-2], WHOLE)
    assert ask_twice(server, with_body=False) == [Reply(200, b"")] * 2
    assert server.connections == 2


def test_more_than_are_kept_are_closed() -> None:
    server = Answering(WHOLE, WHOLE)
    assert ask_twice(server, count_max=0) == [Reply(200, b"ok")] * 2
    assert server.connections == 2


def test_a_connection_that_was_closed_meanwhile_is_replaced() -> None:
    """Whether that is known before the next question, or shown by it."""
    server = Answering(WHOLE, b"", WHOLE)
    assert ask_twice(server) == [Reply(200, b"ok")] * 2
    assert (server.connections, len(server.asked)) == (2, 3)

    async def run() -> None:
        closing, kept = Answering(WHOLE), KeepAlivePool(8)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            closing.connections += 1
            writer.write(WHOLE)
            writer.close()

        async with serving(serve) as url:
            for _ in range(2):
                assert (await get(url, "/x", with_body=True, kept=kept)).body == b"ok"
                connection = kept.take(read_base_url(url))
                if connection is not None:  # until its end is seen
                    await connection.reader.read()
                    kept.keep(read_base_url(url), connection)
                assert kept.take(read_base_url(url)) is None
        assert closing.connections == 2

    asyncio.run(run())


def test_a_server_that_only_ever_closes_is_asked_once_more_and_then_given_up() -> None:
    server = Answering(WHOLE, b"")

    async def run() -> None:
        kept = KeepAlivePool(8)
        async with serving(server.serve) as url:
            assert (await get(url, "/x", with_body=True, kept=kept)).body == b"ok"
            server._answers = (b"",)
            with pytest.raises(NoAnswerError, match="without an answer"):
                await get(url, "/x", with_body=True, kept=kept)

    asyncio.run(run())
    assert server.connections == 2


def test_more_answers_than_questions_are_none() -> None:
    with pytest.raises(NoAnswerError, match=r"more than it was asked for|not HTTP"):
        ask(answering(WHOLE + WHOLE))


def test_a_server_that_is_forgotten_is_let_go() -> None:
    server = Answering(WHOLE, WHOLE)

    async def run() -> None:
        kept = KeepAlivePool(8)
        async with serving(server.serve) as url:
            await get(url, "/x", with_body=True, kept=kept)
            kept.forget(url)
            kept.forget("no url")
            await asyncio.wait_for(server.closed.wait(), 5)

    asyncio.run(run())
