"""What a kernel is: the prefix index in memory, behind one interface with two implementations.

`reference.py` is the readable specification; the Rust crate in `native/` is the one to run. They
agree in every answer, change, count and digest (`tests/contract`, `tests/property`). A kernel does
no I/O, reads no clock and has no randomness that an answer could show.

Terms: a *publisher* holds *entries*, each a block on a tier, under the engine's own key; a *scope*
maps prefix hashes to the set of *holders* (publisher, tier). A block of the scope lives while it
has a holder.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, NewType, Protocol

from schemas.identities import ModelContext, PrefixScope, PublisherKey, StreamKey

PublisherId = NewType("PublisherId", int)
"""A kernel's handle of a publisher, valid until `unregister`."""

COUNTERS = (
    "stored",  # blocks stored, repeated announcements included
    "removed",  # blocks removed, counted-down ones included
    "cleared",  # entries dropped by clear or unregister
    "repeated",  # blocks stored that the publisher held on that tier already
    "unknown_parent",  # blocks stored after a parent that the publisher does not hold: dropped
    "unknown_removed",  # blocks removed that the publisher does not hold on that tier
    "unresolved",  # placeholders for blocks that the publisher does not hold, nor held before in
    # the same batch: dropped
    "block_size_mismatch",  # blocks stored with another block size than registered: dropped
    "token_count_mismatch",  # blocks stored with tokens that do not cover them: dropped
    "extra_keys_mismatch",  # blocks stored with another number of extra keys: dropped
    "skipped_group",  # blocks stored or removed in a cache group that forms no prefix and has no
    # rule: dropped
    "hash_conflict",  # blocks stored under a key that names another block: the first one is kept
    "hold_count_overflow",  # announcements beyond HOLD_COUNT_MAX: not counted
    "waiting",  # objects stored whose block no engine has announced yet: kept until one does
    "joined",  # objects that have waited, and have been given their block
    "waiting_overflow",  # objects stored beyond WAITING_MAX that would have to wait: dropped
    "reported",  # blocks that the publisher said again it holds on that tier: nothing changes
    "seed_mismatch",  # blocks stored by hashes of their tokens, with another seed: dropped
    "unusable",  # blocks stored of which the bridge could use nothing but their names: dropped
    "left_out_overflow",  # blocks dropped of which there was no room to know that they are held
    "left_out_removed",  # blocks removed that had been dropped
)
"""Names of a kernel's counters, all in blocks; they start at 0 with the process. That blocks which
were dropped are held all the same is kept, see `ReadOnlyKernel.left_out`.
"""


class RankMatch(NamedTuple):
    """One data-parallel rank's part of a match, in tokens.

    `matched` is the continuous prefix that the rank holds on its own tiers, any of them. The other
    three are Conductor's cumulative walk: `gpu_walk` tokens on this rank's GPU, from there on to
    `cpu_walk` on its CPU or a shared one, from there on to `disk_walk` on disk.
    """

    dp_rank: int
    matched: int
    gpu_walk: int
    cpu_walk: int
    disk_walk: int


class InstanceMatch(NamedTuple):
    """What one instance holds of a prompt, in tokens.

    All that it can use: of hybrid models as far as each cache group has what it needs
    (`streams.kernel.sparse_groups`), on the tiers that count.

    `longest` counts any rank, any tier, shared pools included; `gpu`, `cpu`, `disk` that medium
    alone, on any rank, shared pools included. `ranks` is sorted. A shared pool counts for the ranks
    that read it (`Kernel.register`).

    Where a rank is registered as a shard, a block counts only as far as every rank has its part of
    it: on any tier for `longest`, on that medium for the others, each in itself or in a pool of CPU
    or DISK. What a rank has beyond `longest` is of no use, and is in none of `ranks`.
    """

    instance_id: str
    longest: int
    gpu: int
    cpu: int
    disk: int
    ranks: list[RankMatch]


class EngineMatch(NamedTuple):
    """One publisher's part of an answer to hashes of engines.

    `blocks` is how many of the first ones it holds without a gap, under these names of its own, on
    its own tiers, any of them; above 0.
    """

    publisher: PublisherId
    blocks: int


