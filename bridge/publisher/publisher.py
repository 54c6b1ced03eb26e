"""One publisher that is followed: for what it waits, whether it is confirmed, when its engine is
asked. Pure: `bridge.publisher.follower` does what is decided here.

For what its frames wait, where and until when is the table of `bridge.publisher.waits`;
`Publisher.waits_for` is the value.

A publisher is confirmed over one link (`schemas.answer_states`): by a repair that its engine's
replay brought to an end, or because what came over that link is known to be of the log's
incarnation with nothing missing before it: its first batch, or what came after it had cleared its
cache. From then on nothing can be missing without showing, as long as the link is up, but for what
an engine's socket drops when it is full. So an engine with a replay socket is asked again once it
is silent.

Times are monotonic seconds, but for `PublisherDoubt.since`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from bridge.bounds import CHECK_DOUBLINGS_MAX, WATCH_LATE_S
from bridge.engine_http.engine import can_ask
from bridge.engine_http.watch import EngineWatch
from bridge.link_numbers import NO_LINK, LinkNumber
from bridge.publisher.held_batches import IntakeTotals
from bridge.publisher.replay_client import ReplaySocket
from bridge.publisher.sequencer import Sequencer
from bridge.publisher.waits import UNPLACED, MessageWaits, Wait
from bridge.sockets.inbox import Inbox
from bridge.sockets.raw_message import RawMessage
from bridge.wire.drop_reasons import DropReason
from schemas.answer_states import Activity, Doubt
from schemas.arrays import ArrayPacker
from schemas.engine_facts import EngineFacts
from schemas.limits import CHECK_LATE_S, HEARTBEAT_S, LINK_SETTLE_S, REPEATS_DOUBTED, STALE_S
from schemas.positions import ProcessMark
from schemas.records import SequencedRecord
from schemas.registration import Registration
from schemas.troubles import NO_TROUBLES, Troubles

LINK_RESUME_S: Final = 1.0  # from the end of a silence until what was held up is seen to be late
LOOK_REST_S: Final = 4.0  # who is silent, or away, is looked at so often if nothing happens
CHECK_SILENCE_S: Final = 2.0  # after its last message an engine is asked whether there is more
CHECK_AGAIN_S: Final = 30.0  # between two questions to an engine that stays silent; then longer,
CHECK_AGAIN_MAX_S: Final = 120.0  # as long as it has been, and at most so long
CHECK_RETRY_S: Final = 1.0  # after an answer that confirms nothing; doubled with each further one
CHECK_RETRY_MAX_S: Final = 10.0  # between two questions of which none confirms anything
CHECK_FAILURES_MAX: Final = 2  # in a row; then a publisher that was confirmed is so no more
CHECK_HOLD_S: Final = 0.5  # a batch that comes meanwhile waits no longer: the question is dropped
CHECK_HOLD_MAX_S: Final = 4.0  # it is doubled with each question that was dropped, up to this
RECEIVED_LATE_S: Final = 2.0  # messages that have waited for longer: `unconfirmed`
CLOCK_FAR_S: Final = 30.0  # a clock that is nearer is right
CLOCK_STEP_SAID_S: Final = 10.0  # in such steps it is said how far a clock is off
PAUSE_SETTLE_S: Final = 4.0  # after a pause, until what the system has kept has been received

assert CHECK_SILENCE_S < CHECK_LATE_S, "an engine that has fallen silent has time to answer"
assert max(CHECK_LATE_S, RECEIVED_LATE_S) + HEARTBEAT_S < STALE_S, (
    "who is late is doubted before all publishers of its partition are"
)

_logger = logging.getLogger(__name__)


class EngineQuestion(Enum):
    """What is to be asked of a publisher's engine now."""

    NOTHING = "nothing"
    REPAIR = "repair"  # all that may be missing; what comes meanwhile waits for as long as it takes
    CHECK = "check"  # whether anything is missing; what comes meanwhile hardly waits


class PublisherDoubt(NamedTuple):
    """Why a publisher is not confirmed, or None; and since when, Unix seconds."""

    doubt: Doubt | None
    since: float


class PublisherActivity(NamedTuple):
    """What a publisher does, and since when, Unix seconds."""

    kind: Activity
    since: float


class PublisherStatement(NamedTuple):
    """What there is to say of a publisher in the log, or what was last written of it there."""

    doubted: PublisherDoubt
    activity: PublisherActivity | None
    process: ProcessMark | None
    facts: EngineFacts | None = None
    clock_s: float = 0.0
    troubles: Troubles = NO_TROUBLES


