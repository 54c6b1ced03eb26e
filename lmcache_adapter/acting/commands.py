"""What the log of commands says of what was done by advice. Pure."""

from typing import Final

from lmcache_adapter.commands.book import CommandView
from routing.advice.acting import Act
from routing.advice.advice import AdvisedAction
from schemas.command_records import BY_ADVICE, CommandOutcome, CommandState
from schemas.command_records import CommandAction as Command

_NOTHING: Final = (
    "no token was copied or pinned: the worker holds none of the prefix, or found no room"
)
_NAMED_WORKERS: Final = 8


def act_of(view: CommandView) -> Act | None:
    """What a command of the log was; None where it was not given by advice."""
    command = view.command
    if command.origin != BY_ADVICE:
        return None
    is_copy = command.action is Command.MOVE
    is_done = view.state is CommandState.DONE
    tokens = min((one.tokens for one in view.results), default=0) if is_done else 0
    return Act(
        command.command_id,
        AdvisedAction.COPY if is_copy else AdvisedAction.PIN,
        command.prefix,
        command.instance_id,
        command.target.instance_id if is_copy else command.instance_id,
        command.issued_at,
        view.state,
        _NOTHING if is_done and not tokens else _reason_of(view),
        view.closed_at,
        tokens,
    )


def _reason_of(view: CommandView) -> str:
    """Why it is not done, each worker by name; "" where it is, or may be yet."""
    texts = [
        f"worker {one.worker_id}: {one.outcome}: {one.detail}"
        for one in view.results
        if one.outcome is not CommandOutcome.OK
    ]
    if view.reason:
        known = {one.worker_id for one in view.results}
        silent = [one.worker_id for one in view.command.workers if one.worker_id not in known]
        texts += [f"worker {rank}: {view.reason}" for rank in silent]
    more = len(texts) - _NAMED_WORKERS
    return "; ".join(texts[:_NAMED_WORKERS] + ([f"and {more} more"] if more > 0 else []))
