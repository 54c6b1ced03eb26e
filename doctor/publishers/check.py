"""A capture of frames is checked: what each of its publishers sends, how a service would read it,
and how it is to be registered.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from bridge.wire import KINDS
from bridge.wire.drop_reasons import DropReason
from doctor.document import Code, Finding
from doctor.publishers.block_names import BlockNames
from doctor.publishers.bounds import (
    CHECK_EVENTS_MAX,
    CHECK_FIELDS_MAX,
    CHECK_KIND_EVENTS_MAX,
    CHECK_PLACES_MAX,
    CHECK_PROBLEMS_MAX,
    CHECK_PUBLISHERS_MAX,
)
from doctor.publishers.document import (
    BlocksCheck,
    CheckDocument,
    EventCheck,
    FieldCheck,
    KindCheck,
    MessagesCheck,
    NumbersCheck,
    Problem,
    PublisherCheck,
    Reading,
)
from doctor.publishers.folded import FoldedPublisher, fold
from doctor.publishers.payload import SentEvent, read_payload
from doctor.publishers.questions import questions_of
from doctor.publishers.survey import FieldSurvey, Survey
from doctor.publishers.trial import USABLE, Outcome, Trial
from doctor.reasons import reason_of
from replay.capture.errors import CaptureDamagedError
from replay.capture.format import CaptureKind, EntryFlag, MalformedError, decode_frames
from replay.capture.reader import Capture
from schemas.clock import REAL_CLOCK, Clock
from schemas.events import StoredBlocks
from schemas.identities import DEFAULT_TENANT, PARTIAL_BLOCK
from schemas.limits import BLOCK_SIZE_MAX, DP_RANK_MAX, NAME_BYTES_MAX
from schemas.progress import StopCheck, never
from schemas.registration import (
    ATOM,
    LMCACHE_TOPIC,
    TOKENSPEED,
    PublisherKind,
    Registration,
    facts_of,
)
from streams.kernel import array_packer

UNNAMED: Final = "MODEL"
"""In place of a model's name that nothing says."""

_KINDS: Final = tuple(kind for kind in KINDS if kind not in (TOKENSPEED, ATOM, LMCACHE_TOPIC))
"""Those that are tried where none is named: the first two of these read whatever vLLM sends, and
the last one streams.
"""

_HARMLESS: Final = frozenset(
    {DropReason.OTHER_STREAM, DropReason.OTHER_RANK, DropReason.OTHER_GROUP, DropReason.NO_BLOCK}
)
_FIRST: Final = {PublisherKind("Mooncake"): 1}
"""With which number a publisher begins, where that is not 0."""

_FAULTS: Final = frozenset(
    {
        *(Code.BLOCK_SIZE, Code.REPEATED_NUMBERS, Code.LEFT_OUT, Code.LOST_BATCHES),
        *(Code.UNHELD_REMOVED, Code.CHUNKS_DIFFER, Code.RANKS, Code.POOL_REMOVED),
    }
)
"""Findings of the doctor that say that something is wrong with what is sent. The others say what no
event tells: they are questions.
"""


class Given(NamedTuple):
    """What is known beforehand; "" and 0: nothing."""

    kind: str = ""
    model_name: str = ""
    instance_id: str = ""
    tenant_id: str = ""
    block_size: int = 0


def check_capture(
    capture: Capture,
    given: Given,
    *,
    clock: Clock = REAL_CLOCK,
    stopped: StopCheck = never,
) -> CheckDocument:
    """What its publishers send. Cost O(capture), and of the first CHECK_EVENTS_MAX events of each a
    decoding of its own.

    Args:
        stopped: whether to end before.

    Raises:
        CaptureError: it has no frames, or cannot be read.
    """
    capture.expect(CaptureKind.FRAMES)
    lanes = capture.lanes[:CHECK_PUBLISHERS_MAX]
    unknown = [_Unknown(capture, lane, given, stopped) for lane in lanes]
    registrations = {one.lane: one.registration for one in unknown}
    for lane in capture.lanes[CHECK_PUBLISHERS_MAX:]:  # a fold asks for all of them
        registrations[lane] = _registration(capture, lane, given, KINDS[0], Survey(), 1)
    folded = fold(capture, registrations, clock.unix(), stopped)
    notes = list(capture.notes)
    if more := len(capture.lanes) - len(lanes):
        notes.append(f"Expected at most {len(lanes)} publishers, got {more} more: not looked at")
    return CheckDocument(publishers=[one.checked(folded[one.lane]) for one in unknown], notes=notes)


