"""What becomes of one message in a turn: each case beside the others."""

from typing import NamedTuple

import pytest

from bridge.link_numbers import LinkNumber
from bridge.sockets.raw_message import RawMessage
from bridge.wire.drop_reasons import DropReason
from schemas.positions import Cursor
from tests.unit.bridge.messages import frames_of, registration
from tests.unit.bridge.publisher.sequencers import Sequencers

ONE, OTHER = (registration(instance_id=name) for name in ("w-1", "w-2"))
KEY = ONE.publisher
LINK = LinkNumber(5)


class Outcome(NamedTuple):
    """What it comes to."""

    records: int = 0
    waiting: int = 0
    unregistered: int = 0
    dropped: str = ""
    gaps: int = 0


def message(sequence: int, *, link: int = LINK, of: object = None) -> RawMessage:
    frames = frames_of([100.0 + sequence, [["BlockRemoved", [sequence]]], 0], sequence)
    return RawMessage((of or ONE).publisher, frames, 0.0, LinkNumber(link))  # type: ignore[attr-defined]


BROKEN = RawMessage(KEY, [b"", b"short", b""], 0.0, LINK)
CASES: dict[str, tuple[RawMessage, bool, Outcome]] = {
    "of one that is not followed": (message(10, of=OTHER), False, Outcome(unregistered=1)),
    "over a link to a process before": (
        message(10, link=LINK - 1),
        False,
        Outcome(dropped=DropReason.EARLIER_INCARNATION),
    ),
    "that follows": (message(10), False, Outcome(records=1)),
    "of an engine that has begun again": (message(9), False, Outcome(waiting=1, gaps=1)),
    "behind a gap": (message(12), False, Outcome(waiting=1, gaps=1)),
    "over another link": (message(10, link=LINK + 1), False, Outcome(waiting=1, gaps=1)),
    "while it is held": (message(10), True, Outcome(waiting=1)),
    "without a place": (BROKEN, False, Outcome(dropped="sequence_length")),
}


@pytest.mark.parametrize("with_others", [False, True], ids=["alone", "beside another"])
@pytest.mark.parametrize("name", CASES)
def test_a_message_comes_to_one_thing(name: str, with_others: bool) -> None:
    one, is_held, wanted = CASES[name]
    sequencers = Sequencers()
    sequencers.add(ONE, Cursor(1, 9), repairs=True)
    sequencer = sequencers[KEY]
    sequencer.stream.links.last, sequencer.stream.links.first = LINK, LINK
    sequencer.stream.prove(LINK)
    if is_held:
        sequencer.hold()
    beside = registration(instance_id="w-3")
    sequencers.add(beside)
    others = [message(0, of=beside)] if with_others else []
    records = sequencers.process([*others, one], 1.0)
    counters = sequencers.counters()[KEY]
    assert (
        Outcome(
            records=sum(record.publisher == KEY for record in records),
            waiting=sequencer.waiting,
            unregistered=sequencers.unregistered_messages,
            dropped=next(iter(counters.dropped), ""),
            gaps=len(sequencers.take_gaps()),
        )
        == wanted
    )
    assert len(records) == wanted.records + with_others
    assert sequencers.faults == 0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_as_many_messages_are_taken_as_there_is_time_for(count: int) -> None:
    """One at least; the others are for the next turn."""
    sequencers = Sequencers()
    sequencers.add(ONE, Cursor(1, 9))
    sequencers.add(OTHER)
    sent = [message(10 + at // 2, of=OTHER if at % 2 else ONE, link=0) for at in range(count)]
    records, taken = sequencers.process_until(sent, 1.0, 0.0)
    assert (len(records), taken) == (1, 1)
