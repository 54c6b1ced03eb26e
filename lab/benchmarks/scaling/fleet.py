"""A fleet of simulated publishers on this machine, followed by as many `reprise up` as it takes.

    python -m lab.benchmarks.scaling.fleet --publishers 10000 --minutes 10 --json fleet.json
    python -m lab.benchmarks.scaling.fleet --publishers 10000 --minutes 5 --busy-loops 4

Each publisher has a ZeroMQ socket of its own on loopback and sends a batch of a few blocks every
ten seconds. All of them are registered; once each has a subscriber, CPU is taken for a while in
which nobody sends. Then they send for the given time, while memory, open files and CPU of the
services are sampled, and blocks that were just stored are asked for: an answer has to show them, of
their publisher alone, within the given time. In the end the last batch of each publisher has to be
folded, with none lost. A process follows as many publishers as its bound (`PUBLISHERS_MAX`) and
its open files allow: more of them are shared among several services, evenly.

With busy loops, processes that only count, the minutes are those in which they run: the publishers
send for two periods before them and AFTER_BUSY_S after them, in which all are to be `exact` again.
"""

import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Final

import click
import msgspec

from lab.benchmarks.embedded.service import Service, resident_bytes, until
from lab.benchmarks.job_process import JobProcess
from lab.benchmarks.report.machine import describe_machine
from lab.benchmarks.scaling.busy_loops import BusyLoops, Counts
from lab.benchmarks.scaling.fleet_process import FleetSent, PublishersJob, ScheduleStart
from lab.benchmarks.scaling.fleet_report import (
    FleetPlan,
    Sample,
    Summary,
    cores_of,
    spread_of,
    table_lines,
)
from lab.benchmarks.scaling.probing import (
    Prober,
    ProbeResult,
    instance_name,
    open_files,
)
from lab.benchmarks.sizes import SEED
from reprise.http.open_files import raise_open_files_limit
from schemas.limits import PUBLISHER_FILES_LEFT_MAX, PUBLISHER_FILES_SHARE, PUBLISHERS_MAX
from streams.kernel import native_available

PUBLISHER_FILES: Final = 5
"""Of a service, for each publisher."""
SOCKET_FILES: Final = 3
"""Of the publishers' process, for each: it listens, has a connection, and is woken up."""
OTHER_FILES: Final = 200
PUBLISHERS_A_PROCESS: Final = 2500
ADDRESS: Final = "127.0.1.{}"
"""Loopback addresses other than the usual one have ports of their own."""
START_AFTER_S: Final = 1.0
FOLDED_S: Final = 120.0
AFTER_BUSY_S: Final = 30.0
_MIB: Final = 1024**2


class _Publisher(msgspec.Struct):
    instance_id: str = msgspec.field(name="InstanceID")
    sequence: int = msgspec.field(name="Sequence")
    state: str = msgspec.field(name="State")
    reason: str = msgspec.field(name="Reason")


class _Services(msgspec.Struct):
    services: list[_Publisher]


