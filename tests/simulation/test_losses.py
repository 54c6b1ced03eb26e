"""Whatever is dropped, cut or restarted, and whatever cannot be read: once the replay buffers cover
it, the index equals the engines' own caches; otherwise the ledger equals the loss, and the index is
what the engines' batches come to without the lost ones.

pytest tests/simulation/test_losses.py                    a tenth of SEEDS histories
pytest tests/simulation/test_losses.py --fuzz-scale 1     all of them, as `make soak`
pytest tests/simulation/test_losses.py --seed 17          one history again
"""

from functools import partial
from typing import Final

import pytest

from tests.simulation.history import MakeWorld, run_seed
from tests.simulation.world_bridges import BridgeWorld
from tests.simulation.world_embedded import EmbeddedWorld

SEEDS: Final = 1000
"""Histories, of both forms together."""

WORLDS: Final[dict[str, MakeWorld]] = {
    "losses of bridges": partial(BridgeWorld, harsh=True),
    "losses of the embedded form": partial(EmbeddedWorld, harsh=True),
}


@pytest.mark.parametrize("world", WORLDS)
def test_the_index_is_right_or_the_ledger_equals_the_loss(world: str, seeds: range) -> None:
    for seed in seeds:
        run_seed(world, WORLDS[world], seed)
