"""What follows from what an engine says over HTTP; over a clock of numbers."""

from dataclasses import dataclass, field

import pytest

from bridge.engine_http.answers import Process
from bridge.engine_http.watch import (
    PROBE_AGAIN_S,
    PROBE_FAILURES_MAX,
    PROBE_RETRY_S,
    PROCESS_AGAIN_S,
    PROCESS_CLOCK_S,
    PROCESS_RETRY_MAX_S,
    PROCESS_RETRY_S,
    EngineWatch,
    Life,
)
from bridge.link_numbers import LinkNumber
from schemas.positions import ProcessMark, Proof

ONE, TWO = Process("one", 1000.0), Process("two", 2000.0)
LAST = Proof(7, 1500.0)
NONE = Proof(-1, 0.0)


@dataclass
class Scene:
    """An engine whose publisher is in its third incarnation in the log."""

    engine: EngineWatch = field(default_factory=EngineWatch)
    now: float = 100.0
    incarnation: int = 3
    last: Proof = LAST

    def read(self, link: int, process: Process | None) -> None:
        self.engine.read(self.now, LinkNumber(link), process)

    def judge(self, link: int, *, is_proven: bool = False) -> Life:
        return self.engine.judge(LinkNumber(link), self.incarnation, self.last, is_proven=is_proven)

    def prove(self, link: int, process: Process) -> None:
        """Its batches have shown that the process over this link is of the log's incarnation."""
        self.read(link, process)
        assert self.judge(link, is_proven=True) is Life.UNKNOWN
        assert self.engine.known == ProcessMark(self.incarnation, process.mark)


def test_the_same_process_over_another_link_is_of_the_same_incarnation() -> None:
    scene = Scene()
    scene.prove(1, ONE)
    assert scene.judge(2) is Life.UNKNOWN, "it has not been asked over this link"
    scene.read(2, ONE)
    assert scene.judge(2) is Life.SAME
    assert scene.engine.known_link == 2


def test_another_process_over_another_link_is_another_incarnation() -> None:
    scene = Scene()
    scene.prove(1, ONE)
    scene.read(2, TWO)
    assert scene.judge(2) is Life.OTHER
    scene.incarnation, scene.last = 4, NONE
    scene.engine.begin(4, has_batches=True)
    assert scene.judge(2) is Life.UNKNOWN
    assert scene.engine.known == ProcessMark(4, "two")


def test_an_incarnation_without_a_batch_is_of_no_process() -> None:
    """The engine may be started again before it publishes, and not say so."""
    scene = Scene(last=NONE)
    scene.read(1, ONE)
    assert scene.judge(1) is Life.UNKNOWN
    assert scene.engine.published is None
    scene.last = LAST
    assert scene.judge(2, is_proven=True) is Life.UNKNOWN, "it has not been asked over this link"
    assert scene.engine.published is None
    scene.read(2, TWO)
    scene.last = Proof(0, TWO.started_at)
    assert scene.judge(2) is Life.UNKNOWN
    assert scene.judge(2, is_proven=True) is Life.UNKNOWN
    assert scene.engine.published == ProcessMark(3, "two")


def test_the_process_over_the_link_of_an_incarnations_first_batch_has_published_it() -> None:
    scene = Scene(last=NONE)
    scene.read(1, ONE)
    scene.judge(1)
    scene.last = LAST
    assert scene.judge(1) is Life.SAME
    assert scene.engine.published == ProcessMark(3, "one")


def test_what_the_log_says_of_the_process_counts_as_what_was_read() -> None:
    scene = Scene()
    scene.engine.remember(ProcessMark(3, "one"))
    scene.read(1, ONE)
    assert scene.judge(1) is Life.SAME
    scene.engine.remember(ProcessMark(3, "zero"))
    assert scene.judge(1) is Life.OTHER
    scene.engine.remember(ProcessMark(2, "one"))
    assert scene.judge(1) is Life.UNKNOWN, "that was another incarnation"


def test_a_process_that_began_after_the_last_batch_did_not_publish_it() -> None:
    scene = Scene()
    scene.read(1, TWO)
    assert scene.judge(1) is Life.OTHER
    scene.last = Proof(7, TWO.started_at - PROCESS_CLOCK_S)
    assert scene.judge(1) is Life.UNKNOWN, "too close to tell"
    scene.last = Proof(7, 0.0)
    assert scene.judge(1) is Life.UNKNOWN, "the time of that batch is not known"


def test_a_process_that_began_before_it_may_be_another_one_all_the_same() -> None:
    """The engine's clock may have been set back."""
    scene = Scene()
    scene.read(1, ONE)
    assert scene.judge(1) is Life.UNKNOWN
    assert scene.engine.known is None


def test_batches_prove_more_than_a_start_time_and_a_changed_front() -> None:
    scene = Scene()
    scene.prove(1, ONE)
    scene.prove(2, TWO)
    assert scene.judge(2) is Life.SAME


