"""Seeded histories of whole systems on simulated time, disks, links and brokers.

pytest tests/simulation                      1,000 times SHARES histories of each world
pytest tests/simulation --seeds 100000       a night's worth
pytest tests/simulation -k tables --seed 17  one history again; a seed gives one history, always
"""

import os
import subprocess
import sys

import pytest

from tests.simulation.history import History, MakeWorld, run_seed, silence
from tests.simulation.loop import SimulatedLoop
from tests.simulation.world_bridges import BridgeWorld
from tests.simulation.world_changes import ChangesWorld
from tests.simulation.world_cluster import ClusterWorld
from tests.simulation.world_embedded import EmbeddedWorld
from tests.simulation.world_tables import TableWorld

CHUNK = 25
WORLDS: dict[str, MakeWorld] = {
    "bridges": BridgeWorld,
    "changes": ChangesWorld,
    "tables": TableWorld,
    "embedded": EmbeddedWorld,
    "cluster": ClusterWorld,
}
SHARES = {
    "test_bridges": 0.28,
    "test_changes": 0.05,
    "test_tables": 0.25,
    "test_embedded": 0.30,
    "test_cluster": 1.0,
}
"""Of `--seeds`, by world; the cluster's cost the most, 0.3 to 0.4 s of CPU each."""

_DIGESTS = """
from tests.simulation.history import run_seed
from tests.simulation.test_worlds import WORLDS
for name, world in WORLDS.items():
    print([run_seed(name, world, seed).digest() for seed in range(4)])
"""


def _run(name: str, seeds: range) -> None:
    with silence():
        for seed in seeds:
            run_seed(name, WORLDS[name], seed)


def test_bridges(seeds: range) -> None:
    _run("bridges", seeds)


def test_changes(seeds: range) -> None:
    _run("changes", seeds)


def test_tables(seeds: range) -> None:
    _run("tables", seeds)


def test_embedded(seeds: range) -> None:
    _run("embedded", seeds)


def test_cluster(seeds: range) -> None:
    _run("cluster", seeds)


@pytest.mark.timeout(600)  # 13 s of CPU, of which a loaded machine gives a tenth
def test_a_seed_gives_one_history_whatever_the_process() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    printed = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert printed[0] == printed[1]
    assert len(set(printed[0].split())) > len(WORLDS)


def test_a_failure_names_its_seed_and_what_happened_last() -> None:
    with pytest.raises(AssertionError, match=r"(?s)--seed 7\): it broke.*a step of seed 7"):
        run_seed("broken", _BrokenWorld, 7)


class _BrokenWorld(BridgeWorld):
    def __init__(self, loop: SimulatedLoop, history: History) -> None:
        super().__init__(loop, history)
        history.note(f"a step of seed {history.seed}")

    async def run(self) -> None:
        raise AssertionError("it broke")
