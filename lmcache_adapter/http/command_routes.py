"""LMCache's commands over HTTP, with its controller's paths and bodies; and commands as records.

LMCache's routes wait for the end of the command. What it answers by 500, or not at all, is here
409 (`refused`, `unsupported`) or 504 (`timeout`), with each worker's reason in the text and the
command's address in the header `location`.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from lmcache_adapter.commands.book import CommandView
from lmcache_adapter.http import models
from lmcache_adapter.http.command_requests import command_of, read_command
from lmcache_adapter.ports import WorkerCommands
from query_api.http import openapi
from query_api.http.errors import RequestError, recovering
from query_api.http.requests.bodies import Bodies
from query_api.http.requests.fields import read_name
from query_api.http.requests.options import read_parameters
from query_api.http.requests.queries import missing
from query_api.http.route_table import Routes
from query_api.http.routes import read_request, respond
from query_api.http.traces import context_of
from query_api.http.wire import Wire, reply_wire, split_fields
from query_api.ports import View
from schemas.command_records import (
    BY_ADVICE,
    CommandAction,
    CommandOutcome,
    CommandRecord,
    CommandState,
)
from schemas.limits import COMMAND_REQUEST_S
from schemas.registration import LMCACHE
from schemas.tracing import split_context

COMMANDS_SHOWN: Final = 100  # of the last commands in an answer, where no limit is asked for
COMMANDS_LISTED_MAX: Final = 1000  # the most that may be asked for
_SHOWN_WORKERS: Final = 8
_NO_ANSWER: Final = -1001
"""LMCache's code of a worker that it could not ask."""

_TOKENS: Final = [101, 15, 100, 55]
_AT: Final = {"instance_id": "node-1", "location": "LocalCPUBackend"}
_COMPRESS: Final = _AT | {"method": "cachegen", "tokens": _TOKENS}
_MOVE: Final = {
    "old_position": ["node-1", "LocalCPUBackend"],
    "new_position": ["node-2", "LocalCPUBackend"],
    "tokens": _TOKENS,
    "should_copy": True,
}
_LATEST: Final = [
    openapi.parameter(
        "limit", {"type": "integer", "default": COMMANDS_SHOWN, "maximum": COMMANDS_LISTED_MAX}
    ),
    openapi.parameter(
        "origin",
        {"type": "string", "enum": [BY_ADVICE]},
        "Only those of this origin: what services did by their own advice.",
    ),
]
_ROUTES: Final[dict[CommandAction, tuple[type[msgspec.Struct], dict[str, Any], str]]] = {
    CommandAction.CLEAR: (models.ClearRequest, _AT, "Have an instance forget what it holds"),
    CommandAction.PIN: (models.PinRequest, _AT | {"tokens": _TOKENS}, "Have it keep a prompt"),
    CommandAction.MOVE: (models.MoveRequest, _MOVE, "Have it send a prompt to another instance"),
    CommandAction.COMPRESS: (models.CompressRequest, _COMPRESS, "Have it compress a prompt"),
    CommandAction.DECOMPRESS: (models.CompressRequest, _COMPRESS, "Have it undo that"),
    CommandAction.HEALTH: (
        models.HealthRequest,
        {"instance_id": "node-1"},
        "Ask its workers whether they are well",
    ),
}
_STATUSES: Final = (400, 404, 409, 413, 503, 504)


