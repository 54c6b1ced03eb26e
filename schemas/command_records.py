"""Records of commands to LMCache's workers, format version 1: of a log of their own, beside events.

One record is one msgpack map, of one of three kinds:

    kind         str    "command": what workers are to do; written before any of them is asked
    version      int    1; a reader skips and counts records of a newer version
    command_id   str    its name: the action, as `Clear`, and a UUID
    action       str    clear, pin, move, compress, decompress or health
    instance_id  str    whose workers
    location     str    LMCache's name of a storage backend; "" for health
    method       str    of compress and decompress
    tokens       bin    of the prompt, u32 LE; nil where none were given
    target       array  [instance_id, location] of move; ["", ""] else
    copy         bool   of move: whether the source keeps its blocks
    workers      array  [[worker_id, peer_url]]: who is to execute it, each once; `peer_url` is
                        where that one moves its blocks to, or ""
    issued_at    float  Unix seconds
    origin       str    "advice" where a service did what it had advised; "" for whoever asked
    prefix       int    of advice: the hash of the prefix, u64; 0 else
    traceparent  str    of its span, else of the request; "" for none (`schemas.tracing`)
    tracestate   str    that came with it; "" for none

    kind         str    "result": what became of it at one worker
    version      int    1
    command_id   str    as above
    worker_id    int    one of its workers
    outcome      str    ok, refused, timeout, unsupported
    tokens       int    that the worker says it has cleared, pinned, moved, ...; 0 where not ok
    code         int    of health: 0 for a healthy worker. -1001 where the worker answered by an
                        error, -1002 by something else, -1003 by what cannot be read
    ms           float  from the bridge's reading of the command to its result
    detail       str    why it is not ok, for people
    at           float  Unix seconds

    kind         str    "closed": it has ended, whoever has not answered
    version      int    1
    command_id   str    as above
    reason       str    why, for people
    at           float  Unix seconds

**A command ends once**: with the result that is the last one of its workers, or with the first
`closed` before that, in the order of the log. What comes of it later changes nothing, nor does a
second result of a worker. Its state is `done` where all results are ok, `failed` where none is, and
`partial` else; a worker without a result has none that is ok.

A reader must ignore map keys that it does not know: fields are only ever added.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from schemas.identities import Name, Rank, Text
from schemas.limits import COMMAND_TOKENS_MAX, COMMAND_WORKERS_MAX, TRACESTATE_CHARS_MAX
from schemas.positions import Seconds
from schemas.tracing import join_context

COMMANDS_VERSION: Final = 1

BY_ADVICE: Final = "advice"
"""The origin of a command that a service gave by its own advice."""

_Tokens = Annotated[bytes, Meta(max_length=4 * COMMAND_TOKENS_MAX)]


class CommandAction(StrEnum):
    """What workers are to do."""

    CLEAR = "clear"
    PIN = "pin"
    MOVE = "move"
    COMPRESS = "compress"
    DECOMPRESS = "decompress"
    HEALTH = "health"


class CommandOutcome(StrEnum):
    """What became of a command at one worker.

    OK: it was executed. REFUSED: it was not, by the worker's own word or because nobody could ask
    it; or its answer cannot be used, and `code` is -1002 or -1003. UNSUPPORTED: LMCache cannot do
    that. TIMEOUT: no answer came; whether it was executed, or will be once the worker goes on, is
    not known.
    """

    OK = "ok"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    UNSUPPORTED = "unsupported"


class CommandState(StrEnum):
    """What became of a command; see the module."""

    PENDING = "pending"
    DONE = "done"
    PARTIAL = "partial"
    FAILED = "failed"


class CommandWorker(NamedTuple):
    """Who is to execute it; see the module."""

    worker_id: Rank
    peer_url: Text = ""


class BlockPlace(NamedTuple):
    """Where blocks are moved to."""

    instance_id: Text = ""
    location: Text = ""


class CommandRecord(msgspec.Struct, kw_only=True, frozen=True, tag_field="kind", tag="command"):
    """A command; see the module."""

    command_id: Name
    action: CommandAction
    instance_id: Name
    location: Text = ""
    method: Text = ""
    tokens: _Tokens | None = None
    target: BlockPlace = BlockPlace()
    copy: bool = False
    workers: Annotated[
        tuple[CommandWorker, ...], Meta(min_length=1, max_length=COMMAND_WORKERS_MAX)
    ]
    issued_at: Seconds
    origin: Text = ""
    prefix: Annotated[int, Meta(ge=0)] = 0
    traceparent: Text = ""
    tracestate: Annotated[str, Meta(max_length=TRACESTATE_CHARS_MAX)] = ""
    version: int = COMMANDS_VERSION

    @property
    def context(self) -> str:
        """Of its span; see `schemas.tracing`."""
        return join_context(self.traceparent, self.tracestate)


class ResultRecord(msgspec.Struct, kw_only=True, frozen=True, tag_field="kind", tag="result"):
    """What became of a command at one worker; see the module."""

    command_id: Name
    worker_id: Rank
    outcome: CommandOutcome
    tokens: Annotated[int, Meta(ge=0, le=2**53)] = 0
    code: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    ms: Annotated[float, Meta(ge=0)] = 0.0
    detail: Text = ""
    at: Seconds
    version: int = COMMANDS_VERSION


class ClosedRecord(msgspec.Struct, kw_only=True, frozen=True, tag_field="kind", tag="closed"):
    """The end of a command that not all have answered; see the module."""

    command_id: Name
    reason: Text
    at: Seconds
    version: int = COMMANDS_VERSION


AnyCommandRecord = CommandRecord | ResultRecord | ClosedRecord

encode_command: Final[Callable[[AnyCommandRecord], bytes]] = msgspec.msgpack.Encoder().encode
"""One record's bytes."""
