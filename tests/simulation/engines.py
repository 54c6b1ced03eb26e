"""Publishers without sockets: a cache, what they say of it, and a replay buffer.

An engine's cache is the truth to which every answer is compared, as far as an index can know it.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence, Set
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from bridge.engine_http.answers import Process, PublisherSource
from lab.engines.cache import BlockChain, CacheSizes, EngineCache
from lab.engines.wire import (
    GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineEvent,
    EventEncoder,
)
from schemas.identities import PublisherKey
from schemas.records import EventsRecord, GapRecord
from schemas.registration import PublisherKind, Registration, facts_of
from tests.building import prefix_hashes
from tests.simulation.announced import Announced
from tests.simulation.loop import EPOCH_S, SimulatedLoop
from tests.simulation.oddities import EVENT, Effect, Oddity, oddities_of, put

if TYPE_CHECKING:
    from tests.simulation.links import Link

BLOCK_SIZE: Final = 4
MODEL: Final = "model"
"""With it the streams of the first engines are in both partitions of the events."""
PAST_S: Final = 30.0
"""For how long it is remembered what an engine had cached."""
_WIRES: Final = ("0.9", "0.20", "0.26", "0.33")


class Spoilt(StrEnum):
    """How a batch is not as an engine sends it; each is the word by which it is dropped."""

    BATCH = "undecodable"
    EVENT = "unknown_event"


_BAD_BATCH: Final = b"\xc1"
_BAD_EVENT: Final[dict[bool, object]] = {False: ["BlockPinned", [1]], True: {"type": "BlockPinned"}}
"""By whether the events are maps."""


_VLLM: Final = PublisherKind("vLLM")
_TENSORRT: Final = PublisherKind("TensorRT-LLM")
_SPARSE: Final = ("cross_attention", "sliding_window")
"""By the number of the group of full attention beside it: the engine needs blocks of the second
alone.
"""


class SimulatedEngine:
    """One rank of an engine, with the socket of one incarnation after another.

    Args:
        replays: whether it has a replay socket.
        buffer_batches: how many batches that has.
        answers_http: how many of the questions to its HTTP server it answers while it is up; 0:
            it is registered without one.
        by_url: whether it is registered by that alone, and publishes elsewhere in each life.
        groups: of full attention, and of a sparse one, which has the same blocks; None: there is
            one group.
        kind: of the engine.
        shares: whether other ranks of it publish at its address, so that each batch names its rank.

    Attributes:
        ranks: those whose events come in its stream, itself among them: they live and die together,
            and count their batches as one, or each by itself (`counts_by_rank` of their kind).
        announced: what an index can know of its cache.
        heard_ranks: other ranks whose events came in its stream in this life, and since when.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        rng: random.Random,
        number: int,
        *,
        replays: bool,
        buffer_batches: int,
        gpu_blocks: int = 24,
        answers_http: float = 0.0,
        by_url: bool = False,
        groups: tuple[int, int] | None = None,
        kind: PublisherKind = _VLLM,
        shares: bool = False,
    ) -> None:
        self.number = number
        self._loop = loop
        self._rng = rng
        self._sizes = CacheSizes(block_size=BLOCK_SIZE, gpu_blocks=gpu_blocks)
        wire = rng.choice(_WIRES[1:] if shares else _WIRES)
        self._counts_alone = shares and facts_of(kind).counts_by_rank
        self._encoder = EventEncoder(wire if kind == _VLLM else "0.26")
        self._groups = groups if self._encoder.release >= (0, 22, 0) else None
        self._as_maps = self._encoder.release >= (0, 24, 0)
        self.oddities = oddities_of(kind, as_maps=self._as_maps)
        self._odd: Oddity | None = None
        self.odd: dict[tuple[int, int], Oddity] = {}  # life, sequence
        self.answers_http = answers_http
        self.registration = Registration(
            endpoint=f"http://engine-{number}:8000" if by_url else f"tcp://engine-{number}:5557",
            replay_endpoint=f"tcp://engine-{number}:5558" if replays else "",
            http_endpoint=f"http://engine-{number}:8000" if answers_http and not by_url else "",
            kind=kind,
            model_name=MODEL,
            instance_id=f"engine-{number}",
            block_size=BLOCK_SIZE,
            kv_offloading="none",
            kv_partial_reuse="none",
        )
        self.ranks = [self]
        self._others: dict[tuple[int, int], PublisherKey] = {}  # whose batch it is that is not ours
        self._foreign: dict[bytes, PublisherKey] = {}  # likewise by payload, where each counts
        self.heard_ranks: dict[PublisherKey, float] = {}
        self.links: list[Link] = []
        self._lives: dict[float, int] = {}  # by the time of a batch, the incarnation that sent it
        self._heard: set[tuple[int, int]] = set()
        self.arrived: set[tuple[int, int]] = set()  # over links: life, sequence
        self.replayed: set[tuple[int, int]] = set()
        self.published: dict[int, list[list[bytes]]] = {}  # the frames of all batches, by life
        self.spoilt: dict[tuple[int, int], Spoilt] = {}  # life, sequence
        self._spoils: Spoilt | None = None
        self._life = 0
        self._skew_s = 0.0
        self._prefixes: dict[int, int] = {}  # by block hash, of all incarnations
        self.lost_unseen = False  # see `note_unseen_loss`
        self.past: deque[tuple[float, frozenset[int] | None]] = deque()
        self.buffer_batches = buffer_batches
        self._prompts: deque[Sequence[int]] = deque(maxlen=8)
        self.cleared_at = 0
        self.up = False
        self.start()

    def add_rank(self, number: int, rng: random.Random) -> "SimulatedEngine":
        """Another rank, whose events come in the same stream."""
        other = SimulatedEngine(
            self._loop,
            rng,
            number,
            replays=bool(self.registration.replay_endpoint),
            buffer_batches=self.buffer_batches,
            gpu_blocks=self._sizes.gpu_blocks,
            kind=self.registration.kind,
            shares=True,
        )
        other.registration = msgspec.structs.replace(self.registration, dp_rank=len(self.ranks))
        self.ranks.append(other)
        other.ranks = self.ranks
        return other

    @property
    def encoded_registration(self) -> bytes:
        """As the registry has it."""
        return msgspec.msgpack.encode(self.registration)

    @property
    def publisher(self) -> PublisherKey:
        """Its identity."""
        return self.registration.publisher

    @property
    def lives_heard(self) -> int:
        """How many of its lives anybody has received something of."""
        return len({life for life, _ in self._heard})

    def start(self) -> None:
        """Starts a new incarnation: empty, and numbering from 0."""
        skew_s = self._skew_s
        if self._life and self.registration.replay_endpoint:
            skew_s = self._rng.choice((0.0, 0.0, -50.0, 20.0))  # of its clock
        for one in self.ranks:
            one._begin(skew_s)

    def _begin(self, skew_s: float) -> None:
        self.cache = EngineCache(self._sizes, chain=BlockChain(BLOCK_SIZE, self._rng.randbytes(32)))
        self.announced: Announced[int] = Announced()
        self.heard_ranks.clear()
        self._prompts.clear()
        self.sequence = self.cleared_at = 0
        self._life += 1
        self._skew_before_s, self._skew_s = self._skew_s, skew_s
        self._started_at = EPOCH_S + self._loop.now + self._skew_s
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=self.buffer_batches)
        self.up = True
        self._note_past(frozenset())

    def stop(self) -> None:
        """Ends the incarnation: links go down, what was under way is lost."""
        for one in self.ranks:
            one.up = False
            one._note_past(None)
            for link in one.links:
                link.set_up(False)

    def _note_past(self, held: frozenset[int] | None) -> None:
        """What it holds from now on; None where an index cannot know that."""
        self.past.append((self._loop.now, held))
        while len(self.past) > 1 and self.past[1][0] < self._loop.now - PAST_S:
            self.past.popleft()

    def _announce(self, events: Sequence[EngineEvent], odd: Oddity | None, how: str) -> None:
        """What an index knows after each block of a batch: its records may have a part of it each.

        Args:
            events: of the batch.
            odd: what is odd about one of them.
            how: it is spoilt, or "".
        """
        known = self.announced
        if how == Spoilt.BATCH:
            known.is_lost, events = True, ()
        place = None if odd is None else odd.place([type(event).__name__ for event in events])
        for number, event in enumerate(events):
            if (how == Spoilt.EVENT and number == len(events) - 1) or (
                number == place and odd is not None and odd.effect is Effect.LOST
            ):
                known.is_lost = True
            else:
                reason = odd.reason if odd is not None and odd.effect is Effect.LEFT_OUT else ""
                self._announce_event(event, reason if number == place else "")
                if number == place and odd is not None and odd.effect is Effect.LESS:
                    known.is_lost = True
        known.is_lost |= how == Spoilt.EVENT or (odd is not None and odd.tag == EVENT)
        self._note_known()

    def _announce_event(self, event: EngineEvent, reason: str) -> None:
        known = self.announced
        if isinstance(event, AllBlocksCleared):
            known.clear()
            self._note_known()
        elif self._groups is not None and event.group_idx == self._groups[1]:
            known.is_hybrid |= isinstance(event, BlockStored) and self.is_hybrid
            self._note_known()
        elif isinstance(event, BlockRemoved):
            for block in event.block_hashes:
                known.remove([int(block)])
                self._note_known()
        else:
            blocks = [(int(one), self._prefixes[int(one)]) for one in event.block_hashes]
            parent = event.parent_block_hash
            behind = None if parent is None else int(parent)
            for one in blocks:
                known.store([one], behind, reason, reported=True)
                behind = one[0]
                self._note_known()

    @property
    def is_hybrid(self) -> bool:
        """Whether it needs blocks of its sparse group to reuse a prefix."""
        return self._groups is not None and self._groups[0] > 0

    def _note_known(self) -> None:
        self._note_past(self.announced.held if self.announced.is_sound else None)

    def was_so(self, found: Set[int], *, within_s: float) -> bool:
        """Whether this is all that was cached at some time of the last seconds, and could be known
        to be.
        """
        since = self._loop.now - within_s
        until = self._loop.now
        for begun, held in reversed(self.past):
            if until < since:
                return False
            if held == found:
                return True
            until = begun
        return False

    def serve(self, prompt: Sequence[int]) -> None:
        """One request: its events are one batch."""
        hashes = self.cache.chain.hashes(prompt)
        self._prefixes.update(zip(hashes, prefix_hashes(prompt, BLOCK_SIZE), strict=True))
        self._prompts.append(prompt)
        self._publish(self.cache.run(prompt).events)

    def announce_again(self) -> bool:
        """Says of the blocks of a prompt that they are there still; whether it can."""
        held = {block for block, _ in self.cache.snapshot().held}
        for prompt in self._prompts:
            hashes = self.cache.chain.hashes(prompt)
            if self._as_maps and self.registration.kind == _VLLM and held.issuperset(hashes):
                again = BlockStored(
                    block_hashes=hashes, token_ids=prompt, block_size=BLOCK_SIZE, medium=GPU
                )
                self._publish([again], _REUSED)
                return True
        return False

    def describe(self, found: Set[int]) -> str:
        """For people: how what was found differs from what can be known."""
        known = self.announced.held
        return (
            f"engine {self.number}: {len(found - known)} blocks too many, {len(known - found)}"
            f" missing, {self.announced.reasons or 'nothing'} in doubt; it is"
            f" {'up' if self.up else 'down'} at {self.sequence}"
        )

    def held(self) -> set[int]:
        """The prefix hashes of what is cached: the truth."""
        return {self._prefixes[block] for block, _ in self.cache.snapshot().held}

    def note_unseen_loss(self) -> None:
        """A link has lost a message and has not gone down: without a replay socket, what comes next
        shows it, and nothing else. With one, too, where what comes next is another rank's.
        """
        is_asked = self.registration.replay_endpoint and not self._counts_alone
        self.lost_unseen = self.lost_unseen or not is_asked

    def note_heard(self, sequence: int, payload: bytes, *, is_replayed: bool) -> None:
        """A batch of the present incarnation has been received by somebody."""
        if payload in self._foreign:
            self.heard_ranks.setdefault(self._foreign[payload], self._loop.now)
            return
        batch = self._life, sequence
        if batch in self._others:
            self.heard_ranks.setdefault(self._others[batch], self._loop.now)
        self._heard.add(batch)
        (self.replayed if is_replayed else self.arrived).add(batch)

    def life_at(self, engine_time: float) -> int | None:
        """Which of its lives has sent the batch of this time; None where the time is not known."""
        return self._lives[engine_time] if engine_time else None

    @property
    def life(self) -> int:
        """The present one, from 1."""
        return self._life

    @property
    def is_set_back(self) -> bool:
        """Whether its clock shows less than that of the life before."""
        return self._skew_s < self._skew_before_s

    def spoilt_in(self, life: int, how: Spoilt) -> set[int]:
        """The batches of one of its lives that were spoilt in this way, or as much is lost of."""
        found = {number for (of, number), one in self.spoilt.items() if (of, one) == (life, how)}
        if how is Spoilt.BATCH:
            return found
        odd = self.odd.items()
        lost = (Effect.LOST, Effect.LESS)
        return found | {at for (of, at), one in odd if of == life and one.effect in lost}

    def spoil_next(self, how: Spoilt) -> None:
        """What it publishes next is not as it should be, live and in its buffer."""
        # Of a batch that cannot be read no number says whose it is, where each rank counts alone.
        self._spoils = Spoilt.EVENT if self._counts_alone else how

    def be_odd(self, oddity: Oddity | None) -> None:
        """What it publishes next is odd, of what can be so; None: as it should be."""
        self._odd = oddity

    @property
    def source(self) -> PublisherSource:
        """Where it publishes in its present life."""
        replay_endpoint = self.registration.replay_endpoint
        return PublisherSource(
            self.registration.dp_rank,
            f"tcp://engine-{self.number}:{self._life}",
            replay_endpoint,
            None,
        )

    def tell_process(self) -> Process:
        """What its HTTP server says of the present incarnation; somebody has heard of it then."""
        self._heard.add((self._life, -1))
        return Process(f"life {self._life}", self._started_at)

    def hid_a_restart(self, records: Iterable[EventsRecord | GapRecord]) -> bool:
        """Whether the numbers of its batches could not show that it was started again: the first
        one of an incarnation that anybody heard came just after the last one of another.
        """
        last: dict[int, tuple[int | None, int]] = {}  # by incarnation in the log, the last batch
        for record in records:
            if isinstance(record, GapRecord) and record.reason != Spoilt.BATCH:
                continue
            before, sequence = last.get(record.incarnation, (None, -1))
            life = self._life_of(record, before)
            before = life if before is None else before
            sequences = range(record.first_sequence, record.last_sequence + 1)
            if before != life and record.first_sequence == sequence + 1:
                return True
            if any((life, one) not in self._heard for one in sequences):
                return True  # one record has batches of both
            if record.last_sequence > sequence:
                last[record.incarnation] = (life, record.last_sequence)
        return False

    def _life_of(self, record: EventsRecord | GapRecord, before: int | None) -> int | None:
        """Which of its lives has sent what is in a record; `before` is that of the record before
        it in the incarnation. What cannot be decoded has no time.
        """
        if isinstance(record, EventsRecord) and record.engine_time:
            return self.life_at(record.engine_time)
        numbers = range(record.first_sequence, record.last_sequence + 1)
        lives = {life for life, one in self.spoilt if one in numbers and (life, one) in self._heard}
        return before if before in lives or not lives else min(lives)

    def clear(self) -> None:
        """Forgets everything, and says so."""
        self.cleared_at = self.sequence
        self._publish(self.cache.clear())

    def _publish(self, events: list[EngineEvent], odd: Oddity | None = None) -> None:
        now = EPOCH_S + self._loop.now + self._skew_s
        while now in self._lives:
            now += 1e-6
        events = self._in_groups(events)
        rank = self.registration.dp_rank
        payload = self._encoder.encode(events, timestamp_s=now, dp_rank=rank)
        how, self._spoils = self._spoils, None
        if how is not None:
            payload = _spoilt(payload, how)
        elif (odd := odd or self._odd) is not None:
            made = odd.make(payload)
            if made is None:
                odd = None
            else:
                payload, self._odd = made, None
                self.odd[self._life, self.sequence] = odd
        self._announce(events, odd if how is None else None, how or "")
        number = self.sequence
        for one in self.ranks:
            if one is not self and self._counts_alone:
                one._foreign[payload] = self.publisher
                one._hand_out(number, payload)
                continue
            if one is not self:
                one._others[one._life, one.sequence] = self.publisher
            if how is Spoilt.BATCH or (how is not None and one is self):
                one.spoilt[one._life, one.sequence] = how
            if how is Spoilt.BATCH and one is not self:
                one._announce((), None, how)
            one._send(now, payload)

    def _send(self, now: float, payload: bytes) -> None:
        self._lives[now] = self._life
        frames = self._hand_out(self.sequence, payload)
        self.published.setdefault(self._life, []).append(frames)
        self.sequence += 1

    def _hand_out(self, number: int, payload: bytes) -> list[bytes]:
        self.buffer.append((number, payload))
        frames = [b"", number.to_bytes(8, "big"), payload]
        for link in self.links:
            link.send(frames)
        return frames

    def _in_groups(self, events: list[EngineEvent]) -> list[EngineEvent]:
        """The events of the group that forms prefixes, each with that of the other one."""
        if self._groups is None:
            return events
        found: list[EngineEvent] = []
        full, sparse = self._groups
        for event in events:
            if isinstance(event, AllBlocksCleared):
                found.append(event)
                continue
            found.append(msgspec.structs.replace(event, group_idx=full))
            found.append(msgspec.structs.replace(event, group_idx=sparse))
            if isinstance(event, BlockStored):
                found[-1] = msgspec.structs.replace(found[-1], kv_cache_spec_kind=_SPARSE[full])
        return found


_REUSED: Final = Oddity("announced again", "BlockStored", Effect.USED, "", put("origin", "REUSED"))


def _spoilt(payload: bytes, how: Spoilt) -> bytes:
    """The batch with an event that nobody knows in place of its last one, or no batch at all."""
    if how is Spoilt.BATCH:
        return _BAD_BATCH + payload
    batch: list[list[object]] = msgspec.msgpack.decode(payload)
    events = batch[1]
    events[-1:] = [_BAD_EVENT[bool(events) and isinstance(events[-1], dict)]]
    return msgspec.msgpack.encode(batch)
