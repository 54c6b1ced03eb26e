"""Disks that can no longer be written: what was answered is answered, and what is lost is said."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.limits import MIB
from tests.integration.test_kill import contexts_of
from tests.load import Engine, Load
from tests.processes import Service, until
from tests.small_disks import mounted_ext4

READ_ONLY = "Read-only file system"


@pytest.fixture
def load(seed: int) -> Iterator[Load]:
    opened = Load(seed, [Engine("a"), Engine("b")], prompts=100, pause_s=0.005)
    yield opened
    opened.close()


@pytest.mark.timeout(120)
def test_a_file_system_that_turns_read_only_stops_writing_not_answering(
    tmp_path: Path, load: Load
) -> None:
    with mounted_ext4(tmp_path / "disk", 128 * MIB) as disk:
        # Its log of standard error stands on another disk.
        data = disk.path / "data"
        service = Service(tmp_path / "data")
        service.data = data
        with service:
            service.register(load.engines[0].publisher.endpoint)
            load.start()
            until(lambda: contexts_of(service), what="first blocks")
            held = load.prompt(1)
            before = service.query(held)
            disk.fail()
            until(
                lambda: READ_ONLY in str(service.get("/health")), what="the problem", timeout_s=30
            )
            assert set(service.query(held)) == set(before), "answers go on"
            with pytest.raises(AssertionError, match=r"Cannot (append|open|sync)"):
                service.register(load.engines[1].publisher.endpoint, instance_id="b")
            load.stop()
            service.stop()
            assert "Traceback" not in service.whole_log()
            assert "has all that was read" not in service.whole_log()
        ended = subprocess.run(
            [sys.executable, "-m", "reprise", "up", "--data", str(data), "--port", "0"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 1
        assert "Traceback" not in ended.stderr
        assert READ_ONLY in ended.stderr
        assert "Mount it for writing, or give a directory elsewhere by --data" in ended.stderr
