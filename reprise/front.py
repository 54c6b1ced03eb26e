"""One address before all replicas of a compose project; an image of its own, of this file alone.

    python front.py --listen 0.0.0.0:13333 --to serve:13333

A connection goes to the next replica that is ready, of all that the name stands for at the moment;
where one does not take it, to another. While none is ready, connections wait, so that a client sees
a late answer and no failure. It knows nothing of HTTP but `GET /ready`, and adds some 0.1 ms.

It has nothing of the rest of Reprise, and its image does not change when that does: a rebuild that
replaces every replica leaves it where it is.
"""

import argparse
import asyncio
import http.client
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

# Not in schemas.limits: that would be another file of the image, and one that changes.
LOOK_S: Final = 0.5
"""Between two looks at who is ready."""
ANSWER_S: Final = 3.0
"""A replica that takes longer to say so is not ready."""
CONNECT_S: Final = 1.0
"""The next replica is tried after that."""
WAIT_S: Final = 60.0
"""A connection is closed for which no replica was ready for so long."""
CONNECTIONS_MAX: Final = 4096
"""At once; further ones are closed."""
PIECE_BYTES: Final = 65_536
CLOSE_S: Final = 1.0
"""What is under way has as long at the end."""


class HostPort(NamedTuple):
    """A host, or its address, and a port."""

    host: str
    port: int


def place_of(text: str) -> HostPort:
    """Reads `HOST:PORT`; raises ValueError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise ValueError(f"Expected HOST:PORT, got: {text}")
    return HostPort(host.strip("[]"), int(port))


def addresses_of(host: str, port: int) -> list[str]:
    """All that a name stands for now, in order; none where it stands for nothing."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(entry[4][0]) for entry in found})


def is_ready(address: str, port: int, timeout_s: float = ANSWER_S) -> bool:
    """Whether a replica says that it answers, whether it encrypts or not."""
    try:
        return _answers(http.client.HTTPConnection(address, port, timeout=timeout_s))
    except (ConnectionResetError, BrokenPipeError, http.client.HTTPException):
        pass  # it has taken the connection and not understood
    except OSError:
        return False
    # Nothing is told to whoever is there, and nothing believed but that it is up.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        return _answers(
            http.client.HTTPSConnection(address, port, timeout=timeout_s, context=context)
        )
    except (OSError, http.client.HTTPException):
        return False


def _answers(connection: http.client.HTTPConnection) -> bool:
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == http.client.OK
    finally:
        connection.close()


class Front:
    """Takes connections and hands each to a replica. Used on one loop."""

    def __init__(self, to: HostPort, *, wait_s: float = WAIT_S) -> None:
        self._to = to
        self._wait_s = wait_s
        self._ready: list[str] = []
        self._some_ready = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()

    async def serve(self, listen: HostPort, stop: asyncio.Event) -> None:
        """Until `stop` is set; raises OSError where the address cannot be bound."""
        server = await asyncio.start_server(self._take, listen.host, listen.port, limit=PIECE_BYTES)
        looking = asyncio.create_task(self._look_on())
        await stop.wait()
        server.close()
        looking.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CLOSE_S)

    async def look(self) -> None:
        """Asks all replicas that there are now whether they are ready."""
        addresses = await asyncio.to_thread(addresses_of, *self._to)
        answers = await asyncio.gather(
            *(asyncio.to_thread(is_ready, address, self._to.port) for address in addresses)
        )
        ready = [address for address, answer in zip(addresses, answers, strict=True) if answer]
        if set(ready) != set(self._ready):
            print("ready:", *(ready or ["none"]), file=sys.stderr, flush=True)
        kept = [address for address in self._ready if address in ready]
        self._ready = kept + [address for address in ready if address not in kept]
        if self._ready:
            self._some_ready.set()

    async def _look_on(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._under_way) >= CONNECTIONS_MAX:
                return
            self._under_way.add(task)
            replica = await self._connect()
            if replica is None:
                return
            to_client, to_replica = writer, replica[1]
            try:
                await asyncio.gather(_pass_on(reader, to_replica), _pass_on(replica[0], to_client))
            finally:
                to_replica.close()
        finally:
            self._under_way.discard(task)
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """To the next replica that takes a connection; None where none does in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_s
        while True:
            while self._ready:
                address = self._ready.pop(0)
                self._ready.append(address)
                try:
                    async with asyncio.timeout(CONNECT_S):
                        return await asyncio.open_connection(
                            address, self._to.port, limit=PIECE_BYTES
                        )
                except OSError:  # TimeoutError, too
                    with suppress(ValueError):
                        self._ready.remove(address)
            self._some_ready.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._some_ready.wait()
            except TimeoutError:
                return None


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """All that comes, then its end. An error ends both directions."""
    try:
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.transport.abort()


async def _run(listen: HostPort, to: HostPort) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await Front(to).serve(listen, stop)


def main(arguments: Sequence[str]) -> int:
    """Runs until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--listen", type=place_of, required=True, metavar="HOST:PORT")
    parser.add_argument("--to", type=place_of, required=True, metavar="HOST:PORT")
    given = parser.parse_args(arguments)
    try:
        asyncio.run(_run(given.listen, given.to))
    except OSError as error:
        sys.stderr.write(f"front: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
