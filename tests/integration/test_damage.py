"""Power cuts and damaged files: whatever happens to a file of a data directory, a start answers, or
names `reprise repair`, after which it does. And never is an answer wrong and `exact`.

The directories are copies of that of a service under load, taken while it was stopped for a moment.
The truth of a copy is a fold of its log before it was damaged; that of the last one, taken once all
was quiet, is also what the engines hold.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from logs.embedded import ReadOnlyLog
from reprise.embedded.repair import DirectoryRepair
from reprise.embedded.service import EmbeddedService
from reprise.settings import TABLE_FLUSH_S, Settings
from schemas.answer_states import AnswerState
from schemas.conditions import Part
from schemas.errors import DamagedError
from schemas.identities import ModelContext, PrefixScope
from streams.index_settings import DEFAULT_SEED
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.verification import fresh_fold
from tests.deployment import held_by_fold
from tests.load import Engine, Load
from tests.processes import Service, until

SCOPE = PrefixScope("default", "m", "", 16, "")
LIVE_COPIES = 4
Digests = Mapping[ModelContext, int]


class Copy(NamedTuple):
    """A directory, and the digests of a fold of its log."""

    path: Path
    truth: Digests

    def has(self, case: "Case") -> bool:
        """Whether it has a file of the case."""
        return any((self.path / case.database).glob(case.pattern))


def digests_of(fold: Fold) -> Digests:
    return {view.context: view.digest for view in fold.kernel.contexts() if view.entries}


def truth_of(data: Path) -> Fold:
    log = ReadOnlyLog(data / "log")
    fold = Fold(open_kernel(DEFAULT_SEED))
    fresh_fold(fold, log)
    log.close()
    return fold


def copied(service: Service, to: Path) -> Copy:
    """As a power cut at this moment would leave it, had all that was written reached the disk."""
    assert service.process is not None
    os.kill(service.process.pid, signal.SIGSTOP)
    try:
        shutil.copytree(service.data, to)
    finally:
        os.kill(service.process.pid, signal.SIGCONT)
    return Copy(to, digests_of(truth_of(to)))


@pytest.fixture
def copies(tmp_path: Path, seed: int) -> list[Copy]:
    moments = random.Random(seed)
    load = Load(seed, [Engine(name, gpu_blocks=300) for name in "ab"], pause_s=0.002)
    try:
        with Service(tmp_path / "data") as service:
            for engine in load.engines:
                service.register(engine.publisher.endpoint, instance_id=engine.instance_id)
            load.start()
            until(lambda: service.digest()["contexts"], what="the first blocks")
            service.restart()  # which makes data files of the write-ahead logs
            found = []
            for number in range(LIVE_COPIES):
                until(
                    lambda: service.metric("reprise_table_folded_offset") > 50 * (number + 1),  # noqa: B023
                    what="records",
                )
                # What no row covers yet may be cut off where a record ends, and nothing shows it.
                time.sleep(2 * TABLE_FLUSH_S + moments.random())
                found.append(copied(service, tmp_path / f"live-{number}"))
                service.restart()
            load.stop()
            for engine in load.engines:  # what it sent during the restarts is gone: start anew
                until(lambda engine=engine: engine.publisher.subscribers, what="a subscriber")  # type: ignore[misc]
                engine.clear()
                engine.serve(load.prompt(8))
            held = {engine.instance_id: engine.held() for engine in load.engines}
            until(lambda: held_by_fold(truth_of(service.data)) == held, what="all is logged")
            until(lambda: "table" not in str(service.get("/health")[1]["problem"]), what="flushed")
            found.append(copied(service, tmp_path / "quiet"))
    finally:
        load.close()
    return found


# Damage

Change = Callable[[bytes, random.Random], bytes]


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: len(content) - _length(content, rng)]


def zeroed(content: bytes, rng: random.Random) -> bytes:
    length = _length(content, rng)
    return content[: len(content) - length] + bytes(length)


def _length(content: bytes, rng: random.Random) -> int:
    """Often short, sometimes all of it."""
    return min(int(rng.choice([1, 108, 4096, 33_000, 10**9]) * (0.5 + rng.random())), len(content))


def flipped(content: bytes, rng: random.Random) -> bytes:
    if not content:
        return b"\x01"
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


class Case(NamedTuple):
    """What is done to which file of which database."""

    database: str
    pattern: str
    how: Change


RECORDS = [
    Case("log", "*.rec", how) for how in (cut, cut, cut, zeroed, zeroed, zeroed, flipped, flipped)
]
CASES = RECORDS + [
    Case(database, pattern, how)
    for database in ("log", "table")
    for pattern, how, times in (
        ("*.log", cut, 3),
        ("*.log", zeroed, 4),
        ("*.log", flipped, 3),
        ("*.sst", flipped, 2),
        ("*.sst", cut, 1),
        ("MANIFEST-*", flipped, 1),
        ("MANIFEST-*", cut, 1),
        ("CURRENT", flipped, 1),
        ("OPTIONS-*", flipped, 1),
        ("IDENTITY", flipped, 1),
        ("LOCK", flipped, 1),
        ("rocksdict-config.json", flipped, 1),
    )
    for _ in range(times)
]


class Outcome(NamedTuple):
    """What a start came to: what it refused with, or else its answers."""

    refusal: str
    state: AnswerState = AnswerState.EXACT
    digests: Digests = MappingProxyType({})


def start(data: Path) -> Outcome:
    try:
        service = EmbeddedService(Settings(data=data))
    except DamagedError as error:
        return Outcome(str(error))
    service.start()
    try:
        until(
            lambda: service.damage or not service.conditions.has(Part.RECOVERY),
            what=f"recovery: {service.conditions.problem}",
        )
        if service.damage:
            return Outcome(str(service.damage))
        return Outcome("", service.view.state(SCOPE), digests_of(service.folding.fold))
    finally:
        service.stop()


@pytest.mark.timeout(300)
def test_a_damaged_directory_answers_or_names_its_remedy_and_is_never_wrong_and_exact(
    tmp_path: Path, copies: list[Copy], seed: int
) -> None:
    rng = random.Random(seed)
    outcomes = []
    for number, case in enumerate(CASES):
        copy = rng.choice([one for one in copies if one.has(case)])
        data = tmp_path / f"case-{number}"
        shutil.copytree(copy.path, data)
        file = rng.choice(sorted((data / case.database).glob(case.pattern)))
        file.write_bytes(case.how(file.read_bytes(), rng))
        told = f"seed {seed}, case {number}: {case.how.__name__} {file} of {copy.path.name}"
        outcome = start(data)
        if outcome.refusal:
            assert case.database == "log", f"{told}: the table can be made again: {outcome}"
            assert "reprise repair --data" in outcome.refusal, f"{told}: {outcome}"
            found = DirectoryRepair(data)
            done = list(found.carry_out(found.examine()))
            outcome = start(data)
            assert not outcome.refusal, f"{told}: {done}, {outcome}"
        if outcome.state is AnswerState.EXACT:
            assert outcome.digests == copy.truth, f"{told}: wrong and exact"
        outcomes.append((case, outcome.state, outcome.digests == copy.truth))
        shutil.rmtree(data)
    right = sum(is_right for _, _, is_right in outcomes)
    assert right > len(CASES) / 2, f"seed {seed}: {outcomes}"


# The commands themselves


def reprise(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "reprise", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.smoke
def test_up_refuses_a_damaged_log_and_starts_once_it_was_repaired(tmp_path: Path) -> None:
    engine = Engine("a")
    data = tmp_path / "data"
    try:
        with Service(data) as service:
            service.register(engine.publisher.endpoint)
            refused = reprise("repair", "--data", str(data))
            assert (refused.returncode, "locked" in refused.stderr) == (1, True)
            service.stop()
            (manifest,) = (data / "log").glob("MANIFEST-*")
            content = bytearray(manifest.read_bytes())
            content[len(content) // 2] ^= 1
            manifest.write_bytes(content)
            up = reprise("up", "--data", str(data), "--port", "0")
            assert up.returncode == 1
            assert f"{manifest.name} is damaged" in up.stderr
            assert f"`reprise repair --data {data}`" in up.stderr
            assert "Traceback" not in up.stderr
            looked = reprise("repair", "--data", str(data))
            assert (looked.returncode, "Nothing was changed." in looked.stdout) == (3, True)
            done = reprise("repair", "--data", str(data), "--yes")
            assert done.returncode == 0, done.stderr
            assert "log.damaged-1" in done.stdout
            service.start()
            assert [one["InstanceID"] for one in service.get("/services")[1]["services"]] == ["a"]
            service.stop()
        assert reprise("repair", "--data", str(data)).returncode == 0
    finally:
        engine.publisher.close()
