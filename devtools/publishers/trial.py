"""Tries one version: a released engine's own code, or the frames that were captured of it."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypedDict

import zmq

from bridge.wire import KINDS
from devtools.publishers.released import ReleasedEngine
from devtools.publishers.releases import Release
from devtools.publishers.sample_events import CLEARED, batches
from devtools.publishers.trial_row import Frames, TrialRow, try_messages
from schemas.registration import PublisherKind

VECTORS: Final = Path(__file__).parents[2] / "tests" / "vectors"
END: Final = b"\xff" * 8
_TIME_S: Final = 1_700_000_000.5
_WAIT_MS: Final = 5000
_SUBSCRIPTION_MS: Final = 50
_SUBSCRIPTION_LOOKS: Final = 200


class Vector(TypedDict):
    """One line of a file of captured frames; see tests/vectors/README.md."""

    kind: str
    case: str
    frames_hex: list[str]


class SilentEngineError(Exception):
    """A released engine's publisher sends nothing."""


class CapturedFileError(Exception):
    """A file of captured frames is of no kind."""


def try_release(release: Release) -> TrialRow:
    """Runs the release's publisher over ZeroMQ, in a directory of its own.

    Raises:
        SilentEngineError: it does not send what it was given.
        ReplayDiffersError: see there.
    """
    with tempfile.TemporaryDirectory(prefix="reprise-") as directory:
        endpoint, replay_endpoint = f"ipc://{directory}/live", f"ipc://{directory}/replay"
        with (
            zmq.Context() as context,
            context.socket(zmq.SUB) as subscriber,
            context.socket(zmq.DEALER) as asking,
            ReleasedEngine(release, endpoint, replay_endpoint) as engine,
        ):
            subscriber.connect(endpoint)
            live = _live(subscriber, engine)
            asking.linger = 0
            asking.connect(replay_endpoint)
            replies = _replies(asking, live[0][1])
    return try_messages(release.kind, release.version, code=True, live=live, replies=replies)


def _live(subscriber: "zmq.Socket[bytes]", engine: ReleasedEngine) -> list[Frames]:
    subscriber.subscribe(b"")
    greetings = 0
    for _ in range(_SUBSCRIPTION_LOOKS):
        engine.publish(CLEARED)  # nothing tells when the subscription has arrived but a message
        greetings += 1
        if subscriber.poll(_SUBSCRIPTION_MS):
            break
    engine.publish_all(batches(engine.fields), ts=_TIME_S)
    wanted = len(batches(engine.fields))
    messages: list[Frames] = []
    while len(messages) < wanted:
        if not subscriber.poll(_WAIT_MS):
            raise SilentEngineError(f"Expected {wanted} messages, got {len(messages)}")
        message = subscriber.recv_multipart()
        if int.from_bytes(message[1], "big") >= greetings:
            messages.append(message)
    return messages


def _replies(asking: "zmq.Socket[bytes]", first: bytes) -> list[Frames]:
    """All replies from that sequence on, the end marker included."""
    asking.send_multipart([b"", first])
    replies: list[Frames] = []
    while not replies or replies[-1][-2:] != [END, b""]:
        if not asking.poll(_WAIT_MS):
            raise SilentEngineError(f"Expected the end of a replay after {len(replies)} replies")
        replies.append(asking.recv_multipart())
    return replies


def captured_files() -> list[Path]:
    """Those with frames, in order of their names."""
    return [path for path in sorted(VECTORS.glob("*.jsonl")) if _has_frames(path)]


def try_captured(path: Path) -> TrialRow:
    """Decodes the frames of `<kind>-<version>.jsonl`, the kind in small letters.

    Raises:
        CapturedFileError: the name begins with no kind.
        ReplayDiffersError: see there.
    """
    kind = _kind_of(path)
    vectors: list[Vector] = [json.loads(line) for line in path.read_text().splitlines()]
    return try_messages(
        kind,
        path.stem[len(kind) + 1 :],
        code=False,
        live=_frames(vectors, "live", ""),
        replies=_frames(vectors, "replay", "reply"),
    )


def _has_frames(path: Path) -> bool:
    with path.open() as lines:
        return "frames_hex" in json.loads(next(lines))


def _frames(vectors: Sequence[Vector], kind: str, case: str) -> list[Frames]:
    return [
        [bytes.fromhex(frame) for frame in vector["frames_hex"]]
        for vector in vectors
        if vector["kind"] == kind and vector["case"].startswith(case)
    ]


def _kind_of(path: Path) -> PublisherKind:
    kinds = [kind for kind in KINDS if path.name.startswith(f"{kind.lower()}-")]
    if not kinds:
        raise CapturedFileError(f"{path}: expected a name that begins with one of {KINDS}")
    return max(kinds, key=len)
