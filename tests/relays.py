"""`reprise relay` as a process, and the keys of both ends."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from devtools.broker import free_ports
from tests.processes import START_S, sum_of_samples, until

_ADDRESS = re.compile(r"Metrics on (http://[^\s/]+)")


class Keys(NamedTuple):
    """A key pair, as `reprise curve-key` makes it."""

    public: str
    path: Path


def make_keys(name: Path) -> Keys:
    done = subprocess.run(
        [sys.executable, "-m", "reprise", "curve-key", str(name)],
        capture_output=True,
        text=True,
        check=True,
    )
    return Keys(done.stdout.strip(), name.with_name(name.name + ".key_secret"))


class RelayProcess:
    """In front of some engines, each a pair of endpoint and replay endpoint.

    Attributes:
        keys: its own.
        bridge_keys: the file of its list.
        ports: of each engine, of the events and of the replays.
    """

    def __init__(
        self, directory: Path, engines: Sequence[tuple[str, str]], bridges: Sequence[str]
    ) -> None:
        """Starts nothing yet."""
        self.keys = make_keys(directory / "relay")
        self.bridge_keys = directory / "bridges.txt"
        self.allow(*bridges)
        free = free_ports(2 * len(engines))
        self.ports = list(zip(free[::2], free[1::2], strict=True))
        self._command = [sys.executable, "-m", "reprise", "relay", "--metrics-port", "0"]
        self._command += ["--curve-key", str(self.keys.path)]
        self._command += ["--bridge-keys", str(self.bridge_keys)]
        for (endpoint, replay), (port, replay_port) in zip(engines, self.ports, strict=True):
            self._command += ["--engine", endpoint, "--listen", f"tcp://127.0.0.1:{port}"]
            self._command += ["--replay", replay]
            self._command += ["--listen-replay", f"tcp://127.0.0.1:{replay_port}"]
        self._output = directory / "relay.output"
        self.process: subprocess.Popen[bytes] | None = None
        self.base_url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def allow(self, *bridges: str) -> None:
        """Lists these bridges and no others."""
        lines = [f"{key}  bridge-{number}\n" for number, key in enumerate(bridges)]
        self.bridge_keys.write_text("".join(["# public keys of bridges\n", *lines]))

    def start(self) -> None:
        """Returns once it listens."""
        begin = len(self.output())
        with self._output.open("a") as output:
            self.process = subprocess.Popen(self._command, stdout=output, stderr=output)
        process = self.process

        def answers() -> bool:
            assert process.poll() is None, f"the relay has ended:\n{self.output()[-3000:]}"
            found = _ADDRESS.findall(self.output()[begin:])
            self.base_url = found[-1] if found else ""
            return bool(found)

        until(answers, what="the relay answers", timeout_s=60)

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(START_S)
            self.process = None

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(START_S)
        self.process = None
        return code

    def output(self) -> str:
        return self._output.read_text() if self._output.exists() else ""

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.base_url + "/health", timeout=20) as response:
            found: dict[str, Any] = json.loads(response.read())
        return found

    def metric(self, name: str, **labels: str) -> float:
        with urllib.request.urlopen(self.base_url + "/metrics", timeout=20) as response:
            return sum_of_samples(response.read(), name, labels)

    def registration(
        self, number: int = 0, *, ports: tuple[int, int] | None = None
    ) -> dict[str, object]:
        """The fields of `POST /register` that say where an engine of it is found."""
        port, replay_port = ports or self.ports[number]
        return {
            "endpoint": f"tcp://127.0.0.1:{port}",
            "replay_endpoint": f"tcp://127.0.0.1:{replay_port}",
            "curve_server_key": self.keys.public,
        }
