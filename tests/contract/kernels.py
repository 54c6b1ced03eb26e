"""The kernels that their contracts are tried with, by the names that tests show."""

from typing import Any, Final

import pytest

from streams.kernel import Kernel, native_available, open_kernel

BOTH: Final = ("reference", "rust")
ALL: Final = (*BOTH, "rust, which clears later")


def kernel_of(request: pytest.FixtureRequest, seed: int, **options: Any) -> Kernel:
    """The kernel that a fixture's parameter names; its test is skipped where that is not built."""
    name, _, clears_later = request.param.partition(",")
    if name == "rust" and not native_available():
        pytest.skip("the Rust kernel is not built")
    return open_kernel(seed, name=name, cleared_at_once=0 if clears_later else None, **options)
