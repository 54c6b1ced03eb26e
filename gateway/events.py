"""A stream of server-sent events on its way to the client. Pure.

What comes is passed on as it came, but for the event that says how many tokens there were, where
the gateway asked for that event and the client did not. Then an event that has come in part is kept
until the rest is there.

Events of `/v1/responses` have names. The first ones say that the request was taken, before the
engine has computed anything; one of a few is the last.

Source: OpenAI's API; vLLM 0.32 (`entrypoints/openai/responses`).
"""

import re
from collections.abc import Iterator
from typing import Final

from gateway.usage import Usage, read_usage
from schemas.limits import KIB

GATEWAY_EVENT_BYTES_MAX: Final = 256 * KIB  # an event that is larger is passed on as it comes

_ENDS: Final = (b"\r\n\r\n", b"\r\n\n", b"\n\r\n", b"\n\n", b"\r\r")
_END: Final = re.compile(b"|".join(_ENDS))  # the longer ones first
_USAGE: Final = b'"usage"'
_DONE: Final = b"[DONE]"
_LAST_BYTES: Final = len(_DONE) + max(map(len, _ENDS))
_NAME: Final = re.compile(rb"^event: ?([a-z_.]+)\r?\n", re.MULTILINE)
_TAKEN: Final = frozenset({b"response.created", b"response.queued", b"response.in_progress"})
_LAST_ONES: Final = frozenset(
    {b"response.completed", b"response.incomplete", b"response.failed", b"error"}
)


class EventStream:
    """See the module.

    Args:
        leaves_out: whether the event with nothing but usage is left out.
        are_named: whether it is one of `/v1/responses`.

    Attributes:
        has_begun: whether something came that the engine has computed.
        usage: as it was said last; None where it was not.
    """

    def __init__(self, *, leaves_out: bool, are_named: bool = False) -> None:
        self.has_begun = False
        self.usage: Usage | None = None
        self._are_named = are_named
        self._name = b""
        self._leaves_out = leaves_out
        self._part = b""  # of an event that has not come whole
        self._is_large = False  # what comes is the rest of an event above the bound
        self._last = b""

    @property
    def is_between(self) -> bool:
        """Whether the client has whole events, and no part of another one."""
        return not self._last or self._last.endswith(_ENDS)

    @property
    def is_done(self) -> bool:
        """Whether the last event says that it is the last one."""
        if self._are_named:
            return self._name in _LAST_ONES and self.is_between
        return self._last.rstrip().endswith(_DONE)

    @property
    def is_last(self) -> bool:
        """Whether what came ends with the last event, all of it."""
        return self.is_done and self.is_between

    def feed(self, piece: bytes) -> bytes:
        """What is to be passed on now. Cost O(bytes): two searches where usage is not named."""
        data = self._part + piece if self._part else piece
        if self._are_named:
            names = _NAME.findall(data)
            self._name = names[-1] if names else self._name
            self.has_begun = self.has_begun or not _TAKEN.issuperset(names)
        else:
            self.has_begun = True
        end = _end_of(data)
        whole, rest = data[:end], data[end:]
        passed = self._read(whole) if _USAGE in whole else whole
        if end:
            self._is_large = False
        if self._is_large or len(rest) > GATEWAY_EVENT_BYTES_MAX:
            self._is_large = True
            passed, rest = passed + rest, b""
        self._part = rest
        return self._note(passed if self._leaves_out else piece)

    def end(self) -> bytes:
        """What is to be passed on at the end: of an event that has none."""
        part, self._part = self._part, b""
        return self._note(part) if self._leaves_out else b""

    def _note(self, passed: bytes) -> bytes:
        if passed:
            self._last = (self._last + passed[-_LAST_BYTES:])[-_LAST_BYTES:]
        return passed

    def _read(self, events: bytes) -> bytes:
        """Whole events, one of which speaks of usage."""
        kept = []
        for event in _split(events):
            if _USAGE in event:
                said = read_usage(_data_of(event))
                if said is not None:
                    self.usage = said.usage
                    if said.is_alone:
                        continue
            kept.append(event)
        return b"".join(kept)


def _end_of(data: bytes) -> int:
    """Where the last whole event ends; 0 where there is none."""
    if data.endswith(_ENDS):
        return len(data)
    return max((at + len(end) for end in _ENDS if (at := data.rfind(end)) >= 0), default=0)


def _split(events: bytes) -> Iterator[bytes]:
    """Each with its end: a line of any kind that is empty."""
    start = 0
    for end in _END.finditer(events):
        yield events[start : end.end()]
        start = end.end()


def _data_of(event: bytes) -> bytes:
    """What its lines of data say together."""
    lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)
