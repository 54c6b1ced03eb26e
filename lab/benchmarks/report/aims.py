"""What is aimed at, as data: the one place that names each aim, the figure that shows it, and its
bound. The aims are those of two cores with blocks of 16 tokens.

A figure is known by its measurement and its name. A measurement that renames one must rename it
here; a full run says so of a name that it does not find, and fails.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from lab.benchmarks.report.figures import DISTURBED_SPREAD

DYNAMO: Final = "Dynamo"
ROUTERS: Final = ("vllm-router", "SMG")
PEERS: Final = (DYNAMO, *ROUTERS)
"""Whose values stand beside ours."""

FLAT: Final = DISTURBED_SPREAD
"""What may not change may change by as much as equal runs do before they are marked."""

MET: Final = "met"
MISSED: Final = "MISSED"


class FigureOf(NamedTuple):
    """A figure, by its measurement and its name."""

    measurement: str
    name: str


class Aim(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table.

    Attributes:
        what: is measured, of people.
        figure: that is bounded.
        at_least, at_most: its bounds, in its own unit.
        ours: where the bounded figure is a ratio or a difference, what stands behind it of ours.
        peers: the same of the peers, by which.
    """

    what: str
    figure: FigureOf
    at_least: float | None = None
    at_most: float | None = None
    ours: FigureOf | None = None
    peers: dict[str, FigureOf] = {}

    @property
    def bound(self) -> str:
        """As printed, without the unit."""
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return f"<= {self.at_most:g}"

    def said_of(self, value: float) -> str:
        """Whether the value reaches it, in a word."""
        low = self.at_least is None or value >= self.at_least
        return MET if low and (self.at_most is None or value <= self.at_most) else MISSED


class _Section(NamedTuple):
    """The aims of one measurement."""

    name: str

    def most(
        self, bound: float, what: str, figure: str, ours: str = "", **peers: FigureOf | str
    ) -> Aim:
        """That the figure is no more than the bound."""
        return self._aim(what, figure, ours, peers, at_most=bound)

    def least(
        self, bound: float, what: str, figure: str, ours: str = "", **peers: FigureOf | str
    ) -> Aim:
        """That the figure is no less than the bound."""
        return self._aim(what, figure, ours, peers, at_least=bound)

    def _aim(
        self, what: str, figure: str, ours: str, peers: dict[str, FigureOf | str], **bound: float
    ) -> Aim:
        """`peers`: by name in small letters; of this measurement, where they are texts."""
        by_name = {name.lower().replace("-", "_"): name for name in PEERS}
        return Aim(
            what=what,
            figure=FigureOf(self.name, figure),
            ours=FigureOf(self.name, ours) if ours else None,
            peers={
                by_name[peer]: FigureOf(self.name, of) if isinstance(of, str) else of
                for peer, of in peers.items()
            },
            **bound,
        )


def _ingest() -> Iterator[Aim]:
    ingest, removing = _Section("ingest"), _Section("removing")
    for phase, per_event, least in (
        ("stored", 64, 2.0),
        ("removed", 64, 1.2),
        ("stored", 1, 2.0),
        ("removed", 1, 2.0),
    ):
        row = f"{phase}, {per_event}-block events: per CPU-second"
        what = "one block a message" if per_event == 1 else "64-block events"
        yield ingest.least(
            least,
            f"{phase}, {what}: blocks of a CPU-second, times Dynamo's",
            f"{row}, times Dynamo's",
            row,
            dynamo=f"Dynamo, {row}",
        )
    row = "removed, 64-block events, of blocks held by 8: per CPU-second"
    what = "removed, 64-block events, held by 8: blocks of a CPU-second, times Dynamo's"
    yield removing.least(1.2, what, f"{row}, times Dynamo's", row, dynamo=f"Dynamo, {row}")
    row = "JSON, 8K tokens, beside removals: p99"
    what = "/query, 8K tokens, while blocks held by 8 are removed: p99, times alone"
    yield removing.most(FLAT, what, f"{row}, times alone", row, dynamo=f"Dynamo, {row}")


def _route() -> Iterator[Aim]:
    route = _Section("route")
    for tokens, of_8, of_64 in ((1024, 60.0, 100.0), (8192, 100.0, 150.0)):
        for count, most in ((8, of_8), (64, of_64)):
            figure = f"{count} candidates, {tokens:,} tokens: CPU of /route"
            what = f"/route, {count} candidates, {tokens // 1024}K tokens: CPU"
            yield route.most(most, what, figure)
    yield route.most(30.0, "/feedback, one report: CPU", "/feedback, one report: CPU")
    figure = "/feedback, 64 reports, each: CPU"
    yield route.most(3.0, "/feedback, a list of 64: CPU of each", figure)
    paced = "200 a second beside busy cores, 8 candidates: /route"
    yield route.most(20.0, "/route, 200 a second beside busy cores: p99", f"{paced}, p99")
    crowd = "64 connections: /route"
    yield route.most(
        0.0,
        "/route, 64 connections: over 100 ms while the service has a core",
        f"{crowd}, but for waits for a core, over 100 ms",
        f"{crowd}, over 100 ms",
    )


