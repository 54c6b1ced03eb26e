"""What somebody sees who listens on a wire of TCP."""

import socket
import threading
from contextlib import suppress


class Sniffer:
    """A wire that remembers what passes, both ways; it listens on `port`."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.seen = bytearray()
        self._target = target
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                self._open.append(here)
                try:
                    there = socket.create_connection(self._target)
                except OSError:  # nobody is there yet
                    here.close()
                    continue
                self._open.append(there)
                for source, sink in ((here, there), (there, here)):
                    thread = threading.Thread(target=self._pass, args=(source, sink), daemon=True)
                    thread.start()
                    self._threads.append(thread)

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self.seen += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listening.close()
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:  # each has two of the sockets
            thread.join(10)
