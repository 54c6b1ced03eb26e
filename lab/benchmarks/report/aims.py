"""What is aimed at, as data: the one place that names each aim, the figure that shows it, and its
bound. The aims are those of the Rust kernel on two cores with blocks of 16 tokens.

A figure is known by its measurement and its name. A measurement that renames one must rename it
here; a full run says so of a name that it does not find, and fails.
"""

from typing import Final, NamedTuple

import msgspec

from lab.benchmarks.report.figures import DISTURBED_SPREAD

DYNAMO: Final = "Dynamo"
TREE: Final = "approximate tree"
PEERS: Final = (DYNAMO, TREE)
"""Whose values stand beside ours; the second is ours, too, written plainly."""

FLAT: Final = DISTURBED_SPREAD
"""What may not change may change by as much as equal runs do before they are marked."""


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

    def is_met(self, value: float) -> bool:
        """Whether the value reaches it."""
        low = self.at_least is None or value >= self.at_least
        return low and (self.at_most is None or value <= self.at_most)


def _asked(form: str, label: str, tokens: int, least: float, theirs: str) -> list[Aim]:
    """CPU of a request and requests/s, beside Dynamo's."""
    row, peer = f"{form}, {tokens}K tokens", f"{theirs}, {tokens}K tokens"

    def aim(what: str, figure: str, ours: str) -> Aim:
        return Aim(
            what=f"{label}: {what}",
            figure=FigureOf("peers", f"{row}: {figure}"),
            at_least=least,
            ours=FigureOf("peers", f"{row}: {ours}"),
            peers={DYNAMO: FigureOf("peers", f"{peer}: {ours}")},
        )

    return [
        aim("CPU", "CPU, times less than Dynamo", "CPU"),
        aim("requests/s", "rate, times Dynamo's", "rate"),
    ]


def _queries() -> list[Aim]:
    aims = []
    for tokens, least in ((1, 4.0), (8, 6.0), (32, 6.0), (128, 6.0)):
        label = f"/query, JSON, {tokens}K tokens"
        aims += _asked("JSON", label, tokens, least, "Dynamo, JSON")
    for form in ("msgpack bin", "octets"):
        for tokens in (32, 128):
            label = f"/query, {form}, {tokens}K tokens"
            aims += _asked(form, label, tokens, 15.0, "Dynamo, JSON")
    label = "/query_by_hash, octets, 8,192 hashes"
    return aims + _asked("octets by hash", label, 128, 3.0, "Dynamo, JSON by hash")


def _beside() -> list[Aim]:
    row = "JSON, 8K tokens"
    ours = FigureOf("beside", f"{row}, beside events: p99")
    theirs = {DYNAMO: FigureOf("beside", f"Dynamo, {row}, beside events: p99")}
    removed = "JSON, 8K tokens, beside removals"
    return [
        Aim(
            what="p99 of /query, 8K, beside 200K blocks/s stored and removed, times idle",
            figure=FigureOf("beside", f"{row}: p99, times alone"),
            at_most=2.0,
            ours=ours,
            peers=theirs,
        ),
        Aim(
            what="the same, times Dynamo's",
            figure=FigureOf("beside", f"{row}, beside events: p99, times Dynamo's"),
            at_most=1.0,
            ours=ours,
            peers=theirs,
        ),
        Aim(
            what="p99 of /query, 8K, while 1M blocks held by 8 are removed, times idle",
            figure=FigureOf("removing", f"{removed}: p99, times alone"),
            at_most=FLAT,
            ours=FigureOf("removing", f"{removed}: p99"),
            peers={DYNAMO: FigureOf("removing", f"Dynamo, {removed}: p99")},
        ),
        Aim(
            what="requests/s of four threads on cores of their own, times those of one",
            figure=FigureOf("cores", "4 threads, by CPU: requests/s, times those of one"),
            at_least=2.0,
            ours=FigureOf("cores", "4 threads, by CPU: requests/s"),
        ),
    ]


def _ingest() -> list[Aim]:
    aims = []
    for phase, per_event, least in (
        ("stored", 64, 2.0),
        ("stored", 1, 0.2),
        ("removed", 64, 3.0),
    ):
        row = f"{phase}, {per_event}-block events: per CPU-second"
        what = "one block a message" if per_event == 1 else "64-block events"
        aims.append(
            Aim(
                what=f"{phase}, {what}, whole service, of a CPU-second",
                figure=FigureOf("ingest", row),
                at_least=least,
                peers={DYNAMO: FigureOf("ingest", f"Dynamo, {row}")},
            )
        )
    row = "removed, 64-block events, of blocks held by 8: per CPU-second"
    theirs = {DYNAMO: FigureOf("removing", f"Dynamo, {row}")}
    figure = FigureOf("removing", row)
    what = "the same, from 1M blocks held by 8"
    return [*aims, Aim(what=what, figure=figure, at_least=3.0, peers=theirs)]


