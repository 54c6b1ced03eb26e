"""What of the advice is done, and when not: by what was done before. Pure.

All that is known of what was done comes from the log of commands, so whoever reads that, after a
restart or on another replica, holds back the same:

    under_way    the same prefix is on its way to the same instance
    repeated     the same was done within the horizon, whatever came of it: what has timed out may
                 have been executed, or be executed yet
    backing_off  the last commands at the source or at the target have failed: after n of them for
                 ACT_BACKOFF_FIRST_S * 2 ** (n - 1), up to ACT_BACKOFF_MAX_S
    at_once      as many are under way as may be
    rate         as many were begun within ACT_RATE_S as may be

A command that all workers have executed, and that brought no token, has failed (`empty`): LMCache's
worker had none of the prefix, whatever its engine has, or found no room for it.

A copy that is on its way, or was made within the horizon, counts as held (`copied`), with all
prefixes that it begins with: what LMCache's workers hold is not always seen at the block size that
prompts are asked by, and what was just copied is not seen at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from routing.advice.advice import AdvisedAction
from schemas.command_records import CommandState
from schemas.limits import (
    ACT_COMMANDS_MAX,
    ACT_HORIZON_S,
    ACT_RATE_MAX,
    ACT_RATE_S,
    ACT_REMEMBERED_S,
    ACT_UNKNOWN_S,
)

# What a bound holds back is counted by reprise_acting_suppressed_total with the reason that is
# given.
ACT_BACKOFF_FIRST_S: Final = 60.0  # after a failure at an instance, and twice that after the next:
ACT_BACKOFF_MAX_S: Final = 960.0  # up to this: reason="backing_off"

assert ACT_BACKOFF_FIRST_S <= ACT_BACKOFF_MAX_S < ACT_REMEMBERED_S, "a back-off is remembered"

EMPTY: Final = "empty"


class SuppressionReason(StrEnum):
    """Why an advice is not carried out; see the module for the first ones."""

    UNDER_WAY = "under_way"
    REPEATED = "repeated"
    BACKING_OFF = "backing_off"
    AT_ONCE = "at_once"
    RATE = "rate"
    NO_WORKER = "no_worker"
    """No holder is an instance whose workers take commands, or the target takes no blocks."""
    NO_TOKENS = "no_tokens"
    """No prompt with the prefix has come since it was advised, or none with its tokens."""
    TOO_LONG = "too_long"
    """More tokens than a command may have."""
    REFUSED = "refused"
    """The service that gives commands did not take it."""
    UNWRITTEN = "unwritten"
    """The log of commands did not take it."""


class Act(NamedTuple):
    """Something that was done by advice.

    Attributes:
        command_id: its name in the log of commands.
        source: the instance that executes it.
        target: the instance that has the prefix then.
        at: when it was begun, Unix seconds.
        state: what became of it.
        reason: why not, for people.
        ended_at: Unix seconds; 0.0 while it is under way.
        tokens: that were copied or pinned, as the worker with the fewest says.
    """

    command_id: str
    action: AdvisedAction
    prefix: int
    source: str
    target: str
    at: float
    state: CommandState = CommandState.PENDING
    reason: str = ""
    ended_at: float = 0.0
    tokens: int = 0

    @property
    def is_done(self) -> bool:
        """Whether all workers have executed it, and it brought anything."""
        return self.result == CommandState.DONE

    @property
    def result(self) -> str:
        """What came of it: its state, or `empty` where it is done and brought nothing."""
        is_empty = self.state is CommandState.DONE and not self.tokens
        return EMPTY if is_empty else self.state.value


class ActRules(NamedTuple):
    """How much is done at most; see the module.

    Attributes:
        at_once: commands that have not ended.
        rate: commands that were begun within ACT_RATE_S.
        horizon_s: within which the same is not done again.
        backoff_first_s, backoff_max_s: after failures at an instance.
        unknown_s: after which what has not ended has failed.
    """

    at_once: int = ACT_COMMANDS_MAX
    rate: int = ACT_RATE_MAX
    horizon_s: float = ACT_HORIZON_S
    backoff_first_s: float = ACT_BACKOFF_FIRST_S
    backoff_max_s: float = ACT_BACKOFF_MAX_S
    unknown_s: float = ACT_UNKNOWN_S


class _Failures(NamedTuple):
    times: int = 0
    last_at: float = 0.0


class PastActs:
    """What was done, as of a moment. Cost O(acts log(acts)).

    Attributes:
        under_way: how many have not ended.
    """

    def __init__(self, acts: Iterable[Act], now: float, rules: ActRules) -> None:
        """Args:
        acts: in any order; each command once.
        now: Unix seconds. What says to be of later, is of now.
        """
        self._now = now
        self._rules = rules
        self._last: dict[tuple[int, str], Act] = {}
        self._failures: dict[str, _Failures] = {}
        self._begun = 0  # within ACT_RATE_S
        self.under_way = 0
        recent = (one for one in acts if now - one.at <= ACT_REMEMBERED_S)
        for act in sorted(recent, key=lambda one: (one.at, one.command_id)):
            self._note(act._replace(at=min(act.at, now)))

    def _note(self, act: Act) -> None:
        self._last[act.prefix, act.target] = act
        self._begun += self._now - act.at < ACT_RATE_S
        if self._is_under_way(act):
            self.under_way += 1
            return
        for instance_id in {act.source, act.target}:
            if act.is_done:
                self._failures.pop(instance_id, None)
            else:
                known = self._failures.get(instance_id, _Failures())
                # By another's clock it may have ended before it began.
                ended_at = max(act.ended_at or act.at + self._rules.unknown_s, act.at)
                ended_at = min(ended_at, self._now)
                last_at = max(known.last_at, ended_at)
                self._failures[instance_id] = _Failures(known.times + 1, last_at)

    def _is_under_way(self, act: Act) -> bool:
        is_pending = act.state is CommandState.PENDING
        return is_pending and self._now - act.at < self._rules.unknown_s

    def begin(self, act: Act) -> None:
        """One more, now."""
        self._note(act)

    def is_backing_off(self, instance_id: str) -> bool:
        """Whether commands at the instance, or to it, have failed of late."""
        times, last_at = self._failures.get(instance_id, _Failures())
        if not times:
            return False
        rules = self._rules
        # Bounded before it is a power: there may be as many as the log has commands.
        doubled = rules.backoff_first_s * 2.0 ** min(times - 1, 32)
        return self._now < last_at + min(doubled, rules.backoff_max_s)

    def why_not(self, prefix: int, target: str) -> SuppressionReason | None:
        """Why a prefix is not brought to an instance now; None where nothing is against it."""
        act = self._last.get((prefix, target))
        if act is not None:
            if self._is_under_way(act):
                return SuppressionReason.UNDER_WAY
            if self._now - act.at < self._rules.horizon_s:
                return SuppressionReason.REPEATED
        if self.is_backing_off(target):
            return SuppressionReason.BACKING_OFF
        if self.under_way >= self._rules.at_once:
            return SuppressionReason.AT_ONCE
        if self._begun >= self._rules.rate:
            return SuppressionReason.RATE
        return None

    def copied(self) -> dict[int, frozenset[str]]:
        """By prefix, the instances that count as holders since it was copied there."""
        found: dict[int, frozenset[str]] = {}
        for (prefix, target), act in self._last.items():
            if act.action is not AdvisedAction.COPY:
                continue
            is_recent = self._now - act.at < self._rules.horizon_s
            if self._is_under_way(act) or (act.is_done and is_recent):
                found[prefix] = found.get(prefix, frozenset()) | {target}
        return found


def with_prefixes(
    copied: Mapping[int, frozenset[str]], parents: Mapping[int, int]
) -> dict[int, frozenset[str]]:
    """With all prefixes that those begin with: who was sent a prefix has them, too.

    Args:
        copied: by prefix, the instances.
        parents: of each prefix that is known, the one before it; 0 for none.
    """
    found: dict[int, frozenset[str]] = {}
    for prefix, instances in copied.items():
        seen: set[int] = set()
        while prefix and prefix not in seen:
            seen.add(prefix)
            found[prefix] = found.get(prefix, frozenset()) | instances
            prefix = parents.get(prefix, 0)
    return found


def source_of(
    preferred: Sequence[str], target: str, past: PastActs, takes_commands: Iterable[str]
) -> str | SuppressionReason:
    """The instance that is to send a prefix to the target.

    Args:
        preferred: who holds it, the best first.
        target: who is to have it.
        takes_commands: instances whose workers execute commands.
    """
    able = set(takes_commands)
    sources = [one for one in preferred if one != target and one in able]
    if not sources:
        return SuppressionReason.NO_WORKER
    ready = next((one for one in sources if not past.is_backing_off(one)), None)
    return SuppressionReason.BACKING_OFF if ready is None else ready
