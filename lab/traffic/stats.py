"""What the router has seen of late, and the table that says it."""

from collections import Counter, deque
from collections.abc import Collection
from typing import Final, NamedTuple

from lab.traffic.shadows import Comparison, ShadowOutcome

WINDOW_S: Final = 60.0
GROWN_S: Final = 1.0
"""A queue grows where a first token comes so much later at a window's end than at its begin."""
LONG_S: Final = 5.0
"""Or where it comes so late in the mean: that queue has grown before."""
FAILURES_NAMED_MAX: Final = 3

NOT_YET: Final = "-"
OVERLOADED: Final = "overloaded"
FILLING: Final = "; caches and queues still fill, so times rise"
"""Of a window that is shorter than WINDOW_S: by then engines evict, and long queues are long."""
TO_BE_SHOWN: Final = 20
"""Requests, before a way of routing is judged at all."""


class Promise(NamedTuple):
    """What `/route` said of a request: tokens of its prompt that are cached, and its TTFT."""

    cached_tokens: int
    ttft_s: float


class ServedRequest(NamedTuple):
    """A request: when it was sent (any clock, in seconds), and what became of it."""

    at: float
    prompt_tokens: int
    cached_tokens: int
    ttft_s: float


class Way:
    """The requests of the last WINDOW_S under one way of routing."""

    def __init__(self) -> None:
        self._served: deque[ServedRequest] = deque()

    def add(self, at: float, prompt_tokens: int, outcome: ShadowOutcome | Promise) -> None:
        """One more; what is older than WINDOW_S is forgotten. Cost O(1), amortised."""
        self._served.append(ServedRequest(at, prompt_tokens, outcome.cached_tokens, outcome.ttft_s))
        while self._served[0].at < at - WINDOW_S:
            self._served.popleft()

    @property
    def requests(self) -> int:
        """How many there are."""
        return len(self._served)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were reused."""
        return sum(one.cached_tokens for one in self._served)

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were reused, 0..1."""
        prompt_tokens = sum(one.prompt_tokens for one in self._served)
        return self.cached_tokens / prompt_tokens if prompt_tokens else 0.0

    @property
    def mean_ttft_s(self) -> float:
        """0 before the first request."""
        return _mean_s(self._served)

    def ttft_s(self, quantile: float) -> float:
        """0 before the first request."""
        return _quantile([one.ttft_s for one in self._served], quantile)

    @property
    def is_overloaded(self) -> bool:
        """Whether its requests come faster than the busiest of its engines computes them: means and
        percentiles say then how long ago that began, and nothing else.
        """
        served = sorted(self._served)  # they come as they end
        third = len(served) // 3
        if not third:
            return False
        grown_s = _mean_s(served[-third:]) - _mean_s(served[:third])
        return grown_s > GROWN_S or self.mean_ttft_s > LONG_S

    def row(self, name: str) -> str:
        """One row of the table, under its head."""
        if self.requests < TO_BE_SHOWN:
            return f"{name:22}{NOT_YET:>9}{NOT_YET:>13}{NOT_YET:>13}"
        cached = f"{100 * self.hit_rate:.1f} %"
        if self.is_overloaded:
            return f"{name:22}{cached:>9}{OVERLOADED:>13}{OVERLOADED:>13}"
        return f"{name:22}{cached:>9}{_ms(self.mean_ttft_s):>13}{_ms(self.ttft_s(0.99)):>13}"


class Stats:
    """Of requests that real engines served, in the last WINDOW_S. For one thread.

    Attributes:
        by_route: what real engines did; where `/route` did not answer, too.
        by_score, by_query, by_chance: what the same requests would have met otherwise.
        promised, kept: what `/route` said, and what came of the same requests.
        failures: calls without an answer, by what they were of, since the last table.
        blocks_indexed: as last read from the service; None where it was not.
    """

    def __init__(self) -> None:
        self.by_route = Way()
        self.by_score = Way()
        self.by_query = Way()
        self.by_chance = Way()
        self.promised = Way()
        self.kept = Way()
        self.failures: Counter[str] = Counter()
        self.blocks_indexed: int | None = None
        self._latencies: deque[tuple[float, float]] = deque()
        self._begins_at = float("-inf")

    def begin(self, at: float) -> None:
        """Requests count that are sent from then on."""
        self._begins_at = at

    def record_latency(self, at: float, latency_s: float) -> None:
        """`/route` answered a request that was sent then."""
        self._latencies.append((at, latency_s))
        while self._latencies[0][0] < at - WINDOW_S:
            self._latencies.popleft()

    def record_request(
        self,
        at: float,
        prompt_tokens: int,
        outcome: ShadowOutcome,
        compared: Comparison,
        promise: Promise | None,
    ) -> None:
        """An engine served a request that was sent then."""
        if at < self._begins_at:
            return
        self.by_route.add(at, prompt_tokens, outcome)
        self.by_score.add(at, prompt_tokens, compared.by_score)
        self.by_query.add(at, prompt_tokens, compared.by_query)
        self.by_chance.add(at, prompt_tokens, compared.by_chance)
        if promise is not None:
            self.promised.add(at, prompt_tokens, promise)
            self.kept.add(at, prompt_tokens, outcome)

    def latency_s(self, quantile: float) -> float:
        """Of recent decisions, as the router sees it; 0 before the first."""
        return _quantile([latency_s for _, latency_s in self._latencies], quantile)

    def table(self, over_s: float) -> list[str]:
        """Lines for people; what has failed is named once.

        Args:
            over_s: how long requests have been counted, seconds.
        """
        blocks = "?" if self.blocks_indexed is None else f"{self.blocks_indexed:,}"
        lines = [
            "",
            f"The last {min(over_s, WINDOW_S):.0f} s: {self.by_route.requests:,} requests,"
            f" {blocks} blocks indexed{FILLING if over_s < WINDOW_S else ''}",
            f"{'routed':22}{'cached':>9}{'mean TTFT':>13}{'p99 TTFT':>13}",
            self.by_route.row("by /route"),
            self.by_score.row("by /query and load"),
            self.by_query.row("by /query alone"),
            self.by_chance.row("at random"),
        ]
        if self.kept.requests:
            lines.append(
                f"/route promised {_ms(self.promised.mean_ttft_s)} and"
                f" {100 * self.promised.hit_rate:.1f} % cached; it became"
                f" {_ms(self.kept.mean_ttft_s)} and {100 * self.kept.hit_rate:.1f} %. It answers"
                f" in {1000 * self.latency_s(0.5):.1f} ms (p50),"
                f" {1000 * self.latency_s(0.99):.1f} ms (p99)"
            )
        if self.failures:
            named = self.failures.most_common(FAILURES_NAMED_MAX)
            text = ", ".join(f"{count} x {what}" for what, count in named)
            more = self.failures.total() - sum(count for _, count in named)
            lines.append(f"Without an answer: {text}" + (f", {more} others" if more else ""))
            self.failures.clear()
        return lines


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms"


def _mean_s(served: Collection[ServedRequest]) -> float:
    return sum(one.ttft_s for one in served) / len(served) if served else 0.0


def _quantile(values: list[float], quantile: float) -> float:
    if not values:
        return 0.0
    return sorted(values)[min(int(quantile * len(values)), len(values) - 1)]
