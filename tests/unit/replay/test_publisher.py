"""A capture that is sent out again arrives as it was, at whoever subscribes."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from replay.as_records import CaptureRecords
from replay.capture.errors import CaptureError
from replay.capture.format import CapturedPublisher
from replay.capture.from_zmq import capture_frames
from replay.capture.reader import Capture
from replay.capture.replay_request import ask_for
from replay.folding import ReplayedTable, fold_capture
from replay.publisher import CapturePublishers, rising
from replay.wire_batches import Outgoing
from schemas.progress import never
from streams.kernel import open_kernel
from tests.integration.bridge.engine import Engine
from tests.unit.replay.capture.test_from_zmq import Recording, digests, frames_of
from tests.unit.replay.histories import SEED

ANY = "tcp://127.0.0.1:0"


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Path]:
    """A capture of two engines, 60 batches each."""
    engines = [Engine("a"), Engine("b")]
    with Recording(tmp_path / "frames", *engines) as recording:
        for _ in range(3):
            for engine in engines:
                engine.publish(20)
        recording.has(120)
    yield tmp_path / "frames"
    for engine in engines:
        engine.publisher.close()


def sent_out(path: Path, then: Callable[[CapturePublishers], object]) -> None:
    """Sends the capture to whoever `then` has subscribe; it runs in a thread of its own."""
    ended = threading.Event()
    with Capture(path) as capture:
        outgoing = Outgoing(capture)
        numbers = range(len(outgoing.names))
        publishers = CapturePublishers(numbers, ANY, ANY, stopped=ended.is_set)

        def run() -> None:
            try:
                then(publishers)
            finally:
                ended.set()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            publishers.serve_until(publishers.are_subscribed)
            # Whoever has read all that it wanted may have ended it before the last one was sent.
            assert publishers.publish(outgoing) or ended.is_set()
            publishers.serve_until(never)
        finally:
            ended.set()
            thread.join()
            publishers.close()


def test_frames_come_out_byte_for_byte(tmp_path: Path, recorded: Path) -> None:
    again = tmp_path / "again"

    def record(publishers: CapturePublishers) -> None:
        sources = [
            CapturedPublisher(endpoint=one.endpoint, replay_endpoint=one.replay_endpoint)
            for one in publishers.publishers.values()
        ]
        capture_frames(sources, again, created_by="test", limit=120)

    sent_out(recorded, record)
    for lane in range(2):
        assert frames_of(again, lane) == frames_of(recorded, lane)
    with Capture(recorded) as capture:
        named = {
            lane: source.registration
            for lane, source in enumerate(capture.header.publishers)
            if source.registration is not None
        }
    assert digests(again, named) == digests(recorded)


def test_the_replay_socket_has_what_was_sent(recorded: Path) -> None:
    found: list[list[bytes]] = []

    def ask(publishers: CapturePublishers) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        sockets = []
        for one in publishers.publishers.values():
            socket = context.socket(zmq.SUB)
            socket.subscribe(b"")
            socket.connect(one.endpoint)
            sockets.append(socket)
        for socket in sockets:
            for _ in range(60):
                assert socket.poll(30_000)
                socket.recv_multipart()
        endpoint = publishers.publishers[0].replay_endpoint
        found.extend(ask_for(context, endpoint, 50, never))
        context.destroy(linger=0)

    sent_out(recorded, ask)
    assert found == frames_of(recorded)[50:]


def test_a_slow_subscriber_loses_nothing(recorded: Path, tmp_path: Path) -> None:
    """Its queue is full before it reads a thing."""
    received: list[list[bytes]] = []

    def read_late(publishers: CapturePublishers) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        sockets = []
        for one in publishers.publishers.values():
            socket = context.socket(zmq.SUB)
            socket.rcvhwm = 1
            socket.subscribe(b"")
            socket.connect(one.endpoint)
            sockets.append(socket)
        for _ in range(60):
            assert sockets[0].poll(30_000)
            received.append(sockets[0].recv_multipart())
        context.destroy(linger=0)

    sent_out(recorded, read_late)
    assert received == frames_of(recorded)


def test_ports_rise_and_are_ports() -> None:
    assert rising("tcp://127.0.0.1:5557", 2) == "tcp://127.0.0.1:5559"
    assert rising(ANY, 2) == ANY
    with pytest.raises(CaptureError, match="Expected 2 ports from"):
        rising("tcp://127.0.0.1:65535", 1)
    with pytest.raises(CaptureError, match="Expected an address such as"):
        rising("ipc:///x", 0)


def test_an_address_in_use_is_named() -> None:
    first = CapturePublishers([0], ANY)
    endpoint = first.publishers[0].endpoint
    with pytest.raises(CaptureError, match=f"Cannot listen at {endpoint}: "):
        CapturePublishers([0], endpoint)
    first.close()


def test_a_capture_gives_the_same_digests_each_time(recorded: Path) -> None:
    first, second = digests(recorded), digests(recorded)
    assert first == second
    assert len(first) == 2
    with Capture(recorded) as capture:
        records = CaptureRecords(capture)
        table = ReplayedTable(open_kernel(SEED), records)
        fold_capture(records, table, total=None)
        assert records.sequenced.messages == 120
        assert records.sequenced.gaps == 0
