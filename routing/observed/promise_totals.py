"""Promise against outcome, summed up by minute, model, policy and instance.

A row counts decisions in the minute in which they were made, and what came of them in the minute in
which that was told, both by the time of records. Times are summed in whole microseconds, so that
sums do not depend on an order, and parts of a log can be added up.
"""

from collections.abc import Mapping
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

import msgspec

from routing.observed.promises import IndexCause, Promise, PromiseTokens, bucket
from schemas.limits import OUTCOMES_MIN
from schemas.routing_records import (
    CANCELLED,
    FAILED,
    OutcomeEvent,
)

PROMISE_ROWS_MAX: Final = 16_384  # of sums, 1 KiB each: of="promise_rows", "promises_crowded"
CONTRADICTED_SHARE: Final = 0.1  # of the tokens of prompts: what is wrong by less is right
PROMISE_TTFT_S_MAX: Final = 100_000.0  # a longer time counts as this: sums must fit 64 bits

RATIO_BOUNDS: Final = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)
"""Of the buckets of actual / promised time to the first token; one more holds what is above."""

SHARE_BOUNDS: Final = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Of the buckets of over-promise, the share of the prompt; one more holds what is above."""

_MINUTE: Final = 60.0

_FIELDS: Final[dict[IndexCause, str]] = {
    cause: cause.value for cause in IndexCause if cause is not IndexCause.PREDICTED
}
"""In which a row has tokens that were lost for a cause."""


class GroupBy(StrEnum):
    """What the rows of an answer are of."""

    INSTANCE = "instance"
    POLICY = "policy"
    MODEL = "model"


class PromiseKey(NamedTuple):
    """Whose promises a row is of. The adapters of a model count with it.

    Attributes:
        policy: with its parameters.
        instance_id: that was chosen; "" where nobody was.
    """

    tenant_id: str
    model_name: str
    policy: str
    instance_id: str


class ServedInstance(NamedTuple):
    """What was sent to one instance of a model, whatever policy chose it."""

    tenant_id: str
    model_name: str
    instance_id: str


class Totals(msgspec.Struct, array_like=True):
    """Sums over decisions. Token counts are of those for which an engine told its hits.

    Attributes:
        decisions: that were made.
        refused: of these, those that chose nobody to compute the prompt.
        reported: of which the engine's hits are known.
        unreported: that ended, or expired, without.
        moved: that went elsewhere than told.
        failed, cancelled: that ended so.
        miscounted: of whose prompt the engine has another length than the decision.
        prompt, promised, actual, predicted, fetched, unpromised, workload, routing, index,
            not_fetched, not_predicted: tokens, see `PromiseTokens`.
        stale, degraded, unconfirmed, evicted: tokens, of `index` without `not_predicted`.
        timed: that had a time to the first token, and were promised one.
        in_p90: of these, those that took no longer than the 90th percentile promised.
        ttft_promised_us, ttft_actual_us: their sums, microseconds.
        ttft_error_us: sum of the differences, whichever was longer.
        ttft_ratios: how many had actual / promised in each bucket of `RATIO_BOUNDS`.
        over_promises: how many had so much of the prompt promised and not held, by `SHARE_BOUNDS`.
    """

    decisions: int = 0
    refused: int = 0
    reported: int = 0
    unreported: int = 0
    moved: int = 0
    failed: int = 0
    cancelled: int = 0
    miscounted: int = 0
    prompt: int = 0
    promised: int = 0
    actual: int = 0
    predicted: int = 0
    fetched: int = 0
    unpromised: int = 0
    workload: int = 0
    routing: int = 0
    index: int = 0
    not_fetched: int = 0
    not_predicted: int = 0
    stale: int = 0
    degraded: int = 0
    unconfirmed: int = 0
    evicted: int = 0
    timed: int = 0
    in_p90: int = 0
    ttft_promised_us: int = 0
    ttft_actual_us: int = 0
    ttft_error_us: int = 0
    ttft_ratios: list[int] = msgspec.field(default_factory=lambda: [0] * (len(RATIO_BOUNDS) + 1))
    over_promises: list[int] = msgspec.field(default_factory=lambda: [0] * (len(SHARE_BOUNDS) + 1))

    @property
    def is_nothing(self) -> bool:
        """Whether the index has promised nothing: all that was promised, only decisions said."""
        return self.promised == self.predicted

    @property
    def missing(self) -> int:
        """Tokens that the index promised, and the engine did not find."""
        return self.index - self.not_predicted

    @property
    def has_surprises(self) -> bool:
        """Whether much was found that nobody had promised."""
        return self.unpromised > CONTRADICTED_SHARE * self.prompt

    @property
    def has_misses(self) -> bool:
        """Whether much of what the index promised was not found."""
        return self.missing > CONTRADICTED_SHARE * self.prompt

    @property
    def has_silent_hits(self) -> bool:
        """Whether much was found, and the index has promised nothing."""
        return self.is_nothing and self.actual > CONTRADICTED_SHARE * self.prompt

    def add(self, other: "Totals") -> None:
        """The other's counts, too."""
        for name in self.__struct_fields__:
            mine, more = getattr(self, name), getattr(other, name)
            if isinstance(mine, list):
                setattr(self, name, [one + two for one, two in zip(mine, more, strict=True)])
            else:
                setattr(self, name, mine + more)

    def note_tokens(self, tokens: PromiseTokens, cause: IndexCause) -> None:
        """An engine has told its hits of one prompt."""
        self.reported += 1
        self.prompt += tokens.prompt
        self.promised += tokens.promised
        self.actual += tokens.actual
        self.predicted += tokens.predicted
        self.fetched += tokens.fetched
        self.unpromised += tokens.unpromised
        self.workload += tokens.workload
        self.routing += tokens.routing
        self.index += tokens.index
        self.not_fetched += tokens.not_fetched
        self.not_predicted += tokens.not_predicted
        certain = tokens.index - tokens.not_predicted
        name = _FIELDS.get(cause, "unconfirmed")
        setattr(self, name, getattr(self, name) + certain)
        share = tokens.index / tokens.prompt if tokens.prompt else 0.0
        self.over_promises[bucket(SHARE_BOUNDS, share)] += 1


