"""What one publisher's engine says over HTTP, and what follows from it. Pure.

Two questions. *Is it there?* is asked where the publisher is silent, and no replay socket tells:
an idle engine and a hung one look alike. *Which process is it?* is asked of each link, while that
is up, and now and then again: a link ends with the process at its other end, so what is said then
is said of that process. An incarnation whose process is known is the same for as long as the
process is, whatever the numbers of its batches; and another process is another incarnation, however
far it has come.

It is taken for granted that the address is of the engine that publishes, and starts and ends with
it. Where it names another process over a link that has not been down meanwhile, that is not so (a
load balancer stands there, or the server was started anew by itself): nothing is concluded, and the
publisher is not confirmed, until its link has been down.

Times are monotonic seconds.
"""

import asyncio
from enum import Enum
from typing import Final, NamedTuple

from bridge.engine_http.answers import Process
from bridge.link_numbers import NO_LINK, LinkNumber
from brokers.backoff import Backoff
from schemas.positions import ProcessMark, Proof

PROBE_AGAIN_S: Final = 10.0  # how often a silent engine is asked whether it is there
PROBE_RETRY_S: Final = 1.0  # after an attempt without an answer
PROBE_FAILURES_MAX: Final = 2  # in a row; then it counts as away
PROCESS_RETRY_S: Final = 5.0  # how often it is asked which process it is, where it has not said
PROCESS_RETRY_MAX_S: Final = 160.0  # that pause, doubled: not every release says it
PROCESS_AGAIN_S: Final = 60.0  # how often it is asked again over the same link: it must not change
PROCESS_CLOCK_S: Final = 2.0  # how much its start time and its batches' times may be apart


class Life(Enum):
    """What is known of the process over the link that is up."""

    UNKNOWN = "unknown"
    SAME = "same"  # it published the incarnation that the log has
    OTHER = "other"  # it did not: the engine has restarted
    CHANGED = "changed"  # it is another one than over the same link before: see the module


class Mark(Enum):
    """What is known of the incarnation's process, beside the one that was read."""

    UNKNOWN = "unknown"
    SAME = "same"
    OTHER = "other"


class Effect(Enum):
    """What is known from a judgement on."""

    NOTHING = "nothing"
    CHANGES = "changes"  # the address does not tell which process is at the other end
    BEGINS = "begins"  # the incarnation is of the process that was read
    PROVES = "proves"  # what comes over the link is of the incarnation


class ProcessFacts(NamedTuple):
    """What a judgement goes by.

    Attributes:
        is_read: the engine has said over the link that is up which process it is.
        is_changed: it has said there that it is another one than before.
        begins: what comes over the link is proven by its batches, or the log has none yet.
        mark: of the process that is known to have published the incarnation.
        is_here: that was found over the same link.
        has_batches: the incarnation had batches when that was found.
        is_given: the process is named by whoever has started it, and may be named so again.
        is_later: the process was started after the last batch that the log has.
    """

    is_read: bool
    is_changed: bool
    begins: bool
    mark: Mark
    is_here: bool
    has_batches: bool
    is_given: bool
    is_later: bool


class ProcessVerdict(NamedTuple):
    """What is known of the process over the link that is up, and what follows."""

    life: Life
    effect: Effect = Effect.NOTHING


def judged(facts: ProcessFacts) -> ProcessVerdict:
    """The first case that is so."""
    match facts:
        case ProcessFacts(is_read=False):
            return ProcessVerdict(Life.UNKNOWN)
        case ProcessFacts(is_changed=True):
            return ProcessVerdict(Life.CHANGED)
        case ProcessFacts(begins=True, mark=Mark.OTHER, is_here=True):
            return ProcessVerdict(Life.CHANGED, Effect.CHANGES)
        case ProcessFacts(begins=True):
            return ProcessVerdict(Life.UNKNOWN, Effect.BEGINS)
        case ProcessFacts(mark=Mark.SAME, is_given=True):
            return ProcessVerdict(Life.UNKNOWN)
        case ProcessFacts(mark=Mark.SAME):
            return ProcessVerdict(Life.SAME, Effect.PROVES)
        case ProcessFacts(mark=Mark.OTHER, has_batches=True, is_here=True):
            return ProcessVerdict(Life.CHANGED, Effect.CHANGES)
        case ProcessFacts(mark=Mark.OTHER, has_batches=True):
            return ProcessVerdict(Life.OTHER)
        case ProcessFacts(is_later=True):
            return ProcessVerdict(Life.OTHER)
    return ProcessVerdict(Life.UNKNOWN)