def _kernel() -> list[Aim]:
    cold = [
        Aim(
            what=f"index alone, {tokens}K tokens out of the caches, 10M blocks, times hashing",
            figure=FigureOf("growth", f"{row}: times the hashing alone"),
            at_most=1.5,
            ours=FigureOf("growth", f"{row}: CPU"),
            peers={TREE: FigureOf("tree", f"approximate tree, {tokens}K tokens: query")},
        )
        for tokens in (1, 8, 128)
        for row in (f"query of {tokens}K tokens, 10,000,000 blocks held",)
    ]
    grown = [
        Aim(
            what=f"index alone, {tokens}K tokens, 30M blocks, times 1M",
            figure=FigureOf(
                "growth", f"query of {tokens}K tokens: CPU, 30,000,000 blocks, times first"
            ),
            at_most=FLAT,
            ours=FigureOf("growth", f"query of {tokens}K tokens, 30,000,000 blocks held: CPU"),
        )
        for tokens in (1, 8, 128)
    ]
    linear = Aim(
        what="index alone, CPU of a token, prompt of 1M tokens, times 16K",
        figure=FigureOf("growth", "query of 1024K tokens: CPU of a token, times 16K"),
        at_most=FLAT,
        ours=FigureOf("growth", "query of 1024K tokens: CPU of a token"),
    )
    pauses = [
        Aim(what=f"table grows to 30M: {what}", figure=FigureOf("growth", figure), at_most=5.0)
        for what, figure in (
            ("longest query", "a query of 1K tokens: longest"),
            ("longest call of the fold, CPU", "CPU of a call of the fold, 1,024 blocks: longest"),
        )
    ]
    return [*cold, *grown, linear, *pauses]


def _memory() -> list[Aim]:
    return [
        Aim(
            what=f"memory of a (block, instance) pair at 10M, {what}",
            figure=FigureOf("memory", f"{case}: resident"),
            at_most=most,
            peers=peers,
        )
        for what, case, most, peers in (
            (
                "one holder",
                "one instance",
                45.0,
                {
                    DYNAMO: FigureOf("peers-memory", "Dynamo, one instance: resident"),
                    TREE: FigureOf("tree", "approximate tree, one worker: memory of a block"),
                },
            ),
            (
                "eight",
                "8 instances share the blocks",
                25.0,
                {
                    DYNAMO: FigureOf(
                        "peers-memory", "Dynamo, 8 instances share the blocks: resident"
                    )
                },
            ),
            ("256", "256 instances share the blocks", 15.0, {}),
        )
    ]


def _instances() -> list[Aim]:
    aims = []
    for count, most in ((256, 1.3), (1024, 2.0)):
        row = f"{count} instances, times the CPU of 8"
        full = FigureOf("instances", f"{count} instances away: CPU of a 1K query that nobody holds")
        hits = FigureOf("instances", f"{count} instances away: CPU of it with hits_only")
        aims += [
            Aim(
                what=f"1K query that nobody holds, {count:,} registered, times 8",
                figure=FigureOf("instances", row),
                at_most=most,
                ours=full,
            ),
            Aim(
                what="the same with hits_only",
                figure=FigureOf("instances", f"{row}, with hits_only"),
                at_most=1.1,
                ours=hits,
            ),
        ]
    idle = FigureOf("instances", "1024 instances away: CPU with nothing to do")
    return [*aims, Aim(what="1,024 registered, nothing to do", figure=idle, at_most=2.0)]


def _route() -> list[Aim]:
    crowd = "64 connections: /route"
    late = Aim(
        what="64 connections of /route and /feedback: over 100 ms, while the service has a core",
        figure=FigureOf("route", f"{crowd}, but for waits for a core, over 100 ms"),
        at_most=0.0,
        ours=FigureOf("route", f"{crowd}, over 100 ms"),
    )
    dear = [
        Aim(
            what=f"/route with 64 candidates, {tokens:,} tokens, times /query",
            figure=FigureOf("route", f"64 candidates, {tokens:,} tokens: /route, times /query"),
            at_most=1.5,
            ours=FigureOf("route", f"64 candidates, {tokens:,} tokens: CPU of /route"),
        )
        for tokens in (1024, 8192)
    ]
    return [*dear, late]


