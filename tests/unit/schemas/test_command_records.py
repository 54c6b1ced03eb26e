"""Records of commands: what is written is read, and nothing else is taken for one."""

import msgspec
import pytest

from schemas.codec import decode_command
from schemas.command_records import (
    COMMANDS_VERSION,
    AnyCommandRecord,
    BlockPlace,
    ClosedRecord,
    CommandAction,
    CommandOutcome,
    CommandRecord,
    CommandWorker,
    ResultRecord,
    encode_command,
)
from schemas.errors import RecordFormatError, RecordVersionError
from schemas.limits import COMMAND_TOKENS_MAX

COMMAND = CommandRecord(
    command_id="Move1",
    action=CommandAction.MOVE,
    instance_id="a",
    location="LocalCPUBackend",
    tokens=b"\1\0\0\0\xff\xff\xff\xff",
    target=BlockPlace("b", "LocalCPUBackend"),
    copy=True,
    workers=(CommandWorker(0, "10.0.0.7:8200"), CommandWorker(3)),
    issued_at=5.0,
)
RESULT = ResultRecord(
    command_id="Move1", worker_id=3, outcome=CommandOutcome.OK, tokens=2, ms=1.5, detail="", at=6.0
)
CLOSED = ClosedRecord(command_id="Move1", reason="late", at=7.0)


@pytest.mark.parametrize("record", [COMMAND, RESULT, CLOSED])
def test_what_was_written_is_read(record: AnyCommandRecord) -> None:
    assert decode_command(encode_command(record)) == record


@pytest.mark.parametrize("record", [COMMAND, RESULT, CLOSED])
def test_fields_of_later_versions_are_ignored_and_later_versions_refused(
    record: AnyCommandRecord,
) -> None:
    fields = msgspec.msgpack.decode(encode_command(record))
    assert decode_command(msgspec.msgpack.encode(fields | {"more": 1})) == record
    for newer in (fields | {"version": COMMANDS_VERSION + 1}, {"kind": "new", "version": 9}):
        with pytest.raises(RecordVersionError):
            decode_command(msgspec.msgpack.encode(newer))


@pytest.mark.parametrize(
    "changed",
    [
        {"workers": []},
        {"workers": [[0, ""], [0, "other"]]},
        {"workers": [[-1, ""]]},
        {"tokens": b"\0\0\0"},
        {"tokens": bytes(4 * COMMAND_TOKENS_MAX + 4)},
        {"action": "erase"},
        {"issued_at": float("nan")},
        {"command_id": ""},
        {"instance_id": "x" * 1025},
        {"kind": "events"},
    ],
)
def test_what_nobody_could_execute_is_no_command(changed: dict[str, object]) -> None:
    fields = msgspec.msgpack.decode(encode_command(COMMAND)) | changed
    with pytest.raises(RecordFormatError):
        decode_command(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize("junk", [b"", b"\xc0"])
def test_other_bytes_are_no_record(junk: bytes) -> None:
    with pytest.raises(RecordFormatError):
        decode_command(junk)
