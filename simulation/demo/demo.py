"""The demonstration: four simulated engines, a router, and one line that says what it is worth.

It runs against a Reprise that is already up, and leaves nothing behind: engines are ended and their
registrations removed. Where it cannot, as after Reprise was stopped first, the next one does.

Engines outlive a demonstration that was killed, for a while, as real ones outlive the index. Ports
are fixed where they are free, so the next demonstration finds them there and adopts them, and the
traffic continues where it stopped.
"""

import json
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from simulation.engines.cache import CacheSizes, Offload
from simulation.engines.engine import EngineOptions
from simulation.engines.fleet import Fleet
from simulation.engines.publisher import PublisherOptions
from simulation.traffic.conversations import Conversations, Traffic
from simulation.traffic.index_client import IndexClient, ServiceError
from simulation.traffic.router import Router
from simulation.traffic.shadows import Alternatives
from streams.routing.costs import Costs

BASE_PORT: Final = 15_557
PORTS_PER_ENGINE: Final = 20
CURL_TOKENS: Final = 48
TURNS_SKIPPED_MAX: Final = 4_000
"""A run that follows a killed one skips this many turns at most: engines evict sooner."""

COSTS: Final = Costs(fixed_s=0.02, prefill_tokens_per_s=2_500.0, token_squared_s=2e-9)
"""Of each rank: slow enough that five of them have something to do at 20 requests a second."""

SHADOW_TURNS: Final = 1_000
"""This many turns fill the shadows' caches."""

