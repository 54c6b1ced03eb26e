"""Decides who gets a request, books that at once, and takes what came of it."""

import logging
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from query_api.ports import View
from routing.bounds import RECORD_STEP_S, ROUTE_REPEAT_S
from routing.costs import Costs
from routing.decisions.answers import KeptAnswers
from routing.decisions.candidates import (
    Candidates,
    gather,
    is_in_the_future,
    usual_of,
)
from routing.decisions.decoding import DecodeTask, choose_decoder
from routing.decisions.fetch_hint import fetch_hint
from routing.decisions.held_reports import HeldName, HeldReport
from routing.decisions.interface import RoutedDecision, RouteRequest
from routing.decisions.kernel_decisions import (
    DecidingParts,
    KernelDecisions,
    KernelSettings,
    open_boards,
)
from routing.decisions.live_load import LiveLoad, ReportKind, TargetLoad
from routing.decisions.placement import with_places
from routing.decisions.plans import advised_plan
from routing.decisions.queue import RoutingQueue
from routing.decisions.router_settings import RouterSettings
from routing.decisions.targets import Targets, unregistered_of
from routing.decisions.wanted_tokens import WantedTokens
from routing.fold.booking import DecisionKey
from routing.interface import Choice, Parameters, Rank, Request
from routing.policies.decide import (
    DecisionRequest,
    DecisionResult,
    Rules,
    decide,
    terms_of,
    total_s,
    with_terms,
)
from routing.policies.hot_classes import CLASS_BLOCKS, HotClasses
from routing.policies.inflight import LmetricParameters
from routing.policies.ranking import tie_of
from routing.policies.table import find_policy, parse_policy, policy_digest
from routing.policies.ttft import LeastDelayParameters
from schemas.answer_states import AnswerState
from schemas.clock import REAL_CLOCK
from schemas.registration import Registration
from schemas.routing_records import (
    DecidedScope,
    Decision,
    FeedbackReport,
    LoadSample,
    OutcomeEvent,
    PartitionPosition,
    Phase,
    PrefixMark,
    Refusal,
    Target,
    decision_id,
    marks_at,
    parse_decision_id,
)
from schemas.tracing import split_context

ROUTE_POLICIES_MAX: Final = 256  # with their parameters, kept as they were read

logger = logging.getLogger(__name__)

NEVER: Final = 2.0**40
"""What no candidate carries more than."""

_RUN_CHANCE_BITS: Final = 20
"""Some 1.05 s."""

_U64: Final = struct.Struct("<Q")


class ClientReport(NamedTuple):
    """A report as a client makes it; see `schemas.routing_records.FeedbackReport`.

    Attributes:
        tenant_id: of the request, where it is named by its own id; None: whose it is, if it is one.
        tenants: whose decisions the client may speak of; None: everybody's. Of theirs it may those
            alone that are known to be under way: others are of nobody that is known.
    """

    decision_id: str | None
    request_id: str | None
    outcome: FeedbackReport
    at: float | None
    tenant_id: str | None = None
    tenants: frozenset[str] | None = None


class FeedbackCounts(NamedTuple):
    """How many reports were new, had been made before, or are of no decision that is known."""

    accepted: int = 0
    repeated: int = 0
    unknown: int = 0


class InstanceLoad(NamedTuple):
    """A target and what it carries: seconds until it would begin, tokens of its cache (0: unknown),
    and what things take there.
    """

    target: Target
    wait_s: float
    capacity_tokens: int
    costs: Costs


class _Policy(NamedTuple):
    text: str
    rank: Rank
    parameters: Parameters
    in_seconds: bool


