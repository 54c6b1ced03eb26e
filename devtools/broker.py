"""A real Apache Kafka broker as a child process: one node, KRaft, loopback only.

    python -m devtools.broker        runs one in the foreground, on 127.0.0.1:9092 (`make kafka`)

A broker's directory holds `server.properties`, `log4j2.properties`, `broker.log` and `data/`; a
broker that was killed starts again on it with every message it had.
"""

import argparse
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

from devtools.broker_start import StartFiles, start_files
from devtools.kafka_jars import (
    BrokerUnavailableError,
    cache_directory,
    fetch_jars,
    find_java,
    have_jars,
    kafka_version,
)

HOST: Final = "127.0.0.1"
START_S: Final = 30.0
STOP_S: Final = 20.0
_START_ATTEMPTS: Final = 3
_CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qg"
# Below the range that systems give to outgoing connections: a client that tries again and again to
# reach a broker that is down must not be given the broker's own port, and so be its own peer.
PORTS = range(12_000, 18_000)
"""Those that `free_ports` chooses from; who runs side by side with others takes a part of them."""

_SETTINGS: Final = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "2",
    # A killed broker may come back only once its earlier life has timed out; by default in 9 s.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # A test sees compaction and retention within seconds once its topic asks for them.
    "log.segment.bytes": str(16 * 2**20),
    "log.index.size.max.bytes": str(2**20),
    "log.cleaner.dedupe.buffer.size": str(4 * 2**20),
    "log.cleaner.backoff.ms": "500",
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "1000",
}

_SMALL_JAVA: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:MaxDirectMemorySize=128m",
    "-XX:ActiveProcessorCount=2",
)

_LOGGING: Final = """\
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{1} %m%n
"""


class Listener(NamedTuple):
    """One of the broker's ports.

    Attributes:
        name: letters only; the settings of one listener are `listener.name.NAME....`.
        protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        advertised_port: what clients of this listener are told to connect to, for a proxy that
            stands before it; None for the listener itself.
    """

    name: str = "PLAINTEXT"
    protocol: str = "PLAINTEXT"
    advertised_port: int | None = None