class ScopeView(NamedTuple):
    """One scope for `/global_view`: `instances` maps each instance to its ranks, sorted."""

    scope: PrefixScope
    blocks: int
    instances: dict[str, list[int]]


class ContextView(NamedTuple):
    """One context with entries, for `/digest`."""

    context: ModelContext
    digest: int
    entries: int


class ScannedQuery(NamedTuple):
    """The body of `POST /query` as the kernel's own scanner reads it; absent strings are ""."""

    model: str
    lora_name: str
    tenant_id: str
    instance_id: str | None
    block_size: int
    cache_salt: str
    tokens: bytes


class BodyForm(IntEnum):
    """What the body of a query is. The numbers are those of the Rust kernel."""

    JSON = 0
    MSGPACK = 1
    OCTETS = 2
    """Tokens as (n,) u32 LE, or hashes as (n,) u64 LE; all else stands in the URL."""


class PlainAnswer(NamedTuple):
    """The answer to a plain query, written by the kernel.

    Attributes:
        tokens: of the prompt.
        hit_tokens: the most that one instance holds of it.
        text: the body, in the form of the request's.
        audited: for `AuditQueue.push`, where it is one of the answers that are kept.
    """

    scope: PrefixScope
    tokens: int
    hit_tokens: int
    text: bytes
    audited: bytes | None = None


class AuditQueue(Protocol):
    """Answers that are kept, to be derived again from the log later; bounded. Any thread may call
    it, and none waits.
    """

    def draw(self) -> bool:
        """Whether the next answer is one of those that are kept: by a hash of its number."""
        ...

    def push(self, answer: bytes, time: float, state: str, /) -> None:
        """Keeps an answer (`schemas.answer_records.encode_answer`), given at that Unix time in that
        state, or counts it where there is no room.
        """
        ...

    def note_unsettled(self) -> None:
        """Counts one that was given while a record was half folded."""
        ...

    def take(self) -> list[tuple[int, bytes]]:
        """What was kept since the last call: in chunks for one record each, how many answers, and
        these encoded, one behind the other.
        """
        ...

    def counts(self) -> tuple[int, int, int]:
        """How many found room, how many found none, and how many were unsettled."""
        ...


class ContextDump(Protocol):
    """All entries of a context as SET changes, gathered in slices beside the writes between them.

    What is written meanwhile may be in it or not. Whoever loads it and then all changes since it
    was opened, in order, has the entries as of the last of these.
    """

    def gather(self, entries: int, /) -> int:
        """Looks at so many further entries of the instance, or a few more. Cost O(entries).

        Returns:
            How many; fewer than that many once all were looked at.
        """
        ...

    def take(self, entries_max: int, /) -> bytes:
        """Once all were gathered: the next changes, at most so many and that many but at the end,
        b"" after it. Cost O(entries).

        Blocks that follow each other in the index follow each other here, so that loading restores
        the layout.
        """
        ...