def _gateway() -> list[Aim]:
    added = "token ids: added at 25 requests/s"
    return [
        Aim(
            what="the gateway beside engines that answer at once, at 25 requests/s: added p50",
            figure=FigureOf("gateway", f"{added}, p50"),
            at_most=1.5,
        ),
        Aim(what="the same: added p99", figure=FigureOf("gateway", f"{added}, p99"), at_most=5.0),
        Aim(
            what="the same, with 64 clients",
            figure=FigureOf("gateway", "token ids: 64 clients"),
            at_least=1000.0,
            ours=FigureOf("gateway", "token ids: 64 clients: CPU of a request"),
        ),
    ]


def _recovery() -> list[Aim]:
    return [
        Aim(
            what=f"restart with 10M blocks, {what}",
            figure=FigureOf("recovery", f"10,000,000 blocks, {case}: until ready"),
            at_most=8.0,
        )
        for what, case in (
            ("from the table", "from the table"),
            ("from the log alone", "table deleted, whole log folded"),
        )
    ]


_CLEARS: Final = "clears with 4,096 adapters"
_FLOODS: Final = {
    "64-block events": "64-block events",
    "20 of them in a message": "20 64-block events in a message",
    "65,536 events in a message": "65,536 events in a message",
    "removals": "removals",
    "gaps": "gaps",
    "4,096 adapters": "4,096 adapters",
    "4,096 adapters, and a clear after half of them": "adapters and clears",
    _CLEARS: "clears of adapters",
}
"""By how the figures call them."""

_STORING: Final = tuple(name for name in _FLOODS if name not in ("removals", _CLEARS))
"""Those that only store, which are measured in the distributed form, too."""


def _fairness() -> list[Aim]:
    floods = [
        Aim(
            what=f"a neighbour's event later, at the worst, beside {what}",
            figure=FigureOf("fairness", f"beside {flood}: worst, beyond the worst alone"),
            at_most=50.0,
            ours=FigureOf("fairness", f"beside {flood}: worst"),
        )
        for flood, what in _FLOODS.items()
    ]
    large = [
        Aim(
            what=f"a neighbour's event, at the worst, beside {what}",
            figure=FigureOf("large", f"{step}: worst"),
            at_most=50.0,
        )
        for what, step in (
            ("a clear of 1M blocks", "a clear of 1,000,000 blocks"),
            (
                "the removal of half of 1M",
                "500,000 blocks removed, and the rest written anew",
            ),
            ("a batch that moves 250K", "one batch that moves 250,000 blocks to the CPU"),
        )
    ]
    partition = [
        Aim(
            what=f"distributed: an event of the same partition later, beside {_FLOODS[flood]}",
            figure=FigureOf("partition", f"beside {flood}: worst, beyond the worst alone"),
            at_most=50.0,
            ours=FigureOf("partition", f"beside {flood}: worst"),
        )
        for flood in _STORING
    ]
    return [*floods, *large, *partition]


def _distributed() -> list[Aim]:
    row = "10 publishers, 4 partitions, 64-block events"
    return [
        Aim(
            what="distributed: CPU of 1M blocks in 64-block events, bridge, worker, replica",
            figure=FigureOf("pipeline", f"{row}: bridge, worker and replica"),
            at_most=1.5,
        ),
        *(
            Aim(
                what=f"distributed: until visible at 50K blocks/s, p99, {what}",
                figure=FigureOf("latency", f"{settings}, 50,000 blocks/s: p99"),
                at_most=most,
            )
            for what, settings, most in (
                ("without a window", "window 0 ms, flush 10 ms", 50.0),
                ("by default", "window 50 ms, flush 20 ms", 250.0),
            )
        ),
        *(
            Aim(
                what=f"distributed: 10M blocks, a cold {role}",
                figure=FigureOf("cold", f"{role}, 10,000,000 blocks: until {until}"),
                at_most=20.0,
            )
            for role, until in (("replica", "ready"), ("worker", "open"))
        ),
        Aim(
            what="distributed: table topic on disk while it churns, at the most",
            figure=FigureOf("table-topic", "on disk, while it churns: most"),
            at_most=3.0,
        ),
    ]


def _simulate() -> list[Aim]:
    return [
        Aim(
            what=f"simulate: requests/s of CPU, ten nodes, {policy}",  # 12,031 in 2 s
            figure=FigureOf("simulate", f"simulate, ten nodes, {policy}"),
            at_least=6_000.0,
        )
        for policy in ("weighted", "algorithm-1")
    ]


def _tracing() -> list[Aim]:
    return [
        Aim(
            what=f"what tracing costs where it is off: {name}",
            figure=FigureOf("tracing", f"tracing off, {name}"),
            at_most=5.0,
        )
        for name in ("a decision", "a decision of a trace", "a report", "a batch")
    ]


def _text() -> list[Aim]:
    name = "a further turn of 8K tokens"
    return [Aim(what=f"text to tokens: {name}", figure=FigureOf("text", name), at_most=1000.0)]


