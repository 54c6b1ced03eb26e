"""Where engines publish that were registered by a base URL, over engines that are fakes."""

import asyncio
import logging
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec
import pytest

from bridge.engine_http.answers import PublisherSource
from bridge.engine_http.client import NoAnswerError
from bridge.engine_http.discovery import FIND_AGAIN_S, FIND_REFUSED_S, EndpointDiscovery
from bridge.link_numbers import LinkNumber
from bridge.publisher.publisher import Publisher
from schemas.errors import OpenFilesError, RegistrationError
from schemas.identities import PublisherKey
from schemas.registration import Registration
from tests.unit.bridge.messages import registration

URL: Final = msgspec.structs.replace(registration(), endpoint="http://10.0.0.7:8000", block_size=16)
HERE: Final = PublisherSource(0, "tcp://10.0.0.7:41001", "tcp://10.0.0.7:41002", None)
THERE: Final = PublisherSource(0, "tcp://10.0.0.7:52001", "", None)


class Scene:
    """One publisher, its engine, and its link."""

    def __init__(self, one: Registration = URL) -> None:
        self.requests: Counter[str] = Counter()
        self.says: list[PublisherSource] | Exception = [HERE]
        self.asked = self.faults = self.left = 0
        self.up = False
        self.free = asyncio.Event()
        self.free.set()
        self.connected_to: list[Registration] = []
        self.fails: Exception | None = None
        self.followed = Publisher(one)
        self.discovery = EndpointDiscovery(self, self, connect=self._connect, on_fault=self._fault)
        self.discovery.add(self.followed)

    def _fault(self) -> None:
        self.faults += 1

    async def _connect(self, found: Registration, leaves: bool) -> None:
        if self.fails is not None:
            raise self.fails
        self.connected_to.append(found)
        self.left += leaves

    async def is_there(self, registration: Registration) -> bool:
        raise AssertionError("nobody asks for that here")

    async def process(self, registration: Registration) -> None:
        raise AssertionError("nobody asks for that here")

    async def sources(self, registration: Registration) -> list[PublisherSource]:
        self.asked += 1
        await self.free.wait()
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def connected(self, publisher: PublisherKey) -> bool:
        return self.up

    def links(self, publisher: PublisherKey) -> LinkNumber:
        return LinkNumber(0)

    async def look(self, after_s: float = 0.0) -> None:
        """Looks, so long from now on."""
        self.discovery.watch(time.monotonic() + after_s)
        for _ in range(10):
            await asyncio.sleep(0)


def play(scene: Callable[[Scene], Coroutine[Any, Any, None]], one: Registration = URL) -> Scene:
    async def run() -> Scene:
        built = Scene(one)
        await scene(built)
        await built.discovery.close()
        return built

    return asyncio.run(run())


