"""A capture of frames has what engines sent, each message once and in order, as it came."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from replay.as_records import CaptureRecords
from replay.capture.errors import CaptureError
from replay.capture.format import (
    CapturedPublisher,
    CaptureEntry,
    CaptureKind,
    EntryFlag,
    Summary,
    decode_frames,
)
from replay.capture.from_zmq import capture_frames
from replay.capture.reader import Capture
from replay.folding import ReplayedTable, fold_capture
from schemas.errors import EndpointError
from schemas.identities import Offset
from schemas.progress import Progress
from schemas.records import encode_record
from schemas.registration import Registration
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.verification import context_digests
from tests.integration.bridge.engine import Engine
from tests.processes import until
from tests.unit.bridge.publisher.sequencers import Sequencers

SEED = 1337


@pytest.fixture
def make_engine() -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(name: str = "a", **options: bool) -> Engine:
        made.append(Engine(name, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.publisher.close()


def source_of(engine: Engine, *, named: bool = True) -> CapturedPublisher:
    one = engine.registration
    return CapturedPublisher(
        endpoint=one.endpoint,
        replay_endpoint=one.replay_endpoint,
        registration=one if named else None,
    )


class Recording:
    """A capture in a thread of its own."""

    def __init__(self, path: Path, *engines: Engine, **options: object) -> None:
        self.path = path
        self.entries = 0
        self._stopped = threading.Event()
        self._summary: list[Summary] = []
        self._thread = threading.Thread(target=self._run, args=(engines, options))

    def _run(self, engines: tuple[Engine, ...], options: dict[str, object]) -> None:
        self._summary.append(
            capture_frames(
                [source_of(engine) for engine in engines],
                self.path,
                created_by="test",
                tell=self._tell,
                stopped=self._stopped.is_set,
                **options,  # type: ignore[arg-type]
            )
        )

    def _tell(self, progress: Progress) -> None:
        self.entries = progress.entries

    def __enter__(self) -> "Recording":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def has(self, entries: int) -> None:
        until(lambda: self.entries >= entries, what=f"{entries} messages in the file")

    @property
    def summary(self) -> Summary:
        return self._summary[0]


def entries_of(path: Path, lane: int = 0) -> list[CaptureEntry]:
    with Capture(path) as capture:
        assert capture.notes == []
        assert capture.header.kind is CaptureKind.FRAMES
        return list(capture.read(lanes=[lane]))


def frames_of(path: Path, lane: int = 0) -> list[list[bytes]]:
    return [decode_frames(entry.value) for entry in entries_of(path, lane)]


def publish_before(engine: Engine, batches: int) -> None:
    """Publishes, and waits until the publisher has sent it: who connects then hears none of it."""
    engine.publish(batches)
    until(lambda: len(engine.messages()) == batches, what="what was published is sent")


def sent_by(engine: Engine) -> list[list[bytes]]:
    return [message.frames for message in engine.messages()]


def digests(path: Path, registrations: dict[int, Registration] | None = None) -> dict[str, str]:
    with Capture(path) as capture:
        records = CaptureRecords(capture, None, registrations)
        table = ReplayedTable(open_kernel(SEED), records)
        fold_capture(records, table, total=None)
        assert not table.skipped
        return table.digests


def bridged(*engines: Engine) -> dict[str, str]:
    """What a bridge that missed nothing would have made of all that they sent."""
    fold, offset = Fold(open_kernel(SEED)), 0
    sequencer = Sequencers()
    for engine in engines:
        sequencer.add(engine.registration)
        for message in engine.messages():
            for record in sequencer.process([message], 0.0):
                fold.apply(Offset(offset), encode_record(record))
                offset += 1
    return context_digests(fold.kernel)


def test_what_was_sent_before_and_since_is_captured_once(
    tmp_path: Path, make_engine: Callable[..., Engine]
) -> None:
    engine, path = make_engine(), tmp_path / "frames"
    publish_before(engine, 30)
    with Recording(path, engine) as recording:
        recording.has(30)
        engine.publish(20)
        recording.has(50)
    assert frames_of(path) == sent_by(engine)
    flags = [entry.flags for entry in entries_of(path)]
    assert flags[:30] == [EntryFlag.REPLAYED] * 30
    assert EntryFlag.REPLAYED not in [EntryFlag(flag) for flag in flags[31:]]
    times = [entry.time for entry in entries_of(path)]
    assert times == sorted(times)
    assert digests(path) == bridged(engine)
    assert recording.summary.ended == "complete"


def test_what_a_link_lost_is_asked_for(tmp_path: Path, make_engine: Callable[..., Engine]) -> None:
    engine, path = make_engine(), tmp_path / "frames"
    with Recording(path, engine) as recording:
        engine.publish(5)
        recording.has(5)
        engine.publish(7, lost=True)
        engine.publish(5)
        recording.has(17)
    assert frames_of(path) == sent_by(engine)
    assert digests(path) == bridged(engine)


def test_without_a_replay_socket_what_was_missed_shows_as_lost(
    tmp_path: Path, make_engine: Callable[..., Engine]
) -> None:
    engine, path = make_engine(replay=False), tmp_path / "frames"
    engine.publish(6)
    with Recording(path, engine) as recording:
        until(lambda: engine.publisher.subscribers > 0, what="a subscription")
        engine.publish(4)
        recording.has(4)
    sent = sent_by(engine)
    assert frames_of(path) == sent[-len(frames_of(path)) :]
    with Capture(path) as capture:
        records = CaptureRecords(capture)
        table = ReplayedTable(open_kernel(SEED), records)
        fold_capture(records, table, total=None)
        assert table.counters["lost_batches"] == 10 - len(frames_of(path)) > 0
        assert table.publishers[engine.registration.publisher].degraded_since == 0


def test_messages_of_four_frames_are_captured_as_they_came(tmp_path: Path) -> None:
    """Of Dynamo's event plane; the sequence is the third frame."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sender = context.socket(zmq.XPUB)
    sender.bind("tcp://127.0.0.1:0")
    source = CapturedPublisher(endpoint=sender.get_string(zmq.LAST_ENDPOINT).rstrip("\0"))
    messages = [
        [b"kv-events", bytes(8), number.to_bytes(8, "big"), b"payload"] for number in range(3)
    ]
    recording = threading.Thread(
        target=capture_frames,
        args=([source], tmp_path / "frames"),
        kwargs={"created_by": "test", "limit": len(messages)},
    )
    recording.start()
    assert sender.poll(10_000), "nobody has subscribed"
    for frames in messages:
        sender.send_multipart(frames)
    recording.join()
    context.destroy(linger=0)
    assert frames_of(tmp_path / "frames") == messages


