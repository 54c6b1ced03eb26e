"""What engines do and what happens to them, in every world that has engines."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from bridge.publisher.counters import PublisherCounters
from schemas.limits import RECORD_BYTES_MAX
from schemas.records import EventsRecord, GapRecord, Record
from schemas.registration import PublisherKind
from streams.table.fold import Fold
from tests.simulation.announced import LOST
from tests.simulation.engines import SimulatedEngine, Spoilt
from tests.simulation.history import History
from tests.simulation.ledgers import check_ledger, held_by, is_whole
from tests.simulation.links import Link, Replays, SimulatedSubscriber
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.oracle import check_counted, reasons_of

FAULTS_S: Final = 6.0
"""Whatever is to be undone later has been undone after this long; see `Crowd.later`."""

RECORD_BYTES: Final = (60, RECORD_BYTES_MAX)
"""Of a record of events, in a world: with the first one most batches are cut into parts."""

Step = Callable[[], object]

_ONE_RANK: Final = PublisherKind("vLLM")
_COUNTED_AS_ONE: Final = PublisherKind("TensorRT-LLM")
"""How its ranks count their batches; those of the other kind count each by itself."""


class Crowd:
    """The engines of a world.

    Args:
        harsh: much more is dropped, cut and restarted, and engines send what cannot be read.
        replays: False where no engine has a replay socket.

    Attributes:
        covered: every engine has a replay socket, and a buffer for all that it will ever send.
        counters: of all bridges that there have been, by the name of the publisher.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        history: History,
        rng: random.Random,
        *,
        harsh: bool = False,
        replays: bool = True,
    ) -> None:
        self.loop, self.history, self.rng, self.harsh = loop, history, rng, harsh
        self._replay = replays
        self.covered = rng.random() < 0.5 and replays
        self.odd = history.source("odd")
        self.starving = history.source("starving")
        self._shared = self.odd.choice((None, 0, 1, 2))  # which engine has several ranks
        self._many_ranks = self.odd.choice((_COUNTED_AS_ONE, _ONE_RANK))
        self.engines = [self._engine(number) for number in range(rng.randint(3, 4))]
        self.engines += [
            one.add_rank(len(self.engines), history.source("rank 1"))
            for one in self.engines
            if one.number == self._shared
        ]
        self.replays = Replays(loop, history.source("replays"), self.engines)
        self.counters: defaultdict[str, list[PublisherCounters]] = defaultdict(list)

    def _engine(self, number: int) -> SimulatedEngine:
        rng = self.rng
        http = self.history.source(f"http {number}")
        answers_http = http.choice((0.0, 0.5, 1.0, 1.0))
        is_shared = number == self._shared
        if is_shared:
            answers_http = 0.0
        return SimulatedEngine(
            self.loop,
            self.history.source(f"engine {number}"),
            number,
            replays=self.covered or (rng.random() < 0.6 and self._replay),
            buffer_batches=100_000 if self.covered else rng.choice((4, 16, 100_000)),
            answers_http=answers_http,
            by_url=answers_http == 1.0 and http.random() < 0.5,
            gpu_blocks=self.odd.choice((10, 24)),
            groups=self.odd.choice((None, (0, 1), (1, 0))),
            kind=self._many_ranks if is_shared else _ONE_RANK,
            shares=is_shared,
        )

    def open_counters(self, publisher: str) -> PublisherCounters:
        """In place of the class, so that they outlive their bridges."""
        self.counters[publisher].append(PublisherCounters(publisher))
        return self.counters[publisher][-1]

    # Steps

    def steps(self) -> list[tuple[int, Step]]:
        """What may happen, with weights."""
        return [
            (30, self.request),
            (1, self.clear),
            (4, self.be_odd),
            (2, self.announce_again),
            (2, self.restart),
            (2, self.cut_links),
            (1, self.lose_messages),
            (1, self.lose_replies),
            *(self._harsh_steps() if self.harsh else ()),
        ]

    def _harsh_steps(self) -> list[tuple[int, Step]]:
        return [
            (3, self.lose_messages),
            (3, self.cut_links),
            (2, self.restart),
            (2, self.lose_replies),
            (2, self.spoil),
        ]

    async def take_steps(
        self, steps: Iterable[tuple[int, Step]], between: Step = lambda: None
    ) -> None:
        """Takes some tens of steps, with pauses between, each followed by a look."""
        weights, choices = zip(*steps, strict=True)
        for _ in range(self.rng.randint(40, 80)):
            self.rng.choices(choices, weights)[0]()
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.02, 0.2, 1.0)))
            between()

    def later(self, most_s: float, what: str, do: Callable[[], object]) -> None:
        """Does something at some time, which may be any await of any process."""
        assert most_s <= FAULTS_S

        def run() -> None:
            if what:
                self.history.note(what)
            do()

        self.loop.call_later(self.rng.random() * most_s, run)

    def request(self) -> None:
        """A few requests to one engine."""
        engine = self.rng.choice(self.engines)
        for _ in range(self.rng.choice((1, 1, 2, 6))):
            self.serve(engine)

    def serve(self, engine: SimulatedEngine) -> None:
        """One request to this engine, where it is up."""
        if not engine.up:
            return
        base, blocks = self.rng.randint(0, 3), self.rng.randint(1, 6)
        prompt = [1000 * base + place for place in range(4 * blocks)]
        prompt += [self.rng.randint(0, 5)] * 4
        self.history.note(f"engine {engine.number} sends {engine.sequence}")
        engine.serve(prompt)

    def be_odd(self) -> None:
        """What an engine sends next is not as its release has it."""
        engine = self.odd.choice(self.engines)
        oddity = self.odd.choice(engine.oddities)
        self.history.note(f"engine {engine.number} is odd next: {oddity.name} of {oddity.tag}")
        engine.be_odd(oddity)

    def announce_again(self) -> None:
        """An engine says of what it holds that it does."""
        engine = self.odd.choice(self.engines)
        if engine.up and engine.announce_again():
            self.history.note(f"engine {engine.number} has announced again at {engine.sequence}")

    def clear(self) -> None:
        """An engine forgets all."""
        engine = self.rng.choice(self.engines)
        if engine.up:
            self.history.note(f"engine {engine.number} clears at {engine.sequence}")
            engine.clear()

    def restart(self) -> None:
        """An engine dies, and comes back after a while."""
        engine = self.rng.choice(self.engines)
        if engine.up:
            self.stop(engine)
            self.later(3.0, f"engine {engine.number} is back", lambda: self.start(engine))

    def stop(self, engine: SimulatedEngine) -> None:
        """The engine dies, and what it holds with it."""
        self.history.note(f"engine {engine.number} stops at {engine.sequence}")
        engine.stop()

    def start(self, engine: SimulatedEngine) -> None:
        """The engine is back, and links come up one by one."""
        engine.start()
        for link in [link for one in engine.ranks for link in one.links]:
            self.later(1.0, "", link.set_up_with_engine)

    def starve(self, process: Process, subscriber: SimulatedSubscriber | None) -> None:
        """Others have the cores of a process: its own, its sockets' thread, or both."""
        rng = self.starving
        seconds = rng.choice((1.0, 4.0, FAULTS_S - 1.0))
        whose = rng.choice(("loop", "sockets", "loop and sockets"))
        self.history.note(f"{process.name} gets no core for its {whose}, for {seconds:g} s")
        if "loop" in whose:
            self.loop.starve(process, seconds, rng)
        if "sockets" in whose and subscriber is not None:
            subscriber.starve(seconds)

    def cut_links(self) -> None:
        """An engine's links go down, and come back."""
        engine = self.rng.choice(self.engines)
        self.history.note(f"links of engine {engine.number} are cut at {engine.sequence}")
        for link in engine.links:
            link.set_up(False)
            self.later(3.0, "", link.set_up_with_engine)

    def lose_messages(self) -> None:
        """An engine's links lose messages for a while without going down."""
        engine = self.rng.choice(self.engines)
        self.history.note(f"links of engine {engine.number} lose messages")
        links = list(engine.links)
        for link in links:
            link.loss = 0.3
        self.later(1.0, f"links of engine {engine.number} are sound", lambda: _make_sound(links))

    def spoil(self) -> None:
        """What an engine sends next cannot be read, in part or at all."""
        engine = self.rng.choice(self.engines)
        how = self.rng.choice(tuple(Spoilt))
        self.history.note(f"engine {engine.number} sends an {how} next")
        engine.spoil_next(how)

    def lose_replies(self) -> None:
        """Replays lose replies for a while."""
        if not self.covered:
            self.history.note("replays are lossy")
            self.replays.loss = 0.3
            self.later(2.0, "replays are sound", self._make_replays_sound)

    def _make_replays_sound(self) -> None:
        self.replays.loss = 0.0

    def forget(self, process: Process) -> None:
        """The process is dead: its links are gone."""
        for engine in self.engines:
            engine.links = [one for one in engine.links if one.process is not process]

    # The end

    def heal(self) -> None:
        """Every engine is up, and every link."""
        self._make_replays_sound()
        for engine in self.engines:
            if not engine.up:
                engine.start()
            _make_sound(engine.links)
            for link in engine.links:
                link.set_up_with_engine()

    def clear_all(self) -> None:
        """Each engine forgets all: nothing is left to be in doubt of."""
        for engine in self.engines:
            engine.clear()

    def send_last(self) -> None:
        """Each engine sends once more: that shows what was lost before."""
        for engine in self.engines:
            self.serve(engine)


