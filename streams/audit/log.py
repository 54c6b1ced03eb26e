"""The log of answers: an embedded log whose data files are never merged (`storage.rocksdb`)."""

from typing import ClassVar, Final

from logs.embedded import EmbeddedLog, ReadOnlyLog
from storage.rocksdb import ANSWERS, Preset

DIRECTORY: Final = "answers"
"""Where it is, in the directory of the data."""


class AnswersLog(EmbeddedLog):
    """See `EmbeddedLog`."""

    _preset: ClassVar[Preset] = ANSWERS


class ReadOnlyAnswers(ReadOnlyLog):
    """See `ReadOnlyLog`."""

    _preset: ClassVar[Preset] = ANSWERS
