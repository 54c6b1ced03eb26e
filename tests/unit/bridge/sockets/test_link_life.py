"""Who is silent, and who only looks so to a process that gets no core; over a kernel of numbers."""

import math

import pytest

from bridge.bounds import LINK_SILENT_S, LINK_UNANSWERED_MS
from bridge.sockets.link_life import LinkLife
from bridge.sockets.received_bytes import LinkProgress
from bridge.sockets.subscriber import LINKS_LOOK_S
from schemas.limits import LINK_HEARTBEAT_MS

ASKS_S = LINK_HEARTBEAT_MS / 1000
TICK_S = 0.004
"""In which the kernel counts."""


class Link:
    """What the kernel knows of a link: it receives and counts whether anybody looks or not."""

    def __init__(self) -> None:
        self.life = LinkLife()
        self.life.begin(100.0)
        self._total_bytes = 64
        self._sent_at = self._received_at = 100.0
        self.waiting_bytes = 0

    def ask(self, at: float, *, answered_after_s: float | None = 0.0001) -> None:
        """libzmq asks; the peer answers then, or not at all."""
        self._sent_at = at
        if answered_after_s is not None:
            self.come(at + answered_after_s)

    def come(self, at: float) -> None:
        """Something comes of the peer."""
        self._received_at, self._total_bytes = at, self._total_bytes + 10

    def look(self, at: float, *, until: float | None = None) -> LinkLife:
        """At it, at that time; the system has answered then, this process ran again at `until`."""

        def ago_s(of: float) -> float:
            return round((at - of) / TICK_S) * TICK_S

        seen = LinkProgress(self._total_bytes, ago_s(self._sent_at), ago_s(self._received_at))
        self.life.look(at, at if until is None else until, seen, self.waiting_bytes)
        return self.life


def test_a_peer_that_answers_is_never_silent_and_known_until_the_next_look() -> None:
    link = Link()
    for number in range(50):
        link.ask(101.0 + ASKS_S * number)
        life = link.look(101.9 + ASKS_S * number)
        assert not life.is_silent
        assert not life.is_open
        assert life.known_until > 101.9 + ASKS_S * (number + 1)


@pytest.mark.parametrize("look_s", [0.1, 0.37, LINKS_LOOK_S])
def test_a_frozen_peer_is_silent_within_2500_ms_and_no_more_once_it_speaks(look_s: float) -> None:
    link, frozen_at, asked = Link(), 110.3, 101.0
    now = 100.5
    while not link.life.is_silent:
        now += look_s
        if link.life.is_open:
            now = min(now, link.life.look_at(now - look_s))
        while asked <= now:
            link.ask(asked, answered_after_s=0.0001 if asked < frozen_at else None)
            asked += ASKS_S
        link.look(now)
        assert now < frozen_at + 2.6
    assert now >= frozen_at + LINK_SILENT_S
    assert not link.life.is_open, "nothing is to be looked for"
    link.come(now + 1.0)
    assert not link.look(now + 1.01).is_silent


def test_looks_that_come_late_are_no_silence_of_the_peer() -> None:
    """This process was stopped between a question and the look at it: the kernel has the answer."""
    link = Link()
    link.ask(101.0, answered_after_s=None)
    assert link.look(101.01).is_open, "it has not come yet"
    link.come(101.05)
    assert not link.look(105.0).is_silent
    assert link.life.asked_at is None


def test_who_was_not_asked_is_not_silent_but_not_known_to_live_either() -> None:
    """Nothing was sent for as long: whoever follows gets no core."""
    link = Link()
    link.ask(101.0)
    life = link.look(107.0)
    assert not life.is_silent
    assert life.known_until == pytest.approx(101.0 + ASKS_S + LINK_SILENT_S, abs=0.01)
    link.ask(107.001, answered_after_s=None)
    assert not link.look(107.5).is_silent, "it has not had the time to answer"
    assert link.look(107.002 + LINK_SILENT_S).is_silent


def test_a_question_is_as_old_as_the_first_that_was_not_answered() -> None:
    link = Link()
    link.ask(101.0, answered_after_s=None)
    link.look(101.5)
    link.ask(102.0, answered_after_s=None)
    assert not link.look(102.4).is_silent
    assert link.look(102.6).is_silent


def test_a_process_that_is_stopped_while_it_looks_doubts_nobody_for_it() -> None:
    link = Link()
    link.ask(101.0, answered_after_s=None)
    life = link.look(101.01, until=105.0)
    assert not life.is_silent
    link.come(101.02)
    assert not link.look(105.1).is_silent


def test_a_peer_that_goes_on_being_silent_is_unanswered_until_it_speaks() -> None:
    link = Link()
    link.ask(101.0, answered_after_s=None)
    unanswered_at = 101.0 + LINK_UNANSWERED_MS / 1000
    assert not link.look(unanswered_at - 0.1).is_unanswered
    link.ask(unanswered_at - 0.05, answered_after_s=None)
    assert link.look(unanswered_at + 0.1).is_unanswered
    link.come(unanswered_at + 0.2)
    assert not link.look(unanswered_at + 0.3).is_unanswered


def test_what_libzmq_has_not_taken_is_not_known() -> None:
    link = Link()
    link.ask(101.0)
    assert link.look(101.5).is_drained
    link.ask(102.0)
    link.waiting_bytes = 10
    life = link.look(102.5)
    assert life.is_open
    assert life.known_until == 101.5, "it had all that had come by then"
    assert link.look(103.5).known_until == 101.5
    link.waiting_bytes = 0
    assert link.look(103.6).known_until > 103.6


def test_another_link_begins_anew() -> None:
    link = Link()
    link.ask(101.0, answered_after_s=None)
    link.look(101.1)
    assert link.look(103.0).is_silent
    assert link.life.known_until == math.inf
    link.life.begin(104.0)
    assert not link.life.is_silent
    assert not link.life.is_open