class _Commands:
    """What the routes have in common."""

    def __init__(
        self, view: View, commands: WorkerCommands | None, bodies: Bodies, default_wire: Wire
    ) -> None:
        self._view = view
        self._commands = commands
        self._bodies = bodies
        self._default_wire = default_wire

    @property
    def commands(self) -> WorkerCommands:
        """Raises RequestError where nobody executes any."""
        if self._commands is None:
            text = (
                "This service gives LMCache's workers no commands: start `reprise up` with"
                " --lmcache, or ask `reprise serve` beside a `reprise bridge` that has it"
            )
            raise RequestError("no_commands", text, status=409)
        return self._commands

    async def issue(
        self, request: Request, action: CommandAction | None
    ) -> tuple[CommandRecord, Wire]:
        """Has the command of a body executed; returns it once the log has it."""
        commands = self.commands
        body, wire = await read_request(request, self._bodies, self._default_wire)
        asked = read_command(body, wire, action)
        del body  # what follows may wait
        if not self._view.ready:
            raise recovering(self._view.health().problem)
        services = self._view.services()
        workers = [one.registration for one in services if one.registration.kind == LMCACHE]
        traceparent, tracestate = split_context(context_of(request.headers.raw))
        command = msgspec.structs.replace(
            command_of(asked, workers), traceparent=traceparent, tracestate=tracestate
        )
        await commands.issue(command)
        return msgspec.structs.replace(command, tokens=None), wire

    async def finish(self, request: Request, action: CommandAction) -> Response:
        """The same, and answers as LMCache's controller does once it has ended."""
        command, wire = await self.issue(request, action)
        found = await self.commands.ended(command.command_id)
        if found is None or found.state is CommandState.PENDING:
            text = f"The command has not ended within {COMMAND_REQUEST_S:g} s"
            raise _failed(command, "pending", text, 504)
        if action is CommandAction.HEALTH:
            return respond(_health_of(found), wire)
        if found.state is not CommandState.DONE:
            raise _refusal(found)
        least = min(one.tokens for one in found.results)
        return respond(models.CommandAnswer(command.command_id, least), wire)

    async def find(self, command_id: str) -> CommandView:
        """A command that was issued; raises RequestError where it is not known."""
        found = await self.commands.find(command_id)
        if found is None:
            text = "No such command: it is too old, or never was one"
            raise RequestError("not_found", text, status=404)
        return found

    async def read_name(self, request: Request, name: str) -> tuple[str, Wire]:
        """The one field of a body that counts."""
        body, wire = await read_request(request, self._bodies, self._default_wire)
        for field in split_fields(body, wire):
            if field.name == name:
                return read_name(field, wire), wire
        raise missing(name)


def command_routes(
    view: View, commands: WorkerCommands | None, bodies: Bodies, default_wire: Wire
) -> Routes:
    """The routes.

    Args:
        view: a table, which has the workers.
        commands: has them executed; None: nobody does.
        default_wire: of requests that name none.
    """
    router = Routes(tags=["LMCache"])
    shared = _Commands(view, commands, bodies, default_wire)
    for action in CommandAction:
        _add_route(router, shared, action)

    @router.post(
        "/check_finish",
        summary="What has become of a command, in a word",
        openapi_extra=openapi.operation(
            models.CheckFinishAnswer,
            *Wire,
            body=models.CheckFinishRequest,
            example={"event_id": "Clear5b1f..."},
            refused=(400, 404, 409, 413, 503),
        ),
    )
    async def check_finish(request: Request) -> Response:
        event_id, wire = await shared.read_name(request, "event_id")
        found = await shared.find(event_id)
        return respond(models.CheckFinishAnswer(found.state), wire)

    @router.post(
        "/commands",
        status_code=202,
        summary="Have LMCache's workers do something, and go on",
        openapi_extra=openapi.operation(
            {202: models.CommandIssued},
            *Wire,
            body=models.CommandRequest,
            example={"action": "clear"} | _AT,
            refused=(400, 404, 409, 413, 503),
        ),
    )
    async def issue(request: Request) -> Response:
        command, wire = await shared.issue(request, None)
        issued = models.CommandIssued(command.command_id, CommandState.PENDING)
        answer = respond(issued, wire, 202)
        answer.headers["location"] = f"/commands/{command.command_id}"
        return answer

    @router.get(
        "/commands",
        summary="What has become of the last commands, the latest first",
        openapi_extra=openapi.operation(
            models.CommandList, *Wire, refused=(400, 409, 503), parameters=_LATEST
        ),
    )
    async def latest(request: Request) -> Response:
        wire = reply_wire(request.headers.raw, default_wire)
        limit, origin = _read_latest(request)
        found = await shared.commands.latest(limit, origin=origin)
        return respond(models.CommandList([_status_of(one) for one in found]), wire)

    @router.get(
        "/commands/{command_id}",
        summary="What has become of a command, worker by worker",
        openapi_extra=openapi.operation(models.CommandStatus, *Wire, refused=(404, 409, 503)),
    )
    async def find(request: Request, command_id: str) -> Response:
        wire = reply_wire(request.headers.raw, default_wire)
        return respond(_status_of(await shared.find(command_id)), wire)

    return router