def test_an_engine_that_restarts_is_captured_as_two_incarnations(
    tmp_path: Path, make_engine: Callable[..., Engine]
) -> None:
    engine, path = make_engine(), tmp_path / "frames"
    with Recording(path, engine) as recording:
        engine.publish(8)
        recording.has(8)
        before = sent_by(engine)
        engine.restart()
        engine.publish(12)
        recording.has(20)
    assert frames_of(path) == before + sent_by(engine)
    assert digests(path) == bridged(engine)
    with Capture(path) as capture:
        records = CaptureRecords(capture)
        table = ReplayedTable(open_kernel(SEED), records)
        fold_capture(records, table, total=None)
        assert table.publishers[engine.registration.publisher].incarnation == 2


def test_several_engines_are_lanes_of_one_file(
    tmp_path: Path, make_engine: Callable[..., Engine]
) -> None:
    engines = [make_engine("a"), make_engine("b")]
    path = tmp_path / "frames"
    with Recording(path, *engines) as recording:
        for engine in engines:
            engine.publish(10)
        recording.has(20)
    for lane, engine in enumerate(engines):
        assert frames_of(path, lane) == sent_by(engine)
    assert digests(path) == bridged(*engines)


def test_a_limit_ends_it(tmp_path: Path, make_engine: Callable[..., Engine]) -> None:
    engine, path = make_engine(), tmp_path / "frames"
    publish_before(engine, 30)
    summary = capture_frames([source_of(engine)], path, created_by="test", limit=10)
    assert (summary.entries, summary.ended) == (10, "complete")
    assert frames_of(path) == sent_by(engine)[:10]


def test_time_ends_it_where_no_engine_is(tmp_path: Path) -> None:
    nobody = CapturedPublisher(endpoint="tcp://127.0.0.1:1", replay_endpoint="tcp://127.0.0.1:1")
    summary = capture_frames([nobody], tmp_path / "x", created_by="test", seconds=0.3)
    assert (summary.entries, summary.ended) == (0, "complete")


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="Expected an address such as"):
        capture_frames([CapturedPublisher(endpoint="x")], tmp_path / "x", created_by="test")


def test_what_an_engine_is_may_be_said_later(
    tmp_path: Path, make_engine: Callable[..., Engine]
) -> None:
    engine, path = make_engine(), tmp_path / "frames"
    engine.publish(9)
    capture_frames([source_of(engine, named=False)], path, created_by="test", limit=9)
    with pytest.raises(CaptureError, match="Give --model and --block-size"):
        digests(path)
    assert digests(path, {0: engine.registration}) == bridged(engine)
    renamed = msgspec.structs.replace(engine.registration, instance_id="z")
    (name,) = digests(path, {0: renamed})
    assert name.endswith(" / z")
