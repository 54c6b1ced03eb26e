"""Proof of answers: each is derived again from the log of records and its history, and compared.

The answers are taken by rising position, and the fold goes on from one to the next: the log is
folded once, however many there are. It begins anew where a table did (`streams.history.store`), or
where retention has left a hole.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from heapq import heappop, heappush
from pathlib import Path
from typing import Final, NamedTuple

from logs.embedded import ReadOnlyLog
from logs.interface import LogEntry, ReadableLog
from schemas.answer_records import (
    AnsweredInstance,
    AnsweredRank,
    AnswerPosition,
    AnswersRecord,
    GivenAnswer,
)
from schemas.codec import decode_answers
from schemas.errors import PastError, RecordError, RecordFormatError
from schemas.identities import Offset, PrefixScope, StreamKey
from schemas.limits import AUDIT_SHOWN_MAX, BLOCK_SIZE_MAX, TABLE_FLUSH_CHANGES_MAX
from streams.audit.log import ANSWERS
from streams.history.past_fold import FlushPoint, Past
from streams.history.store import HistoryStore
from streams.kernel import open_kernel
from streams.kernel.interface import Kernel, ReadOnlyKernel
from streams.table.fold import NO_OFFSET, Fold

AUDIT_SEEDS_MAX: Final = 8  # of the prefix hash, each of which costs a fold of the log: unreadable


class Disagreement(NamedTuple):
    """What an answer said of one instance, and what is so; None where it has no such instance.

    Attributes:
        detail: what else is wrong with the answer, where no instance differs.
    """

    answer: GivenAnswer
    run: int
    instance_id: str
    said: AnsweredInstance | None
    found: AnsweredInstance | None
    replica: str = ""
    detail: str = ""


class VerificationResult:
    """What came of all answers.

    Attributes:
        lowest, highest: by partition, the positions that they were given at.
        agreed, disagreed: of those that could be derived again.
        beyond: those that could not; `beyond_reason` says why, of the first one.
        missing: numbers between those that were read: dropped, or given while a record was half
            folded, or a flush half applied.
        unreadable: records of the log of answers that are none, or a newer Reprise's; and which.
        shown: disagreements, at most `AUDIT_SHOWN_MAX`.
    """

    def __init__(self) -> None:
        self.answers = self.agreed = self.disagreed = self.beyond = self.missing = 0
        self.lowest: dict[int, int] = {}
        self.highest: dict[int, int] = {}
        self.beyond_reason = ""
        self.unreadable = 0
        self.unreadable_reason = ""
        self.shown: list[Disagreement] = []

    @property
    def is_proven(self) -> bool:
        """Whether nothing disagrees, and everything could be read."""
        return not self.disagreed and not self.unreadable

    @property
    def done(self) -> int:
        """Answers of which it is known."""
        return self.agreed + self.disagreed + self.beyond

    def note_read(self, positions: Iterable[AnswerPosition]) -> None:
        """An answer was read, which was given there."""
        self.answers += 1
        for partition, offset in positions:
            self.lowest[partition] = min(self.lowest.get(partition, offset), offset)
            self.highest[partition] = max(self.highest.get(partition, offset), offset)

    def note_unreadable(self, where: str, error: RecordError) -> None:
        """A record of answers is none."""
        self.unreadable += 1
        self.unreadable_reason = self.unreadable_reason or f"{where}: {error}"

    def note_beyond(self, reason: str) -> None:
        """An answer cannot be derived again."""
        self.beyond += 1
        self.beyond_reason = self.beyond_reason or reason

    def note_derived(
        self, given: GivenAnswer, found: tuple[AnsweredInstance, ...], record: AnswersRecord
    ) -> None:
        """An answer of the record was derived again."""
        detail = _wrong_hashes(given, found)
        if found == given.instances and not detail:
            self.agreed += 1
            return
        self.disagreed += 1
        said_by, found_by = _by_name(given.instances), _by_name(found)
        differ = [
            Disagreement(given, record.run, name, said_by.get(name), so, record.replica)
            for name in sorted(said_by.keys() | found_by.keys())
            if said_by.get(name) != (so := found_by.get(name))
        ]
        if not differ:
            detail = detail or "the same instances, in another order or more than once"
            differ = [Disagreement(given, record.run, "", None, None, record.replica, detail)]
        self.shown += differ[: AUDIT_SHOWN_MAX - len(self.shown)]


class AnswerNumbers:
    """Which numbers of answers were read, of each run."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, int], tuple[int, int, int]] = {}  # first, last, how many

    def note(self, record: AnswersRecord, answers: Sequence[GivenAnswer]) -> None:
        """Those of one record, which has some."""
        numbers = [given.sequence for given in answers]
        of = (record.replica, record.run)
        first, last, count = self._read.get(of, (numbers[0], numbers[0], 0))
        self._read[of] = (min(first, *numbers), max(last, *numbers), count + len(numbers))

    @property
    def missing(self) -> int:
        """How many were not read, of those between the first and the last of each run."""
        return sum(max(last - first + 1 - n, 0) for first, last, n in self._read.values())


