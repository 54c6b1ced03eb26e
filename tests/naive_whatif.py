"""A second simulator, in plain dicts: what `lab.whatif` must agree with, exactly.

It has no kernel, no records and no numbered blocks: a block is the tuple of all ids up to it, an
index is a dict of counts, a cache a dict of when each block was used, and policies are written out
once more. It is slow, and short enough to be read.
"""

import heapq
import math
import random
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, get_args

import xxhash

from lab.whatif.policies.counts import (
    AibrixParameters,
    KvAwareParameters,
    LoadAwareParameters,
    TwoTierParameters,
)
from lab.whatif.policies.table import ALL_POLICIES
from lab.whatif.setup import Leases, Setup
from replay.traces.request import TraceRequest
from routing.costs import Costs
from routing.policies.inflight import BlocksParameters, LmetricParameters, StickyParameters
from routing.policies.prefix import LongestPrefixParameters, WeightedParameters
from routing.policies.table import parse_policy
from routing.policies.ttft import Algorithm1Parameters, LeastDelayParameters, WaitAndWorkParameters

Block = tuple[int, ...]
Event = tuple[str, str, list[Block]]  # what, tier, blocks


class NaiveCache:
    """LRU, or Mooncake's store."""

    def __init__(self, capacity: int | None, leases: Leases | None) -> None:
        self.capacity = math.inf if capacity is None else capacity
        self.leases = leases if capacity is not None else None
        self.used: dict[Block, int] = {}
        self.lease_ends: dict[Block, float] = {}
        self.pin_ends: dict[Block, float] = {}
        self.read: set[Block] = set()
        self.step = 0

    def use(self, blocks: list[Block], now: float) -> tuple[list[Block], list[Block], int]:
        """Stored, evicted, refused."""
        before = set(self.used)
        gone: list[Block] = []
        missing = [block for block in blocks if block not in before]
        if self.leases is None:
            for block in blocks[::-1]:
                self.touch(block)
            while len(self.used) > self.capacity:
                oldest = min(self.used, key=lambda block: self.used[block])
                del self.used[oldest]
                gone.append(oldest)
            kept = missing
        else:
            for block in blocks[::-1]:
                if block in self.used:
                    self.touch(block)
                    self.read.add(block)
                    self.lease_ends[block] = now + self.leases.lease_s
                    self.pin(block, now)
            if len(self.used) + len(missing) > self.capacity:
                gone += self.evict(now)
            room = max(int(self.capacity) - len(self.used), 0)
            kept = missing[:room]
            for block in kept[::-1]:
                self.touch(block)
                self.lease_ends[block] = now
                self.pin(block, now)
            if len(self.used) > self.leases.watermark * self.capacity:
                gone += self.evict(now)
        stored = [block for block in missing if block in self.used]
        evicted = [block for block in gone if block in before]
        return stored, evicted, len(missing) - len(kept)

    def touch(self, block: Block) -> None:
        self.step += 1
        self.used[block] = self.step

    def pin(self, block: Block, now: float) -> None:
        assert self.leases is not None
        if len(block) <= self.leases.soft_pin_blocks:
            self.pin_ends[block] = now + self.leases.soft_pin_s

    def evict(self, now: float) -> list[Block]:
        assert self.leases is not None
        if not self.used:
            return []
        rules, count = self.leases, len(self.used)
        over = count / self.capacity - rules.watermark
        most = math.ceil(count * max(rules.share, over + rules.share))
        least = math.ceil(count * max(rules.share / 2, over))
        expired = sorted(
            (block for block in self.used if self.lease_ends[block] <= now),
            # Of those that end together, the ones that were only written go first.
            key=lambda block: (self.lease_ends[block], block in self.read, self.used[block]),
        )
        plain = [block for block in expired if self.pin_ends.get(block, now) <= now]
        pinned = [block for block in expired if self.pin_ends.get(block, now) > now]
        gone = plain[:most]
        if len(gone) < least:
            gone += pinned[: least - len(gone)]
        for block in gone:
            del self.used[block], self.lease_ends[block]
            self.pin_ends.pop(block, None)
            self.read.discard(block)
        return gone