def _policies() -> list[Aim]:
    """Through the real service, with eight simulated engines."""
    slo, models = "2.2 times the load, 5 s", "GET /models"
    bounds: tuple[tuple[str, str, float | None, float | None], ...] = (
        (
            "eight engines: mean TTFT by /route, times by /query alone",
            "least-delay: TTFT, mean, times /query alone",
            None,
            1.0,
        ),
        (
            "the same with loads told each second and bookings, times exact loads",
            "loads told each second, with bookings: TTFT, times exact",
            None,
            1.05,
        ),
        ("at 2.2 times the load, within an objective of 5 s", f"{slo}: within it", 93.0, None),
        ("of all, refused needlessly", f"{slo}: refused needlessly", None, 1.0),
        ("time to compute, of costs that change: MAPE", f"{models}: MAPE of computing", None, 10.0),
        ("TTFT promised, after 200 outcomes: MAPE", "costs as they were: TTFT, MAPE", None, 10.0),
        (
            "the same once the costs have changed, after 200 more",
            "costs once they have changed: TTFT, MAPE",
            None,
            10.0,
        ),
        ("p90 of the TTFT held, the least of 8", f"{models}: p90 held, least", 85.0, None),
        ("p90 of the TTFT held, the most of 8", f"{models}: p90 held, most", None, 95.0),
    )
    return [
        Aim(what=what, figure=FigureOf("policies", figure), at_least=least, at_most=most)
        for what, figure, least, most in bounds
    ]


def _conversations() -> list[Aim]:
    """Of conversations beyond the caches; what the best of other gateways had of such ones."""
    bounds: tuple[tuple[str, float | None, float | None], ...] = (
        ("cached", 86.0, None),
        ("TTFT, mean", None, 33.0),
        ("TTFT, p99", None, 142.0),
        ("TTFT, mean, times the best other way", None, 1.0),
    )
    return [
        Aim(
            what=f"187 conversations of 8 turns, defaults: {what}",
            figure=FigureOf("conversations", f"/route: {what}"),
            at_least=least,
            at_most=most,
        )
        for what, least, most in bounds
    ]


def _routers() -> list[Aim]:
    """The gateway beside the best of vLLM's router and SMG, of the same chats."""
    bounds: tuple[tuple[str, float | None, float | None], ...] = (
        ("cached", 0.99, None),
        ("TTFT, mean", None, 1.0),
        ("TTFT, p99", None, 1.0),
        ("TTFT at the engine, mean", None, 1.0),
        ("TTFT at the engine, p99", None, 1.0),
    )
    beside = [
        Aim(
            what=f"the gateway before four engines: {what}, times the best other's",
            figure=FigureOf("routers", f"Reprise: {what}, times the best other"),
            at_least=least,
            at_most=most,
            ours=FigureOf("routers", f"Reprise: {what}"),
        )
        for what, least, most in bounds
    ]
    failed = [
        Aim(
            what=f"the gateway: requests that failed{when}",
            figure=FigureOf("routers", f"Reprise{figure}"),
            at_most=0.0,
        )
        for when, figure in (
            ("", ": failed"),
            (", an engine is killed", ", an engine is killed: failed"),
            (
                ", the gateway is killed, and they were not under way",
                ", the router is killed: failed that were not under way",
            ),
        )
    ]
    return [*beside, *failed]


def _audit() -> list[Aim]:
    return [
        Aim(
            what=f"/query of {tokens}K tokens that {kept} (--audit 1), CPU more",
            figure=FigureOf(measurement, f"{tokens}K tokens: CPU more with --audit 1"),
            at_most=10.0,
            ours=FigureOf(measurement, f"{tokens}K tokens: CPU per request with --audit 1"),
        )
        for measurement, kept in (("audit", "is kept"), ("audit-replica", "a replica keeps"))
        for tokens in (1, 8)
    ]


def _past() -> list[Aim]:
    return [
        Aim(
            what=f"/query of 8K tokens as of {back} s before, 1M live blocks, 20,000 a second",
            figure=FigureOf("as-of", f"8K tokens as of {back} s before"),
            at_most=100.0,
        )
        for back in ("1", "60", "600")
    ]


AIMS: Final = (
    *_queries(),
    *_audit(),
    *_beside(),
    *_ingest(),
    *_kernel(),
    *_memory(),
    *_instances(),
    *_route(),
    *_gateway(),
    *_recovery(),
    *_fairness(),
    *_distributed(),
    *_simulate(),
    *_tracing(),
    *_text(),
    *_conversations(),
    *_routers(),
    *_policies(),
    *_past(),
)
BY_FIGURE: Final = {aim.figure: aim for aim in AIMS}
