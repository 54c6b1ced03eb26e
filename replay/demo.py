"""The demonstration: four simulated engines, a router, and one line that says what it is worth.

It runs against a Reprise that is already up, and leaves nothing behind: engines are ended and their
registrations taken back. Ports are fixed where they are free, so that a second run finds what the
first one registered, should that one have been killed.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from replay.conversations import Conversations, Traffic
from replay.engine import EngineOptions, EngineReady
from replay.engine_cache import CacheSizes, Offload
from replay.engine_process import EngineProcess, stop_engines
from replay.publisher import PublisherOptions
from replay.router import IndexClient, RandomRouting, Router, ServiceError

BASE_PORT: Final = 15_557
PORTS_PER_ENGINE: Final = 20
CURL_TOKENS: Final = 48
_SERVICE_RETRY_S: Final = 0.5


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the demonstration shows.

    Attributes:
        dp_ranks: one number an engine: its data-parallel ranks.
        sizes: of each rank's cache, also of the shadows'.
        requests_per_s: at most; a request takes one or two milliseconds.
        base_port: engine n takes 20 ports from `base_port + 20 * n` on; 0: the system chooses.
        line_every_s, curl_after_s: when to say something.
        service_wait_s: how long to wait for Reprise at the start.
    """

    model: str = "demo"
    dp_ranks: tuple[int, ...] = (1, 1, 1, 2)
    sizes: CacheSizes = CacheSizes(block_size=16, gpu_blocks=1_500, cpu_blocks=3_000)
    offload: Offload = Offload.WRITE_THROUGH
    traffic: Traffic = Traffic()
    seed: int = 1
    requests_per_s: float = 40.0
    base_port: int = BASE_PORT
    line_every_s: float = 3.0
    curl_after_s: float = 6.0
    service_wait_s: float = 15.0


class Demo:
    """Runs until stopped, once. What it has to say goes to `say`, a line a call."""

    def __init__(
        self,
        base_url: str,
        *,
        say: Callable[[str], None] = print,
        stop: threading.Event | None = None,
        options: DemoOptions | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            base_url: of the running service, such as `http://127.0.0.1:13333`.
            say: called from the thread that calls `run`.
            stop: set it, from any thread, to end `run`.
            options: what to show.
        """
        self.stop = threading.Event() if stop is None else stop
        self._base_url = base_url.rstrip("/")
        self._say = say
        self._options = DemoOptions() if options is None else options
        self._conversations = Conversations(self._options.seed, self._options.traffic)
        self._processes: list[EngineProcess] = []

    def run(self) -> None:
        """Start the engines, route until `stop` is set or Ctrl-C, end the engines.

        Raises:
            EngineStartError: an engine did not start.
            OSError: the service cannot be reached at the start.
            ServiceError: it refused the registrations.
        """
        index = IndexClient(self._base_url)
        engines: list[EngineReady] = []
        try:
            engines = self._start_engines()
            if self._register(index, engines):
                self._route_until_stopped(index, engines)
        except KeyboardInterrupt:
            self.stop.set()
        finally:
            self._finish(index, engines)

    @property
    def pids(self) -> list[int]:
        """Of the engines that were started."""
        return [process.pid for process in self._processes]

    def curl_command(self) -> str:
        """A query that works as pasted: the head of the most popular system prompt."""
        body = {
            "model": self._options.model,
            "block_size": self._options.sizes.block_size,
            "token_ids": self._popular_head(),
        }
        text = json.dumps(body, separators=(",", ":"))
        return f"curl -s {self._base_url}/query -H 'Content-Type: application/json' -d '{text}'"

    def engine_options(self) -> list[EngineOptions]:
        """The engines to start."""
        options = self._options
        engines = []
        for number, dp_ranks in enumerate(options.dp_ranks):
            first = options.base_port + number * PORTS_PER_ENGINE if options.base_port else 0
            replay = first + PORTS_PER_ENGINE // 2 if first else 0
            engines.append(
                EngineOptions(
                    instance_id=f"engine-{number}",
                    model=options.model,
                    sizes=options.sizes,
                    offload=options.offload,
                    dp_ranks=dp_ranks,
                    publisher=PublisherOptions(
                        endpoint=f"tcp://127.0.0.1:{first}",
                        replay_endpoint=f"tcp://127.0.0.1:{replay}",
                        topic=f"kv@engine-{number}@{options.model}",
                        any_port_if_taken=True,
                    ),
                    http_port=first + PORTS_PER_ENGINE - 1 if first else 0,
                )
            )
        return engines

    def _start_engines(self) -> list[EngineReady]:
        for options in self.engine_options():
            self._processes.append(EngineProcess(options))
        return [process.await_ready() for process in self._processes]

    def _register(self, index: IndexClient, engines: Sequence[EngineReady]) -> bool:
        """Register, waiting for a service that is still starting; False when stopped meanwhile."""
        deadline = time.monotonic() + self._options.service_wait_s
        while not self.stop.is_set():
            try:
                # These engines are new and empty: what a killed run's are said to hold is not so.
                index.unregister(engines)
                index.register(engines)
            except OSError:
                if time.monotonic() >= deadline:
                    raise
                self.stop.wait(_SERVICE_RETRY_S)
            else:
                return True
        return False

    def _route_until_stopped(self, index: IndexClient, engines: Sequence[EngineReady]) -> None:
        options = self._options
        shadow = RandomRouting(sum(options.dp_ranks), options.sizes, offload=options.offload)
        router = Router(index, engines, shadow=shadow)
        start = next_request = time.monotonic()
        next_line, curl_said = start + options.line_every_s, False
        try:
            while not self.stop.wait(max(next_request - time.monotonic(), 0)):
                router.route(next(self._conversations))
                now = time.monotonic()
                # What could not be kept up with is not caught up with.
                next_request = max(next_request + 1 / options.requests_per_s, now)
                if now >= next_line:
                    next_line = now + options.line_every_s
                    self._say_line(index, router)
                if not curl_said and now >= start + options.curl_after_s:
                    curl_said = self._say_curl(index)
        finally:
            router.close()

    def _say_line(self, index: IndexClient, router: Router) -> None:
        try:
            router.stats.blocks_indexed = index.blocks_indexed()
        except OSError:
            router.stats.blocks_indexed = None
        self._say(router.stats.line())

    def _say_curl(self, index: IndexClient) -> bool:
        """Say the command once it has something to show."""
        options = self._options
        try:
            matches = index.query(
                self._popular_head(), model=options.model, block_size=options.sizes.block_size
            )
        except (OSError, ServiceError):
            return False
        if not any(match.longest_matched for match in matches.values()):
            return False
        self._say("Ask it yourself, who holds the start of the most popular prompt:")
        self._say(self.curl_command())
        return True

    def _popular_head(self) -> list[int]:
        return self._conversations.system_prompts[0][:CURL_TOKENS]

    def _finish(self, index: IndexClient, engines: Sequence[EngineReady]) -> None:
        try:
            index.unregister(engines)
        except OSError:
            # The service has ended first. It finds these engines again when both start again.
            pass
        finally:
            index.close()
            stop_engines(self._processes)