_SERVICE_RETRY_S: Final = 0.1


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the demonstration shows.

    Attributes:
        dp_ranks: one number an engine: its data-parallel ranks.
        sizes: of each rank's cache, also of the shadows'.
        costs: how long each rank takes to compute a prompt, also of the shadows.
        requests_per_s: at most.
        base_port: engine n takes 20 ports from `base_port + 20 * n` on; 0: the system chooses.
        line_every_s, curl_after_s: when to say something.
        service_wait_s: how long to wait for Reprise to answer at all at the start.
        owner: what a run must have in common with a killed one to adopt its engines: the data
            directory.
        orphan_grace_s: how long engines wait for that.
        key: that Reprise asks for; "" for none.
        hold_s: no traffic for so long after engines were adopted, to compare answers by hand.
    """

    model: str = "demo"
    dp_ranks: tuple[int, ...] = (1, 1, 1, 2)
    sizes: CacheSizes = CacheSizes(block_size=16, gpu_blocks=1_500, cpu_blocks=3_000)
    offload: Offload = Offload.WRITE_THROUGH
    traffic: Traffic = Traffic()
    seed: int = 1
    costs: Costs = COSTS
    requests_per_s: float = 20.0
    base_port: int = BASE_PORT
    line_every_s: float = 3.0
    curl_after_s: float = 6.0
    service_wait_s: float = 15.0
    owner: str = ""
    orphan_grace_s: float = 60.0
    key: str = ""
    hold_s: float = 5.0


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
        self._fleet = Fleet(self.engine_options())
        self._curl_said = False

    def run(self) -> None:
        """Start the engines, route until `stop` is set or Ctrl-C, end the engines.

        Raises:
            EngineStartError: an engine did not start.
            OSError: the service cannot be reached at the start.
            ServiceError: it refused the registrations.
        """
        index = IndexClient(self._base_url, key=self._options.key)
        try:
            if self._await_service(index):
                self._fleet.gather(index)
                self._route_until_stopped(index)
        except (OSError, ServiceError):
            # A service that is stopping with us is no failure.
            if not self.stop.is_set():
                raise
        except KeyboardInterrupt:
            self.stop.set()
        finally:
            self._finish(index)

    @property
    def pids(self) -> list[int]:
        """Of the engines, adopted ones included."""
        return self._fleet.pids

    def curl_command(self) -> str:
        """A query that works as pasted: the head of the most popular system prompt."""
        body = {
            "model": self._options.model,
            "block_size": self._options.sizes.block_size,
            "token_ids": self._popular_head(),
        }
        text = json.dumps(body, separators=(",", ":"))
        header = ' -H "Authorization: Bearer $KEY"' if self._options.key else ""
        # Whoever listens on all addresses is asked at one.
        asked = self._base_url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
        return f"curl -s {asked}/query{header} -H 'Content-Type: application/json' -d '{text}'"

    def engine_options(self) -> list[EngineOptions]:
        """The engines to have."""
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
                    owner=options.owner,
                    orphan_grace_s=options.orphan_grace_s,
                    costs=options.costs,
                )
            )
        return engines

    def _await_service(self, index: IndexClient) -> bool:
        """Wait for a service that is still starting; False when stopped meanwhile."""
        deadline = time.monotonic() + self._options.service_wait_s
        while not self.stop.is_set():
            try:
                if index.ready():
                    return True
            except OSError:
                if time.monotonic() >= deadline:
                    raise
            self.stop.wait(_SERVICE_RETRY_S)
        return False

    def _route_until_stopped(self, index: IndexClient) -> None:
        options = self._options
        alternatives = Alternatives(
            sum(options.dp_ranks), options.sizes, offload=options.offload, costs=options.costs
        )
        if self._fleet.adopted:
            self._resume(index, alternatives)
        router = Router(index, self._fleet.engines, alternatives=alternatives)
        curl_at = time.monotonic() + options.curl_after_s
        next_line = time.monotonic() + options.line_every_s

        def speak(now: float) -> None:
            nonlocal next_line
            if not self._curl_said and now >= curl_at:
                self._say_curl(index)
            if now >= next_line:
                next_line = now + options.line_every_s
                self._say_line(index, router)

        try:
            router.run(
                self._conversations,
                requests_per_s=options.requests_per_s,
                stop=self.stop,
                then=speak,
            )
        finally:
            router.close()

    def _resume(self, index: IndexClient, alternatives: Alternatives) -> None:
        """Hold the traffic for a while, and continue where that of the killed run ended."""
        adopted, hold_s = self._fleet.adopted, self._options.hold_s
        which = "the" if len(adopted) == len(self._fleet.engines) else f"{len(adopted)}"
        self._say(f"Found {which} engines of the killed run; traffic continues in {hold_s:.0f} s.")
        self._say_curl(index)
        goes_on_at = time.monotonic() + hold_s
        # Without this the engines would be asked again what they hold already, and the shadows
        # would start empty: a comparison in favour of the index.
        turns = sum(engine.state.requests for engine in adopted) % TURNS_SKIPPED_MAX
        for turns_left, turn in zip(range(turns, 0, -1), self._conversations, strict=False):
            if self.stop.is_set():
                return
            if turns_left <= SHADOW_TURNS:
                before_s = turns_left / self._options.requests_per_s
                alternatives.run(turn, goes_on_at - before_s)
        self.stop.wait(max(goes_on_at - time.monotonic(), 0))

    def _say_line(self, index: IndexClient, router: Router) -> None:
        try:
            router.stats.blocks_indexed = index.blocks_indexed()
        except OSError:
            router.stats.blocks_indexed = None
        self._say(router.stats.line())

    def _say_curl(self, index: IndexClient) -> None:
        """Say the command once it has something to show."""
        options = self._options
        try:
            matches = index.query(
                self._popular_head(), model=options.model, block_size=options.sizes.block_size
            )
        except (OSError, ServiceError):
            return
        if not any(match.longest_matched for match in matches.values()):
            return
        self._curl_said = True
        self._say("Try it: who holds the longest prefix of the most popular prompt?")
        self._say(self.curl_command())

    def _popular_head(self) -> list[int]:
        return self._conversations.system_prompts[0][:CURL_TOKENS]

    def _finish(self, index: IndexClient) -> None:
        try:
            index.unregister(self._fleet.engines)
        except OSError:
            # The service has ended first. The next demonstration takes these back before it begins.
            pass
        finally:
            index.close()
            self._fleet.close()
