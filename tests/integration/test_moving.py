"""A history moves from one process to Kafka while its engines go on, as docs/run.md says."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deployment import Deployment, check_once_quiet
from tests.load import Engine, Load
from tests.processes import Service, until


@pytest.fixture
def load(seed: int) -> Iterator[Load]:
    """Two engines that can replay all they sent."""
    opened = Load(seed, [Engine("a"), Engine("b")], prompts=200, pause_s=0.005)
    yield opened
    opened.close()


def services(service: Service) -> list[dict[str, object]]:
    found: list[dict[str, object]] = service.get("/services")[1]["services"]
    return found


def ran(*arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "reprise", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(400)
def test_a_history_moves_from_one_process_to_kafka_and_goes_on(
    tmp_path: Path, deployment: Deployment, load: Load, seed: int
) -> None:
    """What engines sent while nobody listened is asked for; nothing is lost, nothing folded twice,
    and the log of before is the beginning of the log of now.
    """
    with Service(tmp_path / "data") as service:
        for engine in load.engines:
            service.post("/register", engine.registration())
        load.start()
        until(lambda: load.published() > 100, what="some batches")
        before = {one["InstanceID"]: one["Incarnation"] for one in services(service)}
    moved = load.published()
    ran("capture", "--data", tmp_path / "data", "--out", tmp_path / "all.capture")
    kafka = deployment.kafka
    place = ("--kafka", kafka.bootstrap, "--topic-prefix", kafka.topic_prefix)
    shape = ("--events-partitions", kafka.events_partitions, "--registry-partitions", 4)
    ran("load", tmp_path / "all.capture", *place, *shape)
    load.stop()
    assert load.published() > moved, "the engines were to go on meanwhile"
    deployment.start(load)
    found = check_once_quiet(deployment, load, seed=seed)
    assert not found.skipped, f"seed {seed}: records of before and of now are in each other's way"
    after = {
        publisher.stream.instance_id: state.incarnation
        for publisher, state in found.fold.publishers.items()
    }
    assert after == before, f"seed {seed}: a bridge took the engines for others than the log's"
