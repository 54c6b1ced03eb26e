"""The last instance of a session, and when it is preferred."""

import msgspec
import pytest

from routing.interface import Candidate, Choice
from routing.observed.sessions import AFFINITY_S, Sessions, SessionsState, with_affinity
from schemas.routing_records import CandidateRecord, Target
from tests.unit.routing.observed.records import SCOPE, a_decision

A, B = Target("default", "a", 0), Target("default", "b", 0)


def decide(sessions: Sessions, time: float, session: str, instance: str = "a") -> None:
    sessions.decided(
        time, a_decision(session_id=session, candidates=[CandidateRecord(instance, 0)])
    )


def test_the_last_request_of_a_session_says_where_it_is() -> None:
    sessions = Sessions()
    decide(sessions, 0.0, "s", "a")
    decide(sessions, 1.0, "s", "b")
    assert sessions.last("default", "s", 2.0) == (1.0, B)
    assert sessions.last("default", "other", 2.0) is None


def test_a_session_is_forgotten_in_its_time() -> None:
    sessions = Sessions()
    decide(sessions, 0.0, "s")
    assert sessions.last("default", "s", AFFINITY_S - 1) == (0.0, A)
    assert sessions.last("default", "s", AFFINITY_S) is None
    decide(sessions, AFFINITY_S, "t")
    assert len(sessions) == 1


def test_a_decision_without_a_session_or_a_target_is_of_none() -> None:
    sessions = Sessions()
    decide(sessions, 0.0, "")
    sessions.decided(0.0, a_decision(session_id="s", chosen=-1))
    sessions.decided(0.0, a_decision(session_id="s", chosen=9))
    assert len(sessions) == 0


def test_of_a_prompt_that_is_only_decoded_the_decoding_instance_is_the_last() -> None:
    sessions = Sessions()
    sessions.decided(0.0, a_decision(session_id="s", chosen=-1, decode=0))
    assert sessions.last("default", "s", 0.0) == (0.0, A)


def test_more_sessions_than_there_is_room_for_lose_the_one_that_was_quiet_for_longest() -> None:
    sessions = Sessions(most=2)
    for name in ("s", "t", "s", "u"):
        decide(sessions, 0.0, name)
    assert sessions.last("default", "t", 0.0) is None
    assert sessions.last("default", "s", 0.0) == (0.0, A)
    assert (len(sessions), sessions.forgotten) == (2, 1)


def test_sessions_come_back_from_their_bytes_in_their_order() -> None:
    sessions = Sessions(most=2)
    for name in ("s", "t", "s"):
        decide(sessions, 0.0, name)
    again = Sessions(most=2)
    encoded = msgspec.msgpack.encode(sessions.state())
    again.restore(msgspec.msgpack.decode(encoded, type=SessionsState))
    for one in (sessions, again):
        decide(one, 1.0, "u")
    assert again.state() == sessions.state()


def choices(*keys: tuple[str, float]) -> list[Choice]:
    return [Choice(key, Candidate(name), 0) for name, key in keys]


def first(ordered: list[Choice]) -> str:
    return ordered[0].candidate.instance_id


@pytest.mark.parametrize(
    ("best", "of_last", "seconds", "wins"),
    [
        (1.0, 1.1, False, True),
        (1.0, 1.11, False, False),
        (0.1, 0.15, True, True),
        (0.1, 0.151, True, False),
        (0.1, 0.15, False, False),
        (2.0, 2.5, True, True),
        (2.0, 2.51, True, False),
        (-1.0, -0.9, False, True),
        (-1.0, -0.89, False, False),
        (0.0, 0.0, False, True),
    ],
)
def test_the_last_instance_wins_where_it_is_nearly_the_best(
    best: float, of_last: float, seconds: bool, wins: bool
) -> None:
    ordered = with_affinity(choices(("a", best), ("b", of_last)), B, keys_are_seconds=seconds)
    assert first(ordered) == ("b" if wins else "a")
    assert len(ordered) == 2


def test_the_order_of_the_others_stays() -> None:
    given = choices(("a", 1.0), ("c", 1.01), ("b", 1.02), ("d", 5.0))
    ordered = with_affinity(given, B, keys_are_seconds=False)
    assert [one.candidate.instance_id for one in ordered] == ["b", "a", "c", "d"]


def test_a_last_instance_that_is_no_candidate_changes_nothing() -> None:
    given = choices(("a", 1.0), ("c", 1.0))
    assert with_affinity(given, B, keys_are_seconds=True) == given
    assert with_affinity(given, None, keys_are_seconds=True) == given
    assert with_affinity([], B, keys_are_seconds=True) == []


def test_another_rank_of_the_instance_is_not_where_the_session_was() -> None:
    given = choices(("a", 1.0), ("b", 1.0))
    assert first(with_affinity(given, B._replace(dp_rank=1), keys_are_seconds=True)) == "a"


def test_a_session_is_of_the_tenant_of_its_scope_alone() -> None:
    sessions = Sessions()
    sessions.decided(0.0, a_decision(session_id="s", scope=SCOPE._replace(tenant_id="acme")))
    assert sessions.last("acme", "s", 0.0) == (0.0, Target("acme", "a", 0))
    assert sessions.last("default", "s", 0.0) is None
