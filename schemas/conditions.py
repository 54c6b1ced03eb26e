"""What is wrong with a role now, in the same words in every role, log, answer and metric.

A condition is one part of a role that does not work as it should. Its level says what that means:

    degraded      the role does its work; something is wrong, or will be if it lasts
    unavailable   the role cannot do its work now

One rule follows: a role is ready while no condition of it is `unavailable`. `GET /health` is always
200 and shows all conditions; `GET /ready` is 200 while ready and 503 while not.

Pure but for a lock: the clock and the log are passed in.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from schemas.limits import CONDITION_REPEAT_S

READY: Final = 200
NOT_READY: Final = 503


class Part(StrEnum):
    """What a condition is about; each ends by the success of its own part. A room whose log has a
    condition of its own names that where it declares the log (`logs.declaration`).
    """

    RECOVERY = "recovery"  # reading what there is, after a start
    LOG = "log"  # appending records
    LOG_SYNC = "log_sync"  # making appended records durable
    RETENTION = "retention"  # dropping old records of the embedded log
    TABLE = "table"  # writing the table's rows, or reading them
    HISTORY = "history"  # recording the table's past, or dropping what is old of it
    DATA = "data"  # the data directory itself
    LOSS = "loss"  # records that the embedded log has lost
    AUDIT = "audit"  # writing the log of answers
    OUTCOMES = "outcomes"  # what engines found in their caches, against what was answered
    ROUTING = "routing"  # writing the routing log
    REQUESTS = "requests"  # of clients, at engines that they were sent to
    TOKENS = "tokens"  # made of text here, against what engines compute
    KAFKA = "kafka"  # the brokers and the topics
    REGISTRY = "registry"  # who is registered, as a bridge follows it
    SPOOL = "spool"  # records that wait on a bridge's disk
    MEMORY = "memory"  # the directory of memory segments
    WORKER = "worker"  # the process that folds
    ENGINES = "engines"  # those of a relay; of a bridge, those that never were there
    ENGINE_KEYS = "engine_keys"  # that engines are asked with
    KEYS = "keys"  # who may connect to a relay
    INTERNAL = "internal"  # an unexpected error; see the log


DISK_PARTS: Final = (Part.LOG, Part.LOG_SYNC, Part.RETENTION, Part.TABLE)
"""Of the embedded form: each failure of theirs is a failed read, write or sync; and so is each of
the parts that logs declare."""


class Level(StrEnum):
    """What a condition means for the role; see the module."""

    DEGRADED = "degraded"
    UNAVAILABLE = "unavailable"


class Condition(NamedTuple):
    """One thing that is wrong now.

    Attributes:
        part: what it is about, a `Part` or that of a room's log.
        reason: one word for machines, of a fixed set, as `recovering`.
        message: one sentence for people; may change while the condition lasts.
        since: when it began, Unix seconds.
        level: what it means for the role.
    """

    part: str
    reason: str
    message: str
    since: float
    level: Level


class Log(Protocol):
    """Where `Conditions` logs that one begins or ends; a `logging.Logger` is one."""

    def warning(self, text: str, /, *values: object) -> None:
        """Logs that something is wrong; `text` takes the values by `%`."""
        ...

    def info(self, text: str, /, *values: object) -> None:
        """Logs that it is over."""
        ...


class _Line(NamedTuple):
    """The last line in the log about a condition that lasts."""

    message: str
    at: float


class Conditions:
    """All conditions of one role, at most one of each part. Any thread may call it.

    Each is logged once when it begins and once when it ends, and between the two only where
    another message shows `CONDITION_REPEAT_S` or more after the last line about it.

    Args:
        clock: Unix seconds.
        log: told when one begins and when it ends; None: not logged.

    Attributes:
        ready: whether none is `unavailable`.
        failures: how often each part was set; only rises.
        on_change: called after each of them was set or cleared.
    """

    def __init__(self, clock: Callable[[], float], log: Log | None = None) -> None:
        self.ready = True
        self.failures: Counter[str] = Counter()
        self.on_change: Callable[[], None] = lambda: None
        self._clock = clock
        self._log = log
        self._lock = threading.Lock()
        self._by_part: dict[str, Condition] = {}
        self._logged: dict[str, _Line] = {}
        self._sorted: tuple[Condition, ...] = ()

    def set(
        self,
        part: str,
        reason: str,
        message: str,
        level: Level = Level.DEGRADED,
        *,
        logged: bool = True,
    ) -> None:
        """The part does not work, or still does not, for this reason.

        Args:
            part: replaces what was known of it, but for `since`.
            reason: see `Condition`.
            message: see `Condition`.
            level: see the module.
            logged: False where the caller has logged it, or where it is normal during a start.
        """
        now = self._clock()
        with self._lock:
            before = self._by_part.get(part)
            since = now if before is None else before.since
            self._by_part[part] = Condition(part, reason, message, since, level)
            self.failures[part] += 1
            self._sort()
            line = self._logged.get(part)
            is_news = logged and self._log is not None and _is_news(line, message, now)
            if is_news:
                self._logged[part] = _Line(message, now)
        self.on_change()
        if is_news and self._log is not None:
            self._log.warning("%s failed, retrying: %s", part, message)

    def clear(self, part: str) -> None:
        """The part works."""
        if part not in self._by_part:
            return
        now = self._clock()
        with self._lock:
            ended = self._by_part.pop(part, None)
            line = self._logged.pop(part, None)
            self._sort()
        self.on_change()
        if ended is not None and line is not None and self._log is not None:
            after_s = max(now - ended.since, 0.0)
            self._log.info("%s recovered after %.1f s (was: %s)", part, after_s, ended.message)

    def all(self) -> tuple[Condition, ...]:
        """What is wrong now, the worst first, then the oldest. Cost O(1)."""
        return self._sorted

    def has(self, part: str) -> bool:
        """Whether something is wrong with the part. Cost O(1)."""
        return part in self._by_part

    @property
    def problem(self) -> str:
        """All messages in one line, the worst first, or ""."""
        return problem(self._sorted)

    def _sort(self) -> None:
        worst_first = sorted(self._by_part.values(), key=_rank)
        self._sorted = tuple(worst_first)
        self.ready = is_ready(worst_first)


def _is_news(line: _Line | None, message: str, now: float) -> bool:
    if line is None:
        return True
    return message != line.message and now >= line.at + CONDITION_REPEAT_S


def _rank(condition: Condition) -> tuple[bool, float]:
    return condition.level is not Level.UNAVAILABLE, condition.since


def is_ready(conditions: Iterable[Condition]) -> bool:
    """The rule of the module: no condition is `unavailable`."""
    return all(condition.level is not Level.UNAVAILABLE for condition in conditions)


def problem(conditions: Iterable[Condition]) -> str:
    """All messages in one line, each once, or ""."""
    return "; ".join(dict.fromkeys(condition.message for condition in conditions))


def health_document(role: str, conditions: Iterable[Condition], version: str) -> dict[str, object]:
    """What every role answers to `GET /health`, always with 200; a role may add fields."""
    found = tuple(conditions)
    return {
        "status": "alive",
        "ready": is_ready(found),
        "role": role,
        "problem": problem(found),
        "conditions": [
            condition._asdict() | {"since": round(condition.since, 3)} for condition in found
        ],
        "version": version,
    }


def ready_document(conditions: Iterable[Condition]) -> tuple[int, dict[str, object]]:
    """Status and document of every role's answer to `GET /ready`."""
    found = sorted(conditions, key=_rank)
    if is_ready(found):
        return READY, {"ready": True}
    return NOT_READY, {"ready": False, "error": problem(found), "reason": found[0].reason}