class ReadOnlyKernel(Protocol):
    """What queries and views may call, from any thread, beside the one writer.

    A query sees the index between two events or in the middle of one, never a block half changed.
    """

    @property
    def name(self) -> str:
        """`rust` or `reference`; shown by `/health`, the log and the metrics."""
        ...

    @property
    def seed(self) -> int:
        """Seed of the prefix hash, u64."""
        ...

    def query(
        self,
        scope: PrefixScope,
        tokens: bytes,
        keys: Sequence[bytes],
        instance_id: str | None,
        /,
    ) -> list[InstanceMatch]:
        """What each instance holds of a prompt, sorted by instance; [] for an unknown scope.

        Args:
            scope: where to look.
            tokens: (n,) u32 LE; a trailing partial block does not count, nor a last block of pairs
                without the token behind it (`schemas.events.paired_key`).
            keys: `schemas.events.extra_key` of the prompt's first blocks, b"" for none; the others
                have none.
            instance_id: only this instance, or None for all.

        Cost: O(blocks matched + holders that end), at about the speed of hashing the tokens.
        """
        ...

    def query_by_hash(
        self, scope: PrefixScope, hashes: bytes, instance_id: str | None, /
    ) -> list[InstanceMatch]:
        """As `query`, for prefix hashes that the caller has computed: (n,) u64 LE."""
        ...

    def has_rules(self) -> bool:
        """Whether `limiting_groups` may find any: some publisher has a cache group that is counted
        by a rule, or had one.
        """
        ...

    def limiting_groups(
        self, scope: PrefixScope, hashes: bytes, instance_id: str | None, /
    ) -> list[tuple[str, int]]:
        """The instances whose `longest` of such a query would be longer by their full attention
        alone, each with the number of the cache group that ended it; sorted. Cost as `query`.
        """
        ...

    def query_by_engine_hash(
        self, tenant_id: str, model_name: str | None, hashes: bytes, /
    ) -> list[EngineMatch]:
        """Which publishers hold the blocks that they themselves call by these hashes, sorted by
        their handles; `publisher` says who they are.

        An engine's names are its own: another's block of that name may be another block. Block
        size, salt and adapter are not asked for, since an engine's hash has what it depends on. Of
        engines with cache groups, the first group's blocks count.

        Args:
            tenant_id: of the publishers.
            model_name: of the publishers, or None for any.
            hashes: in the order of the prompt, (n,) u64 LE.

        Cost: O(blocks held + publishers) where the publishers of a scope call blocks alike, else
        O(blocks held by each).
        """
        ...

    def engine_hashes(
        self, scope: PrefixScope, hashes: bytes, instance_id: str, dp_rank: int, /
    ) -> bytes:
        """What a publisher calls the blocks of these prefix hashes; both (n,) u64 LE. As far as it
        holds them itself without a gap, on any tier. It may end where others have announced a block
        first, and by another name. Cost O(blocks).
        """
        ...

    def publisher(self, publisher: PublisherId, /) -> PublisherKey | None:
        """Who has this handle; None for nobody any more. A handle never becomes another's. Cost
        O(1).
        """
        ...

    def chain_hashes(self, token_hashes: bytes, /) -> bytes:
        """The prefix hashes of blocks whose tokens have these hashes, without a salt or keys; both
        (n,) u64 LE. Cost O(n).
        """
        ...

    def hash_blocks(
        self, tokens: bytes, block_size: int, keys: Sequence[bytes], pairs: bool, /
    ) -> bytes:
        """`streams.kernel.hashing.prefix_hashes`, (n,) u64 LE, with the kernel's seed, and without
        the interpreter's lock where the prompt is long. Whatever is held. Cost O(tokens).
        """
        ...

    def knows(self, scope: PrefixScope, /) -> bool:
        """Whether the scope has a participant: a registered publisher, or one that holds blocks."""
        ...

    def scan_query(self, body: bytes, /) -> ScannedQuery | None:
        """Reads a plain JSON body of `POST /query` without making an object of each token.

        None wherever anything is unusual (an escape, an unknown or repeated key, a number that is
        not a plain integer in range, a value of another type, a missing field, trailing data): the
        caller then parses and validates in full, so that every error text has one source.
        `streams.kernel.scan` says what is accepted.
        """
        ...

    def answer(
        self,
        body: bytes,
        form: int = BodyForm.JSON,
        by_hash: bool = False,
        url_query: bytes | None = None,
        /,
    ) -> PlainAnswer | None:
        """Answers a plain body of `POST /query`, or of `/query_by_hash`, by one call, without the
        interpreter's lock where it is long: what `query_api.http` makes of its steps, byte for
        byte. `form` is a `BodyForm`; `url_query` stands behind the `?` of the URL.

        None where it has no such call, or anything is unusual, as a scope that nobody has: the
        caller then takes each step.
        """
        ...

    def prefix_hashes(
        self, scope: PrefixScope, tokens: bytes, keys: Sequence[bytes], most: int, /
    ) -> bytes:
        """The prefix hashes of a prompt's first blocks, at most so many; (n,) u64 LE. See `query`.
        Of blocks of pairs where the first one is held as such, and not as a plain one. Cost
        O(tokens).
        """
        ...

    def settled(self) -> tuple[int, list[tuple[int, int]]] | None:
        """How many writes have begun that may change answers, and the position behind them, as
        partition and offset; None while a record is half folded.

        What is asked between two calls that tell the same number of writes is answered as of
        exactly that position.
        """
        ...

    def left_out(self, publisher: PublisherId, /) -> list[tuple[str, int]]:
        """What the publisher has announced, still holds, and no answer counts: blocks by reason,
        sorted. Cost O(scopes of the publisher).

        A block is left out until its publisher removes it, clears, or announces it so that it can
        be used. Reasons: `unknown_parent`, `unresolved`, `block_size:<what it has>`, `token_count`,
        `extra_keys`, `hash_conflict`, `hold_count`, `waiting`, `seed`, those of the bridge
        (`StoredBlocks.left_out`), and `overflow` where there was no room for more, until the
        publisher clears. Of `copies_unknown` it is not known whether the publisher holds them (it
        has removed them as often as it has surely stored them, and has announced them more often;
        or has named them of a sparse group in what may be a report, and answers count none):
        answers count the first ones, a 64th of LEFT_OUT_BLOCKS_MAX, until they are removed as often
        as they were announced. Those of `groups_differ` are counted, too: some cache groups hold
        them, and others that form prefixes do not. `objects_wait` are a pool's objects that wait
        for an engine to announce their blocks. Of those of `hashes_differ` a pool has objects by
        hashes of engines that do not hash alike: answers count these for all. `pool_removed` are
        blocks that an engine has removed from a pool, and others have stored there: likewise.
        """
        ...

    def wait_together(self, publishers: Sequence[PublisherId], /) -> bool:
        """Whether for one block at least objects wait at each of these, so that none of them finds
        it. Cost O(sets of publishers at which objects wait).
        """
        ...

    def without_adapter(self, scope: PrefixScope, /) -> list[str]:
        """The instances of which nothing says whether they could use what a pool has of the scope:
        they are registered without an adapter, and hold no block of the scope's own; sorted. None
        where the scope has no adapter, or no pool that it reads has blocks of it. Cost
        O(publishers).
        """
        ...

    def scopes(self) -> list[ScopeView]:
        """All scopes with participants or blocks, sorted. Cost O(scopes + publishers)."""
        ...

    def contexts(self) -> list[ContextView]:
        """All contexts with entries, with their digests, sorted."""
        ...

    def counters(self) -> dict[str, int]:
        """`COUNTERS` by name."""
        ...

    def stats(self) -> dict[str, int]:
        """Sizes now: `blocks`, `entries`, `publishers`, `scopes`, `holder_sets`, `waiting`,
        `left_out`, `memory_bytes`. `waiting` are those of the entries that wait for an engine to
        announce their blocks, `left_out` those of blocks that the index cannot use; no block or
        scope is counted for them.
        """
        ...

    def open_dump(self, context: ModelContext, /) -> ContextDump:
        """A dump of which nothing is gathered yet. Cost O(publishers)."""
        ...


