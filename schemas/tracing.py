"""Traces: the context of a span as W3C's headers spell it, and how spans are made.

A **context** is text: a `traceparent`, and behind a space the `tracestate` that came with it, where
one did; "" for none. Records and messages have the two apart (`split_context`).

The rooms know no more of tracing than this. `NO_TRACER` is what they have where it is off; what
sends spans anywhere is `reprise.tracing`.

Attributes name and count. Tokens, prompts, hashes and texts of errors are never among them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import TracebackType
from typing import Final, Protocol, Self

from schemas.limits import TRACESTATE_CHARS_MAX

# A collector that is slow or away costs spans, and nothing else: reprise_spans_dropped_total by
# reason.
TRACESTATE_MEMBERS_MAX: Final = 32  # of a `tracestate`: W3C's own bound; a longer one is left out

Attribute = str | int | float
Attributes = Mapping[str, Attribute]

_CONTEXT: Final = re.compile(r"(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_VERSION: Final = re.compile(r"[0-9a-f]{2}-")
_FIRST: Final = "00-"
_INVALID: Final = "ff-"
_SAMPLED: Final = 1


_MEMBER: Final = re.compile(
    r"((?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13}))"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


class SpanName(StrEnum):
    """What spans are called."""

    QUERY = "reprise.query"
    ROUTE = "reprise.route"
    REFUSED = "reprise.route.refused"
    FEEDBACK = "reprise.feedback"
    APPEND = "bridge.append"
    FOLD = "worker.fold"
    COMMAND = "command"
    EXECUTE = "command.execute"


class SpanContext(tuple[int, int, int]):
    """Trace, span and flags, as numbers; both ids are above 0."""

    __slots__ = ()


def read_traceparent(text: str) -> str:
    """A `traceparent` as version 00 spells it, 55 characters; "" for what is none, which is to be
    ignored.

    Of a version above 00 what may follow is passed over, and only the flag of sampling counts, as
    W3C has it. Some 0.6 us.
    """
    if text.startswith(_FIRST):
        return text if _CONTEXT.fullmatch(text, 3) else ""
    found = _CONTEXT.match(text, 3)
    if found is None or not _VERSION.match(text) or text.startswith(_INVALID):
        return ""
    end = found.end()
    if text[end : end + 1] not in ("", "-"):
        return ""
    return f"{_FIRST}{text[3 : end - 2]}{int(text[end - 2 : end], 16) & _SAMPLED:02x}"


def read_tracestate(texts: Sequence[str]) -> str:
    """A `tracestate` as it is handed on, of one header or several, in their order; "" for what is
    none, or above the bounds, which is to be left out: the `traceparent` counts all the same.
    """
    joined = ",".join(texts)
    if len(joined) > 2 * TRACESTATE_CHARS_MAX:  # spaces round members do not count
        return ""
    members = [member for one in joined.split(",") if (member := one.strip(" \t"))]
    found = [_MEMBER.fullmatch(member) for member in members]
    keys = {one[1] for one in found if one is not None}
    if len(keys) != len(members) or len(members) > TRACESTATE_MEMBERS_MAX:
        return ""  # what is no member, or there twice
    state = ",".join(members)
    return state if len(state) <= TRACESTATE_CHARS_MAX else ""


def join_context(traceparent: str, tracestate: str) -> str:
    """The context of both; "" without a `traceparent`."""
    return f"{traceparent} {tracestate}" if traceparent and tracestate else traceparent


def split_context(context: str) -> tuple[str, str]:
    """The inverse of `join_context`."""
    traceparent, _, tracestate = context.partition(" ")
    return traceparent, tracestate


def parse_traceparent(text: str) -> SpanContext | None:
    """The context that a `traceparent` names; None for what is none. Some 1.5 us."""
    read = read_traceparent(text)
    if not read:
        return None
    _, trace, span, flags = read.split("-")
    return SpanContext((int(trace, 16), int(span, 16), int(flags, 16)))


def format_traceparent(context: SpanContext) -> str:
    """The inverse of `parse_traceparent`."""
    trace, span, flags = context
    return f"{_FIRST}{trace:032x}-{span:016x}-{flags:02x}"


class Span(Protocol):
    """Something that takes time; it ends with its `with`, and an exception makes it an error."""

    @property
    def is_recorded(self) -> bool:
        """Whether it goes anywhere: what is noted of others need not be made."""
        ...

    @property
    def context(self) -> str:
        """What whoever goes on with the trace is to have as its parent: this span where it is
        recorded, else what it was begun with. "" for none.
        """
        ...

    def rename(self, name: SpanName) -> None:
        """It was something else than it began as."""
        ...

    def note(self, attributes: Attributes) -> None:
        """What is known of it."""
        ...

    def link(self, context: str) -> None:
        """It has to do with that span, too; what is no context is ignored."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Tracer(Protocol):
    """Makes spans. Any thread may call it, and none waits."""

    @property
    def is_on(self) -> bool:
        """Whether spans may be recorded."""
        ...

    def begin(self, name: SpanName, context: str = "", links: Iterable[str] = ()) -> Span:
        """A span that begins now.

        Args:
            context: its parent; "", or no context: it begins a trace.
            links: contexts of other spans that it has to do with.
        """
        ...

    def begin_alone(self, name: SpanName) -> Span:
        """The span of a batch that has to do with no trace, and begins one now; few of those are
        recorded.
        """
        ...

    def batch(
        self, name: SpanName, began_ns: int, contexts: Iterable[str], attributes: Attributes
    ) -> str:
        """Records that a batch was worked on, until now; returns the span's context, or "" where it
        is not recorded.

        It is a child of the first of the contexts that is sampled, and linked to them all. One that
        has to do with no trace is the first span of its own, and few of those are recorded.

        Args:
            began_ns: when it began, Unix nanoseconds.
            contexts: of the traces that have something in it; what is none is ignored.
            attributes: what is known of it.
        """
        ...


def batch_attributes(
    log: str, records: int, partition: int, last: int, *, topic: str = ""
) -> dict[str, Attribute]:
    """What the span of a batch says.

    Args:
        log: which one: `events` or `routing`.
        partition: of the log; the embedded one has 0 alone.
        last: offset of the last record.
        topic: that the log is, in Kafka.
    """
    attributes: dict[str, Attribute] = {
        "messaging.batch.message_count": records,
        "reprise.log": log,
        "reprise.position": f"{partition}:{last}",
    }
    if topic:
        attributes["messaging.destination.name"] = topic
        attributes["messaging.destination.partition.id"] = str(partition)
    return attributes


class _Unrecorded:
    """A span that goes nowhere."""

    __slots__ = ("context",)

    is_recorded = False

    def __init__(self, context: str) -> None:
        self.context = context

    def rename(self, name: SpanName) -> None:
        """See `Span`."""

    def note(self, attributes: Attributes) -> None:
        """See `Span`."""

    def link(self, context: str) -> None:
        """See `Span`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class _NoTracer:
    """Tracing that is off. Some 0.3 us a span."""

    is_on = False

    def begin(self, name: SpanName, context: str = "", links: Iterable[str] = ()) -> Span:
        """See `Tracer`."""
        return _Unrecorded(context) if context else NO_SPAN

    def begin_alone(self, name: SpanName) -> Span:
        """See `Tracer`."""
        return NO_SPAN

    def batch(
        self, name: SpanName, began_ns: int, contexts: Iterable[str], attributes: Attributes
    ) -> str:
        """See `Tracer`."""
        return ""


NO_SPAN: Final[Span] = _Unrecorded("")
NO_TRACER: Final[Tracer] = _NoTracer()
