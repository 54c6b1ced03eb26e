"""One run: each request is routed by what the index says, and changes a node's caches.

The model, in the order of a request's arrival:

1. The index folds all batches that have come by now.
2. The router asks it for the prompt, and the policy ranks the nodes by the answer and by their
   waits. It knows these exactly, since it has booked them itself, or as it was told
   (`load_view.py`), and its estimates may be wrong.
3. The node begins when it has done all that it was given before. What it holds then is what it
   holds now, since it works in order. It loads what is on slower tiers, fetches what the policy
   decided to fetch and the source really has, and computes the rest: the time to the first token.
4. Its caches keep the prompt's blocks, and the changes are published, at once or when it is done.

5. Where there are instances that decode, it goes to one of them (`decoding.py`).
6. Where advice is carried out, prefixes are copied between nodes beside all that (`acting.py`).

Prompts are not computed in batches, and a source of a fetch is not slowed down.
"""

import math
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from lab.whatif.acting import SimulatedActor
from lab.whatif.caches.lru import LruCache
from lab.whatif.caches.node_cache import BlockCache
from lab.whatif.caches.store import StoreCache
from lab.whatif.decided_index import DecidedIndex
from lab.whatif.decoding import DecodePool
from lab.whatif.feed import Feed
from lab.whatif.load_view import EstimateErrors, LoadView, slowed
from lab.whatif.node import CacheChange, HeldPrefix, Node, Pool
from lab.whatif.outcome import NodeOutcome, RunOutcome, latency_of, parts_of
from lab.whatif.policies.table import parse
from lab.whatif.setup import Announcement, Leases, RefusalBasis, RouterKnowledge, Setup
from lab.whatif.workload import Workload
from routing.interface import Candidate, Choice, Request
from routing.observed.sessions import Sessions, with_affinity
from routing.policies.hot_classes import CLASS_BLOCKS, HotClasses
from routing.policies.inflight import LmetricParameters
from routing.policies.ranking import tie_break
from routing.policies.recent_work import RecentWork
from routing.policies.refusal import Prediction, RefusalRule, refuse_at_arrival
from schemas.arrays import to_little_endian
from schemas.identities import DEFAULT_TENANT
from schemas.routing_records import Refusal, Target
from streams.kernel.interface import InstanceMatch

TOLD_REQUESTS: Final = 64
"""Between two steps of the progress: with 4096 nodes they take a second."""

POOL: str = "pool"
"""Name of the shared pool's publisher."""


class _Served(NamedTuple):
    """What became of a request."""

    held: HeldPrefix
    fetched: int
    cached_tokens: int
    duration_s: float
    ttft_s: float = 0.0