class Kernel(ReadOnlyKernel, Protocol):
    """The prefix index with its writing methods, which are for one thread at a time."""

    def open_publisher(self, stream: StreamKey, dp_rank: int, /) -> PublisherId:
        """The handle of a publisher, made where it is new. Cost O(1)."""
        ...

    def set_domain(self, publisher: PublisherId, domain: int, /) -> None:
        """Objects of the publisher are joined to their blocks through engines of the same domain
        alone, 0 at first: a partition of the log, where one kernel has several. Who folds a
        partition has no other one to join them through.
        """
        ...

    def has_base_group(self, publisher: PublisherId, /) -> bool:
        """Whether it has stored blocks of cache group 0 that form prefixes, since `clear`: rows do
        not say so where it holds none of them any more. Cost O(1).
        """
        ...

    def set_base_group(self, publisher: PublisherId, /) -> None:
        """It had, when its rows were written."""
        ...

    def sparse_blocks(self, publisher: PublisherId, /) -> int | None:
        """How many blocks it has announced since `clear` of sparse cache groups that its engine
        needs (`schemas.events.NEEDED_SPEC_KINDS`); None where no such group is known: an event that
        names no block tells of one. No row says so. Cost O(1).
        """
        ...

    def by_rule(self, publisher: PublisherId, /) -> bool:
        """Whether there are such groups, and the rule of each is known, by which answers count
        (`streams.kernel.sparse_groups`). Cost O(1).
        """
        ...

    def forms_prefixes(self, publisher: PublisherId, /) -> bool:
        """Whether it has stored blocks of a group that forms prefixes, since `clear`. Cost O(1)."""
        ...

    def set_sparse_blocks(self, publisher: PublisherId, blocks: int, by_rule: bool, /) -> None:
        """It had, when its rows were written, and they were. Where they were not, its rows say so
        from now on, if they have rules.
        """
        ...

    def unheld_removed(self, publisher: PublisherId, /) -> int | None:
        """How many blocks it has removed from its GPU since it held nothing, and held neither there
        nor anywhere else, of groups that form prefixes: its events contradict one another. None
        where it may have had a copy that is not counted, since a store of it was taken for a
        report. No row says so. Cost O(1).
        """
        ...

    def set_unheld_removed(self, publisher: PublisherId, blocks: int | None, /) -> None:
        """It had, when its rows were written."""
        ...

    def register(
        self,
        publisher: PublisherId,
        lora_name: str,
        routable: bool,
        is_shard: bool = False,
        reads: Sequence[str] | None = None,
        shared_as: str = "",
        /,
    ) -> None:
        """Makes the publisher's rank part of every answer in the scope of `lora_name`, blocks or
        none. One that is a shard has a part of each block that it holds: see `InstanceMatch`.

        One that is not routable (a shared pool) never is. Without a registration a rank is part of
        the answers of a scope while it holds blocks there that are not shared.

        In each scope in which it holds blocks, shared ones count for its rank where they are of its
        own instance, or of one that it `reads`; None: of any. `shared_as` is what others call it
        there, "" for its instance. Without a registration a rank reads all.
        """
        ...

    def unregister(self, publisher: PublisherId, /) -> int:
        """Drops the publisher with its entries; returns how many. The handle is void. Cost as of
        `clear`.
        """
        ...

    def clear(self, publisher: PublisherId, /) -> int:
        """Drops the publisher's entries, and all that is known of it; returns how many. Cost
        O(entries), of which a kernel may leave a part to later writes and to `release_left`.

        A `cleared` event drops what the publisher holds, and which of its cache groups form
        prefixes, and which it has besides, stays known.
        """
        ...

    def release_left(self, entries: int, /) -> int:
        """Releases some of what was cleared and is only hidden yet, at most so many entries: to be
        called again and again while there is nothing to write. Cost O(entries). The end of a
        publisher's part in a scope counts as 16 of them.

        What is hidden is in no answer and no view but `blocks`, `holder_sets` and `memory_bytes`.

        Returns:
            Entries and ends that are yet to come.
        """
        ...

    def apply(self, publisher: PublisherId, events: bytes, after: int, /) -> int | None:
        """Folds a msgpack array of block events (`schemas.events`), in order.

        Events whose sequence is not above `after` are skipped. Cost O(blocks named).

        Returns:
            The sequence of the last `cleared` event among those that were folded, or None.

        Raises:
            EventsFormatError: the bytes are not an array of block events; nothing was applied.
        """
        ...

    def check_events(self, events: bytes, /) -> None:
        """Reads events as `apply` does and folds none of them. Cost O(bytes).

        Raises:
            EventsFormatError: `apply` would raise it.
        """
        ...

    def note_position(self, partition: int, offset: int, /) -> None:
        """All records of a partition of the log up to this one are in the kernel. What it answers
        without Python says so (`query_api.http.plain_answers`).
        """
        ...

    def audit_into(self, queue: AuditQueue, /) -> None:
        """What `answer` and the listener answer from now on is kept there, as often as `draw` says;
        once. A kernel that has no `answer` has nothing to keep.
        """
        ...

    def take_changes(self) -> list[tuple[ModelContext, bytes]]:
        """The changes since the last call, per context, in order within each (`changes`)."""
        ...

    def pending_changes(self) -> int:
        """How many changes `take_changes` would return."""
        ...

    def pending_contexts(self) -> int:
        """How many contexts they are of."""
        ...

    def load(self, context: ModelContext, changes: bytes, /) -> None:
        """Applies changes that were taken or dumped before. Leaves no changes itself.

        Raises:
            ValueError: not a sequence of changes; nothing was applied.
        """
        ...

    def dump(self, context: ModelContext, entries_max: int, /) -> list[bytes]:
        """All entries of a context as SET changes, in chunks of at most `entries_max` changes: an
        `open_dump` in one go. Cost O(entries of the instance).
        """
        ...
