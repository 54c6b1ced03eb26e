"""Bodies of commands to LMCache's workers: what each action must name, and who is to execute it.

Fields that are not known are ignored, as LMCache does. Tokens must be given: Reprise keeps hashes
of prompts, never their tokens, so none can be found for a hash.
"""

import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from query_api.http.errors import RequestError, shown
from query_api.http.requests.fields import (
    bounded_text,
    decode,
    read_name,
    read_text,
    read_tokens,
)
from query_api.http.requests.queries import missing
from query_api.http.wire import Field, Wire, split_fields
from schemas.clock import REAL_CLOCK
from schemas.command_records import BlockPlace, CommandAction, CommandRecord, CommandWorker
from schemas.identities import Rank
from schemas.limits import COMMAND_TOKENS_MAX, COMMAND_WORKERS_MAX
from schemas.registration import Registration

_HASH_FIELDS: Final = ("prefix_hash", "prefix_hashes", "block_hashes", "seq_hashes")
_BY_ACTION: Final = {
    CommandAction.CLEAR: ("instance_id", "location"),
    CommandAction.PIN: ("instance_id", "location", "tokens"),
    CommandAction.MOVE: ("old_position", "new_position"),
    CommandAction.COMPRESS: ("instance_id", "method", "location"),
    CommandAction.DECOMPRESS: ("instance_id", "method", "location"),
    CommandAction.HEALTH: ("instance_id",),
}
_NAMES: Final = {CommandAction.HEALTH: "health"}
"""What LMCache begins an `event_id` with, where that is not the action's name with a capital."""

_MODULES: Final = {Wire.JSON: msgspec.json, Wire.MSGPACK: msgspec.msgpack}

_Ranks: Final = Annotated[list[Rank], Meta(max_length=COMMAND_WORKERS_MAX)] | None


class CommandRequest(NamedTuple):
    """What a body asks for; whether there are such workers is not looked at yet.

    Attributes:
        workers: only these; None for all of the instance.
    """

    action: CommandAction
    instance_id: str
    location: str = ""
    method: str = ""
    tokens: bytes | None = None
    target: BlockPlace = BlockPlace()
    copy: bool = False
    workers: tuple[int, ...] | None = None


def read_command(body: bytes, wire: Wire, action: CommandAction | None = None) -> CommandRequest:
    """The command of a body; `action` where its path says that.

    Raises:
        RequestError: a field is missing, or is not what it must be.
    """
    fields = {field.name: field for field in split_fields(body, wire)}
    if action is None:
        if "action" not in fields:
            raise missing("action")
        action = _read_action(fields["action"], wire)
        workers = _read_workers(fields.get("workers"), wire)
    else:
        workers = None  # LMCache's routes have none
    for name in _HASH_FIELDS:
        if name in fields:
            raise RequestError(
                "unsupported",
                f"{name} cannot take the place of tokens: only hashes of prompts are kept, so send"
                " the tokens themselves",
                field=name,
            )
    for name in _BY_ACTION[action]:
        if name not in fields:
            raise missing(name)
    return _read_fields(action, fields, wire)._replace(workers=workers)


def _read_fields(action: CommandAction, fields: dict[str, Field], wire: Wire) -> CommandRequest:
    tokens = _read_command_tokens(fields.get("tokens"), wire, is_needed=action is CommandAction.PIN)
    if action is CommandAction.MOVE:
        return _read_move(fields, tokens, wire)
    asked = CommandRequest(action, read_name(fields["instance_id"], wire))
    if action is CommandAction.HEALTH:
        return asked
    asked = asked._replace(location=read_name(fields["location"], wire))
    if action is CommandAction.CLEAR:
        return asked
    method = read_text(fields["method"], wire) if "method" in _BY_ACTION[action] else ""
    return asked._replace(method=method, tokens=tokens)


def _read_move(fields: dict[str, Field], tokens: bytes | None, wire: Wire) -> CommandRequest:
    source = _read_place(fields["old_position"], wire)
    target = _read_place(fields["new_position"], wire)
    if source.instance_id == target.instance_id:
        what = "a move to itself" if source == target else "a move within one instance"
        raise RequestError(
            "unsupported",
            f"new_position must name another instance than old_position: LMCache has no {what[2:]}",
            field="new_position",
        )
    copy = False
    if "should_copy" in fields:
        decoder = _MODULES[wire].Decoder(bool | None).decode
        copy = bool(decode(decoder, fields["should_copy"], wire, "a boolean or null"))
    return CommandRequest(
        CommandAction.MOVE,
        source.instance_id,
        source.location,
        tokens=tokens,
        target=target,
        copy=copy,
    )


