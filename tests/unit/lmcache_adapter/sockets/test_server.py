"""The three sockets: real ones, the controller's thread, and workers by their script."""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import msgpack
import pytest

from lmcache_adapter.controller.controller import Controller
from lmcache_adapter.journal import WorkerReport
from lmcache_adapter.settings import Address, Models
from lmcache_adapter.sockets import links as links_module
from lmcache_adapter.sockets.server import LMCACHE_PARTS_MAX, ControllerSockets
from schemas.answer_states import Doubt
from schemas.errors import ConfigurationError
from schemas.identities import PublisherKey
from tests.lmcache import ScriptedWorker
from tests.processes import until
from tests.zmtp import GREETING, ready


class Running:
    """The thread, and what it has told."""

    def __init__(self, address: Address | None = None) -> None:
        self.controller = Controller(
            Models(), next_incarnation=lambda publisher: 1, clock=lambda: 1_795_000_000.0
        )
        self.told: list[WorkerReport] = []
        address = address or Address(pull_port=0, reply_port=0, heartbeat_port=0)
        self.sockets = ControllerSockets(address, self.controller, self.told.extend)
        self._thread = threading.Thread(target=self.sockets.run)
        self._thread.start()

    @property
    def ports(self) -> Sequence[int]:
        sockets = self.sockets
        return (sockets.pull_port, sockets.reply_port, sockets.heartbeat_port)

    def worker(self, name: str = "a") -> ScriptedWorker:
        return ScriptedWorker(self.ports, name)

    def doubts(self) -> dict[str, Doubt | None]:
        return {one.publisher.stream.instance_id: one.doubt for one in list(self.told)}

    def dropped(self, reason: str) -> int:
        return self.controller.counters.dropped[reason]

    def call(self, command: Callable[[], None]) -> None:
        """Has the thread do something; returns once it has."""
        done = threading.Event()

        def run() -> None:
            command()
            done.set()

        self.sockets.order(run)
        assert done.wait(10)

    def close(self) -> None:
        self.sockets.stop()
        self._thread.join()
        self.sockets.close()


@pytest.fixture
def running() -> Iterator[Running]:
    opened = Running()
    yield opened
    opened.close()
    assert opened.sockets.faults == 0