def _registration(
    capture: Capture, lane: int, given: Given, kind: PublisherKind, survey: Survey, block_size: int
) -> Registration:
    """As a publisher of this kind would be registered, by what it sends and what is given."""
    source = capture.header.publishers[lane]
    named = source.registration
    ranks = _ranks(survey)
    several = len(capture.lanes) > 1
    instance_id = given.instance_id or (named.instance_id if named else "engine-0")
    if several and named is None:
        instance_id = f"{given.instance_id or 'engine'}-{lane}"
    model_name = given.model_name or (named.model_name if named else "")
    model_name = model_name or survey.model_name[:NAME_BYTES_MAX] or UNNAMED
    tenant_id = given.tenant_id or (named.tenant_id if named else "")
    tenant_id = tenant_id or survey.value_of("tenant_id") or DEFAULT_TENANT
    return Registration(
        endpoint=source.endpoint,
        replay_endpoint=source.replay_endpoint,
        kind=kind,
        model_name=model_name,
        instance_id=instance_id,
        tenant_id=tenant_id,
        block_size=block_size,
        dp_rank=0 if facts_of(kind).is_pool or not ranks else ranks[0],
    )


def _ranks(survey: Survey) -> list[int]:
    """That the messages and events name, the commonest first."""
    ranks = survey.ranks + survey.numbers_of("dp_rank", "attention_dp_rank")
    return [rank for rank, _ in ranks.most_common() if 0 <= rank <= DP_RANK_MAX]


class _Unit(NamedTuple):
    """One event, or a message that has none that could be told apart.

    Attributes:
        message: its number in the capture, from 1.
    """

    message: int
    heads: Sequence[bytes]
    payload: bytes
    event: SentEvent | None


