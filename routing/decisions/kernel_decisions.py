"""Plain decisions that the kernel makes without Python, plain reports of them that it takes, and
how both come to be known here.

Python owns what decisions read. It publishes a **board** for each list of candidates that was asked
for of late: who they are, and what they carry. The kernel decides by it, and by what it has decided
since (`streams/kernel/native/routing`). Its decisions have numbers of a run of their own, and wait
until Python takes them. A window of the routing log's writer hands them on, and the fold of the log
books them. Whoever takes the lock of `LiveLoad` before that books them here, as decisions of Python
are, so nobody here reads anything that does not have them.

The kernel takes a report where it knows all that is to be known of its decision: that was made
there, is booked for certain, and Python was told nothing of it; whatever Python is told of a
decision, the kernel takes no more of (`take_over`). Reports wait with the decisions, each behind
its own, and what they take off loads is known there at once.

A board says how far it has the kernel's decisions. It is published again with each window in which
it was used, or anything was told, else before it lapses, until BOARD_KEPT_S after it was asked for;
without one, Python decides, and publishes it. So a decision of the kernel knows all that the kernel
has decided, and what was reported or sampled up to a window ago. While an engine fails, or anything
else is to be looked at in each decision (`_is_plain`), there is no board.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec

from query_api.access.rights import Access
from routing.bounds import (
    ROUTE_ANSWERS_BYTES_MAX,
    ROUTE_ANSWERS_MAX,
    ROUTE_REPEAT_S,
    TARGETS_KEPT_S,
)
from routing.costs import Costs
from routing.decisions.answers import KeptAnswers, Question, names_of
from routing.decisions.candidates import Offered, places_of, roster_of_request, usual_of
from routing.decisions.interface import OfferedCandidate, RouteRequest
from routing.decisions.kernel_boards import (
    BoardLoads,
    BoardName,
    BoardRoster,
    BoardStanding,
    BoardTarget,
    RouteBoards,
)
from routing.decisions.late_work import Late, late_seconds
from routing.decisions.live_load import KernelCounts, LiveLoad, LoadParts
from routing.decisions.queue import RoutingQueue
from routing.decisions.targets import KnownTarget, Roster, Targets
from routing.decisions.unbooked_load import TypicalRequest
from routing.decisions.wanted_tokens import WantedTokens
from routing.fold.fold import RoutingFold
from routing.observed import prediction_rules
from routing.observed.promises import promise_of
from routing.policies.chunk_plan import TOO_LONG
from routing.policies.decide import Rules, model_of_costs
from routing.policies.ttft import LeastDelayParameters
from schemas.clock import REAL_CLOCK
from schemas.identities import PrefixScope
from schemas.limits import APPROXIMATE_S, KIB, MIB
from schemas.routing_records import Decision, FeedbackReport, Phase
from streams.kernel import native_boards
from streams.kernel.interface import ReadOnlyKernel

BOARD_S: Final = 1.0  # that the kernel goes by a board that is not published again
BOARD_KEPT_S: Final = 10.0  # for which that is done though nobody asks for it; then Python decides
BOARD_PAUSE_S: Final = 0.025  # between two looks what is to be published, where windows are shorter
BOARDS_MAX: Final = 256  # lists of candidates; the one that was not asked for for longest goes
BOARDS_A_WINDOW: Final = 32  # published again at once, some 20 to 100 us each; others are the next
BOARD_NAMES_BYTES_MAX: Final = 64 * KIB  # of candidates in a request; of longer Python decides
KERNEL_DECISIONS_MAX: Final = 2048  # that wait to be booked, 50 us each; beyond, Python does first
KERNEL_DECISIONS_BYTES_MAX: Final = 64 * MIB  # of these, with all candidates: likewise
WINDOWS_WAITING: Final = 4  # of the log that may wait where Python answers; the listener lets two

logger = logging.getLogger(__name__)
_StateOf = Callable[[str, str, str, int, str], str]
_NONE: Final = float("nan")


class KernelDecision(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A decision of the kernel, and what its answer says beside it.

    Attributes:
        label: of the board that it was made by.
        load_age_s: see `RoutedDecision`.
        decision, encoded: see `BriefDecisions`.
    """

    label: int
    endpoint: str
    load_age_s: float | None
    decision: Decision
    encoded: bytes


