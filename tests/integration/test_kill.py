"""`kill -9` of the service at random moments under load, and a disk that fills up.

Afterwards the answers and the digests equal those of a fresh fold of the whole log, made in this
process with the reference kernel, and once more by a service whose table was deleted.
"""

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from logs.embedded import ReadOnlyLog
from streams.index_settings import DEFAULT_SEED
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.verification import fresh_fold
from tests.load import Engine, Load
from tests.processes import Service, until
from tests.small_disks import mounted

KILLS = 22
NO_SPACE = "no space left on its file system"


@pytest.fixture
def load(seed: int) -> Iterator[Load]:
    """Two ranks of one engine."""
    ranks = [Engine("a", dp_rank=rank, gpu_blocks=300, cpu_blocks=500) for rank in range(2)]
    opened = Load(seed, ranks, prompts=400, pause_s=0.002)
    yield opened
    opened.close()


def quiet_position(service: Service) -> int:
    """The position once nothing more arrives."""
    seen = -1
    while True:
        time.sleep(0.5)
        position = int(service.metric("reprise_table_folded_offset"))
        if position == seen:
            return position
        seen = position


def contexts_of(service: Service) -> dict[tuple[str, ...], str]:
    return {
        tuple(str(one[name]) for name in ("tenant_id", "model_name", "lora_name", "instance_id")): (
            one["digest"]
        )
        for one in service.digest()["contexts"]
    }


def fresh_contexts(data: Path) -> dict[tuple[str, ...], str]:
    """The digests of a fold of the whole log, by the reference kernel, in this process."""
    log = ReadOnlyLog(data / "log")
    fold = Fold(open_kernel(DEFAULT_SEED, name="reference"))
    fresh_fold(fold, log)
    log.close()
    return {
        (
            view.context.tenant_id,
            view.context.model_name,
            view.context.lora_name,
            view.context.instance_id,
        ): f"{view.digest:016x}"
        for view in fold.kernel.contexts()
    }


def answers(service: Service, load: Load) -> list[object]:
    return [service.query(prompt) for prompt in load.sample()]


@pytest.mark.timeout(300)
def test_kill_9_at_random_moments_loses_nothing_that_was_in_the_log(
    tmp_path: Path, load: Load, seed: int
) -> None:
    moments = random.Random(seed)
    with Service(tmp_path / "data") as service:
        for rank, engine in enumerate(load.engines):
            service.register(engine.publisher.endpoint, dp_rank=rank)
        load.start()
        for _ in range(KILLS):
            time.sleep(moments.random() * 0.6)
            before = int(service.metric("reprise_table_folded_offset"))
            service.restart()
            position = int(service.metric("reprise_table_folded_offset"))
            assert position >= before, f"seed {seed}: a record that was folded is gone"
        load.stop()
        position = quiet_position(service)
        digests, said = contexts_of(service), answers(service, load)
        assert digests == fresh_contexts(service.data), f"seed {seed}"
        service.restart()
        assert service.metric("reprise_table_folded_offset") >= position, f"seed {seed}"
        assert contexts_of(service) == digests, f"seed {seed}"
        assert answers(service, load) == said, f"seed {seed}"
        service.kill()
        shutil.rmtree(service.data / "table")
        service.start()
        assert contexts_of(service) == digests, f"seed {seed}: table deleted"
        assert answers(service, load) == said, f"seed {seed}: table deleted"


@pytest.mark.smoke
def test_a_kill_before_the_table_was_ever_flushed_replays_the_log(
    tmp_path: Path, load: Load
) -> None:
    with Service(tmp_path / "data") as service:
        service.register(load.engines[0].publisher.endpoint)
        load.start()
        until(lambda: contexts_of(service), what="first blocks")
        service.kill()
        shutil.rmtree(service.data / "table")
        service.start()
        load.stop()
        quiet_position(service)
        assert contexts_of(service) == fresh_contexts(service.data)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", "48m") as disk:
        yield disk.path


@pytest.mark.timeout(120)
def test_a_full_disk_stops_writing_not_answering_and_mends_by_itself(
    small_disk: Path, load: Load
) -> None:
    ballast = small_disk / "ballast"
    with Service(small_disk / "data") as service:
        service.register(load.engines[0].publisher.endpoint)
        load.start()
        until(lambda: contexts_of(service), what="first blocks")
        gaps = service.metric("reprise_bridge_gaps_total")  # of what came before the link was up
        free = shutil.disk_usage(small_disk).free
        with ballast.open("wb") as file:
            file.write(b"x" * (free - 64 * 1024))
            file.flush()
        until(
            lambda: service.metric("reprise_disk_errors_total") > 0,
            what="a full disk",
            timeout_s=60,
        )
        position = int(service.metric("reprise_table_folded_offset"))
        assert service.query(load.prompt(1)) != {}
        # An attempt that fails as the one before is counted, and not logged again.
        failed = service.metric("reprise_disk_errors_total")
        until(lambda: service.metric("reprise_disk_errors_total") > failed + 2, what="some retries")
        until(lambda: NO_SPACE in str(service.get("/health")), what="the problem in /health")
        found = service.get("/doctor")[1]["findings"]
        assert [one["code"] for one in found if not one["instance_id"]][:1] == ["disk"], found
        other = load.engines[1].publisher.endpoint
        with pytest.raises(AssertionError, match=NO_SPACE):
            service.register(other, dp_rank=1)
        ballast.unlink()
        until(
            lambda: service.metric("reprise_table_folded_offset") > position + 50,
            what="writing again",
        )
        load.stop()
        quiet_position(service)
        assert contexts_of(service) == fresh_contexts(service.data)
        assert service.metric("reprise_bridge_gaps_total") == gaps
        digests = contexts_of(service)
        service.restart()
        assert contexts_of(service) == digests
        for inner in ("_rdict", "Writer has previous error", "Traceback"):
            assert inner not in service.whole_log(), "an error that says nothing to an operator"


@pytest.mark.smoke
def test_a_start_on_a_full_disk_says_what_to_free_where(small_disk: Path) -> None:
    data = small_disk / "data"
    with Service(data) as service:
        service.stop()
    free = shutil.disk_usage(small_disk).free
    (small_disk / "ballast").write_bytes(b"x" * free)
    ended = subprocess.run(
        [sys.executable, "-m", "reprise", "up", "--data", str(data), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    for said in (f"at {data}/log", "no space left", "Free at least 4.0 MiB", "--data"):
        assert said in ended.stderr
    (small_disk / "ballast").unlink()
    with Service(data) as service:
        assert service.get("/ready")[0] == 200