class NaiveIndex:
    """What the router knows: how often each publisher has announced each block on each tier.

    A block that is offloaded, and of which nothing but its name is known, is held there once it is
    stored. Not so where it was stored first, behind a block that is not known.
    """

    def __init__(self) -> None:
        self.counts: dict[str, dict[tuple[Block, str], int]] = {}
        self.left_out: dict[str, dict[Block, dict[str, int]]] = {}
        self.named: dict[str, set[Block]] = {}

    def leave_out(self, publisher: str, block: Block, tier: str, *, is_named: bool) -> None:
        left_out = self.left_out.setdefault(publisher, {})
        if block not in left_out and is_named:
            self.named.setdefault(publisher, set()).add(block)
        times = left_out.setdefault(block, {})
        times[tier] = times.get(tier, 0) + 1

    def forget(self, publisher: str, block: Block, tier: str, times: int = 1) -> None:
        left_out = self.left_out.get(publisher, {})
        if tier in left_out.get(block, {}):
            left_out[block][tier] -= times
            if left_out[block][tier] <= 0:
                del left_out[block][tier]
            if not left_out[block]:
                del left_out[block]
                self.named.get(publisher, set()).discard(block)

    def take_in(self, publisher: str, block: Block, tier: str) -> None:
        counts = self.counts[publisher]
        known = dict(self.left_out.get(publisher, {}).get(block, {}))
        for other, times in known.items():
            if other == tier:
                self.forget(publisher, block, other, times)
            elif block in self.named.get(publisher, set()) and (block, other) not in counts:
                counts[block, other] = times
                self.forget(publisher, block, other, times)

    def remove(self, publisher: str, block: Block, tier: str) -> bool:
        counts = self.counts[publisher]
        is_held = (block, tier) in counts
        if is_held:
            counts[block, tier] -= 1
            if not counts[block, tier]:
                del counts[block, tier]
        else:
            self.forget(publisher, block, tier)
        return is_held

    def fold(self, publisher: str, events: list[Event]) -> None:
        counts = self.counts.setdefault(publisher, {})
        removed: set[Block] = set()
        for what, tier, blocks in events:
            if what == "removed":
                removed.update(block for block in blocks if self.remove(publisher, block, tier))
            elif what == "offloaded":
                for block in blocks:
                    if self.holds(publisher, block) or block in removed:
                        counts[block, tier] = counts.get((block, tier), 0) + 1
                    else:
                        self.leave_out(publisher, block, tier, is_named=True)
            else:
                parent = blocks[0][:-1]
                if parent and not self.holds(publisher, parent):
                    for block in blocks:
                        self.leave_out(publisher, block, tier, is_named=False)
                    continue
                for block in blocks:
                    counts[block, tier] = counts.get((block, tier), 0) + 1
                    if counts[block, tier] == 1:
                        self.take_in(publisher, block, tier)

    def holds(self, publisher: str, block: Block) -> bool:
        counts = self.counts.get(publisher, {})
        return any((block, tier) in counts for tier in ("GPU", "CPU"))

    def match(self, node: str, chain: list[Block]) -> tuple[int, int]:
        """Blocks of the prefix on any tier, and those on the GPU."""
        longest = gpu = 0
        for block in chain:
            if not self.holds(node, block) and not self.holds("pool", block):
                break
            longest += 1
        for block in chain:
            if (block, "GPU") not in self.counts.get(node, {}):
                break
            gpu += 1
        return longest, gpu


class Given(NamedTuple):
    """A request that a node was given: what it takes, and what the router has booked for it."""

    at: float
    took: float
    tokens: int
    booked: float
    booked_tokens: int


class NaiveNode:
    def __init__(self, name: str, gpu: NaiveCache | None, cpu: NaiveCache | None) -> None:
        self.name = name
        self.gpu = gpu
        self.cpu = cpu
        self.free_at = 0.0
        self.busy = 0.0
        self.requests = 0
        self.given: list[Given] = []

    def seen(self, now: float, told: int | None, bookings: bool) -> tuple[float, list[int]]:
        """Its wait, and tokens to compute of each request that has not ended: by what it has been
        given, or by the first `told` of these and estimates of the others."""
        free, work = 0.0, []
        for place, one in enumerate(self.given):
            known = told is None or place < told
            if not known and not bookings:
                continue
            free = max(one.at, free) + (one.took if known else one.booked)
            work.append((free, one.tokens if known else one.booked_tokens))
        return max(free - now, 0.0), [tokens for end, tokens in work if end > now]

    def others(self, now: float) -> float:
        """Requests a second, of the last 32 or so, for each second in which it is free."""
        weights = [(31 / 32) ** number for number in range(len(self.given))]
        came = [one.at for one in self.given]
        gaps = [0.0, *(after - before for before, after in pairwise(came))]
        span = 10.0 * (31 / 32) ** len(came) + (now - came[-1] if came else 0.0)
        span += sum(
            weight * gap for weight, gap in zip(weights, gaps[::-1][: len(came)], strict=True)
        )
        busy = sum(
            weight * one.booked for weight, one in zip(weights, self.given[::-1], strict=True)
        )
        return sum(weights) / span / (1.0 - min(busy / span, 0.9))

    def has(self, block: Block) -> str:
        if self.gpu is not None and block in self.gpu.used:
            return "gpu"
        if self.cpu is not None and block in self.cpu.used:
            return "cpu"
        return ""