def _queries() -> Iterator[Aim]:
    peers = _Section("peers")

    def asked(form: str, label: str, tokens: int, least: float, theirs: str) -> Iterator[Aim]:
        row, peer = f"{form}, {tokens}K tokens", f"{theirs}, {tokens}K tokens"
        for what, figure, ours in (
            ("CPU, times less than Dynamo's", "CPU, times less than Dynamo", "CPU"),
            ("requests/s, times Dynamo's", "rate, times Dynamo's", "rate"),
        ):
            yield peers.least(
                least,
                f"{label}: {what}",
                f"{row}: {figure}",
                f"{row}: {ours}",
                dynamo=f"{peer}: {ours}",
            )

    row = "JSON, 1K tokens, one at a time: CPU"
    what = "/query, JSON, 1K tokens, one request at a time: CPU, times less than Dynamo's"
    yield peers.least(4.0, what, f"{row}, times less than Dynamo", row, dynamo=f"Dynamo, {row}")
    for tokens, least in ((1, 4.0), (8, 6.0), (32, 6.0), (128, 6.0)):
        yield from asked("JSON", f"/query, JSON, {tokens}K tokens", tokens, least, "Dynamo, JSON")
    for form in ("msgpack bin", "octets"):
        for tokens in (32, 128):
            yield from asked(
                form, f"/query, {form}, {tokens}K tokens", tokens, 15.0, "Dynamo, JSON"
            )
    label = "/query_by_hash, octets, 8,192 hashes"
    yield from asked("octets by hash", label, 128, 3.0, "Dynamo, JSON by hash")


def _beside() -> Iterator[Aim]:
    row = "JSON, 8K tokens, beside events: p99"
    beside, theirs = _Section("beside"), f"Dynamo, {row}"
    what = "/query, 8K tokens, beside 200K blocks/s stored and removed: p99, times"
    alone = "JSON, 8K tokens: p99, times alone"
    yield beside.most(2.0, f"{what} alone", alone, row, dynamo=theirs)
    yield beside.most(1.0, f"{what} Dynamo's", f"{row}, times Dynamo's", row, dynamo=theirs)
    by_cpu = "4 threads, by CPU: requests/s"
    what = "/query, 8K tokens, four threads with a core each: requests/s, times one's"
    yield _Section("cores").least(2.0, what, f"{by_cpu}, times those of one", by_cpu)


def _instances() -> Iterator[Aim]:
    instances = _Section("instances")
    for count, most in ((256, 1.3), (1024, 2.0)):
        row, away = f"{count} instances, times the CPU of 8", f"{count} instances away: CPU of"
        what = f"/query, 1K tokens that none of {count:,} instances holds"
        ours = f"{away} a 1K query that nobody holds"
        yield instances.most(most, f"{what}: CPU, times 8 instances'", row, ours)
        hits, ours = f"{row}, with hits_only", f"{away} it with hits_only"
        yield instances.most(1.1, f"{what}, hits_only: CPU, times 8 instances'", hits, ours)
    idle = "1024 instances away: CPU with nothing to do"
    yield instances.most(2.0, "1,024 publishers registered and away: CPU", idle)
    what = "1,024 publishers up and silent, with replay sockets: CPU"
    yield _Section("silent").most(2.0, what, "1,024 publishers, up and silent: CPU")


def _kernel() -> Iterator[Aim]:
    growth = _Section("growth")
    lengths = (1, 8, 128)
    for tokens in lengths:
        row = f"query of {tokens}K tokens, 10,000,000 blocks held"
        what = f"index alone, {tokens}K tokens, caches cold, 10M blocks: CPU, times hashing's"
        yield growth.most(1.5, what, f"{row}: times the hashing alone", f"{row}: CPU")
    for tokens in lengths:
        row = f"query of {tokens}K tokens"
        yield growth.most(
            FLAT,
            f"index alone, {tokens}K tokens, 30M blocks: CPU, times 1M blocks'",
            f"{row}: CPU, 30,000,000 blocks, times first",
            f"{row}, 30,000,000 blocks held: CPU",
        )
    row = "query of 1024K tokens: CPU of a token"
    what = "index alone, 1M tokens: CPU of a token, times that of 16K tokens"
    yield growth.most(FLAT, what, f"{row}, times 16K", row)
    for what, figure in (
        ("longest query", "a query of 1K tokens: longest"),
        ("longest call of the fold, CPU", "CPU of a call of the fold, 1,024 blocks: longest"),
    ):
        yield growth.most(5.0, f"index alone, growing to 30M blocks: {what}", figure)


