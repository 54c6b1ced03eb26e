"""The records of a capture of either kind: those of frames are what a bridge would have written.

Frames pass the bridge's own decoders and its sequencer, in windows of the time in which they came,
so that a capture always gives the same records.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from bridge.link_numbers import NO_LINK, next_of
from bridge.publisher.counters import PublisherCounters
from bridge.publisher.sequencer import Intake, Sequencer
from bridge.sockets.raw_message import RawMessage
from replay.capture.errors import CaptureDamagedError, CaptureError
from replay.capture.format import (
    CaptureEntry,
    CaptureKind,
    EntryFlag,
    MalformedError,
    decode_frames,
)
from replay.capture.reader import Capture
from schemas.arrays import ArrayPacker
from schemas.identities import PublisherKey
from schemas.limits import MESSAGE_FRAMES_MAX, RECORD_WINDOW_MS, TURN_BYTES_MAX, TURN_MESSAGES_MAX
from schemas.records import RegisteredRecord, SequencedRecord, encode_record
from schemas.registration import Registration

_NEW_LINK: Final = int(EntryFlag.NEW_LINK)

PARTITION: Final = 0
"""Of the records that frames become."""


class SequencingResult(NamedTuple):
    """What frames came to.

    Attributes:
        dropped: messages, batches and events that could not be used, by reason.
        gaps: batches that are missing.
        restarts: of publishers.
        duplicates: batches that had come before.
    """

    messages: int
    dropped: Mapping[str, int]
    gaps: int
    restarts: int
    duplicates: int


class CaptureRecords:
    """The records of a capture, in the order in which they were written or would have been.

    Args:
        packer: of frames' events; the kernel's where there is one.
        registrations: of the publishers of frames, by lane, where the header has none, or another
            one is wanted.

    Raises:
        CaptureError: of a publisher of frames it is not known what it is.
    """

    def __init__(
        self,
        capture: Capture,
        packer: ArrayPacker | None = None,
        registrations: Mapping[int, Registration] | None = None,
    ) -> None:
        self._capture = capture
        self._packer = packer
        self._sequencers: dict[PublisherKey, Sequencer] = {}
        self._intake = Intake(self._sequencers.get)
        self._registrations: list[Registration] = []
        self._messages = 0
        if capture.header.kind is CaptureKind.FRAMES:
            given = registrations or {}
            self._registrations = [
                self._registration(lane, given.get(lane)) for lane in capture.lanes
            ]
        # The same objects each time, by which the sequencer tells messages that follow on.
        self._publishers = [one.publisher for one in self._registrations]

    def _registration(self, lane: int, given: Registration | None) -> Registration:
        publishers = self._capture.header.publishers
        named = publishers[lane].registration if lane < len(publishers) else None
        registration = given or named
        if registration is None:
            raise CaptureError(
                f"Expected a capture that says what its publisher {lane} is, but nothing was given"
                f" when it was made: {self._capture.path}. Give --model and --block-size (and"
                " --instance, --type, --tenant where they are not the default)"
            )
        if registration.publisher in self._sequencers:
            raise CaptureError(
                f"Expected publishers that differ in their instance or rank, got two of:"
                f" {registration.service_key}. Give --instance once for each"
            )
        self._sequencers[registration.publisher] = Sequencer(registration, packer=self._packer)
        return registration

    @property
    def sequenced(self) -> SequencingResult:
        """What the frames came to; of a capture of records all is 0."""
        counters = list(self.counters.values())
        dropped: Counter[str] = Counter()
        for one in counters:
            dropped.update(one.dropped)
        return SequencingResult(
            messages=self._messages,
            dropped=dropped,
            gaps=sum(one.lost_batches for one in counters),
            restarts=sum(one.restarts for one in counters),
            duplicates=sum(one.duplicates for one in counters),
        )

    @property
    def counters(self) -> Mapping[PublisherKey, PublisherCounters]:
        """What the frames of each publisher came to; of a capture of records none."""
        return {name: one.stream.counters for name, one in self._sequencers.items()}

    def unproven_before(self, partition: int) -> int:
        """See `Capture.unproven_before`."""
        return self._capture.unproven_before(partition)

    @property
    def partitions(self) -> list[int]:
        """Those of the records."""
        return [PARTITION] if self._registrations else self._capture.lanes

    def __iter__(self) -> Iterator[CaptureEntry]:
        """The records; once.

        Raises:
            CaptureDamagedError: what is read is not as it was written.
        """
        return self._of_frames() if self._registrations else self._capture.merged()

    def _of_frames(self) -> Iterator[CaptureEntry]:
        offset = 0
        for time, records in self._windows():
            for record in records:
                yield CaptureEntry(PARTITION, offset, time, encode_record(record))
                offset += 1

    def _windows(self) -> Iterator[tuple[float, list[RegisteredRecord] | list[SequencedRecord]]]:
        links = [next_of(NO_LINK)] * len(self._registrations)
        publishers, seen = self._publishers, set[int]()
        window: list[RawMessage] = []
        ends_at, begun_at, left_bytes = 0.0, 0.0, 0
        for entry in self._capture.merged():
            lane, position, time, value, flags = entry
            if window and (time >= ends_at or left_bytes <= 0 or len(window) >= TURN_MESSAGES_MAX):
                yield begun_at, self._intake.process(window, begun_at)
                self._messages += len(window)
                window = []
            if not window:
                begun_at, ends_at = time, time + RECORD_WINDOW_MS / 1000
                left_bytes = TURN_BYTES_MAX
            if lane not in seen:
                seen.add(lane)
                yield time, [self._registered(lane, time)]
            if flags & _NEW_LINK:
                links[lane] = next_of(links[lane])
            frames = self._frames_of(lane, position, value)
            window.append(RawMessage(publishers[lane], frames, time, links[lane]))
            left_bytes -= len(value)
        if window:
            yield begun_at, self._intake.process(window, begun_at)
            self._messages += len(window)

    def _registered(self, lane: int, time: float) -> RegisteredRecord:
        return RegisteredRecord.of(self._registrations[lane], time)

    def _frames_of(self, lane: int, position: int, value: bytes) -> list[bytes]:
        try:
            frames = decode_frames(value)
        except MalformedError as error:
            detail = f"{error}, number {position} of publisher {lane}"
            raise CaptureDamagedError(str(self._capture.path), 0, detail) from error
        # One of more frames cannot come, and one of fewer is counted by the decoder.
        return frames if len(frames) <= MESSAGE_FRAMES_MAX else frames[: MESSAGE_FRAMES_MAX + 1]
