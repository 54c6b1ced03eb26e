"""Questions beside everything else, over sources that answer when they are told to."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field

import msgspec
import pytest

from bridge.engine_http import inquiries as module
from bridge.engine_http.answers import Process, PublisherSource
from bridge.engine_http.client import NoAnswerError
from bridge.engine_http.inquiries import Inquiries
from bridge.engine_http.watch import EngineWatch
from bridge.link_numbers import LinkNumber
from schemas.identities import PublisherKey
from schemas.registration import Registration
from tests.unit.bridge.messages import registration

ONE = registration()
PROCESS = Process("one", 1000.0)


@dataclass
class Source:
    """Answers once `go` is set."""

    answer: Process | None = PROCESS
    there: bool = True
    error: Exception | None = None
    sources_at: str | Exception = "tcp://here:1"
    asked: list[str] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    requests: Counter[str] = field(default_factory=Counter)

    async def is_there(self, registration: Registration) -> bool:
        self.asked.append("is_there")
        await self.go.wait()
        return self.there

    async def process(self, registration: Registration) -> Process | None:
        self.asked.append("process")
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return self.answer

    async def sources(self, registration: Registration) -> list[PublisherSource]:
        self.asked.append("sources")
        if isinstance(self.sources_at, Exception):
            raise self.sources_at
        return [PublisherSource(0, self.sources_at, "", None)]


@dataclass
class Links:
    number: int = 1
    up: bool = True

    def connected(self, publisher: PublisherKey) -> bool:
        return self.up

    def links(self, publisher: PublisherKey) -> LinkNumber:
        return LinkNumber(self.number)


class Scene:
    def __init__(self) -> None:
        self.source, self.links, self.engine = Source(), Links(), EngineWatch()
        self.answered: list[PublisherKey] = []
        self.named: list[tuple[str, int]] = []
        self.faults = 0
        self.inquiries = Inquiries(
            self.source,
            self.links,
            on_answer=self.answered.append,
            on_named=self._named,
            on_fault=self._fault,
        )

    def _fault(self) -> None:
        self.faults += 1

    def _named(self, publisher: PublisherKey, endpoint: str, link: LinkNumber) -> bool:
        self.named.append((endpoint, link))
        return endpoint == "tcp://here:1"

    async def settle(self) -> None:
        while self.engine.inquiry is not None:  # noqa: ASYNC110 -- nothing tells
            await asyncio.sleep(0)


def play(scene: Coroutine[None, None, None]) -> None:
    async def run() -> None:
        async with asyncio.timeout(10):
            await scene

    asyncio.run(run())


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROCESS_SETTLE_S", 0.0)


def test_one_question_is_asked_at_a_time_and_whoever_asks_is_told() -> None:
    async def run() -> None:
        scene = Scene()
        scene.inquiries.probe(ONE, scene.engine)
        scene.inquiries.read_process(ONE, scene.engine)
        await asyncio.sleep(0)
        assert scene.source.asked == ["is_there"]
        scene.source.go.set()
        await scene.settle()
        assert scene.answered == [ONE.publisher]
        scene.inquiries.read_process(ONE, scene.engine)
        await scene.settle()
        assert scene.source.asked == ["is_there", "process"]
        assert scene.engine.has_read(LinkNumber(1))

    play(run())


def test_a_repair_waits_for_the_process_behind_a_probe_that_is_under_way() -> None:
    async def run() -> None:
        scene = Scene()
        scene.inquiries.probe(ONE, scene.engine)
        waiting = asyncio.create_task(scene.inquiries.process_read(ONE, scene.engine))
        await asyncio.sleep(0)
        scene.source.go.set()
        await waiting
        assert scene.engine.has_read(LinkNumber(1))
        await scene.inquiries.process_read(ONE, scene.engine)
        assert scene.source.asked == ["is_there", "process"], "it has told"

    play(run())


def test_a_repair_goes_on_where_the_engine_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HTTP_ENGINE_WAIT_S", 0.01)

    async def run() -> None:
        scene = Scene()
        await scene.inquiries.process_read(ONE, scene.engine)
        assert not scene.engine.has_read(LinkNumber(1))
        await scene.inquiries.close()
        assert not scene.answered

    play(run())


@pytest.mark.parametrize("change", ["another link", "down", "was down"])
def test_what_is_said_while_the_link_changes_is_said_of_nobody(change: str) -> None:
    async def run() -> None:
        scene = Scene()
        scene.links.up = change != "was down"
        scene.inquiries.read_process(ONE, scene.engine)
        await asyncio.sleep(0)
        scene.links.up = change != "down"
        scene.links.number += change == "another link"
        scene.source.go.set()
        await scene.settle()
        assert not scene.engine.has_read(LinkNumber(1))
        assert not scene.engine.has_read(LinkNumber(2))

    play(run())


def test_an_error_of_ours_ends_one_question_only() -> None:
    async def run() -> None:
        scene = Scene()
        scene.source.error = RuntimeError("broken")
        scene.source.go.set()
        await scene.inquiries.process_read(ONE, scene.engine)
        assert scene.faults > 0
        scene.source.error = None
        await scene.inquiries.process_read(ONE, scene.engine)
        assert scene.engine.has_read(LinkNumber(1))

    play(run())


def test_who_is_followed_no_more_is_asked_nothing_more() -> None:
    async def run() -> None:
        scene = Scene()
        scene.inquiries.read_process(ONE, scene.engine)
        await asyncio.sleep(0)
        scene.inquiries.forget(scene.engine)
        scene.inquiries.forget(scene.engine)
        scene.source.go.set()
        await asyncio.sleep(0)
        assert scene.engine.inquiry is None
        assert not scene.engine.has_read(LinkNumber(1))

    play(run())


@pytest.mark.parametrize(
    ("says", "is_read"),
    [("tcp://here:1", True), ("tcp://there:1", False), (NoAnswerError("for a test"), False)],
    ids=["here", "elsewhere", "silent"],
)
def test_a_process_is_that_of_a_link_which_leads_to_where_the_engine_says_to_be(
    says: str | Exception, is_read: bool
) -> None:
    async def run() -> None:
        scene = Scene()
        scene.source.sources_at = says
        scene.source.go.set()
        one = msgspec.structs.replace(ONE, endpoint="http://10.0.0.7:8000")
        scene.inquiries.read_process(one, scene.engine)
        await scene.settle()
        assert scene.source.asked == ["process", "sources"]
        assert scene.engine.has_read(LinkNumber(1)) is is_read
        assert scene.named == ([] if isinstance(says, Exception) else [(says, 1)])

    play(run())
