"""Where a fold stands: cursors of publishers, positions of logs."""

import sys
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from schemas.engine_facts import EngineFacts
from schemas.identities import ATTENTION_ONLY, POOL_REMOVED, UNHELD_REMOVED, Rank, Text
from schemas.limits import GROUP_NUMBER_MAX, INCARNATION_MAX, OFFSET_MAX, SEQUENCE_MAX
from schemas.troubles import NO_TROUBLES, Troubles

IncarnationNumber = Annotated[int, Meta(ge=0, le=INCARNATION_MAX)]
"""0 before a publisher's first batch."""

SequenceNumber = Annotated[int, Meta(ge=-1, le=SEQUENCE_MAX)]
"""-1 before an incarnation's first batch."""

EventCount = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""Of one batch."""

AttentionWindow = Annotated[int, Meta(ge=0, le=GROUP_NUMBER_MAX)]
"""In tokens."""

BlockCount = Annotated[int, Meta(ge=0, le=2**63 - 1)]

MediaNames = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""See `bridge.wire.fields.MEDIA`; and besides:"""

SHARES: Final = 1 << 7
"""It has stored blocks for all instances."""

LOWER_DESCRIBED: Final = 1 << 17
LOWER_TAKEN_BACK: Final = 1 << 18
"""The same where it spells that `cpu`, as the connectors of LMCache and Mooncake do, and vLLM's own
offloading does not.
"""

DISK_STORED: Final = 1 << 19
"""It has stored blocks on DISK, and says of none what enters it beside its tokens."""

DISK_TAKEN_BACK_SHIFT: Final = 18
"""From each name of DISK to the bit that it has removed blocks from there, too."""

SHARED_TAKEN_BACK: Final = 1 << 25
"""It has removed blocks that it had stored for all instances."""

OWNED_ON_CPU: Final = 1 << 27
OWNED_ON_CPU_TAKEN_BACK: Final = 1 << 28
OWNED_ON_DISK: Final = 1 << 29
OWNED_ON_DISK_TAKEN_BACK: Final = 1 << 30
"""The same where the events name who owns the blocks (`ownership`): what such an owner says is gone
tells nothing of what others have stored by the same name, nor they of its blocks.
"""

OWNED_SET: Final = OWNED_ON_CPU | OWNED_ON_CPU_TAKEN_BACK
"""It has stored blocks of an owner that says of each that it is gone (`StoredBlocks.owned`)."""

SAYS_ALL_GONE: Final = 1 << 26
"""A pool: its master has the form of those that say of every object that it is gone."""

POOL_CLEARED: Final = 1 << 8
"""Such blocks were dropped with what is its own, though nothing says that they are gone."""

OWNED_CHUNKS: Final = 1 << 9
"""Another owner keeps several of its blocks as one, and has named each of them: behind a reset,
which need not show, its engine knows no more than the last one, and so names that alone as gone.
"""

CPU_CLEARED: Final = 1 << 10
DISK_CLEARED: Final = 1 << 11
"""So was what it had on this tier of its own, at a clear that may have been of its GPU alone."""

UNSIZED: Final = 1 << 12
"""It has stored blocks on a tier without their size: each may stand for several that it keeps as
one.
"""

WHOLE: Final = 1 << 13
"""One of these was the first of a prompt, which is never the last of several: each is one block."""

DESCRIBED: Final = 1 << 14
"""It has stored blocks on its CPU, or a shared one, by their tokens alone, as connectors do of
which some never say what is gone from there.
"""

TAKEN_BACK: Final = 1 << 15
"""It has removed blocks from there, too."""

REUSES_IN_PART: Final = 1 << 16
"""It has dropped blocks without an event; of earlier logs: or it may overwrite some so."""

OUTLIVING: Final = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6
"""The names of DISK: what is there may outlive the process that stored it."""

DISK_TAKEN_BACK: Final = OUTLIVING << DISK_TAKEN_BACK_SHIFT

ON_CPU: Final = DESCRIBED | LOWER_DESCRIBED | OWNED_ON_CPU
CPU_TAKEN_BACK: Final = TAKEN_BACK | LOWER_TAKEN_BACK | OWNED_ON_CPU_TAKEN_BACK


_STORED: Final = DESCRIBED | LOWER_DESCRIBED | DISK_STORED

_TAKEN_BACK_OF: Final = (
    (DESCRIBED, TAKEN_BACK),
    (LOWER_DESCRIBED, LOWER_TAKEN_BACK),
    (OWNED_ON_CPU, OWNED_ON_CPU_TAKEN_BACK),
    (OWNED_ON_DISK, OWNED_ON_DISK_TAKEN_BACK),
)


