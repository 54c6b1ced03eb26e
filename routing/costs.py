"""How long it takes to compute a prompt, to load its prefix from a slower tier, to fetch it."""

from typing import Annotated, Final

import msgspec

Speed = Annotated[float, msgspec.Meta(gt=0)]
"""Tokens per second; infinite for what takes no time."""

Coefficient = Annotated[float, msgspec.Meta(ge=0)]

UNLIMITED: Final = float("inf")


class Costs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cost model of three terms, and the speeds of what is moved.

    Computing a prompt of L tokens of which C are cached takes

        fixed_s + (L - C) / prefill_tokens_per_s + token_squared_s * (L^2 - C^2)

    seconds: each token costs the same in the linear layers, and attention looks at all tokens
    before it, the cached ones included. So a hit of half the prompt saves half of the linear work
    and a quarter of the attention. The defaults are those of a 70B model on eight A800.

    Attributes:
        load_tokens_per_s: from the CPU tier to the GPU; 2.6 us for each token of 320 KiB.
        disk_tokens_per_s: from a disk to the CPU tier, 5 GB/s; from there it is loaded, too.
        fetch_tokens_per_s: from another instance; only the receiver waits for it.
        pool_tokens_per_s: from a pool that all instances share.
    """

    fixed_s: Coefficient = 0.0
    prefill_tokens_per_s: Speed = 8000.0
    token_squared_s: Coefficient = 6e-10
    load_tokens_per_s: Speed = 384_615.0
    fetch_tokens_per_s: Speed = 60_000.0
    pool_tokens_per_s: Speed = 60_000.0
    disk_tokens_per_s: Speed = 15_259.0

    def prefill_s(self, prompt: int, cached: int) -> float:
        """Seconds to compute a prompt of which so many tokens are cached."""
        return (
            self.fixed_s
            + (prompt - cached) / self.prefill_tokens_per_s
            + self.token_squared_s * (prompt * prompt - cached * cached)
        )

    def load_s(self, tokens: int, on_disk: int = 0) -> float:
        """Seconds to load so many tokens from slower tiers, of which so many are on disk."""
        seconds = tokens / self.load_tokens_per_s
        return seconds + on_disk / self.disk_tokens_per_s if on_disk else seconds

    def fetch_s(self, tokens: int) -> float:
        """Seconds to fetch so many tokens from another instance."""
        return tokens / self.fetch_tokens_per_s

    def pool_s(self, tokens: int) -> float:
        """Seconds to load so many tokens from a shared pool."""
        return tokens / self.pool_tokens_per_s
