"""How much of each session's prompts had been asked for before."""

from collections.abc import Collection
from typing import Final

import msgspec

from replay.traces.counts import counted

TRACE_SESSIONS_MAX: Final = 1_048_576  # of a trace; requests of further ones are in no distribution


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Of a number that each of many things has.

    Attributes:
        count: how many things.
        min, p10, p25, median, p75, p90, max, mean: of the number; what falls between two of them is
            in proportion.
    """

    count: int
    min: float
    p10: float
    p25: float
    median: float
    p75: float
    p90: float
    max: float
    mean: float


def distribution_of(values: Collection[float]) -> Distribution:
    """Zeros of nothing. Cost O(n log n)."""
    ordered = sorted(values)

    def at(share: float) -> float:
        if not ordered:
            return 0.0
        place = share * (len(ordered) - 1)
        low = ordered[int(place)]
        return low + (place - int(place)) * (ordered[min(int(place) + 1, len(ordered) - 1)] - low)

    return Distribution(
        count=len(ordered),
        min=at(0),
        p10=at(0.1),
        p25=at(0.25),
        median=at(0.5),
        p75=at(0.75),
        p90=at(0.9),
        max=at(1),
        mean=sum(ordered) / len(ordered) if ordered else 0.0,
    )


class SessionHits:
    """Of each session the blocks that its prompts have, and those that a cache for all requests
    which never evicts has already.

    Attributes:
        left_out: requests for which there was no room.
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, int]] = {}
        self.left_out = 0

    def add(self, session: str | None, blocks: int, hits: int) -> None:
        """Notes a request; one of no session counts for none."""
        if session is None:
            return
        before = self._counts.get(session)
        if before is None and len(self._counts) >= TRACE_SESSIONS_MAX:
            self.left_out += 1
            return
        old_blocks, old_hits = before or (0, 0)
        self._counts[session] = (old_blocks + blocks, old_hits + hits)

    def rates(self) -> Distribution | None:
        """Of sessions that asked for a block: which share of theirs hit. None where none did."""
        rates = [hits / blocks for blocks, hits in self._counts.values() if blocks]
        return distribution_of(rates) if rates else None


def session_line(rates: Distribution) -> str:
    """In percent."""
    names = ("min", "p25", "median", "p75", "max", "mean")
    cells = (f"{name.replace('p', 'P')} {100 * getattr(rates, name):.1f}" for name in names)
    return (
        f"{counted(rates.count, 'session')}, hit % of the blocks of each in one cache for all that"
        f" never evicts: {', '.join(cells)}"
    )
