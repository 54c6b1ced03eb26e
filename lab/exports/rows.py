"""Events as rows: columns of one value an event, repeated for its blocks, and columns of blocks."""

import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from lab.exports.columns import COLUMNS
from replay.block_events import Step
from replay.chains import Chains
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks
from schemas.extras import need
from schemas.records import EventsRecord, GapRecord, RegisteredRecord, ResetRecord

_U64: Final = struct.Struct("<Q")
_I64_MAX: Final = 2**63 - 1
_MICROSECONDS: Final = 1_000_000
_TIME_MAX: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()

_OF_EVENTS: Final = tuple(column.name for column in COLUMNS if not column.is_of_block)


class Rows:
    """Rows that wait to be written. Cost O(blocks) bytes, and Python objects for prefixes alone.

    Args:
        chains: of the capture's publishers.

    Attributes:
        count: how many wait.
        token_bytes: of their tokens.
    """

    def __init__(self, chains: Chains) -> None:
        self._chains = chains
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self._events: dict[str, list[object]] = {name: [] for name in _OF_EVENTS}
        self._rows_of_event: list[int] = []
        self._blocks: list[int | None] = []
        self._hashes = bytearray()
        self._has_hash = bytearray()
        self._parents = bytearray()
        self._has_parent = bytearray()
        self._prefixes: list[int | None] = []
        self._tokens = bytearray()
        self._token_counts: list[int | None] = []
        self._extra_keys: list[bytes | None] = []

    @property
    def token_bytes(self) -> int:
        """See the class."""
        return len(self._tokens)

    def add(self, step: Step) -> None:
        """Takes what a record says."""
        publisher = step.record.publisher
        if step.forgets:
            self._chains.forget(publisher)
        if not isinstance(step.record, EventsRecord):
            self._add_record(step)
            return
        for number, event in step.events:
            self._add_event(step, number, event)

    def _add_record(self, step: Step) -> None:
        record = step.record
        values: dict[str, object] = {"kind": _kind_of(record)}
        if isinstance(record, GapRecord | ResetRecord):
            values |= {"incarnation": record.incarnation, "reason": record.reason}
            if isinstance(record, GapRecord):
                values |= {"sequence": record.first_sequence}
                values |= {"last_sequence": record.last_sequence}
        self._add_values(step, values)
        self._add_no_block()

    def _add_event(self, step: Step, number: int, event: BlockEvent) -> None:
        record = step.record
        assert isinstance(record, EventsRecord), "only these have events"
        values: dict[str, object] = {
            "event": number,
            "kind": type(event).__struct_config__.tag,
            "engine_time": _microseconds(record.engine_time),
            "incarnation": record.incarnation,
            "sequence": event.sequence if event.sequence <= _I64_MAX else None,
        }
        if isinstance(event, ClearedBlocks):
            if event.is_whole:
                self._chains.forget(record.publisher)
            elif event.medium is not None:
                values |= {"medium": event.medium.value}
        else:
            values |= {"medium": event.medium.value, "shared": event.shared}
            values |= {"cache_group": event.group}
        if isinstance(event, StoredBlocks):
            values |= {"tokens_per_block": event.block_size, "lora": event.lora_name}
            values |= {"spec_kind": event.spec_kind}
        self._add_values(step, values)
        if isinstance(event, StoredBlocks):
            self._add_stored(step, event)
        elif isinstance(event, RemovedBlocks) and len(event.hashes) >= _U64.size:
            count = len(event.hashes) // _U64.size
            self._add_hashes(event.hashes, count)
            self._parents += bytes(_U64.size * count)
            self._has_parent += bytes(count)
            self._prefixes += [None] * count
            self._token_counts += [None] * count
            self._extra_keys += [None] * count
        else:
            self._add_no_block()

    def _add_values(self, step: Step, values: dict[str, object]) -> None:
        stream, dp_rank = step.record.publisher
        values |= {
            "partition": step.partition,
            "position": step.position,
            "time": _microseconds(step.record.bridge_time),
            "tenant": stream.tenant_id,
            "model": stream.model_name,
            "block_size": stream.block_size,
            "salt": stream.additional_salt,
            "instance": stream.instance_id,
            "dp_rank": dp_rank,
        }
        for name, column in self._events.items():
            column.append(values.get(name))

    def _add_stored(self, step: Step, event: StoredBlocks) -> None:
        links = self._chains.stored(step.record.publisher, event)
        count = len(links)
        if not count:
            self._add_no_block(event.tokens)
            return
        is_chain = bool(event.tokens or event.token_hashes)
        self._add_hashes(event.hashes, count)
        self._parents += bytes(8) if event.parent is None else _U64.pack(event.parent)
        self._parents += (
            event.hashes[: _U64.size * (count - 1)] if is_chain else bytes(_U64.size * (count - 1))
        )
        self._has_parent.append(event.parent is not None)
        self._has_parent += bytes([is_chain]) * (count - 1)
        self._prefixes += [link.prefix if link and link.is_whole else None for link in links]
        if event.tokens:
            self._tokens += event.tokens[: len(event.tokens) // 4 * 4]
            self._token_counts += _split(len(event.tokens) // 4, event.block_size, count)
        else:
            self._token_counts += [None] * count
        if len(event.extra_keys) == count:
            self._extra_keys += event.extra_keys
        else:
            self._extra_keys += [None] * count

    def _add_hashes(self, hashes: bytes, count: int) -> None:
        self._hashes += hashes[: _U64.size * count]
        self._has_hash += b"\1" * count
        self._blocks += range(count)
        self._rows_of_event.append(count)
        self.count += count

    def _add_no_block(self, tokens: bytes = b"") -> None:
        self._hashes += bytes(_U64.size)
        self._has_hash.append(0)
        self._parents += bytes(_U64.size)
        self._has_parent.append(0)
        self._blocks.append(None)
        self._prefixes.append(None)
        self._tokens += tokens[: len(tokens) // 4 * 4]
        self._token_counts.append(len(tokens) // 4 if tokens else None)
        self._extra_keys.append(None)
        self._rows_of_event.append(1)
        self.count += 1

    def take(self, schema: Any) -> Any:
        """All that waits as a `pyarrow.Table` of this schema; nothing waits then."""
        arrow, numpy = need("pyarrow"), need("numpy")
        places = arrow.array(
            numpy.repeat(numpy.arange(len(self._rows_of_event)), self._rows_of_event)
        )
        columns: dict[str, Any] = {
            name: arrow.array(values, type=schema.field(name).type).take(places)
            for name, values in self._events.items()
        }
        columns["block"] = arrow.array(self._blocks, type=arrow.int32())
        columns["hash"] = _u64s(self._hashes, self._has_hash)
        columns["parent"] = _u64s(self._parents, self._has_parent)
        columns["prefix"] = arrow.array(self._prefixes, type=arrow.uint64())
        columns["tokens"] = _lists(self._tokens, self._token_counts)
        columns["extra_key"] = arrow.array(self._extra_keys, type=arrow.binary())
        self._clear()
        return arrow.table([columns[name] for name in schema.names], schema=schema)


def _kind_of(record: object) -> str:
    if isinstance(record, GapRecord):
        return "gap"
    if isinstance(record, ResetRecord):
        return "reset"
    return "registered" if isinstance(record, RegisteredRecord) else "unregistered"


def _microseconds(seconds: float) -> int | None:
    """None of a time that no calendar has."""
    return round(seconds * _MICROSECONDS) if 0 <= seconds < _TIME_MAX else None


def _split(tokens: int, block_size: int, count: int) -> list[int]:
    """How many each block has; the last one has what is left."""
    each = [min(block_size, max(0, tokens - number * block_size)) for number in range(count)]
    each[-1] = tokens - sum(each[:-1])
    return each


def _u64s(values: bytearray, present: bytearray) -> Any:
    arrow, numpy = need("pyarrow"), need("numpy")
    missing = numpy.frombuffer(bytes(present), dtype=numpy.uint8) == 0
    return arrow.array(numpy.frombuffer(bytes(values), dtype="<u8"), mask=missing)


def _lists(tokens: bytearray, counts: Sequence[int | None]) -> Any:
    arrow, numpy = need("pyarrow"), need("numpy")
    sizes = numpy.array([count or 0 for count in counts], dtype=numpy.int64)
    offsets = numpy.zeros(len(counts) + 1, dtype=numpy.int32)
    numpy.cumsum(sizes, out=offsets[1:])
    missing = arrow.array([count is None for count in counts])
    values = arrow.array(numpy.frombuffer(bytes(tokens), dtype="<u4"))
    return arrow.ListArray.from_arrays(arrow.array(offsets), values, mask=missing)
