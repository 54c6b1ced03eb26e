"""When outcomes contradict the index, and when misses say nothing of it."""

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from lab.engines.cache import BlockChain, CacheSizes, EngineCache
from lab.engines.wire import BlockRemoved, BlockStored
from routing.costs import Costs
from routing.observed.contradictions import QUIET_S, OutcomeContradictions
from routing.observed.observations import Observations
from routing.observed.predicted_blocks import PREDICTED_S
from routing.policies.decide import model_of_costs
from schemas.identities import PublisherKey, StreamKey
from schemas.limits import OUTCOMES_MIN
from schemas.routing_records import (
    CandidateRecord,
    FeedbackReport,
    OutcomeEvent,
    PrefixMark,
    Target,
    UnregisteredEngine,
    marks_at,
)
from streams.table.scope_states import Contradiction
from tests.unit.routing.observed.records import RUN, SCOPE, a_decision, an_outcome, marks_of

BLOCK = SCOPE.block_size
COSTS = Costs(prefill_tokens_per_s=8000.0, token_squared_s=0.0)
A, B = (PublisherKey(StreamKey("default", "llama", BLOCK, "", name), 0) for name in "ab")


class Told:
    """Requests that go to one instance, each when it has nothing to do."""

    def __init__(self) -> None:
        self.seen = Observations()
        self.now = 600.0
        self.gap_s = 2 * QUIET_S
        self._number = itertools.count()

    def tell(
        self, times: int, *, promised: int, cached: int, prompt: int = 1600, **given: Any
    ) -> None:
        fields: dict[str, Any] = {"cached": promised, "prefix": promised, "gpu": promised}
        fields |= {name: given.pop(name) for name in list(given) if name in _OF_CANDIDATE}
        more = {name: given.pop(name) for name in list(given) if name in _OF_OUTCOME}
        for _ in range(times):
            number = next(self._number)
            self.now += self.gap_s
            self.seen.advance(self.now)
            candidates = [CandidateRecord("a", 0, **fields), CandidateRecord("b", 0)]
            self.seen.decided(
                RUN,
                a_decision(
                    number,
                    prompt=prompt,
                    candidates=candidates,
                    held=promised,
                    costs=(model_of_costs(COSTS),),
                    **given,
                ),
            )
            told = an_outcome(number, OutcomeEvent.COMPLETED, cached_tokens=cached, **more)
            self.seen.reported(RUN, told)

    @property
    def found(self) -> dict[PublisherKey, Contradiction]:
        return dict(self.seen.contradictions.current.publishers)


_OF_OUTCOME = {"instance_id", "prompt_tokens", "ttft_s"}
_OF_CANDIDATE = {"predicted", "gpu", "wait_s", "fetch_from", "prefix"}


@pytest.fixture
def told() -> Told:
    return Told()


LESS, MORE, RIGHT = (
    {"promised": 1200, "cached": 0},
    {"promised": 0, "cached": 1200},
    {"promised": 1200, "cached": 1200},
)


@pytest.mark.parametrize("ttft_s", [None, 0.1, 0.39])
def test_a_first_token_in_time_is_of_a_prompt_that_was_computed_at_once(
    told: Told, ttft_s: float | None
) -> None:
    told.tell(OUTCOMES_MIN, **LESS, ttft_s=ttft_s)
    assert set(told.found) == {A}


@pytest.mark.parametrize("wrong", [LESS, MORE, {**LESS, "prompt_tokens": 1600}])
def test_it_begins_with_enough_outcomes_and_ends_with_as_many_that_agree(
    told: Told, wrong: dict[str, Any]
) -> None:
    told.tell(OUTCOMES_MIN - 1, **wrong)
    assert told.found == {}
    told.tell(1, **wrong)
    since = {A: Contradiction(told.now)}
    assert told.found == since
    told.now += 7200.0  # silence says nothing
    told.tell(OUTCOMES_MIN - 1, **RIGHT)
    assert told.found == since
    told.tell(1, **RIGHT)
    assert told.found == {}


