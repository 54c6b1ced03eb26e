import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reprise.cli.bridge import bridge
from reprise.cli.serve import serve
from schemas.errors import StorageError
from storage.slots import take_place, take_slot

ROLE = ["--kafka", "127.0.0.1:9", "--set", "slots=2"]


def test_without_slots_the_directory_is_the_role_s_own(tmp_path: Path) -> None:
    assert take_place(tmp_path, 0) == (tmp_path, tmp_path, True)
    assert list(tmp_path.iterdir()) == []


def test_with_slots_each_has_a_part_and_the_last_is_told_that_there_is_none(tmp_path: Path) -> None:
    assert take_place(tmp_path, 2) == (tmp_path / "slot-1", tmp_path, True)
    assert take_place(tmp_path, 2) == (tmp_path / "slot-2", tmp_path, False)
    with pytest.raises(StorageError, match="raise slots"):
        take_place(tmp_path, 2)


@pytest.mark.parametrize("is_first", [True, False])
def test_what_one_alone_may_do_the_first_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("reprise.cli.bridge.begin_service", lambda level: None)
    monkeypatch.setattr("reprise.cli.serve.begin_service", lambda level: None)
    monkeypatch.setattr("reprise.roles.bridge.run_bridge", seen.append)
    monkeypatch.setattr(
        "reprise.roles.serve.serve_replica", lambda settings, *_, **__: seen.append(settings)
    )
    before = []
    if not is_first:
        before = [take_slot(tmp_path / name, 2) for name in ("bridge", "serve")]
    for command, name, more in (
        (bridge, "bridge", ["--set", "lmcache.kafka=127.0.0.1:9"]),
        (serve, "serve", ["--set", "acting.on=true", "--set", "serve.leave_to=replicas"]),
    ):
        done = CliRunner().invoke(command, [*ROLE, "--data", str(tmp_path / name), *more])
        assert done.exit_code == 0, done.output
    assert seen[0].lmcache.is_on is is_first
    assert seen[1].acting.is_on is is_first
    assert seen[1].leave.shared == tmp_path / "serve"
    assert seen[1].leave.to == "replicas"
    for slot in before:
        os.close(slot.lock)
