"""Decides who gets a request, books that at once, and takes what came of it."""

import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import uuid4

import xxhash

from query_api.ports import View
from query_api.routing.folded import FoldedRouting
from query_api.routing.interface import Offered, PostedLoad, Routed, RouteRequest
from query_api.routing.live import Carried, LiveLoad, Report
from query_api.routing.queue import RoutingQueue
from query_api.routing.targets import UNKNOWN, KnownTarget, RankKey, Targets
from schemas.answer_states import AnswerState
from schemas.limits import (
    LOAD_FUTURE_S,
    ROUTE_ANSWERS_MAX,
    ROUTE_POLICIES_MAX,
    ROUTE_REPEAT_S,
)
from schemas.routing_records import (
    DecidedScope,
    Decision,
    LoadSample,
    LoadSource,
    Outcome,
    PartitionPosition,
    Phase,
    PrefixMark,
    Refused,
    Target,
    marks_at,
    parse_decision_id,
)
from streams.kernel.interface import InstanceMatch
from streams.routing.costs import Costs
from streams.routing.decide import Asked, Decided, Found, Rules, decide
from streams.routing.interface import Parameters, Rank, Request
from streams.routing.table import find_policy, parse_policy

DEFAULT_POLICY: Final = "wait-and-work"
OUTPUT_TOKENS: Final = 256
"""That a request is expected to have where nothing is known."""

MEAN_PROMPT_TOKENS: Final = 4096
"""Of those that wait, by a sample that says only how many."""

_ROLES: Final = {
    Phase.COMBINED: ("combined",),
    Phase.PREFILL: ("combined", "prefill"),
    Phase.DECODE: ("combined", "decode"),
    Phase.PAIR: ("combined", "prefill"),
}
_U64: Final = struct.Struct("<Q")


class RouterSettings(NamedTuple):
    """What a router goes by where a request does not say otherwise.

    Attributes:
        policy: with its parameters.
        costs: what things take where nothing has been learned.
        rules: what leaves candidates out.
    """

    policy: str = DEFAULT_POLICY
    costs: Costs = Costs()
    rules: Rules = Rules()


class Told(NamedTuple):
    """A report as a client makes it; see `schemas.routing_records.Outcome`."""

    decision_id: str | None
    request_id: str | None
    outcome: Outcome
    at: float | None


class Taken(NamedTuple):
    """How many reports were new, had been made before, or are of no decision that is known."""

    accepted: int = 0
    repeated: int = 0
    unknown: int = 0


class _Candidates(NamedTuple):
    found: list[Found]
    endpoints: tuple[str, ...]
    carried: list[Carried]