def test_an_address_that_names_two_processes_over_one_link_names_neither() -> None:
    scene = Scene()
    scene.prove(1, ONE)
    scene.read(1, TWO)
    assert scene.engine.is_changed
    assert scene.judge(1) is Life.CHANGED
    assert scene.judge(1, is_proven=True) is Life.CHANGED
    scene.read(1, ONE)
    assert scene.judge(1) is Life.CHANGED, "for as long as the link lasts"
    scene.read(2, ONE)
    assert not scene.engine.is_changed
    assert scene.judge(2) is Life.SAME


@pytest.mark.parametrize("is_proven", [False, True])
def test_what_was_found_over_a_link_is_not_contradicted_over_it(is_proven: bool) -> None:
    scene = Scene()
    scene.prove(1, ONE)
    scene.engine.read(scene.now, LinkNumber(2), ONE)
    assert scene.judge(2) is Life.SAME
    scene.engine.known = ProcessMark(3, "zero")
    assert not scene.engine.is_changed
    assert scene.judge(2, is_proven=is_proven) is Life.CHANGED
    assert scene.engine.is_changed


def test_a_process_that_says_the_same_again_is_the_same() -> None:
    scene = Scene()
    scene.prove(1, ONE)
    scene.read(1, ONE)
    assert not scene.engine.is_changed
    assert scene.judge(1) is Life.SAME


def test_one_batch_is_enough_to_tell_another_process() -> None:
    scene = Scene(last=Proof(0, 0.5))
    scene.read(1, TWO)
    assert scene.judge(1) is Life.OTHER


def test_a_mark_that_may_be_given_proves_another_process_and_not_the_same() -> None:
    scene = Scene()
    seed = Process("seed 7", is_given=True)
    scene.prove(1, seed)
    scene.read(2, seed)
    assert scene.judge(2) is Life.UNKNOWN
    scene.read(3, Process("seed 8", is_given=True))
    assert scene.judge(3) is Life.OTHER


def test_it_is_asked_soon_over_a_new_link_and_now_and_then_over_one_that_has_told() -> None:
    engine = EngineWatch()
    assert engine.reads_at(LinkNumber(1)) == 0.0
    engine.read(100.0, LinkNumber(1), ONE)
    assert engine.reads_at(LinkNumber(1)) == 100.0 + PROCESS_AGAIN_S
    assert engine.reads_at(LinkNumber(2)) == 0.0


def test_one_that_does_not_say_is_asked_less_and_less_often() -> None:
    engine = EngineWatch()
    waits = []
    for _ in range(8):
        engine.read(100.0, LinkNumber(1), None)
        waits.append(engine.reads_at(LinkNumber(1)) - 100.0)
        assert engine.reads_at(LinkNumber(2)) == 0.0, "over another link it may be another release"
    assert waits[:3] == [PROCESS_RETRY_S, 2 * PROCESS_RETRY_S, 4 * PROCESS_RETRY_S]
    assert waits[-1] == waits[-2] == PROCESS_RETRY_MAX_S


def test_once_it_has_told_it_is_asked_soon_again_where_it_does_not() -> None:
    engine = EngineWatch()
    for _ in range(3):
        engine.read(100.0, LinkNumber(1), None)
    engine.read(100.0, LinkNumber(1), ONE)
    engine.read(100.0, LinkNumber(2), None)
    assert engine.reads_at(LinkNumber(2)) == 100.0 + PROCESS_RETRY_S


def test_of_an_engine_that_was_never_asked_nothing_is_known() -> None:
    engine = EngineWatch()
    assert not engine.has_read(LinkNumber(0))
    assert not engine.is_away
    assert not engine.is_changed
    assert engine.probes_at == 0.0
    assert engine.known_link == 0
    assert engine.judge(LinkNumber(0), 3, LAST, is_proven=False) is Life.UNKNOWN
    for _ in range(PROBE_FAILURES_MAX - 1):
        engine.probed(100.0, is_there=False)
    assert not engine.is_away
    engine.probed(100.0, is_there=False)
    assert engine.is_away
    engine.heard()
    for _ in range(PROBE_FAILURES_MAX - 1):
        engine.probed(100.0, is_there=False)
    assert not engine.is_away


def test_it_is_away_once_it_has_not_answered_twice_until_it_is_heard_of() -> None:
    engine = EngineWatch()
    engine.probed(100.0, is_there=True)
    assert engine.probes_at == 100.0 + PROBE_AGAIN_S
    for failures in range(PROBE_FAILURES_MAX):
        assert engine.is_away == (failures >= PROBE_FAILURES_MAX)
        engine.probed(100.0, is_there=False)
        assert engine.probes_at == 100.0 + PROBE_RETRY_S
    assert engine.is_away
    engine.heard()
    assert not engine.is_away
    for _ in range(PROBE_FAILURES_MAX):
        engine.probed(100.0, is_there=False)
    engine.probed(100.0, is_there=True)
    assert not engine.is_away


@pytest.mark.parametrize("last", [LAST, NONE])
def test_nothing_is_said_where_nothing_was_read(last: Proof) -> None:
    scene = Scene(last=last)
    assert scene.judge(1) is Life.UNKNOWN
    assert scene.judge(1, is_proven=True) is Life.UNKNOWN
    assert scene.engine.known is None
