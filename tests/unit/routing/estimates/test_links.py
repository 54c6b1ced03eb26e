"""Speeds by path: what is set, what outcomes make of it, and how near two instances are."""

import pytest

from routing.costs import Costs
from routing.estimates.links import (
    KV_BYTES_PER_TOKEN,
    LOAD,
    READ,
    LinkClass,
    PathSpeeds,
    TokenMove,
    fetch_path,
    link_between,
    pool_path,
)

RACK = fetch_path(LinkClass.RACK)


@pytest.mark.parametrize(
    ("one", "other", "link"),
    [
        ({}, {}, LinkClass.OTHER),
        ({"zone": "z"}, {"zone": "z"}, LinkClass.ZONE),
        ({"zone": "z", "rack": "1"}, {"zone": "z", "rack": "1"}, LinkClass.RACK),
        ({"zone": "z", "rack": "1"}, {"zone": "y", "rack": "1"}, LinkClass.OTHER),
        ({"zone": "z", "rack": "1"}, {"zone": "z", "rack": "2"}, LinkClass.ZONE),
        ({"rack": "1", "host": "a"}, {"rack": "1", "host": "a"}, LinkClass.HOST),
        ({"rack": "1", "host": "a"}, {"rack": "1", "host": "b"}, LinkClass.RACK),
        ({"rack": "1", "host": "a"}, {"rack": "2", "host": "a"}, LinkClass.OTHER),
        ({"host": "a"}, {"host": "a", "zone": "z"}, LinkClass.HOST),
        ({"host": ""}, {"host": ""}, LinkClass.OTHER),
    ],
)
def test_how_near_two_are(one: dict[str, str], other: dict[str, str], link: LinkClass) -> None:
    assert link_between(one, other) is link
    assert link_between(other, one) is link


def test_the_defaults_are_those_of_the_cost_model_where_it_has_them() -> None:
    costs = PathSpeeds().costs(Costs(), KV_BYTES_PER_TOKEN, fetch=LinkClass.RACK)
    default = Costs()
    assert costs.load_tokens_per_s == pytest.approx(default.load_tokens_per_s, rel=0.02)
    assert costs.disk_tokens_per_s == pytest.approx(default.disk_tokens_per_s, rel=0.02)
    assert costs.pool_tokens_per_s == default.pool_tokens_per_s
    assert costs.fetch_tokens_per_s == pytest.approx(25e9 / KV_BYTES_PER_TOKEN)
    assert costs.prefill_tokens_per_s == default.prefill_tokens_per_s


def test_an_unknown_network_is_slower_than_computing() -> None:
    costs = PathSpeeds().costs(Costs(), KV_BYTES_PER_TOKEN)
    assert costs.fetch_s(1000) > costs.prefill_s(1000, 0)


def test_fifty_outcomes_correct_a_speed() -> None:
    links = PathSpeeds({RACK: 10e9})
    for _ in range(50):
        links.note([TokenMove(RACK, 1000)], 100_000, 1000 * 100_000 / 4e9)
    assert links.bytes_per_s(RACK) == pytest.approx(4e9, rel=0.01)
    assert links.seconds([TokenMove(RACK, 4000)], 100_000) == pytest.approx(0.1, rel=0.01)
    assert links.bytes_per_s(LOAD) == PathSpeeds().bytes_per_s(LOAD)


def test_a_correction_stays_between_a_fifth_and_five_times() -> None:
    links = PathSpeeds()
    for seconds in (0.0, 80_000.0):
        for _ in range(100):
            links.note([TokenMove(READ, 1_000_000)], KV_BYTES_PER_TOKEN, seconds)
        factor = links.bytes_per_s(READ) / PathSpeeds().bytes_per_s(READ)
        assert factor == pytest.approx(0.2 if seconds else 5.0, rel=1e-3)


def test_a_path_counts_by_its_share_of_the_time() -> None:
    links = PathSpeeds({LOAD: 1e12, READ: 1e9})
    for _ in range(10):
        links.note([TokenMove(LOAD, 10_000), TokenMove(READ, 10_000)], 100_000, 2.0)
    assert links.bytes_per_s(READ) < 0.8e9
    assert links.bytes_per_s(LOAD) > 0.98e12


def test_what_takes_no_time_or_is_none_says_nothing() -> None:
    links = PathSpeeds()
    links.note([TokenMove(LOAD, 1)], KV_BYTES_PER_TOKEN, 5.0)
    links.note([], KV_BYTES_PER_TOKEN, 5.0)
    assert (links.items(), links.unusable) == ([], 0)
    for seconds in (-1.0, float("nan"), float("inf")):
        links.note([TokenMove(READ, 10**9)], KV_BYTES_PER_TOKEN, seconds)
    assert (links.items(), links.unusable) == ([], 3)


def test_rows_name_every_path() -> None:
    links = PathSpeeds()
    links.note([TokenMove(READ, 10**6)], KV_BYTES_PER_TOKEN, 100.0)
    by_path = {(row.source, row.target, row.link): row for row in links.rows("t")}
    assert len(by_path) == 2 + 2 * len(LinkClass)
    disk = by_path["disk", "cpu", "host"]
    assert (disk.outcomes, disk.set_bytes_per_s) == (1, 5e9)
    assert disk.bytes_per_s < 5e9
    assert by_path["pool", "gpu", "other"].bytes_per_s == PathSpeeds().bytes_per_s(
        pool_path(LinkClass.OTHER)
    )
