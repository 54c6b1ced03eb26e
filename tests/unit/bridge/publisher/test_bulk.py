"""What waits while a large message is decoded, and what does not."""

from collections.abc import Sequence

from bridge.publisher.bulk import BulkQueue
from bridge.publisher.counters import PublisherCounters
from bridge.publisher.publisher import Publisher
from bridge.publisher.sequencer import Intake
from bridge.sockets.raw_message import RawMessage
from schemas.identities import PublisherKey
from schemas.limits import BULK_BYTES
from tests.unit.bridge.messages import frames_of, registration

ONE, TWO = (registration(instance_id=name) for name in ("w-1", "w-2"))
BULK = ["BlockRemoved", list(range(BULK_BYTES // 2))]


def message(of: PublisherKey, sequence: int, *, large: bool = False) -> RawMessage:
    event = BULK if large else ["BlockRemoved", [sequence]]
    return RawMessage(of, frames_of([100.0 + sequence, [event], 0], sequence), float(sequence))


class Scene:
    """Two publishers that are followed, and their large messages."""

    def __init__(self) -> None:
        self.followed = {one.publisher: Publisher(one) for one in (ONE, TWO)}
        for publisher in self.followed.values():
            publisher.place()
            assert publisher.sequencer.resume(0.0) == []
        self.bulk = BulkQueue(self.followed)
        self._intake = Intake(lambda key: self.followed[key].sequencer)
        self.process = self._intake.process
        self.sort, self.put_back = self.bulk.sort, self.bulk.put_back

    def __len__(self) -> int:
        return len(self.bulk)

    def next(self) -> RawMessage | None:
        found = self.bulk.next()
        return None if found is None else found[1]

    def decode(self, message: RawMessage) -> RawMessage:
        return self.followed[message.publisher].sequencer.decoded(message)

    def take(self, message: RawMessage) -> list[RawMessage]:
        return self.bulk.take(self.followed[message.publisher], message)

    def written(self, taken: Sequence[RawMessage], count: int) -> None:
        self.bulk.written(self.followed[taken[0].publisher], taken, count)

    def discard(self, key: PublisherKey) -> None:
        self.bulk.discard(self.followed[key])

    def waiting_since(self, key: PublisherKey) -> float | None:
        return self.followed[key].waiting_since

    def counters(self, key: PublisherKey) -> PublisherCounters:
        return self.followed[key].sequencer.stream.counters


def test_small_messages_wait_for_nothing() -> None:
    waiting = Scene()
    sent = [message(ONE.publisher, 0), message(TWO.publisher, 0)]
    assert waiting.sort(sent) == sent
    assert len(waiting) == 0


def test_what_comes_behind_a_large_message_of_its_publisher_waits_and_the_others_go_on() -> None:
    waiting = Scene()
    before, large, behind = (message(ONE.publisher, n, large=n == 1) for n in range(3))
    other = message(TWO.publisher, 0)
    assert waiting.sort([before, large, other, behind]) == [before, other]
    later = message(ONE.publisher, 3)
    assert waiting.sort([later, message(TWO.publisher, 1)]) == [message(TWO.publisher, 1)]
    assert len(waiting) == 3
    assert waiting.waiting_since(ONE.publisher) == 1.0
    assert waiting.waiting_since(TWO.publisher) is None
    found = waiting.next()
    assert found == large
    decoded = waiting.decode(large)
    taken = waiting.take(decoded)
    assert taken == [decoded, behind, later]
    assert waiting.next() is None, "it is under way"
    assert waiting.waiting_since(ONE.publisher) == 1.0, "until their records are in the log"
    assert waiting.sort([message(ONE.publisher, 4)]) == []
    waiting.written(taken, 3)
    assert waiting.waiting_since(ONE.publisher) == 4.0
    assert len(waiting) == 1


def test_one_large_message_is_taken_at_a_time_and_publishers_take_turns() -> None:
    waiting = Scene()
    first, second, other = (
        message(ONE.publisher, 0, large=True),
        message(ONE.publisher, 1, large=True),
        message(TWO.publisher, 0, large=True),
    )
    waiting.sort([first, second, other])
    for wanted in (first, other, second):
        assert waiting.next() == wanted
        taken = waiting.take(waiting.decode(wanted))
        assert taken[0].frames is wanted.frames
        waiting.written(taken, 1)
    assert waiting.next() is None


def test_the_records_are_those_that_the_same_messages_give_in_a_row() -> None:
    waiting = Scene()
    sent = [message(ONE.publisher, n, large=n % 2 == 1) for n in range(5)]
    records = waiting.process(waiting.sort(sent), 5.0)
    while (large := waiting.next()) is not None:
        taken = waiting.take(waiting.decode(large))
        records += waiting.process(taken, 5.0)
        waiting.written(taken, len(taken))
    alone = Scene()
    expected = [one for single in sent for one in alone.process([single], 5.0)]
    spans = [(one.first_sequence, one.last_sequence) for one in records]
    assert list(dict.fromkeys(spans)) == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]
    assert spans.count((1, 1)) > 1, "a large batch is several records"
    assert [one.last_sequence for one in records] == [one.last_sequence for one in expected]
    assert waiting.counters(ONE.publisher).events == 5


def test_what_there_was_no_time_for_comes_before_the_large_one_it_was_sent_before() -> None:
    waiting = Scene()
    sent = [message(ONE.publisher, n, large=n == 3) for n in range(5)]
    other = message(TWO.publisher, 0)
    small = waiting.sort([*sent[:2], other, *sent[2:]])
    assert small == [*sent[:2], other, sent[2]]
    assert waiting.put_back(small[1:]) == [other]
    assert waiting.waiting_since(ONE.publisher) == 1.0
    records = waiting.process(small[:1], 5.0)
    sizes = []
    while (first := waiting.next()) is not None:
        taken = waiting.take(waiting.decode(first))
        sizes.append(len(taken))
        records += waiting.process(taken[:1], 5.0)
        waiting.written(taken, 1)
    spans = [(one.first_sequence, one.last_sequence) for one in records]
    assert list(dict.fromkeys(spans)) == [(n, n) for n in range(5)]
    assert sizes == [2, 1, 2, 1], "up to the large one, and behind it"


def test_what_is_discarded_meanwhile_is_not_taken() -> None:
    waiting = Scene()
    large = message(ONE.publisher, 0, large=True)
    waiting.sort([large])
    decoded = waiting.decode(large)
    waiting.discard(ONE.publisher)
    assert waiting.take(decoded) == []
    waiting.sort([message(ONE.publisher, 7, large=True)])
    assert waiting.take(decoded) == [], "it is of the registration before"
    waiting.written([decoded], 1)
    assert waiting.next() is not None, "nor does its end take away what came behind it"


def test_what_is_discarded_while_it_is_written_ends_nothing_that_came_behind_it() -> None:
    waiting = Scene()
    waiting.sort([message(ONE.publisher, 0, large=True)])
    found = waiting.next()
    assert found is not None
    before = waiting.take(waiting.decode(found))
    waiting.discard(ONE.publisher)
    waiting.sort([message(ONE.publisher, 7, large=True)])
    found = waiting.next()
    assert found is not None, "it is of another registration"
    taken = waiting.take(waiting.decode(found))
    waiting.written(before, 1)
    assert len(waiting) == 1
    assert waiting.next() is None, "it is still under way"
    waiting.written(taken, 1)
    assert len(waiting) == 0


def test_the_others_are_next_while_one_is_written() -> None:
    waiting = Scene()
    one, other = (message(one.publisher, 0, large=True) for one in (ONE, TWO))
    waiting.sort([one, other])
    taken = waiting.take(waiting.decode(one))
    assert waiting.next() == other
    behind = waiting.take(waiting.decode(other))
    assert waiting.next() is None
    waiting.written(behind, 1)
    waiting.written(taken, 1)
    assert len(waiting) == 0


def test_a_message_that_cannot_be_decoded_is_left_to_the_sequencer() -> None:
    waiting = Scene()
    broken = RawMessage(ONE.publisher, [b"", b"short", b"x" * (BULK_BYTES + 1)], 0.0)
    waiting.sort([broken])
    decoded = waiting.decode(broken)
    assert decoded.batch is None
    assert waiting.process(waiting.take(decoded), 5.0) == []
    assert waiting.counters(ONE.publisher).dropped == {"sequence_length": 1}


def test_what_is_large_of_one_that_is_not_followed_is_let_through_and_dropped() -> None:
    waiting = Scene()
    other = registration(instance_id="w-3")
    large = message(other.publisher, 0, large=True)
    assert waiting.sort([large]) == [large]
    assert waiting.put_back([large]) == [large]
    assert waiting.next() is None
