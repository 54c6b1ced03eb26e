"""Engines as child processes: started, awaited, ended and reaped by process id."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from replay.engine import EngineOptions, EngineReady

READY_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 5.0


class EngineStartError(Exception):
    """An engine ended or said nothing before it was ready; standard error has its last words."""


class EngineProcess:
    """One engine process. It also ends by itself when this process is gone."""

    def __init__(self, options: EngineOptions) -> None:
        """Start it; `await_ready` says when it serves."""
        root = str(Path(__file__).resolve().parent.parent)
        path = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self.options = options
        self._ready: EngineReady | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "replay.engine", *arguments(options)],
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
            EngineStartError: it ended, or the time is over.
        """
        if self._ready is not None:
            return self._ready
        assert self._process.stdout is not None, "the process was started with a pipe"
        name = self.options.instance_id
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise EngineStartError(f"Expected engine `{name}` to be ready in {timeout_s} s")
        line = self._process.stdout.readline()
        if not line:
            raise EngineStartError(f"Expected engine `{name}` to be ready, but it ended")
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


def stop_engines(processes: Sequence[EngineProcess], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """End all of them together; none is left when this returns."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + timeout_s
    for process in processes:
        process.reap(deadline)


def arguments(options: EngineOptions) -> list[str]:
    """The command line that `replay.engine.parse_options` reads as `options`."""
    publisher = options.publisher
    values = {
        "--instance-id": options.instance_id,
        "--model": options.model,
        "--block-size": options.sizes.block_size,
        "--gpu-blocks": options.sizes.gpu_blocks,
        "--cpu-blocks": options.sizes.cpu_blocks,
        "--offload": options.offload.value,
        "--dp-ranks": options.dp_ranks,
        "--endpoint": publisher.endpoint,
        "--replay-endpoint": publisher.replay_endpoint,
        "--topic": publisher.topic,
        "--buffer-batches": publisher.buffer_batches,
        "--high-water-mark": publisher.high_water_mark,
        "--wire": publisher.wire,
        "--http-host": options.http_host,
        "--http-port": options.http_port,
        "--parent-pid": os.getpid(),
    }
    line = [f"{name}={value}" for name, value in values.items()]
    return [*line, *(["--any-port-if-taken"] if publisher.any_port_if_taken else [])]
