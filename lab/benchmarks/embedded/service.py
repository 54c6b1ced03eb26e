"""Reprise as a process of its own: started, asked, watched through `/proc`, ended by id."""

import http.client
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import msgspec

from lab.benchmarks.sizes import BLOCK_SIZE

START_S: Final = 120.0
STOP_S: Final = 30.0
POLL_S: Final = 0.01
KEPT_ALIVE_S: Final = 3.0
"""The server closes connections that were idle for five seconds."""

MODEL: Final = "bench"
_ADDRESS: Final = re.compile(r"(?:Reprise answers on|Metrics on) (http://[^\s/]+)")


class Publisher(msgspec.Struct):
    """What `/services` says of one."""

    instance_id: str = msgspec.field(name="InstanceID")
    sequence: int = msgspec.field(name="Sequence")
    state: str = msgspec.field(name="State")


class _Services(msgspec.Struct):
    services: list[Publisher]


class _Context(msgspec.Struct):
    entries: int


class _Digest(msgspec.Struct):
    contexts: list[_Context]


class Service:
    """One data directory and, between `start` and `kill`, a process on it.

    Args:
        options: of the command line.
        role: `up`, or one of the distributed form.
    """

    def __init__(self, *options: str, role: str = "up") -> None:
        self._root = Path(tempfile.mkdtemp(prefix="reprise-bench-"))
        self.data = self._root / "data"
        port = ("--port", "0") if role in ("up", "serve") else ("--metrics-port", "0")
        command = (sys.executable, "-m", "reprise", role, "--data", str(self.data), *port)
        self._command = (*command, *options)
        self._output = self._root / "output"
        self._process: subprocess.Popen[bytes] | None = None
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
        self.launch()
        until(self.is_ready, poll_s=POLL_S)
        return time.monotonic() - started, self.cpu_s()

    def launch(self) -> None:
        """Starts the process; returns when it answers HTTP, ready or not."""
        self._output.write_bytes(b"")
        environment = os.environ | {"CONDUCTOR_CONFIG_PATH": str(self._root / "none")}
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )
        until(self._answers, poll_s=POLL_S)
        url = urlsplit(_ADDRESS.findall(self.log())[0])
        self.address = (str(url.hostname), url.port or 0)
        self._connection = http.client.HTTPConnection(*self.address, timeout=60)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"Expected the service to start, got: {self.log()}")
        return bool(_ADDRESS.findall(self.log()))

    def kill(self) -> None:
        """Kill -9, and the connection closed."""
        self._end(subprocess.Popen.kill)

    def stop(self) -> None:
        """SIGTERM: it leaves its group, so that the next one need not wait for its session."""
        self._end(subprocess.Popen.terminate)

    def _end(self, ask: Callable[["subprocess.Popen[bytes]"], None]) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            ask(self._process)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(STOP_S)
            self._process = None

    def log(self) -> str:
        """The end of what it wrote."""
        return self._output.read_text()[-4000:]

    # What the system says of it

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def cpu_s(self) -> float:
        """See `cpu_seconds`."""
        return cpu_seconds(self.pid)

    # HTTP, over one connection that is kept

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body."""
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

    def is_ready(self) -> bool:
        """Whether it answers queries."""
        return self.request("GET", "/ready")[0] == 200

    def register(self, endpoint: str, instance_id: str, replay_endpoint: str = "") -> None:
        """Follows one publisher."""
        more = {"replay_endpoint": replay_endpoint} if replay_endpoint else {}
        self._change("/register", instance_id, endpoint=endpoint, **more)

    def unregister(self, instance_id: str) -> None:
        """Follows it no more, and forgets its blocks."""
        self._change("/unregister", instance_id)

    def _change(self, path: str, instance_id: str, **more: str) -> None:
        fields: dict[str, Any] = {"type": "vLLM", "modelname": MODEL, "instance_id": instance_id}
        fields |= {"block_size": BLOCK_SIZE, "dp_rank": 0, **more}
        status, answer = self.request("POST", path, msgspec.json.encode(fields))
        if status != 200:
            raise RuntimeError(f"Expected {path} of {instance_id}, got {status}: {answer.decode()}")

    def publishers(self) -> list[Publisher]:
        """What it says of those that it follows."""
        return msgspec.json.decode(self.get("/services"), type=_Services).services

    def sequences(self) -> dict[str, int]:
        """The last sequence of each publisher, by instance; -1 before the first."""
        return {one.instance_id: one.sequence for one in self.publishers()}

    def entries(self) -> int:
        """Entries of all contexts, from `/digest`."""
        known = msgspec.json.decode(self.get("/digest"), type=_Digest)
        return sum(context.entries for context in known.contexts)

    def metrics(self) -> dict[str, float]:
        """`/metrics`, summed over labels."""
        return parse_metrics(self.get("/metrics").decode())

    def wait_folded(self, sequence: int, *instances: str, poll_s: float = 0.05) -> None:
        """Until the batches up to this one are folded of these publishers, or of all."""

        def folded() -> bool:
            known = self.sequences()
            return min(known.get(one, -1) for one in instances or known) >= sequence

        until(folded, poll_s=poll_s)

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
