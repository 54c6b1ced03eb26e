"""`reprise up` as a process of its own: started, asked, watched through `/proc`, ended by id."""

import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

import msgspec

from lab.benchmarks.sizes import BLOCK_SIZE, KernelName

START_S: Final = 120.0
READY_POLL_S: Final = 0.01
KEPT_ALIVE_S: Final = 3.0
"""The server closes connections that were idle for five seconds."""

MODEL: Final = "bench"


class _Publisher(msgspec.Struct):
    instance_id: str = msgspec.field(name="InstanceID")
    sequence: int = msgspec.field(name="Sequence")


class _Services(msgspec.Struct):
    services: list[_Publisher]


class _Context(msgspec.Struct):
    entries: int


class _Digest(msgspec.Struct):
    contexts: list[_Context]


class WatchedService(ABC):
    """A service, or a replica of the distributed form."""

    @abstractmethod
    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body, over a connection that is kept."""

    def register(self, endpoint: str, instance_id: str) -> None:
        """Follows one publisher."""
        fields: dict[str, str | int] = {
            "endpoint": endpoint,
            "type": "vLLM",
            "modelname": MODEL,
            "instance_id": instance_id,
            "block_size": BLOCK_SIZE,
            "dp_rank": 0,
        }
        status, answer = self.request("POST", "/register", msgspec.json.encode(fields))
        if status != 200:
            raise RuntimeError(f"Expected a registration, got {status}: {answer.decode()}")

    def sequences(self) -> dict[str, int]:
        """The last sequence of each publisher, by instance; -1 before the first."""
        known = msgspec.json.decode(self.request("GET", "/services")[1], type=_Services)
        return {publisher.instance_id: publisher.sequence for publisher in known.services}

    def entries(self) -> int:
        """Entries of all contexts, from `/digest`."""
        known = msgspec.json.decode(self.request("GET", "/digest")[1], type=_Digest)
        return sum(context.entries for context in known.contexts)

    def metrics(self) -> dict[str, float]:
        """`/metrics`, summed over labels."""
        return parse_metrics(self.request("GET", "/metrics")[1].decode())


class Service(WatchedService):
    """One data directory and, between `start` and `kill`, a process on it."""

    def __init__(self, kernel: KernelName, *options: str) -> None:
        self._kernel = kernel
        self._options = options
        self._root = Path(tempfile.mkdtemp(prefix="reprise-bench-"))
        self.data = self._root / "data"
        self._process: subprocess.Popen[str] | None = None
        self._connection: http.client.HTTPConnection | None = None
        self._idle_since = 0.0
        self.address = ("", 0)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._root, ignore_errors=True)

    # Life

    def start(self) -> tuple[float, float]:
        """Starts the process and waits for `/ready`; returns wall and CPU seconds until then."""
        started = time.monotonic()
        command = [sys.executable, "-m", "reprise", "up", "--data", str(self.data)]
        command += ["--port", "0", "--set", f"kernel={self._kernel}", *self._options]
        environment = os.environ | {"CONDUCTOR_CONFIG_PATH": str(self._root / "none")}
        with (self._root / "stderr").open("a") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("Reprise answers on "):
            raise RuntimeError(f"Expected the service to start, got: {self.log()}")
        url = urlsplit(line.split()[3])
        self.address = (str(url.hostname), url.port or 0)
        self._connection = http.client.HTTPConnection(*self.address, timeout=60)
        until(lambda: self.request("GET", "/ready")[0] == 200, poll_s=READY_POLL_S)
        return time.monotonic() - started, self.cpu_s()

    def kill(self) -> None:
        """Kill -9, and the connection closed."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(START_S)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def log(self) -> str:
        """The end of what it wrote to standard error."""
        return (self._root / "stderr").read_text()[-4000:]

    # What the system says of it

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def cpu_s(self) -> float:
        """See `cpu_seconds`."""
        return cpu_seconds(self.pid)

    def disk_bytes(self, part: str) -> int:
        """Bytes of the files of `log` or `table`."""
        files = (self.data / part).rglob("*")
        return sum(file.stat().st_size for file in files if file.is_file())

    # HTTP, over one connection that is kept

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """See `WatchedService`."""
        assert self._connection is not None
        headers = {"Content-Type": "application/json"} if body else {}
        if time.monotonic() > self._idle_since + KEPT_ALIVE_S:
            self._connection.close()  # it opens again by itself
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        self._idle_since = time.monotonic()
        return response.status, response.read()

    def get(self, path: str) -> bytes:
        """The body of an answer to a `GET`."""
        return self.request("GET", path)[1]

    def folded_sequence(self) -> int:
        """The lowest last sequence of all publishers; -1 before the first."""
        return min(self.sequences().values())

    def wait_folded(self, instance_id: str, sequence: int) -> None:
        """Until the publisher's batches up to this one are folded."""
        until(lambda: self.sequences()[instance_id] >= sequence, poll_s=0.1)

    def wait_flushed(self) -> None:
        """Until the table covers all that is folded, and so the log is synced."""

        def flushed() -> bool:
            metrics = self.metrics()
            folded = metrics["reprise_table_folded_offset"]
            return metrics["reprise_table_flushed_offset"] == folded

        until(flushed, poll_s=0.1)


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus' text form, summed over labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name = series.partition("{")[0]
            found[name] = found.get(name, 0.0) + float(value)
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process; Linux counts them in ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def thread_cpu_seconds(pid: int) -> float:
    """The same of all threads that live, in nanoseconds: for what takes less than a few ticks."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # it has ended meanwhile
            spent += int((task / "schedstat").read_text().split()[0])
    return spent / 1e9


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in use and in RAM."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def until(holds: Callable[[], bool], *, poll_s: float, timeout_s: float = START_S) -> None:
    """Waits until it holds.

    Raises:
        TimeoutError: it did not.
    """
    end = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"Expected it within {timeout_s:.0f} s, gave up")
        time.sleep(poll_s)
