"""The order in which answers of several replicas are derived again."""

import random
from itertools import pairwise

import pytest

from streams.audit.chains import RecordPlace, Vector, bounds_of, chains_of, is_behind

PARTITIONS = 3


def place(source: str, number: int, low: Vector, high: Vector | None = None) -> RecordPlace:
    return RecordPlace(low, 0, number, high or low, (source, 1))


def runs_of(seed: int, sources: int) -> list[RecordPlace]:
    """Records of replicas that apply the same flushes, each in an order of its own."""
    rng = random.Random(seed)
    found: list[RecordPlace] = []
    for number in range(sources):
        at = [-1] * PARTITIONS
        for _ in range(20):
            low = tuple(at)
            at[rng.randrange(PARTITIONS)] += rng.randrange(3)
            found.append(place(f"replica-{number}", len(found), low, tuple(at)))
    return found


@pytest.mark.parametrize("sources", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_every_place_is_in_one_chain_which_rises_and_there_are_no_more_than_replicas(
    seed: int, sources: int
) -> None:
    places = runs_of(seed, sources)
    chains = chains_of(places)
    assert sorted(one for chain in chains for one in chain) == sorted(places)
    for chain in chains:
        for before, after in pairwise(chain):
            assert not is_behind(after.low, before.high)
    assert len(chains) <= sources


def test_vectors_of_which_neither_is_the_later_one_are_in_two_chains() -> None:
    one, other = place("a", 0, (3, 0)), place("b", 1, (0, 3))
    assert len(chains_of([one, other])) == 2


def test_runs_that_follow_on_one_another_share_a_chain() -> None:
    first = [place("a", n, (n, n)) for n in range(3)]
    second = [place("b", 3 + n, (2 + n, 2 + n)) for n in range(3)]
    assert chains_of(second + first) == [first + second]


def test_records_of_one_run_may_overlap() -> None:
    before, after = place("a", 0, (0, 0), (5, 5)), place("a", 1, (4, 5), (9, 9))
    assert chains_of([before, after]) == [[before, after]]


def test_bounds_are_those_of_each_partition() -> None:
    assert bounds_of([(1, 5), (3, 2)]) == ((1, 2), (3, 5))