def taken_back_of_stored(media: int) -> int:
    """The bits of removals that tell of what is stored, see `never_taken_back`."""
    bits = sum(taken_back for stored, taken_back in _TAKEN_BACK_OF if media & stored)
    bits |= (media & OUTLIVING) << DISK_TAKEN_BACK_SHIFT if media & DISK_STORED else 0
    return bits | (SHARED_TAKEN_BACK if media & SHARES and media & _STORED else 0)


def never_taken_back(media: int) -> bool:
    """Whether blocks were stored on another tier than the GPU, by a name by which none was ever
    removed, or for all instances, or by an owner, and none of those was: what one tier, or one
    connector, says is gone tells nothing of the others. Or in an owner's chunks, of which it may
    name but a part.
    """
    return media & OWNED_CHUNKS != 0 or taken_back_of_stored(media) & ~media != 0


def media_of_next(media: int) -> int:
    """The same of the publisher's next incarnation, which holds nothing: what it has stored for all
    instances, or where it outlives its process, may be there all the same.
    """
    shared = SHARES | POOL_CLEARED if media & SHARES else media & POOL_CLEARED
    return shared | (DISK_CLEARED if media & (OUTLIVING | DISK_CLEARED) else 0)


def media_continued(media: int) -> int:
    """The same of the publisher's next registration, where its engine is the same one: what it
    holds is dropped, and may be there all the same where its clear says nothing of it. Whether it
    reuses blocks in part is what this registration says.
    """
    return media & ~REUSES_IN_PART | (POOL_CLEARED if media & SHARES else 0)


LogOffset = Annotated[int, Meta(ge=-1, le=OFFSET_MAX)]
"""-1 for nothing."""

Seconds = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""Unix seconds; finite."""

Duration = Annotated[float, Meta(ge=0.0, le=sys.float_info.max)]
"""Seconds; finite."""


class Cursor(NamedTuple):
    """The last batch of a publisher that is in the log, or that a table has folded.

    Cursors order as tuples do: a higher incarnation is later whatever the sequence.
    """

    incarnation: int
    sequence: int


NO_CURSOR = Cursor(0, -1)
"""Before the first batch of the first incarnation."""


class Proof(NamedTuple):
    """The last batch that is known to be of a publisher's incarnation: what was taken since over
    another link may be of one that has come as far. Its replay can tell, by the time of this batch.

    Attributes:
        sequence, engine_time: of that batch.
    """

    sequence: SequenceNumber
    engine_time: Seconds


class ProcessMark(NamedTuple):
    """Which process of an engine published an incarnation, where its HTTP address says so.

    Attributes:
        mark: what only this process says of itself, as its start time; opaque.
    """

    incarnation: IncarnationNumber
    mark: Text


class Confirmation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a bridge last said of one publisher; see `schemas.answer_states`.

    Attributes:
        bridge: which one; it counts only while its heartbeats come.
        reason: a `Doubt`; "" where the publisher is confirmed.
        since: when that began, Unix seconds of the bridge's clock.
        activity: an `Activity`; "" where the bridge is of a version that does not say.
        activity_since: when that began, likewise.
        process: None where it is not known.
        facts: what its engine says of its settings; None where that is not known.
        clock_s: how far its engine's clock is behind the bridge's, seconds, roughly; 0: not far.
        troubles: what of it the bridge could not use or reach.
    """

    bridge: Text
    reason: Text = ""
    since: Seconds = 0.0
    activity: Text = ""
    activity_since: Seconds = 0.0
    process: ProcessMark | None = None
    facts: EngineFacts | None = None
    clock_s: Seconds = 0.0
    troubles: Troubles = NO_TROUBLES


class Heartbeat(msgspec.Struct, frozen=True):
    """The last one of a bridge that a table has folded.

    Attributes:
        uptime: of the bridge when it was written, seconds.
        time: the same in Unix seconds of the bridge's clock.
        age: see `HeartbeatRecord`.
    """

    uptime: Seconds
    time: Seconds
    age: Duration = 0.0


class PartialBatch(NamedTuple):
    """How much is folded of the batch behind a cursor, where its records have a part of it each.

    Attributes:
        events: its first ones.
        total: how many it has.
        engine_time: its own timestamp, Unix seconds: another incarnation has another one.
    """

    events: EventCount
    total: EventCount
    engine_time: Seconds


