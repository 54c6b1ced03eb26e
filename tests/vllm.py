"""A real vLLM as a process, on one core, with the model of `make engines`."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from devtools.engines import Engines
from tests.processes import until

START_S = 600.0
"""Until it serves: one to six minutes on a loaded machine."""

ANSWER_S = 120.0
BLOCK, BLOCKS = 32, 300
MODEL = "tiny"
ADAPTER = "tiny-adapter"


class VllmEngine:
    """One of them. `with` it, it serves.

    Args:
        engines: where it is installed.
        folder: for its log and its caches.
        ports: of HTTP, of events, and of their replay.
        cores: that its ranks compute on, as `0` or `0|1`.
    """

    def __init__(
        self,
        engines: Engines,
        folder: Path,
        ports: tuple[int, int, int],
        *,
        cores: str,
        options: Sequence[str] = (),
    ) -> None:
        self.url = f"http://127.0.0.1:{ports[0]}"
        self.events = f"tcp://127.0.0.1:{ports[1]}"
        self.replay = f"tcp://127.0.0.1:{ports[2]}"
        self.log = folder / f"vllm-{ports[0]}.log"
        port, events, replay = ports
        self._command = engines.command(port=port, events=events, replay=replay, options=options)
        self._environment = engines.environment(cores=cores, cache=folder / f"cache-{port}")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)

    def begin(self) -> None:
        """Starts it, and does not wait."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=dict(self._environment),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # it has processes of its own
            )

    def wait(self) -> None:
        """Returns once it serves."""
        assert self._process is not None
        process = self._process

        def serves() -> bool:
            if process.poll() is not None:
                text = self.log.read_text(errors="replace")[-4000:]
                raise AssertionError(f"the engine has ended with {process.returncode}: {text}")
            return self.status("/health") == 200

        until(serves, what=f"an engine at {self.url}", timeout_s=START_S)

    def end(self, how: signal.Signals) -> None:
        """Ends it, and all that it has started."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, how)
        if self._process is not None:
            try:
                self._process.wait(30)
            finally:
                if self._process.poll() is None:
                    os.killpg(self._process.pid, signal.SIGKILL)
        self._process = None

    def status(self, path: str) -> int:
        """Of a GET; 0 where nothing answers."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=ANSWER_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def post(self, path: str, body: object, rank: int | None = None) -> tuple[int, Any]:
        """Status and document of a POST of JSON, to one rank or to any."""
        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if rank is not None:
            headers["X-data-parallel-rank"] = str(rank)
        request = urllib.request.Request(self.url + path, content, headers)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                said = answer.read()
                return int(answer.status), json.loads(said) if said else None
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(errors="replace")

    def answered(self, body: dict[str, Any], rank: int | None = None) -> dict[str, Any]:
        """The answer to a chat or a completion, with the token ids of its prompt."""
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        asked = {"model": MODEL, "max_tokens": 4, "temperature": 0, "return_token_ids": True}
        status, answer = self.post(path, asked | body, rank)
        assert status == 200, answer
        found: dict[str, Any] = answer
        return found


def prompt_ids(answer: dict[str, Any]) -> list[int]:
    """Token ids that the engine has computed; a completion has them at its choice."""
    found = answer.get("prompt_token_ids") or answer["choices"][0]["prompt_token_ids"]
    return list(found)


def cached_tokens(answer: dict[str, Any]) -> int:
    """What the engine says it had in its cache."""
    details = answer["usage"].get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def settled(seconds: float = 0.3) -> None:
    """What an engine publishes at the end of a step comes some milliseconds after its answer."""
    time.sleep(seconds)
