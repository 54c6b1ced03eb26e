"""LMCache's documents, as its own controller has them (lmcache 0.5.6, `lmcache/v1/api_server` and
`internal_api_server/controller`).
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from schemas.arrays import Token
from schemas.limits import COMMAND_TOKENS_MAX, QUERY_TOKENS_MAX


class LookupRequest(msgspec.Struct):
    """A prompt. Its chunks are hashed as LMCache's workers do it, where that is known."""

    tokens: Annotated[list[Token], Meta(max_length=QUERY_TOKENS_MAX)]


class LookupResponse(msgspec.Struct):
    """Of each instance that has a prefix of the prompt: where its last chunk is, and how many
    tokens the prefix has.
    """

    event_id: str
    layout_info: dict[str, tuple[str, int]]


class Worker(msgspec.Struct):
    """One LMCache worker. Times are Unix seconds."""

    instance_id: str
    worker_id: int
    ip: str
    port: int
    peer_init_url: str | None
    registration_time: float
    last_heartbeat_time: float
    key_count: int


class WorkerList(msgspec.Struct):
    """LMCache workers."""

    workers: list[Worker]
    total_count: int


class InstanceKeys(msgspec.Struct):
    """The chunks of one LMCache instance."""

    instance_id: str
    key_count: int
    worker_count: int


class KeyStats(msgspec.Struct):
    """The chunks of all LMCache instances."""

    total_key_count: int
    total_instance_count: int
    total_worker_count: int
    instances: list[InstanceKeys]


Tokens = Annotated[list[Token], Meta(max_length=COMMAND_TOKENS_MAX)]


class ClearRequest(msgspec.Struct):
    """The workers of an instance are to forget all blocks at a location."""

    instance_id: str
    location: str


class PinRequest(msgspec.Struct):
    """They are to keep what they have of a prompt."""

    instance_id: str
    location: str
    tokens: Tokens


class CompressRequest(msgspec.Struct):
    """They are to compress what they have of a prompt, or to undo that."""

    instance_id: str
    method: str
    location: str
    tokens: Tokens | None = None


class MoveRequest(msgspec.Struct):
    """They are to send what they have of a prompt to another instance's workers: each position is
    an instance and a location.
    """

    old_position: tuple[str, str]
    new_position: tuple[str, str]
    tokens: Tokens | None = None
    should_copy: bool | None = False


class HealthRequest(msgspec.Struct):
    """They are to say whether their engines are well."""

    instance_id: str


class CheckFinishRequest(msgspec.Struct):
    """What has become of a command?"""

    event_id: str


class QueryInstanceRequest(msgspec.Struct):
    """Which instance has a worker at this address?"""

    ip: str


class QueryWorkerInfoRequest(msgspec.Struct):
    """The workers of an instance, or of `all`."""

    instance_id: str
    worker_ids: list[int] | None = None


class CommandRequest(msgspec.Struct):
    """A command: the fields that LMCache's route for the action takes, and to whom it goes.

    `workers`: only these of the instance, by `worker_id`.
    """

    action: Literal["clear", "pin", "move", "compress", "decompress", "health"]
    instance_id: str | None = None
    location: str | None = None
    method: str | None = None
    tokens: Tokens | None = None
    old_position: tuple[str, str] | None = None
    new_position: tuple[str, str] | None = None
    should_copy: bool | None = False
    workers: list[int] | None = None


class CommandAnswer(msgspec.Struct):
    """All workers have executed it; `num_tokens` is what the least of them says."""

    event_id: str
    num_tokens: int


class HealthAnswer(msgspec.Struct):
    """By worker: 0 for a healthy engine; LMCache's code of why that is not known."""

    event_id: str
    error_codes: dict[int, int]


class CheckFinishAnswer(msgspec.Struct):
    """`pending`, `done`, `partial` or `failed`."""

    status: str


class QueryInstanceAnswer(msgspec.Struct):
    """`res` is the instance."""

    event_id: str
    res: str


class WorkerInfo(msgspec.Struct):
    """One LMCache worker. Times are Unix seconds."""

    instance_id: str
    worker_id: int
    ip: str
    port: int
    peer_init_url: str | None
    registration_time: float
    last_heartbeat_time: float


class QueryWorkerInfoAnswer(msgspec.Struct):
    """Those that were asked for."""

    event_id: str
    worker_infos: list[WorkerInfo]


class CommandIssued(msgspec.Struct):
    """The command is in the log; `GET /commands/ID` says what becomes of it."""

    command_id: str
    state: str


class CommandResult(msgspec.Struct):
    """What became of a command at one worker; `outcome` is `ok`, `refused`, `timeout`,
    `unsupported`, or `none` where nothing is known.
    """

    worker_id: int
    outcome: str
    num_tokens: int = 0
    error_code: int = 0
    ms: float = 0.0
    detail: str = ""


class CommandStatus(msgspec.Struct):
    """What became of a command. Times are Unix seconds.

    `tokens` is how many there were; they are not shown. `target` is where they were to be moved.
    `origin` is `advice` where a service did what it had advised, of the prefix `prefix_hash`.
    """

    command_id: str
    state: str
    reason: str
    action: str
    instance_id: str
    location: str
    method: str
    target: tuple[str, str] | None
    tokens: int
    issued_at: float
    closed_at: float
    workers: list[CommandResult]
    origin: str = ""
    prefix_hash: str = ""


class CommandList(msgspec.Struct):
    """What became of the last commands, the latest first."""

    commands: list[CommandStatus]