@pytest.mark.parametrize(
    "outcome",
    [
        {**LESS, "state": "stale"},
        {**LESS, "state": "stale", "is_sure": True},
        {**LESS, "state": "degraded"},
        {**LESS, "state": "unconfirmed"},
        {**LESS, "state": "unconfirmed", "is_sure": True, "scope": SCOPE._replace(lora_name="x")},
        {**LESS, "wait_s": 0.001},  # others' blocks may have taken the place of its own
        {**LESS, "predicted_s": 2 * QUIET_S},  # of the prompt before it
        {**LESS, "predicted": 1200},
        {**MORE, "instance_id": "b"},
        {**LESS, "ttft_s": 0.5},  # it had to wait behind others'
        {**LESS, "prompt_tokens": 1601},  # of other tokens than were asked about
        {**LESS, "decode": 1},
        {**LESS, "is_approximate": True},
        {**LESS, "fetch_from": "b", "prefix": 1400},
        {"prompt": 100, "promised": 96, "cached": 80},  # one block
        {"prompt": 100, "promised": 80, "cached": 96},
        {"promised": 1200, "cached": 1060},  # 7 %, without the block
        {"promised": 1200, "cached": 1340},
        {"promised": 0, "cached": 0},
    ],
)
def test_misses_that_say_nothing_of_the_index_are_left_out(
    told: Told, outcome: dict[str, Any]
) -> None:
    told.tell(3 * OUTCOMES_MIN, **outcome)
    assert told.found == {}


@pytest.mark.parametrize("times", [3.0, 0.99])
def test_who_computes_or_did_so_a_moment_ago_is_not_tested(told: Told, times: float) -> None:
    """By decisions, and by reports of first tokens that came late."""
    told.gap_s = times * QUIET_S
    for _ in range(3 * OUTCOMES_MIN):
        told.tell(1, **LESS, predicted_s=0.0)
        if times == 3.0:
            told.seen.decided(RUN, a_decision(1_000_000 + int(told.now * 100), prompt=1600))
            told.seen.advance(told.now + 2.5 * QUIET_S)
            late = an_outcome(1_000_000 + int(told.now * 100), OutcomeEvent.FIRST_TOKEN)
            told.seen.reported(RUN, late)
    assert told.found == {}


def test_what_says_nothing_does_not_end_it(told: Told) -> None:
    told.tell(OUTCOMES_MIN, **LESS)
    told.tell(3 * OUTCOMES_MIN, promised=0, cached=0)
    told.tell(3 * OUTCOMES_MIN, promised=1200, cached=1200, wait_s=0.1)
    told.tell(3 * OUTCOMES_MIN, promised=1200, cached=1200, state="degraded")
    assert set(told.found) == {A}


def test_answers_that_it_made_unconfirmed_are_tests_of_it(told: Told) -> None:
    told.tell(OUTCOMES_MIN, **LESS)
    told.tell(2 * OUTCOMES_MIN, **LESS, state="unconfirmed", is_sure=True)
    assert set(told.found) == {A}
    told.tell(OUTCOMES_MIN, **RIGHT, state="unconfirmed", is_sure=True)
    assert told.found == {}


def test_answers_about_its_adapters_that_it_made_unconfirmed_end_it(told: Told) -> None:
    adapter = SCOPE._replace(lora_name="x")
    told.tell(OUTCOMES_MIN, **LESS, scope=adapter)
    told.tell(OUTCOMES_MIN, **RIGHT, scope=adapter, state="unconfirmed", is_sure=True)
    assert told.found == {}


@pytest.mark.parametrize("state", ["unconfirmed", "degraded"])
def test_a_neighbour_of_which_something_is_doubted_silences_nothing(told: Told, state: str) -> None:
    told.tell(OUTCOMES_MIN, **LESS, state=state, is_sure=True)
    assert set(told.found) == {A}


def test_a_neighbour_that_is_contradicted_makes_no_test_of_what_is_doubted(told: Told) -> None:
    told.tell(OUTCOMES_MIN, **LESS)
    told.tell(OUTCOMES_MIN, **MORE, state="unconfirmed", chosen=1)
    assert set(told.found) == {A}
    told.tell(OUTCOMES_MIN, **MORE, state="unconfirmed", chosen=1, is_sure=True)
    assert set(told.found) == {A, B}


