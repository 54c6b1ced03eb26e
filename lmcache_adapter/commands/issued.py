"""The commands that one process has issued, and who waits for their ends. One loop.

What a service of any form does with commands alike: what it has under way is bounded, the book is
told what its log has, and whoever waits for a command is told of its end.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from typing import ClassVar, Final

import msgspec

from lmcache_adapter.bounds import COMMAND_WRITE_S
from lmcache_adapter.commands.book import CommandBook, CommandView
from logs.loop_thread import LoopThread
from query_api.http.errors import RequestError
from schemas.command_records import AnyCommandRecord, CommandRecord
from schemas.limits import COMMANDS_WAITING_MAX
from schemas.tracing import NO_TRACER, Attribute, Span, SpanName, Tracer, split_context

# What is above a bound: status="503", reason="too_many_commands".
COMMANDS_WAITING_TOKENS_MAX: Final = 8_388_608  # of all commands that wait

TOO_MANY: Final = "too_many_commands"
UNWRITTEN: Final = "unwritten"
"""What the span of a command says that the log did not take."""

_ID: Final = "reprise.command.id"
_STATE: Final = "reprise.command.state"


class IssuedCommands:
    """See the module.

    Attributes:
        book: what became of the last commands.
        refused: commands that found no room.
    """

    def __init__(self, tracer: Tracer = NO_TRACER) -> None:
        """`tracer`: of the service."""
        self._tracer = tracer
        self._spans: dict[str, Span] = {}
        self.book = CommandBook()
        self.refused = 0
        self._waited: dict[str, asyncio.Future[CommandView]] = {}
        self._tokens: dict[str, int] = {}

    @property
    def waiting(self) -> int:
        """Commands that were issued here, and have not ended."""
        return len(self._waited)

    def admit(self, command: CommandRecord) -> CommandRecord:
        """Makes room for a command, before the log has it.

        Returns:
            It, with the context of its span, which goes on until the command has ended.

        Raises:
            RequestError: too many are under way.
        """
        tokens = len(command.tokens or b"") // 4
        is_full = len(self._waited) >= COMMANDS_WAITING_MAX
        if is_full or sum(self._tokens.values()) + tokens > COMMANDS_WAITING_TOKENS_MAX:
            self.refused += 1
            text = "Too many commands are under way; try again when some have ended"
            raise RequestError(TOO_MANY, text, status=503)
        self._tokens[command.command_id] = tokens
        self._waited[command.command_id] = asyncio.get_running_loop().create_future()
        span = self._tracer.begin(SpanName.COMMAND, command.context)
        if span.is_recorded:
            self._spans[command.command_id] = span
        traceparent, tracestate = split_context(span.context)
        return msgspec.structs.replace(command, traceparent=traceparent, tracestate=tracestate)

    def withdraw(self, command_id: str) -> None:
        """The log does not have it: nobody is to wait for it."""
        self._tokens.pop(command_id, None)
        self._waited.pop(command_id, None)
        span = self._spans.pop(command_id, None)
        if span is not None:
            with span:
                span.note({_ID: command_id, _STATE: UNWRITTEN})

    def take(self, record: AnyCommandRecord) -> None:
        """Folds what the log has, and tells who waits."""
        ended = self.book.take(record)
        if ended is None:
            return
        span = self._spans.pop(ended.command.command_id, None)
        if span is not None:
            with span:
                span.note(_attributes(ended))
        self._tokens.pop(ended.command.command_id, None)
        waited = self._waited.pop(ended.command.command_id, None)
        if waited is not None and not waited.done():
            waited.set_result(ended)

    async def ended(self, command_id: str) -> CommandView | None:
        """The command once it has ended, however long that takes; None where it is not known."""
        waited = self._waited.get(command_id)
        if waited is not None:
            return await asyncio.shield(waited)
        return self.book.find(command_id)


class ThreadCommands(ABC):
    """Implements `lmcache_adapter.ports.WorkerCommands` by a thread, of which any loop may ask.

    Attributes:
        issued: who waits, and what became of the last commands.
    """

    issued: IssuedCommands
    _thread: LoopThread
    _issue_s: ClassVar[float]
    _ended_s: ClassVar[float]
    _unread: ClassVar[str]

    @property
    def book(self) -> CommandBook:
        """What became of the last commands."""
        return self.issued.book

    # On the thread

    @abstractmethod
    async def _issue(self, command: CommandRecord) -> None: ...

    @abstractmethod
    async def _ended(self, command_id: str) -> CommandView | None: ...

    @abstractmethod
    async def _find(self, command_id: str) -> CommandView | None: ...

    @abstractmethod
    async def _latest(self, limit: int, origin: str | None, since: float) -> list[CommandView]: ...

    # Called by other threads

    async def issue(self, command: CommandRecord) -> None:
        """See `WorkerCommands`."""
        await self._thread.call(self._issue(command), self._issue_s, self._unread)

    async def ended(self, command_id: str) -> CommandView | None:
        """See `WorkerCommands`."""
        return await self._thread.call(self._ended(command_id), self._ended_s, self._unread)

    async def find(self, command_id: str) -> CommandView | None:
        """See `WorkerCommands`."""
        return await self._thread.call(self._find(command_id), COMMAND_WRITE_S, self._unread)

    async def latest(
        self, limit: int, *, origin: str | None = None, since: float = 0.0
    ) -> list[CommandView]:
        """See `WorkerCommands`."""
        found = self._latest(limit, origin, since)
        return await self._thread.call(found, COMMAND_WRITE_S, self._unread)


def _attributes(ended: CommandView) -> dict[str, Attribute]:
    """What the span of a command says; texts of workers are not among it."""
    command = ended.command
    attributes: dict[str, Attribute] = {
        _ID: command.command_id,
        _STATE: ended.state,
        "reprise.command.action": command.action,
        "reprise.command.workers": len(command.workers),
        "reprise.command.tokens": ended.tokens,
        "reprise.instance": command.instance_id,
    }
    if command.origin:
        attributes["reprise.command.origin"] = command.origin
    outcomes = Counter(one.outcome for one in ended.results)
    return attributes | {f"reprise.command.results.{name}": n for name, n in outcomes.items()}
