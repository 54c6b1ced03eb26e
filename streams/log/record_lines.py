"""Log records as JSON lines for people and for `jq`.

    {"partition", "offset", "kind", "version", "stream": {...}, "dp_rank", "bridge_time", ...}
    {"partition", "offset", "error"}                         what is not a record

Engine hashes are decimal strings, since many readers of JSON would round a 64-bit number; tokens
are numbers. Extra keys are shown as what they are made of, bytes in them as hex.
"""

import struct
from typing import Any, Final, NamedTuple

import msgspec

from schemas.codec import UNUSABLE, decode_log_record, decode_record_events
from schemas.errors import RecordError
from schemas.events import BlockEvent, StoredBlocks
from schemas.identities import StreamKey
from schemas.memory_segments import MemoryRecord
from schemas.records import EventsRecord, HeartbeatRecord, Record, RegisteredRecord

TAIL_KEY_NESTING_MAX: Final = 8  # of extra keys shown as values; deeper ones are shown as hex

assert TAIL_KEY_NESTING_MAX < 100, "extra keys are shown within Python's recursion limit"

_encoder: Final = msgspec.json.Encoder()


class PlacedRecord(NamedTuple):
    """A record where it stands; `value` is None for a message without one."""

    partition: int
    offset: int
    value: bytes | None


class StreamFilter(NamedTuple):
    """Which streams' records are wanted; None for any."""

    tenant: str | None = None
    model: str | None = None
    instance: str | None = None

    def matches(self, stream: StreamKey) -> bool:
        """Whether the stream is wanted."""
        return (
            self.tenant in (None, stream.tenant_id)
            and self.model in (None, stream.model_name)
            and self.instance in (None, stream.instance_id)
        )


def record_line(
    entry: PlacedRecord, wanted: StreamFilter, *, compact: bool = False
) -> bytes | None:
    """The entry as one line of JSON, without its end; None where the filter excludes it.

    What cannot be decoded says nothing of its stream, so no filter excludes it.

    Args:
        compact: how many hashes, tokens and extra keys there are, in place of them.
    """
    fields: dict[str, Any] = {"partition": entry.partition, "offset": entry.offset}
    try:
        if entry.value is None:
            raise ValueError("Expected a log record, got a message without a value")
        record = decode_log_record(entry.value)
    except (RecordError, ValueError) as error:
        return _encoder.encode(fields | {"error": str(error)})
    if isinstance(record, HeartbeatRecord):
        return _heartbeat_line(fields, record, wanted)
    if isinstance(record, MemoryRecord):
        # Of no stream, so any filter excludes it.
        own = {"kind": "memory"} | msgspec.structs.asdict(record)
        return _encoder.encode(fields | own) if wanted == StreamFilter() else None
    if not wanted.matches(record.stream):
        return None
    return _encoder.encode(fields | _record_fields(record, compact=compact))


def _heartbeat_line(
    fields: dict[str, Any], record: HeartbeatRecord, wanted: StreamFilter
) -> bytes | None:
    """With the reports that are wanted; None where a filter leaves none."""
    reports = [report for report in record.reports if wanted.matches(report.stream)]
    if not reports and wanted != StreamFilter():
        return None
    fields |= {"kind": "heartbeat", "version": record.version, "bridge": record.bridge}
    fields |= {"uptime": record.uptime, "bridge_time": record.bridge_time}
    fields |= {"age": record.age, "complete": record.complete}
    fields["reports"] = [
        {
            "stream": report.stream._asdict(),
            "dp_rank": report.dp_rank,
            "reason": report.reason,
            "since": report.since,
            "activity": report.activity,
            "activity_since": report.activity_since,
            "process": None if report.process is None else report.process._asdict(),
        }
        for report in reports
    ]
    return _encoder.encode(fields)


def _record_fields(record: Record, *, compact: bool) -> dict[str, Any]:
    config = record.__struct_config__
    fields: dict[str, Any] = {"kind": config.tag, "version": record.version}
    fields |= {"stream": record.stream._asdict(), "dp_rank": record.dp_rank}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        shown_below = ("version", "stream", "dp_rank", "registration", "events")
        if name not in shown_below and value is not msgspec.UNSET:
            fields[name] = value
    if isinstance(record, RegisteredRecord):
        fields["registration"] = msgspec.to_builtins(record.registration)
    if isinstance(record, EventsRecord):
        try:
            events = decode_record_events(record)
            fields["events"] = [_event_fields(event, compact=compact) for event in events]
        except (RecordError, struct.error) as error:
            fields["error"] = f"Expected an array of block events, got: {error}"
    return fields


def _event_fields(event: BlockEvent, *, compact: bool) -> dict[str, Any]:
    # Bytes would come out as base64; they are taken out here and put in below as what they are.
    fields: dict[str, Any] = {"type": event.__struct_config__.tag}
    fields |= msgspec.to_builtins(event, builtin_types=(bytes,))
    if "hashes" in fields:
        hashes = _numbers("Q", fields["hashes"])
        fields["hashes"] = len(hashes) if compact else [str(number) for number in hashes]
    if isinstance(event, StoredBlocks):
        tokens = _numbers("I", event.tokens)
        fields["tokens"] = len(tokens) if compact else tokens
        if event.token_hashes:
            hashes = _numbers("Q", event.token_hashes)
            fields["token_hashes"] = len(hashes) if compact else [str(one) for one in hashes]
        if event.parent is not None:
            fields["parent"] = str(event.parent)
        if event.aliases:
            aliases = _numbers("Q", event.aliases)
            fields["aliases"] = len(aliases) if compact else [str(number) for number in aliases]
        if event.extra_keys:
            keys = event.extra_keys
            fields["extra_keys"] = len(keys) if compact else [_extra_key(key) for key in keys]
    return fields


def _numbers(code: str, encoded: bytes) -> list[int]:
    return [number for (number,) in struct.iter_unpack(f"<{code}", encoded)]


def _extra_key(key: bytes) -> Any:
    if not key:
        return None
    try:
        return _readable(msgspec.msgpack.decode(key))
    except UNUSABLE:
        return key.hex()


def _readable(value: Any, nesting: int = 0) -> Any:
    """Raises TypeError for what no engine's extra keys are made of."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list) and nesting < TAIL_KEY_NESTING_MAX:
        return [_readable(item, nesting + 1) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"Expected extra keys of strings, numbers and bytes, got: {type(value)}")
