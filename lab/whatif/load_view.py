"""What the router knows of loads, and how wrong its estimates are."""

import random
from collections.abc import Sequence
from math import exp, floor
from typing import NamedTuple

import msgspec

from lab.whatif.queue import Load, WorkQueue
from routing.costs import Costs


class LoadView:
    """The load of each instance: as it is, or as it was told at the last multiple of an age.

    The router takes off what must be done by now, and with bookings it adds what it has given
    since, by its own estimates.
    """

    def __init__(self, queues: Sequence[WorkQueue], age_s: float, *, bookings: bool) -> None:
        self._queues = queues
        self._age_s = age_s
        self._bookings = bookings
        self._told_at = -1.0
        self._believed = [queue.copy() for queue in queues]

    def loads(self, now: float) -> list[Load]:
        """Of all instances. Called in the order of time, before anything is given at `now`."""
        if not self._age_s:
            return [queue.load(now) for queue in self._queues]
        at = floor(now / self._age_s) * self._age_s
        if at > self._told_at:
            self._told_at = at
            self._believed = [queue.copy() for queue in self._queues]
        return [queue.load(now) for queue in self._believed]

    def book(self, instance: int, duration_s: float, tokens: int, now: float) -> None:
        """It was given a request that is estimated to take so long."""
        if self._age_s and self._bookings:
            self._believed[instance].book(duration_s, tokens, now)


class EstimateFactors(NamedTuple):
    """By what an estimate is too long: factors of the wait, and of the time to compute."""

    wait: float = 1.0
    prefill: float = 1.0


class EstimateErrors:
    """Errors of estimates, log-normal, each independent of all others, and the same for a seed."""

    def __init__(self, sigma: float, seed: int) -> None:
        self._sigma = sigma
        self._random = random.Random(seed)

    def draw(self) -> EstimateFactors:
        """Of one instance for one request."""
        gauss, sigma = self._random.gauss, self._sigma
        wait = exp(gauss(0.0, sigma))
        return EstimateFactors(wait, exp(gauss(0.0, sigma)))


def slowed(costs: Costs, factor: float) -> Costs:
    """The cost model of an instance that takes so many times as long to compute."""
    return msgspec.structs.replace(
        costs,
        fixed_s=costs.fixed_s * factor,
        prefill_tokens_per_s=costs.prefill_tokens_per_s / factor,
        token_squared_s=costs.token_squared_s * factor,
    )
