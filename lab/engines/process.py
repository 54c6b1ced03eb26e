"""Engines as processes: started and awaited, or adopted; ended and reaped by process id."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from lab.engines.engine import EngineOptions, EngineReady, EngineState
from lab.engines.parent_watch import ProcessIdentity, identify
from lab.traffic.http_json import JsonConnection

READY_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 5.0
ADOPT_TIMEOUT_S: Final = 2.0
_REAP_POLL_S: Final = 0.02


class EngineStartError(Exception):
    """An engine ended, or was not ready in time; standard error says why."""


class RunningEngine(Protocol):
    """An engine that this process is responsible for."""

    def terminate(self) -> None:
        """Ask it to end; `reap` waits for it."""

    def reap(self, deadline: float) -> object:
        """Wait until it has ended, at most until `deadline` (monotonic), then end it by force."""


class EngineProcess:
    """An engine that this process started; it ends with this process (`ParentWatch`)."""

    def __init__(self, options: EngineOptions) -> None:
        """Start it; `await_ready` says when it serves."""
        root = str(Path(__file__).resolve().parents[2])
        path = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self.options = options
        self._ready: EngineReady | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lab.engines.engine", *arguments(options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            # A Ctrl-C in the terminal is for the parent, which ends its engines in order.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def await_ready(self, timeout_s: float = READY_TIMEOUT_S) -> EngineReady:
        """Where the engine is, once it serves.

        Raises:
            EngineStartError: it ended, or was not ready in time.
        """
        if self._ready is not None:
            return self._ready
        assert self._process.stdout is not None, "the process was started with a pipe"
        name = self.options.instance_id
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise EngineStartError(f"Engine `{name}` was not ready within {timeout_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise EngineStartError(f"Engine `{name}` ended before it was ready")
        self._ready = msgspec.json.decode(line, type=EngineReady)
        return self._ready

    def terminate(self) -> None:
        """Ask it to end; `reap` waits for it."""
        if self.alive:
            self._process.terminate()

    def reap(self, deadline: float) -> int:
        """Wait until it has ended, at most until `deadline` (monotonic), then end it by force.

        Returns:
            The exit status; negative for a signal.
        """
        try:
            status = self._process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return status


class AdoptedEngine:
    """An engine that outlived the process that started it, and ends with this one now."""

    def __init__(self, state: EngineState, identity: ProcessIdentity) -> None:
        """See `adopt_engine`."""
        self.state = state
        self.ready = state.ready
        self._identity = identity
        self._address = f"http://{state.ready.http_host}:{state.ready.http_port}"

    @property
    def pid(self) -> int:
        """The process id."""
        return self._identity.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._identity.alive

    def terminate(self) -> None:
        """Ask it to end; `reap` waits for it."""
        with suppress(OSError):
            self._request("POST", "/stop")

    def reap(self, deadline: float) -> None:
        """Wait until it has ended, at most until `deadline` (monotonic), then end it by force."""
        while self.alive and time.monotonic() < deadline:
            time.sleep(_REAP_POLL_S)
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _request(self, method: str, path: str, body: object = None) -> bytes:
        connection = JsonConnection(self._address, ADOPT_TIMEOUT_S)
        try:
            return connection.request(method, path, body).body
        finally:
            connection.close()


def own_engine(options: EngineOptions, http_port: int) -> EngineState | None:
    """The engine of the same owner and instance on an HTTP port; None where there is none: another
    demonstration's may have the port.
    """
    if not http_port:
        return None
    connection = JsonConnection(f"http://{options.http_host}:{http_port}", ADOPT_TIMEOUT_S)
    try:
        state = msgspec.json.decode(connection.request("GET", "/ready").body, type=EngineState)
    except (OSError, msgspec.MsgspecError):
        return None
    finally:
        connection.close()
    asked, there = options, state.options
    is_own = (asked.owner, asked.instance_id) == (there.owner, there.instance_id)
    return state if is_own else None


def adopt_engine(options: EngineOptions, http_port: int | None = None) -> AdoptedEngine | None:
    """The engine on an HTTP port, that of `options` unless another is given, if there is one of the
    same owner whose parent is gone.

    It ends with this process from now on, even where it is not what `options` ask for: see its
    `state`.
    """
    port = options.http_port if http_port is None else http_port
    state = own_engine(options, port)
    if state is None:
        return None
    connection = JsonConnection(f"http://{options.http_host}:{port}", ADOPT_TIMEOUT_S)
    try:
        identity = identify(state.ready.pid)
        answer = connection.request("POST", "/adopt", {"pid": os.getpid()})
    except OSError:
        return None
    finally:
        connection.close()
    return AdoptedEngine(state, identity) if identity and answer.status == 200 else None


def stop_engines(engines: Sequence[RunningEngine], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """End all of them together; none is left when this returns."""
    for engine in engines:
        engine.terminate()
    deadline = time.monotonic() + timeout_s
    for engine in engines:
        engine.reap(deadline)


def arguments(options: EngineOptions) -> list[str]:
    """The command line that `lab.engines.engine.parse_options` reads as `options`."""
    return [f"--options={msgspec.json.encode(options).decode()}", f"--parent-pid={os.getpid()}"]
