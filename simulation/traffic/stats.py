"""What the router has seen, and the one line that says it."""

from collections import deque
from typing import Final, NamedTuple

from simulation.traffic.shadows import Compared, Outcome

LATENCIES_MAX: Final = 10_000
"""Latencies are remembered for this many decisions: percentiles are of the last ones."""


class Promise(NamedTuple):
    """What `/route` said of a request: tokens of its prompt that are cached, and its TTFT."""

    cached_tokens: int
    ttft_s: float


class Sums:
    """Of requests under one way of routing."""

    def __init__(self) -> None:
        self.requests = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.ttft_s = 0.0

    def add(self, prompt_tokens: int, outcome: Outcome | Promise) -> None:
        """One more."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += outcome.cached_tokens
        self.ttft_s += outcome.ttft_s

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were reused, 0..1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def mean_ttft_s(self) -> float:
        """0 before the first request."""
        return self.ttft_s / self.requests if self.requests else 0.0


class Stats:
    """Sums over all requests since the start that real engines served. For one thread.

    Attributes:
        by_route: what real engines did; where `/route` did not answer, too.
        by_score, by_query, by_chance: what the same requests would have met otherwise.
        promised, kept: what `/route` said, and what came of the same requests.
        route_errors, feedback_errors, engine_errors: calls without an answer.
        blocks_indexed: as last read from the service; None where it was not.
    """

    def __init__(self) -> None:
        self.by_route = Sums()
        self.by_score = Sums()
        self.by_query = Sums()
        self.by_chance = Sums()
        self.promised = Sums()
        self.kept = Sums()
        self.route_errors = 0
        self.feedback_errors = 0
        self.engine_errors = 0
        self.blocks_indexed: int | None = None
        self._latencies_s: deque[float] = deque(maxlen=LATENCIES_MAX)

    def record_latency(self, latency_s: float) -> None:
        """`/route` answered."""
        self._latencies_s.append(latency_s)

    def record_request(
        self, prompt_tokens: int, outcome: Outcome, compared: Compared, promise: Promise | None
    ) -> None:
        """An engine served a request."""
        self.by_route.add(prompt_tokens, outcome)
        self.by_score.add(prompt_tokens, compared.by_score)
        self.by_query.add(prompt_tokens, compared.by_query)
        self.by_chance.add(prompt_tokens, compared.by_chance)
        if promise is not None:
            self.promised.add(prompt_tokens, promise)
            self.kept.add(prompt_tokens, outcome)

    def latency_s(self, quantile: float) -> float:
        """Of recent decisions, as the router sees it; 0 before the first."""
        if not self._latencies_s:
            return 0.0
        ordered = sorted(self._latencies_s)
        return ordered[min(int(quantile * len(ordered)), len(ordered) - 1)]

    def line(self) -> str:
        """One line for people."""
        routed, scored = self.by_route, self.by_score
        query, chance = self.by_query, self.by_chance
        blocks = "?" if self.blocks_indexed is None else f"{self.blocks_indexed:,}"
        parts = [
            f"requests {routed.requests:,}",
            f"blocks indexed {blocks}",
            f"hit rate {routed.hit_rate:.1%} by /route, {scored.hit_rate:.1%} by /query and load, "
            f"{query.hit_rate:.1%} by /query alone, {chance.hit_rate:.1%} at random",
            f"mean TTFT {_ms(routed)}, {_ms(scored)}, {_ms(query)}, {_ms(chance)}: by /route "
            f"{self._less_than(scored)} than by /query and load, "
            f"{self._less_than(query)} than by /query alone",
            f"promised TTFT {_ms(self.promised)}, actual {_ms(self.kept)}",
            f"promised cached {self.promised.hit_rate:.1%}, actual {self.kept.hit_rate:.1%}",
            f"/route p50 {1000 * self.latency_s(0.5):.2f} ms "
            f"p99 {1000 * self.latency_s(0.99):.2f} ms",
        ]
        errors = self.route_errors + self.feedback_errors + self.engine_errors
        if errors:
            parts.append(f"failed calls {errors:,}")
        return " | ".join(parts).replace("%", " %")

    def _less_than(self, other: Sums) -> str:
        """How much sooner or later the first token comes by `/route`."""
        if not other.mean_ttft_s:
            return "no less"
        change = self.by_route.mean_ttft_s / other.mean_ttft_s - 1
        return f"{abs(change):.0%} {'less' if change < 0 else 'more'}"


def _ms(sums: Sums) -> str:
    return f"{1000 * sums.mean_ttft_s:,.0f} ms"