class EngineWatch:
    """See the module.

    Attributes:
        inquiry: what is being asked of it now; None for nothing.
        known: which process published which incarnation; None where that is not known. Where the
            incarnation has no batch yet, which process was at the link last: its first batch may be
            of another one.
    """

    __slots__ = (
        "_asked_link",
        "_failures",
        "_has_batches",
        "_is_changed",
        "_known_link",
        "_link",
        "_probe_at",
        "_process",
        "_process_at",
        "_process_backoff",
        "_read_at",
        "inquiry",
        "known",
    )

    def __init__(self) -> None:
        self.inquiry: asyncio.Task[None] | None = None
        self.known: ProcessMark | None = None
        self._has_batches = False  # of the incarnation of `known`, when that was found
        self._known_link = NO_LINK  # over which that was found; NO_LINK: in the log
        self._process: Process | None = None
        self._link = NO_LINK  # over which that was read
        self._asked_link = NO_LINK
        self._is_changed = False
        self._process_at = self._probe_at = self._read_at = 0.0
        self._failures = 0  # of probes, in a row
        self._process_backoff = Backoff(PROCESS_RETRY_S, PROCESS_RETRY_MAX_S)

    # Is it there?

    @property
    def is_away(self) -> bool:
        """Whether it has not answered the last times."""
        return self._failures >= PROBE_FAILURES_MAX

    @property
    def probes_at(self) -> float:
        """When it is to be asked whether it is there, where nothing else tells."""
        return self._probe_at

    def probed(self, now: float, *, is_there: bool) -> None:
        """It was asked."""
        self._failures = 0 if is_there else self._failures + 1
        self._probe_at = now + (PROBE_AGAIN_S if is_there else PROBE_RETRY_S)

    def heard(self) -> None:
        """Something came of the publisher, or its replay socket has answered: it is there."""
        self._failures = 0

    # Which process is it?

    @property
    def known_link(self) -> LinkNumber:
        """The last link of which it is known that the process of `known` was at its other end."""
        return self._known_link

    def reads_at(self, link: LinkNumber) -> float:
        """When it is to be asked which process it is: soon, where this link has not told."""
        if self.has_read(link):
            return self._read_at + PROCESS_AGAIN_S
        return self._process_at if self._asked_link == link else 0.0

    def ask_again(self) -> None:
        """What it said of the link is out of date."""
        self._read_at = -PROCESS_AGAIN_S
        self._process_at = 0.0

    def has_read(self, link: LinkNumber) -> bool:
        """Whether it has said over this link which process it is."""
        return self._process is not None and self._link == link

    def read(self, now: float, link: LinkNumber, process: Process | None) -> None:
        """It was asked while this link was up, from before until it answered; None where it did
        not say, or the link went down meanwhile.
        """
        self._asked_link = link
        if process is None:
            self._process_at = now + self._process_backoff.take()
            return
        self._process_backoff.reset()
        before = self._process if link == self._link else None
        if before is None:
            self._is_changed = False
        elif before.mark != process.mark:
            self._is_changed = True
        self._process, self._link, self._read_at = process, link, now

    def remember(self, known: ProcessMark | None) -> None:
        """What the log says of it."""
        self.known, self._known_link, self._has_batches = known, NO_LINK, True

    @property
    def published(self) -> ProcessMark | None:
        """What the log is to say of it: an incarnation without a batch is of no process."""
        return self.known if self._has_batches else None

    def judge(self, link: LinkNumber, incarnation: int, last: Proof, *, is_proven: bool) -> Life:
        """What is known of the process over the link that is up.

        Args:
            link: that one.
            incarnation: that the log has.
            last: its last batch, as far as that is known.
            is_proven: whether what comes over the link is known to be of it, by its batches.
        """
        has_batches = last.sequence >= 0
        verdict = judged(self._facts(link, incarnation, last, begins=is_proven or not has_batches))
        match verdict.effect:
            case Effect.CHANGES:
                self._is_changed = True
            case Effect.BEGINS:
                self.begin(incarnation, has_batches=has_batches)
            case Effect.PROVES:
                self._known_link, self._has_batches = link, True
        return verdict.life

    def _facts(
        self, link: LinkNumber, incarnation: int, last: Proof, *, begins: bool
    ) -> ProcessFacts:
        process = self._process if self._link == link else None
        known = self.known if self.known is not None and self.known[0] == incarnation else None
        mark = Mark.UNKNOWN
        if process is not None and known is not None:
            mark = Mark.SAME if known.mark == process.mark else Mark.OTHER
        started_at = 0.0 if process is None else process.started_at
        return ProcessFacts(
            is_read=process is not None,
            is_changed=self._is_changed,
            begins=begins,
            mark=mark,
            is_here=self._known_link == link,
            has_batches=self._has_batches,
            is_given=process is not None and process.is_given,
            is_later=started_at > last.engine_time + PROCESS_CLOCK_S and last.engine_time > 0,
        )

    def begin(self, incarnation: int, *, has_batches: bool) -> None:
        """This incarnation is of the process that was read last; or will be, where it has no
        batches and the next come over the same link.
        """
        if self._process is not None:
            self.known = ProcessMark(incarnation, self._process.mark)
            self._known_link, self._has_batches = self._link, has_batches

    @property
    def is_changed(self) -> bool:
        """Whether the address does not tell which process is at the other end of the link."""
        return self._is_changed
