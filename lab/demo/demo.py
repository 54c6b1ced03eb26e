"""The demonstration: four simulated engines, a router, and a table that says what it is worth.

It runs against a Reprise that is already up, and leaves nothing behind: engines are ended and their
registrations removed. Where it cannot, as after Reprise was stopped first, the next one does.

Engines outlive a demonstration that was killed, for a while, as real ones outlive the index. Where
they are is noted in a file, so the next demonstration finds and adopts them, and the traffic
continues where it stopped.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from lab.demo.board import FIRST_AFTER_S, WARM_UP_S, Board
from lab.demo.sample import QueryCommand, Sampler, say_sample
from lab.engines.cache import CacheSizes, Offload
from lab.engines.engine import EngineOptions
from lab.engines.fleet import Fleet
from lab.engines.publisher import PublisherOptions
from lab.traffic.conversations import Conversations, Traffic
from lab.traffic.index_client import INSTANCE_CLASS, IndexClient, ServiceError
from lab.traffic.router import Router
from lab.traffic.shadows import Alternatives
from routing.costs import Costs
from schemas.registration import Registration

BASE_PORT: Final = 15_557
PORTS_PER_ENGINE: Final = 20
TURNS_SKIPPED_MAX: Final = 4_000
"""A run that follows a killed one skips this many turns at most: engines evict sooner."""

COSTS: Final = Costs(fixed_s=0.02, prefill_tokens_per_s=2_500.0, token_squared_s=2e-9)
"""Of each rank: slow enough that five of them have something to do at 20 requests a second."""

SHADOW_TURNS: Final = 1_000
"""This many turns fill the shadows' caches."""

_SERVICE_RETRY_S: Final = 0.1
_SAMPLE_RETRY_S: Final = 1.0


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the demonstration shows.

    Attributes:
        dp_ranks: one number an engine: its data-parallel ranks.
        sizes: of each rank's cache, also of the shadows'.
        costs: how long each rank takes to compute a prompt, also of the shadows.
        requests_per_s: at most.
        base_port: engine n takes 20 ports from `base_port + 20 * n` on; 0: the system chooses.
        warm_up_s, first_after_s: see `Board`.
        curl_after_s: when to say a query that can be pasted.
        redraws: whether what is said goes to a terminal.
        service_wait_s: how long to wait for Reprise to answer at all at the start.
        owner: what a run must have in common with a killed one to adopt its engines: the data
            directory.
        orphan_grace_s: how long engines wait for that.
        key: that Reprise asks for; "" for none.
        hold_s: no traffic for so long after engines were adopted, to compare answers by hand.
        engines_path: the file that says where engines are, for the next run; "" for none.
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
    warm_up_s: float = WARM_UP_S
    first_after_s: float = FIRST_AFTER_S
    curl_after_s: float = 6.0
    redraws: bool = False
    service_wait_s: float = 15.0
    owner: str = ""
    orphan_grace_s: float = 60.0
    key: str = ""
    hold_s: float = 5.0
    engines_path: str = ""


class Demo:
    """Runs until stopped, once. What it has to say goes to `say`, a line or a table a call."""

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
        self._options = options = DemoOptions() if options is None else options
        self._board = Board(
            say,
            in_place=options.redraws,
            warm_up_s=options.warm_up_s,
            first_after_s=options.first_after_s,
        )
        self._turns = Sampler(Conversations(options.seed, options.traffic))
        self._fleet = Fleet(self.engine_options(), options.engines_path)
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
                if self._fleet.follows_killed and not self._fleet.adopted:
                    self._board.say("The engines of the killed run have ended; new ones start.")
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

        def speak(now: float) -> None:
            nonlocal curl_at
            self._board.show(now, router.stats, lambda: read_blocks(index, router))
            if not self._curl_said and now >= curl_at:
                curl_at = now + _SAMPLE_RETRY_S
                self._say_curl(index)

        try:
            router.run(
                self._turns,
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
        self._board.say(
            f"Found {which} engines of the killed run; traffic continues in {hold_s:.0f} s."
        )
        self._board.is_resumed = True
        goes_on_at = time.monotonic() + hold_s
        # Without this the engines would be asked again what they hold already, and the shadows
        # would start empty: a comparison in favour of the index.
        turns = sum(engine.state.requests for engine in adopted) % TURNS_SKIPPED_MAX
        for turns_left, turn in zip(range(turns, 0, -1), self._turns, strict=False):
            if self.stop.is_set():
                return
            if turns_left <= SHADOW_TURNS:
                before_s = turns_left / self._options.requests_per_s
                alternatives.run(turn, goes_on_at - before_s)
        self._say_curl(index)
        self.stop.wait(max(goes_on_at - time.monotonic(), 0))

    def _say_curl(self, index: IndexClient) -> None:
        """Say the command once it has something to show."""
        # A service that listens on all addresses is asked at one.
        asked = self._base_url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
        options = self._options
        how = QueryCommand(asked, options.model, options.sizes.block_size, bool(options.key))
        prompt = say_sample(self._board.say, self._turns, index, how)
        self._curl_said = prompt is not None

    def _finish(self, index: IndexClient) -> None:
        engines = self._fleet.engines
        try:
            try:
                index.unregister(engines)
                became = "were removed, since an engine that is gone holds nothing"
            except OSError:
                became = (
                    "stay until the next demonstration removes them: Reprise had stopped before"
                )
            if engines:
                self._board.say(
                    f"The {len(engines)} simulated engines end with the demonstration. Their"
                    f" registrations and blocks {became}. The log keeps what they published."
                )
        finally:
            self._board.close()
            index.close()
            self._fleet.close()


def lost_engines(options: DemoOptions) -> Callable[[Registration], bool]:
    """Whether a registration is of an engine of a run before that has ended since: another
    demonstration may have its ports, and what comes from there is none of ours.
    """
    absent = Fleet(Demo("", options=options).engine_options(), options.engines_path).absent()

    def is_lost(registration: Registration) -> bool:
        is_simulated = ("class", INSTANCE_CLASS) in registration.labels
        return is_simulated and registration.instance_id in absent

    return is_lost


def read_blocks(index: IndexClient, router: Router) -> None:
    """What the table says of them; "?" where the service does not answer."""
    try:
        router.stats.blocks_indexed = index.blocks_indexed()
    except OSError:
        router.stats.blocks_indexed = None