class Broker:
    """Formats its directory, starts, answers; dies and comes back on the same ports."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        extra_listeners: Sequence[Listener] = (),
        settings: Mapping[str, str] | None = None,
        heap_mib: int = 256,
        java_flags: Sequence[str] = (),
    ) -> None:
        """Starts nothing yet.

        Args:
            directory: made where it is missing.
            port: of the plaintext listener; the controller's is the next one. None for any.
            extra_listeners: beside the plaintext listener, each on a port of its own.
            settings: of server.properties, over those for tests.
            heap_mib: Java's heap.
            java_flags: beside those that every broker gets.
        """
        self._directory = directory
        self._fixed_port = port
        self._listeners = [Listener(), *extra_listeners]
        self._settings = dict(settings or {})
        self._heap_mib = heap_mib
        self._java_flags = list(java_flags)
        self._ports: dict[str, int] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def bootstrap(self) -> str:
        """`host:port` of the plaintext listener."""
        return self.address("PLAINTEXT")

    def address(self, listener: str) -> str:
        """`host:port` on which a listener listens, whatever it advertises."""
        return f"{HOST}:{self._ports[listener]}"

    @property
    def pid(self) -> int:
        """Of the running broker."""
        assert self._process is not None, "the broker is running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts it, on the ports that it had before, and returns once it answers.

        Raises:
            BrokerUnavailableError: Java or the jars are missing.
            RuntimeError: it ended or did not answer in time; the text ends with its log.
        """
        assert not self.running, "the broker is not running"
        java, jars = find_java(), fetch_jars()
        ready_made = start_files(java, jars)
        command = [java, "-cp", f"{jars}/*"]
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / "log4j2.properties").write_text(_LOGGING)
        first = not self._ports
        for attempt in range(_START_ATTEMPTS):
            if first:
                self._choose_ports()
            self._write_settings()
            self._format(command, ready_made)
            if self._run(command, self._java_flags or ready_made.java_flags):
                return
            # A port chosen here may have been taken since; a broker that had one keeps it.
            last = not first or self._fixed_port or attempt == _START_ATTEMPTS - 1
            if last or "BindException" not in self.log():
                break
        raise RuntimeError(f"Expected the Kafka broker to start, got:\n{self.log()}")

    def kill(self) -> None:
        """Sends SIGKILL; nothing is written out in order."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S)
            self._process = None

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Sends SIGTERM, and SIGKILL where that does not help in time."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def pause(self) -> None:
        """Sends SIGSTOP: its connections stay open and it says nothing."""
        assert self._process is not None, "the broker is running"
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Ends `pause`."""
        assert self._process is not None, "the broker is running"
        self._process.send_signal(signal.SIGCONT)

    def wait(self) -> int:
        """Waits until the process ends by itself; returns its code."""
        assert self._process is not None, "the broker is running"
        return self._process.wait()

    def segments(self, topic: str) -> list[Path]:
        """The files with the messages of a topic, each in the directory of its partition."""
        return sorted((self._directory / "data").glob(f"{topic}-*/*.log"))

    def log(self) -> str:
        """The end of what it wrote."""
        path = self._directory / "broker.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def _choose_ports(self) -> None:
        names = [listener.name for listener in self._listeners] + ["CONTROLLER"]
        if self._fixed_port is None:
            self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        else:
            ports = [self._fixed_port, *free_ports(len(names) - 2), self._fixed_port + 1]
            self._ports = dict(zip(names, ports, strict=True))

    def _write_settings(self) -> None:
        listens = [f"{name}://{HOST}:{port}" for name, port in self._ports.items()]
        tells = [
            f"{name}://{HOST}:{advertised or self._ports[name]}"
            for name, _, advertised in self._listeners
        ]
        protocols = [f"{name}:{protocol}" for name, protocol, _ in self._listeners]
        settings = {
            **_SETTINGS,
            "listeners": ",".join(listens),
            "advertised.listeners": ",".join(tells),
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": ",".join([*protocols, "CONTROLLER:PLAINTEXT"]),
            "controller.quorum.voters": f"1@{HOST}:{self._ports['CONTROLLER']}",
            "log.dirs": str(self._directory / "data"),
            **self._settings,
        }
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self._directory / "server.properties").write_text(text)

    def _format(self, command: list[str], ready_made: StartFiles) -> None:
        data = self._directory / "data"
        if (data / "meta.properties").exists() or ready_made.copy_formatted(data):
            return
        tool = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", _CLUSTER_ID]
        tool += ["-c", str(self._directory / "server.properties")]
        done = subprocess.run(
            [command[0], *_SMALL_JAVA, *command[1:], *tool],
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(
                f"Expected to format {self._directory}, got:\n{(done.stdout + done.stderr)[-4000:]}"
            )
        ready_made.keep_formatted(data)

    def _run(self, command: list[str], java_flags: Sequence[str]) -> bool:
        flags = [*_SMALL_JAVA, *java_flags, f"-Xms{self._heap_mib}m", f"-Xmx{self._heap_mib}m"]
        flags += [f"-Dlog4j2.configurationFile={self._directory / 'log4j2.properties'}"]
        settings = str(self._directory / "server.properties")
        with (self._directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [command[0], *flags, *command[1:], "kafka.Kafka", settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            if is_answering(self.bootstrap):
                return True
            time.sleep(0.05)
        self.kill()
        return False


_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Loopback ports that nothing uses now, all different, and none that was given before: whoever
    has it may bind it later, or again.
    """
    left = [port for port in PORTS if port not in _given]
    found: list[int] = []
    for port in random.sample(left, len(left)):
        if len(found) == count:
            break
        with socket.socket() as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                attempt.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
    _given.update(found)
    return found


def is_answering(bootstrap: str, *, timeout_s: float = 5.0) -> bool:
    """Whether a broker answers a metadata request there and knows a live broker and a controller.

    Written on a plain socket, so that it can be asked from anywhere, a running event loop included.
    """
    host, _, port = bootstrap.rpartition(":")
    # Metadata version 1, correlation 1, no client, an empty list of topics.
    body = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 0)
    try:
        with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            with connection.makefile("rb") as stream:
                (size,) = struct.unpack(">i", stream.read(4))
                answer = stream.read(size)
            return _live_brokers(answer) > 0
    except (OSError, struct.error):
        return False


def _live_brokers(answer: bytes) -> int:
    """The number of brokers in a metadata answer of version 1; 0 while there is no controller."""
    _, count = struct.unpack_from(">ii", answer)
    at = 8
    for _ in range(count):
        (host_bytes,) = struct.unpack_from(">h", answer, at + 4)
        at += 4 + 2 + host_bytes + 4
        (rack_bytes,) = struct.unpack_from(">h", answer, at)
        at += 2 + max(rack_bytes, 0)
    (controller,) = struct.unpack_from(">i", answer, at)
    return int(count) if controller >= 0 else 0


def main() -> int:
    """Runs a broker until it is stopped."""
    parser = argparse.ArgumentParser(prog="python -m devtools.broker", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--port", type=int, default=9092, help="the controller's is the next one")
    parser.add_argument("--data", type=Path, default=cache_directory() / "kafka-data")
    parser.add_argument("--heap-mib", type=int, default=512)
    arguments = parser.parse_args()
    if is_answering(f"{HOST}:{arguments.port}"):
        print(f"A broker answers on {HOST}:{arguments.port} already; --port for another one.")
        return 1
    for stopping in (signal.SIGINT, signal.SIGTERM):  # a background shell has SIGINT ignored
        signal.signal(stopping, signal.default_int_handler)
    broker = Broker(arguments.data.expanduser(), port=arguments.port, heap_mib=arguments.heap_mib)
    try:
        if not have_jars():
            print("Fetching the jars of Apache Kafka (54 MB, once)...", flush=True)
        broker.start()
        print(
            f"Apache Kafka {kafka_version()} answers on {broker.bootstrap}: pass"
            f" `--kafka {broker.bootstrap}` to reprise, or REPRISE_TEST_KAFKA={broker.bootstrap} to"
            " the tests. Ctrl-C stops it.",
            flush=True,
        )
        return broker.wait()
    except KeyboardInterrupt:
        return 0
    except (BrokerUnavailableError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        broker.stop()


if __name__ == "__main__":
    sys.exit(main())