class Router:
    """See the module. Decisions are made on one thread.

    Attributes:
        run: names the decisions of this service: see `_run_of`.
        started: Unix seconds.
        folded: what has been learned from it.
        answers: those that are given again.
        wanted: tokens of prefixes that somebody needs; nobody, mostly.
        kernel: the decisions that the kernel makes; None: it makes none.
    """

    def __init__(
        self,
        view: View,
        queue: RoutingQueue,
        live: LiveLoad,
        settings: RouterSettings = RouterSettings(),  # noqa: B008 -- immutable
        *,
        clock: Callable[[], float] = REAL_CLOCK.unix,
        monotonic: Callable[[], float] = REAL_CLOCK.monotonic,
        random_bytes: Callable[[int], bytes] = lambda size: os.urandom(size),
        shares_log: bool = False,
    ) -> None:
        """Args:
        queue, live: shared with whoever reads and writes the routing log.
        clock: Unix seconds.
        random_bytes: makes so many.
        shares_log: whether other services decide, too, and write into the same log.
        """
        self.live = live
        self.queue = queue
        self.folded = live.folded
        self.wanted = WantedTokens()
        self.started = clock()
        self.run = _run_of(self.started, random_bytes)
        self._view = view
        self.settings = settings
        self._rules = Rules(degraded=settings.degraded)
        self._clock = clock
        self._monotonic = monotonic
        self._random_bytes = random_bytes
        self._shares_log = shares_log
        self._targets = Targets(view, live.folded, settings.costs, monotonic)
        self._classes = HotClasses()
        self._number = 0
        self.answers = KeptAnswers(live.forgotten)
        self._policies = {"": self._policy(settings.policy)}
        self.kernel: KernelDecisions | None = None

    def now(self) -> float:
        """Unix seconds, by its clock."""
        return self._clock()

    # Decisions

    def share_with_kernel(self) -> KernelDecisions | None:
        """From now on the kernel decides, too, what is plain; see `kernel_decisions`. None where
        nothing is: by another policy than the usual one, or without the Rust kernel.
        """
        usual, settings = self._policies[""], self.settings
        parameters = usual.parameters
        if self.kernel is None and isinstance(parameters, LeastDelayParameters):
            shared = KernelSettings(
                self.run ^ 1,  # each of both runs has its own numbers
                usual.text,
                policy_digest(usual.text),
                parameters,
                self._rules,
                settings.costs,
            )
            boards = None if parameters.fetch else open_boards(shared)
            if boards is not None:
                self.kernel = KernelDecisions(
                    boards,
                    shared,
                    DecidingParts(self.live, self.queue, self._targets, self.answers, self.wanted),
                    clock=self._clock,
                    monotonic=self._monotonic,
                )
        return self.kernel

    def is_own(self, run: int) -> bool:
        """Whether decisions of that run are this service's."""
        return run == self.run or (self.kernel is not None and run == self.kernel.run)

    def route(self, asked: RouteRequest) -> RoutedDecision:
        """Decides. The same request id within ROUTE_REPEAT_S gets the same decision, booked once.

        One that asks for something else is decided anew, and what was booked under that id is taken
        back, unless its client has placed it; one that was reported to have failed is, too.

        Raises:
            PolicyError: there is no such policy, or it has no such parameter.
        """
        now = self._clock()
        self.wanted.note(asked.scope, asked.prefixes, asked.tokens)
        if self.kernel is not None:
            self.kernel.begin(asked, now)
        if asked.request_id and asked.reserve:
            with self.live.lock:
                known = self.answers.find(asked, now)
            if known is not None:
                routed, is_same = known
                if is_same or asked.is_placed:
                    return routed
                self._take_back(routed, now)
        routed = self._decide(asked, now)
        if asked.reserve:
            if routed.decision.refused is Refusal.NO:
                with self.live.lock:
                    self.live.book(self.run, routed.decision)
                    self.answers.keep(asked, routed)
                    if self.kernel is not None:
                        self.kernel.booked(self.run, routed.decision)
            else:
                self.live.refuse(self.run, routed.decision)
            self.queue.push_decision(self.run, routed.decision)
        else:
            self.live.asked(routed.decision)
        return routed

    def _take_back(self, routed: RoutedDecision, now: float) -> None:
        """What was booked is not to be: its request goes elsewhere, by a decision that follows."""
        run, decision = routed.run, routed.decision
        outcome = FeedbackReport(
            decision.number,
            OutcomeEvent.CANCELLED,
            now,
            traceparent=decision.traceparent,
            tracestate=decision.tracestate,
        )
        if self.live.is_under_way(run, decision.number):
            self.live.report(run, outcome)
            self.queue.push_outcomes([(run, outcome)])

    def _decide(self, asked: RouteRequest, now: float) -> RoutedDecision:
        policy = self._known_policy(asked.policy)
        candidates = gather(asked, self._targets, self.live, self.settings.costs, now)
        number, self._number = self._number, self._number + 1
        tie = tie_of(self.run, number)
        request = self._request(asked, number, tie, candidates, policy)
        last = None
        if asked.session_id:
            tenant = asked.scope.tenant_id
            last = self.live.last_of_session(tenant, asked.session_id, now)
        decided = decide(
            DecisionRequest(
                request,
                policy.rank,
                policy.parameters,
                asked.ttft_slo_s,
                self._rules_of(asked),
                last,
                policy.in_seconds,
            ),
            candidates.found,
            self.settings.costs,
        )
        plan = advised_plan(asked, decided, candidates, self.settings.costs, self.folded)
        chosen, decode, decided = self._placed(asked, candidates, decided, tie)
        decision = self._decision(asked, policy, request, candidates, decided, now)
        decision = with_places(decision, candidates, chosen, decode, last)
        age = None
        place = chosen if chosen >= 0 else decode
        if place >= 0:
            sample = candidates.carried[place].sample
            age = None if sample is None else max(now - sample.observed_at, 0.0)
        after, endpoints = decided.retry_after_s, candidates.endpoints
        hint = fetch_hint(self.run, decision, candidates.known, self._view.kernel, asked.prefixes)
        return RoutedDecision(self.run, decision, after, age, endpoints, plan, hint)

    def _rules_of(self, asked: RouteRequest) -> Rules:
        """What leaves candidates out; for a request that is there already, nothing they carry, and
        for one that is to be refused first, less.
        """
        rules = self._rules
        if not asked.is_placed:
            return rules if asked.priority >= 0 else rules.shed()
        return rules._replace(kv_usage_max=NEVER, wait_max_s=NEVER, waiting_max=int(NEVER))

    def _placed(
        self, asked: RouteRequest, candidates: Candidates, decided: DecisionResult, tie: int
    ) -> tuple[int, int, DecisionResult]:
        """Who computes and who decodes, as indices, by what the request asks for."""
        phase = asked.phase
        if phase in (Phase.COMBINED, Phase.PREFILL):
            return decided.chosen, -1, decided
        if phase is Phase.PAIR and decided.chosen < 0:
            return -1, -1, decided
        output = asked.expected_output_tokens
        wanted = DecodeTask(
            phase,
            asked.prompt_tokens,
            candidates.output_tokens if output is None else output,
            asked.tbt_slo_s,
            asked.priority,
            tie,
        )
        decoding = choose_decoder(wanted, candidates.places(), decided)
        records = list(decided.candidates)
        for index, tbt_s in decoding.tbt_s.items():
            records[index] = msgspec.structs.replace(records[index], tbt_s=tbt_s)
        decided = decided._replace(candidates=tuple(records))
        if decoding.place < 0:
            return -1, -1, decided._replace(chosen=-1, refused=decoding.refused, retry_after_s=1.0)
        if phase is Phase.DECODE:
            return -1, decoding.place, decided._replace(chosen=-1, refused=Refusal.NO)
        if decoding.place == decided.chosen:
            return decided.chosen, -1, decided
        if decoding.is_separate:
            return decided.chosen, decoding.place, decided
        # Little is to be computed: the one that decodes does it, whatever its role.
        one = candidates.found[decoding.place]
        costs = one.costs or self.settings.costs
        terms = terms_of(Choice(0.0, one, one.cached), asked.prompt_tokens, costs)
        records[decoding.place] = with_terms(records[decoding.place], one.cached, terms)
        decided = decided._replace(
            candidates=tuple(records), chosen=decoding.place, predicted_s=total_s(terms)
        )
        return decoding.place, -1, decided

    def _request(
        self,
        asked: RouteRequest,
        number: int,
        tie: int,
        candidates: Candidates,
        policy: "_Policy",
    ) -> Request:
        """As the policy takes it; where it looks at classes of prompts, with that of this one."""
        blocks = min(len(asked.prefixes) // 8, CLASS_BLOCKS)
        if not blocks or not isinstance(policy.parameters, LmetricParameters):
            return Request(number, asked.prompt_tokens, tie)
        name = (asked.scope, asked.prefixes[8 * blocks - 8 : 8 * blocks])
        tokens = min(blocks * asked.scope.block_size, asked.prompt_tokens)
        holders = sum(one.cached >= tokens for one in candidates.found)
        is_hot = self._classes.note(name, holders, len(candidates.found))
        return Request(number, asked.prompt_tokens, tie, tokens, is_hot)

    def _decision(
        self,
        asked: RouteRequest,
        policy: "_Policy",
        request: Request,
        candidates: Candidates,
        decided: DecisionResult,
        now: float,
    ) -> Decision:
        view = self._view
        longest = max((match.longest for match in asked.matches), default=0)
        # Of engines without events decisions alone say what they hold.
        held = max((longest, *(one.cached for one in decided.candidates)))
        state = view.state(asked.scope) if view.ready else AnswerState.STALE
        output = asked.expected_output_tokens
        output = candidates.output_tokens if output is None else output
        traceparent, tracestate = split_context(asked.context)
        return Decision(
            request.decision,
            now,
            asked.request_id or asked.asked_by + self._random_bytes(16).hex(),
            DecidedScope(*asked.scope),
            policy.text,
            tuple(PartitionPosition(*one) for one in view.positions()),
            state.value,
            asked.prompt_tokens,
            output,
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
            _marks(asked.prefixes, candidates.longest(longest) // asked.scope.block_size),
            held=held,
            degraded=self.settings.degraded.value,
            traceparent=traceparent,
            tracestate=tracestate,
            decode_s=output * candidates.output_token_s,
        )

    def _known_policy(self, text: str) -> "_Policy":
        found = self._policies.get(text)
        if found is None:
            found = self._policy(text)
            if len(self._policies) < ROUTE_POLICIES_MAX:
                self._policies[text] = found
        return found

    @staticmethod
    def _policy(text: str) -> "_Policy":
        name, parameters = parse_policy(text)
        policy = find_policy(name)
        return _Policy(text, policy.rank, parameters, policy.in_seconds)

    def instances(self, tenant_id: str, model_name: str) -> list[InstanceLoad]:
        """All targets of a model, with what they carry. From any thread. Cost O(targets)."""
        now, costs = self._clock(), self.settings.costs
        roster = self._targets.of_model(tenant_id, model_name)
        usual = self.live.usual(tenant_id, model_name, usual_of(costs, roster))
        carried = self.live.carried(roster.targets, now, usual, {})
        return [
            InstanceLoad(
                target,
                load.wait_s,
                roster.known[key].capacity_tokens,
                roster.known[key].costs or costs,
            )
            for key, target, load in zip(roster.keys, roster.targets, carried, strict=True)
        ]

    def carried(self, targets: Sequence[Target] | None = None) -> list[tuple[Target, TargetLoad]]:
        """What these carry; None: every target that something is known of, sorted."""
        targets = self.live.targets() if targets is None else targets
        usual = usual_of(self.settings.costs)
        carried = self.live.carried(targets, self._clock(), usual, {})
        return list(zip(targets, carried, strict=True))

    # What came of decisions

    def take(self, told: Sequence[ClientReport]) -> FeedbackCounts:
        """Reports of clients; each is applied here at once, and written for the others. One of a
        decision that the log may yet bring is accepted, and applied when it comes.
        """
        now = self.now()
        counts = Counter[ReportKind | None]()
        for one in told:
            at = _time_of(one.at, now)
            with self.live.still:
                key = self._known(one)
                if key is None:  # the kernel may have it
                    self.live.catch_up()
                    key = self._decision_of(one)
                if key is None:
                    held = msgspec.structs.replace(one.outcome, time=at)
                    counts[self._hold(one, held, now)] += 1
                    continue
                run, number = key
                traceparent, tracestate = split_context(self.live.trace_of(run, number))
                outcome = msgspec.structs.replace(
                    one.outcome,
                    number=number,
                    time=at,
                    traceparent=traceparent,
                    tracestate=tracestate,
                )
                kind = self.live.report(run, outcome)
                counts[kind] += 1
                if kind is not ReportKind.REPEATED:
                    self.queue.push_outcomes([(run, outcome)])  # as it was told: in that order
                    if outcome.event is OutcomeEvent.FAILED and self.is_own(run):
                        self._forget_answer(key)
        accepted = counts[ReportKind.NEW] + counts[ReportKind.EARLY]
        return FeedbackCounts(accepted, counts[ReportKind.REPEATED], counts[None])

    def _forget_answer(self, key: DecisionKey) -> None:
        with self.live.lock:
            name = self.answers.forget(key)
            if name is not None and self.kernel is not None:
                self.kernel.forget(*name)

    def _hold(self, told: ClientReport, outcome: FeedbackReport, now: float) -> ReportKind | None:
        """What a report of an unknown decision is; None where nobody can have made that."""
        name = self._name_to_come(told, now)
        if name is None:
            return None
        held = HeldReport(outcome, told.tenant_id, told.tenants)
        return ReportKind.EARLY if self.live.hold(name, held) else ReportKind.REPEATED

    def _name_to_come(self, told: ClientReport, now: float) -> HeldName | None:
        """What the log may bring of which that is a report."""
        if not self._shares_log:
            return None
        if told.decision_id is not None:
            key = parse_decision_id(told.decision_id)
            return key if key is not None and self._may_come(key, now) else None
        if told.request_id is None or self.knows_request(told.request_id):
            return None  # several tenants', or another one's
        return told.request_id

    def _may_come(self, key: DecisionKey, now: float) -> bool:
        """Whether another service may have made that decision, and the log has yet to bring it."""
        run, number = key
        is_others = not self.is_own(run) and run / 1e6 <= now + RECORD_STEP_S
        return self._shares_log and is_others and not self.live.has_seen(run, number)

    def traces_of(self, told: Iterable[ClientReport]) -> list[str]:
        """The contexts of the decisions that these are about, as far as they are known, each once.
        Cost O(reports), a microsecond or two each.
        """
        keys = [key for key in map(self._decision_of, told) if key is not None]
        traces = dict.fromkeys(self.live.trace_of(*key) for key in keys)
        traces.pop("", None)
        return list(traces)

    def _known(self, told: ClientReport) -> DecisionKey | None:
        """The decision that a report names, where that is booked, or was."""
        key = None if told.decision_id is None else parse_decision_id(told.decision_id)
        if key is None or key[1] < 0 or not self.live.has_seen(*key):  # "1--2" is a name, too
            return None
        is_theirs = told.tenants is None or self.live.tenant_of(*key) in told.tenants
        return key if is_theirs else None

    def _decision_of(self, told: ClientReport) -> DecisionKey | None:
        if told.decision_id is not None:
            key = parse_decision_id(told.decision_id)
            if key is None or not self._may_have_made(key):
                return None
            if told.tenants is not None:
                return key if self.live.tenant_of(*key) in told.tenants else None
            # Of others it may be known before the log has brought the decision.
            return key if self.live.knows_run(key[0]) or self._may_come(key, self.now()) else None
        if told.request_id is None:
            return None
        with self.live.lock:
            key = self.answers.key_of(told.request_id, told.tenant_id)
        if key is not None:
            return key
        return self.live.named(told.request_id, told.tenant_id)

    def _may_have_made(self, key: DecisionKey) -> bool:
        """Whether there may be that decision: of its own runs a service knows each."""
        run, number = key
        if run == self.run:
            return number < self._number
        return not self.is_own(run) or self.live.has_seen(run, number)

    def end_former(self, asked_by: str) -> int:
        """Ends what an earlier process of this service has asked for and cannot report on; how many
        requests that were. Where services share the log it may be another one's that lives.

        Args:
            asked_by: see `RouteRequest`.
        """
        if self._shares_log:
            return 0
        keys = self.folded.read(
            lambda fold: [
                one.key
                for one in fold.bookings.all()
                if not self.is_own(one.run) and one.request_id.startswith(asked_by)
            ]
        )
        ended = FeedbackReport(0, OutcomeEvent.CANCELLED, 0.0)
        self.take([ClientReport(decision_id(*key), None, ended, None) for key in keys])
        return len(keys)

    def knows_request(self, request_id: str) -> bool:
        """Whether a report of that request would be of a decision that is known."""
        with self.live.lock:
            is_kept = self.answers.has(request_id)
        return is_kept or self.live.is_named(request_id)

    def forget(self, gone: Iterable[Registration]) -> None:
        """These are registered no more: see `unregistered_of`. From any thread. Cost O(publishers
        + bookings).
        """
        engines = unregistered_of(gone, self._view.registered())
        released = self.live.forget(engines, self._clock())
        self.queue.push_unregistered(engines)
        if released:
            names = ", ".join(sorted({one.target.instance_id for one in engines}))
            text = "Unregistered %s: %d requests under way there are booked no more"
            logger.info(text, names, released)

    def observe(self, samples: Sequence[LoadSample]) -> None:
        """What targets carry, by clients or by the bridge."""
        self.live.note(samples)
        self.queue.push_samples(samples)


def _run_of(now: float, random_bytes: Callable[[int], bytes]) -> int:
    """The name of a service's decisions: Unix microseconds of its start, of which those within a
    second are by chance: several may start at once.
    """
    chance = int.from_bytes(random_bytes(4), "big")
    return (int(now * 1e6) >> _RUN_CHANCE_BITS << _RUN_CHANCE_BITS) | (
        chance & ((1 << _RUN_CHANCE_BITS) - 1)
    )


def _marks(prefixes: bytes, longest: int) -> tuple[PrefixMark, ...]:
    return tuple(
        PrefixMark(blocks, _U64.unpack_from(prefixes, 8 * blocks - 8)[0])
        for blocks in marks_at(len(prefixes) // 8, longest)
    )


def _time_of(at: float | None, now: float) -> float:
    """When something was, by a client: its clock is believed within a minute."""
    if at is None or is_in_the_future(at, now) or at < now - ROUTE_REPEAT_S:
        return now
    return min(at, now)
