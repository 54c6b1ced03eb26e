"""What a run of the fleet is, and what came of it: as JSON, and as a table of Markdown."""

from collections.abc import Sequence
from typing import Final

import msgspec

from lab.benchmarks.report.document import number_text
from lab.benchmarks.report.figures import percentile
from lab.benchmarks.report.machine import Machine
from lab.benchmarks.scaling.probing import ProbeResult

_MIB: Final = 1024**2


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is run; times in seconds, `told_per_s` messages of all that are asked for.

    `busy_loops` processes that only count take CPU for `busy_s`, from `busy_after_s` on.
    """

    publishers: int
    seconds: float
    period_s: float = 10.0
    blocks: int = 4
    held: int = 8
    idle_s: float = 20.0
    sample_s: float = 10.0
    found_s: float = 5.0
    told_per_s: float = 10.0
    busy_loops: int = 0
    busy_after_s: float = 0.0
    busy_s: float = 0.0


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """All services at one moment.

    Attributes:
        at: seconds since the schedule began.
        cpu_s: user and system time since they were started.
        files_most: of the service that has the most.
    """

    at: float
    cpu_s: float
    memory_bytes: int
    files: int
    files_most: int


class BusyLoopResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of the busy loops.

    Attributes:
        new_links: that came up from the start of the loops on.
        lost_batches: that the services say were lost.
        cores: of the services beside them.
        exact_after_s: from the end of the loops until all publishers were `exact`; None: never.
        states: publishers by what answers said of them when the loops ended.
    """

    new_links: int
    lost_batches: int
    cores: float
    exact_after_s: float | None
    states: dict[str, int]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run.

    Attributes:
        registered_s, followed_s: until all were registered; from then until each had a subscriber.
        memory_empty_bytes, memory_followed_bytes: of all services, before the first registration,
            and while nobody sends.
        idle_cpu: cores of all services while all publishers are followed and nobody sends.
        busy_cpu: the same over the time in which they send.
        messages, blocks: sent; blocks that were stored.
        late_s: how late the latest message was sent.
        publishers_cpu: cores of the publishers' processes.
        asked: messages of which an answer was asked for.
        missed: of them, those that no answer had within `found_s`.
        wrong: of them, those of which an answer had something else.
        removed_shown: of them, those whose answer still had what the message removed.
        behind: publishers whose last batch was not folded in the end.
        states: publishers by what answers say of them in the end.
        found_s: p50, p99 and the most, from the send to the answer that has the blocks.
        beside: what came of the busy loops; None without any.
    """

    machine: Machine
    plan: FleetPlan
    services: int
    open_files_limit: int
    registered_s: float
    followed_s: float
    memory_empty_bytes: int
    memory_followed_bytes: int
    files_empty: int
    idle_cpu: float
    busy_cpu: float
    messages: int
    blocks: int
    late_s: float
    publishers_cpu: float
    asked: int
    missed: int
    wrong: int
    removed_shown: int
    behind: int
    states: dict[str, int]
    found_s: tuple[float, float, float]
    samples: list[Sample]
    beside: BusyLoopResult | None = None


def cores_of(samples: Sequence[Sample]) -> float:
    """Cores of all services, on average over these samples; 0 of one."""
    seconds = samples[-1].at - samples[0].at
    return (samples[-1].cpu_s - samples[0].cpu_s) / seconds if seconds else 0.0


def spread_of(answered: Sequence[ProbeResult]) -> tuple[float, float, float]:
    """Seconds until answers had the blocks: p50, p99 and the most."""
    seconds = [one.seconds for one in answered if one.seconds is not None] or [0.0]
    return percentile(seconds, 50), percentile(seconds, 99), max(seconds)


def table_lines(summary: Summary) -> list[str]:
    """The summary as a table of Markdown."""
    plan, last = summary.plan, summary.samples[-1]
    publishers = plan.publishers
    memory = max(one.memory_bytes for one in summary.samples)
    p50, p99, most = (1000 * seconds for seconds in summary.found_s)
    each = (summary.memory_followed_bytes - summary.memory_empty_bytes) / publishers
    rows = {
        "publishers, services that follow them": f"{publishers:,}, {summary.services}",
        "time": f"{plan.seconds / 60:.1f} min",
        "messages, blocks stored": f"{summary.messages:,}, {summary.blocks:,}",
        "registered after, all followed after": f"{summary.registered_s:.0f} s,"
        f" {summary.registered_s + summary.followed_s:.0f} s",
        "CPU of the services, nobody sends": f"{summary.idle_cpu:.2f} cores",
        "CPU of the services, all send": f"{summary.busy_cpu:.2f} cores",
        "memory of a publisher": f"{each / 1024:.0f} KiB",
        "memory of the services, most": f"{memory / _MIB:,.0f} MiB",
        "open files of a publisher": number_text((last.files - summary.files_empty) / publishers),
        "open files of a service, most": f"{max(one.files_most for one in summary.samples):,}",
        "asked for, found, not found in time, wrong": f"{summary.asked:,},"
        f" {summary.asked - summary.missed - summary.wrong:,}, {summary.missed:,},"
        f" {summary.wrong + summary.removed_shown:,}",
        "until an answer has a block, p50 / p99 / most": f"{p50:.0f} / {p99:.0f} / {most:.0f} ms",
        "latest message sent late by": f"{1000 * summary.late_s:.0f} ms",
        "publishers behind in the end": f"{summary.behind:,}",
        "states in the end": _states_text(summary.states),
    }
    if summary.beside is not None:
        rows |= _beside_rows(plan, summary.beside)
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]


def _beside_rows(plan: FleetPlan, beside: BusyLoopResult) -> dict[str, str]:
    after = beside.exact_after_s
    return {
        "busy loops beside it": f"{plan.busy_loops}, for {plan.busy_s / 60:.1f} min",
        "CPU of the services beside them": f"{beside.cores:.2f} cores",
        "new links, lost batches": f"{beside.new_links:,}, {beside.lost_batches:,}",
        "states when they ended": _states_text(beside.states),
        "until all were `exact` again": "never" if after is None else f"{after:.1f} s",
    }


def _states_text(states: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(states.items()))