class _Unknown:
    """One publisher: its survey, the kind that reads it best, and what that makes of it."""

    def __init__(self, capture: Capture, lane: int, given: Given, stopped: StopCheck) -> None:
        self.lane = lane
        self._capture = capture
        self._given = given
        self._stopped = stopped
        self._packer = array_packer()
        self._survey = Survey()
        for came_at, _, replayed, frames in self._messages():
            payload = read_payload(frames[-1] if frames else b"")
            self._survey.note_message(frames, payload, came_at, replayed=replayed)
            for event in payload.events:
                self._survey.note_event(event)
        self._trials = self._tried()
        best = self._trials[0]
        self.registration = best.registration
        self._trial = Trial(best.registration, self._packer)
        self._names = BlockNames(best.registration.publisher)
        self._effects: dict[str, Counter[str]] = {}
        self._unknown: dict[tuple[str, str], str] = {}
        self._problems: dict[tuple[str, str], Problem] = {}
        self._has_stores = False
        self._try_all()

    # Reading

    def _messages(self) -> Iterator[tuple[float, int, bool, list[bytes]]]:
        """Time, number in the capture, whether it was replayed, and frames."""
        for entry in self._capture.read(lanes=[self.lane]):
            if self._stopped():
                return
            try:
                frames = decode_frames(entry.value)
            except MalformedError as error:
                path = str(self._capture.path)
                raise CaptureDamagedError(path, 0, f"{error}, number {entry.position}") from error
            replayed = bool(entry.flags & EntryFlag.REPLAYED)
            yield entry.time, entry.position + 1, replayed, frames

    def _units(self, limit: int) -> Iterator[_Unit]:
        """The first events, in the order in which they came."""
        left = limit
        for _, number, _, frames in self._messages():
            heads, payload = frames[:-1], frames[-1] if frames else b""
            none: list[SentEvent | None] = [None]
            for event in read_payload(payload).events or none:
                if left <= 0:
                    return
                left -= 1
                yield _Unit(number, heads, payload, event)

    # Which kind it is

    def _tried(self) -> list[Trial]:
        """A trial of each kind, the best first; of equals the first one."""
        wanted = [kind for kind in KINDS if kind.lower() == self._given.kind.lower()] or _KINDS
        said = self._survey.numbers_of("block_size") + self._survey.block_sizes
        trials = []
        for kind in wanted:
            size = self._given.block_size or _commonest(said)
            trial, sizes = self._trial_of(kind, size)
            if not self._given.block_size and sizes and _commonest(sizes) != size:
                trial, _ = self._trial_of(kind, _commonest(sizes))
            trials.append(trial)
        return sorted(trials, key=lambda one: -one.worth - self._hint(one.registration.kind))

    def _trial_of(self, kind: PublisherKind, size: int) -> tuple[Trial, Counter[int]]:
        one = _registration(self._capture, self.lane, self._given, kind, self._survey, size)
        trial, sizes = Trial(one, self._packer), Counter[int]()
        for unit in self._units(CHECK_KIND_EVENTS_MAX):
            outcome = trial.try_payload(unit.heads, _alone(unit))
            for event in outcome.events:
                if isinstance(event, StoredBlocks) and event.tokens and event.block_size:
                    sizes[event.block_size] += len(event.hashes) // 8
        return trial, sizes

    def _hint(self, kind: PublisherKind) -> float:
        """What else tells kinds apart whose decoders read the same: less than one event."""
        media = self._survey.value_of("medium").upper()
        is_signed = "-" in "".join(
            field.shape
            for event in self._survey.events.values()
            for name, field in event.fields.items()
            if name == "block_hashes"
        )
        if kind == "SGLang" and (is_signed or media in ("CPU_PINNED", "EXTERNAL")):
            return 0.01
        return 0.0

    # What it makes of all

    def _try_all(self) -> None:
        number = -1
        for unit in self._units(CHECK_EVENTS_MAX):
            outcome = self._trial.try_payload(unit.heads, _alone(unit))
            own = _number_of(unit)
            if own is not None:
                if own < number:
                    self._names.forget()
                number = own
            for event in outcome.events:
                self._names.note(event)
                self._has_stores |= isinstance(event, StoredBlocks)
            tag = unit.event.tag if unit.event else ""
            self._effects.setdefault(tag, Counter())[outcome.effect] += 1
            if outcome.reason:
                self._note_problem(unit, outcome)
            if unit.event is not None and outcome.unknown_fields:
                self._note_unknown(unit, unit.event, outcome)

    def _note_problem(self, unit: _Unit, outcome: Outcome) -> None:
        key = (outcome.reason, outcome.effect.value)
        problem = self._problems.get(key)
        if problem is None:
            if len(self._problems) >= CHECK_PROBLEMS_MAX:
                return
            words = reason_of(outcome.reason)
            problem = self._problems[key] = Problem(
                reason=outcome.reason,
                effect=outcome.effect.value,
                count=0,
                is_harmless=self._is_harmless(outcome),
                where=[],
                got=outcome.detail,
                expected=words.expected,
                remedy=words.remedy,
            )
        problem.count += 1
        if len(problem.where) < CHECK_PLACES_MAX:
            problem.where.append(_place_of(unit))

    def _is_harmless(self, outcome: Outcome) -> bool:
        if outcome.reason == DropReason.OTHER_STREAM:  # of a model that nobody has named
            return self.registration.model_name != UNNAMED
        return outcome.effect in USABLE or outcome.reason in (*_HARMLESS, PARTIAL_BLOCK)

    def _note_unknown(self, unit: _Unit, event: SentEvent, outcome: Outcome) -> None:
        names = outcome.unknown_fields
        if all((event.tag, name) in self._unknown for name in names):
            return
        if len(self._unknown) >= CHECK_FIELDS_MAX:
            return
        for name, alone in self._trial.field_effects(unit.heads, event, names):
            if alone.reason != DropReason.UNKNOWN_FIELD:  # something else is wrong, too
                continue
            known = self._unknown.get((event.tag, name))
            if known is None or alone.effect not in USABLE:
                self._unknown[event.tag, name] = alone.effect.value

    # The answer

    def checked(self, folded: FoldedPublisher) -> PublisherCheck:
        """All that is known of it."""
        survey, names = self._survey, self._names
        problems = sorted(self._problems.values(), key=lambda one: (one.is_harmless, -one.count))
        findings = list(self._findings(folded, problems))
        reading = self._reading(problems, findings)
        return PublisherCheck(
            endpoint=self.registration.endpoint,
            reading=reading,
            verdict=self._verdict(reading, problems, findings),
            messages=_messages_of(survey, folded),
            kinds=[_kind_of(one) for one in self._trials],
            events=[self._event_of(tag) for tag in survey.events],
            problems=problems,
            blocks=_blocks_of(names, folded),
            findings=findings,
            registrations=[] if reading in (Reading.NONE, Reading.SILENT) else self._bodies(),
            reasons=list(self._reasons()),
            questions=questions_of(
                self.registration, survey, names, folded, _doubts(folded), self._alike()
            ),
        )

    def _reading(self, problems: Sequence[Problem], findings: Sequence[Finding]) -> Reading:
        if not self._survey.messages:
            return Reading.SILENT
        if not self._has_stores and 2 * self._trial.used < self._trial.tried.total():
            return Reading.NONE
        is_whole = not findings and all(one.is_harmless for one in problems)
        return Reading.WHOLE if is_whole and self._has_stores else Reading.IN_PART

    def _verdict(
        self, reading: Reading, problems: Sequence[Problem], findings: Sequence[Finding]
    ) -> str:
        kind, used, tried = self.registration.kind, self._trial.used, self._trial.tried.total()
        if reading is Reading.SILENT:
            return (
                "nothing came: is it the address that it publishes at, and does it serve requests?"
            )
        if reading is Reading.NONE:
            return (
                f"no known kind reads it: the nearest, {kind}, uses {used} of {tried} events."
                " docs/publishers.md, `A kind of its own`, says how one is added"
            )
        if reading is Reading.WHOLE:
            return f"all of it is used, as of the type {kind}: {tried} events"
        if not self._has_stores:
            return f"{used} of {tried} events are used, as of the type {kind}, and none stores"
        wrong = len(findings) + sum(not one.is_harmless for one in problems)
        return (
            f"{used} of {tried} events are used, as of the type {kind}; problems and findings:"
            f" {wrong}"
        )

    def _findings(self, folded: FoldedPublisher, problems: Sequence[Problem]) -> Iterator[Finding]:
        """What is wrong beyond single events."""
        numbers, names, said = self._survey.numbers, self._names, {one.reason for one in problems}
        first = _FIRST.get(self.registration.kind, 0)
        late = (numbers.first or 0) - first
        is_late = late > 0 and folded.counters.lost_batches == late
        for one in folded.found.findings:
            if one.code not in _FAULTS:
                continue
            if one.code == Code.LOST_BATCHES and (is_late or said):
                continue
            if one.code == Code.LEFT_OUT and folded.state.left_out.keys() <= said:
                continue
            if one.code == Code.RANKS and self.registration.has_other_ranks:
                continue  # each is registered, see `_bodies`
            yield one
        if is_late and not folded.counters.restarts:
            yield self._finding(
                "begun_late",
                f"the first {late} batches are not in the capture: what hangs on them cannot be"
                " judged",
                "begin the check before the engine, or give --replay, where it has a replay socket",
                f"numbers from {first} on",
                f"numbers from {numbers.first} on",
            )
        if names.stored and not self._knows_size:
            yield self._finding(
                "block_size_unsaid",
                "no event says how many tokens a block has, and a registration has to",
                "give --block-size, as the engine was started",
                "a block size",
                "none",
            )
        if names.page_names and not names.chained_names:
            yield self._finding(
                "hashes_not_chained",
                f"{names.page_names} blocks have one hash behind different blocks: it is of the"
                " block's own tokens alone, so nothing tells in which prompt one is held",
                "let a hash be of the block and all that is before it",
                "another hash behind another block",
                "the same one",
            )
        elif names.shared_names:
            yield self._finding(
                "hashes_shared",
                f"{names.shared_names} blocks have the hash of another prefix: something enters a"
                " block that its event does not say, or hashes are too short",
                "let a hash be of the block, all before it, and its salt, adapter and images",
                "one hash for one prefix",
                f"{names.shared_names} with another one's",
            )
        if names.second_names:
            yield self._finding(
                "hashes_differ",
                f"{names.second_names} blocks have another hash than equal tokens had before them:"
                " something enters the hash that the event does not say, as a salt or an adapter",
                "let the event say all that enters a hash: cache_salt, lora_name, extra_keys",
                "one hash for equal tokens behind equal ones",
                f"{names.second_names} second ones",
            )

    def _finding(self, code: str, cause: str, remedy: str, expected: str, got: str) -> Finding:
        one = self.registration
        return Finding(
            code=code,
            tenant_id=one.tenant_id,
            instance_id=one.instance_id,
            model_name=one.model_name,
            dp_ranks=[one.dp_rank],
            cause=cause,
            expected=expected,
            got=got,
            remedy=remedy,
        )

    @property
    def _knows_size(self) -> bool:
        """Whether the events, or who asks, say how many tokens a block has."""
        said = self._survey.numbers_of("block_size")
        return bool(self._given.block_size or self._names.sizes.keys() - {0, 1} or said)

    def _event_of(self, tag: str) -> EventCheck:
        survey = self._survey.events[tag]
        names = self._trial.field_names(tag) if survey.is_array else ()
        return EventCheck(
            tag=tag,
            count=survey.count,
            form="array" if survey.is_array else "map",
            effects=dict(self._effects.get(tag, ())),
            fields=[self._field_of(tag, one, names) for one in survey.fields.values()],
        )

    def _field_of(self, tag: str, field: FieldSurvey, names: Sequence[str]) -> FieldCheck:
        name, is_beyond = field.name, False
        if field.name.startswith("["):
            place = int(field.name[1:-1])
            is_beyond = bool(names) and place > len(names)
            name = f"{field.name} {names[place - 1]}" if 0 < place <= len(names) else field.name
        unknown = self._unknown.get((tag, field.name.rpartition(".")[2]), "")
        if is_beyond:
            unknown = next((one for (of, _), one in self._unknown.items() if of == tag), "")
        return FieldCheck(
            name=name,
            seen=field.seen,
            empty=field.empty,
            values=field.shape,
            looks_like=field.looks_like,
            unknown=unknown,
        )

    def _alike(self) -> list[str]:
        """Other kinds that read as much."""
        best = self._trials[0]
        return [one.registration.kind for one in self._trials[1:] if one.used == best.used]

    def _bodies(self) -> list[dict[str, Any]]:
        """Of `POST /register`, one for each rank of the stream."""
        one = self.registration
        ranks = sorted(_ranks(self._survey)) if one.has_other_ranks else []
        body: dict[str, Any] = {
            **{"endpoint": one.endpoint, "replay_endpoint": one.replay_endpoint},
            **{"type": one.kind, "model": one.model_name, "instance_id": one.instance_id},
            **{"block_size": one.block_size, "dp_rank": one.dp_rank, "tenant_id": one.tenant_id},
        }
        if not one.replay_endpoint:
            del body["replay_endpoint"]
        if one.tenant_id == DEFAULT_TENANT:
            del body["tenant_id"]
        return [body | {"dp_rank": rank} for rank in ranks or [one.dp_rank]]

    def _reasons(self) -> Iterator[str]:
        best, *others = self._trials
        tried, names, one = best.tried.total(), self._names, self.registration
        survey = self._survey
        read = ", ".join(f"{other.registration.kind} {other.used}" for other in others)
        yield f"`type` {one.kind}: it uses {best.used} of {tried} events" + (
            f"; of the same {read}" if read else ", and was given"
        )
        if names.sizes[one.block_size] and self._knows_size:
            blocks = names.sizes[one.block_size]
            yield f"`block_size` {one.block_size}: of {names.sizes.total()} blocks {blocks}"
        else:
            said = "the events name it" if self._knows_size else "no event says it"
            said = "it was given" if self._given.block_size else said
            yield f"`block_size` {one.block_size}: {said}"
        if one.model_name == survey.model_name:
            yield f"`model` {one.model_name}: the topic or the events say it"
        elif one.model_name == UNNAMED:
            yield f"`model` {UNNAMED}: no event says it, put its name there"
        ranks = _ranks(survey)
        said = f"the events name {', '.join(map(str, sorted(ranks)))}" if ranks else "none is named"
        yield f"`dp_rank` {one.dp_rank}: {said}"