class RisingFolds:
    """Folds of the log up to rising positions.

    Args:
        log: of records.
        history: of its table; None where there is none.
        seed: of the prefix hash.
    """

    def __init__(self, log: ReadableLog, history: HistoryStore | None, seed: int) -> None:
        self._log = log
        self._seed = seed
        self._past = None if history is None else Past(history, lambda: log, self._make_kernel)
        self._fold: Fold | None = None
        self._began = FlushPoint(None, NO_OFFSET)
        self._entries: Iterator[LogEntry] = iter(())
        self._ahead: LogEntry | None = None

    def _make_kernel(self) -> Kernel:
        return open_kernel(self._seed)

    def kernel_at(self, position: Offset) -> ReadOnlyKernel:
        """What a fold of the log up to and including a position gives. Cost O(records since the
        last call), or those since the flush before the position.

        Raises:
            PastError: it is beyond what is kept.
            StorageError: rows or records cannot be read.
        """
        if position >= self._log.end_offset:
            raise PastError(
                "as_of_in_future",
                f"Expected a position of this log, which ends at {self._log.end_offset - 1},"
                f" got: {position}",
            )
        return self._kernel_from(self._flush_before(position), position)

    def earlier_kernels_at(self, position: Offset) -> Iterator[ReadOnlyKernel]:
        """The same of the tables before, where some were built anew at this position; see
        `Past.flushes_before_again`. Each is to be asked before the next.
        """
        if self._past is not None:
            for flushed in self._past.flushes_before_again(position):
                yield self._kernel_from(flushed, position)

    def was_built_anew_at(self, position: Offset) -> bool:
        """See `Past.was_built_anew_at`."""
        return self._past is not None and self._past.was_built_anew_at(position)

    def _kernel_from(self, flushed: FlushPoint, position: Offset) -> ReadOnlyKernel:
        fold = self._fold
        if (
            fold is None
            or flushed.run != self._began.run
            or position < fold.offset
            or (flushed.covers > fold.offset and fold.offset + 1 < self._log.complete_from)
        ):
            fold = self._begin(flushed)
        while self._ahead is not None and self._ahead.offset <= position:
            fold.apply(self._ahead.offset, self._ahead.value)
            if fold.kernel.pending_changes() >= TABLE_FLUSH_CHANGES_MAX:
                fold.take_changes()
            self._ahead = next(self._entries, None)
        return fold.kernel

    def _flush_before(self, position: Offset) -> FlushPoint:
        if self._past is not None:
            return self._past.flush_before(position)
        if self._log.complete_from > 0:
            raise PastError(
                "as_of_too_old",
                f"Expected a log from its beginning, where there is no history; it is complete only"
                f" from {self._log.complete_from}, and position {position} needs what was before",
            )
        return FlushPoint(None, NO_OFFSET)

    def _begin(self, flushed: FlushPoint) -> Fold:
        self._fold = None  # its memory is given back before the next one takes as much
        if self._past is None:
            fold = Fold(self._make_kernel())
        else:
            fold = self._past.fold_at(flushed, _everything)
        self._fold, self._began = fold, flushed
        self._entries = iter(self._log.read(Offset(flushed.covers + 1)))
        self._ahead = next(self._entries, None)
        return fold


def _everything(stream: StreamKey) -> bool:
    return True


def answer_again(kernel: ReadOnlyKernel, given: GivenAnswer) -> tuple[AnsweredInstance, ...]:
    """What a table answers to the same question. Cost of a query."""
    if given.scope.block_size > BLOCK_SIZE_MAX:
        return ()
    scope = PrefixScope(*given.scope)
    return tuple(
        AnsweredInstance(*match[:-1], tuple(AnsweredRank(*rank) for rank in match.ranks))
        for match in kernel.query_by_hash(scope, given.hashes, given.instance_id)
        if match.longest or not given.hits_only
    )