class Look(NamedTuple):
    """What is seen of a publisher at one moment.

    Attributes:
        connected: whether its link is up.
        link: the last one that came up.
        is_silent: whether it is up, and its engine's socket does not answer.
        unplaced: which of the messages, live and replayed, had no place in the stream, the last one
            of them; 0 where a batch has come behind it.
        proven_link: see `BatchStream.proven_link`.
        is_doubted, is_partial: see `BatchStream`.
        received_until: all that had been sent by then, and had arrived, has been decoded; never
            later than the look before, for this process may have been paused since, and the system
            may not have handed over yet what came meanwhile.
        is_waiting: whether something that has arrived has not been decoded.
        late_s: see `Lateness`.
        has_waiting: whether records of it have not reached the log.
        behind_s: see `Lateness.behind_s`.
        troubles: what of it could not be used or reached, as far as its link tells.
    """

    connected: bool = False
    link: LinkNumber = NO_LINK
    is_silent: bool = False
    messages: int = 0
    unplaced: int = 0
    proven_link: LinkNumber = NO_LINK
    is_doubted: bool = False
    is_partial: bool = False
    received_until: float = 0.0
    is_waiting: bool = False
    late_s: float = 0.0
    has_waiting: bool = False
    behind_s: float = 0.0
    troubles: Troubles = NO_TROUBLES


NOTHING_SEEN: Final = Look()


@dataclass(slots=True)
class BulkMessages:
    """Messages that wait because the first of them is large.

    Attributes:
        messages: in order.
        taken: the frames of the first one, once it is decoded and being written.
    """

    messages: deque[RawMessage]
    taken: list[bytes] | None = None


@dataclass(slots=True)
class PacedRecords:
    """Records that are left of a large message, and since when they wait, monotonic seconds."""

    records: deque[SequencedRecord]
    since: float