class SimulationRun:
    """One setup on one workload; `outcome` runs it."""

    def __init__(
        self, setup: Setup, workload: Workload, *, label: str = "", kernel: str | None = None
    ) -> None:
        """Args:
        setup: what to run.
        workload: on what.
        label: of people; the policy where it is empty.
        kernel: as `streams.kernel.open_kernel` takes it.
        """
        self._setup = setup
        self._workload = workload
        self._label = label or setup.policy
        self._policy, self._parameters = parse(setup.policy)
        self._classes = HotClasses()
        self._sees_classes = isinstance(self._parameters, LmetricParameters)
        self._feed = Feed(
            seed=setup.seed, delay_s=setup.index_delay_s, loss=setup.index_loss, kernel=kernel
        )
        self._decided: DecidedIndex | None = None
        self._sessions = Sessions() if setup.sessions else None
        self._pool = self._open_pool()
        digits = len(str(setup.nodes - 1))
        self._nodes = [self._open_node(f"node-{number:0{digits}}") for number in range(setup.nodes)]
        self._by_name = {node.name: node for node in self._nodes}
        for node in self._nodes:
            self._feed.register(node)
        if setup.index in (RouterKnowledge.DECISIONS, RouterKnowledge.CAPACITY):
            knows_capacity = setup.index is RouterKnowledge.CAPACITY
            self._decided = DecidedIndex(
                [node.name for node in self._nodes],
                lasts_s=setup.decisions_s,
                capacity_blocks=(setup.gpu_blocks or 0) if knows_capacity else 0,
            )
        # The router sees one slower tier: where there is a pool, that is it.
        costs = setup.costs
        self._estimates = (
            costs
            if self._pool is None
            else msgspec.structs.replace(costs, load_tokens_per_s=costs.pool_tokens_per_s)
        )
        self._total = dict.fromkeys(
            (
                *(
                    "requests",
                    "refused",
                    "needless",
                    "within",
                    "blocks",
                    "hit_blocks",
                    "tokens",
                    "hit_tokens",
                ),
                *("gpu_blocks", "cpu_blocks", "pool_blocks", "fetched_blocks"),
                *("promised_tokens", "over_promised_tokens", "stored", "evicted", "unstored"),
            ),
            0,
        )
        self._view = LoadView(
            [node.queue for node in self._nodes], setup.load_age_s, bookings=setup.bookings
        )
        self._recent_work = [RecentWork() for _ in self._nodes]
        self._places = {node.name: place for place, node in enumerate(self._nodes)}
        self._errors = (
            EstimateErrors(setup.estimate_error, setup.seed + 1) if setup.estimate_error else None
        )
        self._decode = DecodePool(setup) if setup.decoders else None
        self._acting = self._open_acting()
        self._copied_blocks = 0
        self._ttfts: list[float] = []
        self._full_cost_s = 0.0

    def outcome(self, when_taken: Callable[[int], None] = lambda requests: None) -> RunOutcome:
        """Runs it. Cost about 60 us for each request of 24 blocks among ten nodes.

        Args:
            when_taken: called now and then with how many more requests were run.
        """
        count = len(self._workload)
        for number, arrival in enumerate(self._workload.arrivals_s):
            if number and not number % TOLD_REQUESTS:
                when_taken(TOLD_REQUESTS)
            self._take(number, arrival / self._setup.rate)
        when_taken((count - 1) % TOLD_REQUESTS + 1 if count else 0)
        self._feed.advance(math.inf)  # so that what the index has counted is of all requests
        busy = [node.busy_s for node in self._nodes]
        mean = sum(busy) / len(busy)
        return RunOutcome(
            label=self._label,
            trace=self._workload.name,
            setup=self._setup,
            ttft=latency_of(self._ttfts),
            ttft_parts=parts_of(self._ttfts),
            busy_s=sum(busy),
            imbalance=max(busy) / mean if mean else 1.0,
            full_cost_s=self._full_cost_s,
            lost_batches=self._feed.lost,
            index=self._feed.counters(),
            nodes=[
                NodeOutcome(name=node.name, requests=node.requests, busy_s=node.busy_s)
                for node in self._nodes
            ],
            decode=None if self._decode is None else self._decode.outcome(),
            copies=0 if self._acting is None else self._acting.made,
            copied_blocks=self._copied_blocks,
            **self._total,
        )

    def _take(self, number: int, now: float) -> None:
        self._feed.advance(now)
        if self._decode is not None:
            self._decode.advance(now)
        if self._acting is not None:
            self._act(self._acting, now)
        chain = self._workload.chain(number)
        prompt = self._workload.prompt_tokens[number]
        tie = tie_break(self._setup.seed, str(number))
        choices = self._rank(number, chain, prompt, now, tie)
        choice = self._admitted(choices, prompt, now)
        if choice is None:
            self._total["refused"] += 1
            if all(self._is_late(one, prompt) for one in choices):
                self._total["needless"] += self._would_do(choices, chain, prompt, now)
            return
        node = self._by_name[choice.candidate.instance_id]
        self._note_sent(number, node, chain, prompt, now)
        served = self._serve(node, choice, chain, prompt, now)
        self._count(node, choice, served, len(chain), prompt)
        if self._decode is not None:
            self._decode.assign(
                number,
                tie,
                prompt=prompt,
                output=self._workload.output_tokens[number],
                prefill_s=served.duration_s,
                ends_at=node.queue.free_at,
                is_in_time=self._is_in_time(served.ttft_s),
            )
        at = now if self._setup.announce is Announcement.ARRIVAL else node.queue.free_at
        self._publish(node, node.keep(chain, served.held, now), at)
        if self._pool is not None:
            self._publish(self._pool, self._pool.keep(chain, now), at)

    def _rank(
        self, number: int, chain: "array[int]", prompt: int, now: float, tie: int
    ) -> list[Choice]:
        matches = self._matches(chain, prompt, now)
        if self._acting is not None:
            held = max(match.longest for match in matches)
            self._acting.asked(number, chain, held, now)
        candidates = self._candidates(matches, prompt, now)
        request = self._request(number, chain, prompt, tie, candidates)
        choices = self._policy.rank(request, candidates, self._estimates, self._parameters)
        if self._sessions is None:
            return choices
        last = self._sessions.last(DEFAULT_TENANT, self._session(number), now)
        in_seconds = self._policy.in_seconds
        return with_affinity(choices, last and last[1], keys_are_seconds=in_seconds)

    def _matches(self, chain: "array[int]", prompt: int, now: float) -> list[InstanceMatch]:
        if self._decided is not None:
            return self._decided.ask(self._whole(chain, prompt), now)
        return self._feed.ask(_tokens(chain))

    def _whole(self, chain: "array[int]", prompt: int) -> "array[int]":
        """The whole blocks of a prompt: of others there are no hashes."""
        return chain[: prompt // self._workload.block_size]

    def _session(self, number: int) -> str:
        return str(self._workload.sessions[number])

    def _note_sent(
        self, number: int, node: Node, chain: "array[int]", prompt: int, now: float
    ) -> None:
        """What the router remembers of its decision."""
        if self._decided is not None:
            self._decided.decided(self._whole(chain, prompt), self._places[node.name], now)
        if self._sessions is not None:
            key = (DEFAULT_TENANT, self._session(number))
            self._sessions.note(now, key, Target(DEFAULT_TENANT, node.name, 0))

    def _admitted(self, choices: Sequence[Choice], prompt: int, now: float) -> Choice | None:
        """The first choice of the policy that meets the objectives; None: it is refused."""
        rule = self._setup.refusal
        if rule is RefusalBasis.NONE:
            return choices[0]
        choice = next((one for one in choices if not self._is_late(one, prompt)), None)
        if choice is None or self._decode is None or self._setup.slo_tbt_s is None:
            return choice
        in_s = self._estimate(choice, prompt)
        prediction = Prediction(
            ttft_s=in_s,
            tbt_now_s=self._decode.tbt_now_s(prompt) if rule is RefusalBasis.EARLY else 0.0,
            tbt_then_s=self._decode.tbt_then_s(prompt, now, in_s)
            if rule is RefusalBasis.PREDICT
            else 0.0,
            tbt_slo_s=self._setup.slo_tbt_s,
        )
        refused = refuse_at_arrival(RefusalRule(rule), prediction, self._setup.decode_load)
        return choice if refused is Refusal.NO else None

    def _would_do(
        self, choices: Sequence[Choice], chain: "array[int]", prompt: int, now: float
    ) -> bool:
        """Whether one of the choices would have met the objective for the first token."""
        for choice in choices:
            node = self._by_name[choice.candidate.instance_id]
            wait = node.queue.load(now).wait_s
            if self._is_in_time(wait + self._reads(node, choice, chain, prompt).duration_s):
                return True
        return False

    def _is_late(self, choice: Choice, prompt: int) -> bool:
        """Whether the router expects it to miss the objective for the first token."""
        return not self._is_in_time(self._estimate(choice, prompt))

    def _is_in_time(self, ttft_s: float) -> bool:
        return self._setup.slo_ttft_s is None or ttft_s <= self._setup.slo_ttft_s

    def _request(
        self,
        number: int,
        chain: "array[int]",
        prompt: int,
        tie: int,
        candidates: Sequence[Candidate],
    ) -> Request:
        if not self._sees_classes:
            return Request(number, prompt, tie)
        first = tuple(chain[:CLASS_BLOCKS])
        tokens = min(len(first) * self._workload.block_size, prompt)
        holders = sum(one.cached >= tokens for one in candidates)
        is_hot = self._classes.note(first, holders, len(candidates))
        return Request(number, prompt, tie, tokens, is_hot)

    def _candidates(self, matches: list[InstanceMatch], prompt: int, now: float) -> list[Candidate]:
        size = self._workload.block_size
        candidates = []
        loads = self._view.loads(now)
        for node, match, load, work in zip(
            self._nodes, matches, loads, self._recent_work, strict=True
        ):
            cached = on_gpu = 0
            if match.longest:
                cached = min(match.longest * size, prompt)
                on_gpu = min(match.ranks[0].gpu_walk * size, cached)
            costs = None
            wait = load.wait_s
            if self._errors is not None:
                wrong = self._errors.draw()
                wait *= wrong.wait
                costs = slowed(self._estimates, wrong.prefill)
            candidates.append(
                Candidate(
                    node.name,
                    cached,
                    on_gpu,
                    wait,
                    requests=load.requests,
                    pending=load.pending,
                    costs=costs,
                    others=work.others(now),
                )
            )
        return candidates

    def _estimate(self, choice: Choice, prompt: int) -> float:
        """When the first token would come, by what the index says."""
        return choice.candidate.wait_s + self._work(choice, prompt)

    def _work(self, choice: Choice, prompt: int) -> float:
        """How long the node would be busy with it, by what the index says."""
        one = choice.candidate
        costs = one.costs or self._estimates
        return (
            costs.load_s(one.cached - one.gpu)
            + costs.fetch_s(choice.prefix - one.cached)
            + costs.prefill_s(prompt, choice.prefix)
        )

    def _serve(
        self, node: Node, choice: Choice, chain: "array[int]", prompt: int, now: float
    ) -> _Served:
        """Books the request at the node."""
        reads = self._reads(node, choice, chain, prompt)
        node.queue.book(reads.duration_s, prompt - reads.cached_tokens, now)
        place = self._places[node.name]
        estimated_s = self._work(choice, prompt)
        self._view.book(place, estimated_s, prompt - choice.prefix, now)
        self._recent_work[place].note(now, estimated_s)
        return reads._replace(ttft_s=node.queue.free_at - now)

    def _reads(self, node: Node, choice: Choice, chain: "array[int]", prompt: int) -> _Served:
        """What it would read and compute, by what nodes really have; without its wait."""
        size, costs = self._workload.block_size, self._setup.costs
        held = node.held(chain)
        fetched = 0
        if choice.fetch_from:
            source = self._by_name[choice.fetch_from]
            wanted = -(-choice.prefix // size)
            fetched = max(min(wanted, source.own(chain)) - held.blocks, 0)
        cached = min((held.blocks + fetched) * size, prompt)
        duration = (
            costs.load_s(min(held.cpu * size, cached))
            + costs.pool_s(min(held.pool * size, cached))
            + costs.fetch_s(min(fetched * size, cached))
            + costs.prefill_s(prompt, cached)
        )
        return _Served(held, fetched, cached, duration)

    def _count(self, node: Node, choice: Choice, served: _Served, blocks: int, prompt: int) -> None:
        node.requests += 1
        node.busy_s += served.duration_s
        self._full_cost_s += self._setup.costs.prefill_s(prompt, 0)
        self._ttfts.append(served.ttft_s)
        total, held = self._total, served.held
        total["requests"] += 1
        total["within"] += self._is_in_time(served.ttft_s)
        total["blocks"] += blocks
        total["hit_blocks"] += held.blocks + served.fetched
        total["tokens"] += prompt
        total["hit_tokens"] += served.cached_tokens
        total["gpu_blocks"] += held.gpu
        total["cpu_blocks"] += held.cpu
        total["pool_blocks"] += held.pool
        total["fetched_blocks"] += served.fetched
        total["promised_tokens"] += choice.prefix
        total["over_promised_tokens"] += max(choice.prefix - served.cached_tokens, 0)

    def _publish(self, publisher: Node | Pool, changed: CacheChange, at: float) -> None:
        total = self._total
        total["stored"] += changed.stored
        total["evicted"] += changed.evicted
        total["unstored"] += changed.refused
        if changed.events and self._setup.index is RouterKnowledge.EVENTS:
            self._feed.publish(publisher, changed.events, at)

    def _act(self, acting: SimulatedActor, now: float) -> None:
        """Takes in what was copied by now, and looks at what is advised."""
        for copy in acting.landed(now):
            node = self._by_name[copy.target]
            chain = copy.chain[: self._by_name[copy.source].own(copy.chain)]
            before = node.own(chain)
            if before < len(chain):
                self._copied_blocks += len(chain) - before
                self._publish(node, node.keep(chain, node.held(chain), copy.at), copy.at)
        if acting.is_due(now):
            self._feed.advance(now)
            acting.look(now, self._view.loads(now), lambda chain: self._feed.ask(_tokens(chain)))

    def _open_acting(self) -> SimulatedActor | None:
        setup, workload = self._setup, self._workload
        if not setup.act_s:
            return None
        blocks = setup.gpu_blocks
        return SimulatedActor(
            workload,
            [node.name for node in self._nodes],
            setup.costs,
            period_s=setup.act_s,
            capacity=None if blocks is None else blocks * workload.block_size,
        )

    def _open_node(self, name: str) -> Node:
        setup = self._setup
        gpu: BlockCache | None = None
        cpu: BlockCache | None = None
        if setup.gpu_blocks != 0:
            leased = setup.cpu_blocks == 0 and setup.pool_blocks == 0
            gpu = self._open_cache(setup.gpu_blocks, setup.leases if leased else None)
        if setup.cpu_blocks != 0:
            leased = setup.pool_blocks == 0
            cpu = self._open_cache(setup.cpu_blocks, setup.leases if leased else None)
        return Node(name, gpu, cpu, self._pool)

    def _open_pool(self) -> Pool | None:
        setup = self._setup
        if setup.pool_blocks == 0:
            return None
        return Pool(POOL, self._open_cache(setup.pool_blocks, setup.leases))

    def _open_cache(self, capacity: int | None, leases: Leases | None) -> BlockCache:
        if leases is None or capacity is None:
            return LruCache(capacity)
        return StoreCache(capacity, leases, self._workload.depths)


def _tokens(chain: "array[int]") -> bytes:
    """What the kernel hashes: one token for each block."""
    if sys.byteorder == "big":
        return to_little_endian(chain[:])
    return chain.tobytes()