class Ranked(NamedTuple):
    key: float
    node: int
    prefix: int
    source: str
    second: float = 0.0


class Reads(NamedTuple):
    tiers: list[str]
    fetched: int
    got: int
    duration: float


def hash_of(tie: int, name: str) -> int:
    return xxhash.xxh3_64_intdigest(struct.pack("<Q", tie) + name.encode())


def prefill(costs: Costs, prompt: int, cached: int) -> float:
    return (
        costs.fixed_s
        + (prompt - cached) / costs.prefill_tokens_per_s
        + costs.token_squared_s * (prompt * prompt - cached * cached)
    )


def slowed(costs: Costs, factor: float) -> Costs:
    return Costs(
        fixed_s=costs.fixed_s * factor,
        prefill_tokens_per_s=costs.prefill_tokens_per_s / factor,
        token_squared_s=costs.token_squared_s * factor,
    )


class Asked(NamedTuple):
    """What is known when a request is routed; lists have one element for each node."""

    prompt: int
    head: int
    cached: list[int]
    on_gpu: list[int]
    waits: list[float]
    work: list[list[int]]


Ours = BlocksParameters | LmetricParameters | StickyParameters


def counted(
    parameters: Ours,
    at: int,
    asked: Asked,
    hot: bool,
) -> float | None:
    """The key of a node by what is in flight; None where it is left out."""
    prompt, head, cached, on_gpu, waits, work = asked
    if isinstance(parameters, BlocksParameters):
        saved = on_gpu[at] * parameters.gpu + (cached[at] - on_gpu[at]) * parameters.cpu
        alone = sum(work[at]) + max(prompt - saved, 0.0)
        # Nothing is decoded here, so what would be held is the prompt alone.
        return (parameters.scale * alone + prompt) / parameters.block
    if isinstance(parameters, LmetricParameters):
        if parameters.guard and hot and cached[at] >= head and min(cached) < head:
            return None
        return float(max(prompt - cached[at], 1) * (len(work[at]) + 1))
    most = max(cached)
    keeps = [n for n, one in enumerate(cached) if most and one >= parameters.share * most]
    first = min((waits[n] for n in keeps), default=math.inf)
    if at not in keeps and first - min(waits) <= parameters.max_penalty_s:
        return None
    return float(sum(work[at]))


Others = TwoTierParameters | LoadAwareParameters | KvAwareParameters | AibrixParameters


def of_others(parameters: Others, at: int, asked: Asked) -> tuple[float, float] | None:
    """The key of a node by policies that only the simulator has; None where it is left out."""
    prompt, cached, counts = asked.prompt, asked.cached, [len(work) for work in asked.work]
    longest, spread = max(cached), max(counts) - min(counts)
    mean = sum(counts) / len(counts)
    by_load, by_prefix = (float(counts[at]), 0.0), (float(-cached[at]), float(counts[at]))
    if isinstance(parameters, LoadAwareParameters):
        share = cached[at] / prompt if prompt else 0.0
        return parameters.beta * ((counts[at] - mean) / max(mean, 1.0)) - share, 0.0
    if isinstance(parameters, KvAwareParameters):
        lacks_little = longest and prompt - longest <= parameters.threshold
        return (float(-cached[at]), 0.0) if lacks_little else by_load
    if isinstance(parameters, TwoTierParameters):
        uneven = spread > parameters.spread and max(counts) > parameters.ratio * min(counts)
        return by_prefix if longest > parameters.share * prompt and not uneven else by_load
    deviation = math.sqrt(max(sum(one * one for one in counts) / len(counts) - mean * mean, 0.0))
    most = mean + parameters.deviations * deviation
    kept = [n for n, one in enumerate(cached) if one and counts[n] <= most]
    if spread > parameters.spread or not kept:
        return by_load
    return by_prefix if at in kept else None