def _memory() -> Iterator[Aim]:
    memory, pair = _Section("memory"), "memory of a (block, instance) pair at 10M"
    for holders, case, most in (
        ("one holder", "one instance", 45.0),
        ("eight", "8 instances share the blocks", 25.0),
    ):
        row = f"{case}: resident"
        theirs = FigureOf("peers-memory", f"Dynamo, {row}")
        yield memory.most(most, f"{pair}, {holders}", row, dynamo=theirs)
    yield memory.most(15.0, f"{pair}, 256", "256 instances share the blocks: resident")


def _recovery() -> Iterator[Aim]:
    recovery = _Section("recovery")
    yield recovery.most(0.6, "start to ready, empty data: CPU", "empty: CPU until ready")
    for what, case in (
        ("from the table", "from the table"),
        ("from the log alone", "table deleted, whole log folded"),
    ):
        row = f"10,000,000 blocks, {case}: until ready"
        yield recovery.most(8.0, f"restart with 10M blocks, {what}: until ready", row)


_CLEARS: Final = "clears with 4,096 adapters"
_FLOODS: Final = {
    "64-block events": "64-block events",
    "20 of them in a message": "messages of 20 64-block events",
    "65,536 events in a message": "messages of 65,536 events",
    "removals": "removals",
    "gaps": "gaps",
    "4,096 adapters": "4,096 adapters",
    "4,096 adapters, and a clear after half of them": "adapters and clears",
    _CLEARS: "clears of adapters",
}
"""By how the figures call them."""

_STORING: Final = tuple(name for name in _FLOODS if name not in ("removals", _CLEARS))
"""Those that only store, which are measured in the distributed form, too."""


def _fairness() -> Iterator[Aim]:
    for section, floods, what in (
        ("partition", _STORING, "distributed: a neighbour's event beside"),
        ("fairness", _FLOODS, "a neighbour's event beside"),
    ):
        for flood in floods:
            row = f"beside {flood}: worst"
            yield _Section(section).most(
                50.0,
                f"{what} {_FLOODS[flood]}: worst, beyond that alone",
                f"{row}, beyond the worst alone",
                row,
            )
    for what, step in (
        ("a clear of 1M blocks", "a clear of 1,000,000 blocks"),
        ("the removal of half of 1M", "500,000 blocks removed, and the rest written anew"),
        ("a batch that moves 250K", "one batch that moves 250,000 blocks to the CPU"),
    ):
        what = f"a neighbour's event beside {what}: worst"
        yield _Section("large").most(50.0, what, f"{step}: worst")


def _distributed() -> Iterator[Aim]:
    what = "distributed: CPU of bridge, worker and replica, 64-block events, 1M blocks"
    row = "10 publishers, 64-block events: bridge, worker and replica"
    yield _Section("pipeline").most(1.5, what, row)
    for what, settings, most in (
        ("without a window", "window 0 ms, flush 10 ms", 50.0),
        ("by default", "window 50 ms, flush 20 ms", 250.0),
    ):
        what = f"distributed: an event until visible, 50K blocks/s, {what}: p99"
        yield _Section("latency").most(most, what, f"{settings}, 50,000 blocks/s: p99")
    for role, end in (("replica", "ready"), ("worker", "open")):
        row = f"{role}, 10,000,000 blocks: until {end}"
        what = f"distributed: a cold {role}, 10M blocks: until {end}"
        yield _Section("cold").most(20.0, what, row)
    what = "distributed: table topic on disk while it churns: most, times live bytes"
    yield _Section("table-topic").most(3.0, what, "on disk, while it churns: most")


def _gateway() -> Iterator[Aim]:
    gateway, added = _Section("gateway"), "token ids: added at 25 requests/s"
    for percent, most in (("p50", 1.5), ("p99", 5.0)):
        what = f"gateway, engines that answer at once, 25 requests/s: {percent}, beyond direct"
        yield gateway.most(most, what, f"{added}, {percent}")
    what = "gateway, engines that answer at once, 64 clients: requests/s"
    yield gateway.least(1000.0, what, "token ids: 64 clients")