def _read_action(field: Field, wire: Wire) -> CommandAction:
    text = read_text(field, wire)
    try:
        return CommandAction(text)
    except ValueError as error:
        message = f"action must be one of {', '.join(CommandAction)}, got: {shown(text)}"
        raise RequestError("invalid_value", message, field=field.name) from error


def _read_place(field: Field, wire: Wire) -> BlockPlace:
    decoder = _MODULES[wire].Decoder(tuple[str, str]).decode
    names = decode(decoder, field, wire, "an array of instance and location")
    if not all(names):
        message = (
            f"{field.name} must name an instance and a location, got: {shown(', '.join(names))}"
        )
        raise RequestError("invalid_value", message, field=field.name)
    return BlockPlace(*(bounded_text(field.name, name) for name in names))


def _read_command_tokens(field: Field | None, wire: Wire, *, is_needed: bool) -> bytes | None:
    if field is None:
        return b""  # as LMCache's own controller sends it
    if not is_needed and bytes(memoryview(field.raw)[:4]) in (b"null", b"\xc0"):
        return None
    tokens = read_tokens(field, wire)
    if len(tokens) > 4 * COMMAND_TOKENS_MAX:
        message = f"tokens must have at most {COMMAND_TOKENS_MAX} elements"
        raise RequestError("too_many_elements", message, field="tokens", status=413)
    if is_needed and not tokens:
        raise RequestError("invalid_value", "tokens must not be empty", field="tokens")
    return tokens


def _read_workers(field: Field | None, wire: Wire) -> tuple[int, ...] | None:
    ranks = read_ranks(field, wire)
    if field is None or ranks is None:
        return None
    if not ranks:
        raise RequestError("invalid_value", "workers must not be empty", field=field.name)
    for index, rank in enumerate(ranks):
        if rank in ranks[:index]:
            message = f"workers must name each worker once, got {rank} twice"
            raise RequestError("invalid_value", message, field=field.name, index=index)
    return tuple(ranks)


def read_ranks(field: Field | None, wire: Wire) -> list[int] | None:
    """An array of `worker_id`s; None where there is none.

    Raises:
        RequestError: it is something else, or too long.
    """
    if field is None:
        return None
    decoder: Any = _MODULES[wire].Decoder(_Ranks).decode
    ranks: list[int] | None = decode(
        decoder, field, wire, f"an array of at most {COMMAND_WORKERS_MAX} worker_ids, or null"
    )
    return ranks


def command_of(
    asked: CommandRequest,
    registrations: Collection[Registration],
    *,
    clock: Callable[[], float] = REAL_CLOCK.unix,
) -> CommandRecord:
    """The record of a command.

    Args:
        registrations: of LMCache's workers, all of them.
        clock: Unix seconds.

    Raises:
        RequestError: nobody could execute it.
    """
    of_instance = sorted(
        (one for one in registrations if one.instance_id == asked.instance_id),
        key=lambda one: one.dp_rank,
    )
    if not of_instance:
        field = "old_position" if asked.action is CommandAction.MOVE else "instance_id"
        raise _not_found(f"No LMCache worker of instance {asked.instance_id} is registered", field)
    ranks = {one.dp_rank for one in of_instance}
    chosen = sorted(ranks) if asked.workers is None else list(asked.workers)
    for rank in chosen:
        if rank not in ranks:
            text = f"Worker {rank} of instance {asked.instance_id} is not registered"
            raise _not_found(text, "workers")
    peers = _peers(asked, chosen, registrations) if asked.action is CommandAction.MOVE else {}
    return CommandRecord(
        command_id=f"{_NAMES.get(asked.action, asked.action.capitalize())}{uuid.uuid4()}",
        action=asked.action,
        instance_id=asked.instance_id,
        location=asked.location,
        method=asked.method,
        tokens=asked.tokens,
        target=asked.target,
        copy=asked.copy,
        workers=tuple(CommandWorker(rank, peers.get(rank, "")) for rank in chosen),
        issued_at=clock(),
    )


def _peers(
    asked: CommandRequest, ranks: Sequence[int], registrations: Collection[Registration]
) -> dict[int, str]:
    """By rank, where the target's worker of the same rank takes blocks."""
    target = asked.target.instance_id
    of_target = {one.dp_rank: one.peer_url for one in registrations if one.instance_id == target}
    if not of_target:
        raise _not_found(f"No LMCache worker of instance {target} is registered", "new_position")
    for rank in ranks:
        if not of_target.get(rank):
            raise RequestError(
                "no_peer",
                f"Worker {rank} of instance {target} is not registered, or takes no blocks of"
                " others: set enable_p2p in its configuration",
                field="new_position",
                status=409,
            )
    return of_target


def _not_found(message: str, field: str) -> RequestError:
    return RequestError("not_found", message, field=field, status=404)