class Publisher:
    """See the module; one owner.

    Args:
        packer: see `Sequencer`.
        totals: of all publishers of this process.
        inbox: where its messages wait; None: it has none.

    Attributes:
        waits: for what its messages wait; for what its batches do, the sequencer has.
        repair: the task that asks its engine, or hands on what was held; None: there is none.
        bulk, paced: what waits of it to be decoded beside the loop, or to be written.
        replay: where its engine replays: of its registration, or what its engine has said.
        held_since: when the first batch came that waits for a check.
        interrupted: whether a repair was ended before its engine had said all.
        last_statement: what was last written of it into the log.
        engine: what its HTTP address says; None where it has none.
        has_dead_replay: whether its replay socket was asked, and has never answered.
        http_trouble: what its HTTP address answers that no engine does, or "".
        has_no_endpoint: whether its engine was asked where it publishes, and does not say.
        clock_s: how far its engine's clock is behind ours, roughly; 0 where that is not far.
        rests_until: until then a look at it changes nothing but `as_of`, unless its link changes or
            something comes of it; 0 where it is to be looked at: see `wake`.
        as_of: where it is confirmed: the log, or what waits for it, has all that it had published
            by then. What its engine's socket drops when it is full comes behind what is heard: so
            from then on, until its engine is asked, this stands still.
    """

    __slots__ = (
        "_ask_at",
        "_asked_at",
        "_asked_link",
        "_asked_unplaced",
        "_asleep_at",
        "_began_at",
        "_compare_at",
        "_confirmed_link",
        "_distrusted_at",
        "_doubt",
        "_doubted",
        "_facts",
        "_failures",
        "_has_answered",
        "_heard_as_of",
        "_heard_at",
        "_is_behind",
        "_is_said",
        "_own_link",
        "_proven_link",
        "_seen",
        "_serves",
        "_settled_at",
        "_settled_unplaced",
        "_unmatched",
        "_up_at",
        "activity",
        "as_of",
        "bulk",
        "clock_s",
        "endpoint",
        "engine",
        "has_dead_replay",
        "has_no_endpoint",
        "held_since",
        "http_trouble",
        "interrupted",
        "key",
        "last_statement",
        "paced",
        "registration",
        "repair",
        "replay",
        "rests_until",
        "sequencer",
        "waits",
    )

    def __init__(
        self,
        registration: Registration,
        *,
        packer: ArrayPacker | None = None,
        totals: IntakeTotals | None = None,
        inbox: Inbox | None = None,
    ) -> None:
        self.registration = registration
        self.key = registration.publisher
        self.waits = MessageWaits(self.key, inbox)
        self.repair: asyncio.Task[None] | None = None
        self.bulk: BulkMessages | None = None
        self.paced: PacedRecords | None = None
        self.replay = ReplaySocket(registration.replay_endpoint, registration.curve_server_key)
        self.held_since: float | None = None
        self.interrupted = False
        self.last_statement: PublisherStatement | None = None
        self.has_no_endpoint = False
        self.endpoint = ""  # where its engine is, that was registered by a base URL
        self._own_link = NO_LINK
        self.has_dead_replay = self._has_answered = self._is_said = False
        self.http_trouble = ""
        has_http = bool(registration.http_url) and can_ask(registration.kind)
        self.engine = EngineWatch() if has_http else None
        self._facts: EngineFacts | None = None
        self._asleep_at: int | None = None  # what had been heard when it was last asleep
        self._serves: bool | None = None  # the registered model, as it says; None: it never did
        self.clock_s = 0.0
        self.activity = PublisherActivity(Activity.DISCONNECTED, 0.0)
        self.rests_until = 0.0
        self.as_of = 0.0
        self._seen = NOTHING_SEEN
        self._is_behind = False
        self._asked_unplaced = self._settled_unplaced = 0
        self._asked_link = self._confirmed_link = self._proven_link = NO_LINK
        self._doubt = self._first_doubt
        self._doubted: PublisherDoubt | None = None
        self._failures = self._unmatched = 0
        self._settled_at = 0.0
        self._up_at = self._heard_at = self._asked_at = self._ask_at = self._compare_at = 0.0
        self._began_at = self._distrusted_at = 0.0
        self._heard_as_of = 0.0
        self.sequencer = Sequencer(
            registration, repairs=self.can_ask, packer=packer, totals=totals, wait=Wait.PLACE
        )

    @property
    def can_replay(self) -> bool:
        """Whether its engine can be asked for what it has sent."""
        return bool(self.replay.endpoint)

    @property
    def can_ask(self) -> bool:
        """Whether its engine can be asked anything, so that a link that comes up is no doubt."""
        return self.can_replay or self.engine is not None

    def is_unreached(self, before: float) -> bool:
        """Whether no link to it has come up since it is followed, and that was before then (Unix
        seconds).
        """
        return not self._seen.link and 0.0 < self.activity.since < before

    def locate(self, endpoint: str, replay_endpoint: str) -> None:
        """Its engine has said where it publishes, and replays; "" where it does not."""
        self.endpoint, self.has_no_endpoint = endpoint, False
        self.replay.endpoint = replay_endpoint

    def note_clock(self, apart_most: float) -> None:
        """Its engine has said over HTTP what the time is: see `Lateness.note_clock`."""
        self.sequencer.stream.arrivals.note_clock(apart_most)

    def own(self, link: LinkNumber) -> None:
        """Its engine has said over that link that this leads to it."""
        self._own_link = link
        self.wake()

    def miss_endpoint(self) -> None:
        """Its engine does not say where it publishes."""
        self.has_no_endpoint = True
        self.wake()

    @property
    def facts(self) -> EngineFacts | None:
        """What its engine says of its settings; None where that is not known."""
        return self._facts

    @facts.setter
    def facts(self, facts: EngineFacts | None) -> None:
        """Its engine was asked. One that is put to sleep gives up its cache, and says so with the
        first step after it is woken: until then only this tells. And where it has served the model
        that is registered and serves it no more, another engine has its address; one that never
        said that name is registered by one of the router's own.
        """
        self._facts = facts
        if facts is not None and facts.models:
            is_served = self.registration.model_name in facts.models
            if is_served != self._serves and (is_served or self._serves is not None):
                self._serves = is_served
                self.wake()
        # By its port: an engine knows no more of its own address.
        named = "" if facts is None or not self.endpoint else _port(facts.endpoint)
        if named and named != _port(self.endpoint) and self.engine is not None:
            self._own_link = NO_LINK
            self.engine.ask_again()
            self.wake()
        if facts is not None and facts.is_asleep:
            self.note_emptied()

    def note_emptied(self) -> None:
        """Its engine has slept: until something comes of it, its cache is empty, and it has not
        said so.
        """
        self._asleep_at = self.sequencer.stream.arrivals.messages
        self.wake()

    @property
    def _is_emptied(self) -> bool:
        """Whether its engine has slept, and nothing has come of it since."""
        if self._asleep_at is None:
            return False
        is_asleep = self._facts is not None and self._facts.is_asleep is True
        return is_asleep or self.sequencer.stream.arrivals.messages == self._asleep_at

    # What waits

    @property
    def waits_for(self) -> tuple[Wait, ...]:
        """All that its frames wait for now: first its batches, then its messages."""
        return (self.sequencer.waits_for, *self.waits.now)

    @property
    def is_placed(self) -> bool:
        """Whether its place in the log is known."""
        return self.sequencer.waits_for not in UNPLACED

    @property
    def is_at_rest(self) -> bool:
        """Whether its place is known, and no task of it is under way."""
        return self.repair is None and self.is_placed

    @property
    def is_checked(self) -> bool:
        """Whether its engine is asked whether anything is missing, and was not found to."""
        return self.sequencer.waits_for is Wait.CHECK

    @property
    def is_catching_up(self) -> bool:
        """Whether what may be missing of it is being asked for, or follows."""
        return self.repair is not None and not self.is_checked

    @property
    def misses_events(self) -> bool:
        """Whether it streams, and something of it is missing that a stream from its beginning, or a
        snapshot, would have.
        """
        stream = self.sequencer.stream
        is_short = stream.degraded or (stream.is_doubted and not stream.is_partial)
        return is_short and self.registration.has_stream and self.is_at_rest

    def place(self) -> None:
        """Its place in the log is known."""
        self.sequencer.place()

    def ask(
        self, asking: Callable[[], asyncio.Task[None]], cause: str = "", *, is_check: bool
    ) -> bool:
        """Its engine is asked for what is missing, or whether anything is; False where a task of it
        is under way already.
        """
        if self.repair is not None:
            return False
        self.sequencer.ask(cause, is_check=is_check)
        self.held_since = None
        self.repair = asking()
        return True

    def promote(self) -> None:
        """A check has found that something is missing: it is no longer cut short."""
        self.sequencer.promote()

    def restart_repair(self) -> None:
        """The task of it has met an unexpected error, and begins again."""
        self.waits.end(Wait.HELD_RECORDS)
        self.sequencer.restart_repair()

    def resume(self) -> None:
        """What was held is handed on by the task of it."""
        self.waits.begin(Wait.HELD_RECORDS)

    def end(self) -> None:
        """The task of it has ended; what is held waits for the next one."""
        self.repair = None
        self.sequencer.end_asking()
        self.waits.end(Wait.HELD_RECORDS)

    def cancel_repair(self) -> None:
        """Ends the task of it, if there is one; what is held goes on waiting."""
        if self.repair is not None:
            self.repair.cancel()
            self.end()
            self.interrupted = True
            self.wake()

    def unplace(self, wall_now: float) -> None:
        """Its place in the log is no longer known: what waits of it may be dropped from here on."""
        self.wake()
        self.cancel_repair()
        self.sequencer.unplace()
        if self.doubted.doubt is None:  # at once: a heartbeat may be made before the next look
            self._doubted = PublisherDoubt(Doubt.CATCHING_UP, wall_now)

    def stop(self) -> None:
        """Nothing more is asked of it: this process ends."""
        self.cancel_repair()
        self.sequencer.stop()

    def leave(self) -> None:
        """It is followed no more."""
        self.cancel_repair()
        self.sequencer.forget()
        self.bulk = self.paced = None

    @property
    def waiting_since(self) -> float | None:
        """When the first came of what has left the inbox and is not written yet, monotonic seconds;
        None where there is nothing.
        """
        if self.bulk is not None:
            return self.bulk.messages[0].received_at
        return None if self.paced is None else self.paced.since

    # What is seen

    def look(self, now: float, wall_now: float, look: Look) -> None:
        """Takes over what is seen now; to be called often."""
        before, self._seen = self._seen, look
        if look.link != before.link:
            self._up_at = now
        if before.is_silent and not look.is_silent:  # what it sent meanwhile may be on its way
            self._settled_at = max(self._settled_at, now + LINK_RESUME_S)
        self._is_behind = look.is_waiting or now - look.received_until > WATCH_LATE_S
        if look.messages != before.messages:
            self._note_heard(now, look)
        if look.proven_link == look.link > NO_LINK and look.link != self._proven_link:
            self._proven_link = self._confirmed_link = look.link
        self.as_of = look.received_until - (look.late_s if self._is_heard(now) else 0.0)
        if self.can_replay and self._asked_at < self._heard_at:
            self.as_of = min(self.as_of, self._heard_as_of)
        is_far = abs(look.behind_s) >= CLOCK_FAR_S  # in steps: not each of them is worth a record
        self.clock_s = (
            CLOCK_STEP_SAID_S * round(look.behind_s / CLOCK_STEP_SAID_S) if is_far else 0.0
        )
        activity = self._activity(now)
        if self.activity.kind is not activity or not self.activity.since:
            self.activity = PublisherActivity(activity, wall_now)
        doubt = self._doubt_of(now)
        if self._doubted is None or self._doubted.doubt is not doubt:
            self._doubted = PublisherDoubt(doubt, wall_now)
        self.rests_until = self._rest(now)

    def _note_heard(self, now: float, look: Look) -> None:
        self._heard_at, self._heard_as_of = now, look.received_until
        if self.engine is not None:
            self.engine.heard()
        if self._doubt is Doubt.REPLAY_UNMATCHED:
            self._ask_at = min(self._ask_at, self._compare_at)

    def _activity(self, now: float) -> Activity:
        if not self._seen.connected:
            return Activity.DISCONNECTED
        if not self.is_placed or self.is_catching_up:
            return Activity.REPLAYING
        return Activity.ACTIVE if self._is_heard(now) else Activity.SILENT

    def wake(self) -> None:
        """What a look sees of it may be another thing now: it rests no longer."""
        self.rests_until = 0.0

    def _rest(self, now: float) -> float:
        """See `rests_until`; bounded, for whatever may have been forgotten here."""
        if (
            not self.is_at_rest
            or self._is_behind
            or self._seen.has_waiting
            or self._is_heard(now)
            or now < self._settled_at
        ):
            return 0.0
        rests_until = now + LOOK_REST_S
        if self._seen.connected and self.can_replay and not self._seen.is_silent:
            if self._asked_at < self._heard_at:  # as of then is all that is known
                return 0.0
            rests_until = min(rests_until, self._asks_at())
        if self._seen.connected and self.engine is not None:
            rests_until = min(rests_until, self.inquires_at())
            if self._asked_link != self._seen.link:
                rests_until = min(rests_until, self._asks_at())
        return rests_until

    def _doubt_of(self, now: float) -> Doubt | None:
        """Why it is not confirmed: the first case that is so; None where none is."""
        return next((doubt for is_so, doubt in self._doubts(now) if is_so), None)

    def _doubts(self, now: float) -> Iterator[tuple[bool, Doubt]]:
        """The cases, the strongest first."""
        look, engine = self._seen, self.engine
        yield not self.is_placed, Doubt.CATCHING_UP
        yield not look.connected and self.has_no_endpoint, Doubt.NO_ENDPOINT
        yield not look.connected, Doubt.LINK_DOWN
        yield look.is_silent, Doubt.LINK_SILENT
        is_own = not self.registration.has_url or self._own_link == look.link
        yield not is_own, Doubt.CATCHING_UP
        yield self.is_catching_up, Doubt.CATCHING_UP
        yield engine is not None and engine.is_changed, Doubt.PROCESS_CHANGED
        yield self._is_away(now), Doubt.ENGINE_AWAY
        yield self._serves is False, Doubt.MODEL_CHANGED
        yield self._is_emptied, Doubt.ASLEEP
        yield look.is_partial, Doubt.PARTLY_KNOWN
        is_asked = self._asked_link == look.link
        is_unproven = self._confirmed_link != look.link or look.is_doubted
        yield is_unproven, self._doubt if is_asked else self._first_doubt
        has_no_numbers = look.troubles.repeats >= REPEATS_DOUBTED
        is_of_others = look.troubles.reason == DropReason.OTHER_STREAM
        is_unread = look.unplaced > self._settled_unplaced or has_no_numbers or is_of_others
        yield is_unread, Doubt.UNREADABLE
        yield look.has_waiting, Doubt.SPOOLED
        is_late = self._is_heard(now) and look.late_s > RECEIVED_LATE_S
        yield is_late or now - look.received_until > RECEIVED_LATE_S, Doubt.RECEIVED_LATE
        yield now < self._settled_at, Doubt.RECEIVED_LATE
        # Its engine was asked, or is about to be.
        failed = self._failures > 0 or self._unmatched > 0
        yield now - self.as_of > CHECK_LATE_S, self._doubt if failed else Doubt.CATCHING_UP

    def _is_heard(self, now: float) -> bool:
        """Whether how late its batches come says anything: else what was on its way has come."""
        return now - self._heard_at < CHECK_SILENCE_S

    @property
    def _first_doubt(self) -> Doubt:
        return Doubt.CATCHING_UP if self.can_ask else Doubt.NO_REPLAY

    @property
    def doubted(self) -> PublisherDoubt:
        """Why it is not confirmed, as last seen."""
        return self._doubted or PublisherDoubt(Doubt.CATCHING_UP, 0.0)

    @property
    def has_news(self) -> bool:
        """Whether that, or its engine's process, settings or clock, differs from what was last
        written of it into the log: what the next process of ours takes for the incarnation's must
        not be an earlier one.
        """
        said, troubles = self.last_statement, self._all_troubles
        # By part: it is asked of all publishers each second, and of nearly all nothing is new.
        return (
            said is None
            or said.doubted != self.doubted
            or said.process != (None if self.engine is None else self.engine.published)
            or said.facts != self._facts
            or said.clock_s != self.clock_s
            or (said.troubles is not troubles and said.troubles.kind != troubles.kind)
        )

    @property
    def statement(self) -> PublisherStatement:
        """What there is to say of it."""
        process = None if self.engine is None else self.engine.published
        activity = self.activity if self.activity.since else None
        return PublisherStatement(
            self.doubted, activity, process, self.facts, self.clock_s, self._all_troubles
        )

    @property
    def _all_troubles(self) -> Troubles:
        if not (self.has_dead_replay or self.http_trouble):
            return self._seen.troubles
        return msgspec.structs.replace(
            self._seen.troubles, has_dead_replay=self.has_dead_replay, http=self.http_trouble
        )

    def begin_again(self) -> None:
        """The log has something else of it than what was known: nothing is known any more."""
        self._proven_link = NO_LINK
        self._unconfirm()

    def _unconfirm(self) -> None:
        self._confirmed_link = self._asked_link = NO_LINK
        self._doubt = self._first_doubt
        self.wake()

    def distrust(self, now: float) -> None:
        """This process was paused for long: an engine that can be asked is to be asked again, and
        what the system has kept of the others has to be received first.
        """
        self._settled_at = now + PAUSE_SETTLE_S
        self._distrusted_at = now
        self.wake()
        if self.can_replay:
            self._unconfirm()

    @property
    def patience_s(self) -> float:
        """How long what comes live waits for a check: longer where earlier ones were too short."""
        if self.doubted.doubt is None:
            return 0.0
        return min(CHECK_HOLD_S * self._doublings, CHECK_HOLD_MAX_S)

    @property
    def _doublings(self) -> float:
        return 2.0 ** min(self._failures, CHECK_DOUBLINGS_MAX)  # without end it would overflow

    # Asking

    @property
    def fails(self) -> bool:
        """Whether its engine's last answers confirmed nothing."""
        return self._failures > 0

    def asks(self, now: float) -> EngineQuestion:
        """What is to be asked now."""
        if (
            not self.is_at_rest
            or not self.can_ask
            or not self._seen.connected
            or self._seen.is_silent
            or self._is_behind  # a replay must not overtake what has arrived
            or not self._seen.link
            or now < self._asks_at()
        ):
            return EngineQuestion.NOTHING
        if self._asked_link != self._seen.link:
            return EngineQuestion.REPAIR
        return EngineQuestion.CHECK if self.can_replay else EngineQuestion.NOTHING

    def _asks_at(self) -> float:
        """When its engine is to be asked, as far as that is a matter of time."""
        from_then = max(self._up_at + LINK_SETTLE_S, self._ask_at)
        if (
            self._asked_link != self._seen.link
            or self._confirmed_link != self._seen.link
            or self._seen.is_doubted
        ):
            return from_then
        asked_of_last = self._asked_at >= self._heard_at
        if not asked_of_last:
            return max(from_then, self._heard_at + CHECK_SILENCE_S)
        silent_s = self._asked_at - max(self._heard_at, self._up_at)
        pause_s = min(max(silent_s, CHECK_AGAIN_S), CHECK_AGAIN_MAX_S)
        return max(from_then, self._asked_at + pause_s)

    # Asking over HTTP

    def _is_away(self, now: float) -> bool:
        is_asked = self.engine is not None and not self._is_heard(now)
        return is_asked and self.engine is not None and self.engine.is_away

    def probes(self, now: float) -> bool:
        """Whether its engine is to be asked whether it is there: it is silent, and no replay socket
        tells.
        """
        engine = self.engine
        return (
            engine is not None
            and self.is_at_rest
            and self._seen.connected
            and not self._is_heard(now)
            and (self.fails or not self.can_replay)
            and now >= engine.probes_at
        )

    def reads_process(self, now: float) -> bool:
        """Whether its engine is to be asked which process it is."""
        engine = self.engine
        is_up = self.is_placed and self._seen.connected and self._seen.link > NO_LINK
        return engine is not None and is_up and now >= engine.reads_at(self._seen.link)

    def inquires_at(self) -> float:
        """When its engine is to be asked either, as far as that is a matter of time."""
        engine = self.engine
        assert engine is not None
        reads_at = engine.reads_at(self._seen.link)
        if self.can_replay and not self.fails:
            return reads_at
        return min(reads_at, max(self._heard_at + CHECK_SILENCE_S, engine.probes_at))

    def begin_asking(self, now: float, *, heard: LinkNumber) -> LinkNumber:
        """A repair begins, after the link `heard` has brought a message; returns the link that it
        may confirm, NO_LINK for none.
        """
        self.wake()
        self._began_at = now
        settled = now >= self._up_at + LINK_SETTLE_S or heard == self._seen.link
        self._asked_link = self._seen.link if settled and self._seen.connected else NO_LINK
        self._asked_unplaced = self._seen.unplaced
        return self._asked_link

    def answered(
        self, now: float, link: LinkNumber, doubt: Doubt | None, *, heard_all: bool = True
    ) -> None:
        """A repair that began on this link has ended, and confirms the publisher or not: as of when
        it began, for its engine may have given the answer then; where it was not heard to the end,
        as of what was heard last. One that was under way while this process was paused says nothing
        of what was sent meanwhile.
        """
        self.wake()
        self._note_answer(doubt, link)
        if doubt is None and self._began_at < self._distrusted_at:
            self._asked_link, self._ask_at = NO_LINK, now
            return
        if doubt is None:
            self._failures, self._unmatched, self._ask_at = 0, 0, now
            if self.engine is not None:
                self.engine.heard()
            if link and link == self._seen.link and self._seen.connected:
                self._confirmed_link = link
                if heard_all:
                    self._asked_at = self._began_at
                self._settled_at = 0.0
                self._settled_unplaced = self._asked_unplaced
            return
        if not self.can_replay:  # nothing was asked of it that it could answer another time
            self._doubt = Doubt.NO_REPLAY
            return
        if doubt is Doubt.REPLAY_UNMATCHED:
            # It answers well; the next batch that comes live is what its replay is to show.
            self._failures, self._doubt = 0, doubt
            self._ask_at = now + min(CHECK_RETRY_S * 2.0**self._unmatched, CHECK_AGAIN_S)
            self._compare_at = now + CHECK_RETRY_S
            self._unmatched = min(self._unmatched + 1, CHECK_DOUBLINGS_MAX)
            return
        self._unmatched = 0
        self._ask_at = now + min(CHECK_RETRY_S * self._doublings, CHECK_RETRY_MAX_S)
        self._failures += 1
        self._doubt = doubt
        if self._failures >= CHECK_FAILURES_MAX:
            self._confirmed_link = NO_LINK

    def _note_answer(self, doubt: Doubt | None, link: LinkNumber) -> None:
        """What was found out of its replay socket; without a link it had no time to answer."""
        if not self.can_replay:
            return
        if doubt not in (Doubt.REPLAY_SILENT, Doubt.CATCHING_UP):
            self._has_answered = True
        if link and doubt is Doubt.REPLAY_SILENT and not (self._has_answered or self._is_said):
            self._is_said = True
            _logger.warning(
                "The replay socket of %s at %s does not answer: what is lost cannot be asked for"
                " again. Asking it again; `reprise doctor` says what to do",
                *(self.registration.service_key, self.replay.endpoint),
            )
        self.has_dead_replay = doubt is Doubt.REPLAY_SILENT and not self._has_answered


def _port(endpoint: str) -> str:
    return endpoint.rpartition(":")[2]