def test_a_worker_is_served(running: Running) -> None:
    with running.worker() as worker:
        answer = worker.register()
        url = f"127.0.0.1:{running.sockets.heartbeat_port}"
        assert answer == {"type": "RegisterRetMsg", "extra_config": {"heartbeat_url": url}}
        assert worker.heartbeat() == []
        worker.admit([1, 2, 3])
        until(lambda: running.doubts().get("a", Doubt.NOT_SYNCED) is None, what="its operations")
        assert worker.look_up([1]) == [["", "", 0, ""]]
    until(lambda: running.doubts()["a"] is Doubt.LINK_DOWN, what="the end of its links")
    until(lambda: len(running.sockets._links[running.sockets._pull]) == 0, what="none is left")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_peer_of_the_first_zmtp_costs_what_it_sends(
    running: Running, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    """30,000 frames of two bytes were as many tracebacks, and 12 s for a good worker."""
    count = 2_000
    with socket.create_connection(("127.0.0.1", running.ports[place])) as old:
        frames = b"\x01\x00" * count  # the first is its name, which is empty
        old.sendall(frames if place == 0 else b"\x01\x00" + b"\x01\x01\x01\x00" * count)
        until(lambda: running.dropped("unknown_link") >= count - 1, what="that they are dropped")
        with running.worker() as worker:
            worker.register()
            worker.admit([1])
            until(lambda: running.doubts().get("a", Doubt.NOT_SYNCED) is None, what="a good worker")
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


def test_where_all_addresses_are_served_the_one_by_which_a_worker_comes_is_told() -> None:
    running = Running(Address(host="*", pull_port=0, reply_port=0, heartbeat_port=0))
    with running.worker() as worker:
        url = worker.register()["extra_config"]["heartbeat_url"]
    running.close()
    assert url == f"127.0.0.1:{running.sockets.heartbeat_port}"


def test_an_advertised_host_is_told() -> None:
    address = Address(pull_port=0, reply_port=0, heartbeat_port=0, advertised="localhost")
    running = Running(address)
    with running.worker() as worker:
        url = worker.register()["extra_config"]["heartbeat_url"]
    running.close()
    assert url.startswith("localhost:")


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        controller = Controller(Models(), next_incarnation=lambda _: 1, clock=lambda: 0.0)
        with pytest.raises(ConfigurationError, match=str(port)):
            ControllerSockets(
                Address(pull_port=0, reply_port=port, heartbeat_port=0), controller, print
            )


def test_requests_that_are_none_are_answered_by_an_error(running: Running) -> None:
    with running.worker() as worker:
        assert worker.ask_raw(b"\xc1")["type"] == "ErrorMsg"
        pushed = msgpack.packb({"type": "DeRegisterMsg", "instance_id": "a", "worker_id": 0})
        assert "DeRegisterMsg" in worker.ask_raw(pushed)["error"]
        assert worker.register()["type"] == "RegisterRetMsg"
    assert running.dropped("malformed") == 1
    assert running.dropped("unexpected_message") == 1


def test_frames_that_are_not_those_of_a_request_are_counted(running: Running) -> None:
    with running.worker() as worker:
        worker._requests.send_multipart([b"no empty frame", b"x"])
        worker._requests.send(b"")
        assert worker.register()["type"] == "RegisterRetMsg"
    assert running.dropped("frame_count") == 2


def test_a_bad_part_does_not_take_its_neighbours_with_it(running: Running) -> None:
    with running.worker() as worker:
        worker.register()
        good = [msgpack.packb(worker.operations("admit", [number])) for number in (1, 2)]
        worker.push_raw(good[0], b"\xc1", good[1])
        until(lambda: running.controller.counters.operations == 2, what="both")
    assert running.dropped("malformed") == 1
    assert running.controller.counters.jumps == 0


def test_parts_beyond_the_bound_are_dropped_and_counted(running: Running) -> None:
    with running.worker() as worker:
        worker.register()
        worker.push_raw(*[b"\xc1"] * (LMCACHE_PARTS_MAX + 5))
        until(lambda: running.dropped("too_many_parts") == 5, what="the rest of them")
        until(lambda: running.dropped("malformed") == LMCACHE_PARTS_MAX, what="the first ones")


def test_links_beyond_the_bound_are_closed_and_counted(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running.worker() as worker:
        worker.register()
        monkeypatch.setattr(links_module, "LMCACHE_LINKS_MAX", 1)
        with socket.create_connection(("127.0.0.1", running.sockets.reply_port)) as stranger:
            stranger.settimeout(10)
            while stranger.recv(100):
                pass
        until(lambda: running.dropped("too_many_links") == 1, what="its count")
        assert worker.sync_status("x")["can_exit_freeze"], "who was there before stays"


def test_a_message_without_an_end_ends_its_link_alone(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links_module, "LMCACHE_LINK_BYTES", 1_000_000)
    frame = b"\x03" + (60_000).to_bytes(8, "big") + bytes(60_000)  # more follow
    with running.worker() as worker:
        worker.register()
        hostile = socket.create_connection(("127.0.0.1", running.sockets.pull_port))
        with hostile, suppress(OSError):
            hostile.sendall(GREETING + ready(b"PUSH"))
            while b"READY" not in hostile.recv(4096):
                pass
            while True:
                hostile.sendall(frame)
        until(lambda: running.dropped("endless_message") == 1, what="its count")
        assert worker.sync_status("x")["can_exit_freeze"]


def test_whoever_only_connects_is_no_worker_that_may_have_lost_something(
    running: Running,
) -> None:
    before = running.controller._strays
    socket.create_connection(("127.0.0.1", running.sockets.pull_port)).close()
    with running.worker() as worker:
        worker.admit([1])  # of somebody who is not registered: it has a link
        until(lambda: running.dropped("not_registered") == 1, what="it came")
    until(lambda: running.controller._strays == before + 1, what="the end of that link alone")


def test_an_error_in_a_command_does_not_end_the_thread() -> None:
    running = Running()

    def fail() -> None:
        raise RuntimeError("for a test")

    running.sockets.order(fail)
    with running.worker() as worker:
        assert worker.register()["type"] == "RegisterRetMsg"
    running.close()
    assert running.sockets.faults == 1


def test_what_is_told_of_a_worker_is_told_by_the_thread(running: Running) -> None:
    with running.worker() as worker:
        worker.register()
        worker.admit([1])
        until(lambda: running.doubts().get("a", Doubt.NOT_SYNCED) is None, what="its operations")
        [publisher] = {one.publisher for one in running.told}
        assert isinstance(publisher, PublisherKey)
        before = len(running.told)
        running.call(lambda: running.controller.rewrite([publisher]))
        until(lambda: len(running.told) > before, what="all of it again")
