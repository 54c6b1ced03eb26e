"""What is damaged in a data directory of the embedded service, and its repair.

    part    found                     a start                        the repair
    ------  ------------------------  -----------------------------  ----------------------------
    log     whole                     goes on                        nothing
            with a torn end           goes on with what is before    nothing
            damaged, or with a hole   refuses                        what can be read is the log
    table   whole                     goes on                        nothing
            damaged                   sets it aside, folds it again  sets it aside
    routing damaged, or with a hole   sets it aside, begins anew     what can be read is the log

Nothing is deleted: what is damaged stays beside, as `log.damaged-1` or `table.damaged-1`. The
routing log is `routing/log`: what its checkpoint has of it, a start goes on with all the same.

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
from logs.embedded import ExaminedLog, RepairedLog, repaired_path
from routing.fold.fold import RoutingFold
from routing.log.embedded import ROUTING_LOG_PATH
from schemas.errors import DamagedError, RecordFormatError, RowCorruptError, StorageError
from schemas.identities import Offset
from storage.rocksdb import LOG, TABLE, Database, disk_errors, examine
from storage.salvage import check_not_in_use, free_name, move_aside, salvage
from streams.log.losses import LogLoss, LossNote
from streams.table.rows import format as rows

_LOCAL: Final = b"L"


class RepairFinding(NamedTuple):
    """One part of the data directory.

    Attributes:
        part: `log`, `table` or `routing`.
        text: what was found, in words.
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
        self._routing = data / ROUTING_LOG_PATH
        self._repaired = repaired_path(self._log)
        self._note = LossNote(data)
        if not any(path.is_dir() for path in (self._log, self._table, self._repaired)):
            raise StorageError(
                f"Expected a data directory of `reprise up`, got one without a log: {data}"
            )
        for path in (self._log, self._table, self._routing):
            check_not_in_use(path)

    # Looking

    def examine(self) -> list[RepairFinding]:
        """What is damaged, and what would be done; changes nothing. Reads all there is."""
        return [self._examine_log(), self._examine_table(), *self._examine_routing()]

    def _examine_log(self) -> RepairFinding:
        if not self._log.exists():
            if self._repaired.exists():
                return RepairFinding("log", "its repair was interrupted", "finishes it")
            return RepairFinding("log", "none: a start begins an empty one behind the table")
        return _examined("log", self._log, self._data)

    def _examine_routing(self) -> Iterator[RepairFinding]:
        """Nothing where nothing was ever decided."""
        if self._routing.exists():
            found = _examined("routing", self._routing, self._data)
            if found.remedy:
                text = f"{found.text}; a start sets it aside and goes on with its checkpoint"
                found = found._replace(text=text)
            yield found
        try:
            read_checkpoint(self._routing.with_name("checkpoint"), RoutingFold.load)
        except RecordFormatError as error:
            yield RepairFinding("routing", f"{error}: a start folds its log from the beginning")
        for path in sorted(self._routing.parent.glob(f"{self._routing.name}.damaged-*")):
            text = (
                f"{path} was set aside. To have what can be read of it in place of what was decided"
                f" since, move it to {self._routing} and repair it"
            )
            yield RepairFinding("routing", text)

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
        if "routing" in damaged:
            yield from self._repair_routing()

    def _repair_routing(self) -> Iterator[str]:
        """A kill before its end leaves none, which the next start begins anew."""
        making = self._routing.with_name(self._routing.name + ".repairing")
        salvaged = salvage(self._routing, LOG, making)
        made = RepairedLog(making)
        try:
            holes = made.holes()
            if holes:
                made.complete_only_from(Offset(holes[-1][1] + 1))
            made.sync()
        finally:
            made.close()
        missing = f"; records {_said_of(holes)} are missing" if holes else ""
        yield f"routing {salvaged.entries} entries could be read{missing}"
        yield f"routing the damaged one is {move_aside(self._routing, LOG.name)}"
        with disk_errors("put the repaired routing log in place", self._routing):
            making.rename(self._routing)

    def _repair_log(self) -> Iterator[str]:
        if self._log.exists():
            making = self._log.with_name(self._log.name + ".repairing")
            salvaged = salvage(self._log, LOG, making)  # Step 1.
            made = RepairedLog(making)
            try:
                what = self._settle(made)
            finally:
                made.close()
            with disk_errors("put the repaired log in place", self._repaired):
                shutil.rmtree(self._repaired, ignore_errors=True)
                making.rename(self._repaired)
            yield f"log    {salvaged.entries} entries could be read; {what}"
            yield f"log    the damaged one is {move_aside(self._log, LOG.name)}"  # Step 4.
        with disk_errors("put the repaired log in place", self._log):
            self._repaired.rename(self._log)
        yield f"log    the repaired one is {self._log}"

    def _settle(self, made: RepairedLog) -> str:
        """Steps 2 and 3; returns what is lost, in words."""
        holes = made.holes()
        last = holes[-1][1] if holes else -1
        if holes:
            made.complete_only_from(Offset(last + 1))
        made.sync()
        covered = self._covered()
        missing = f"records {_said_of(holes)}" if holes else "no record before its last one"
        what = f"a repair of the log found missing: {missing}"
        vouched = covered is not None and covered >= last
        self._note.add(LogLoss(what=what, at=time.time(), registrations=not vouched))
        return f"missing: {missing}, and whatever came after {made.end_offset - 1}"

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


def _examined(part: str, path: Path, data: Path) -> RepairFinding:
    """A log that is there; reads all of it."""
    remedy = f"what can be read becomes the log, and the damaged one is kept as {free_name(path)}"
    try:
        torn = examine(path, LOG)
        log = ExaminedLog(path, data=data)
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
