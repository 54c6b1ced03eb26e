"""Sends seeded requests at given times, each to whom a way of choosing names, and keeps what came.

The times are kept whatever becomes of earlier requests: an engine that is too slow gets a queue,
and its callers do not wait with their next ones.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Final, NamedTuple

import msgspec

from lab.benchmarks.routing.choosing import ChosenTarget, Way
from lab.benchmarks.routing.outcomes import Drive, SentRequest
from lab.benchmarks.routing.wire import Wire
from lab.benchmarks.routing.world import World
from lab.engines.cache import BlockChain, Offload
from lab.engines.engine import GenerateAnswer, GenerateRequest
from lab.traffic.conversations import Conversations, Traffic, Turn
from lab.traffic.index_client import OutcomeReport
from lab.traffic.shadows import ShadowEngine
from routing.costs import Costs

TRAFFIC: Final = Traffic(open_max=192, zipf=0.4, rest=32)
"""Many conversations that are nearly alike. None goes on for some seconds: a turn quotes the answer
before it, which nobody can know before it is there."""

DRAIN_S: Final = 10.0
"""Requests that have no first token so long after the last one was sent are given up."""


class Load(NamedTuple):
    """The same requests at the same times: of all drives with this load.

    Attributes:
        turns: what is asked, in order.
        at_s: when, from the start; Poisson arrivals.
        warmup: so many first ones are in no figure: caches fill, and times are learned.
    """

    turns: Sequence[Turn]
    at_s: Sequence[float]
    warmup: int


def load_of(seed: int, requests_per_s: float, count: int, warmup: int) -> Load:
    """So many requests after the warm-up."""
    chance = random.Random(seed)
    whole = count + warmup
    gaps = (chance.expovariate(requests_per_s) for _ in range(whole))
    turns = list(islice(Conversations(seed, TRAFFIC), whole))
    return Load(turns, list(accumulate(gaps)), warmup)


class Events(NamedTuple):
    """What happens beside the requests.

    Attributes:
        told_every_s: what engines carry is posted so often; 0 for never.
        slo_s: objective of each first token; 0 for none.
        costs_after: from this request on engines take `costs`; 0 for never.
    """

    told_every_s: float = 0.0
    slo_s: float = 0.0
    costs_after: int = 0
    costs: Sequence[Costs] = ()


class _Truth:
    """What the engines will do with all that they were sent, by the same model, in memory."""

    def __init__(self, world: World) -> None:
        self._chain = BlockChain(world.sizes.block_size, root=b"")
        self._engines = {
            engine.instance_id: ShadowEngine(
                world.sizes, offload=Offload.WRITE_THROUGH, chain=self._chain, costs=costs
            )
            for engine, costs in zip(world.engines, world.costs, strict=True)
        }

    def sent(self, turn: Turn, instance_id: str, now: float) -> None:
        hashes = self._chain.hashes([*turn.prompt, *turn.answer])
        self._engines[instance_id].take(turn, hashes, now)

    def best_s(self, turn: Turn, now: float) -> float:
        """The shortest time to a first token that any engine would have had."""
        hashes = self._chain.hashes([*turn.prompt, *turn.answer])
        return min(one.expect(turn, hashes, now).ttft_s for one in self._engines.values())


class _Driving:
    def __init__(self, world: World, load: Load, way: Way, events: Events) -> None:
        self._load, self._way, self._events = load, way, events
        self._service = Wire(*world.service.address)
        self._engines = {
            engine.instance_id: Wire(engine.http_host, engine.http_port) for engine in world.engines
        }
        self._truth = _Truth(world) if events.slo_s else None
        self._decode = msgspec.json.Decoder(GenerateAnswer).decode
        self._sent: list[SentRequest] = []
        self._decision_s: list[float] = []
        self._started = 0.0
        self._late_s = 0.0

    async def run(self) -> Drive:
        self._started = time.monotonic()
        telling = asyncio.create_task(self._tell_loads())
        under_way: list[asyncio.Task[None]] = []
        try:
            for number, (turn, at_s) in enumerate(
                zip(self._load.turns, self._load.at_s, strict=True)
            ):
                await asyncio.sleep(max(self._started + at_s - time.monotonic(), 0.0))
                self._late_s = max(self._late_s, time.monotonic() - self._started - at_s)
                if number and number == self._events.costs_after:
                    await self._change_costs()
                task = await self._send(number, turn)
                if task is not None:
                    under_way.append(task)
            if under_way:
                _, pending = await asyncio.wait(under_way, timeout=DRAIN_S)
                for task in pending:
                    task.cancel()
                await asyncio.gather(*under_way, return_exceptions=True)
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            for wire in (self._service, *self._engines.values()):
                await wire.close()
        self._give_up()
        return Drive(self._sent[self._load.warmup :], self._decision_s, self._late_s)

    async def _send(self, number: int, turn: Turn) -> asyncio.Task[None] | None:
        """Decisions are asked for one after another, in the order of the requests."""
        asked = time.monotonic()
        chosen = await self._way.choose(self._service, turn, number)
        now = time.monotonic()
        if number >= self._load.warmup:
            self._decision_s.append(now - asked)
        sent = SentRequest(number=number, prompt_tokens=len(turn.prompt), at=now)
        self._sent.append(sent)
        if chosen is None:
            sent.refused = True
            if self._truth is not None:
                sent.would_have_had_s = self._truth.best_s(turn, now)
            return None
        sent.instance_id = chosen.instance_id
        sent.promised_s, sent.promised_tokens = chosen.ttft_s, chosen.cached_tokens
        if self._truth is not None:
            self._truth.sent(turn, chosen.instance_id, now)
        return asyncio.create_task(self._serve(sent, turn, chosen))

    async def _serve(self, sent: SentRequest, turn: Turn, chosen: ChosenTarget) -> None:
        body = GenerateRequest(token_ids=list(turn.prompt), answer_ids=list(turn.answer), dp_rank=0)
        try:
            answer = await self._engines[chosen.instance_id].request("POST", "/generate", body)
            if answer.status != 200:
                raise OSError(f"engine: {answer.status} {answer.body.decode()}")
            generated = self._decode(answer.body)
            sent.cached_tokens, sent.ttft_s = generated.cached_tokens, generated.ttft_s
            sent.is_done = True
            if chosen.decision_id:
                await self._report(chosen.decision_id, generated)
        except OSError as error:
            sent.problem = str(error)

    async def _report(self, decision_id: str, generated: GenerateAnswer) -> None:
        """Decoding takes these engines no time: the first token is the end as well."""
        first = OutcomeReport(
            decision_id=decision_id,
            event="first_token",
            ttft_ms=1000 * generated.ttft_s,
            queue_ms=1000 * generated.queue_s,
            prompt_tokens=generated.prompt_tokens,
            cached_tokens=generated.cached_tokens,
        )
        reports = [first, OutcomeReport(decision_id=decision_id, event="completed")]
        answer = await self._service.request("POST", "/feedback", reports)
        if answer.status != 202:
            raise OSError(f"POST /feedback: {answer.status} {answer.body.decode()}")

    async def _tell_loads(self) -> None:
        """What each engine carries, by its own word, as bridges and gateways ask for it."""
        while self._events.told_every_s:
            await asyncio.gather(*(self._tell_load(name) for name in self._engines))
            await asyncio.sleep(self._events.told_every_s)

    async def _tell_load(self, name: str) -> None:
        observed_at = time.time()
        said = msgspec.json.decode((await self._engines[name].request("GET", "/load")).body)
        sample = {"instance_id": name, "observed_at": observed_at, **said["ranks"]["0"]}
        await self._service.request("POST", "/load", sample)

    async def _change_costs(self) -> None:
        for wire, costs in zip(self._engines.values(), self._events.costs, strict=True):
            answer = await wire.request("POST", "/costs", costs)
            assert answer.status == 200, answer.body

    def _give_up(self) -> None:
        """What has no first token counts with the time that it has waited so far."""
        now = time.monotonic()
        for one in self._sent:
            if not (one.is_done or one.refused or one.problem):
                one.ttft_s = now - one.at


def drive(world: World, load: Load, way: Way, events: Events | None = None) -> Drive:
    """Sends all of it; returns `DRAIN_S` after the last request at the latest.

    Raises:
        RuntimeError: the service or an engine failed.
    """

    async def driving() -> Drive:
        return await _Driving(world, load, way, events or Events()).run()

    driven = asyncio.run(driving())
    problems = [one.problem for one in driven.sent if one.problem]
    if problems:
        raise RuntimeError(
            f"Expected all requests to be served, {len(problems)} were not: {problems[0]}"
        )
    return driven