def _make_sound(links: Iterable[Link]) -> None:
    for link in links:
        link.loss = 0.0


def check_engine(
    fold: Fold,
    engine: SimulatedEngine,
    records: Iterable[Record],
    *,
    registered: bool,
    registrations: int,
    covered: bool,
    counters: Mapping[str, Sequence[PublisherCounters]],
    known: bool = True,
    retired: int = 0,
) -> bool | None:
    """What a fold of the records says of an engine is the truth, or that it may not be; where the
    engine is `covered`, the truth. And no more is withdrawn than has to be: each incarnation in the
    log has a cause, which is a life of the engine of which something was received, or one of its
    `registrations` but the first, or that the log was `retired` before bridges had noted all of it.
    The ledger equals the loss; `known`: the records are all that there have ever been.

    Returns:
        Whether the log has all batches from the last one on that cleared its cache; None where that
        cannot be known.
    """
    own = [one for one in records if one.publisher == engine.publisher]
    numbers = {one.incarnation for one in own if hasattr(one, "incarnation")}
    # Those behind a retirement go on from a higher number.
    incarnations = len(numbers) - retired if retired else max(numbers, default=0)
    assert incarnations <= max(engine.lives_heard, 1) + max(registrations - 1, 0), (
        f"of engine {engine.number} {engine.lives_heard} lives were heard and {registrations}"
        f" registrations made, but the log has {incarnations} incarnations"
    )
    if engine.hid_a_restart(one for one in own if isinstance(one, EventsRecord | GapRecord)):
        return None
    name = f"engine {engine.number}"
    found = held_by(fold, engine)
    if not registered:
        assert not found, f"{name} is not registered, but in the table"
        return None
    assert engine.publisher in fold.registrations, f"the log does not have that {name} is there"
    check_ledger(fold, engine, own, known=known, covered=covered)
    state = fold.publishers.get(engine.publisher)
    wrong = f"{engine.describe(found)}, {state}"
    reasons = reasons_of(state)
    gaps = [one for one in own if isinstance(one, GapRecord) and one.reason != Spoilt.BATCH]
    covered = covered and not any(life == engine.life for life, _ in engine.spoilt)
    assert (
        not covered or state is None or all(one.incarnation < state.incarnation for one in gaps)
    ), f"a gap although the buffer covers all: {wrong}"
    assert reasons or found == engine.held(), f"not degraded, and wrong: {wrong}"
    check_counted(engine, own, counters[engine.registration.service_key])
    whole = is_whole(own, engine, state)
    known = known or engine.cleared_at > 0
    assert whole or not covered, f"not whole although the buffer covers all: {wrong}"
    if known and not whole:
        assert LOST in reasons, f"batches are lost, and nothing says so: {wrong}"
    elif known:
        assert reasons == engine.announced.reasons, f"degraded for other reasons: {wrong}"
        assert engine.announced.is_lost or found == engine.announced.held, f"wrong: {wrong}"
    return whole if known else None
