"""An inbox has no other messages for it whether they come in runs or each by itself: the same are
taken, in the same order, and the same have no room.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.sockets import inbox as inboxes
from bridge.sockets.inbox import Inbox
from bridge.sockets.raw_message import RawMessage, RawRun, Received, behind, count_of, each_of
from streams.kernel import message_run, native_available
from tests.unit.bridge.messages import registration

pytestmark = pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")

KEYS = [registration(instance_id=name).publisher for name in ("a", "b", "c")]
SHARE_MESSAGES, SHARE_BYTES, BULK = 3, 120, 60
Step = tuple[str, int, int]


def runs_of(messages: Sequence[RawMessage]) -> Iterator[Received]:
    """What is large stays by itself, as the kernel's reader leaves it."""
    assert message_run is not None
    key = lambda one: (one.publisher, one.received_at, one.size_bytes > BULK)  # noqa: E731
    for (publisher, received_at, is_large), some in groupby(messages, key=key):
        if is_large:
            yield from some
        else:
            yield RawRun(publisher, message_run([one.frames for one in some]), received_at)


def facts(inbox: Inbox) -> list[object]:
    return [
        len(inbox),
        bool(inbox),
        inbox.size_bytes,
        inbox.large_messages,
        inbox.dropped(),
        [inbox.waiting_since(key) for key in KEYS],
        [inbox.is_filling(key) for key in KEYS],
        inbox.take_overflowed(),
    ]


steps = st.lists(
    st.tuples(
        st.sampled_from(["put"] * 4 + ["take"] * 4 + ["give_back", "pause", "resume", "discard"]),
        st.integers(0, 2),
        st.integers(1, 12),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=400)
@given(steps, st.data())
def test_runs_wait_as_their_messages_do(history: list[Step], data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inboxes, "INBOX_SHARE_MESSAGES", SHARE_MESSAGES)
        patch.setattr(inboxes, "INBOX_SHARE_BYTES", SHARE_BYTES)
        patch.setattr(inboxes, "BULK_BYTES", BULK)
        woken: list[list[int]] = [[], []]
        in_runs = Inbox(messages_max=30, bytes_max=900, when_filled=lambda: woken[0].append(number))
        alone = Inbox(messages_max=30, bytes_max=900, when_filled=lambda: woken[1].append(number))
        for number, (what, of, many) in enumerate(history):
            publisher = KEYS[of]
            match what:
                case "put":
                    sizes = data.draw(st.lists(st.integers(0, 70), min_size=many, max_size=many))
                    sent = [
                        RawMessage(publisher, [b"", bytes(8), bytes(size)], float(number))
                        for size in sizes
                    ]
                    alone.put(sent)
                    in_runs.put(list(runs_of(sent)))
                case "take" | "give_back":
                    most = data.draw(st.integers(1, 200))
                    expected = alone.take(many, bytes_max=most)
                    got = in_runs.take(many, bytes_max=most)
                    assert list(each_of(got)) == list(each_of(expected))
                    if what == "give_back":
                        count = data.draw(st.integers(0, count_of(got)))
                        alone.give_back(behind(expected, count))
                        in_runs.give_back(behind(got, count))
                case "pause":
                    alone.pause(publisher)
                    in_runs.pause(publisher)
                case "resume":
                    alone.resume(publisher)
                    in_runs.resume(publisher)
                case "discard":
                    alone.discard(publisher)
                    in_runs.discard(publisher)
            assert facts(in_runs) == facts(alone), f"step {number}: {what}"
        assert woken[0] == woken[1]
