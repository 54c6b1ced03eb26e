"""A fleet of simulated publishers on this machine, followed by as many `reprise up` as it takes.

    python -m lab.benchmarks.scaling.fleet --publishers 10000 --minutes 10
    python -m lab.benchmarks.scaling.fleet --publishers 2500 --minutes 1 --busy-loops 16

Each publisher has a ZeroMQ socket of its own on loopback and sends a batch of a few blocks every
ten seconds, which removes the oldest ones beyond HELD batches. All are registered; once each has a
subscriber, CPU is taken for a while in which nothing is sent. Then they send for the given
time, while memory, open files and CPU of the services are sampled, and each second one more
publisher sends a block: an answer has to show it within FOUND_S. In the end the last batch of each
publisher has to be folded. A process follows as many publishers as its bound (`PUBLISHERS_MAX`) and
its open files allow: more of them are shared among several services, evenly.

Busy loops, processes that only count, run while the publishers send.
"""

import math
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import click
import msgspec

from lab.benchmarks.embedded.http_client import Server, instances_of, post_of
from lab.benchmarks.embedded.publishers import Publishers
from lab.benchmarks.embedded.route import busy_cores
from lab.benchmarks.embedded.service import MODEL, Service, resident_bytes, until
from lab.benchmarks.report.figures import percentile
from lab.benchmarks.report.machine import describe_machine
from lab.benchmarks.sizes import BLOCK_SIZE, SEED
from lab.engines.wire import BlockStored
from lab.traffic.event_load import LoadPlan, LoadPublisher, encode_load, plan_events
from reprise.http.open_files import raise_open_files_limit
from schemas.limits import MIB, PUBLISHER_FILES_LEFT_MAX, PUBLISHER_FILES_SHARE, PUBLISHERS_MAX

PUBLISHER_FILES: Final = 5
"""Of a service, for each publisher."""
OTHER_FILES: Final = 200
PUBLISHERS_A_PROCESS: Final = 2500
ADDRESS: Final = "127.0.1.{}"
"""Loopback addresses other than the usual one have ports of their own."""
HELD: Final = 8
IDLE_S: Final = 20.0
SAMPLE_S: Final = 1.0
FOUND_S: Final = 5.0
PROBE: Final = "probe"
_LINKS: Final = "reprise_bridge_links_total"
_LOST: Final = "reprise_bridge_lost_batches_total"


