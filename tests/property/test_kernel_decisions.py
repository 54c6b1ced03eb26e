"""The kernel decides as the policy in Python does, to the last bit, whatever there is; and whatever
comes in between, each of its decisions is booked once.
"""

import random
import time
from collections import Counter
from itertools import count, takewhile
from typing import Any

import msgspec
import pytest

from query_api.http.errors import RequestError
from query_api.http.wire import Wire, encode
from routing.audit import differences_of
from routing.bounds import TARGETS_KEPT_S
from routing.costs import Costs
from routing.decisions import answers as answers_module
from routing.decisions import kernel_decisions
from routing.decisions.candidates import usual_of
from routing.decisions.interface import RoutedDecision, RouteRequest
from routing.decisions.kernel_boards import (
    BoardLoads,
    BoardRoster,
    BoardStanding,
    BoardTarget,
    RouteBoards,
)
from routing.decisions.kernel_decisions import (
    BOARD_KEPT_S,
    BOARD_S,
    KERNEL_DECISIONS_MAX,
    KernelDecision,
    KernelDecisions,
    KernelSettings,
    open_boards,
)
from routing.decisions.late_work import FIRST_TOKENS_TOLD, Late, late_seconds
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.router import ClientReport, FeedbackCounts, Router
from routing.decisions.unbooked_load import TypicalRequest, UnbookedLoad
from routing.fold.fold import RoutingFold
from routing.fold.target_bookings import Load
from routing.http.documents import route_document
from routing.http.requests import read_feedback
from routing.interface import Candidate, Request
from routing.observed.predicted_blocks import PredictedHolders, predicted_s
from routing.overlay import bookings as bookings_module
from routing.policies.decide import DecisionRequest, DegradedPolicy, Rules, decide, model_of_costs
from routing.policies.ranking import tie_of
from routing.policies.recent_work import RecentWork
from routing.policies.table import policy_digest
from routing.policies.ttft import LeastDelayParameters, least_delay
from schemas.codec import decode_routing
from schemas.identities import PrefixScope
from schemas.limits import APPROXIMATE_S
from schemas.routing_records import (
    ENDS,
    DecidedScope,
    Decision,
    DecisionsRecord,
    FeedbackReport,
    LoadSample,
    LoadSource,
    OutcomeEvent,
    OutcomesRecord,
    PrefixMark,
    Target,
    UnregisteredEngine,
    decision_id,
    decode_decision,
    encode_routing,
    marks_at,
    parse_decision_id,
)
from streams.kernel import native_available, open_kernel
from streams.kernel.interface import Kernel
from tests.fakes import SEED, FakeTable, registration

pytestmark = pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")

BOARDS = 150
DECISIONS_OF_ONE = 20
WORLDS = 60
RUN = 0x6_6173_E5C_0C9B
BLOCK = 4
SCOPE = PrefixScope("default", "m", "", BLOCK, "")
MEDIA = ("GPU", "CPU", "DISK")
POLICY = "least-delay"
OTHERS = (Costs(fixed_s=0.01), Costs(prefill_tokens_per_s=float("inf")))


# As the policy


