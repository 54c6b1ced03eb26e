"""What is damaged in a data directory of the embedded service, and its repair.

    part    found                     a start                        the repair
    ------  ------------------------  -----------------------------  ----------------------------
    log     whole                     goes on                        nothing
            with a torn end           goes on with what is before    nothing
            damaged, or with a hole   refuses                        what can be read is the log
    table   whole                     goes on                        nothing
            damaged                   sets it aside, folds it again  sets it aside
    routing damaged, or with a hole   sets it aside, begins anew     what can be read is the log

and as `routing`, the routing log, each log that its room declares to be repaired (`reprise.logs`).
Nothing is deleted: what is damaged stays beside, as `log.damaged-1` or `table.damaged-1`. What the
checkpoint of such a log has of it, a start goes on with all the same.

Repairing the log; a kill at any moment leaves what a further repair goes on with:

    Step 1. what can be read is copied into a new log.
    Step 2. where records are missing before its end, it counts as complete only from behind them.
    Step 3. what was lost is noted (`streams.log.losses`), so that answers are not `exact` for those
    who may have lost something; nor any, where a registration may be lost that no table has.
    Step 4. the damaged log is moved aside, and the new one takes its place.

A table that is whole is kept: what it covers it has, whatever the log has lost.
"""

import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from logs.checkpoint import read_checkpoint
from logs.declaration import LogDeclaration
from logs.embedded import ExaminedLog, RepairedLog, repaired_path
from reprise.logs import declared_logs
from schemas.errors import DamagedError, RecordFormatError, RowCorruptError, StorageError
from schemas.identities import Offset
from storage.rocksdb import LOG, TABLE, Database, Preset, disk_errors, examine
from storage.salvage import check_not_in_use, free_name, move_aside, salvage
from streams.log.losses import LogLoss, LossNote
from streams.table.rows import format as rows

_LOCAL: Final = b"L"


class RepairFinding(NamedTuple):
    """One part of the data directory.

    Attributes:
        part: `log`, `table`, or the first name of a declared log's path, as `routing`.
        remedy: what the repair does; "" where there is nothing to do.
    """

    part: str
    text: str
    remedy: str = ""


class DirectoryRepair:
    """See the module. Nobody else may use the directory meanwhile.

    Args:
        data: the data directory.

    Raises:
        DataDirectoryInUseError: a service uses it.
        StorageError: it is no data directory of an embedded service.
    """

    def __init__(self, data: Path) -> None:
        self._data = data
        self._log = data / "log"
        self._table = data / "table"
        self._declared = [_DeclaredRepair(one, data) for one in declared_logs() if one.since]
        self._repaired = repaired_path(self._log)
        self._note = LossNote(data)
        if not any(path.is_dir() for path in (self._log, self._table, self._repaired)):
            raise StorageError(
                f"Expected a data directory of `reprise up`, got one without a log: {data}"
            )
        for path in (self._log, self._table, *(one.path for one in self._declared)):
            check_not_in_use(path)

    # Looking

    def examine(self) -> list[RepairFinding]:
        """What is damaged, and what would be done; changes nothing. Reads all there is."""
        found = [self._examine_log(), self._examine_table()]
        return found + [finding for one in self._declared for finding in one.examine()]

    def _examine_log(self) -> RepairFinding:
        if not self._log.exists():
            if self._repaired.exists():
                return RepairFinding("log", "its repair was interrupted", "finishes it")
            return RepairFinding("log", "none: a start begins an empty one behind the table")
        return _examined("log", self._log, self._data)

    def _examine_table(self) -> RepairFinding:
        if not self._table.exists():
            return RepairFinding("table", "none: a start folds it from the log")
        try:
            covered = _covered_by(self._table)
        except (DamagedError, RowCorruptError) as error:
            return RepairFinding(
                "table", _said(error), f"it is moved to {free_name(self._table)}, and made again"
            )
        return RepairFinding("table", f"whole, covers records up to {covered}")

    @property
    def doubt(self) -> str:
        """What an earlier loss leaves to be said by the operator, or ""."""
        loss = self._note.read()
        if loss is None or not loss.registrations:
            return ""
        return (
            f"{loss.what}: registrations may be among it, so every answer is degraded. Register"
            " all engines again (`GET /services` shows those that are known), then say so with"
            " `--all-registered`"
        )

    # Doing

    def carry_out(self, findings: Iterable[RepairFinding]) -> Iterator[str]:
        """Does what `examine` has said just now, and yields what was done.

        Raises:
            DiskFullError: there is no room for the new log; nothing was changed.
            StorageError: it failed; what was damaged is still there.
        """
        damaged = {finding.part for finding in findings if finding.remedy}
        if "table" in damaged:
            yield f"table  moved to {move_aside(self._table, TABLE.name)}"
        if "log" in damaged:
            yield from self._repair_log()
        for one in self._declared:
            if one.part in damaged:
                yield from one.repair()

    def _repair_log(self) -> Iterator[str]:
        if self._log.exists():
            making = self._log.with_name(self._log.name + ".repairing")
            remade = _remade(self._log, LOG, making)  # Steps 1 and 2.
            what = self._note_loss(remade)
            with disk_errors("put the repaired log in place", self._repaired):
                shutil.rmtree(self._repaired, ignore_errors=True)
                making.rename(self._repaired)
            yield f"log    {remade.entries} entries could be read; {what}"
            yield f"log    the damaged one is {move_aside(self._log, LOG.name)}"  # Step 4.
        with disk_errors("put the repaired log in place", self._log):
            self._repaired.rename(self._log)
        yield f"log    the repaired one is {self._log}"

    def _note_loss(self, remade: "_RemadeLog") -> str:
        """Step 3; returns what is lost, in words."""
        holes = remade.holes
        last = holes[-1][1] if holes else -1
        covered = self._covered()
        missing = f"records {_said_of(holes)}" if holes else "no record before its last one"
        what = f"a repair of the log found missing: {missing}"
        vouched = covered is not None and covered >= last
        self._note.add(LogLoss(what=what, at=time.time(), registrations=not vouched))
        return f"missing: {missing}, and whatever came after {remade.end_offset - 1}"

    def _covered(self) -> int | None:
        try:
            return _covered_by(self._table) if self._table.exists() else None
        except StorageError:
            return None

    def end_doubt(self) -> None:
        """Every engine is registered again: what was lost leaves no doubt about who there is.

        Raises:
            DiskError: the note stands.
        """
        self._note.end_doubt()