class AnswersVerification:
    """Verifies a log of answers against a log of records.

    Args:
        log, history: see `RisingFolds`.
    """

    def __init__(
        self, answers: ReadableLog, log: ReadableLog, history: HistoryStore | None
    ) -> None:
        self._answers = answers
        self._log = log
        self._history = history
        self._verified = VerificationResult()
        # By seed: the first position in each record, and where the record is.
        self._records: defaultdict[int, list[tuple[int, Offset]]] = defaultdict(list)

    def run(
        self, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> VerificationResult:
        """Verifies all of them. Cost O(answers + records of the log); memory O(records of answers).

        Args:
            on_progress: told now and then how many are done, of how many.

        Raises:
            StorageError: a log or the history cannot be read.
        """
        self._survey()
        verified = self._verified
        for seed in sorted(self._records):
            rederived = RisingFolds(self._log, self._history, seed)
            for record, given in self._by_position(seed):
                self._check(record, given, rederived)
                on_progress(verified.done, verified.answers)
        return verified

    def _survey(self) -> None:
        verified = self._verified
        numbers = AnswerNumbers()
        for entry in self._answers.read(Offset(0)):
            try:
                record, answers = decode_answers(entry.value)
                check_seed(record.seed, self._records)
                positions = [_offset_of(given) for given in answers]
            except RecordError as error:
                verified.note_unreadable(f"record {entry.offset} of the log of answers", error)
                continue
            if not answers:
                continue
            numbers.note(record, answers)
            for given in answers:
                verified.note_read(given.positions)
            self._records[record.seed].append((min(positions), entry.offset))
        verified.missing = numbers.missing

    def _by_position(self, seed: int) -> Iterator[tuple[AnswersRecord, GivenAnswer]]:
        """Answers, and their records, by rising position. What is held at once are the records that
        overlap: those of some windows.
        """
        waiting: list[tuple[int, int, AnswersRecord, GivenAnswer]] = []
        number = 0
        reader: Iterator[LogEntry] = iter(())
        expected = Offset(-1)
        for lowest, at in sorted(self._records[seed]):
            while waiting and waiting[0][0] < lowest:
                yield heappop(waiting)[2:]
            if at != expected:
                reader = iter(self._answers.read(at))
            entry = next(reader)
            expected = Offset(at + 1)
            record, answers = decode_answers(entry.value)
            for given in answers:
                heappush(waiting, (_offset_of(given), number, record, given))
                number += 1
        while waiting:
            yield heappop(waiting)[2:]

    def _check(self, record: AnswersRecord, given: GivenAnswer, rederived: RisingFolds) -> None:
        verified = self._verified
        try:
            kernel = rederived.kernel_at(_offset_of(given))
        except PastError as error:
            verified.note_beyond(str(error))
            return
        found = answer_again(kernel, given)
        if found != given.instances:
            offset = _offset_of(given)
            earlier = rederived.earlier_kernels_at(offset)
            if any(answer_again(kernel, given) == given.instances for kernel in earlier):
                found = given.instances
            elif rederived.was_built_anew_at(offset):
                text = f"at {offset} a table was built anew, and the one before is kept no more"
                verified.note_beyond(text)
                return
        verified.note_derived(given, found, record)


def _wrong_hashes(given: GivenAnswer, found: tuple[AnsweredInstance, ...]) -> str:
    """Why its hashes cannot be those that such an answer is kept with, or "": at least as many as
    the walk needed, up to the first block that nobody holds, and no more than it has blocks. Of
    blocks of pairs a prompt has only those with a token behind them, and no hash says its kind.
    """
    block_size = given.scope.block_size
    if not found or block_size > BLOCK_SIZE_MAX:
        return ""
    held = max(instance.longest for instance in found) // block_size
    blocks, count = given.tokens // block_size, len(given.hashes) // 8
    if min(held + 1, (given.tokens - 1) // block_size) <= count <= blocks:
        return ""
    return f"{count} prefix hashes, of {blocks} blocks, of which {held} are held"


def check_seed(seed: int, seeds: Collection[int]) -> None:
    """Raises RecordFormatError where answers of one more seed are not derived again."""
    if seed not in seeds and len(seeds) >= AUDIT_SEEDS_MAX:
        raise RecordFormatError(detail=f"of one more than {AUDIT_SEEDS_MAX} seeds of the hash")


def _by_name(instances: tuple[AnsweredInstance, ...]) -> dict[str, AnsweredInstance]:
    return {instance.instance_id: instance for instance in instances}


def _offset_of(given: GivenAnswer) -> Offset:
    """Raises RecordFormatError where the answer is of another log."""
    if [position.partition for position in given.positions] != [0]:
        raise RecordFormatError(detail="an answer of a log with other partitions than 0")
    return Offset(given.positions[0].offset)


def verify_answers(
    data: Path, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> VerificationResult:
    """Verifies the answers in a data directory, beside a running service or not.

    Raises:
        StorageError: there are none, or something cannot be read.
    """
    with ExitStack() as opened:
        # The answers first: what they are of is in the log by then.
        answers = ANSWERS.read_only(data)
        opened.callback(answers.close)
        log = ReadOnlyLog(data / "log")
        opened.callback(log.close)
        history: HistoryStore | None = None
        if (data / "history").exists():
            history = HistoryStore(data / "history", read_only=True)
            opened.callback(history.close)
        return AnswersVerification(answers, log, history).run(on_progress)
