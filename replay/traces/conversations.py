"""Reads traces of coding agents as kv-cache-tester publishes them: a JSON file a conversation.

A file has `block_size`, `tool_tokens` and `system_tokens`, and in `requests` what was sent, in
order. An entry with `type` "s" (streamed) or "n" is a request; one with "subagent" has requests of
its own, whose times begin with it. `hash_ids` are of whole blocks, and are the conversation's own,
sub-agents' included: the same id in another file is another block (`hash_id_scope` "local").
`t` is when a request was sent; `api_time` and `think_time`, of which its distances consist, are not
read.
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, TypeVar

import msgspec

from replay.traces.request import BlockId, TokenCount
from schemas.errors import RepriseError
from schemas.limits import (
    BLOCK_SIZE_MAX,
    ERROR_DETAIL_CHARS_MAX,
    MIB,
    TRACE_BLOCKS_MAX,
    TRACE_TOKENS_MAX,
)

CONVERSATION_BYTES_MAX: Final = 256 * MIB  # of one file, decompressed; it is in memory as a whole
CONVERSATION_S_MAX: Final = 1e9  # thirty years

_GZIP: Final = b"\x1f\x8b"
_SUFFIXES: Final = (".json", ".json.gz")

EntryT = TypeVar("EntryT")

Seconds = Annotated[float, msgspec.Meta(ge=0, le=CONVERSATION_S_MAX)]


class ConversationError(RepriseError):
    """Operator action: mend or leave out the file that is named."""


class Turn(NamedTuple):
    """A request of a conversation.

    Attributes:
        time_s: when it was sent, from the conversation's beginning.
        input_tokens, output_tokens: of the prompt and the answer.
        hash_ids: of the prompt's whole blocks.
        agent: the sub-agent that sent it, from 1; 0 for the conversation itself.
    """

    time_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: list[BlockId]
    agent: int


class Conversation(NamedTuple):
    """One file.

    Attributes:
        name: of the conversation.
        block_size: tokens for each id.
        shared_tokens: of its tools and its system prompt, with which its first request begins.
        agents: how many sub-agents it has.
        turns: in the order of their times.
    """

    name: str
    block_size: int
    shared_tokens: int
    agents: int
    turns: list[Turn]


class _Request(msgspec.Struct, tag_field="type", tag="n", rename={"tokens_in": "in"}):
    t: Seconds
    tokens_in: TokenCount
    out: TokenCount
    hash_ids: Annotated[list[BlockId], msgspec.Meta(max_length=TRACE_BLOCKS_MAX)]


class _StreamedRequest(_Request, tag="s"):
    pass


class _SubAgent(msgspec.Struct, tag_field="type", tag="subagent"):
    t: Seconds
    requests: list[msgspec.Raw]


class _File(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    block_size: Annotated[int, msgspec.Meta(ge=1, le=BLOCK_SIZE_MAX)]
    requests: list[msgspec.Raw]
    hash_id_scope: Literal["local"] = "local"
    tool_tokens: Annotated[int, msgspec.Meta(ge=0, le=TRACE_TOKENS_MAX)] = 0
    system_tokens: Annotated[int, msgspec.Meta(ge=0, le=TRACE_TOKENS_MAX)] = 0


_FILE: Final = msgspec.json.Decoder(_File)
_ENTRY: Final = msgspec.json.Decoder(_Request | _StreamedRequest | _SubAgent)
_TURN: Final = msgspec.json.Decoder(_Request | _StreamedRequest)
_LINE: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def conversation_files(paths: "list[Path] | tuple[Path, ...]") -> Iterator[Path]:
    """The files that are named, and of each folder its JSON files, in the order of their names.

    Raises:
        ConversationError: a folder has none.
    """
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = sorted(one for one in path.iterdir() if one.name.endswith(_SUFFIXES))
        if not found:
            raise ConversationError(
                f"{path}: expected a folder of conversations (*.json, *.json.gz), found none in it"
            )
        yield from found


def read_conversation(path: Path) -> Conversation:
    """One file, which may be compressed by gzip.

    Raises:
        ConversationError: it cannot be read, or is no conversation; it says what was expected, what
            came, and where.
    """
    content = _content_of(path)
    try:
        file = _FILE.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConversationError(
            f"{path}: expected a conversation of kv-cache-tester, a JSON object with id, block_size"
            f" and requests: {_said(error)}{_remedy(content)}"
        ) from error
    turns: list[Turn] = []
    agents = 0
    for number, raw in enumerate(file.requests):
        where = f"requests[{number}]"
        entry = _decoded(_ENTRY, raw, path, where)
        if isinstance(entry, _Request):
            turns.append(_turn_of(entry, 0.0, 0))
            continue
        agents += 1
        turns += [
            _turn_of(_decoded(_TURN, inner, path, f"{where}.requests[{place}]"), entry.t, agents)
            for place, inner in enumerate(entry.requests)
        ]
    turns.sort(key=lambda turn: turn.time_s)
    shared = file.tool_tokens + file.system_tokens
    return Conversation(file.id, file.block_size, shared, agents, turns)


def _content_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(CONVERSATION_BYTES_MAX + 1)
        if content.startswith(_GZIP):
            with gzip.open(path) as plain:
                content = plain.read(CONVERSATION_BYTES_MAX + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConversationError(f"{path}: cannot be read as gzip: {error}") from error
    except OSError as error:
        raise ConversationError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > CONVERSATION_BYTES_MAX:
        raise ConversationError(
            f"{path}: expected a file of at most {CONVERSATION_BYTES_MAX:,} bytes, got more"
        )
    return content


def _decoded(
    decoder: "msgspec.json.Decoder[EntryT]", raw: msgspec.Raw, path: Path, where: str
) -> EntryT:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConversationError(
            f"{path}: {where}: expected a request with type, t, in, out and hash_ids, or a"
            f" sub-agent with requests: {_said(error)}"
        ) from error


def _said(error: Exception) -> str:
    return str(error)[:ERROR_DETAIL_CHARS_MAX]


def _turn_of(request: _Request, begun_s: float, agent: int) -> Turn:
    return Turn(begun_s + request.t, request.tokens_in, request.out, request.hash_ids, agent)


def _remedy(content: bytes) -> str:
    """What to do about a file that is something else."""
    if content.startswith(b"version https://git-lfs"):
        return "; this is a pointer of Git LFS: `git lfs pull` brings the file"
    try:
        fields = _LINE.decode(content.split(b"\n", 1)[0])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    if {"timestamp", "hash_ids"} <= fields.keys():
        return "; this is a trace already: `reprise simulate` and `reprise miss-ratio` read it"
    return ""
