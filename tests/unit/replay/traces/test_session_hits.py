"""Distributions, and hits of sessions."""

import statistics

import pytest

from replay.traces import session_hits
from replay.traces.session_hits import SessionHits, distribution_of, session_line


def test_a_distribution_is_as_the_library_says_it() -> None:
    values = [5.0, 1.0, 9.0, 4.0, 2.5, 2.5, 7.0]
    found = distribution_of(values)
    assert [found.p25, found.median, found.p75] == statistics.quantiles(
        values, n=4, method="inclusive"
    )
    deciles = statistics.quantiles(values, n=10, method="inclusive")
    assert [found.p10, found.p90] == pytest.approx([deciles[0], deciles[-1]])
    assert (found.count, found.min, found.max) == (7, 1.0, 9.0)
    assert found.mean == pytest.approx(statistics.mean(values))
    assert distribution_of([]).count == 0


def test_the_rate_of_a_session_is_of_all_its_requests() -> None:
    hits = SessionHits()
    for session, blocks, hit in (("a", 10, 0), (None, 50, 50), ("b", 4, 1), ("a", 10, 10)):
        hits.add(session, blocks, hit)
    hits.add("without blocks", 0, 0)
    rates = hits.rates()
    assert rates is not None
    assert (rates.count, rates.min, rates.max) == (2, 0.25, 0.5)
    assert session_line(rates) == (
        "2 sessions, hit % of the blocks of each in one cache for all that never evicts:"
        " min 25.0, P25 31.2, median 37.5, P75 43.8, max 50.0, mean 37.5"
    )
    assert SessionHits().rates() is None


def test_sessions_without_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_hits, "TRACE_SESSIONS_MAX", 1)
    hits = SessionHits()
    for session in ("a", "b", "a", "b"):
        hits.add(session, 1, 1)
    assert hits.left_out == 2
    assert hits.rates() == distribution_of([1.0])
