"""How much is measured, for each kernel: the reference kernel is some 50 times slower."""

from typing import Final, Literal

import msgspec

KernelName = Literal["rust", "reference"]
KERNELS: Final[tuple[KernelName, ...]] = ("rust", "reference")

SEED: Final = 20_240_817
BLOCK_SIZE: Final = 16
CHAIN_BLOCKS: Final = 8192
"""A prompt of 128K tokens."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts of one whole run over one kernel.

    Attributes:
        runs: repetitions whose median is taken.
        wide_blocks: blocks published in 64-block events.
        single_blocks: blocks published one a message; fewer messages than an inbox holds.
        prompt_tokens: lengths of queries.
        query_bodies: different prompts that rotate.
        query_cpu_s: requests go on for about this much CPU of the service.
        memory_blocks: held by one instance.
        shared_blocks: held by each of eight instances.
        recovery_blocks: in table and log.
        resident_blocks: in the kernel before its calls are timed.
        apply_blocks: stored and removed on top of them, in each timed pass.
    """

    runs: int = 3
    wide_blocks: int = 1_500_000
    single_blocks: int = 200_000
    prompt_tokens: tuple[int, ...] = (1024, 8192, 32_768, 131_072)
    query_bodies: int = 20
    query_cpu_s: float = 0.5
    memory_blocks: int = 1_000_000
    shared_blocks: int = 1_000_000
    recovery_blocks: int = 1_000_000
    resident_blocks: int = 1_000_000
    apply_blocks: int = 262_144


FULL: Final[dict[KernelName, Sizes]] = {
    "rust": Sizes(),
    "reference": Sizes(
        wide_blocks=200_000,
        single_blocks=50_000,
        memory_blocks=200_000,
        shared_blocks=50_000,
        recovery_blocks=200_000,
        resident_blocks=200_000,
        apply_blocks=65_536,
    ),
}

_QUICK: Final = Sizes(
    runs=1,
    wide_blocks=200_000,
    single_blocks=40_000,
    prompt_tokens=(1024, 8192),
    query_cpu_s=0.1,
    memory_blocks=100_000,
    shared_blocks=50_000,
    recovery_blocks=100_000,
    resident_blocks=100_000,
    apply_blocks=65_536,
)

QUICK: Final[dict[KernelName, Sizes]] = {
    "rust": _QUICK,
    "reference": msgspec.structs.replace(
        _QUICK,
        wide_blocks=20_000,
        single_blocks=10_000,
        memory_blocks=30_000,
        shared_blocks=10_000,
        recovery_blocks=20_000,
        resident_blocks=20_000,
        apply_blocks=16_384,
    ),
}


def sizes_of(kernel: KernelName, *, quick: bool) -> Sizes:
    """The amounts for one kernel."""
    return (QUICK if quick else FULL)[kernel]
