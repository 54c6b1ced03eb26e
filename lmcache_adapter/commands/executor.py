"""A command at all of its workers at once: a result of each, within COMMAND_ANSWER_S. One loop.

Nothing here runs on the thread that answers workers; that is asked where they are, once for each
command.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from lmcache_adapter.bounds import COMMAND_ANSWER_S
from lmcache_adapter.commands.exchange import Exchanges, NoAnswerError, NotAskedError
from lmcache_adapter.controller.member import WorkerAddress
from lmcache_adapter.wire.commands import (
    ANSWERED_BY_ERROR,
    Reply,
    read_reply,
    request_of,
    unsupported,
)
from schemas.clock import REAL_CLOCK
from schemas.command_records import CommandOutcome, CommandRecord, CommandWorker, ResultRecord
from schemas.limits import NAME_BYTES_MAX
from schemas.tracing import NO_TRACER, Span, SpanName, Tracer

# What is above a bound is `refused`; reprise_lmcache_commands_refused_total by reason.
LMCACHE_COMMANDS_MAX: Final = 512  # that a bridge has under way: reason="too_many_commands"
LMCACHE_COMMAND_TOKENS_MAX: Final = 8_388_608  # of all of them: the same reason
LMCACHE_COMMAND_LATE_S: Final = COMMAND_ANSWER_S  # since a command was issued: reason="late"

_logger = logging.getLogger(__name__)

TOO_MANY: Final = "too_many_commands"
LATE: Final = "late"
LINK_DOWN: Final = "link_down"
NOT_REGISTERED: Final = "not_registered"
NOT_LOCATED: Final = "not_located"


WorkerLocator = Callable[[str], Awaitable[Mapping[int, WorkerAddress]]]
"""The workers of an instance that are connected here, by rank. Raises TimeoutError."""

ResultSink = Callable[[ResultRecord], None]


class Executor:
    """See the module.

    Args:
        is_sole: whether all workers are connected here. Else one that is not is none of ours:
            whoever has it executes the command, and nothing is reported of it.
        tracer: of the process. Who executes nothing of a command has no span of it.
        clock: Unix seconds.

    Attributes:
        outcomes: results, by outcome.
        refused: results of workers that were not asked, by reason.
        faults: unexpected errors.
        under_way: commands that are being executed.
    """

    def __init__(
        self,
        locate: WorkerLocator,
        *,
        is_sole: bool,
        tracer: Tracer = NO_TRACER,
        clock: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        self._clock = clock
        self.outcomes: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.faults = 0
        self._locate = locate
        self._is_sole = is_sole
        self._tracer = tracer
        self._exchanges = Exchanges()
        self.under_way = 0
        self._tokens = 0

    @property
    def replaced(self) -> int:
        """Sockets that were closed since no answer came."""
        return self._exchanges.replaced

    def close(self) -> None:
        """Closes the links; on the loop."""
        self._exchanges.close()

    async def execute(
        self, command: CommandRecord, report: ResultSink, *, is_before: bool = False
    ) -> None:
        """Executes it, and reports a result of each worker as soon as there is one.

        `is_before`: it was issued before commands were read here. A worker that was not linked here
        by then may have executed it through another bridge, and is not asked.
        """
        loop = asyncio.get_running_loop()
        age_s = max(self._clock() - command.issued_at, 0.0)
        until = loop.time() + max(COMMAND_ANSWER_S - age_s, 0.0)
        tokens = len(command.tokens or b"") // 4
        run = _Run(command, report, loop.time(), until)
        reason = self._refusal(age_s, tokens)
        self.under_way += 1
        self._tokens += tokens
        try:
            found = await self._located(command, until)
            if found is None:
                run = run._replace(missing=NOT_LOCATED)
            by = command.issued_at if is_before else math.inf
            mine = [one for one in command.workers if self._is_mine(found, one.worker_id, by)]
            if mine:
                with self._tracer.begin(SpanName.EXECUTE, command.context) as span:
                    await self._execute_at_all(run, mine, found or {}, reason, span)
        finally:
            self.under_way -= 1
            self._tokens -= tokens

    async def _execute_at_all(
        self,
        run: "_Run",
        workers: Sequence[CommandWorker],
        found: Mapping[int, WorkerAddress],
        refusal: str,
        span: Span,
    ) -> None:
        outcomes = await asyncio.gather(
            *(self._execute_at(run, one, found.get(one.worker_id), refusal) for one in workers)
        )
        if span.is_recorded:
            span.note(
                {
                    "reprise.command.id": run.command.command_id,
                    "reprise.command.action": run.command.action,
                    "reprise.command.workers": len(workers),
                    "reprise.instance": run.command.instance_id,
                    **{f"reprise.command.results.{n}": c for n, c in Counter(outcomes).items()},
                }
            )

    def _refusal(self, age_s: float, tokens: int) -> str:
        """Why no worker is asked, or ""."""
        is_full = self.under_way >= LMCACHE_COMMANDS_MAX
        if is_full or self._tokens + tokens > LMCACHE_COMMAND_TOKENS_MAX:
            return TOO_MANY
        if age_s > LMCACHE_COMMAND_LATE_S:
            return LATE
        return ""

    async def _located(
        self, command: CommandRecord, until: float
    ) -> Mapping[int, WorkerAddress] | None:
        try:
            async with asyncio.timeout_at(until):
                return await self._locate(command.instance_id)
        except TimeoutError:
            return None

    def _is_mine(
        self, found: Mapping[int, WorkerAddress] | None, worker_id: int, linked_by: float
    ) -> bool:
        if self._is_sole:
            return True
        here = (found or {}).get(worker_id)
        return here is not None and here.is_linked and here.linked_at <= linked_by

    async def _execute_at(
        self, run: "_Run", worker: CommandWorker, here: WorkerAddress | None, refusal: str
    ) -> CommandOutcome:
        command = run.command
        impossible = unsupported(command)
        if refusal:
            reply = self._refuse(refusal)
        elif impossible:
            reply = Reply(CommandOutcome.UNSUPPORTED, detail=impossible)
        elif here is None:
            reply = self._refuse(run.missing)
        elif not here.is_linked:
            reply = self._refuse(LINK_DOWN)
        else:
            reply = await self._asked(run, worker, here.endpoint)
        self.outcomes[reply.outcome] += 1
        run.report(
            ResultRecord(
                command_id=command.command_id,
                worker_id=worker.worker_id,
                outcome=reply.outcome,
                tokens=reply.tokens,
                code=reply.code,
                ms=round(1000 * (asyncio.get_running_loop().time() - run.began), 3),
                detail=reply.detail[:NAME_BYTES_MAX],
                at=self._clock(),
            )
        )
        return reply.outcome

    async def _asked(self, run: "_Run", worker: CommandWorker, endpoint: str) -> Reply:
        action = run.command.action
        try:
            request = request_of(run.command, worker)
            answer = await self._exchanges.ask(endpoint, request, run.until)
        except NotAskedError as error:
            self.refused[error.reason] += 1
            return Reply(CommandOutcome.REFUSED, code=ANSWERED_BY_ERROR, detail=str(error))
        except NoAnswerError as error:
            return Reply(CommandOutcome.TIMEOUT, code=ANSWERED_BY_ERROR, detail=str(error))
        except Exception:
            self.faults += 1
            _logger.exception(
                "Unexpected error with a command to %s; it counts as not answered", endpoint
            )
            return Reply(
                CommandOutcome.TIMEOUT, code=ANSWERED_BY_ERROR, detail="An unexpected error"
            )
        return read_reply(action, answer)

    def _refuse(self, reason: str) -> Reply:
        self.refused[reason] += 1
        return Reply(CommandOutcome.REFUSED, code=ANSWERED_BY_ERROR, detail=_TEXTS[reason])


_TEXTS: Final = {
    TOO_MANY: "Too many commands are under way; try again",
    LATE: "The command came too late to be executed",
    LINK_DOWN: "The worker's link to its controller is down",
    NOT_REGISTERED: "The worker is not registered with its controller",
    NOT_LOCATED: "The controller does not say in time where the worker is",
}


class _Run(NamedTuple):
    command: CommandRecord
    report: ResultSink
    began: float
    until: float
    missing: str = NOT_REGISTERED  # why a worker is not known