def by_counts(parameters: object, at: int, asked: Asked, hot: bool) -> tuple[float, float] | None:
    if isinstance(parameters, Others):
        return of_others(parameters, at, asked)
    assert isinstance(parameters, Ours)
    key = counted(parameters, at, asked, hot)
    return None if key is None else (key, 0.0)


class NaiveRun:
    """`outcome` has what `lab.whatif.outcome.RunOutcome` has under the same names."""

    def __init__(self, setup: Setup, requests: Sequence[TraceRequest], block_size: int) -> None:
        self.setup = setup
        self.requests = requests
        self.size = block_size
        digits = len(str(setup.nodes - 1))
        pooled, tiered = setup.pool_blocks != 0, setup.cpu_blocks != 0
        self.pool = NaiveCache(setup.pool_blocks, setup.leases) if pooled else None
        self.nodes = [
            NaiveNode(
                f"node-{number:0{digits}}",
                NaiveCache(setup.gpu_blocks, None if pooled or tiered else setup.leases)
                if setup.gpu_blocks != 0
                else None,
                NaiveCache(setup.cpu_blocks, None if pooled else setup.leases) if tiered else None,
            )
            for number in range(setup.nodes)
        ]
        self.index = NaiveIndex()
        self.waiting: list[tuple[float, int, str, list[Event]]] = []
        self.sent = 0
        self.told: dict[str, float] = {}
        self.classes: list[tuple[Block, bool]] = []  # of each request, and whether it was alarming
        self.random = random.Random(setup.seed)
        self.errors = random.Random(setup.seed + 1)
        self.told_at = -1.0
        self.told_counts: list[int | None] = []
        self.total: dict[str, int] = {}
        self.ttfts: list[float] = []

    def add(self, **counts: int) -> None:
        for name, count in counts.items():
            self.total[name] = self.total.get(name, 0) + count

    def run(self) -> None:
        for number, request in enumerate(self.requests):
            now = request.timestamp / 1000.0 / self.setup.rate
            while self.waiting and self.waiting[0][0] <= now:
                _, _, publisher, events = heapq.heappop(self.waiting)
                self.index.fold(publisher, events)
            ids = request.hash_ids
            self.take(number, [tuple(ids[: end + 1]) for end in range(len(ids))], request, now)

    def take(self, number: int, chain: list[Block], request: TraceRequest, now: float) -> None:
        prompt, setup = request.input_length, self.setup
        matches = [self.index.match(node.name, chain) for node in self.nodes]
        cached = [min(longest * self.size, prompt) for longest, _ in matches]
        on_gpu = [min(gpu * self.size, cached[at]) for at, (_, gpu) in enumerate(matches)]
        seen = self.seen(now)
        wrong = [(self.error(), self.error()) for _ in self.nodes]
        waits = [wait * wrong[at][0] for at, (wait, _) in enumerate(seen)]
        work = [tokens for _, tokens in seen]
        costs = [slowed(setup.costs, factor) for _, factor in wrong]
        others = [node.others(now) for node in self.nodes]
        ranked = self.rank(number, prompt, cached, on_gpu, waits, work, chain, costs, others)
        lasts = [
            (cached[one.node] - on_gpu[one.node]) / self.slower
            + (one.prefix - cached[one.node]) / setup.costs.fetch_tokens_per_s
            + prefill(costs[one.node], prompt, one.prefix)
            for one in ranked
        ]
        objective = math.inf if setup.slo_ttft_s is None else setup.slo_ttft_s
        refuses = setup.refusal != "none"
        for one, last in zip(ranked, lasts, strict=True):
            if not refuses or waits[one.node] + last <= objective:
                self.serve(one, chain, prompt, now, last)
                return
        reads = [
            self.nodes[one.node].seen(now, None, True)[0] + self.reads(one, chain, prompt).duration
            for one in ranked
        ]
        self.add(refused=1, needless=int(min(reads) <= objective))

    def seen(self, now: float) -> list[tuple[float, list[int]]]:
        age = self.setup.load_age_s
        if age and math.floor(now / age) * age > self.told_at:
            self.told_at = math.floor(now / age) * age
            self.told_counts = [len(node.given) for node in self.nodes]
        counts = self.told_counts if age else [None] * len(self.nodes)
        return [
            node.seen(now, count, self.setup.bookings)
            for node, count in zip(self.nodes, counts, strict=True)
        ]

    def error(self) -> float:
        sigma = self.setup.estimate_error
        return math.exp(self.errors.gauss(0.0, sigma)) if sigma else 1.0

    @property
    def slower(self) -> float:
        costs = self.setup.costs
        return costs.load_tokens_per_s if self.pool is None else costs.pool_tokens_per_s

    def reads(self, chosen: Ranked, chain: list[Block], prompt: int) -> Reads:
        node, costs = self.nodes[chosen.node], self.setup.costs
        tiers: list[str] = []
        for block in chain:
            tier = node.has(block)
            if not tier and self.pool is not None and block in self.pool.used:
                tier = "pool"
            if not tier:
                break
            tiers.append(tier)
        fetched = 0
        if chosen.source:
            source = next(one for one in self.nodes if one.name == chosen.source)
            there = 0
            while there < len(chain) and source.has(chain[there]):
                there += 1
            fetched = max(min(math.ceil(chosen.prefix / self.size), there) - len(tiers), 0)
        got = min((len(tiers) + fetched) * self.size, prompt)
        duration = (
            min(tiers.count("cpu") * self.size, got) / costs.load_tokens_per_s
            + min(tiers.count("pool") * self.size, got) / costs.pool_tokens_per_s
            + min(fetched * self.size, got) / costs.fetch_tokens_per_s
            + prefill(costs, prompt, got)
        )
        return Reads(tiers, fetched, got, duration)

    def serve(
        self, chosen: Ranked, chain: list[Block], prompt: int, now: float, last: float
    ) -> None:
        node, setup = self.nodes[chosen.node], self.setup
        tiers, fetched, got, duration = self.reads(chosen, chain, prompt)
        node.given.append(Given(now, duration, prompt - got, last, prompt - chosen.prefix))
        node.free_at = max(now, node.free_at) + duration
        node.busy += duration
        node.requests += 1
        ttft = node.free_at - now
        self.ttfts.append(ttft)
        self.add(
            requests=1,
            within=int(setup.slo_ttft_s is None or ttft <= setup.slo_ttft_s),
            blocks=len(chain),
            hit_blocks=len(tiers) + fetched,
            tokens=prompt,
            hit_tokens=got,
            gpu_blocks=tiers.count("gpu"),
            cpu_blocks=tiers.count("cpu"),
            pool_blocks=tiers.count("pool"),
            fetched_blocks=fetched,
            promised_tokens=chosen.prefix,
            over_promised_tokens=max(chosen.prefix - got, 0),
        )
        self.keep(node, chain, tiers, now)

    def keep(self, node: NaiveNode, chain: list[Block], tiers: list[str], now: float) -> None:
        at = now if self.setup.announce == "arrival" else node.free_at
        if node.gpu is not None:
            loaded = [block for block, tier in zip(chain, tiers, strict=False) if tier == "cpu"]
            stored, evicted, refused = node.gpu.use(chain, now)
            events: list[Event] = [("removed", "GPU", evicted)] if evicted else []
            self.add(stored=len(stored), evicted=len(evicted), unstored=refused)
            if node.cpu is not None and (loaded or evicted):
                kept, dropped, refused = node.cpu.use([*loaded, *evicted[::-1]], now)
                events += [("offloaded", "CPU", kept)] if kept else []
                events += [("removed", "CPU", dropped)] if dropped else []
                self.add(evicted=len(dropped), unstored=refused)
            self.publish(node.name, [*events, *runs_of(chain, stored, "GPU")], at)
        if self.pool is not None:
            stored, evicted, refused = self.pool.use(chain, now)
            events = [("removed", "CPU", evicted)] if evicted else []
            self.add(stored=len(stored), evicted=len(evicted), unstored=refused)
            self.publish("pool", [*events, *runs_of(chain, stored, "CPU")], at)

    def publish(self, publisher: str, events: list[Event], at: float) -> None:
        if not events:
            return
        self.sent += 1
        at = self.told[publisher] = max(self.told.get(publisher, 0.0), at)
        if self.setup.index_loss and self.random.random() < self.setup.index_loss:
            self.add(lost_batches=1)
        else:
            due = at + self.setup.index_delay_s
            heapq.heappush(self.waiting, (due, self.sent, publisher, events))

    def rank(
        self,
        number: int,
        prompt: int,
        cached: list[int],
        on_gpu: list[int],
        waits: list[float],
        work: list[list[int]],
        chain: list[Block],
        each: list[Costs],
        others: list[float],
    ) -> list[Ranked]:
        name, parameters = parse_policy(self.setup.policy, ALL_POLICIES)
        costs, count = self.setup.costs, len(self.nodes)
        best = max(range(count), key=lambda at: cached[at])
        head = chain[min(len(chain), 4) - 1] if chain else ()
        head_tokens = min(len(head) * self.size, prompt)
        hot = isinstance(parameters, LmetricParameters) and self.is_hot(head, cached, head_tokens)
        asked = Asked(prompt, head_tokens, cached, on_gpu, waits, work)
        ranked = []
        for at in range(count):
            load = (cached[at] - on_gpu[at]) / self.slower
            compute = prefill(each[at], prompt, cached[at])
            transfer = (cached[best] - cached[at]) / costs.fetch_tokens_per_s
            rest = prefill(each[at], prompt, cached[best])
            here = Ranked(waits[at] + load + compute, at, cached[at], "")
            there = Ranked(
                transfer + waits[at] + load + rest, at, cached[best], self.nodes[best].name
            )
            match parameters:
                case LongestPrefixParameters():
                    if waits[at] > parameters.overload_s and min(waits) <= parameters.overload_s:
                        continue
                    here = here._replace(key=-float(cached[at]))
                case WeightedParameters():
                    if waits[at] > parameters.overload_s and min(waits) <= parameters.overload_s:
                        continue
                    share = cached[at] / prompt if prompt else 0.0
                    idle = 1.0 - min(waits[at] / parameters.full_load_s, 1.0)
                    here = here._replace(key=-(parameters.alpha * share + parameters.beta * idle))
                case Algorithm1Parameters():
                    over = cached[best] > parameters.kvcache_balancing_threshold * cached[at]
                    here = there if parameters.fetch and over else here
                case WaitAndWorkParameters() | LeastDelayParameters():
                    behind = 0.0
                    if isinstance(parameters, LeastDelayParameters):
                        behind = parameters.others * others[at]
                    extra = [
                        parameters.work * last + behind * own * (waits[at] + own / 2)
                        for last, own in ((compute, load + compute), (rest, transfer + load + rest))
                    ]
                    here = here._replace(key=here.key + extra[0])
                    there = there._replace(key=there.key + extra[1])
                    if parameters.fetch and cached[best] > cached[at] and there.key < here.key:
                        here = there
                case _ if isinstance(parameters, (*get_args(Ours), *get_args(Others))):
                    keys = by_counts(parameters, at, asked, hot)
                    if keys is None:
                        continue
                    here = here._replace(key=keys[0], second=keys[1])
                case _:  # a policy that is not written out here fails
                    turn = float((at - number) % count)
                    plain = {"round-robin": turn, "random": 0.0, "least-loaded": waits[at]}
                    here = here._replace(key=plain[name])
            ranked.append(here)
        tie = hash_of(self.setup.seed, str(number))
        return sorted(
            ranked, key=lambda one: (one.key, one.second, hash_of(tie, self.nodes[one.node].name))
        )

    def is_hot(self, head: Block, cached: list[int], tokens: int) -> bool:
        """Of the last requests that begin so, more than twice as many as hold it, in a row, had a
        share of all that those could not take."""
        holders = sum(1 for one in cached if one >= tokens)
        others = len(cached) - holders
        last = [one for one, _ in self.classes[-999:]] + [head]
        own = last.count(head)
        alarming = 0 < holders < len(cached) and own * others > (len(last) - own) * holders
        self.classes.append((head, alarming))
        row = 0
        for one, alarm in reversed(self.classes):
            if one == head:
                if not alarm:
                    break
                row += 1
        return row > 2 * holders


def runs_of(chain: list[Block], stored: list[Block], tier: str) -> list[Event]:
    """Blocks that follow one another are announced together."""
    events: list[Event] = []
    for at, block in enumerate(chain):
        if block in stored:
            if at and chain[at - 1] in stored:
                events[-1][2].append(block)
            else:
                events.append(("stored", tier, [block]))
    return events
