"""What the first frame of a streamed message says is read as it was written."""

import pytest

from bridge.wire.stream_marks import WholeMark, read_topic, topic_of


@pytest.mark.parametrize("skipped", [0, 1, 2**63 - 1])
@pytest.mark.parametrize("mark", [None, WholeMark(), WholeMark(2, 5, 17), WholeMark(0, 1, 4)])
def test_a_mark_and_what_is_skipped_are_read_again(mark: WholeMark | None, skipped: int) -> None:
    assert read_topic(topic_of(mark, skipped)) == (mark, skipped)


@pytest.mark.parametrize("topic", [b"", b"kv-events", b"skips", b"skips x", b"begin skips"])
def test_other_topics_say_nothing(topic: bytes) -> None:
    assert read_topic(topic) == (None, 0)