class FleetPlan(NamedTuple):
    """What is run; times in seconds."""

    publishers: int
    seconds: float
    period_s: float = 10.0
    blocks: int = 4
    busy_loops: int = 0
    idle_s: float = IDLE_S

    @property
    def batches(self) -> int:
        """Of each publisher."""
        return max(round(self.seconds / self.period_s), HELD)

    @property
    def load(self) -> LoadPlan:
        """Of each: batches of two stores until HELD are held, then of a removal and a store."""
        return LoadPlan(
            blocks=(self.batches + HELD // 2) * self.blocks,
            blocks_per_event=self.blocks,
            events_per_batch=2,
            block_size=BLOCK_SIZE,
            pattern="mixed",
            live_blocks=HELD * self.blocks,
            seed=SEED,
        )


class FleetSample(NamedTuple):
    """All services at one moment; `files` by service."""

    at: float
    cpu_s: float
    memory_bytes: int
    files: list[int]


def followed_max(open_files_limit: int) -> int:
    """Publishers that one process follows, by its bound and its limit of open files."""
    left = min(open_files_limit // PUBLISHER_FILES_SHARE, PUBLISHER_FILES_LEFT_MAX)
    by_files = (open_files_limit - left - OTHER_FILES) // PUBLISHER_FILES
    return max(min(PUBLISHERS_MAX, by_files), 1)


def shares(total: int, parts: int) -> list[range]:
    """Numbers from 0 on in runs of about the same length."""
    cuts = [total * part // parts for part in range(parts + 1)]
    return [range(first, end) for first, end in pairwise(cuts)]


class Services:
    """The services; each follows the publishers of its share."""

    def __init__(self, services: Sequence[Service], publishers: int) -> None:
        self.all = services
        parts = zip(services, shares(publishers, len(services)), strict=True)
        self._of = [service for service, share in parts for _ in share]

    def register(self, endpoint: str, instance_id: str, replay_endpoint: str = "") -> None:
        """See `embedded.publishers.Follower`."""
        self._of[int(instance_id[1:])].register(endpoint, instance_id, replay_endpoint)

    def sample(self) -> FleetSample:
        """What they take now."""
        return FleetSample(
            time.monotonic(),
            sum(one.cpu_s() for one in self.all),
            sum(resident_bytes(one.pid) for one in self.all),
            [sum(1 for _ in Path(f"/proc/{one.pid}/fd").iterdir()) for one in self.all],
        )

    def metric(self, name: str) -> float:
        """Of all of them."""
        return sum(one.metrics()[name] for one in self.all)

    def behind(self, sequence: int) -> int:
        """How many have not folded that batch."""
        known = [
            seen for one in self.all for name, seen in one.sequences().items() if name != PROBE
        ]
        return sum(seen < sequence for seen in known)

    def states(self) -> Counter[str]:
        """Publishers by what answers say of them."""
        return Counter(publisher.state for one in self.all for publisher in one.publishers())


def _probes(service: Service, count: int) -> Iterator[float | None]:
    """Sends a block each second; seconds until an answer has it, None where none had in time."""
    plan = LoadPlan(blocks=count, blocks_per_event=1, chain_events=1, seed=SEED - 1)
    load, publisher = encode_load(plan), LoadPublisher()
    try:
        service.register(publisher.endpoint, PROBE)
        publisher.wait_for_subscriber(60)
        server = Server(service.address, service.pid)
        for event, payload in zip(plan_events(plan), load.payloads, strict=True):
            assert isinstance(event, BlockStored)
            sent_at = time.monotonic()
            publisher.send(msgspec.structs.replace(load, payloads=[payload]))
            try:
                until(lambda: _shows(server, event), poll_s=0.01, timeout_s=FOUND_S)  # noqa: B023
                yield time.monotonic() - sent_at
            except TimeoutError:
                yield None
            time.sleep(max(sent_at + SAMPLE_S - time.monotonic(), 0.0))
    finally:
        publisher.close(0)


def _shows(server: Server, event: BlockStored) -> bool:
    body = {"model": MODEL, "block_size": BLOCK_SIZE, "token_ids": event.token_ids}
    answer = server.ask(post_of(b"/query?hits_only=1", msgspec.json.encode(body)))
    held = {} if answer == b"{}" else instances_of("JSON", answer)
    return [*held] == [PROBE]


def run(plan: FleetPlan, services: int, say: Callable[[str], None]) -> dict[str, str]:
    """Runs it, and returns the rows of its table; no process is left when this returns.

    Raises:
        RuntimeError: a process has ended, or a registration was refused.
        TimeoutError: not all publishers were followed, or something else took too long.
    """
    with ExitStack() as stack:
        known = Services([stack.enter_context(Service()) for _ in range(services)], plan.publishers)
        empty = known.sample()
        groups = [
            stack.enter_context(
                Publishers(
                    plan.load,
                    first=part.start,
                    publishers=len(part),
                    own_prompts=True,
                    blocks_per_s=2 * plan.blocks * len(part) / plan.period_s,
                    address=ADDRESS.format(number),
                )
            )
            for number, part in enumerate(
                shares(plan.publishers, math.ceil(plan.publishers / PUBLISHERS_A_PROCESS)), 1
            )
        ]
        for group in groups:
            group.connect(known)
        followed = known.sample()
        say(f"{plan.publishers:,} publishers followed after {followed.at - empty.at:.1f} s")
        time.sleep(plan.idle_s)
        idle = known.sample()
        links = known.metric(_LINKS)
        samples, found = [idle], []
        with busy_cores(plan.busy_loops) if plan.busy_loops else nullcontext():
            for group in groups:
                group.begin()
            for one in _probes(known.all[0], max(int(plan.seconds / SAMPLE_S), 1)):
                found.append(one)
                samples.append(known.sample())
            sent = [group.finish() for group in groups]
        last = sent[0].last_sequence
        try:
            until(lambda: not known.behind(last), poll_s=1.0)
        except TimeoutError:
            say("not all is folded in time")
        in_time = [one for one in found if one is not None] or [0.0]
        p50, p99 = (1000 * percentile(in_time, percent) for percent in (50, 99))
        return {
            "publishers, services that follow them": f"{plan.publishers:,}, {services}",
            "busy loops beside them": f"{plan.busy_loops}",
            "time": f"{plan.seconds / 60:.1f} min",
            "messages": f"{sum(one.messages for one in sent):,}",
            "all followed after": f"{followed.at - empty.at:.0f} s",
            "CPU of the services, nothing is sent": f"{_cores(followed, idle):.2f} cores",
            "CPU of the services, all send": f"{_cores(idle, samples[-1]):.2f} cores",
            "memory of a publisher": f"{_each(plan, empty, idle) / 1024:.0f} KiB",
            "memory of the services, most": f"{max(one.memory_bytes for one in samples) / MIB:,.0f}"
            " MiB",
            "open files of a service, most": f"{max(max(one.files) for one in samples):,}",
            "asked for, found in time": f"{len(found):,}, {len(found) - found.count(None):,}",
            "until an answer has a block, p50 / p99 / most": f"{p50:.0f} / {p99:.0f} /"
            f" {1000 * max(in_time):.0f} ms",
            "latest message sent late by": f"{1000 * max(one.late_s for one in sent):.0f} ms",
            "new links, lost batches": f"{known.metric(_LINKS) - links - 1:.0f},"
            f" {known.metric(_LOST):.0f}",
            "publishers behind in the end": f"{known.behind(last):,}",
            "states in the end": ", ".join(
                f"{count:,} {state}" for state, count in sorted(known.states().items())
            ),
        }


def _cores(first: FleetSample, last: FleetSample) -> float:
    return (last.cpu_s - first.cpu_s) / (last.at - first.at)


def _each(plan: FleetPlan, empty: FleetSample, followed: FleetSample) -> float:
    return (followed.memory_bytes - empty.memory_bytes) / plan.publishers


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--publishers", default=10_000, show_default=True, type=click.IntRange(1, 100_000))
@click.option("--minutes", default=10.0, show_default=True, type=click.FloatRange(0.1, 600))
@click.option("--period-s", default=10.0, show_default=True, help="Between a publisher's batches.")
@click.option("--blocks", default=4, show_default=True, help="Stored by a batch.")
@click.option("--busy-loops", default=0, help="Processes that take CPU meanwhile.")
def main(publishers: int, minutes: float, period_s: float, blocks: int, busy_loops: int) -> None:
    """Follows PUBLISHERS simulated publishers for MINUTES and prints what it took."""
    raise_open_files_limit()
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    services = math.ceil(publishers / followed_max(limit))
    machine = describe_machine()
    click.echo(
        f"{machine.date}, {machine.processors} x {machine.processor}, load {machine.load};"
        f" {limit:,} open files a process"
    )
    plan = FleetPlan(publishers, 60 * minutes, period_s, blocks, busy_loops)
    click.echo("| | |\n|---|---|")
    for name, value in run(plan, services, lambda line: click.echo(line, err=True)).items():
        click.echo(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