def _doubts(folded: FoldedPublisher) -> list[Finding]:
    found = folded.found.findings
    return [one for one in found if one.code == folded.standing.reason and one.code not in _FAULTS]


def _commonest(sizes: "Counter[int]") -> int:
    fitting = Counter({size: n for size, n in sizes.items() if 1 <= size <= BLOCK_SIZE_MAX})
    [(size, _)] = fitting.most_common(1) or [(1, 0)]
    return size


def _alone(unit: _Unit) -> bytes:
    return unit.payload if unit.event is None else unit.event.wrap(unit.event.encoded)


def _number_of(unit: _Unit) -> int | None:
    heads = unit.heads
    return int.from_bytes(heads[-1], "big") if heads and len(heads[-1]) == 8 else None


def _place_of(unit: _Unit) -> str:
    number = _number_of(unit)
    place = f"message {unit.message}" + ("" if number is None else f" (number {number})")
    if unit.event is None:
        return place
    return f"{place}: {unit.event.tag} at `{unit.event.path}`, byte {unit.event.at} of the payload"


def _messages_of(survey: Survey, folded: FoldedPublisher) -> MessagesCheck:
    numbers = survey.numbers
    return MessagesCheck(
        count=survey.messages,
        replayed=survey.replayed,
        seconds=round(max(survey.ended_at - survey.began_at, 0.0), 3),
        frames={str(count): messages for count, messages in survey.frames.items()},
        topics=dict(survey.topics),
        encodings=dict(survey.encodings),
        forms=dict(survey.forms),
        ranks=sorted(_ranks(survey)),
        numbers=NumbersCheck(
            first=numbers.first,
            last=numbers.last,
            missing=numbers.missing,
            back=numbers.back,
            repeated=numbers.repeated,
            unreadable=numbers.unreadable,
            lost=folded.counters.lost_batches,
            restarts=folded.counters.restarts,
        ),
        fault=survey.fault,
    )


def _kind_of(trial: Trial) -> KindCheck:
    effects = {effect.name.lower(): count for effect, count in trial.tried.items() if count}
    return KindCheck(
        type=trial.registration.kind,
        tried=trial.tried.total(),
        used=trial.used,
        effects=effects,
    )


def _blocks_of(names: BlockNames, folded: FoldedPublisher) -> BlocksCheck:
    chained = None
    if names.page_names or names.chained_names:
        chained = names.chained_names > names.page_names
    standing = folded.standing
    state = f"{standing.state} ({standing.reason})" if standing.reason else str(standing.state)
    return BlocksCheck(
        stored=names.stored,
        removed=names.removed,
        cleared=names.cleared,
        sizes={str(size): blocks for size, blocks in names.sizes.items()},
        media=dict(names.media),
        groups=dict(names.groups),
        adapters={name: blocks for name, blocks in names.adapters.items() if name},
        keyed=names.keyed,
        placeholders=names.placeholders,
        roots=names.roots,
        found_parents=names.found_parents,
        unknown_parents=names.unknown_parents,
        again=names.again,
        unheld=names.unheld,
        chained=chained,
        shared_names=names.shared_names,
        second_names=names.second_names,
        counted=folded.entries,
        state=state,
    )