class KernelSettings(NamedTuple):
    """What all decisions of a service go by.

    Attributes:
        run: names the kernel's decisions.
        policy, digest: the usual one with its parameters, as decisions have it.
        parameters: of the same.
        rules, costs: see `routing.decisions.router.RouterSettings`.
    """

    run: int
    policy: str
    digest: str
    parameters: LeastDelayParameters
    rules: Rules
    costs: Costs


class DecidingParts(NamedTuple):
    """What a router decides by: its own."""

    live: LiveLoad
    queue: RoutingQueue
    targets: Targets
    answers: KeptAnswers
    wanted: WantedTokens


@dataclass(slots=True)
class _Board:
    """A list of candidates.

    Attributes:
        names: see `Question`.
        asked_at: monotonic seconds, when it was last asked for.
        published_at: likewise.
        until: likewise, when it holds no more.
        roster: as it was published; None: it is not.
        is_due: whether it was used, or something told, since.
    """

    label: int
    name: BoardName
    asked: RouteRequest
    names: int | None
    asked_at: float
    published_at: float = float("-inf")
    until: float = float("inf")
    roster: Roster | None = None
    is_due: bool = False


class KernelDecisions:
    """See the module. Any thread may call it."""

    def __init__(
        self,
        boards: RouteBoards,
        settings: KernelSettings,
        parts: DecidingParts,
        *,
        clock: Callable[[], float] = REAL_CLOCK.unix,
        monotonic: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        """Args:
        clock: Unix seconds.
        """
        self.boards = boards
        self.run = settings.run
        self._settings = settings
        self._live, self._queue, self._targets, self._answers, self._wanted = parts
        self._clock = clock
        self._monotonic = monotonic
        self._decode = msgspec.msgpack.Decoder(KernelDecision).decode
        self._decode_report = msgspec.msgpack.Decoder(FeedbackReport).decode
        self._labels = 0
        self._by_label: OrderedDict[int, _Board] = OrderedDict()
        self._by_name: dict[BoardName, _Board] = {}
        self._once: OrderedDict[int, float] = OrderedDict()
        self._offset = -1
        self._looked_at = float("-inf")
        self._applied: int | None = None  # effects before it are known here; None: and others
        self._answers.when_dropped = self.forget  # else one that has failed is given again
        self._live.catch_up_with(self)
        self._queue.before_taken = self.renew
        self._queue.ahead = lambda: boards.waiting
        boards.set_pace(self._queue.window_items)
        with self._live.lock:
            self._watch(self._live.folded.fold)
            self._live.when_rebased = self._watch

    @property
    def waiting(self) -> int:
        """How many decisions and reports are yet to be booked."""
        return self.boards.waiting

    def counts(self) -> KernelCounts:
        """See `KernelSource`."""
        return KernelCounts(*self.boards.counts())

    def take_over(self, run: int, number: int) -> bool:
        """See `KernelSource`."""
        return run == self.run and self.boards.close(number)

    def take_over_all(self) -> None:
        """See `KernelSource`."""
        self.boards.close_all()

    def _watch(self, fold: RoutingFold) -> None:
        """What is predicted by a fold is predicted in the kernel, too. Cost O(predictions)."""
        predicted, now = fold.observations.predicted, self._clock()
        self.boards.forget_all()
        predicted.watcher = self.boards
        for (target, scope, prefix), mark in predicted.state().marks:
            if mark.until > now:
                lasts_s = mark.lasts_s
                marks = ((mark.blocks, prefix),)
                self.boards.decided(mark.until - lasts_s, target, scope, marks, lasts_s=lasts_s)  # type: ignore[arg-type]

    # What the kernel has decided

    def catch_up(self) -> None:
        """Books what waits; with the lock, while nothing else does."""
        self._take(self._book, self._book_report)

    def _send(self) -> None:
        """Hands what waits to the log, whose fold books it: see `LiveLoad.send`."""
        with self._live.still:
            self._take(self._hand_on, self._hand_on_report, self._queue.window_items)

    def _take(
        self,
        note: Callable[[KernelDecision], None],
        note_report: Callable[[FeedbackReport], None],
        most: int = 0,
    ) -> None:
        items, self._applied = self.boards.take(most)
        for is_report, item in items:
            try:
                if is_report:
                    note_report(self._decode_report(item))
                    continue
                made = self._decode(item)
                note(made)
                self._keep(made)
            except Exception:
                logger.exception(
                    "Cannot book what the kernel decided or was told; its client goes by it"
                )

    def _book(self, made: KernelDecision) -> None:
        self._live.book(self.run, made.decision, made.encoded)
        self._queue.push_decision(self.run, made.decision, made.encoded)

    def _book_report(self, told: FeedbackReport) -> None:
        self._live.book_report(self.run, told)
        self._queue.push_outcome(self.run, told)

    def _hand_on_report(self, told: FeedbackReport) -> None:
        has_room = self._queue.push_outcome(self.run, told)
        note = self._live.send_report if has_room else self._live.book_report
        note(self.run, told)

    def _hand_on(self, made: KernelDecision) -> None:
        has_room = self._queue.push_decision(self.run, made.decision, made.encoded)
        note = self._live.send if has_room else self._live.book
        note(self.run, made.decision, made.encoded)

    def _keep(self, made: KernelDecision) -> None:
        decision = made.decision
        board = self._by_label.get(made.label)
        names = None if board is None else board.names
        prefix = decision.marks[-1].prefix.to_bytes(8, "little") if decision.marks else b""
        scope = PrefixScope(*decision.scope)
        question = Question(scope, decision.prompt_tokens, prefix, Phase.COMBINED, names)
        self._answers.keep_chosen(question, self.run, decision, made.endpoint, made.load_age_s)

    def answer(
        self, kernel: ReadOnlyKernel, body: bytes, state: _StateOf, access: Access
    ) -> tuple[bytes, int, int] | None:
        """See `RouteBoards.route`: of a request that the listener has not got."""
        if kernel.name != "rust":
            return None
        self._make_room()
        tenants = None if access.tenants is None else list(access.tenants)
        return self.boards.route(kernel, body, state, self._clock(), tenants)

    def report(self, body: bytes, access: Access) -> int | None:
        """See `RouteBoards.report`: the same of reports."""
        self._make_room()
        tenants = None if access.tenants is None else list(access.tenants)
        return self.boards.report(body, self._clock(), tenants)

    # What Python has decided

    def begin(self, asked: RouteRequest, now: float) -> None:
        """Python answers a request: its id is not the kernel's to answer any more."""
        if asked.request_id and asked.reserve:
            self.boards.note_answered(asked.scope.tenant_id, asked.request_id, now)

    def booked(self, run: int, decision: Decision) -> None:
        """Python has booked a decision, with the lock."""
        promise = promise_of(run, decision.time, decision)
        if promise is not None:
            prediction_rules.hold(self.boards, decision.time, promise)
        if decision.chosen < 0:
            return
        one = decision.candidates[decision.chosen]
        prompt = decision.prompt_tokens
        uncached = prompt - min(one.prefix, prompt)
        tokens = prompt + decision.expected_output_tokens
        target = decision.target(decision.chosen)
        self.boards.note(target, decision.time, one.work_s, uncached, tokens)
        self._applied = None

    def forget(self, tenant_id: str, request_id: str) -> None:
        """A request is decided anew where it comes again."""
        self.boards.forget_answer(tenant_id, request_id)

    # Boards

    def offer(self, asked: RouteRequest, candidates: bytes | None) -> None:
        """Python has decided what the kernel might have, had it had a board.

        Args:
            candidates: as they stand in its body; None: it names none.
        """
        name = (asked.scope.tenant_id, asked.scope.model_name, candidates)
        now = self._monotonic()
        with self._live.lock:
            board = self._by_name.get(name)
            if board is None:
                if candidates is not None and not (
                    _are_plain(asked.candidates or (), candidates) and self._comes_again(name, now)
                ):
                    return
                board = self._open(name, asked, now)
            board.asked_at = now
            self._by_label.move_to_end(board.label)
            is_due = now - board.published_at >= BOARD_S / 2 or now >= board.until
        if is_due:
            self._publish(board, now)

    def _comes_again(self, name: BoardName, now: float) -> bool:
        """Whether candidates that a request names were named by one of late: of lists that never
        come again a board is of no use, and displaces others.
        """
        digest = hash(name)
        before = self._once.pop(digest, float("-inf"))
        self._once[digest] = now
        if len(self._once) > BOARDS_MAX:
            self._once.popitem(last=False)
        return now - before <= BOARD_S

    def _open(self, name: BoardName, asked: RouteRequest, now: float) -> _Board:
        self._labels += 1
        kept = RouteRequest("", asked.scope, 0, [], candidates=asked.candidates)
        board = _Board(self._labels, name, kept, names_of(asked.candidates), now)
        self._by_label[board.label] = self._by_name[name] = board
        if len(self._by_label) > BOARDS_MAX:
            _, oldest = self._by_label.popitem(last=False)
            del self._by_name[oldest.name]
            self.boards.withdraw(oldest.name)
        return board

    def renew(self) -> None:
        """A window of the log begins: publishes what is in use, and hands on what was decided."""
        with self._live.still:
            self._live.book_sent()  # of the last window: it could not be written, or is not back
            # With what may be decided before the next look.
            self.boards.keep_open(self._live.has_room_for(2 * KERNEL_DECISIONS_MAX))
        try:
            now = self._monotonic()
            if not self._queue.window_items or now - self._looked_at >= BOARD_PAUSE_S:
                self._looked_at = now
                self.publish_used()
        except Exception:
            logger.exception("Cannot tell the kernel what engines carry; Python decides meanwhile")
            self.boards.withdraw_all()
        self._send()

    def _make_room(self) -> None:
        """Books all that waits where that is too much: few at once, since others wait for it."""
        most = WINDOWS_WAITING * self._queue.window_items or KERNEL_DECISIONS_MAX
        if self.waiting >= min(most, KERNEL_DECISIONS_MAX):
            with self._live.lock:  # whoever takes it does
                pass

    def publish_used(self) -> None:
        """Publishes again what was decided by of late: where anything was decided or told since,
        and now and then, since who is registered changes without that.
        """
        now = self._monotonic()
        with self._live.still:
            used = self.boards.used()
            for label in used:
                if label in self._by_label:
                    self._by_label[label].asked_at = now
                    self._by_label.move_to_end(label)
            offset = self._live.folded.offset
            is_told = bool(self.waiting or len(self._queue)) or offset != self._offset
            self._offset = offset
            asked = takewhile(
                lambda board: now - board.asked_at <= BOARD_KEPT_S,
                reversed(self._by_label.values()),
            )
            due = []
            for board in asked:
                is_old = now - board.published_at >= TARGETS_KEPT_S
                board.is_due |= is_told or is_old or board.label in used
                if board.is_due:
                    due.append(board)
            due.sort(key=lambda board: board.published_at)
        for board in due[:BOARDS_A_WINDOW]:
            self._publish(board, now)

    def _publish(self, board: _Board, now: float) -> None:
        # Before the lock is taken: who is registered is asked of others, who have locks of theirs.
        roster, offered = roster_of_request(board.asked, self._targets, {})
        with self._live.still:  # else the loads had more than is said
            self._live.book_sent()
            if self._applied is None:
                self.catch_up()
            self._publish_loads(board, roster, offered, now, self._applied or 0)

    def _publish_loads(
        self, board: _Board, roster: Roster, offered: Offered, now: float, applied: int
    ) -> None:
        board.published_at, board.is_due = now, False
        clock, settings, live = self._clock(), self._settings, self._live
        tenant, model, candidates = board.name
        usual = live.usual(tenant, model, usual_of(settings.costs, roster))
        parts = live.parts(roster.targets, clock, clock + BOARD_S)
        if not self._is_plain(roster, parts, clock):
            board.roster, board.until = None, float("inf")
            self.boards.withdraw(board.name)
            return
        loads = _loads_of(roster, parts, usual, clock)
        # As far as what is late was looked at, and `publish_used` looks after it.
        board.until = min(now + BOARD_S, board.asked_at + BOARD_KEPT_S)
        holds_s = max(board.until - now, 0.0)
        if board.roster is roster and self.boards.refresh(board.name, loads, applied, holds_s):
            return
        board.roster = roster
        published = _published(roster, offered, candidates is None, settings.costs, board.label)
        self.boards.publish(board.name, published, loads, applied, holds_s)

    def _is_plain(self, roster: Roster, parts: Sequence[LoadParts], now: float) -> bool:
        """Whether no decision has to look at more than a board has."""
        if self._wanted.is_waiting or self._live.is_any_failing(roster.targets, now):
            return False
        return not any(
            known.is_approximate
            and (known.capacity_tokens or (load.sample and load.sample.kv_capacity_tokens))
            for known, load in zip(roster.entries, parts, strict=True)
        )


def is_plain(asked: RouteRequest) -> bool:
    """Whether the kernel may decide of such requests, where there is a board."""
    plain = RouteRequest(
        asked.request_id,
        asked.scope,
        asked.prompt_tokens,
        asked.matches,
        asked.prefixes,
        asked.expected_output_tokens,
        candidates=asked.candidates,
        tokens=asked.tokens,
    )
    return asked == plain


def _are_plain(candidates: Sequence[OfferedCandidate], raw: bytes) -> bool:
    """Whether they come again as they are: not with what they carry just now."""
    return len(raw) <= BOARD_NAMES_BYTES_MAX and not any(one.load for one in candidates)


def _loads_of(
    roster: Roster, parts: Sequence[LoadParts], usual: TypicalRequest, now: float
) -> BoardLoads:
    """What the candidates carry, as the kernel reads it. It drains there, or stands, by itself."""
    numbers: list[float] = []
    standing = []
    for place, (known, load) in enumerate(zip(roster.entries, parts, strict=True)):
        numbers += _numbers_of(known, load, now)
        beside = None if load.beside is None else load.beside.numbers(usual)
        if beside is not None or load.late:
            standing.append(BoardStanding(place, beside, _merged(load.late, now)))
    return BoardLoads(numbers, standing)


def _merged(late: list[Late], now: float) -> list[Late]:
    """The same: the first ones, which are as late as they will ever be, count as one."""
    whole = [*takewhile(lambda one: now - one[0] >= one[1], late)]
    if len(whole) < 2:
        return late
    return [(0.0, late_seconds(whole, now)), *late[len(whole) :]]


def _numbers_of(known: KnownTarget, load: LoadParts, now: float) -> list[float]:
    """What is booked at a target, and what it says of itself."""
    sample, booked, work = load.sample, load.booked, load.work
    waiting, usage, is_there = known.with_sample(sample)
    sampled_at, capacity = _NONE, 0
    if sample is not None:
        sampled_at, capacity = sample.observed_at, sample.kv_capacity_tokens or 0
    return [
        now + booked.wait_s if booked.wait_s else 0.0,
        booked.requests,
        booked.pending,
        booked.active,
        booked.kv_tokens,
        booked.requests - booked.decoding,
        load.queued_s,
        now,
        *((0.0, 0.0, 0.0, _NONE) if work is None else work.numbers),
        waiting,
        usage,
        is_there,
        sampled_at,
        capacity,
    ]


def _published(
    roster: Roster,
    offered: Offered,
    is_closed: bool,
    costs: Costs,
    label: int,
) -> BoardRoster:
    models = {costs: 0}
    roles, endpoints = places_of(roster, offered)
    targets = [
        BoardTarget(
            *key,
            endpoint,
            role == "combined",
            known.is_degraded,
            known.is_approximate,
            key in offered and offered[key].dp_rank is None,
            0 if known.costs is None else models.setdefault(known.costs, len(models)),
            known.class_name,
            known.kv_bytes,
            known.capacity_tokens,
            known.p90,
            known.is_sure,
            known.doubts_adapters,
        )
        for key, known, role, endpoint in zip(
            roster.keys, roster.entries, roles, endpoints, strict=True
        )
    ]
    return BoardRoster(
        targets,
        [tuple(map(float, model_of_costs(one))) for one in models],
        roster.output_tokens,
        roster.output_token_s,
        is_closed,
        label,
    )


def open_boards(settings: KernelSettings) -> RouteBoards | None:
    """Of a service; None where the kernel decides nothing: without Rust, or where the policy cannot
    stand in an answer as it is.
    """
    if native_boards is None or not settings.policy.isprintable() or '"' in settings.policy:
        return None
    rules = settings.rules
    boards: RouteBoards = native_boards(
        settings.run,
        policy=settings.policy,
        parameters=settings.digest,
        others=settings.parameters.others,
        work=settings.parameters.work,
        degraded=rules.degraded.value,
        kv_usage_max=rules.kv_usage_max,
        wait_max_s=rules.wait_max_s,
        waiting_max=rules.waiting_max,
        too_long_s=TOO_LONG,
        approximate_s=APPROXIMATE_S,
        queue_items=KERNEL_DECISIONS_MAX,
        queue_bytes=KERNEL_DECISIONS_BYTES_MAX,
        answers=ROUTE_ANSWERS_MAX,
        answers_bytes=ROUTE_ANSWERS_BYTES_MAX,
        repeat_s=ROUTE_REPEAT_S,
    )
    return boards
