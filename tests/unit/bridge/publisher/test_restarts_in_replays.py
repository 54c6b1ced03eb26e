"""An engine that restarts at any point of a replay: nothing of two incarnations is mixed, and once
its buffer covers it, the log has exactly what the new one has sent. Without sockets.
"""

from collections.abc import Iterator

import pytest

from bridge.link_numbers import LinkNumber
from bridge.publisher.anchor import NO_ANCHOR
from bridge.publisher.repair import RepairStep, ReplayRepair
from bridge.sockets.raw_message import RawMessage
from schemas.answer_states import Doubt
from schemas.records import EventsRecord, GapRecord, ResetRecord, SequencedRecord
from tests.unit.bridge.messages import frames_of, registration
from tests.unit.bridge.publisher.sequencers import Sequencers

ONE = registration()
KEY = ONE.publisher
BATCHES = 8
OLD, NEW = 100.0, 500.0
ASKED_BEFORE = 3


def batch(number: int, born: float, link: int = 0) -> RawMessage:
    return RawMessage(KEY, frames_of([born + number, [], 0], number), 0.0, LinkNumber(link))


class World:
    """An engine with its two sockets, and the bridge that follows it.

    Args:
        point: how many messages of replies are sent before the engine restarts, end markers
            included; None for never.
        new: how many batches the new incarnation has sent by the time it is asked.
        heard: how many of the old one have come live at first.
        is_noticed: whether the end of its link is seen at once, or only after the reply.
        clock: by how much that of the new process is ahead.
    """

    def __init__(
        self, point: int | None, new: int, *, heard: int, is_noticed: bool, clock: float
    ) -> None:
        self.born, self.sent = OLD, BATCHES
        self.link = 1
        self.records: list[SequencedRecord] = []
        self._point, self._new, self._clock = point, new, clock
        self._is_noticed = is_noticed
        self._seen_link = 1
        self._replied = 0
        self._sequencers = Sequencers()
        self._sequencers.add(ONE, repairs=True)
        self._sequencer = self._sequencers[KEY]
        self._sequencer.set_anchor(NO_ANCHOR)
        self._sequencer.stream.links.note(LinkNumber(1))
        self._sequencer.hold()
        self.arrive(*(batch(number, OLD, 1) for number in range(heard)))

    def arrive(self, *messages: RawMessage) -> None:
        self.records += self._sequencers.process(messages, 1.0)

    def publish(self) -> None:
        """One more batch, live."""
        self.arrive(batch(self.sent, self.born, self.link))
        self.sent += 1

    def _restart(self) -> None:
        self.born, self.sent = NEW + self._clock, self._new
        self.link += 1
        if self._is_noticed:
            self.notice()

    def notice(self) -> None:
        """The bridge looks at its links."""
        self._seen_link = self.link
        self._sequencer.stream.links.note(LinkNumber(self.link))

    def _replies(self, start: int) -> Iterator[RawMessage | None]:
        """Of one request; None for the end marker. A restart ends it without one."""
        for number in [*range(start, self.sent), None]:
            if self._replied == self._point:
                self._restart()
                self._point = None
                return
            self._replied += 1
            yield None if number is None else batch(number, self.born)

    @property
    def has_restarted(self) -> bool:
        return self.link > 1

    def ask(self) -> Doubt | None:
        """A repair, to its end; then what waits follows."""
        self._sequencer.hold()
        repair = ReplayRepair(self._sequencer)
        while repair.begin():
            answer = RepairStep.MORE
            for reply in self._replies(repair.start):
                if reply is None:
                    answer = repair.end(complete=True)
                    break
                for records in repair.feed([reply], 1.0):
                    self.records += records
                answer = repair.answer
                if answer is not RepairStep.MORE:
                    break
            if answer is RepairStep.MORE:
                answer = repair.end(complete=False)
            if answer is RepairStep.DONE:
                break
        self.records += self._sequencer.resume(1.0)
        return repair.doubt

    def settle(self) -> Doubt | None:
        """What the bridge does by and by: it sees the link, hears a batch, and asks once more."""
        self.notice()
        self.ask()
        self.publish()
        self.ask()
        self._sequencers.take_gaps()
        return self.ask()

    @property
    def incarnations(self) -> list[list[object]]:
        """Of each: the time at which the process of each batch was born, and what is lost."""
        found: list[list[object]] = [[]]
        for record in self.records:
            if isinstance(record, ResetRecord):
                found.append([])
            elif isinstance(record, GapRecord):
                found[-1].append((record.first_sequence, record.last_sequence))
            else:
                assert isinstance(record, EventsRecord)
                found[-1].append(record.engine_time - record.last_sequence)
        return found


@pytest.mark.parametrize("is_noticed", [True, False], ids=["noticed", "unnoticed"])
@pytest.mark.parametrize("heard", [0, 1, BATCHES - 1, BATCHES])
@pytest.mark.parametrize("new", [0, 1, BATCHES - 1, BATCHES, BATCHES + 1, 3 * BATCHES])
@pytest.mark.parametrize("clock", [0.0, -450.0], ids=["", "clock set back"])
def test_at_every_point_of_a_replay(new: int, heard: int, is_noticed: bool, clock: float) -> None:
    for point in range(100):
        world = World(point, new, heard=heard, is_noticed=is_noticed, clock=clock)
        for _ in range(ASKED_BEFORE):
            world.ask()
        if not world.has_restarted:
            assert point > ASKED_BEFORE, "each time it is asked something is sent"
            break  # never as much as this
        doubt = world.settle()
        place = f"restarted at {point}"
        for one in world.incarnations:
            born = {time for time in one if isinstance(time, float)}
            assert len(born) <= 1, f"{place}: batches of two processes in one incarnation: {one}"
        last = world.incarnations[-1]
        assert world._sequencer.stream.cursor.sequence == world.sent - 1, place
        lost = [one for one in last if isinstance(one, tuple)]
        assert {time for time in last if isinstance(time, float)} == {world.born}, place
        assert doubt is None, place
        assert lost == [], f"{place}: its buffer has all"
