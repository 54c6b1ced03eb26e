"""Commands on the wire: the maps that LMCache's workers read, and what their answers mean."""

import msgpack
import pytest

from lmcache_adapter.wire.commands import Reply, read_reply, request_of, unsupported
from schemas.command_records import (
    BlockPlace,
    CommandAction,
    CommandOutcome,
    CommandRecord,
    CommandWorker,
)

CPU = "LocalCPUBackend"
TOKENS = [1, 70_000, -1]
PACKED = b"\1\0\0\0" + (70_000).to_bytes(4, "little") + b"\xff\xff\xff\xff"


def command(action: CommandAction, **fields: object) -> CommandRecord:
    named: dict[str, object] = {
        "command_id": "X1",
        "action": action,
        "instance_id": "a",
        "location": CPU,
        "workers": (CommandWorker(2, "10.0.0.7:8200"),),
        "issued_at": 0.0,
        "tokens": PACKED,
    }
    return CommandRecord(**named | fields)  # type: ignore[arg-type]


def sent(record: CommandRecord) -> object:
    return msgpack.unpackb(request_of(record, record.workers[0]))


def test_each_command_is_the_map_that_a_worker_reads() -> None:
    name = "Worker2X1"
    assert sent(command(CommandAction.CLEAR)) == {
        "type": "ClearWorkerMsg",
        "worker_event_id": name,
        "location": CPU,
    }
    assert sent(command(CommandAction.PIN)) == {
        "type": "PinWorkerMsg",
        "worker_event_id": name,
        "location": CPU,
        "tokens": TOKENS,
    }
    assert sent(command(CommandAction.MOVE, target=BlockPlace("b", "L2"), copy=True)) == {
        "type": "MoveWorkerMsg",
        "worker_event_id": name,
        "old_position": CPU,
        "new_position": ["10.0.0.7:8200", "L2"],
        "tokens": TOKENS,
        "copy": True,
    }
    for action in (CommandAction.COMPRESS, CommandAction.DECOMPRESS):
        assert sent(command(action, method="cachegen", tokens=None)) == {
            "type": f"{action.capitalize()}WorkerMsg",
            "worker_event_id": name,
            "method": "cachegen",
            "location": CPU,
            "tokens": None,
        }
    assert sent(command(CommandAction.HEALTH)) == {
        "type": "HealthWorkerMsg",
        "worker_event_id": name,
    }


def test_what_lmcache_cannot_do_is_told_before_anybody_is_asked() -> None:
    assert "LocalCPUBackend" in unsupported(
        command(CommandAction.MOVE, target=BlockPlace("b", "Disk"))
    )
    assert "cachegen" in unsupported(command(CommandAction.COMPRESS, method="zip"))
    assert "cachegen" in unsupported(command(CommandAction.DECOMPRESS, method=""))
    assert not unsupported(command(CommandAction.MOVE, target=BlockPlace("b", CPU)))
    assert not unsupported(command(CommandAction.COMPRESS, method="cachegen"))
    assert not unsupported(command(CommandAction.CLEAR, location="anything"))


@pytest.mark.parametrize(
    "action", [one for one in CommandAction if one is not CommandAction.HEALTH]
)
def test_a_number_of_tokens_is_the_answer(action: CommandAction) -> None:
    answer = msgpack.packb({"type": f"{action.capitalize()}WorkerRetMsg", "num_tokens": 5})
    assert read_reply(action, answer) == Reply(CommandOutcome.OK, tokens=5)


@pytest.mark.parametrize("code", [0, -1])
def test_a_code_is_the_answer_of_a_health_check(code: int) -> None:
    answer = msgpack.packb({"type": "HealthWorkerRetMsg", "error_code": code})
    assert read_reply(CommandAction.HEALTH, answer) == Reply(CommandOutcome.OK, code=code)


def test_an_error_is_no_result() -> None:
    answer = msgpack.packb({"type": "ErrorMsg", "error": "Worker error: boom\nline"})
    reply = read_reply(CommandAction.CLEAR, answer)
    assert (reply.outcome, reply.code) == (CommandOutcome.REFUSED, -1001)
    assert reply.detail == "Worker error: boom?line"
    unknown = msgpack.packb({"type": "ErrorMsg", "error": "Unknown message: CompressWorkerMsg"})
    assert read_reply(CommandAction.COMPRESS, unknown).outcome is CommandOutcome.UNSUPPORTED


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (msgpack.packb({"type": "PinWorkerRetMsg", "num_tokens": 5}), -1002),
        (msgpack.packb({"type": "ClearWorkerRetMsg", "num_tokens": -5}), -1003),
        (msgpack.packb({"type": "ClearWorkerRetMsg", "num_tokens": 2**60}), -1003),
        (msgpack.packb({"type": "ClearWorkerRetMsg", "num_tokens": float("nan")}), -1003),
        (msgpack.packb({"type": "ClearWorkerRetMsg"}), -1003),
        (msgpack.packb({"type": "Other"}), -1003),
        (msgpack.packb([1]), -1003),
        (b"", -1003),
        (b"\xff" * 100, -1003),
    ],
)
def test_another_answer_is_no_result(answer: bytes, code: int) -> None:
    reply = read_reply(CommandAction.CLEAR, answer)
    assert (reply.outcome, reply.code, reply.tokens) == (CommandOutcome.REFUSED, code, 0)
    assert reply.detail


def test_a_code_beyond_its_range_is_cut() -> None:
    answer = msgpack.packb({"type": "HealthWorkerRetMsg", "error_code": -(2**60)})
    assert read_reply(CommandAction.HEALTH, answer).code == -(2**31)
