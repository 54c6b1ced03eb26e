"""In which order answers of several replicas are derived again.

A replica's answer was given at a vector: one offset for each partition. The vectors of one replica
only rise, but two replicas apply the flushes of two partitions in their own order, so of two of
their vectors neither may be the later one. One fold goes through a chain, in which every vector is
at least the one before. There are about as many chains as replicas that answered at the same time;
one that ended before another began shares its chain.

An answer cannot be put together from a fold of each partition instead: what a shared pool holds
counts for every instance, and its publisher may be in another partition than they are.

Pure.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from schemas.answer_records import GivenAnswer

Vector = tuple[int, ...]
"""An offset for each partition, by rising partition; -1 for nothing."""

AnswerSource = tuple[str, int]
"""A replica, and one run of it."""


class RecordPlace(NamedTuple):
    """A record of answers in the topic, or some of its answers.

    Attributes:
        low, high: the lowest and the highest offsets of its answers.
        only: numbers of those that are meant; None for all.
    """

    low: Vector
    partition: int
    offset: int
    high: Vector
    source: AnswerSource
    only: frozenset[int] | None = None


def is_behind(vector: Vector, other: Vector) -> bool:
    """Whether some partition had less than in the other one."""
    return any(mine < theirs for mine, theirs in zip(vector, other, strict=True))


def by_rising_sum(place: RecordPlace) -> tuple[int, int, int]:
    """A key by which whatever is before another in a chain is before it."""
    return sum(place.low), place.partition, place.offset


class _Chain:
    def __init__(self) -> None:
        self.places: list[RecordPlace] = []

    def takes(self, place: RecordPlace) -> bool:
        """Whether the place may stand at the end. Records of one run may overlap a little, where
        answers are given on several threads.
        """
        if not self.places:
            return True
        last = self.places[-1]
        return last.source == place.source or not is_behind(place.low, self.reached)

    @property
    def reached(self) -> Vector:
        return self.places[-1].high


def chains_of(places: Iterable[RecordPlace]) -> list[list[RecordPlace]]:
    """Puts each place into a chain, the one of its own run where that takes it.

    Cost O(places * chains).
    """
    chains: list[_Chain] = []
    own: dict[AnswerSource, _Chain] = {}
    for place in sorted(places, key=by_rising_sum):
        chain = own.get(place.source)
        if chain is None or not chain.takes(place):
            chain = next((one for one in chains if one.takes(place)), None)
        if chain is None:
            chain = _Chain()
            chains.append(chain)
        chain.places.append(place)
        own[place.source] = chain
    return [chain.places for chain in chains]


def vector_of(given: GivenAnswer, partitions: int) -> Vector | None:
    """Where an answer was given; None where it is not of a log of so many partitions."""
    if [position.partition for position in given.positions] != list(range(partitions)):
        return None
    return tuple(position.offset for position in given.positions)


def bounds_of(vectors: Iterable[Vector]) -> tuple[Vector, Vector]:
    """The lowest and the highest offset of each partition, of at least one vector."""
    columns: Iterator[tuple[int, ...]] = zip(*vectors, strict=True)
    both = [(min(column), max(column)) for column in columns]
    return tuple(low for low, _ in both), tuple(high for _, high in both)
