"""Proof of the answers of replicas: each is derived again from the events topic, and compared.

The log is folded once for each chain of answers (`streams.audit.chains`), all partitions into one
kernel, as a replica has them. It takes answers of a log that Kafka still has from its beginning:
what came before is in no topic.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from heapq import heappop, heappush

from brokers.availability import check_access, until_reached
from brokers.broker_settings import KafkaSettings
from brokers.options import client_options
from logs.partition_log import PartitionLog, opened_partitions
from logs.topic import bounds_in, read_once
from schemas.answer_records import AnswersRecord, GivenAnswer
from schemas.codec import decode_answers
from schemas.errors import ConfigurationError, RecordError, RecordFormatError
from schemas.identities import Offset
from schemas.limits import TABLE_FLUSH_CHANGES_MAX, TAIL_REACH_S
from schemas.positions import LogBounds
from streams.audit.chains import RecordPlace, Vector, bounds_of, by_rising_sum, chains_of, vector_of
from streams.audit.source import ANSWERS_TOPIC
from streams.audit.verification import AnswerNumbers, VerificationResult, answer_again, check_seed
from streams.kernel import open_kernel
from streams.table.fold import NO_OFFSET, Fold

Tell = Callable[[int, int], None]
"""Told now and then how many answers are done, of how many."""


def silent(done: int, total: int) -> None:
    """Tells nobody."""


class _Table:
    """A fold of all partitions into one kernel, as of a vector that only rises."""

    def __init__(self, seed: int, events: Sequence[PartitionLog]) -> None:
        self.kernel = open_kernel(seed)
        self._events = events
        self._folds = [Fold(self.kernel, partition=place) for place, _ in enumerate(events)]
        self._at = [int(NO_OFFSET)] * len(events)
        for log in events:
            log.seek(Offset(log.bounds.start))

    def has_passed(self, vector: Vector) -> bool:
        """Whether it is beyond the vector in some partition."""
        return any(offset < at for offset, at in zip(vector, self._at, strict=True))

    async def go_to(self, vector: Vector) -> None:
        """Folds all up to and including the vector. Cost O(records since the last call)."""
        for partition, offset in enumerate(vector):
            if offset > self._at[partition]:
                fold = self._folds[partition]
                async for entry in self._events[partition].entries(Offset(offset)):
                    fold.apply(entry.offset, entry.value)
                    if self.kernel.pending_changes() >= TABLE_FLUSH_CHANGES_MAX:
                        self._forget_changes()
                self._at[partition] = offset

    def _forget_changes(self) -> None:
        for fold in self._folds:
            fold.take_changes()


class TopicsVerification:
    """Verifies topics of answers against the events.

    Args:
        answers, events: their partitions, by rising number.
    """

    def __init__(self, answers: Sequence[PartitionLog], events: Sequence[PartitionLog]) -> None:
        self._answers = answers
        self._events = events
        self._verified = VerificationResult()
        self._places: defaultdict[int, list[RecordPlace]] = defaultdict(list)  # by seed
        self.folds = 0

    async def run(self, on_progress: Tell = silent) -> VerificationResult:
        """Verifies all of them. Cost O(answers + records of the log * chains); memory O(records of
        answers).

        Raises:
            StorageError: retention dropped meanwhile what is read.
            KafkaError: Kafka went away.
        """
        await self._survey()
        for seed in sorted(self._places):
            places = self._places[seed]
            while places:
                late: list[RecordPlace] = []
                for chain in chains_of(places):
                    late += await self._verify(seed, chain, on_progress)
                places = late
        return self._verified

    # What there is

    async def _survey(self) -> None:
        numbers = AnswerNumbers()
        for partition, log in enumerate(self._answers):
            async for entry in log.entries(Offset(log.bounds.end - 1)):
                try:
                    record, answers = decode_answers(entry.value)
                    self._place(partition, entry.offset, record, answers)
                except RecordError as error:
                    where = f"record {partition}:{entry.offset} of the topic of answers"
                    self._verified.note_unreadable(where, error)
                    continue
                if answers:
                    numbers.note(record, answers)
        self._verified.missing = numbers.missing

    def _place(
        self, partition: int, offset: Offset, record: AnswersRecord, answers: list[GivenAnswer]
    ) -> None:
        """Raises RecordFormatError: the answers are of another log, or of one seed too many."""
        check_seed(record.seed, self._places)
        vectors = [self._vector_of(given) for given in answers]
        for given in answers:
            self._verified.note_read(given.positions)
        provable = []
        for vector in vectors:
            reason = self._why_beyond(vector)
            if reason:
                self._verified.note_beyond(reason)
            else:
                provable.append(vector)
        if provable:
            low, high = bounds_of(provable)
            source = (record.replica, record.run)
            self._places[record.seed].append(RecordPlace(low, partition, offset, high, source))

    def _vector_of(self, given: GivenAnswer) -> Vector:
        vector = vector_of(given, len(self._events))
        if vector is None:
            detail = f"an answer of a log with other partitions than 0 to {len(self._events) - 1}"
            raise RecordFormatError(detail=detail)
        return vector

    def _why_beyond(self, vector: Vector) -> str:
        """Why an answer cannot be derived again, or ""."""
        for partition, (offset, log) in enumerate(zip(vector, self._events, strict=True)):
            start, end = log.bounds
            if offset >= end:
                return (
                    f"Expected positions of this log, whose partition {partition} ends at"
                    f" {end - 1}, got: {offset}"
                )
            if offset > NO_OFFSET and start > 0:
                return (
                    f"Expected events from their beginning, but partition {partition} has them only"
                    f" from {start} on (retention), and position {offset} needs what was before"
                )
        return ""

    # What is so

    async def _verify(
        self, seed: int, chain: list[RecordPlace], on_progress: Tell
    ) -> list[RecordPlace]:
        """Verifies what rises of a chain; returns what must be looked at from the beginning."""
        self.folds += 1
        table, verified, late = _Table(seed, self._events), self._verified, list[RecordPlace]()
        async for place, record, given in self._by_sum(chain):
            vector = self._vector_of(given)
            if self._why_beyond(vector):
                continue
            if table.has_passed(vector):
                only = frozenset([given.sequence])
                late.append(place._replace(low=vector, high=vector, only=only))
                continue
            await table.go_to(vector)
            verified.note_derived(given, answer_again(table.kernel, given), record)
            on_progress(verified.done, verified.answers)
        return late

    async def _by_sum(
        self, chain: list[RecordPlace]
    ) -> AsyncIterator[tuple[RecordPlace, AnswersRecord, GivenAnswer]]:
        """Answers by the sum of their offsets, which rises where each of them does. What is held at
        once are the records that overlap: those of some windows.
        """
        waiting: list[tuple[int, int, RecordPlace, AnswersRecord, GivenAnswer]] = []
        number = 0
        for place in sorted(chain, key=by_rising_sum):
            while waiting and waiting[0][0] < sum(place.low):
                yield heappop(waiting)[2:]
            log = self._answers[place.partition]
            log.seek(Offset(place.offset))
            async for entry in log.entries(Offset(place.offset)):
                record, answers = decode_answers(entry.value)
                for given in answers:
                    if place.only is None or given.sequence in place.only:
                        total = sum(self._vector_of(given))
                        heappush(waiting, (total, number, place, record, given))
                        number += 1
        while waiting:
            yield heappop(waiting)[2:]


def verify_topics(settings: KafkaSettings, on_progress: Tell = silent) -> VerificationResult:
    """Verifies the answers that are in Kafka now, in no consumer group.

    Raises:
        ConfigurationError: no broker answers or lets us in, or there is no such topic.
        StorageError: Kafka went away, or retention dropped meanwhile what is read.
    """
    return read_once(settings, _verify_topics(settings, on_progress))


async def _verify_topics(settings: KafkaSettings, on_progress: Tell) -> VerificationResult:
    options = client_options(settings)
    named = (settings.topic(ANSWERS_TOPIC).name, settings.topics.events.name)

    async def look() -> list[Mapping[int, LogBounds]]:
        await check_access(options)
        # The answers first: what they are of is in the log by then.
        return [await bounds_in(options, topic) for topic in named]

    try:
        found = await until_reached(look, servers=settings.bootstrap, patience_s=TAIL_REACH_S)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"Expected the topics {named[0]}, which `reprise serve` with audit.rate makes, and"
            f" {named[1]}: {error}"
        ) from error
    async with AsyncExitStack() as opened:
        answers, events = [
            await opened_partitions(opened, options, topic, bounds)
            for topic, bounds in zip(named, found, strict=True)
        ]
        return await TopicsVerification(answers, events).run(on_progress)
