"""What the router has seen, and the one line that says it."""

from collections import deque
from typing import Final

LATENCIES_MAX: Final = 10_000
"""Latencies are remembered for this many queries: percentiles are of the last ones."""


class Stats:
    """Counts over all requests since the start. For one thread.

    Attributes:
        prompt_tokens, cached_tokens: of the requests that engines served.
        shadow_cached_tokens: what engines of the same size would have reused with random routing.
        agreements: requests for which the engine reused just what the index had said.
        overestimates: requests for which it reused less: blocks evicted since, or a wrong index.
        query_errors, engine_errors: requests without an answer.
        blocks_indexed: as last read from the service; None where it was not.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.shadow_cached_tokens = 0
        self.queries = 0
        self.agreements = 0
        self.overestimates = 0
        self.query_errors = 0
        self.engine_errors = 0
        self.blocks_indexed: int | None = None
        self._latencies_s: deque[float] = deque(maxlen=LATENCIES_MAX)

    def record_query(self, latency_s: float) -> None:
        """The index answered."""
        self.queries += 1
        self._latencies_s.append(latency_s)

    def record_request(
        self, *, prompt_tokens: int, cached_tokens: int, shadow_cached_tokens: int
    ) -> None:
        """An engine served a request."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self.shadow_cached_tokens += shadow_cached_tokens

    def record_prediction(self, *, predicted_tokens: int, cached_tokens: int) -> None:
        """The index had spoken of a request that an engine then served."""
        self.agreements += predicted_tokens == cached_tokens
        self.overestimates += predicted_tokens > cached_tokens

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that engines really reused, 0..1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def shadow_hit_rate(self) -> float:
        """The same with random routing."""
        return self.shadow_cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def agreement(self) -> float:
        """Share of queries after which the engine reused just what the index had said, 0..1."""
        return self.agreements / self.queries if self.queries else 0.0

    def latency_s(self, quantile: float) -> float:
        """Of recent queries, as the router sees it; 0 before the first."""
        if not self._latencies_s:
            return 0.0
        ordered = sorted(self._latencies_s)
        return ordered[min(int(quantile * len(ordered)), len(ordered) - 1)]

    def line(self) -> str:
        """One line for people."""
        blocks = "?" if self.blocks_indexed is None else f"{self.blocks_indexed:,}"
        parts = [
            f"requests {self.requests:,}",
            f"blocks indexed {blocks}",
            f"hit rate {self.hit_rate:.1%} with the index, "
            f"{self.shadow_hit_rate:.1%} with random routing",
            f"query p50 {1000 * self.latency_s(0.5):.2f} ms "
            f"p99 {1000 * self.latency_s(0.99):.2f} ms",
        ]
        errors = self.query_errors + self.engine_errors
        if errors:
            parts.append(f"failed calls {errors:,}")
        return " | ".join(parts).replace("%", " %")