def _microseconds(seconds: float) -> int:
    return round(min(seconds, PROMISE_TTFT_S_MAX) * 1e6)


class RecentTotals(NamedTuple):
    """Sums over the latest minutes of an instance that have any, and how many these are."""

    totals: Totals
    minutes: int

    @property
    def contradict(self) -> bool:
        """Whether enough outcomes say that the instance holds more or less than it was said to."""
        is_judged = self.totals.reported >= OUTCOMES_MIN
        return is_judged and (self.find_more or self.totals.has_misses)

    @property
    def find_more(self) -> bool:
        """What only decisions said is promised, too; so it can hide that the index has nothing. But
        that is so of each burst of new prompts, which are not indexed yet: in one minute it says
        nothing.
        """
        return self.totals.has_surprises or (self.minutes > 1 and self.totals.has_silent_hits)


NOT_SERVED: Final = RecentTotals(Totals(), 0)
"""Of who was sent nothing."""


class TotalsState(msgspec.Struct, frozen=True, array_like=True):
    """See `PromiseTotals.state`; its encoding is canonical."""

    minutes: tuple[tuple[int, tuple[tuple[PromiseKey, Totals], ...]], ...]
    forgotten: int
    crowded_out: int


class PromiseTotals:
    """See the module. At most `rows_max` rows; the oldest minutes go first. Cost O(1) a note.

    Attributes:
        forgotten: rows that were given up with their minutes.
        crowded_out: notes without a row, since one minute has as many rows as there may be.
        noted: sums over all that was noted here, whoever's it was: no part of the state, and never
            less than before, as counters of metrics are.
    """

    def __init__(self, rows_max: int = PROMISE_ROWS_MAX) -> None:
        self.forgotten = self.crowded_out = 0
        self.noted = Totals()
        self._rows_max = rows_max
        self._minutes: dict[int, dict[PromiseKey, Totals]] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many rows there are."""
        return self._count

    def note_decision(self, time: float, key: PromiseKey) -> None:
        """A decision was made."""
        for row in self._rows(time, key):
            row.decisions += 1
            row.refused += not key.instance_id

    def note_cached(
        self, time: float, promise: Promise, tokens: PromiseTokens, engine_prompt: int | None
    ) -> None:
        """An engine has told its hits, and perhaps how long the prompt was."""
        for row in self._rows(time, key_of(promise)):
            row.note_tokens(tokens, promise.cause)
            row.miscounted += engine_prompt not in (None, promise.prompt)

    def note_ttft(self, time: float, promise: Promise, actual_s: float) -> None:
        """A request had its first token after so many seconds, and was promised one."""
        promised, actual = _microseconds(promise.ttft_s), _microseconds(actual_s)
        place = bucket(RATIO_BOUNDS, actual / promised if promised else inf)
        for row in self._rows(time, key_of(promise)):
            row.timed += 1
            row.in_p90 += actual_s <= promise.p90_s
            row.ttft_promised_us += promised
            row.ttft_actual_us += actual
            row.ttft_error_us += abs(actual - promised)
            row.ttft_ratios[place] += 1

    def note_moved(self, time: float, promise: Promise) -> None:
        """A request went elsewhere than told."""
        for row in self._rows(time, key_of(promise)):
            row.moved += 1

    def note_end(self, time: float, promise: Promise, event: OutcomeEvent | None) -> None:
        """A request has ended; None where nobody has told how."""
        is_failed, is_cancelled, is_unknown = (
            event is FAILED,
            event is CANCELLED,
            not promise.has_cached,
        )
        for row in self._rows(time, key_of(promise)):
            row.failed += is_failed
            row.cancelled += is_cancelled
            row.unreported += is_unknown

    def rows(self, since: float = 0.0) -> dict[PromiseKey, Totals]:
        """Sums over the minutes from the one on in which that time lies. Cost O(rows)."""
        found: dict[PromiseKey, Totals] = {}
        for minute, rows in self._minutes.items():
            if (minute + 1) * _MINUTE > since:
                for key, row in rows.items():
                    found.setdefault(key, Totals()).add(row)
        return found

    def latest(self, reported: int, since: float) -> dict[ServedInstance, RecentTotals]:
        """The sums of each instance over its latest minutes: two, or as many as have so many
        reported requests, and none before the one in which that time lies. So whatever was wrong
        before is forgotten once so many requests went well. Cost O(rows).
        """
        found: dict[ServedInstance, RecentTotals] = {}
        for minute, rows in sorted(self._minutes.items(), reverse=True):
            if (minute + 1) * _MINUTE <= since:
                break
            of_minute: dict[ServedInstance, list[Totals]] = {}
            for key, row in rows.items():
                if key.instance_id:
                    served = ServedInstance(key.tenant_id, key.model_name, key.instance_id)
                    of_minute.setdefault(served, []).append(row)
            for served, its in of_minute.items():
                totals, minutes = found.get(served, NOT_SERVED)
                if minutes >= 2 and totals.reported >= reported:
                    continue
                totals = Totals() if not minutes else totals
                for row in its:
                    totals.add(row)
                found[served] = RecentTotals(totals, minutes + 1)
        return found

    def state(self) -> TotalsState:
        """All of it. Cost O(rows log(rows))."""
        return TotalsState(
            tuple(
                (minute, tuple(sorted(rows.items(), key=lambda row: row[0])))
                for minute, rows in sorted(self._minutes.items())
            ),
            self.forgotten,
            self.crowded_out,
        )

    def restore(self, state: TotalsState) -> None:
        """The inverse of `state`, into one that is empty."""
        self.forgotten, self.crowded_out = state.forgotten, state.crowded_out
        self._minutes = {minute: dict(rows) for minute, rows in state.minutes}
        self._count = sum(map(len, self._minutes.values()))

    def _rows(self, time: float, key: PromiseKey) -> tuple[Totals, ...]:
        """Where something is noted: in the row of the minute, if there is room, and in all."""
        row = self._row(time, key)
        return (self.noted,) if row is None else (self.noted, row)

    def _row(self, time: float, key: PromiseKey) -> Totals | None:
        minute = int(time // _MINUTE)
        rows = self._minutes.get(minute)
        row = rows.get(key) if rows is not None else None
        if row is not None:
            return row
        while self._count >= self._rows_max:
            oldest = min(self._minutes)
            if oldest >= minute:
                self.crowded_out += 1
                return None
            gone = len(self._minutes.pop(oldest))
            self._count -= gone
            self.forgotten += gone
        self._count += 1
        return self._minutes.setdefault(minute, {}).setdefault(key, Totals())


def key_of(promise: Promise) -> PromiseKey:
    """Whose row a promise belongs to."""
    scope = promise.scope
    return PromiseKey(scope.tenant_id, scope.model_name, promise.policy, promise.target.instance_id)


def grouped(rows: Mapping[PromiseKey, Totals], by: GroupBy) -> list[tuple[tuple[str, str], Totals]]:
    """Tenant and name with the sums of all rows of that instance, policy or model; sorted."""
    found: dict[tuple[str, str], Totals] = {}
    for key, row in rows.items():
        match by:
            case GroupBy.INSTANCE:
                name = key.instance_id
            case GroupBy.POLICY:
                name = key.policy
            case GroupBy.MODEL:
                name = key.model_name
        found.setdefault((key.tenant_id, name), Totals()).add(row)
    return sorted(found.items(), key=lambda row: row[0])
