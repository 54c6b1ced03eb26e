"""The master of the tests packs what a real one has packed, byte for byte."""

import pytest

from bridge.wire import mooncake
from tests.mooncake import Master
from tests.unit.bridge.messages import Captured, captured_messages

OURS = ("00_stored_rank", "02_stored_number", "03_stored_hex", "05_removed", "06_removed_number")
OF_DEV = ("11_committed_one_medium", "15_cleared")
CAPTURED = [
    one
    for one in captured_messages()
    if one.kind == mooncake.KIND
    and (one.name.endswith(OURS) or ("dev" in one.name and one.name.endswith(OF_DEV)))
]


@pytest.mark.parametrize("captured", CAPTURED, ids=[one.name for one in CAPTURED])
def test_its_frames_are_those_of_a_real_one(captured: Captured) -> None:
    is_dev = "-dev-" in captured.name
    master = Master(model_name="m" if is_dev else None, block_size=4 if is_dev else None)
    time_ms, events, _ = captured.decoded
    assert isinstance(events, list)
    assert isinstance(time_ms, int)
    master._event_id = events[0]["event_id"] - 1
    wanted = [(one["event_type"], one.get("object_key", ""), one["medium"]) for one in events]
    try:
        assert master.payload(wanted, time_ms) == captured.frames[2]
    finally:
        master.close()


def test_all_of_these_were_found() -> None:
    assert len(CAPTURED) == 2 * len(OURS) + len(OF_DEV)
