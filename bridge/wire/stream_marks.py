"""What a message says of its place beyond its number, in its first frame: a stream that is asked
anew may begin with all that its engine has done, or with a snapshot of what it holds; and numbers
may be of something that is not asked for.

    begin           batch 0, behind which all follow that the engine has sent
    chunk 2/5 17    the third of five parts of a snapshot, which lacks what 17 batches had stored
                    that its maker never saw
    skips 3         the 3 numbers before it are of no batch of this publisher; also behind either

Every other topic, and none, says nothing.
"""

import re
from typing import Final, NamedTuple

_CHUNK: Final = re.compile(rb"chunk (\d{1,10})/(\d{1,10}) (\d{1,20})")
_BEGIN: Final = b"begin"
_SKIPS: Final = re.compile(rb"(?:(.+) )?skips (\d{1,19})")


class WholeMark(NamedTuple):
    """That what begins here is all that its publisher holds, whatever was known before.

    Attributes:
        part: which one this is, from 0.
        parts: of how many.
        unknown_before: batches that its maker never saw: what they stored may be missing.
    """

    part: int = 0
    parts: int = 1
    unknown_before: int = 0

    @property
    def begins(self) -> bool:
        """Whether this is the first part."""
        return not self.part

    @property
    def ends(self) -> bool:
        """Whether this is the last one."""
        return self.part + 1 >= self.parts

    @property
    def topic(self) -> bytes:
        """The first frame that says so."""
        if self == WholeMark():
            return _BEGIN
        return f"chunk {self.part}/{self.parts} {self.unknown_before}".encode()


def topic_of(mark: WholeMark | None, skipped: int) -> bytes:
    """The first frame that says so; `skipped`: numbers before it that are of no batch."""
    said = [mark.topic] if mark else []
    return b" ".join([*said, b"skips %d" % skipped] if skipped else said)


def read_topic(topic: bytes) -> tuple[WholeMark | None, int]:
    """What a first frame says: the mark, None for none; and how many numbers are skipped."""
    skips = _SKIPS.fullmatch(topic)
    if skips is None:
        return _mark_of(topic), 0
    return _mark_of(skips[1] or b""), int(skips[2])


def _mark_of(topic: bytes) -> WholeMark | None:
    if topic == _BEGIN:
        return WholeMark()
    found = _CHUNK.fullmatch(topic)
    return None if found is None else WholeMark(*map(int, found.groups()))
