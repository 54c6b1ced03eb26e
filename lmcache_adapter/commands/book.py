"""What became of the last commands: a fold of their log. Pure; `schemas.command_records` has the
rule by which a command ends once.

The topics of commands and of results have no common order, so a result may be read before its
command: it waits for that, in order.
"""

from collections import Counter, OrderedDict
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from lmcache_adapter.bounds import COMMANDS_KEPT_MAX
from schemas.command_records import (
    AnyCommandRecord,
    ClosedRecord,
    CommandOutcome,
    CommandRecord,
    CommandState,
    ResultRecord,
)

# What is older is forgotten: reprise_commands_forgotten_total.
COMMANDS_EARLY_MAX: Final = 4096  # results whose command was not read yet: the oldest are dropped

REPEATED: Final = "repeated"
LATE: Final = "late"
EARLY: Final = "early"
STRANGE: Final = "strange_worker"


class CommandView(NamedTuple):
    """One command as it stands.

    Attributes:
        command: without its tokens.
        results: of its workers, in the order in which they came.
        reason: why it has ended before all had answered, or "".
        closed_at: Unix seconds; 0.0 while it is pending.
    """

    command: CommandRecord
    tokens: int
    results: tuple[ResultRecord, ...]
    state: CommandState
    reason: str
    closed_at: float


class _Entry:
    def __init__(self, command: CommandRecord) -> None:
        self.tokens = len(command.tokens or b"") // 4
        self.command = msgspec.structs.replace(command, tokens=None)
        self.missing = {one.worker_id for one in command.workers}
        self.results: list[ResultRecord] = []
        self.reason = ""
        self.closed_at = 0.0
        self.is_closed = False

    def close(self, at: float, reason: str = "") -> None:
        self.closed_at, self.reason, self.is_closed = at, reason, True

    @property
    def state(self) -> CommandState:
        if not self.is_closed:
            return CommandState.PENDING
        done = sum(one.outcome is CommandOutcome.OK for one in self.results)
        if done == len(self.command.workers):
            return CommandState.DONE
        return CommandState.PARTIAL if done else CommandState.FAILED

    def view(self) -> CommandView:
        return CommandView(
            self.command,
            self.tokens,
            tuple(self.results),
            self.state,
            self.reason,
            self.closed_at,
        )


class CommandBook:
    """The last COMMANDS_KEPT_MAX commands. One thread.

    Attributes:
        issued: commands, by action.
        ended: commands, by state.
        results: that counted, by outcome.
        ignored: records that changed nothing, by reason: `repeated`, `late`, `strange_worker`; and
            `early`, of which the command was not read in time.
        forgotten: commands that had to go for later ones.
    """

    def __init__(self) -> None:
        self.issued: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.results: Counter[str] = Counter()
        self.ignored: Counter[str] = Counter()
        self.forgotten = 0
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._early: OrderedDict[str, list[ResultRecord | ClosedRecord]] = OrderedDict()
        self._early_records = 0

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, record: AnyCommandRecord) -> CommandView | None:
        """Folds one record of the log; returns the command that has ended by it, if one has."""
        if isinstance(record, CommandRecord):
            return self._begin(record)
        entry = self._entries.get(record.command_id)
        if entry is None:
            self._keep_early(record)
            return None
        return self._apply(entry, record)

    def _begin(self, command: CommandRecord) -> CommandView | None:
        if command.command_id in self._entries:
            self.ignored[REPEATED] += 1
            return None
        self.issued[command.action] += 1
        entry = self._entries[command.command_id] = _Entry(command)
        while len(self._entries) > COMMANDS_KEPT_MAX:
            self._entries.popitem(last=False)
            self.forgotten += 1
        ended = None
        early = self._early.pop(command.command_id, [])
        self._early_records -= len(early)
        for record in early:
            ended = self._apply(entry, record) or ended
        return ended

    def _apply(self, entry: _Entry, record: ResultRecord | ClosedRecord) -> CommandView | None:
        if entry.is_closed:
            self.ignored[LATE] += 1
            return None
        if isinstance(record, ClosedRecord):
            entry.close(record.at, record.reason)
        elif record.worker_id in entry.missing:
            entry.missing.remove(record.worker_id)
            entry.results.append(record)
            self.results[record.outcome] += 1
            if entry.missing:
                return None
            entry.close(record.at)
        else:
            known = {one.worker_id for one in entry.results}
            self.ignored[REPEATED if record.worker_id in known else STRANGE] += 1
            return None
        self.ended[entry.state] += 1
        return entry.view()

    def _keep_early(self, record: ResultRecord | ClosedRecord) -> None:
        self._early.setdefault(record.command_id, []).append(record)
        self._early_records += 1
        while self._early_records > COMMANDS_EARLY_MAX:
            _, gone = self._early.popitem(last=False)
            self._early_records -= len(gone)
            self.ignored[EARLY] += len(gone)

    def find(self, command_id: str) -> CommandView | None:
        """The command as it stands; None: it is not known, or forgotten."""
        entry = self._entries.get(command_id)
        return None if entry is None else entry.view()

    def latest(
        self, limit: int, *, origin: str | None = None, since: float = 0.0
    ) -> list[CommandView]:
        """So many commands at the most, the latest first. Cost O(commands).

        Args:
            limit: how many.
            origin: whose; None for anybody's.
            since: only what was issued since then, Unix seconds.
        """
        found = (
            entry.view()
            for entry in reversed(self._entries.values())
            if origin in (None, entry.command.origin) and entry.command.issued_at >= since
        )
        return list(islice(found, limit))

    def is_closed(self, command_id: str) -> bool:
        """Whether it has ended, or is not known."""
        entry = self._entries.get(command_id)
        return entry is None or entry.is_closed

    def pending(self) -> list[str]:
        """The commands that have not ended, oldest first. Cost O(commands)."""
        return [name for name, entry in self._entries.items() if not entry.is_closed]
