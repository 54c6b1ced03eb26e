"""How much the process has grown."""

from pathlib import Path

import pytest

from bridge.sockets.memory_growth import _PAGE_BYTES, MemoryGrowth
from schemas.limits import MIB


def test_what_was_taken_since_the_last_call_is_told_once() -> None:
    growth = MemoryGrowth()
    growth.take()
    held = bytearray(b"\x01") * (64 * MIB)
    assert 60 * MIB < growth.take() < 90 * MIB
    assert growth.take() < 16 * MIB
    assert len(held) == 64 * MIB
    growth.close()
    assert growth.take() == 0


def test_shrinking_is_no_growth_and_the_next_growth_counts_from_there(tmp_path: Path) -> None:
    told = tmp_path / "statm"
    told.write_text("900 500 3 4 0 5 0\n")
    growth = MemoryGrowth(str(told))
    told.write_text("900 200 3 4 0 5 0\n")
    assert growth.take() == 0
    told.write_text("900 207 3 4 0 5 0\n")
    assert growth.take() == 7 * _PAGE_BYTES


@pytest.mark.parametrize("content", [None, "", "12", "a b c"])
def test_where_the_system_does_not_tell_nothing_grows(tmp_path: Path, content: str | None) -> None:
    told = tmp_path / "statm"
    if content is not None:
        told.write_text(content)
    growth = MemoryGrowth(str(told))
    assert growth.take() == 0
    growth.close()
