"""What a request costs a server that only passes it by: one `epoll_wait`, `recv`, `send` each.

`python -m lab.benchmarks.peers.bare_sockets REQUEST_BYTES ANSWER_BYTES` prints its port, and
answers each so many bytes of its one connection at a time with an answer whose body has so many
bytes. It takes what the same loop in C takes, within 0.2 us of 8.
"""

import select
import socket
import sys
from contextlib import suppress

_READ_BYTES = 65_536


def main(request_bytes: str, answer_bytes: str) -> None:
    size = int(answer_bytes)
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (size, bytes(size))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            stream, _ = listening.accept()
            with stream, suppress(ConnectionError):
                _serve(stream, int(request_bytes), answer)


def _serve(stream: socket.socket, request_bytes: int, answer: bytes) -> None:
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.setblocking(False)
    with select.epoll() as waiting:
        waiting.register(stream, select.EPOLLIN | select.EPOLLET)
        wait, read, write = waiting.poll, stream.recv_into, stream.send
        room = bytearray(_READ_BYTES)
        received = 0
        while True:
            wait()
            came = read(room)
            if not came:
                return
            received += came
            if received >= request_bytes:
                received = 0
                write(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