class _DeclaredRepair:
    """Of a log that its room declares to be repaired."""

    def __init__(self, declared: LogDeclaration, data: Path) -> None:
        self.path = declared.path_in(data)
        self.part = self.path.relative_to(data).parts[0]
        self._declared = declared
        self._data = data

    def examine(self) -> Iterator[RepairFinding]:
        """Nothing where nothing was ever written."""
        if self.path.exists():
            found = _examined(self.part, self.path, self._data, self._declared.preset)
            if found.remedy:
                text = f"{found.text}; a start sets it aside and goes on with its checkpoint"
                found = found._replace(text=text)
            yield found
        checkpoint = self._declared.checkpoint
        try:
            if checkpoint is not None:
                read_checkpoint(self._data / checkpoint.path, checkpoint.load)
        except RecordFormatError as error:
            yield RepairFinding(self.part, f"{error}: a start folds its log from the beginning")
        for path in sorted(self.path.parent.glob(f"{self.path.name}.damaged-*")):
            text = (
                f"{path} was set aside. To have what can be read of it in place of"
                f" {self._declared.since}, move it to {self.path} and repair it"
            )
            yield RepairFinding(self.part, text)

    def repair(self) -> Iterator[str]:
        """A kill before its end leaves none, which the next start begins anew."""
        making = self.path.with_name(self.path.name + ".repairing")
        remade = _remade(self.path, self._declared.preset, making)
        missing = f"; records {_said_of(remade.holes)} are missing" if remade.holes else ""
        yield f"{self.part} {remade.entries} entries could be read{missing}"
        yield f"{self.part} the damaged one is {move_aside(self.path, self._declared.preset.name)}"
        name = self._declared.name.removeprefix("the ")
        with disk_errors(f"put the repaired {name} in place", self.path):
            making.rename(self.path)


class _RemadeLog(NamedTuple):
    entries: int
    holes: list[tuple[int, int]]
    end_offset: int


def _remade(path: Path, preset: Preset, making: Path) -> _RemadeLog:
    """What can be read of a log, in a new one that says from where on it is complete."""
    salvaged = salvage(path, preset, making)
    made = RepairedLog(making, preset=preset)
    try:
        holes = made.holes()
        if holes:
            made.complete_only_from(Offset(holes[-1][1] + 1))
        made.sync()
        return _RemadeLog(salvaged.entries, holes, made.end_offset)
    finally:
        made.close()


def _examined(part: str, path: Path, data: Path, preset: Preset = LOG) -> RepairFinding:
    """A log that is there; reads all of it."""
    remedy = f"what can be read becomes the log, and the damaged one is kept as {free_name(path)}"
    try:
        torn = examine(path, preset)
        log = ExaminedLog(path, data=data, preset=preset)
        try:
            holes, bounds = log.holes(), log.bounds
        finally:
            log.close()
    except DamagedError as error:
        return RepairFinding(part, _said(error), remedy)
    if holes:
        return RepairFinding(part, f"damaged: records {_said_of(holes)} are missing", remedy)
    text = f"whole, with records {bounds.start} to {bounds.end - 1}"
    if torn:
        text += f"; its end is torn ({torn}), and a start goes on with what is before"
    return RepairFinding(part, text)


def _said(error: StorageError) -> str:
    return f"damaged: {error}"


def _said_of(holes: list[tuple[int, int]]) -> str:
    shown = ", ".join(f"{first} to {last}" for first, last in holes[:10])
    return shown if len(holes) <= 10 else f"{shown} and {len(holes) - 10} more stretches"


def _covered_by(path: Path) -> int | None:
    """What a table's rows cover, all of which are read; None for an empty one.

    Raises:
        DamagedError, RowCorruptError: they cannot be used.
    """
    examine(path, TABLE)
    database = Database.up_to_damage(path, TABLE)
    covered = None
    try:
        with disk_errors("read the table", path):
            for key, value in database.scan(b"", b""):
                if key == _LOCAL:
                    continue
                row = rows.decode_row(key, value)
                if key == rows.COVERED_KEY:
                    covered = row.covers
    finally:
        database.close()
    return covered
