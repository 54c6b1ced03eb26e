"""Backups and restorations: what is copied, what is refused, and what is left behind."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from logs.embedded import EmbeddedLog, ReadOnlyLog
from reprise.embedded import backup as backup_module
from reprise.embedded.backup import back_up
from reprise.embedded.backup_manifest import Manifest, facts_of, read_manifest
from reprise.embedded.restoration import restore
from schemas.errors import BackupError, DamagedError, DiskFullError
from schemas.progress import Progress
from streams.log.losses import LogLoss, LossNote
from streams.table.driver import recover
from streams.table.fold import Fold
from streams.table.table import Table
from streams.table.threads import run_without_loop
from streams.table.verification import context_digests
from tests.building import events_record, registered_record, registration, stored

SEED = 1337
BATCHES = 60
MakeFold = Callable[[], Fold]


class Written:
    """A data directory that is open and being written, as by a service."""

    def __init__(self, data: Path, make_fold: MakeFold) -> None:
        self.data = data
        self.log = EmbeddedLog(data / "log")
        self.table = Table(data / "table", make_fold, log=self.log)
        recover(self.table, self.log)
        self._numbers = random.Random(1)
        self._sequence = 0
        self._append(registered_record(registration()))

    def _append(self, record: bytes) -> None:
        self.log.append([record])

    def write(self, batches: int) -> None:
        for _ in range(batches):
            hashes = [self._numbers.getrandbits(64) for _ in range(5)]
            tokens = [self._numbers.getrandbits(31) for _ in range(20)]
            sequence, self._sequence = self._sequence, self._sequence + 1
            self._append(events_record(sequence, sequence, [stored(sequence, hashes, tokens)]))

    def fold(self) -> None:
        """Folds and flushes what was written."""
        self.table.apply(list(self.log.read(self.table.next_offset)))  # type: ignore[arg-type]
        run_without_loop(self.table.flush(now=0.0))

    def close(self) -> None:
        self.table.close()
        self.log.close()


@pytest.fixture
def written(tmp_path: Path, any_fold: MakeFold) -> Written:
    """With a third of the log in the table, and some of it in data files."""
    opened = Written(tmp_path / "data", any_fold)
    opened.write(BATCHES // 3)
    opened.fold()
    opened.log._db.flush()
    opened.write(2 * BATCHES // 3)
    return opened


def digests_of(data: Path, make_fold: MakeFold) -> dict[str, str]:
    log = ReadOnlyLog(data / "log")
    fold = make_fold()
    for entry in log.read(log.complete_from):
        fold.apply(entry.offset, entry.value)
    log.close()
    return context_digests(fold.kernel)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def rewrite(backup: Path, **fields: object) -> None:
    path = backup / "backup.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | fields))


def test_a_backup_of_what_is_being_written_is_restored_to_the_same(
    tmp_path: Path, written: Written, any_fold: MakeFold
) -> None:
    told: list[Progress] = []
    made = back_up(written.data, tmp_path / "backup", seed=SEED, tell=told.append)
    assert made.position == BATCHES
    expected = digests_of(written.data, any_fold)
    written.write(10)
    written.fold()
    written.close()
    assert made.digests == expected
    assert told
    assert told[-1].done <= (told[-1].total or 0)
    assert restore(tmp_path / "backup", tmp_path / "again") == made
    assert digests_of(tmp_path / "again", any_fold) == expected
    assert names(tmp_path) == ["again", "backup", "data"]


def test_plain_files_are_copied_and_what_was_set_aside_is_not(
    tmp_path: Path, written: Written
) -> None:
    LossNote(written.data).add(LogLoss(what="a disk", at=1.0, registrations=True))
    shutil.copytree(written.data / "log", written.data / "log.damaged-1")
    routing = written.data / "routing"
    routing.mkdir()
    (routing / "checkpoint").write_bytes(b"as of")
    EmbeddedLog(routing / "log").close()
    made = back_up(written.data, tmp_path / "backup", seed=SEED)
    written.close()
    restore(tmp_path / "backup", tmp_path / "again")
    loss = LossNote(tmp_path / "again").read()
    assert loss is not None
    assert loss.what == "a disk"
    assert (tmp_path / "again" / "routing" / "checkpoint").read_bytes() == b"as of"
    assert (tmp_path / "again" / "routing" / "log" / "CURRENT").exists()
    assert not any("damaged" in name for name in made.files)


def test_a_backup_without_a_table_folds_the_log(
    tmp_path: Path, written: Written, any_fold: MakeFold
) -> None:
    written.close()
    shutil.rmtree(written.data / "table")
    made = back_up(written.data, tmp_path / "backup", seed=SEED)
    assert made.digests == digests_of(written.data, any_fold)
    assert not (written.data / "table").exists(), "the data directory was changed"


def test_the_table_says_with_which_seed_it_was_made(tmp_path: Path, written: Written) -> None:
    made = back_up(written.data, tmp_path / "backup", seed=7)
    written.close()
    assert (made.seed, made.position) == (SEED, BATCHES)


def test_plain_files_that_never_stand_still_end_it(
    tmp_path: Path, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = 0
    plain = backup_module._plain_files

    def changing(data: Path) -> dict[Path, bytes]:
        nonlocal counted
        counted += 1
        return plain(data) | {Path("note"): b"%d" % counted}

    monkeypatch.setattr(backup_module, "_plain_files", changing)
    with pytest.raises(BackupError, match="stand still"):
        back_up(written.data, tmp_path / "backup", seed=SEED)
    written.close()
    assert names(tmp_path) == ["data"]


def test_a_damaged_database_ends_a_backup_and_leaves_nothing(
    tmp_path: Path, written: Written
) -> None:
    written.fold()
    written.close()
    file = next(iter((written.data / "log").glob("*.rec")))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    with pytest.raises(DamagedError, match=file.name):
        back_up(written.data, tmp_path / "backup", seed=SEED)
    assert names(tmp_path) == ["data"]


def test_no_room_is_told_before_anything_is_copied(
    tmp_path: Path, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DiskFullError):
        back_up(written.data, tmp_path / "backup", seed=SEED)
    written.close()
    assert names(tmp_path) == ["data"]


@pytest.fixture
def made(tmp_path: Path, written: Written) -> Manifest:
    """A backup in `backup`."""
    made = back_up(written.data, tmp_path / "backup", seed=SEED)
    written.close()
    return made


def refused(tmp_path: Path, match: str) -> None:
    before = names(tmp_path)
    with pytest.raises(BackupError, match=match):
        restore(tmp_path / "backup", tmp_path / "again")
    assert names(tmp_path) == before, "something was left"


def test_what_is_there_is_not_written_over(
    tmp_path: Path, made: Manifest, written: Written
) -> None:
    with pytest.raises(BackupError, match="exists"):
        back_up(written.data, tmp_path / "backup", seed=SEED)
    with pytest.raises(BackupError, match="exists"):
        restore(tmp_path / "backup", written.data)
    (tmp_path / "again").mkdir()
    restore(tmp_path / "backup", tmp_path / "again")  # an empty one is as good as none
    with pytest.raises(BackupError, match="without a log"):
        back_up(tmp_path, tmp_path / "other", seed=SEED)


def test_a_flipped_bit_and_a_lost_file_are_named(tmp_path: Path, made: Manifest) -> None:
    name = max(made.files, key=lambda name: made.files[name].bytes)
    file = tmp_path / "backup" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    refused(tmp_path, name)
    file.unlink()
    refused(tmp_path, name)


def test_another_digest_is_told_with_its_context(tmp_path: Path, made: Manifest) -> None:
    rewrite(tmp_path / "backup", digests=made.digests | {"t / other": "00 (1 entries)"})
    refused(tmp_path, "t / other")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"version": 2, "files": "of another form"}, "upgrade this one"),
        ({"files": {"../../out": {"bytes": 1, "sha256": "0"}}}, "leads out"),
        ({"files": {"log/\0": {"bytes": 1, "sha256": "0"}}}, "no file of a backup has"),
        ({"files": {"x" * 5_000: {"bytes": 1, "sha256": "0"}}}, "no file of a backup has: x{200}"),
        ({"files": {"x" * 300: {"bytes": 1, "sha256": "0"}}}, "File name too long"),
        ({"files": {"": {"bytes": 1, "sha256": "0"}}}, "no file of a backup has"),
        ({"files": {"a//b": {"bytes": 1, "sha256": "0"}}}, "no file of a backup has"),
        ({"files": {"/dev/zero": {"bytes": 1, "sha256": "0"}}}, "leads out"),
        ({"files": {"log": {"bytes": -1, "sha256": "0"}}}, r"backup\.json"),
        ({"digests": "D"}, r"backup\.json"),
        ({"position": "x"}, r"backup\.json"),
        ({"version": None}, r"backup\.json"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_named(
    tmp_path: Path, made: Manifest, fields: dict[str, object], match: str
) -> None:
    rewrite(tmp_path / "backup", **fields)
    refused(tmp_path, match)


@pytest.mark.parametrize("kind", ["pipe", "link", "linked directory", "endless"])
def test_what_is_no_file_of_a_backup_is_refused_at_once(
    tmp_path: Path, made: Manifest, kind: str
) -> None:
    file = tmp_path / "backup" / "log" / "CURRENT"
    if kind == "linked directory":
        (tmp_path / "backup" / "log").rename(tmp_path / "elsewhere")
        (tmp_path / "backup" / "log").symlink_to(tmp_path / "elsewhere")
    else:
        file.unlink()
        match kind:
            case "pipe":
                os.mkfifo(file)
            case "link":
                file.symlink_to("/etc/hostname")
            case "endless":
                file.symlink_to("/dev/zero")
    refused(tmp_path, "got one without .*(symbolic link|a pipe)")


def test_a_file_that_is_longer_than_it_was_is_not_copied_to_its_end(
    tmp_path: Path, made: Manifest
) -> None:
    with (tmp_path / "backup" / "log" / "CURRENT").open("ab") as file:
        file.truncate(2**40)
    refused(tmp_path, "got another")


def test_a_damaged_database_in_a_backup_is_told_without_a_directory_that_is_gone(
    tmp_path: Path, made: Manifest
) -> None:
    file = next(iter((tmp_path / "backup" / "log").glob("MANIFEST-*")))
    file.write_bytes(b"x" * 100)
    name = f"log/{file.name}"
    changed = msgspec.to_builtins(made.files | {name: facts_of(file)})
    rewrite(tmp_path / "backup", files=changed)
    with pytest.raises(BackupError, match="Use another backup") as raised:
        restore(tmp_path / "backup", tmp_path / "again")
    assert "restoring" not in str(raised.value)


def test_a_manifest_that_has_no_end_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    path = tmp_path / "backup" / "backup.json"
    path.symlink_to("/dev/zero")
    with pytest.raises(BackupError, match="no regular file"):
        read_manifest(tmp_path / "backup")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BackupError, match="no regular file"):
        read_manifest(tmp_path / "backup")


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff{}", b'{"version":' + b"[" * 50_000, None])
def test_what_is_no_backup_is_told(tmp_path: Path, content: bytes | None) -> None:
    (tmp_path / "backup").mkdir()
    if content is not None:
        (tmp_path / "backup" / "backup.json").write_bytes(content)
    with pytest.raises(BackupError, match=r"backup\.json"):
        read_manifest(tmp_path / "backup")
