"""Commands as LMCache's 0.5 workers take them at their REP socket, and what they answer.

One frame each way, a msgpack map tagged by `type`, the name of LMCache's class.

Source: lmcache 0.5.6, `lmcache/v1/cache_controller/message.py` and `worker.py`.
"""

import sys
from array import array
from typing import Final, NamedTuple

import msgspec

from lmcache_adapter.wire.locations import SYNCED
from schemas.codec import UNUSABLE, detail_of
from schemas.command_records import CommandAction, CommandOutcome, CommandRecord, CommandWorker
from schemas.limits import ERROR_DETAIL_CHARS_MAX

METHODS: Final = ("cachegen",)
"""Of compression, that LMCache knows; by another one it compresses nothing, and says 0."""

ANSWERED_BY_ERROR: Final = -1001
UNEXPECTED_ANSWER: Final = -1002
UNREADABLE_ANSWER: Final = -1003
"""LMCache's own codes of a health check that fails."""

_NOT_KNOWN: Final = "Unknown message"  # how a worker's error begins that has no such command


class Reply(NamedTuple):
    """What a worker has said; see `schemas.command_records.ResultRecord`."""

    outcome: CommandOutcome
    tokens: int = 0
    code: int = 0
    detail: str = ""


def _tag(name: str) -> str:
    return f"{name}Msg"


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=_tag):
    pass


# To a worker


class _ToWorker(_Message, frozen=True, kw_only=True):
    worker_event_id: str


class ClearWorker(_ToWorker, frozen=True, kw_only=True):
    """Forget all blocks at a location."""

    location: str


class PinWorker(_ToWorker, frozen=True, kw_only=True):
    """Keep what there is of a prompt."""

    location: str
    tokens: list[int]


class MoveWorker(_ToWorker, frozen=True, kw_only=True):
    """Send what there is of a prompt to another worker, at its `peer_init_url`."""

    old_position: str
    new_position: tuple[str, str]
    tokens: list[int] | None
    copy: bool


class CompressWorker(_ToWorker, frozen=True, kw_only=True):
    """Compress what there is of a prompt."""

    method: str
    location: str
    tokens: list[int] | None


class DecompressWorker(CompressWorker, frozen=True, kw_only=True):
    """The inverse."""


class HealthWorker(_ToWorker, frozen=True, kw_only=True):
    """Is the engine well?"""


# From it


class _Count(_Message, frozen=True, kw_only=True):
    num_tokens: int


class ClearWorkerRet(_Count, frozen=True, kw_only=True):
    """Tokens that are gone."""


class PinWorkerRet(_Count, frozen=True, kw_only=True):
    """Tokens that are pinned."""


class MoveWorkerRet(_Count, frozen=True, kw_only=True):
    """Tokens that were sent."""


class CompressWorkerRet(_Count, frozen=True, kw_only=True):
    """Tokens that are compressed."""


class DecompressWorkerRet(_Count, frozen=True, kw_only=True):
    """Tokens that are compressed no more."""


class HealthWorkerRet(_Message, frozen=True, kw_only=True):
    """0 for a healthy engine."""

    error_code: int


class Error(_Message, frozen=True, kw_only=True):
    """It failed."""

    error: str


_Answer = (
    ClearWorkerRet
    | PinWorkerRet
    | MoveWorkerRet
    | CompressWorkerRet
    | DecompressWorkerRet
    | HealthWorkerRet
    | Error
)
_ANSWERS: Final[dict[CommandAction, type]] = {
    CommandAction.CLEAR: ClearWorkerRet,
    CommandAction.PIN: PinWorkerRet,
    CommandAction.MOVE: MoveWorkerRet,
    CommandAction.COMPRESS: CompressWorkerRet,
    CommandAction.DECOMPRESS: DecompressWorkerRet,
    CommandAction.HEALTH: HealthWorkerRet,
}
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[_Answer] = msgspec.msgpack.Decoder(_Answer)


def unsupported(command: CommandRecord) -> str:
    """Why LMCache's workers cannot do this, or ""."""
    if command.action is CommandAction.MOVE and command.target.location != SYNCED:
        return f"LMCache moves blocks into {SYNCED} alone"
    is_method = command.action in (CommandAction.COMPRESS, CommandAction.DECOMPRESS)
    if is_method and command.method not in METHODS:
        return f"LMCache compresses by {', '.join(METHODS)} alone"
    return ""


def request_of(command: CommandRecord, worker: CommandWorker) -> bytes:
    """The message to one of its workers. Cost O(tokens)."""
    name = f"Worker{worker.worker_id}{command.command_id}"
    tokens = _tokens_of(command.tokens)
    message: _ToWorker
    match command.action:
        case CommandAction.CLEAR:
            message = ClearWorker(worker_event_id=name, location=command.location)
        case CommandAction.PIN:
            message = PinWorker(
                worker_event_id=name, location=command.location, tokens=tokens or []
            )
        case CommandAction.MOVE:
            message = MoveWorker(
                worker_event_id=name,
                old_position=command.location,
                new_position=(worker.peer_url, command.target.location),
                tokens=tokens,
                copy=command.copy,
            )
        case CommandAction.COMPRESS | CommandAction.DECOMPRESS:
            is_inverse = command.action is CommandAction.DECOMPRESS
            message = (DecompressWorker if is_inverse else CompressWorker)(
                worker_event_id=name,
                method=command.method,
                location=command.location,
                tokens=tokens,
            )
        case CommandAction.HEALTH:
            message = HealthWorker(worker_event_id=name)
    return _encoder.encode(message)


def _tokens_of(packed: bytes | None) -> list[int] | None:
    if packed is None:
        return None
    tokens = array("i", packed)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens.tolist()


def read_reply(action: CommandAction, frame: bytes) -> Reply:
    """What a worker's answer says of a command; never raises."""
    try:
        answer = _decoder.decode(frame)
    except UNUSABLE as error:
        detail = f"The worker's answer cannot be read: {detail_of(error)}"
        return Reply(CommandOutcome.REFUSED, code=UNREADABLE_ANSWER, detail=detail)
    if isinstance(answer, Error):
        outcome = CommandOutcome.REFUSED
        if answer.error.startswith(_NOT_KNOWN):
            outcome = CommandOutcome.UNSUPPORTED
        detail = detail_of(ValueError(answer.error))[:ERROR_DETAIL_CHARS_MAX]
        return Reply(outcome, code=ANSWERED_BY_ERROR, detail=detail)
    if not isinstance(answer, _ANSWERS[action]):
        detail = f"The worker answered by {type(answer).__name__}Msg"
        return Reply(CommandOutcome.REFUSED, code=UNEXPECTED_ANSWER, detail=detail)
    if isinstance(answer, HealthWorkerRet):
        return Reply(CommandOutcome.OK, code=min(max(answer.error_code, -(2**31)), 2**31 - 1))
    assert isinstance(answer, _Count), "all others are counts"
    if not 0 <= answer.num_tokens <= 2**53:
        detail = f"The worker answered by a number of tokens of {answer.num_tokens}"
        return Reply(CommandOutcome.REFUSED, code=UNREADABLE_ANSWER, detail=detail)
    return Reply(CommandOutcome.OK, tokens=answer.num_tokens)
