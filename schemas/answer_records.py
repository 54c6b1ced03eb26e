"""The answer record, format version 1: what is appended to the log of answers.

One record is one msgpack map, and has the answers of a short window:

    kind     str    "answers"
    version  int    1; a reader skips and counts records of a newer version
    run      int    of the service that gave them: Unix microseconds of its start
    replica  str    which of several services it was, as host:port; "" of the embedded form
    seed     int    of the prefix hash, u64
    answers  array  of answers, in the order of their numbers

One answer is one msgpack array:

    positions    array  [[partition, offset]]: what the table had folded of the log, exactly
    scope        array  [tenant_id, model_name, lora_name, block_size, additional_salt], as the
                        answer took it: a `cache_salt` that names a namespace is in it
    instance_id  str    the only instance that was asked for, or nil for all
    hits_only    bool   whether instances that hold nothing were left out
    tokens       int    of the prompt
    hashes       bin    the prompt's prefix hashes, u64 LE, from its first block to the first one
                        that no instance asked for holds, or to its end. Never its tokens
    instances    array  [[instance_id, longest, gpu, cpu, disk, ranks]] in tokens, by name; `ranks`
                        is [[dp_rank, matched, gpu_walk, cpu_walk, disk_walk]]
    time         float  Unix seconds when it was given; informs, orders nothing
    state        str    a `schemas.answer_states.AnswerState`; of the moment, not of the log
    sequence     int    of the run, from 0. One that is missing was dropped, or was given while a
                        record was half folded, or a flush half applied: no position has it

The answer is what a fold of the log up to `positions` gives, number for number; `reprise audit
verify` shows that. `only=exact` and `detail=1` choose from it and add to it afterwards.

A reader must ignore map keys that it does not know, and what stands behind `sequence`: fields are
only ever added.
"""

from collections.abc import Iterable
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from schemas.positions import LogOffset, Seconds

ANSWERS_VERSION: Final = 1

_Unsigned = Annotated[int, Meta(ge=0)]


class AnswerPosition(NamedTuple):
    """What was folded of one partition of the log; -1 for nothing."""

    partition: Annotated[int, Meta(ge=0)]
    offset: LogOffset


class AnsweredScope(NamedTuple):
    """A `PrefixScope` as a request had it: it may name what no log has."""

    tenant_id: str
    model_name: str
    lora_name: str
    block_size: Annotated[int, Meta(ge=1)]
    additional_salt: str


class AnsweredRank(NamedTuple):
    """See `streams.kernel.interface.RankMatch`."""

    dp_rank: _Unsigned
    matched: _Unsigned
    gpu_walk: _Unsigned
    cpu_walk: _Unsigned
    disk_walk: _Unsigned


class AnsweredInstance(NamedTuple):
    """See `streams.kernel.interface.InstanceMatch`."""

    instance_id: str
    longest: _Unsigned
    gpu: _Unsigned
    cpu: _Unsigned
    disk: _Unsigned
    ranks: tuple[AnsweredRank, ...]


class GivenAnswer(msgspec.Struct, frozen=True, array_like=True):
    """One answer; see the module."""

    positions: tuple[AnswerPosition, ...]
    scope: AnsweredScope
    instance_id: str | None
    hits_only: bool
    tokens: _Unsigned
    hashes: bytes
    instances: tuple[AnsweredInstance, ...]
    time: Seconds
    state: str
    sequence: _Unsigned


class AnswersRecord(msgspec.Struct, kw_only=True, frozen=True, tag_field="kind", tag="answers"):
    """The answers of one window; see the module. They stay encoded: `decode_answers`."""

    run: _Unsigned
    seed: _Unsigned
    replica: str = ""
    version: int = ANSWERS_VERSION
    answers: msgspec.Raw


_encoder = msgspec.msgpack.Encoder()
_EMPTY: Final = msgspec.Raw(b"\x90")
_FIELDS: Final = len(GivenAnswer.__struct_fields__)
_ARRAY_OF_FIELDS: Final = bytes([0x90 + _FIELDS])


def encode_answer(
    positions: Iterable[tuple[int, int]],
    scope: tuple[str, str, str, int, str],
    instance_id: str | None,
    *,
    hits_only: bool,
    tokens: int,
    hashes: bytes,
    instances: Iterable[tuple[object, ...]],
) -> bytes:
    """An answer without its last three fields, which `end_answer` gives."""
    fields = (tuple(positions), scope, instance_id, hits_only, tokens, hashes, tuple(instances))
    return _ARRAY_OF_FIELDS + b"".join(map(_encoder.encode, fields))


def end_answer(time: float, state: str, sequence: int) -> bytes:
    """What stands behind `encode_answer`."""
    return b"".join(map(_encoder.encode, (time, state, sequence)))


def encode_answers(run: int, seed: int, count: int, answers: bytes, *, replica: str = "") -> bytes:
    """The record of so many encoded answers, one behind the other. Cost O(bytes)."""
    empty = _encoder.encode(AnswersRecord(run=run, seed=seed, replica=replica, answers=_EMPTY))
    # The array stands last, so that what may be a megabyte is copied once.
    return b"".join((empty[:-1], b"\xdd", count.to_bytes(4, "big"), answers))