class Router:
    """See the module. Decisions are made on one thread.

    Attributes:
        run: names the decisions of this service: Unix microseconds of its start.
        live: what is under way.
        queue: what is to be written into the routing log.
        folded: what has been learned from it.
    """

    def __init__(
        self,
        view: View,
        queue: RoutingQueue,
        live: LiveLoad,
        folded: FoldedRouting,
        settings: RouterSettings = RouterSettings(),  # noqa: B008 -- immutable
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        view: of the table.
        queue, live, folded: shared with whoever reads and writes the routing log.
        settings: of the service.
        clock: Unix seconds.
        """
        self.live = live
        self.queue = queue
        self.folded = folded
        self.run = int(clock() * 1e6)
        self._view = view
        self._settings = settings
        self._clock = clock
        self._targets = Targets(view, monotonic)
        self._number = 0
        self._answered: OrderedDict[tuple[str, str], Routed] = OrderedDict()
        self._named: dict[str, int] = {}  # numbers of the same, by request alone
        self._policies = {"": self._policy(settings.policy)}

    # Decisions

    def route(self, asked: RouteRequest) -> Routed:
        """Decides. The same request id within ROUTE_REPEAT_S gets the same decision, booked once.

        Raises:
            PolicyError: there is no such policy, or it has no such parameter.
        """
        now = self._clock()
        name = (asked.scope.tenant_id, asked.request_id)
        if asked.request_id and asked.reserve:
            known = self._answered.get(name)
            if known is not None and now - known.decision.time <= ROUTE_REPEAT_S:
                return known
        routed = self._decide(asked, now)
        if asked.reserve:
            if routed.decision.refused is Refused.NO:
                self._keep((name[0], routed.decision.request_id), routed)
            self.queue.push_decision(self.run, routed.decision)
        return routed

    def _keep(self, name: tuple[str, str], routed: Routed) -> None:
        """Books it, here at once, and for its request's name."""
        self.live.book(self.run, routed.decision)
        number = routed.decision.number
        self._answered[name] = routed
        self._answered.move_to_end(name)
        self._named[name[1]] = number
        oldest, first = next(iter(self._answered.items()))
        if (
            len(self._answered) > ROUTE_ANSWERS_MAX
            or routed.decision.time - first.decision.time > ROUTE_REPEAT_S
        ):
            del self._answered[oldest]
            if self._named.get(oldest[1]) == first.decision.number:
                del self._named[oldest[1]]

    def _decide(self, asked: RouteRequest, now: float) -> Routed:
        text, rank, parameters = self._known_policy(asked.policy)
        candidates = self._candidates(asked, now)
        number, self._number = self._number, self._number + 1
        tie = xxhash.xxh3_64_intdigest(_U64.pack(self.run) + _U64.pack(number))
        request = Request(number, asked.prompt_tokens, tie)
        decided = decide(
            Asked(request, rank, parameters, asked.ttft_slo_s, self._settings.rules),
            candidates.found,
        )
        decision = self._decision(asked, text, request, decided, now)
        age = None
        if decision.chosen >= 0:
            sample = candidates.carried[decision.chosen].sample
            age = None if sample is None else max(now - sample.observed_at, 0.0)
        return Routed(self.run, decision, decided.retry_after_s, age, candidates.endpoints)

    def _decision(
        self, asked: RouteRequest, policy: str, request: Request, decided: Decided, now: float
    ) -> Decision:
        view = self._view
        held = max((match.longest for match in asked.matches), default=0)
        state = view.state(asked.scope) if view.ready else AnswerState.STALE
        output = asked.expected_output_tokens
        return Decision(
            request.decision,
            now,
            asked.request_id or uuid4().hex,
            DecidedScope(*asked.scope),
            policy,
            tuple(PartitionPosition(*one) for one in view.positions()),
            state.value,
            asked.prompt_tokens,
            OUTPUT_TOKENS if output is None else output,
            asked.phase,
            asked.ttft_slo_s,
            asked.tbt_slo_s,
            asked.priority,
            asked.session_id,
            request.tie,
            request.class_tokens,
            request.is_hot,
            decided.costs,
            decided.candidates,
            decided.chosen,
            -1,
            decided.refused,
            1.0,
            decided.predicted_s,
            _marks(asked.prefixes, held // asked.scope.block_size),
            held=held,
        )

    def _known_policy(self, text: str) -> tuple[str, Rank, Parameters]:
        found = self._policies.get(text)
        if found is None:
            found = self._policy(text)
            if len(self._policies) < ROUTE_POLICIES_MAX:
                self._policies[text] = found
        return found

    @staticmethod
    def _policy(text: str) -> tuple[str, Rank, Parameters]:
        name, parameters = parse_policy(text)
        return text, find_policy(name).rank, parameters

    # Candidates

    def _candidates(self, asked: RouteRequest, now: float) -> _Candidates:
        tenant = asked.scope.tenant_id
        known = self._targets.of_model(tenant, asked.scope.model_name)
        by_instance = {match.instance_id: match for match in asked.matches}
        offered = self._offered(asked, known, by_instance)
        keys = sorted(offered)
        targets = [Target(tenant, *key) for key in keys]
        said = {}
        for key, target in zip(keys, targets, strict=True):
            one = offered[key]
            if one is not None and one.load is not None:
                said[target] = sample_of(target, one.load, LoadSource.REQUEST, now)
        costs = self._settings.costs
        mean_work = costs.prefill_s(MEAN_PROMPT_TOKENS, 0)
        carried = self.live.carried(targets, now, mean_work, said)
        if said:
            self.live.note(said.values())
        roles = _ROLES[asked.phase]
        found, endpoints = [], []
        for key, load in zip(keys, carried, strict=True):
            registered, one = known.get(key, UNKNOWN), offered[key]
            role = (one and one.role) or registered.role
            endpoints.append((one and one.endpoint) or registered.endpoint)
            match = by_instance.get(key[0])
            found.append(_found(key, match, load, registered, role in roles, costs))
        return _Candidates(found, tuple(endpoints), carried)

    def _offered(
        self,
        asked: RouteRequest,
        known: Mapping[RankKey, KnownTarget],
        by_instance: dict[str, InstanceMatch],
    ) -> dict[RankKey, Offered | None]:
        """The ranks that may be chosen; of those that a request names, what it says of them."""
        ranks: dict[str, set[int]] = {}
        for name, rank in known:
            ranks.setdefault(name, set()).add(rank)
        for name, match in by_instance.items():
            ranks.setdefault(name, set()).update(rank.dp_rank for rank in match.ranks)
        if asked.candidates is None:
            return {(name, rank): None for name, each in ranks.items() for rank in each}
        offered: dict[RankKey, Offered | None] = {}
        for one in asked.candidates:
            if one.dp_rank is not None:
                offered[one.instance_id, one.dp_rank] = one
                continue
            for rank in ranks.get(one.instance_id) or {0}:
                offered[one.instance_id, rank] = one
        return offered

    def carried(self) -> list[tuple[Target, Carried]]:
        """What every target carries that something is known of, sorted."""
        targets = self.live.targets()
        mean_work = self._settings.costs.prefill_s(MEAN_PROMPT_TOKENS, 0)
        return list(
            zip(targets, self.live.carried(targets, self._clock(), mean_work, {}), strict=True)
        )

    # What came of decisions

    def take(self, told: Sequence[Told]) -> Taken:
        """Reports of clients; each is applied here at once, and written for the others."""
        now = self._clock()
        accepted = repeated = unknown = 0
        new: list[tuple[int, Outcome]] = []
        for one in told:
            key = self._decision_of(one)
            if key is None:
                unknown += 1
                continue
            run, number = key
            outcome = _with_number(one.outcome, number, _time_of(one.at, now))
            if self.live.report(run, outcome) is Report.REPEATED:
                repeated += 1
            else:
                accepted += 1
                new.append((run, outcome))
        self.queue.push_outcomes(new)
        return Taken(accepted, repeated, unknown)

    def _decision_of(self, told: Told) -> tuple[int, int] | None:
        if told.decision_id is not None:
            key = parse_decision_id(told.decision_id)
            return key if key is not None and self.live.knows_run(key[0]) else None
        if told.request_id is None:
            return None
        number = self._named.get(told.request_id)
        return self.live.named(told.request_id) if number is None else (self.run, number)

    def observe(self, samples: Sequence[LoadSample]) -> None:
        """What targets carry, by clients or by the bridge."""
        self.live.note(samples)
        self.queue.push_samples(samples)


def sample_of(target: Target, posted: PostedLoad, source: LoadSource, now: float) -> LoadSample:
    """What a client says of a target, as of a moment that is not in the future."""
    at = now if posted.observed_at is None else min(posted.observed_at, now)
    return LoadSample(
        target,
        at,
        source,
        posted.running,
        posted.waiting,
        posted.prefill_tokens,
        posted.kv_usage,
        posted.kv_capacity_tokens,
    )


def is_in_the_future(seconds: float | None, now: float) -> bool:
    """Whether a client's time is more than a clock may be wrong ahead of ours."""
    return seconds is not None and seconds > now + LOAD_FUTURE_S


def _found(
    key: RankKey,
    match: InstanceMatch | None,
    carried: Carried,
    target: KnownTarget,
    is_allowed: bool,
    costs: Costs,
) -> Found:
    name, number = key
    cached = gpu = cpu = disk = 0
    if match is not None:
        for rank in match.ranks:
            if rank.dp_rank == number:
                _, matched, gpu, cpu, disk = rank
                # What lies on tiers in turns is longer than a walk down the tiers.
                cached = max(matched, disk)
    booked, wait, sample = carried
    waiting, usage = 0, 0.0
    if sample is not None:
        waiting, usage = sample.waiting or 0, sample.kv_usage or 0.0
    return Found(
        name,
        number,
        cached,
        gpu,
        cpu,
        disk,
        wait,
        costs,
        booked.requests,
        booked.pending,
        booked.active,
        0,
        waiting,
        usage,
        is_allowed,
        target.is_reachable,
        target.is_degraded,
    )


def _marks(prefixes: bytes, longest: int) -> tuple[PrefixMark, ...]:
    return tuple(
        PrefixMark(blocks, _U64.unpack_from(prefixes, 8 * blocks - 8)[0])
        for blocks in marks_at(len(prefixes) // 8, longest)
    )


def _with_number(outcome: Outcome, number: int, at: float) -> Outcome:
    fields = [getattr(outcome, name) for name in Outcome.__struct_fields__[3:]]
    return Outcome(number, outcome.event, at, *fields)


def _time_of(at: float | None, now: float) -> float:
    """When something was, by a client: its clock is believed within a minute."""
    if at is None or is_in_the_future(at, now) or at < now - ROUTE_REPEAT_S:
        return now
    return min(at, now)
