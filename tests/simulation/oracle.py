"""Which states of publishers may be answered, by what their engines hold and have sent."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from bridge.publisher.counters import PublisherCounters
from schemas.answer_states import AnswerState, Doubt, Standing
from schemas.identities import PublisherKey
from schemas.limits import STALE_S
from schemas.positions import PublisherState
from schemas.records import Record
from schemas.registration import facts_of
from tests.simulation.announced import COPIES_UNKNOWN, LOST
from tests.simulation.engines import SimulatedEngine
from tests.simulation.ledgers import told_by


def reasons_of(state: PublisherState | None) -> set[str]:
    """Why a table has the publisher as degraded."""
    if state is None:
        return set()
    if state.degraded_since is not None:
        return {LOST}
    return {reason.partition(":")[0] for reason in state.left_out}


_TOLD_WITHIN_S: Final = STALE_S + 2.0
"""For how long an answer may not know yet that a rank is missing that was heard of."""


class StateOracle:
    """Looks at the states of publishers through a whole history.

    Args:
        engines: those that there are.
        clock: seconds.

    Attributes:
        states: that it has seen.
    """

    def __init__(self, engines: Iterable[SimulatedEngine], clock: Callable[[], float]) -> None:
        self.states: Counter[AnswerState] = Counter()
        self._clock = clock
        self._missing: dict[tuple[PublisherKey, PublisherKey], float] = {}
        self._engines = {engine.publisher: engine for engine in engines}

    def look(
        self,
        publishers: Iterable[PublisherKey],
        standing: Callable[[PublisherKey], Standing],
        held: Callable[[SimulatedEngine], AbstractSet[int]],
        *,
        registered: AbstractSet[PublisherKey],
    ) -> None:
        """No publisher is `exact` whose blocks are not what its engine had, and an index can know,
        at some time of the last STALE_S; none is while a rank is missing that came in its stream.
        """
        for publisher in publishers:
            engine, state = self._engines[publisher], standing(publisher).state
            missing_s = self._missing_s(engine, registered)
            self.states[state] += 1
            if state is not AnswerState.EXACT or engine.lost_unseen:
                continue
            found = held(engine)
            assert engine.was_so(found, within_s=STALE_S), (
                f"exact and wrong: {engine.describe(found)}"
            )
            assert missing_s <= _TOLD_WITHIN_S, (
                f"exact, but a rank is missing for {missing_s:.1f} s: {engine.describe(found)}"
            )

    def _missing_s(self, engine: SimulatedEngine, registered: AbstractSet[PublisherKey]) -> float:
        """For how long a rank has been missing."""
        now, longest = self._clock(), 0.0
        if _counts_by_rank(engine):
            return 0.0
        for other, since in engine.heard_ranks.items():
            pair = engine.publisher, other
            if other in registered:
                self._missing.pop(pair, None)
                continue
            begun = max(since, self._missing.setdefault(pair, now))
            longest = max(longest, now - begun)
        return longest

    def rest(
        self,
        whole: Mapping[PublisherKey, bool | None],
        standing: Callable[[PublisherKey], Standing],
    ) -> None:
        """What must be answered once nothing is under way: what has a cause, and only that.

        Args:
            whole: by who is registered, see `check_engine`.
            standing: what is answered.
        """
        for publisher, is_whole in whole.items():
            engine, found = self._engines[publisher], standing(publisher)
            if is_whole is None:
                continue
            missing = engine.heard_ranks.keys() - whole.keys()
            causes = engine.announced.reasons if is_whole else {LOST}
            told = f"engine {engine.number}: {found}, but {causes or 'nothing'} in doubt"
            if causes == {COPIES_UNKNOWN}:
                assert found.state is AnswerState.UNCONFIRMED, told
            elif causes:
                assert found.state is AnswerState.DEGRADED, told
                assert found.reason in causes, told
            elif missing and _counts_by_rank(engine):
                assert found.state in (AnswerState.EXACT, AnswerState.UNCONFIRMED), told
            elif missing:
                assert found.state is AnswerState.UNCONFIRMED, f"{told}, and a rank is missing"
            elif engine.announced.is_hybrid and is_whole:
                assert found.state is AnswerState.UNCONFIRMED, f"{told}, and it is of a hybrid"
            else:
                assert found.reason != Doubt.RANK_MISSING, told
                assert found.state in (AnswerState.EXACT, AnswerState.UNCONFIRMED), told


def _counts_by_rank(engine: SimulatedEngine) -> bool:
    """Whether a bridge that has begun since then may not have heard of its other ranks."""
    return facts_of(engine.registration.kind).counts_by_rank


def check_counted(
    engine: SimulatedEngine, records: Iterable[Record], counters: Iterable[PublisherCounters]
) -> None:
    """Whatever was odd in a batch that the log has is counted by publisher and reason.

    Args:
        engine: whose batches.
        records: its own, in order.
        counters: of it, of all bridges that there have been.
    """
    counted: Counter[str] = Counter()
    for one in counters:
        counted += one.dropped + one.passed_over
    for told in told_by(records, engine).values():
        if len(told.lives) != 1:
            continue
        [life] = told.lives
        found = Counter(
            odd.reason
            for (of, number), odd in engine.odd.items()
            if of == life and number in told.got and odd.reason and not odd.is_found_by_table
        )
        assert found <= counted, f"engine {engine.number} has sent {found}, counted is {counted}"