class Board:
    """A random board, and what Python makes of it."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = 1_790_000_000.0 + chance.random()
        self.rules = Rules(
            chance.choice(tuple(DegradedPolicy)),
            kv_usage_max=chance.choice((0.5, 0.95)),
            wait_max_s=chance.choice((1.0, 30.0)),
            waiting_max=chance.choice((4, 1024)),
        )
        self.parameters = LeastDelayParameters(
            others=chance.choice((0.0, 1.0, 0.3)), work=chance.choice((0.1, 0.0))
        )
        self.costs = [Costs()]  # and others, as candidates have them
        self.keys = sorted(
            (f"i{number}" + chance.choice(("", "é")), rank)
            for number in range(chance.choice((1, 2, 8, 40)))
            for rank in range(chance.choice((1, 1, 3)))
        )
        self.is_closed = chance.random() < 0.5
        self.targets = [self._target(*key) for key in self.keys]
        self.works = [self._work() for _ in self.keys]
        self.loads = [self._load() for _ in self.keys]
        self.usual = TypicalRequest(chance.random(), 900 * chance.random(), 1e-3, 5.0)
        self.besides = [chance.choice((None, self._beside())) for _ in self.keys]
        self.lates: list[list[Late]] = [self._late() for _ in self.keys]
        self.output_tokens, self.output_token_s = chance.randrange(2000), chance.random() / 50
        settings = KernelSettings(
            RUN, POLICY, policy_digest(POLICY), self.parameters, self.rules, self.costs[0]
        )
        boards = open_boards(settings)
        assert boards is not None
        self.boards: RouteBoards = boards
        self.kernel = self._kernel()
        self.predicted = PredictedHolders()
        self.number = 0
        self.publish(0)

    def _target(self, name: str, rank: int) -> BoardTarget:
        chance = self.chance
        costs = chance.choice((Costs(), Costs(), *OTHERS))
        if costs not in self.costs:
            self.costs.append(costs)
        return BoardTarget(
            name,
            rank,
            f"http://{name}:{rank}",
            is_allowed=chance.random() < 0.9,
            is_degraded=chance.random() < 0.2,
            is_approximate=chance.random() < 0.2,
            is_open=False,
            costs=self.costs.index(costs),
            class_name=chance.choice(("", "x")),
            kv_bytes=chance.choice((0, 1000)),
            capacity_tokens=chance.choice((0, 4096)),
            p90=chance.choice((1.0, 1.3)),
            is_sure=chance.random() < 0.5,
            doubts_adapters=chance.random() < 0.5,
        )

    def _work(self) -> RecentWork | None:
        if self.chance.random() < 0.3:
            return None
        work = RecentWork()
        for _ in range(self.chance.randrange(4)):
            work.note(self.now - 5 * self.chance.random(), self.chance.random())
        return work

    def _load(self) -> dict[str, float]:
        chance = self.chance
        is_idle, is_sampled = chance.random() < 0.5, chance.random() < 0.5
        return {
            "free_at": 0.0 if is_idle else self.now + chance.uniform(-1, 3),
            "requests": chance.randrange(9),
            "pending": chance.randrange(9000),
            "active": chance.randrange(9000),
            "kv_tokens": chance.randrange(9000),
            "waiting": chance.choice((0, 0, 3, 5)),
            "usage": chance.choice((0.0, 0.4, 0.7)),
            "is_there": chance.random() < 0.9,
            "sampled_at": self.now - chance.random() if is_sampled else float("nan"),
            "capacity": chance.choice((0, 8192)) if is_sampled else 0,
        }

    def _beside(self) -> UnbookedLoad:
        chance = self.chance
        left, running = chance.choice((None, 0, 5000)), chance.choice((None, 2, 30))
        target, at = Target("default", "", 0), self.now - chance.random()
        sample = LoadSample(
            target, at, LoadSource.POSTED, running=running, waiting=3, prefill_tokens=left
        )
        requests, waiting, tokens = (chance.randrange(most) for most in (9, 6, 4000))
        per_s, tokens_per_s = chance.choice((0.0, 1.7)), chance.choice((0.0, 300.0))
        gone = chance.choice((0, 0, 2))
        return UnbookedLoad(at, requests, waiting, tokens, sample, per_s, tokens_per_s, gone)

    def _late(self) -> list[Late]:
        chance = self.chance
        return [
            (self.now + chance.uniform(-2, 2), chance.random())
            for _ in range(chance.choice((0, 0, 3)))
        ]

    def carried(self, place: int) -> Load:
        """As `LiveLoad.carried` has it."""
        load, beside, late = self.loads[place], self.besides[place], self.lates[place]
        wait_s = max(load["free_at"] - self.now, 0.0)
        due = takewhile(lambda one: one[0] < self.now, late)
        numbers = [int(load[name]) for name in ("requests", "pending", "active")]
        booked = Load(wait_s + late_seconds(due, self.now), *numbers)
        return booked if beside is None else beside.added_to(booked, self.now, self.usual)

    def _kernel(self) -> Kernel:
        """With prompts of which instances have prefixes, on one tier or several."""
        kernel = open_kernel(SEED, name="rust")
        kernel.note_position(0, 7)
        table = FakeTable(kernel)
        self.prompts = [
            [self.chance.randrange(1000) for _ in range(self.chance.randrange(1, 90))]
            for _ in range(3)
        ]
        hashes = count(1)
        for name, rank in self.keys:
            if self.is_closed and self.chance.random() < 0.3:
                continue
            one = registration(name, endpoint=f"tcp://10.0.{rank}.1:{next(hashes)}", dp_rank=rank)
            publisher = table.add(one)
            for prompt in self.prompts:
                blocks = len(prompt) // BLOCK
                for medium in MEDIA:
                    held = self.chance.randrange(blocks + 1)
                    if held and self.chance.random() < 0.5:
                        names = [next(hashes) for _ in range(held)]
                        table.store(
                            publisher,
                            prompt[: held * BLOCK],
                            hashes=names,
                            medium=medium,  # type: ignore[arg-type]
                        )
        # There is somebody to ask, whoever it is.
        name, rank = self.keys[0]
        if not kernel.knows(SCOPE):
            table.add(
                registration(name, endpoint=f"tcp://10.0.{rank}.1:{next(hashes)}", dp_rank=rank)
            )
        return kernel

    def publish(self, applied: int) -> None:
        numbers: list[float] = []
        for load, work in zip(self.loads, self.works, strict=True):
            first, last = list(load.values())[:5], list(load.values())[5:]
            none = (0.0, 0.0, 0.0, float("nan"))
            queued = (0, 0.0, self.now)
            numbers += [*first, *queued, *(none if work is None else work.numbers), *last]
        roster = BoardRoster(
            self.targets,
            [tuple(model_of_costs(one)) for one in self.costs],
            self.output_tokens,
            self.output_token_s,
            self.is_closed,
            5,
        )
        standing = [
            BoardStanding(place, None if one is None else one.numbers(self.usual), late)
            for place, (one, late) in enumerate(zip(self.besides, self.lates, strict=True))
        ]
        loads = BoardLoads(numbers, standing)
        self.boards.publish(("default", "m", None), roster, loads, applied, 3600.0)

    def ask(self, prompt: list[int], **fields: Any) -> tuple[dict[str, Any], Decision] | None:
        """The kernel's decision, with its answer."""
        asked = {"model": "m", "block_size": BLOCK, "token_ids": prompt} | fields
        body = msgspec.json.encode(asked)
        found = self.boards.route(self.kernel, body, lambda *scope: "exact", self.now, None)
        if found is None:
            return None
        [(is_report, item)], _ = self.boards.take(0)
        assert not is_report
        made = msgspec.msgpack.decode(item, type=KernelDecision)
        one = decode_decision(made.encoded)
        assert msgspec.msgpack.encode(one) == made.encoded, "as any other is written"
        chosen = (one.candidates[one.chosen],)
        assert made.decision == msgspec.structs.replace(one, candidates=chosen, chosen=0)
        routed = RoutedDecision(
            RUN,
            one,
            0.0,
            made.load_age_s,
            tuple(target.endpoint for target in self.targets),
        )
        assert found[0] == encode(route_document(routed, explain=False), Wire.JSON)
        assert (found[1], found[2]) == (len(prompt), one.held)
        assert (made.label, made.endpoint) == (5, self.targets[one.chosen].endpoint)
        return msgspec.json.decode(found[0]), one

    def candidates(self, prompt: list[int]) -> list[Candidate]:
        tokens = b"".join(token.to_bytes(4, "little") for token in prompt)
        matches = {one.instance_id: one for one in self.kernel.query(SCOPE, tokens, (), None)}
        prefixes = self.prefixes(prompt)
        soon = self.predicted.longest(DecidedScope(*SCOPE), prefixes, self.now)
        found = []
        for place, (target, load, work) in enumerate(
            zip(self.targets, self.loads, self.works, strict=True)
        ):
            carried = self.carried(place)
            cached = gpu = disk = predicted = 0
            match = matches.get(target.instance_id)
            for rank in () if match is None else match.ranks:
                if rank.dp_rank == target.dp_rank:
                    cached = max(rank.matched, rank.disk_walk)
                    gpu, disk = rank.gpu_walk, rank.disk_walk - rank.cpu_walk
            foretold = soon.get(Target("default", target.instance_id, target.dp_rank), 0) * BLOCK
            if foretold > cached:
                predicted, gpu, disk, cached = foretold - cached, foretold, 0, foretold
            found.append(
                Candidate(
                    target.instance_id,
                    cached,
                    gpu,
                    carried.wait_s,
                    disk,
                    carried.requests,
                    carried.pending,
                    carried.active,
                    0,
                    self.costs[target.costs] if target.costs else None,
                    target.dp_rank,
                    int(load["waiting"]),
                    load["usage"],
                    target.is_allowed,
                    bool(load["is_there"]),
                    target.is_degraded,
                    predicted,
                    False,
                    0.0 if work is None else work.others(self.now),
                )
            )
        return found

    def prefixes(self, prompt: list[int]) -> bytes:
        tokens = b"".join(token.to_bytes(4, "little") for token in prompt)
        return self.kernel.prefix_hashes(SCOPE, tokens, (), len(prompt) // BLOCK)

    def effect(self, one: Decision) -> None:
        """As its booking would change what is published."""
        place, record = one.chosen, one.candidates[one.chosen]
        load, work = self.loads[place], self.works[place] or RecentWork()
        seconds = record.load_s + record.transfer_s + record.prefill_s
        uncached = one.prompt_tokens - record.prefix
        load["free_at"] = max(load["free_at"], self.now) + seconds
        load["requests"] += 1
        load["pending"] += uncached
        load["active"] += uncached
        load["kv_tokens"] += one.prompt_tokens + one.expected_output_tokens
        work.note(self.now, seconds)
        self.works[place] = work
        is_approximate = self.targets[place].is_approximate
        self.predicted.decided(
            self.now,
            one.target(place),
            one.scope,
            one.marks,
            lasts_s=APPROXIMATE_S if is_approximate else predicted_s(one.predicted_s),
        )


@pytest.mark.parametrize("seed", range(BOARDS))
def test_it_decides_as_the_policy_does(seed: int) -> None:
    chance = random.Random(seed)
    board = Board(chance)
    for _ in range(DECISIONS_OF_ONE):
        board.now += chance.choice((0.0, 0.01, 1.7))
        prompt = chance.choice(board.prompts)
        prompt = prompt[: chance.randrange(len(prompt)) + 1]
        tie = tie_of(RUN, board.number)
        request = Request(board.number, len(prompt), tie)
        asked = DecisionRequest(request, least_delay, board.parameters, rules=board.rules)
        candidates = board.candidates(prompt)
        expected = decide(asked, candidates, board.costs[0])
        output = chance.choice((None, 0, 77))
        found = board.ask(prompt, **({} if output is None else {"expected_output_tokens": output}))
        if expected.chosen < 0:
            assert found is None, "a refusal is worded in Python"
            continue
        assert found is not None
        answer, one = found
        models = tuple(model_of_costs(cost) for cost in board.costs)
        target, load = board.targets[one.chosen], board.loads[one.chosen]
        blocks, longest = (
            len(prompt) // BLOCK,
            max([0, *(candidate.cached for candidate in candidates if candidate.predicted)]),
        )
        matches = board.kernel.query(
            SCOPE, b"".join(token.to_bytes(4, "little") for token in prompt), (), None
        )
        held = max([0, *(match.longest for match in matches)])
        prefixes = board.prefixes(prompt)
        output = board.output_tokens if output is None else output
        assert (
            one
            == Decision(
                board.number,
                board.now,
                answer["request_id"],
                DecidedScope(*SCOPE),
                POLICY,
                ((0, 7),),  # type: ignore[arg-type]
                "exact",
                len(prompt),
                output,
                one.phase,
                0.0,
                0.0,
                0,
                "",
                tie,
                0,
                False,
                models,
                expected.candidates,
                expected.chosen,
                -1,
                p90=target.p90,
                predicted_s=expected.predicted_s,
                marks=tuple(
                    PrefixMark(depth, int.from_bytes(prefixes[8 * depth - 8 : 8 * depth], "little"))
                    for depth in marks_at(blocks, max(held, longest) // BLOCK)
                ),
                held=max([held, *(record.cached for record in expected.candidates)]),
                class_name=target.class_name,
                kv_bytes=target.kv_bytes,
                decode_running=candidates[one.chosen].requests,
                decode_kv_tokens=int(load["kv_tokens"]),
                is_approximate=target.is_approximate,
                capacity_tokens=target.capacity_tokens or int(load["capacity"]),
                degraded=board.rules.degraded.value,
                decode_s=output * board.output_token_s,
                is_sure=target.is_sure and not (target.doubts_adapters and one.scope.lora_name),
            )
        )
        if board.parameters == LeastDelayParameters():  # as the policy's name says
            assert differences_of(RUN, one) == []
        board.number += 1
        board.effect(one)


def test_what_is_asked_about_an_adapter_is_sure_as_its_target_says() -> None:
    seen = set()
    for seed in range(40):
        board = Board(random.Random(seed))
        (name, rank), table = board.keys[0], FakeTable(board.kernel)
        publisher = table.add(registration(name, endpoint="tcp://10.0.0.2:1", dp_rank=rank))
        table.store(publisher, range(BLOCK), hashes=[10**6], lora_name="x")
        board.publish(0)
        found = board.ask(board.prompts[0], lora_name="x")
        if found is None:
            continue
        decision = found[1]
        target = board.targets[decision.chosen]
        assert decision.is_sure is (target.is_sure and not target.doubts_adapters)
        seen.add((target.is_sure, target.doubts_adapters))
    assert len(seen) == 4


# Between publishing, booking, reports and the log


class World:
    """A router and its kernel, whose log is written at once, and what was told."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = 1_790_000_000.25
        self.table = FakeTable(open_kernel(SEED, name="rust"))
        self.table.kernel.note_position(*self.table.at[0])
        for number in range(4):
            self.table.add(registration(f"i{number}", endpoint=f"tcp://10.0.0.{number}:1"))
        self.live, self.queue = LiveLoad(), RoutingQueue()
        self.router = Router(
            self.table,
            self.queue,
            self.live,
            clock=lambda: self.now,
            monotonic=lambda: self.now,
            random_bytes=chance.randbytes,
        )
        shared = self.router.share_with_kernel()
        assert shared is not None
        self.shared: KernelDecisions = shared
        self.answered: list[str] = []
        self.by_kernel = self.told_kernel = 0
        self.told: Counter[OutcomeEvent] = Counter()
        self.ended: set[str] = set()
        self.written: Counter[str] = Counter()
        self.written_reports: Counter[OutcomeEvent] = Counter()
        self.order: dict[int, int] = {}
        self.names = count()
        self.read_back = RoutingFold()
        self._offset = 0

    def asked(self, tokens: bytes, name: str) -> RouteRequest:
        prefixes = self.table.kernel.prefix_hashes(SCOPE, tokens, (), len(tokens) // 16)
        matches = self.table.kernel.query(SCOPE, tokens, (), None)
        return RouteRequest(name, SCOPE, len(tokens) // 4, matches, prefixes, tokens=tokens)

    def route(self, *, by_kernel: bool) -> None:
        prompt = [self.chance.randrange(3)] * self.chance.choice((8, 40, 400))
        name = f"r{next(self.names)}"
        if by_kernel:
            body = {"model": "m", "block_size": BLOCK, "token_ids": prompt, "request_id": name}
            found = self.shared.boards.route(
                self.table.kernel, msgspec.json.encode(body), lambda *_: "exact", self.now, None
            )
            if found is not None:
                self.answered.append(msgspec.json.decode(found[0])["decision_id"])
                self.by_kernel += 1
                return
        asked = self.asked(b"".join(token.to_bytes(4, "little") for token in prompt), name)
        routed = self.router.route(asked)
        self.answered.append(decision_id(routed.run, routed.decision.number))
        if self.chance.random() < 0.7:
            self.shared.offer(asked, None)

    def report(self) -> None:
        left = [name for name in self.answered[-30:] if name not in self.ended]
        if not left:
            return
        name = self.chance.choice(left)
        event = self.chance.choice(
            (
                OutcomeEvent.DISPATCHED,
                OutcomeEvent.FIRST_TOKEN,
                OutcomeEvent.COMPLETED,
                OutcomeEvent.CANCELLED,
            )
        )
        accepted = self.tell(name, event)
        if event in ENDS:
            assert accepted == 1
            self.ended.add(name)

    def tell(self, name: str, event: OutcomeEvent) -> int:
        """How many were accepted: of one, or none that was told before."""
        if self.chance.random() < 0.7:
            body = msgspec.json.encode({"decision_id": name, "event": event, "ttft_ms": 100})
            accepted = self.shared.boards.report(body, self.now, None)
            if accepted is not None:
                self.told_kernel += 1
                self.told[event] += accepted
                return accepted
        told = FeedbackReport(0, event, self.now, ttft_s=0.1)
        counts = self.router.take([ClientReport(name, None, told, None)])
        assert counts.unknown == 0, name
        self.told[event] += counts.accepted
        return counts.accepted

    def sample(self) -> None:
        target = Target("default", f"i{self.chance.randrange(4)}", 0)
        waiting, left = self.chance.randrange(5), self.chance.choice((None, 2000))
        sample = LoadSample(
            target, self.now, LoadSource.POSTED, running=2, waiting=waiting, prefill_tokens=left
        )
        self.router.observe([sample])

    def write(self) -> None:
        for record in self.queue.take(self.now):
            if isinstance(record, DecisionsRecord):
                for one in record.decisions:
                    self.written[decision_id(record.run, one.number)] += 1
                    assert one.number > self.order.get(record.run, -1), "in their order"
                    self.order[record.run] = one.number
            if isinstance(record, OutcomesRecord):
                for outcome in record.outcomes:
                    assert outcome.number <= self.order[record.run], "behind its decision"
                    self.written_reports[outcome.event] += 1
            self.live.follow(self._offset, record, self.now)
            self.read_back.apply(self._offset, decode_routing(encode_routing(record)))
            self._offset += 1
            if self.chance.random() < 0.3:  # somebody asks before all of it is back
                self.live.counts()

    def step(self) -> None:
        self.now += self.chance.choice((0.0, 0.001, 0.01, 0.05))
        what = self.chance.choice(
            ("kernel", "kernel", "kernel", "python", "report", "report", "sample", "write", "read")
        )
        if what in ("kernel", "python"):
            self.route(by_kernel=what == "kernel")
        elif what == "read":
            counts = self.live.counts()
            assert counts["under_way"] == len(self.answered) - len(self.ended)
            assert not self.shared.waiting
        else:
            getattr(self, what)()


@pytest.mark.parametrize("seed", range(WORLDS))
def test_each_is_booked_once_whatever_comes_in_between(seed: int) -> None:
    world = World(random.Random(seed))
    for _ in range(150):
        world.step()
    assert world.by_kernel > 20
    assert world.told_kernel
    assert len(set(world.answered)) == len(world.answered)
    world.write()
    world.write()
    assert world.written == Counter(world.answered)
    assert world.written_reports == world.told, "what was accepted, and nothing else"
    under_way = {decision_id(one.run, one.number) for one in world.live.folded.fold.bookings.all()}
    assert under_way == set(world.answered) - world.ended
    assert world.live.counts()["under_way"] == len(under_way)
    assert world.read_back.digest == world.live.folded.fold.digest, "as the log has it"
    is_what_python_has(world)


def test_a_board_holds_no_longer_than_it_is_looked_after() -> None:
    world = World(random.Random(0))
    asked = world.asked(b"\7\0\0\0" * 8, "")
    body = msgspec.json.encode({"model": "m", "block_size": BLOCK, "token_ids": [7] * 8})
    boards, kernel = world.shared.boards, world.table.kernel
    world.shared.offer(asked, None)
    assert boards.route(kernel, body, lambda *_: "exact", world.now, None) is not None
    world.shared.renew()
    world.now += BOARD_KEPT_S - 0.05 * BOARD_S
    world.shared.renew()  # what it says is old, so it is said again
    time.sleep(0.1 * BOARD_S)  # its time here is real
    world.now += 0.1 * BOARD_S
    world.sample()
    world.shared.renew()
    found = boards.route(kernel, body, lambda *_: "exact", world.now, None)
    assert found is None, "what was told now is in no board that nobody has asked for"
    world.shared.offer(asked, None)
    assert boards.route(kernel, body, lambda *_: "exact", world.now, None) is not None


def test_a_board_that_nobody_asks_for_is_there_for_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_decisions, "BOARD_S", 0.2)
    world = World(random.Random(0))
    body = msgspec.json.encode({"model": "m", "block_size": BLOCK, "token_ids": [7] * 8})
    world.shared.offer(world.asked(b"\7\0\0\0" * 8, ""), None)
    for _ in range(3):
        world.now += TARGETS_KEPT_S
        time.sleep(0.1)  # its time here is real
        world.shared.renew()
    found = world.shared.boards.route(world.table.kernel, body, lambda *_: "exact", world.now, None)
    assert found is not None


def test_what_a_window_takes_is_booked_by_the_log_alone_or_by_who_asks() -> None:
    world = World(random.Random(0))
    world.shared.offer(world.asked(b"\7\0\0\0" * 8, ""), None)
    bookings = world.live._bookings
    for is_asked, is_lost in ((False, False), (True, False), (False, True)):
        before = len(world.answered)
        for _ in range(5):
            world.route(by_kernel=True)
        assert world.by_kernel == len(world.answered)
        [record] = world.queue.take(world.now)
        assert isinstance(record, DecisionsRecord)
        assert len(record.decisions) == len(world.answered) - before == 5
        assert not len(bookings._here), "the log is to bring them"
        if is_asked:
            assert world.live.counts()["under_way"] == len(world.answered)
            assert len(bookings._here) == 5
        if not is_lost:
            world.live.follow(world._offset, record, world.now)
            world._offset += 1
        assert not len(bookings._here)
    assert len(bookings.base) == 10
    assert world.queue.take(world.now) == [], "the next window has nothing of them"
    assert len(bookings._here) == 5, "what was lost counts here"
    assert world.live.counts()["under_way"] == 15


def test_a_report_that_a_window_takes_is_booked_by_the_log_alone_or_by_who_asks() -> None:
    world, names = a_world_that_decides(3)
    world.write()
    for name, is_lost in ((names[0], False), (names[1], True)):
        assert world.shared.boards.report(plain_report(name), world.now, None) == 1
        [record] = world.queue.take(world.now)
        assert isinstance(record, OutcomesRecord)
        assert not world.live._bookings._hidden, "the log is to bring it"
        if not is_lost:
            world.live.follow(world._offset, record, world.now)
            world._offset += 1
    assert len(world.live._bookings.base) == 2
    assert world.queue.take(world.now) == [], "the next window has nothing of it"
    assert len(world.live._bookings) == 1, "what was lost counts here"
    counts = world.router.take(read_feedback(plain_report(names[1]), Wire.JSON))
    assert counts == FeedbackCounts(0, 1)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_late_goes_on_counting(seed: int) -> None:
    world = World(random.Random(seed))
    for number in range(
        FIRST_TOKENS_TOLD + 3
    ):  # their clients tell, so one that is not told is late
        routed = world.router.route(world.asked(b"\1\0\0\0" * 8, f"told{number}"))
        name = decision_id(routed.run, routed.decision.number)
        for event in (OutcomeEvent.FIRST_TOKEN, OutcomeEvent.COMPLETED):
            told = FeedbackReport(0, event, world.now, ttft_s=0.1)
            assert world.router.take([ClientReport(name, None, told, None)]).accepted == 1
    for number in range(3):
        tokens = number.to_bytes(4, "little") * world.chance.randrange(8_000, 20_000)
        world.router.route(world.asked(tokens, f"late{number}"))
    is_what_python_has(world)


def test_what_failed_is_decided_again_though_python_had_no_room_for_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers_module, "ROUTE_CANDIDATES_KEPT", 4)
    world = World(random.Random(0))
    body = {"model": "m", "block_size": BLOCK, "token_ids": [7] * 8, "request_id": "r"}

    def ask() -> str:
        found = world.shared.boards.route(
            world.table.kernel, msgspec.json.encode(body), lambda *_: "exact", world.now, None
        )
        assert found is not None
        name: str = msgspec.json.decode(found[0])["decision_id"]
        return name

    world.shared.offer(world.asked(b"\7\0\0\0" * 8, ""), None)
    first = ask()
    assert ask() == first
    for number in range(6):
        world.router.route(world.asked(b"\1\0\0\0" * 8, f"other{number}"))
    told = FeedbackReport(0, OutcomeEvent.FAILED, world.now)
    assert world.router.take([ClientReport(first, None, told, None)]).accepted == 1
    assert ask() != first


def plain_report(name: str, event: str = "completed", **fields: Any) -> bytes:
    return msgspec.json.encode({"decision_id": name, "event": event} | fields)


def a_world_that_decides(count: int = 1) -> tuple[World, list[str]]:
    """With so many decisions of the kernel."""
    world = World(random.Random(0))
    world.shared.offer(world.asked(b"\7\0\0\0" * 8, ""), None)
    for _ in range(count):
        world.route(by_kernel=True)
    assert world.by_kernel == count
    return world, world.answered


@pytest.mark.parametrize("seed", range(WORLDS))
def test_a_report_is_the_same_whoever_is_told(seed: int) -> None:
    """Bodies at random: what the kernel takes Python would have taken so, and what it does not take
    has changed nothing.
    """
    chance = random.Random(seed)
    both = [World(random.Random(seed)) for _ in range(2)]
    kernel, python = both
    taken = 0
    for world in both:
        world.shared.offer(world.asked(b"\7\0\0\0" * 8, ""), None)
        for _ in range(30):
            world.route(by_kernel=True)
        assert world.by_kernel == 30
    for _ in range(60):
        body = some_body(chance, 30)
        encoded = [msgspec.json.encode(with_names(body, world.answered)) for world in both]
        accepted = kernel.shared.boards.report(encoded[0], kernel.now, None)
        try:
            expected = python.router.take(read_feedback(encoded[1], Wire.JSON))
        except RequestError:
            assert accepted is None, encoded[0]
            continue
        if accepted is None:
            counts = kernel.router.take(read_feedback(encoded[0], Wire.JSON))
            assert counts == expected, encoded[0]
        else:
            taken += 1
            assert FeedbackCounts(accepted) == expected, encoded[0]
        for world in both:
            world.now += 0.01
            if seed % 2:
                world.write()
    assert taken > 5
    for world in both:
        world.write()
        world.write()
    assert what_was_learnt(kernel) == what_was_learnt(python)
    if seed % 2:  # else reports of several decisions may stand in the window in another order
        fits = [world.live.folded.fold.estimates.dump() for world in both]
        assert fits[0] == fits[1]


def what_was_learnt(world: World) -> tuple[Any, ...]:
    fold = world.live.folded.fold
    return (
        [(one.number, one.seen, one.first_at, one.expires_at) for one in fold.bookings.all()],
        [one.outcomes for one in world.live.recent(100, lambda tenant: True)],
        fold.observations.totals.noted,
    )


def some_body(chance: random.Random, decisions: int) -> Any:
    """A report or a list of them, mostly plain; decisions by their places."""
    if chance.random() < 0.3:
        return [some_report(chance, decisions) for _ in range(chance.choice((1, 2, 3, 5)))]
    return some_report(chance, decisions)


def some_report(chance: random.Random, decisions: int) -> dict[str, Any]:
    events = ["dispatched", "first_token", "completed", "progress", "failed", "cancelled", "x"]
    report: dict[str, Any] = {
        "decision_id": chance.randrange(decisions + 1),
        "event": chance.choices(events, (4, 4, 3, 1, 0.5, 0.5, 0.2))[0],
    }
    values = {
        "prompt_tokens": (chance.choice((7, 40, 2**31)), 0.2),
        "cached_tokens": (chance.choice((0, 7, 41)), 0.2),
        "output_tokens": (chance.choice((0, 9, 2**31 - 1, -1)), 0.2),
        "queue_ms": (chance.choice((0, 1.5, 30)), 0.1),
        "prefill_ms": (chance.choice((0.25, 1e1, 99)), 0.1),
        "ttft_ms": (chance.choice((0, 20, 12.625, 86_400_001)), 0.5),
        "tbt_ms": (chance.choice((3.1, 0.1, -0.5)), 0.1),
        "instance_id": (f"i{chance.randrange(4)}", 0.03),
        "dp_rank": (0, 0.02),
        "tenant_id": (chance.choice(("default", "")), 0.03),
        "at": (1_790_000_000.5, 0.03),
        "error": ("", 0.03),
        "other": (1, 0.01),
        "ttft": (None, 0.01),
    }
    return report | {name: one for name, (one, share) in values.items() if chance.random() < share}


def with_names(body: Any, names: list[str]) -> Any:
    if isinstance(body, list):
        return [with_names(one, names) for one in body]
    place = body["decision_id"]
    run, _, number = names[0].partition("-")
    name = names[place] if place < len(names) else f"{run}-0{number}"
    return body | {"decision_id": name}


def test_what_a_report_takes_off_is_known_to_the_next_decision() -> None:
    world, names = a_world_that_decides(6)
    for place, event in enumerate(("first_token", "completed", "dispatched", "completed")):
        told = plain_report(names[place], event)
        assert world.shared.boards.report(told, world.now, None) == 1
    asked = {"model": "m", "block_size": BLOCK, "token_ids": [1] * 8}
    found = world.shared.boards.route(
        world.table.kernel, msgspec.json.encode(asked), lambda *_: "exact", world.now, None
    )
    assert found is not None
    key = parse_decision_id(msgspec.json.decode(found[0])["decision_id"])
    assert key is not None
    recent = world.live.find_recent(*key)  # so all is booked
    assert recent is not None
    world.live.report(key[0], FeedbackReport(key[1], OutcomeEvent.CANCELLED, world.now))
    roster = world.router._targets.of_model("default", "m")
    usual = world.live.usual("default", "m", usual_of(Costs(), roster))
    carried = world.live.carried(roster.targets, world.now, usual, {})
    for one, load in zip(recent.decision.candidates, carried, strict=True):
        expected = (load.requests, load.pending, load.active)
        assert (one.requests, one.pending, one.active) == expected
        assert one.wait_s == pytest.approx(load.wait_s, abs=1e-6)
    assert sum(load.requests for load in carried) == 4


def test_python_takes_what_is_told_of_a_decision_once_it_was_told_something() -> None:
    world, names = a_world_that_decides(3)
    report = world.shared.boards.report
    assert report(plain_report(names[0], "first_token"), world.now, None) == 1
    cases = (("first_token", 0), ("progress", 1), ("completed", 1), ("completed", 0))
    for event, accepted in cases:
        body = plain_report(names[0], event)
        counts = world.router.take(read_feedback(body, Wire.JSON))
        assert counts.accepted == accepted, event
        assert report(body, world.now, None) is None, "Python was told"
    assert report(plain_report(names[1]), world.now, ["other"]) is None, "another tenant's"
    assert report(plain_report(names[1]), world.now + 241.0, None) is None, "it may have expired"
    assert report(plain_report(names[1]), world.now, ["default"]) == 1


def test_what_ends_otherwise_is_pythons_to_be_told_of() -> None:
    world, names = a_world_that_decides(2)
    engines = [UnregisteredEngine(Target("default", "i0", 0), "m")]
    world.live.forget(engines, world.now)
    assert world.shared.boards.report(plain_report(names[0]), world.now, None) is None
    world.route(by_kernel=True)
    told = FeedbackReport(2, OutcomeEvent.COMPLETED, world.now)
    world.write()
    record = OutcomesRecord(run=world.shared.run, time=world.now, outcomes=(told,))
    world.live.follow(world._offset, record, world.now)  # another service was told
    assert world.shared.boards.report(plain_report(names[2]), world.now, None) is None


def test_where_there_may_be_no_room_to_book_python_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookings_module, "BOOKINGS_MAX", 2 * KERNEL_DECISIONS_MAX + 2)
    world, names = a_world_that_decides(3)
    world.write()
    world.write()
    world.route(by_kernel=True)
    assert world.by_kernel == 4
    report = world.shared.boards.report
    assert report(plain_report(names[2]), world.now, None) == 1, "it was booked"
    assert report(plain_report(names[3]), world.now, None) is None


def is_what_python_has(world: World) -> None:
    """What the next decision of the kernel sees is what one of Python would."""
    world.now += BOARD_S  # so it is published
    world.shared.offer(world.asked(b"\7\0\0\0" * 8, ""), None)
    world.now += world.chance.random() * BOARD_S  # and what it says goes on, or stands still
    tokens = world.chance.randrange(3).to_bytes(4, "little") * 40
    asked = world.asked(tokens, "")
    roster = world.router._targets.of_model("default", "m")
    usual = world.live.usual("default", "m", usual_of(Costs(), roster))
    carried = world.live.carried(roster.targets, world.now, usual, {})
    soon = world.live.predicted(DecidedScope(*SCOPE), asked.prefixes, world.now)
    body = {"model": "m", "block_size": BLOCK, "token_ids": list(memoryview(tokens).cast("I"))}
    found = world.shared.boards.route(
        world.table.kernel, msgspec.json.encode(body), lambda *_: "exact", world.now, None
    )
    assert found is not None
    key = parse_decision_id(msgspec.json.decode(found[0])["decision_id"])
    assert key is not None
    recent = world.live.find_recent(*key)
    assert recent is not None
    for one, load, target in zip(recent.decision.candidates, carried, roster.targets, strict=True):
        assert (one.requests, one.pending, one.active) == (
            load.requests,
            load.pending,
            load.active,
        )
        assert one.wait_s == pytest.approx(load.wait_s, abs=1e-6)
        assert one.others == pytest.approx(load.others)
        assert one.predicted == min(soon.get(target, 0) * BLOCK, 40)
