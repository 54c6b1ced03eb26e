"""`reprise backup` of a service that is being written, and `reprise restore`, as processes."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_kill import contexts_of, fresh_contexts, quiet_position
from tests.load import Engine, Load
from tests.processes import Service, until

BACKUPS = 3


@pytest.fixture
def load(seed: int) -> Iterator[Load]:
    """Two ranks of one engine, whose caches are too small: blocks come and go."""
    ranks = [Engine("a", dp_rank=rank, gpu_blocks=300, cpu_blocks=500) for rank in range(2)]
    opened = Load(seed, ranks, prompts=400, pause_s=0.002)
    yield opened
    opened.close()


def run(*arguments: object, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "reprise", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def past_answers(service: Service, load: Load, position: int) -> list[object]:
    fields = {"model": "m", "block_size": 16}
    asked = [fields | {"token_ids": list(prompt)} for prompt in load.sample()[:10]]
    answers = [service.post(f"/query?as_of=0:{position}", body) for body in asked]
    assert all(status == 200 for status, _ in answers), answers
    return [answer for _, answer in answers]


@pytest.mark.timeout(300)
def test_backups_of_a_service_under_load_are_what_its_log_says(
    tmp_path: Path, load: Load, seed: int
) -> None:
    """Each is a start's own state at its position, its answers and its past are the service's, and
    one that goes on from a backup goes on as from a restart.
    """
    with Service(tmp_path / "data") as service:
        for rank, engine in enumerate(load.engines):
            service.register(engine.publisher.endpoint, dp_rank=rank)
        load.start()
        until(lambda: contexts_of(service), what="first blocks")
        for number in range(BACKUPS):
            time.sleep(0.7)
            before = int(service.metric("reprise_table_folded_offset"))
            run("backup", "--data", service.data, "--out", tmp_path / f"backup-{number}")
            made = json.loads((tmp_path / f"backup-{number}" / "backup.json").read_bytes())
            assert made["position"] >= before, f"seed {seed}: a folded record is not in it"
        load.stop()
        quiet_position(service)
        middle = made["position"] // 2
        past = past_answers(service, load, middle)
        run("backup", "--data", service.data, "--out", tmp_path / "last")
        digests, answers = contexts_of(service), [service.query(p) for p in load.sample()]
        services = service.get("/services")[1]
    for number in range(BACKUPS):
        restored = tmp_path / f"restored-{number}"
        said = run("restore", tmp_path / f"backup-{number}", "--data", restored)
        found = fresh_contexts(restored)
        assert found, said
        for digest in found.values():
            assert digest in said, f"seed {seed}: not the digest of a fresh fold of its log"
    run("restore", tmp_path / "last", "--data", tmp_path / "again")
    with Service(tmp_path / "again") as service:
        assert contexts_of(service) == digests, f"seed {seed}"
        assert [service.query(prompt) for prompt in load.sample()] == answers, f"seed {seed}"
        now = past_answers(service, load, middle)
        assert now == past, f"seed {seed}: the past is another one"
        names = ("InstanceID", "DPRank", "Endpoint")
        assert [
            [one[name] for name in names] for one in service.get("/services")[1]["services"]
        ] == [[one[name] for name in names] for one in services["services"]]