def _routers() -> Iterator[Aim]:
    """The gateway beside the best of vLLM's router and SMG, of the same chats."""
    routers = _Section("routers")
    for what in (
        "cached",
        "TTFT, mean",
        "TTFT, p99",
        "TTFT at the engine, mean",
        "TTFT at the engine, p99",
    ):
        bounded = routers.least if what == "cached" else routers.most
        yield bounded(
            0.99 if what == "cached" else 1.0,
            f"gateway before four engines: {what}, times the best other's",
            f"Reprise: {what}, times the best other",
            f"Reprise: {what}",
            vllm_router=f"vllm-router: {what}",
            smg=f"SMG: {what}",
        )
    killed = "the router is killed: failed that were not under way"
    for when, figure in (
        (": failed", ": failed"),
        (", an engine is killed: failed", ", an engine is killed: failed"),
        (", itself killed: failed that were not under way", f", {killed}"),
    ):
        yield routers.most(0.0, f"gateway before four engines{when}", f"Reprise{figure}")


def _audit() -> Iterator[Aim]:
    for section, keeper in (("audit", "--audit 1"), ("audit-replica", "--audit 1 of a replica")):
        for tokens in (1, 8):
            row = f"{tokens}K tokens: CPU"
            yield _Section(section).most(
                10.0,
                f"/query, {tokens}K tokens, {keeper}: CPU more",
                f"{row} more with --audit 1",
                f"{row} per request with --audit 1",
            )


def _alone() -> Iterator[Aim]:
    for back in ("1", "60", "600"):
        what = f"/query, 8K tokens, as of {back} s ago, 1M blocks held, 20,000 a second: time"
        yield _Section("as-of").most(100.0, what, f"8K tokens as of {back} s before")
    for policy in ("weighted", "algorithm-1"):
        what = f"simulate, ten nodes, {policy}: requests of a CPU-second"  # 12,031 in 2 s
        yield _Section("simulate").least(6_000.0, what, f"simulate, ten nodes, {policy}")
    for name in ("a decision", "a decision of a trace", "a report", "a batch"):
        what = f"tracing off, {name}: CPU more"
        yield _Section("tracing").most(5.0, what, f"tracing off, {name}")
    name = "a further turn of 8K tokens"
    yield _Section("text").most(1000.0, f"text to tokens, {name}: CPU", name)


def _routing() -> Iterator[Aim]:
    """Of what the best of other gateways had of conversations beyond the caches; and through the
    real service, with eight simulated engines.
    """
    conversations, policies = _Section("conversations"), _Section("policies")
    cached = "cached"
    yield conversations.least(86.0, f"187 conversations of 8 turns: {cached}", f"/route: {cached}")
    for what, most in (
        ("TTFT, mean", 33.0),
        ("TTFT, p99", 142.0),
        ("TTFT, mean, times the best other way", 1.0),
    ):
        yield conversations.most(most, f"187 conversations of 8 turns: {what}", f"/route: {what}")
    slo, models = "2.2 times the load, 5 s", "GET /models"
    loaded = "eight engines, 2.2 times the load"
    for most, what, figure in (
        (
            1.0,
            "eight engines, /route: TTFT, mean, times /query alone",
            "least-delay: TTFT, mean, times /query alone",
        ),
        (
            1.05,
            "eight engines, loads told each second, bookings: TTFT, mean, times exact loads'",
            "loads told each second, with bookings: TTFT, times exact",
        ),
        (1.0, f"{loaded}: refused needlessly, of all", f"{slo}: refused needlessly"),
        (10.0, "time to compute, costs that change: MAPE", f"{models}: MAPE of computing"),
        (10.0, "TTFT promised, after 100 outcomes: MAPE", "costs as they were: TTFT, MAPE"),
        (
            10.0,
            "TTFT promised, costs changed, after 100 more outcomes: MAPE",
            "costs once they have changed: TTFT, MAPE",
        ),
        (95.0, "p90 of the TTFT held, the most of 8", f"{models}: p90 held, most"),
    ):
        yield policies.most(most, what, figure)
    yield policies.least(93.0, f"{loaded}: within an objective of 5 s", f"{slo}: within it")
    yield policies.least(85.0, "p90 of the TTFT held, the least of 8", f"{models}: p90 held, least")


AIMS: Final = (
    *_ingest(),
    *_route(),
    *_queries(),
    *_beside(),
    *_instances(),
    *_recovery(),
    *_distributed(),
    *_fairness(),
    *_routers(),
    *_gateway(),
    *_memory(),
    *_kernel(),
    *_audit(),
    *_alone(),
    *_routing(),
)
BY_FIGURE: Final = {aim.figure: aim for aim in AIMS}
