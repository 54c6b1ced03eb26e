"""A released engine's publisher as a child process."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from devtools.publishers.engine import EngineDescription
from devtools.publishers.releases import Release

Event = Mapping[str, Any]
"""An event by the names of its fields, the tag as `type`."""

_ROOT = Path(__file__).parents[2]


class ReleasedEngine:
    """Starts it; it binds before this returns.

    Args:
        release: that has been fetched.
        endpoint: where to publish. A release binds `ipc://` addresses, and TCP ones with `::` or
            `*` in them; it connects to others.
        replay_endpoint: where to replay; None for nowhere.

    Attributes:
        fields: those that its events have, by tag.
    """

    def __init__(
        self,
        release: Release,
        endpoint: str,
        replay_endpoint: str | None,
        *,
        dp_rank: int = 0,
        buffer_steps: int = 10_000,
        topic: str = "",
    ) -> None:
        command = [sys.executable, "-m", "devtools.publishers.engine", str(release.path)]
        command += ["--endpoint", endpoint, "--dp-rank", str(dp_rank), "--topic", topic]
        command += ["--buffer-steps", str(buffer_steps)]
        command += ["--replay-endpoint", replay_endpoint] if replay_endpoint else []
        self._process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            self.fields = msgspec.json.decode(self._answer(), type=EngineDescription).fields
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def publish(self, *events: Event, ts: float = 1_700_000_000.5) -> None:
        """One batch; returns when the publisher has taken it."""
        self.publish_all([events], ts=ts)

    def publish_all(self, batches: Sequence[Sequence[Event]], *, ts: float) -> None:
        """Batches, a second apart by their time."""
        assert self._process.stdin is not None
        for number, events in enumerate(batches):
            line = msgspec.json.encode({"ts": ts + number, "events": events})
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
            self._answer()

    def kill(self) -> None:
        """Ends it as a crash does, by SIGKILL."""
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the engine's process has ended"
        return line