def test_one_long_prompt_is_no_pattern(told: Told) -> None:
    short: dict[str, int] = {"promised": 16, "cached": 16, "prompt": 20}
    for _ in range(3):
        told.tell(18, **short)
        told.tell(2, **LESS)
    assert told.found == {}
    told.tell(17, **short)
    told.tell(3, **LESS)
    assert set(told.found) == {A}


def test_a_silent_zero_that_predictions_hide_is_told_from_a_burst_of_new_prompts(
    told: Told,
) -> None:
    hidden: dict[str, Any] = {"promised": 1200, "cached": 1200, "predicted": 1200}
    for minute in (10, 11):
        told.now = 60.0 * minute
        told.tell(2 * OUTCOMES_MIN, **hidden)
        assert told.found == {}
    told.now = 60.0 * 12
    told.tell(1, **hidden)
    assert set(told.found) == {A}


def hidden(told: Told, marks: tuple[PrefixMark, ...], **given: Any) -> None:
    """The engine finds 1,200 tokens, of which the index has 160, and decisions foretold all."""
    promised: dict[str, Any] = {"promised": 1200, "cached": 1200, "predicted": 1040, "gpu": 160}
    told.tell(1, **promised | given, marks=marks)


def test_what_only_decisions_promised_is_a_surprise_once_events_should_have_told_it(
    told: Told,
) -> None:
    """A prefix that is asked for again and again is always foretold."""
    beginning = marks_of((1, 1), (10, 10), (75, 75))
    told.tell(1, promised=160, cached=160, marks=(*beginning, *marks_of((99, 1000))))
    for number in range(OUTCOMES_MIN - 2):
        hidden(told, (*beginning, *marks_of((99, 1001 + number))))
        told.seen = Observations.load(told.seen.dump())
    assert told.found == {}
    hidden(told, (*beginning, *marks_of((99, 2000))))
    assert set(told.found) == {A}


def test_what_the_index_has_learned_meanwhile_is_not_overdue(told: Told) -> None:
    """It was evicted since, and computed again."""
    marks = marks_of((1, 1), (10, 10), (75, 75))
    for _ in range(3 * OUTCOMES_MIN):
        told.tell(1, **RIGHT, marks=marks)
        hidden(told, marks)
        hidden(told, marks)
    assert told.found == {}


def test_prompts_that_are_new_to_the_index_are_not_overdue(told: Told) -> None:
    for number in range(OUTCOMES_MIN):
        marks = marks_of((1, number + 1), (75, number + 1001))
        for _ in range(round(PREDICTED_S / told.gap_s)):
            hidden(told, marks)
        told.now += 2 * PREDICTED_S
    assert told.found == {}


@pytest.mark.parametrize(("cached", "is_below"), [(400, True), (100, False)])
def test_what_was_missed_below_the_gpu_is_told_apart(
    told: Told, cached: int, is_below: bool
) -> None:
    told.tell(OUTCOMES_MIN, promised=1200, cached=cached, gpu=400)
    assert told.found == {A: Contradiction(told.now, is_below)}


