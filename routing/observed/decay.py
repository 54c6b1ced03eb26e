"""Counts that halve every HOT_HALF_LIFE_S, bit for bit the same on every machine.

What is counted later weighs more (forward decay): at time t one weighs 2 ** (t / half-life), and a
sum is read by dividing it by the weight of the moment. So sums need not be touched as time passes,
and keep their order.

Time counts in steps of 1/256 of the half-life, some 1.2 s. The weights of a step are products of
square roots, which IEEE 754 rounds the same everywhere; `pow` is not.
"""

import math
from typing import Final

HOT_HALF_LIFE_S: Final = 300.0  # after it a request counts half
HOT_RATE_S: Final = 60.0  # the least time that a rate is of: a few prompts at once make none

assert HOT_RATE_S < HOT_HALF_LIFE_S, "what is new is told from what is old"

_STEPS: Final = 256
REBASE_HALF_LIVES: Final = 32
"""How far a moment may lie behind the base before sums are given a new one."""


def _weights() -> tuple[float, ...]:
    """2 ** (step / 256) of each step."""
    roots = [math.sqrt(2.0)]
    while len(roots) < 8:
        roots.append(math.sqrt(roots[-1]))
    found = []
    for step in range(_STEPS):
        weight = 1.0
        for bit, root in enumerate(reversed(roots)):
            if step >> bit & 1:
                weight *= root
        found.append(weight)
    return tuple(found)


_WEIGHTS: Final = _weights()


def step_of(time: float) -> int:
    """The step in which a time lies, Unix seconds."""
    return math.floor(time * (_STEPS / HOT_HALF_LIFE_S))


def weight(base: int, step: int) -> float:
    """What one that is counted in a step weighs beside one of the step `base`."""
    halves, rest = divmod(step - base, _STEPS)
    return math.ldexp(_WEIGHTS[rest], halves)


def decayed(total: float, base: int, step: int) -> float:
    """What a sum of weights by that base counts in a step, which is not before the base."""
    halves, rest = divmod(step - base, _STEPS)
    return math.ldexp(total / _WEIGHTS[rest], -halves)


def rebased(base: int, step: int) -> int:
    """The base for sums from that step on: the same one, or whole half-lives later.

    So `weight(rebased, base)` is a power of two, and sums keep all their bits.
    """
    halves = (step - base) // _STEPS
    return base + halves * _STEPS if halves >= REBASE_HALF_LIVES else base


def per_second(decayed: float, age_s: float = math.inf) -> float:
    """The rate of something that has come evenly, from its decayed count.

    Args:
        decayed: the count.
        age_s: since the first one came. What came for a few half-lives has the same rate as what
            came for ever; what is younger than HOT_RATE_S counts as that old.
    """
    halves = max(age_s, HOT_RATE_S) / HOT_HALF_LIFE_S
    return decayed * math.log(2.0) / (HOT_HALF_LIFE_S * -math.expm1(-halves * math.log(2.0)))
