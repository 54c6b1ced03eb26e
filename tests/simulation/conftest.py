"""Which seeds the worlds are run with: see `--seeds`, `--fuzz-scale` and `--seed`."""

import pytest

from tests.simulation import test_losses
from tests.simulation.test_worlds import CHUNK, SHARES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A world's seeds in chunks, so that they can be shared out over processes."""
    if "seeds" not in metafunc.fixturenames:
        return
    single: int | None = metafunc.config.getoption("--seed")
    if single is not None:
        metafunc.parametrize("seeds", [range(single, single + 1)], ids=[str(single)])
        return
    count = _count(metafunc)
    chunks = [range(first, min(first + CHUNK, count)) for first in range(0, count, CHUNK)]
    metafunc.parametrize("seeds", chunks, ids=[f"{one.start}-{one.stop - 1}" for one in chunks])


def _count(metafunc: pytest.Metafunc) -> int:
    """Of one world."""
    if metafunc.module is test_losses:
        scale: float = metafunc.config.getoption("--fuzz-scale")
        return round(test_losses.SEEDS * scale / len(test_losses.WORLDS))
    wanted: int = metafunc.config.getoption("--seeds")
    return round(wanted * SHARES[metafunc.function.__name__])