class PublisherState(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a table remembers of one publisher.

    Attributes:
        incarnation, sequence: the cursor.
        engine_time: the engine's timestamp of that batch, Unix seconds; 0 where none came.
        proof: None where all batches up to the cursor are known to be of one incarnation.
        degraded_since: sequence of the first lost batch, or None: the table may miss blocks of this
            publisher, and may list blocks that it has evicted, until a reset or a clear.
        degraded_at: Unix seconds of the bridge's clock when that was written; 0 where not known.
        confirmation: what its bridge last said of it, or None.
        left_out: blocks that it has announced and holds, and no answer counts, by reason: see
            `ReadOnlyKernel.left_out`; of UNSURE ones answers count some, or all.
        left_out_at: Unix seconds of the bridge's clock when the first was; 0 where there is none.
        begun: of the batch behind the cursor; None where nothing of it is folded.
        heard: the last batch of the incarnation that came live, and was not replayed; or None.
        other_ranks: of which events came in its stream in this incarnation.
        window: the largest attention window that its events have named in this incarnation: what it
            holds is of that one. 0 where they named none; None where there was none, or not known.
        base_group: whether it has stored blocks of cache group 0 that form prefixes in this
            incarnation.
        sparse_blocks: how many blocks it has announced in this incarnation of sparse cache groups
            that its engine needs (`NEEDED_SPEC_KINDS`); None where it has no such group, or none is
            known.
        by_rule: whether each of these has a known rule (`streams.kernel.sparse_groups`), by which
            answers count. A version that knows no rules drops it.
        forms_prefixes: whether it has stored blocks of a cache group that forms prefixes.
        media: by which names of media that are one tier here it has stored blocks since it cleared,
            a bit for each. With SHARES others depend on it, too; that and POOL_CLEARED last until
            it is registered anew. CPU_CLEARED and DISK_CLEARED until that tier is cleared, the
            former until its next incarnation, too. The others until that.
        tiers_unheard: the last clear, which was of its GPU and ended a loss: what was lost may have
            been of other tiers, and be there yet. None where there is none, or it has shown since
            that it has none (`streams.bounds.TIERS_SHOWN_BATCHES`).
        unheld_removed: how many blocks it has removed from its GPU that it held nowhere, since it
            cleared: see `Kernel.unheld_removed`.
        lender_gone: of a pool that had objects: when the first instance ended of those that may
            have lent it memory, Unix seconds of a bridge's clock, in this incarnation and since it
            cleared; None where none did.
    """

    incarnation: IncarnationNumber = 0
    sequence: SequenceNumber = -1
    engine_time: Seconds = 0.0
    proof: Proof | None = None
    degraded_since: SequenceNumber | None = None
    degraded_at: Seconds = 0.0
    confirmation: Confirmation | None = None
    left_out: dict[str, int] = {}
    left_out_at: Seconds = 0.0
    begun: PartialBatch | None = None
    heard: Proof | None = None
    other_ranks: tuple[Rank, ...] = ()
    window: AttentionWindow | None = None
    media: MediaNames = 0
    base_group: bool = False
    sparse_blocks: BlockCount | None = None
    by_rule: bool = False
    forms_prefixes: bool = False
    tiers_unheard: SequenceNumber | None = None
    unheld_removed: BlockCount | None = 0
    lender_gone: Seconds | None = None

    @property
    def uncounted(self) -> dict[str, int]:
        """`left_out`, and beside it what it has announced of sparse groups, and removed without
        having held it, by reason.
        """
        uncounted = self.left_out
        if self.is_attention_only:
            uncounted = uncounted | {ATTENTION_ONLY: self.sparse_blocks or 0}
        if self.contradicts_itself:
            uncounted = uncounted | {UNHELD_REMOVED: self.unheld_removed or 0}
        return uncounted

    @property
    def is_attention_only(self) -> bool:
        """Whether its engine needs sparse cache groups by a rule that is not known, or has no
        others.
        """
        return self.sparse_blocks is not None and not (self.by_rule and self.forms_prefixes)

    @property
    def contradicts_itself(self) -> bool:
        """Whether it has removed what it did not hold, and nothing of it is known to be lost."""
        return bool(self.unheld_removed) and self.degraded_since is None

    @property
    def may_have_chunks(self) -> bool:
        """Whether it offloads blocks of which each may stand for several."""
        return self.media & UNSIZED != 0 and not self.media & WHOLE

    @property
    def may_lack_memory(self) -> bool:
        """Whether it is a pool of which objects may be gone with the memory that had them."""
        return self.lender_gone is not None and not self.media & SAYS_ALL_GONE

    @property
    def concerns_all(self) -> bool:
        """Whether other instances hold what it says, or does not say, of a pool."""
        return self.media & SHARES != 0 or self.doubts_others

    @property
    def doubts_others(self) -> bool:
        """Whether what others have stored in a pool may be gone, by what it says of that."""
        return self.media & POOL_CLEARED != 0 or POOL_REMOVED in self.left_out

    @property
    def cursor(self) -> Cursor:
        """The last folded batch."""
        return Cursor(self.incarnation, self.sequence)


class Position(NamedTuple):
    """A table has folded every record of `partition` up to and including `offset` (-1: none)."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


class LogBounds(NamedTuple):
    """What a log, or one partition of it, has: everything from `start` on, up to before `end`."""

    start: int
    end: int