def _add_route(router: Routes, shared: _Commands, action: CommandAction) -> None:
    model, example, summary = _ROUTES[action]
    answer = models.HealthAnswer if action is CommandAction.HEALTH else models.CommandAnswer

    @router.post(
        f"/{action}",
        name=action.value,
        summary=summary,
        openapi_extra=openapi.operation(
            answer, *Wire, body=model, example=example, refused=_STATUSES
        ),
    )
    async def execute(request: Request) -> Response:
        return await shared.finish(request, action)


def _read_latest(request: Request) -> tuple[int, str | None]:
    """How many commands, and of whom; parameters that are not known are ignored."""
    texts = dict(read_parameters(request.scope["query_string"]))
    text = texts.get("limit") or str(COMMANDS_SHOWN)
    limit = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
    if not 1 <= limit <= COMMANDS_LISTED_MAX:
        expected = f"expected limit to be 1 to {COMMANDS_LISTED_MAX}, got: {text[:80]}"
        raise RequestError("invalid_value", expected, field="limit")
    origin = texts.get("origin") or None
    if origin not in (None, BY_ADVICE):
        expected = f"expected origin to be {BY_ADVICE}, got: {origin[:80]}"
        raise RequestError("invalid_value", expected, field="origin")
    return limit, origin


def _health_of(found: CommandView) -> models.HealthAnswer:
    codes = {one.worker_id: _NO_ANSWER for one in found.command.workers}
    codes |= {one.worker_id: one.code for one in found.results}
    return models.HealthAnswer(found.command.command_id, dict(sorted(codes.items())))


def _refusal(found: CommandView) -> RequestError:
    """Why a command was not executed by all, each worker by name."""
    outcomes = {one.worker_id: one.outcome for one in found.results}
    silent = [one.worker_id for one in found.command.workers if one.worker_id not in outcomes]
    texts = [
        f"worker {one.worker_id}: {one.outcome}: {one.detail}"
        for one in found.results
        if one.outcome is not CommandOutcome.OK
    ]
    texts += [f"worker {rank}: {CommandOutcome.TIMEOUT}: {found.reason}" for rank in silent]
    if len(texts) > _SHOWN_WORKERS:
        texts[_SHOWN_WORKERS:] = [f"and {len(texts) - _SHOWN_WORKERS} more"]
    done = sum(outcome is CommandOutcome.OK for outcome in outcomes.values())
    text = f"Executed by {done} of {len(found.command.workers)} workers; {'; '.join(texts)}"
    worst = CommandOutcome.TIMEOUT if silent else _worst(list(outcomes.values()))
    return _failed(found.command, worst, text, 504 if worst is CommandOutcome.TIMEOUT else 409)


def _worst(outcomes: Sequence[CommandOutcome]) -> CommandOutcome:
    order = (CommandOutcome.TIMEOUT, CommandOutcome.REFUSED, CommandOutcome.UNSUPPORTED)
    return next(one for one in order if one in outcomes)


def _failed(command: CommandRecord, reason: str, text: str, status: int) -> RequestError:
    headers = {"location": f"/commands/{command.command_id}"}
    return RequestError(reason, text, status=status, headers=headers)


def _status_of(found: CommandView) -> models.CommandStatus:
    command = found.command
    results = {one.worker_id: one for one in found.results}
    workers = []
    for worker in command.workers:
        one = results.get(worker.worker_id)
        if one is None:
            workers.append(models.CommandResult(worker.worker_id, "none"))
        else:
            workers.append(
                models.CommandResult(
                    one.worker_id, one.outcome, one.tokens, one.code, one.ms, one.detail
                )
            )
    is_move = command.action is CommandAction.MOVE
    return models.CommandStatus(
        command_id=command.command_id,
        state=found.state,
        reason=found.reason,
        action=command.action,
        instance_id=command.instance_id,
        location=command.location,
        method=command.method,
        target=(command.target.instance_id, command.target.location) if is_move else None,
        tokens=found.tokens,
        issued_at=command.issued_at,
        closed_at=found.closed_at,
        workers=workers,
        origin=command.origin,
        prefix_hash=str(command.prefix) if command.prefix else "",
    )