def test_it_is_connected_to_where_its_engine_says(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(scene: Scene) -> None:
        await scene.look()

    with caplog.at_level(logging.INFO):
        found = play(scene)
    (one,) = found.connected_to
    assert one == msgspec.structs.replace(
        URL, endpoint=HERE.endpoint, replay_endpoint=HERE.replay_endpoint
    )
    assert found.followed.can_replay
    assert found.followed.replay.endpoint == HERE.replay_endpoint
    (record,) = caplog.records
    assert record.message == (
        f"{URL.service_key} ({URL.model_name}) publishes at tcp://10.0.0.7:41001 and replays at"
        " tcp://10.0.0.7:41002, as http://10.0.0.7:8000 says"
    )


def test_where_it_is_is_logged_when_that_is_new(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(scene: Scene) -> None:
        for number, says in enumerate(([HERE], [HERE], [THERE], [THERE], [HERE])):
            scene.says = says
            await scene.look(number * (FIND_AGAIN_S + 1))

    with caplog.at_level(logging.INFO):
        assert len(play(scene).connected_to) == 5
    assert len(caplog.records) == 3


def test_a_replay_socket_that_was_registered_is_the_one_that_counts() -> None:
    async def scene(scene: Scene) -> None:
        await scene.look()

    one = msgspec.structs.replace(URL, replay_endpoint="tcp://10.0.0.9:1")
    assert play(scene, one).followed.replay.endpoint == "tcp://10.0.0.9:1"


def test_while_its_link_is_up_it_is_not_asked() -> None:
    async def scene(scene: Scene) -> None:
        scene.up = True
        await scene.look()
        await scene.look(1000.0)

    assert play(scene).asked == 0


def test_a_link_to_another_engine_is_left_for_where_its_own_is() -> None:
    async def scene(scene: Scene) -> None:
        await scene.look()
        scene.up = True
        scene.says = [THERE]
        scene.discovery.leave(scene.followed)
        await scene.look()
        assert (len(scene.connected_to), scene.left) == (2, 1)
        assert scene.connected_to[-1].endpoint == scene.followed.endpoint == THERE.endpoint
        await scene.look(1000.0)
        assert scene.asked == 2
        scene.discovery.leave(scene.followed)  # it says the same again: there is nothing to leave
        await scene.look(2000.0)
        assert (len(scene.connected_to), scene.left) == (3, 1)

    play(scene)


def test_once_its_link_has_ended_it_is_asked_anew_and_connected_to_where_it_is_then() -> None:
    async def scene(scene: Scene) -> None:
        await scene.look()
        scene.up = True
        await scene.look(FIND_AGAIN_S)
        scene.up, scene.says = False, [THERE]
        await scene.look(FIND_AGAIN_S + 1)

    found = play(scene)
    assert [one.endpoint for one in found.connected_to] == [HERE.endpoint, THERE.endpoint]
    assert not found.followed.can_replay


def test_it_is_asked_one_question_at_a_time_and_again_after_a_pause() -> None:
    async def scene(scene: Scene) -> None:
        scene.free.clear()
        await scene.look()
        await scene.look(1000.0)
        assert scene.asked == 1
        scene.free.set()
        await scene.look()
        assert scene.asked == 1
        await scene.look(FIND_AGAIN_S + 1)
        assert scene.asked == 2

    play(scene)


def test_an_engine_that_does_not_answer_is_asked_again_and_nothing_is_said_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(scene: Scene) -> None:
        scene.says = NoAnswerError("for a test")
        await scene.look()
        assert not scene.followed.has_no_endpoint
        scene.says = [HERE]
        await scene.look(FIND_AGAIN_S + 1)

    with caplog.at_level(logging.WARNING):
        found = play(scene)
    assert len(found.connected_to) == 1
    assert not caplog.records


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (RegistrationError("it publishes nothing"), "it publishes nothing"),
        ([HERE._replace(dp_rank=1), HERE._replace(dp_rank=3)], r"publishes for \(1, 3\), got: 0"),
        ([HERE._replace(dp_rank=rank) for rank in range(1, 50)], "15, 16 and more"),
        ([], r"\(none\)"),
        ([HERE._replace(block_size=64)], "Expected `block_size` 64.*got: 16"),
    ],
)
def test_what_it_says_and_cannot_be_used_is_told_once_and_asked_for_again(
    says: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(scene: Scene) -> None:
        scene.says = says
        scene.followed.rests_until = math.inf
        await scene.look()
        assert scene.followed.has_no_endpoint
        assert scene.followed.rests_until == 0.0
        await scene.look(FIND_REFUSED_S - 1)
        assert scene.asked == 1
        await scene.look(FIND_REFUSED_S + 1)
        assert scene.asked == 2
        scene.says = [HERE._replace(block_size=16)]
        await scene.look(FIND_REFUSED_S + 1)
        assert len(caplog.records) == 1
        assert not scene.followed.has_no_endpoint
        scene.says = says
        await scene.look(FIND_REFUSED_S + 1)
        assert len(caplog.records) == 2, "it is wrong again"

    with caplog.at_level(logging.WARNING):
        found = play(scene)
    assert len(found.connected_to) == 1
    assert re.search(why, caplog.text)


def test_an_unexpected_error_is_counted_and_it_is_asked_again() -> None:
    async def scene(scene: Scene) -> None:
        scene.says = ZeroDivisionError()
        await scene.look()
        assert scene.faults == 1
        scene.says = [HERE]
        await scene.look(FIND_AGAIN_S + 1)

    assert len(play(scene).connected_to) == 1


def test_without_a_file_for_its_socket_it_is_tried_again() -> None:
    async def scene(scene: Scene) -> None:
        scene.fails = OpenFilesError("for a test")
        await scene.look()
        assert not scene.followed.has_no_endpoint
        scene.fails = None
        await scene.look(FIND_AGAIN_S + 1)

    found = play(scene)
    assert len(found.connected_to) == 1
    assert not found.faults


def test_who_is_unfollowed_is_asked_no_more() -> None:
    async def scene(scene: Scene) -> None:
        scene.free.clear()
        await scene.look()
        scene.discovery.remove(scene.followed)
        scene.discovery.remove(scene.followed)
        scene.free.set()
        await scene.look()
        await scene.look(1000.0)

    found = play(scene)
    assert found.asked == 1
    assert not found.connected_to


def test_who_is_not_being_asked_is_unfollowed_as_well() -> None:
    async def scene(scene: Scene) -> None:
        scene.discovery.remove(scene.followed)
        await scene.look(1000.0)

    assert play(scene).asked == 0


def test_the_end_waits_for_no_engine() -> None:
    async def scene(scene: Scene) -> None:
        scene.free.clear()
        await scene.look()

    assert not play(scene).connected_to