def followed_max(open_files_limit: int) -> int:
    """Publishers that one process follows, by its bound and its limit of open files."""
    left = min(open_files_limit // PUBLISHER_FILES_SHARE, PUBLISHER_FILES_LEFT_MAX)
    by_files = (open_files_limit - left - OTHER_FILES) // PUBLISHER_FILES
    return max(min(PUBLISHERS_MAX, by_files), 1)


def shares(total: int, parts: int) -> list[range]:
    """Numbers from 0 on in runs of about the same length."""
    cuts = [total * part // parts for part in range(parts + 1)]
    return [range(first, end) for first, end in pairwise(cuts)]


class Publishers(JobProcess):
    """The handle of one `fleet_process`, which ends with the block."""

    module = "lab.benchmarks.scaling.fleet_process"

    def endpoints(self) -> list[str]:
        """Of its publishers, in order."""
        return self.hear(list[str])

    def wait_subscribed(self) -> None:
        """Until each has a subscriber."""
        self.hear(str)

    def begin(
        self, begin: ScheduleStart, addresses: list[tuple[str, int]], found_s: float
    ) -> Prober:
        """Starts the schedule; returns who asks for what is sent."""
        self.tell(begin)
        prober = Prober(self.job, self.lines, addresses, found_s)
        prober.start()
        return prober


class Services:
    """The services, and which of them follows which publisher."""

    def __init__(self, services: list[Service], publishers: int) -> None:
        self.all = services
        self._of = [
            service
            for service, share in zip(services, shares(publishers, len(services)), strict=True)
            for _ in share
        ]

    def of(self, publisher: int) -> Service:
        """The one that follows it."""
        return self._of[publisher]

    def register(self, endpoints: list[str]) -> None:
        """Registers all publishers, one after the other at each service."""

        def at(service: Service) -> None:
            for publisher, endpoint in enumerate(endpoints):
                if self.of(publisher) is service:
                    service.register(endpoint, instance_name(publisher))

        with ThreadPoolExecutor(len(self.all)) as pool:
            list(pool.map(at, self.all))

    def cpu_s(self) -> float:
        """User and system time of all of them."""
        return sum(service.cpu_s() for service in self.all)

    def counts(self) -> Counts:
        """See `busy_loops`."""
        found = [service.metrics() for service in self.all]
        return Counts(
            links=int(sum(one["reprise_bridge_links_total"] for one in found)),
            lost_batches=int(sum(one["reprise_bridge_lost_batches_total"] for one in found)),
        )

    def states(self) -> dict[str, int]:
        """Publishers by what answers say of them."""
        return _counts(self.listed())

    def memory_bytes(self) -> int:
        """Resident memory of all of them."""
        return sum(resident_bytes(service.pid) for service in self.all)

    def files(self) -> list[int]:
        """Open files of each."""
        return [open_files(service.pid) for service in self.all]

    def sample(self, at: float) -> Sample:
        """What they take now."""
        files = self.files()
        return Sample(
            at=at,
            cpu_s=self.cpu_s(),
            memory_bytes=self.memory_bytes(),
            files=sum(files),
            files_most=max(files),
        )

    def listed(self) -> dict[str, _Publisher]:
        """What all of them say of their publishers, by instance."""
        found: dict[str, _Publisher] = {}
        for service in self.all:
            answer = msgspec.json.decode(service.get("/services"), type=_Services)
            found |= {publisher.instance_id: publisher for publisher in answer.services}
        return found


def run(plan: FleetPlan, services: int, say: Callable[[str], None]) -> Summary:
    """Runs it, in some minutes more than `plan.seconds`; no process is left when this returns.

    Raises:
        RuntimeError: a process has ended, or a registration was refused.
        TimeoutError: not all publishers were followed, or something else took too long.
    """
    machine = describe_machine()
    with ExitStack() as stack:
        known = Services(
            [stack.enter_context(Service("rust")) for _ in range(services)],
            plan.publishers,
        )
        memory_empty, files_empty = known.memory_bytes(), sum(known.files())
        groups = [stack.enter_context(Publishers(job)) for job in jobs_of(plan)]
        started = time.monotonic()
        known.register([endpoint for group in groups for endpoint in group.endpoints()])
        registered_s = time.monotonic() - started
        say(f"{plan.publishers:,} publishers registered in {registered_s:.1f} s")
        for group in groups:
            group.wait_subscribed()
        followed_s = time.monotonic() - started - registered_s
        say(f"all of them followed {followed_s:.1f} s later")
        cpu_s, since = known.cpu_s(), time.monotonic()
        time.sleep(plan.idle_s)
        idle_cpu = (known.cpu_s() - cpu_s) / (time.monotonic() - since)
        memory_followed = known.memory_bytes()
        say(f"nobody sends: {idle_cpu:.2f} cores, {memory_followed / _MIB:,.0f} MiB")
        begin = ScheduleStart(start=time.monotonic() + START_AFTER_S, seconds=plan.seconds)
        probers = [
            group.begin(
                begin,
                [
                    known.of(group.job.first + place).address
                    for place in range(group.job.publishers)
                ],
                plan.found_s,
            )
            for group in groups
        ]
        busy = BusyLoops(plan, known, begin.start, say) if plan.busy_loops else None
        if busy is not None:
            busy.start()
        samples = _watch(plan, known, probers, begin, say)
        if busy is not None:
            busy.join()
            if busy.beside is None:
                raise RuntimeError("Expected the services to answer beside busy loops: see above")
        sent = [_sent(prober) for prober in probers]
        last = {
            instance_name(group.job.first + place): sequence
            for group, one in zip(groups, sent, strict=True)
            for place, sequence in enumerate(one.last_sequences)
        }
        behind, listed = _wait_folded(known, last)
        answered = [one for prober in probers for one in prober.answered]
        for one in answered:
            if one.wrong:
                say(one.wrong)
        return Summary(
            machine=machine,
            plan=plan,
            services=services,
            open_files_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            registered_s=registered_s,
            followed_s=followed_s,
            memory_empty_bytes=memory_empty,
            memory_followed_bytes=memory_followed,
            files_empty=files_empty,
            idle_cpu=idle_cpu,
            busy_cpu=cores_of(samples),
            messages=sum(one.messages for one in sent),
            blocks=sum(one.stored_blocks for one in sent),
            late_s=max(one.late_s for one in sent),
            publishers_cpu=sum(one.cpu_s for one in sent) / plan.seconds,
            asked=len(answered),
            missed=sum(one.seconds is None and not one.wrong for one in answered),
            wrong=sum(bool(one.wrong) for one in answered),
            removed_shown=sum(one.removed_shown for one in answered),
            behind=behind,
            states=_counts(listed),
            found_s=spread_of(answered),
            samples=samples,
            beside=None if busy is None else busy.beside,
        )


def jobs_of(plan: FleetPlan) -> list[PublishersJob]:
    """One for each process of publishers."""
    parts = shares(plan.publishers, math.ceil(plan.publishers / PUBLISHERS_A_PROCESS))
    every = max(round(plan.publishers / plan.period_s / plan.told_per_s), 1)
    return [
        PublishersJob(
            address=ADDRESS.format(number + 1),
            first=part.start,
            publishers=len(part),
            period_s=plan.period_s,
            blocks=plan.blocks,
            held=plan.held,
            told_every=every + (len(part) % every == 0 and every > 1),  # not the same ones always
            seed=SEED,
        )
        for number, part in enumerate(parts)
    ]


def _watch(
    plan: FleetPlan,
    known: Services,
    probers: Sequence[Prober],
    begin: ScheduleStart,
    say: Callable[[str], None],
) -> list[Sample]:
    samples: list[Sample] = []
    until_s = begin.start + begin.seconds
    due = begin.start
    while due <= until_s:
        time.sleep(max(due - time.monotonic(), 0.0))
        for prober in probers:
            if prober.error:
                raise RuntimeError(f"Expected it to ask on, got: {prober.error}")
        samples.append(known.sample(time.monotonic() - begin.start))
        answered = [one for prober in probers for one in prober.answered]
        say(_line(samples, [one for one in answered if one.at > due - plan.sample_s]))
        due += plan.sample_s
    for prober in probers:
        prober.join(FOLDED_S)
    return samples


def _line(samples: Sequence[Sample], answered: Sequence[ProbeResult]) -> str:
    now = samples[-1]
    cores = cores_of(samples[-2:])
    p50, p99, most = spread_of(answered)
    wrong = sum(one.seconds is None or one.removed_shown for one in answered)
    return (
        f"{now.at:6.0f} s  {cores:.2f} cores  {now.memory_bytes / _MIB:,.0f} MiB"
        f"  {now.files:,} files  asked {len(answered)}, wrong {wrong},"
        f" found after {1000 * p50:.0f} / {1000 * p99:.0f} / {1000 * most:.0f} ms"
    )


def _sent(prober: Prober) -> FleetSent:
    if prober.sent is None:
        raise RuntimeError(f"Expected all to be sent, got: {prober.error or 'no end of it'}")
    return prober.sent


def _wait_folded(known: Services, last: dict[str, int]) -> tuple[int, dict[str, _Publisher]]:
    listed: dict[str, _Publisher] = {}

    def behind() -> int:
        return sum(listed[name].sequence < sequence for name, sequence in last.items())

    def folded() -> bool:
        listed.update(known.listed())
        return not behind()

    try:
        until(folded, poll_s=1.0, timeout_s=FOLDED_S)
    except TimeoutError:
        return behind(), listed
    return 0, listed


def _counts(listed: dict[str, _Publisher]) -> dict[str, int]:
    found: dict[str, int] = {}
    for publisher in listed.values():
        name = f"{publisher.state} {publisher.reason}".strip()
        found[name] = found.get(name, 0) + 1
    return found


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--publishers", default=10_000, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--minutes", default=10.0, show_default=True, type=click.FloatRange(0.1, 600))
@click.option("--services", default=0, help="How many; as many as it takes by default.")
@click.option("--period-s", default=10.0, show_default=True, help="Between a publisher's batches.")
@click.option("--blocks", default=4, show_default=True, help="Stored by a batch.")
@click.option("--found-s", default=5.0, show_default=True, help="A block is asked for so long.")
@click.option("--busy-loops", default=0, help="Processes that take CPU for the MINUTES.")
@click.option("--json", "report", type=click.Path(dir_okay=False, path_type=Path))
def main(
    publishers: int,
    minutes: float,
    services: int,
    period_s: float,
    blocks: int,
    found_s: float,
    busy_loops: int,
    report: Path | None,
) -> None:
    """Follows PUBLISHERS simulated publishers for MINUTES and prints what it took."""
    if not native_available():
        raise click.ClickException("the Rust kernel is not built: run `make install` with Rust")
    raise_open_files_limit()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    services = services or math.ceil(publishers / followed_max(limit))
    if publishers > services * followed_max(limit):
        raise click.ClickException(
            f"Expected at most {followed_max(limit):,} publishers a service: {PUBLISHERS_MAX:,} are"
            f" followed by one, and {limit:,} open files suffice for that"
        )
    if min(publishers, PUBLISHERS_A_PROCESS) * SOCKET_FILES + OTHER_FILES > limit:
        raise click.ClickException(f"{limit:,} open files are too few for the publishers")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the blocks below end
    click.echo(
        f"{publishers:,} publishers, {services} services, {limit:,} open files each,"
        f" {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}",
        err=True,
    )
    busy_after_s = 2 * period_s if busy_loops else 0.0
    plan = FleetPlan(
        publishers=publishers,
        seconds=60 * minutes + (busy_after_s + AFTER_BUSY_S if busy_loops else 0.0),
        period_s=period_s,
        blocks=blocks,
        found_s=found_s,
        busy_loops=busy_loops,
        busy_after_s=busy_after_s,
        busy_s=60 * minutes,
    )
    summary = run(plan, services, lambda line: click.echo(line, err=True))
    for line in table_lines(summary):
        click.echo(line)
    if report is not None:
        report.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")


if __name__ == "__main__":
    main()