def test_adapters_count_with_their_model_and_other_streams_apart(told: Told) -> None:
    told.tell(OUTCOMES_MIN // 2, **LESS, scope=SCOPE._replace(lora_name="one"))
    told.tell(OUTCOMES_MIN // 2 - 1, **LESS, scope=SCOPE._replace(lora_name="two"))
    for other in ({"additional_salt": "s"}, {"tenant_id": "t"}, {"block_size": 8}):
        told.tell(1, **LESS, scope=SCOPE._replace(**other))
    assert told.found == {}
    told.tell(1, **LESS)
    assert set(told.found) == {A}


def test_who_is_registered_no_more_is_contradicted_no_more(told: Told) -> None:
    told.tell(OUTCOMES_MIN, **LESS)
    told.tell(OUTCOMES_MIN - 1, **LESS)
    for target, model in ((Target("default", "b", 0), "llama"), (Target("default", "a", 0), "m")):
        told.seen.forget([UnregisteredEngine(target, model)])
        assert set(told.found) == {A}
    told.seen.forget([UnregisteredEngine(Target("default", "a", 0), "llama")])
    assert told.found == {}
    told.tell(1, **LESS)
    assert told.found == {}


def test_a_checkpoint_has_it_and_what_is_not_judged_yet(told: Told) -> None:
    told.tell(OUTCOMES_MIN, **LESS)
    told.tell(OUTCOMES_MIN - 1, **RIGHT)
    dumped = told.seen.dump()
    told.seen = Observations.load(dumped)
    assert told.seen.dump() == dumped
    assert set(told.found) == {A}
    told.tell(1, **RIGHT)
    assert told.found == {}


def test_the_least_recent_that_is_not_contradicted_goes_and_is_counted() -> None:
    told = Told()
    told.seen.contradictions = OutcomeContradictions(most=2)
    told.tell(OUTCOMES_MIN, **LESS, scope=SCOPE._replace(additional_salt="x"))
    told.tell(OUTCOMES_MIN - 1, **LESS, scope=SCOPE._replace(additional_salt="y"))
    told.tell(OUTCOMES_MIN, **LESS, scope=SCOPE._replace(additional_salt="z"))
    assert {one.stream.additional_salt for one in told.found} == {"x", "z"}
    assert told.seen.forgotten["outcome_windows"] == 1
    told.tell(OUTCOMES_MIN, **LESS, scope=SCOPE._replace(additional_salt="y"))
    assert {one.stream.additional_salt for one in told.found} == {"x", "z"}
    assert told.seen.forgotten["outcome_windows"] == 1 + OUTCOMES_MIN


# Histories of engines with caches that are too small for what is asked of them


class Lab(NamedTuple):
    """What a history is made of.

    Attributes:
        blocks: of each engine's GPU.
        lag_s: until an event is in the index.
        gap_s: between two requests, mean.
        burst: every other fifty requests come so many times faster.
        loses_every: so often an engine loses the half of its cache unseen; 0: never.
        foretells: what decisions foretell counts as held, as in answers.
    """

    blocks: int
    lag_s: float = 0.05
    gap_s: float = 0.12
    burst: int = 1
    loses_every: int = 0
    foretells: bool = False


class Engines:
    """Engines that compute one prompt after the other, and an index of their events."""

    TOKENS_PER_S = 20_000.0

    def __init__(self, seed: int, lab: Lab) -> None:
        self.chance, self.lab = random.Random(seed), lab
        self.chain = BlockChain(BLOCK, root=b"")
        sizes = CacheSizes(BLOCK, lab.blocks)
        self.caches = {name: EngineCache(sizes, chain=self.chain) for name in "ab"}
        self.free_at = dict.fromkeys(self.caches, 0.0)
        self.index: dict[str, set[int]] = {name: set() for name in self.caches}
        self.seen = Observations()
        self.tests = 0
        self.now = 0.0
        self.talks = [[10_000 * one] * BLOCK * 20 for one in range(40)]
        self._numbers = itertools.count()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def later(self, at: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._later, (at, next(self._order), what))

    def run(self, requests: int) -> Iterator[int]:
        """Yields how many streams are contradicted behind each request."""
        for number in itertools.islice(self._numbers, requests):
            faster = self.lab.burst if number // 50 % 2 else 1
            self.now += self.chance.expovariate(faster / self.lab.gap_s)
            while self._later and self._later[0][0] <= self.now:
                heapq.heappop(self._later)[2]()
            talks = self.talks
            talk = self.chance.randrange(len(talks))
            talks[talk] += [10_000 * talk + number + 1] * self.chance.randrange(10, 200)
            if len(talks[talk]) > 3_000:
                talks[talk] = [10_000 * talk + number + 1] * BLOCK * 20
            if self.lab.loses_every and number % self.lab.loses_every == 0:
                self._lose(self.chance.choice("ab"))
            self._request(number, self.now, list(talks[talk]))
            yield len(self.seen.contradictions.current.publishers)

    def _request(self, number: int, now: float, prompt: list[int]) -> None:
        hashes = self.chain.hashes(prompt)
        indexed = {name: self._held(name, hashes) for name in self.caches}
        foretold = self.seen.predicted.longest(SCOPE, hashes, now) if self.lab.foretells else {}
        blocks = {target.instance_id: BLOCK * depth for target, depth in foretold.items()}
        held = {name: max(indexed[name], blocks.get(name, 0)) for name in self.caches}
        wait = {name: max(self.free_at[name] - now, 0.0) for name in self.caches}
        names = list(self.caches)
        chosen = min(
            names, key=lambda name: wait[name] + (len(prompt) - held[name]) / self.TOKENS_PER_S
        )
        candidates = [
            CandidateRecord(
                name,
                0,
                cached=held[name],
                gpu=indexed[name],
                predicted=held[name] - indexed[name],
                wait_s=wait[name],
            )
            for name in names
        ]
        depths = marks_at(len(hashes), max(held.values()) // BLOCK)
        self.seen.advance(now)
        self.seen.decided(
            RUN,
            a_decision(
                number,
                prompt=len(prompt),
                candidates=candidates,
                chosen=names.index(chosen),
                state="unconfirmed" if self.seen.contradictions.current.publishers else "exact",
                is_sure=True,
                costs=(model_of_costs(COSTS),),
                predicted_s=wait[chosen] + (len(prompt) - held[chosen]) / self.TOKENS_PER_S,
                held=max(held.values()),
                marks=marks_of(*((depth, hashes[depth - 1]) for depth in depths)),
            ),
        )
        ran = self.caches[chosen].run(prompt)  # in the order of its queue
        computed_s = (len(prompt) - ran.cached_tokens) / self.TOKENS_PER_S
        begun = now + wait[chosen]
        self.free_at[chosen] = begun + computed_s
        self.later(begun + self.lab.lag_s, lambda: self._fold(chosen, ran.events))
        at, told = begun + computed_s, an_outcome(number, cached_tokens=ran.cached_tokens)
        self.later(at, lambda: self._report(at, told))

    def _report(self, at: float, told: FeedbackReport) -> None:
        promise = self.seen.open.find(RUN, told.number)
        self.tests += promise is not None and promise.test_s > 0
        self.seen.advance(at)
        self.seen.reported(RUN, told)

    def _held(self, name: str, hashes: list[int]) -> int:
        held = itertools.takewhile(self.index[name].__contains__, hashes)
        return BLOCK * sum(1 for _ in held)

    def _fold(self, name: str, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, BlockStored):
                self.index[name].update(map(int, event.block_hashes))
            elif isinstance(event, BlockRemoved):
                self.index[name].difference_update(map(int, event.block_hashes))

    def _lose(self, name: str) -> None:
        gpu = self.caches[name]._gpu
        for _ in range(len(gpu) // 2):
            gpu.popitem(last=False)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "lab",
    [
        *(Lab(4000), Lab(600), Lab(600, lag_s=0.2), Lab(600, burst=20)),
        Lab(300, lag_s=0.2, burst=10),
        *(Lab(4000, foretells=True), Lab(300, lag_s=0.2, burst=10, foretells=True)),
        Lab(300, lag_s=0.2, gap_s=0.6, foretells=True),
    ],
    ids=str,
)
def test_healthy_engines_are_never_contradicted_however_small_their_caches(
    lab: Lab, seed: int
) -> None:
    engines = Engines(seed, lab)
    assert set(engines.run(1_500)) == {0}
    assert engines.tests > 100
    if lab.burst > 1:  # what was promised had to wait, and went
        noted = engines.seen.totals.noted
        assert noted.missing > 0.05 * noted.prompt


@pytest.mark.parametrize("seed", range(8))
def test_engines_that_lose_blocks_unseen_are_contradicted_until_they_lose_none(seed: int) -> None:
    engines = Engines(seed, Lab(4000, gap_s=0.2, loses_every=20))
    found = list(engines.run(600))
    assert max(found[:250]) > 0, "behind some sixty outcomes of each that test it"
    assert max(found) == 2
    engines.lab = engines.lab._replace(loses_every=0)
    assert list(engines.run(600))[-1] == 0
