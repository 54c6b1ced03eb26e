"""Who is asked what it is, and when."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bridge.engine_http.client import NoAnswerError
from bridge.engine_http.engine import Bodies, NoEngineError
from bridge.engine_http.facts_watch import FACTS_AGAIN_S, FACTS_RETRY_S, FactsWatch
from schemas.engine_facts import EngineFacts
from schemas.registration import PublisherKind, Registration


@dataclass
class Followed:
    registration: Registration
    facts: EngineFacts | None = None
    http_trouble: str = ""
    apart_most: float = 0.0

    def note_clock(self, apart_most: float) -> None:
        self.apart_most = apart_most


@dataclass
class Source:
    asked: Counter[str] = field(default_factory=Counter)
    error: Exception | None = None

    async def bodies(self, registration: Registration) -> Bodies:
        self.asked[registration.http_url] += 1
        if self.error is not None:
            raise self.error
        found = Bodies({"/version": b"7"})
        found.apart_most = 5.0
        return found

    def facts(self, registration: Registration, bodies: dict[str, bytes]) -> EngineFacts:
        return EngineFacts(version=bodies["/version"].decode(), blocks=registration.dp_rank)


class Bench:
    """A watch whose clock a test sets."""

    def __init__(self, *followed: Followed) -> None:
        self.source = Source()
        self.followed = list(followed)
        self.now = 1000.0
        self.faults = 0
        self.watch = FactsWatch(
            self.source, lambda: self.followed, on_fault=self._fault, clock=lambda: self.now
        )

    def _fault(self) -> None:
        self.faults += 1

    async def look(self) -> None:
        await self.watch.look()
        await asyncio.gather(*self.watch.asking)


def one(rank: int = 0, url: str = "http://e:1", kind: str = "vLLM") -> Followed:
    registration = Registration(
        endpoint=f"tcp://e:{5557 + rank}",
        kind=PublisherKind(kind),
        model_name="m",
        instance_id="a",
        block_size=16,
        dp_rank=rank,
        http_endpoint=url,
    )
    return Followed(registration)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_an_engine_is_asked_once_for_all_of_its_ranks_and_then_now_and_again() -> None:
    async def test() -> None:
        bench = Bench(one(0), one(1), one(0, "http://other:1"))
        await bench.look()
        assert bench.source.asked == {"http://e:1": 1, "http://other:1": 1}
        told = [followed.facts and followed.facts.blocks for followed in bench.followed]
        assert told == [0, 1, 0]
        assert {followed.apart_most for followed in bench.followed} == {5.0}
        bench.now += FACTS_AGAIN_S / 2
        await bench.look()
        assert bench.source.asked["http://e:1"] == 1
        bench.now += FACTS_AGAIN_S / 2
        await bench.look()
        assert bench.source.asked["http://e:1"] == 2

    run(test)


def test_who_has_no_http_address_or_is_of_a_kind_that_says_nothing_is_not_asked() -> None:
    async def test() -> None:
        bench = Bench(one(url=""), one(kind="TensorRT-LLM"))
        await bench.look()
        assert not bench.source.asked

    run(test)


def test_of_an_engine_that_does_not_answer_nothing_is_known_and_it_is_asked_again_sooner() -> None:
    async def test() -> None:
        bench = Bench(one())
        await bench.look()
        bench.source.error = NoAnswerError("away")
        bench.now += FACTS_AGAIN_S
        await bench.look()
        assert bench.followed[0].facts is None
        bench.now += FACTS_RETRY_S
        bench.source.error = None
        await bench.look()
        assert bench.followed[0].facts is not None
        assert bench.faults == 0

    run(test)


def test_an_error_of_ours_is_counted_and_the_engine_asked_again() -> None:
    async def test() -> None:
        bench = Bench(one())
        bench.source.error = RuntimeError("for a test")
        await bench.look()
        assert bench.faults == 1
        bench.source.error = None
        bench.now += FACTS_AGAIN_S
        await bench.look()
        assert bench.followed[0].facts is not None

    run(test)


def test_what_answers_and_is_no_engine_is_kept_in_words_until_an_engine_answers() -> None:
    bench = Bench(one())
    bench.source.error = NoEngineError("HTTP 404 for each of /metrics")
    asyncio.run(bench.look())
    (followed,) = bench.followed
    assert (followed.facts, followed.http_trouble) == (None, "HTTP 404 for each of /metrics")
    bench.source.error = None
    bench.now += FACTS_AGAIN_S
    asyncio.run(bench.look())
    assert followed.facts is not None
    assert followed.http_trouble == ""
