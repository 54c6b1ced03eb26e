"""The kernel as its own specification: plain dicts, no cleverness. The Rust kernel must equal it.

Also the fallback where no Rust toolchain was found, about 20 times slower; `/health` then says so.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from itertools import islice, takewhile
from typing import Concatenate, Final, ParamSpec, TypeVar

import xxhash
from msgspec import structs

from schemas.events import (
    NEEDED_SPEC_KINDS,
    SPARSE_SPEC_KINDS,
    TOKEN_HASH_SEED,
    RemovedBlocks,
    StoredBlocks,
    is_placeholder,
)
from schemas.identities import (
    CHUNKS_DIFFER,
    COPIES_UNKNOWN,
    GROUPS,
    GROUPS_DIFFER,
    HASHES_DIFFER,
    LEFT_OUT,
    OBJECTS_WAIT,
    POOL_REMOVED,
    REPEATED,
    RULES,
    UNPLACED,
    Medium,
    ModelContext,
    PrefixScope,
    PublisherKey,
    StreamKey,
    aliases_scope,
    is_aliases,
    is_hidden,
    is_left_out,
    is_sparse,
    is_waiting,
    sparse_scope,
    waiting_scope,
)
from schemas.limits import HOLD_COUNT_MAX
from streams.bounds import GROUP_MAX, LEFT_OUT_BLOCKS_MAX, WAITING_MAX
from streams.kernel.changes import (
    CHANGE_BYTES,
    OWNED,
    SHARED,
    TIER_COUNT,
    Change,
    Op,
    answered_tier,
    cleared_tiers,
    decode_changes,
    digest_of,
    engine_key,
    is_shared,
    tier_of,
    tier_of_event,
)
from streams.kernel.events import read_events
from streams.kernel.hashing import chained, prefix_hashes
from streams.kernel.interface import (
    COUNTERS,
    AuditQueue,
    BodyForm,
    ContextView,
    EngineMatch,
    InstanceMatch,
    PublisherId,
    ScannedQuery,
    ScopeView,
)
from streams.kernel.scan import scan_query
from streams.kernel.sparse_groups import (
    RULES_MASK,
    UNRULED_KEY,
    Rules,
    SparseRank,
    limited,
)
from streams.kernel.tier_moves import Moves
from streams.kernel.walk import Holder, further, match_instance, match_shards

GPU_TIER: Final = tier_of(Medium.GPU, shared=False)
LEFT_OUT_REASON_BYTES_MAX: Final = 64  # of a reason's name; what is longer is `other`
LEFT_OUT_REASONS_MAX: Final = 16  # of one publisher; beyond either: `left_out_overflow`
# Of LEFT_OUT_BLOCKS_MAX, one in so many may be of blocks that answers count all the same, since a
# copy may be left (`copies_unknown`); of further ones none is counted
COPIES_KEPT_SHARE: Final = 64

SelfT = TypeVar("SelfT", bound="ReferenceKernel")
ArgumentsT = ParamSpec("ArgumentsT")
ReturnT = TypeVar("ReturnT")


def _locked(
    method: Callable[Concatenate[SelfT, ArgumentsT], ReturnT],
) -> Callable[Concatenate[SelfT, ArgumentsT], ReturnT]:
    """The method, which holds the kernel's lock from its beginning to its end."""

    @wraps(method)
    def run(self: SelfT, /, *args: ArgumentsT.args, **kwargs: ArgumentsT.kwargs) -> ReturnT:
        with self._lock:
            return method(self, *args, **kwargs)

    return run


def _changing(
    method: Callable[Concatenate[SelfT, ArgumentsT], ReturnT],
) -> Callable[Concatenate[SelfT, ArgumentsT], ReturnT]:
    """The same, of one that may change answers."""

    @wraps(method)
    def run(self: SelfT, /, *args: ArgumentsT.args, **kwargs: ArgumentsT.kwargs) -> ReturnT:
        with self._lock:
            self._writes += 1
            return method(self, *args, **kwargs)

    return run


REASONS: Final = {
    "unknown_parent": "unknown_parent",
    "unresolved": "unresolved",
    "block_size_mismatch": "block_size",
    "token_count_mismatch": "token_count",
    "extra_keys_mismatch": "extra_keys",
    "hash_conflict": "hash_conflict",
    "hold_count_overflow": "hold_count",
    "waiting_overflow": "waiting",
    "seed_mismatch": "seed",
    "unusable": "",
}
"""Why blocks are left out, by the counter that counts them."""

LEFT_OUT_MASK: Final = xxhash.xxh3_64_intdigest(b"left_out")
"""What distinguishes the key of a block that is left out: one of that name may be held beside it.
"""

REPEATED_MASK: Final = xxhash.xxh3_64_intdigest(b"repeated")
"""The same, with the tier added, of the entry that counts how often a block was announced again
without saying whether that is a further copy. It stands beside the block's own, which counts the
copies that there surely are, in the scope REPEATED; in that of what is left out for COPIES_UNKNOWN
while no copy is sure, where the block's own entry, if there is one, counts 1 for what may be left.
"""

GROUPS_MASK: Final = xxhash.xxh3_64_intdigest(b"groups")
"""With the number of a cache group, the key of the entry that says that the group forms prefixes.
There is none while that is group 0 alone.
"""

POOL_MASK: Final = xxhash.xxh3_64_intdigest(b"pool_removed")
"""The same, with the tier added, of the entry that says that a publisher has removed a block from a
pool that it had not stored there.
"""

HASHES_MASK: Final = xxhash.xxh3_64_intdigest(b"hashes_differ")
"""With the hash of an engine, the key of the entry that says that a pool has objects of the block
by another hash, too.
"""

ALIASES_MASK: Final = xxhash.xxh3_64_intdigest(b"aliases")
"""What distinguishes the key under which a pool remembers the block that engines call so, for as
long as it has an object of it.
"""

OVERFLOW: Final = "overflow"
OVERFLOW_KEY: Final = LEFT_OUT_MASK ^ (2**64 - 1)
"""Stands for what no longer had room among what is left out, and for good: it is not counted."""

OVERFLOWED_KEY: Final = LEFT_OUT_MASK ^ (2**64 - 2)
"""The same, counted by tier: a removal of what is known nowhere is of one of these."""


class _Entry:
    """One block as one publisher names it: where it is in the index, and how often on each tier."""

    __slots__ = ("counts", "prefix", "scope")

    def __init__(self, scope: PrefixScope, prefix: int) -> None:
        self.scope = scope
        self.prefix = prefix
        self.counts = [0] * TIER_COUNT


class _Publisher:
    def __init__(self, stream: StreamKey, dp_rank: int) -> None:
        self.stream = stream
        self.dp_rank = dp_rank
        self.entries: dict[int, _Entry] = {}
        self.registered_lora: str | None = None
        self.routable = False
        self.is_shard = False
        self.reads: frozenset[str] | None = None
        self.shared_as = stream.instance_id
        self.domain = 0
        self.skipped_groups: set[int] = set()
        self.has_base = False  # it has stored blocks of group 0 that form prefixes, since `clear`
        # Blocks announced of sparse groups that its engine needs, since `clear`; and whether one of
        # these groups has no known rule.
        self.sparse_blocks: int | None = None
        self.unruled = False
        # Blocks removed from the GPU that it held nowhere; None: it may have an uncounted copy.
        self.unheld_removed: int | None = 0
        self.own: Counter[PrefixScope] = Counter()  # entries on tiers that are not shared
        self.held: Counter[PrefixScope] = Counter()  # entries on any tier
        # Keys of objects that wait, by the scope in which they do and their "prefix" there, and of
        # aliases by theirs.
        self.named: defaultdict[tuple[PrefixScope, int], set[int]] = defaultdict(set)

    def scope(self, lora_name: str) -> PrefixScope:
        key = self.stream
        return PrefixScope(
            key.tenant_id, key.model_name, lora_name, key.block_size, key.additional_salt
        )

    def takes_part(self, scope: PrefixScope) -> bool:
        """Whether it is registered there, and routable."""
        return self.registered_lora == scope.lora_name and self.routable

    def can_read(self, other: "_Publisher") -> bool:
        """Whether the other one's shared blocks count for it, where both hold some of a scope."""
        is_own = other.stream.instance_id == self.stream.instance_id
        return self.reads is None or is_own or other.shared_as in self.reads

    @property
    def lasting(self) -> tuple[PrefixScope, ...]:
        """The scopes of what outlives a clear."""
        names = (GROUPS, LEFT_OUT + POOL_REMOVED, RULES)
        return tuple(map(self.scope, names))

    def context(self, scope: PrefixScope) -> ModelContext:
        return ModelContext(*scope, self.stream.instance_id)

    def put_entry(self, key: int, scope: PrefixScope, prefix: int) -> _Entry:
        entry = self.entries[key] = _Entry(scope, prefix)
        if is_waiting(scope.lora_name) or is_aliases(scope.lora_name):
            self.named[scope, prefix].add(key)
        return entry

    def drop_entry(self, key: int) -> None:
        entry = self.entries.pop(key)
        if (entry.scope, entry.prefix) in self.named:
            keys = self.named[entry.scope, entry.prefix]
            keys.remove(key)
            if not keys:
                del self.named[entry.scope, entry.prefix]

    def live(self, scope: PrefixScope) -> Iterator[Change]:
        """The publisher's entries in the scope, as changes."""
        for key in self.entries:
            yield from self.live_of(key, scope)

    def entry_on(self, key: int, tier: int) -> _Entry | None:
        """Its entry of this key, where that is on this tier and no other."""
        entry = self.entries.get(key)
        if entry is None or not entry.counts[tier] or sum(map(bool, entry.counts)) > 1:
            return None
        return entry

    def holds(self, key: int) -> bool:
        """Whether it holds a block of that name itself, on any tier."""
        entry = self.entries.get(key)
        if entry is None or is_hidden(entry.scope.lora_name):
            return False
        return any(n for tier, n in enumerate(entry.counts) if not is_shared(tier))

    def left_out(self) -> dict[PrefixScope, int]:
        """How many entries it has in each scope of what the index cannot use."""
        held = self.held.items()
        return {scope: n for scope, n in held if n and is_left_out(scope.lora_name)}

    @property
    def waiting(self) -> int:
        """How many of its entries wait."""
        return sum(n for scope, n in self.held.items() if is_waiting(scope.lora_name))

    @property
    def aliases(self) -> int:
        """How many of its entries say what engines call a block: of nothing that it holds."""
        return sum(n for scope, n in self.held.items() if is_aliases(scope.lora_name))

    @property
    def groups(self) -> int:
        """How many cache groups are known to form prefixes; 0 while it is group 0 alone."""
        return self.held[self.scope(GROUPS)]

    @property
    def all_rules(self) -> Rules:
        """By which rule its engine uses the blocks of sparse groups."""
        scope = self.scope(RULES)
        if not self.held[scope]:
            return {}
        known = ((one, self.entries.get(RULES_MASK ^ one)) for one in range(GROUP_MAX + 1))
        return {one: entry.prefix for one, entry in known if entry and entry.scope == scope}

    @property
    def has_unruled(self) -> bool:
        """Whether its rows say that others have no rule."""
        entry = self.entries.get(UNRULED_KEY)
        return entry is not None and entry.scope == self.scope(RULES)

    @property
    def rules(self) -> Rules:
        """`all_rules`, where no group is without."""
        return {} if self.has_unruled else self.all_rules

    @property
    def prefix_groups(self) -> list[int]:
        """The cache groups that are known to form prefixes."""
        if not self.groups:
            return [0]
        return [one for one in range(GROUP_MAX + 1) if GROUPS_MASK ^ one in self.entries]

    def forms_prefix(self, group: int) -> bool:
        """Whether a cache group is known to form prefixes."""
        if not self.groups:
            return group == 0 and self.has_base
        return GROUPS_MASK ^ group in self.entries

    def uneven(self) -> int:
        """How many blocks some of these groups hold and others do not: a block has as many names
        as there are groups that hold it.
        """
        if self.groups < 2:
            return 0
        names = Counter(
            (entry.scope, entry.prefix, tier)
            for entry in self.entries.values()
            if not is_hidden(entry.scope.lora_name)
            for tier, count in enumerate(entry.counts)
            if count
        )
        return sum(times != self.groups for times in names.values())

    def live_of(self, key: int, scope: PrefixScope) -> Iterator[Change]:
        """One of them."""
        entry = self.entries[key]
        if entry.scope == scope:
            for tier, count in enumerate(entry.counts):
                if count:
                    yield Change(key, entry.prefix, self.dp_rank, tier, Op.SET, count)


class _Scope:
    """Prefix hash -> holders, with the number of entries behind each (two keys may name one
    block).
    """

    def __init__(self) -> None:
        self.blocks: dict[int, Counter[Holder]] = {}

    def hold(self, prefix: int, holder: Holder) -> None:
        self.blocks.setdefault(prefix, Counter())[holder] += 1

    def release(self, prefix: int, holder: Holder) -> None:
        holders = self.blocks[prefix]
        holders[holder] -= 1
        if not holders[holder]:
            del holders[holder]
            if not holders:
                del self.blocks[prefix]


class ReferenceDump:
    """See `streams.kernel.interface.ContextDump`: it looks at the keys that there were when it was
    opened, at each as it is then.
    """

    def __init__(
        self,
        keys: list[tuple[PublisherId, int]],
        entry_of: Callable[[PublisherId, int], list[bytes]],
    ) -> None:
        self._keys = keys
        self._entry_of = entry_of
        self._gathered: list[bytes] = []

    def gather(self, entries: int, /) -> int:
        seen, self._keys = self._keys[:entries], self._keys[entries:]
        for publisher, key in seen:
            self._gathered += self._entry_of(publisher, key)
        return len(seen)

    def take(self, entries_max: int, /) -> bytes:
        taken, self._gathered = self._gathered[:entries_max], self._gathered[entries_max:]
        return b"".join(taken)


class ReferenceKernel:
    """See `streams.kernel.interface.Kernel`, which documents every method."""

    name: Final = "reference"

    def __init__(
        self,
        seed: int,
        *,
        waiting_max: int = WAITING_MAX,
        left_out_max: int = LEFT_OUT_BLOCKS_MAX,
    ) -> None:
        self.seed = seed
        self._left_out_max = left_out_max
        self._waiting_max = waiting_max
        self._publishers: dict[PublisherId, _Publisher] = {}
        self._ids: dict[tuple[StreamKey, int], PublisherId] = {}
        self._next_id = 0
        self._scopes: dict[PrefixScope, _Scope] = {}
        self._changes: dict[ModelContext, bytearray] = {}
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._positions: dict[int, int] = {}
        self._writes = 0  # that may change answers
        self._writes_noted = 0  # as the position was noted
        # One call at a time, readers included; methods call each other, so it is reentrant.
        self._lock = threading.RLock()

    # Publishers

    @_locked
    def open_publisher(self, stream: StreamKey, dp_rank: int, /) -> PublisherId:
        opened = self._ids.get((stream, dp_rank))
        if opened is not None:
            return opened
        publisher = PublisherId(self._next_id)
        self._next_id += 1
        self._ids[stream, dp_rank] = publisher
        self._publishers[publisher] = _Publisher(StreamKey(*stream), dp_rank)
        return publisher

    @_locked
    def set_domain(self, publisher: PublisherId, domain: int, /) -> None:
        self._publishers[publisher].domain = domain

    @_locked
    def has_base_group(self, publisher: PublisherId, /) -> bool:
        return self._publishers[publisher].has_base

    @_locked
    def set_base_group(self, publisher: PublisherId, /) -> None:
        self._publishers[publisher].has_base = True

    @_locked
    def sparse_blocks(self, publisher: PublisherId, /) -> int | None:
        return self._publishers[publisher].sparse_blocks

    @_changing
    def set_sparse_blocks(self, publisher: PublisherId, blocks: int, by_rule: bool, /) -> None:
        owner = self._publishers[publisher]
        owner.sparse_blocks = blocks
        if not by_rule:
            self._unrule(publisher, owner)

    @_locked
    def by_rule(self, publisher: PublisherId, /) -> bool:
        owner = self._publishers[publisher]
        return owner.sparse_blocks is not None and not owner.unruled

    @_locked
    def unheld_removed(self, publisher: PublisherId, /) -> int | None:
        return self._publishers[publisher].unheld_removed

    @_locked
    def set_unheld_removed(self, publisher: PublisherId, blocks: int | None, /) -> None:
        self._publishers[publisher].unheld_removed = blocks

    @_locked
    def forms_prefixes(self, publisher: PublisherId, /) -> bool:
        owner = self._publishers[publisher]
        return owner.has_base or owner.groups > 0

    @_changing
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
        owner = self._publishers[publisher]
        owner.registered_lora = lora_name
        owner.routable = routable
        owner.is_shard = is_shard
        owner.reads = None if reads is None else frozenset(reads)
        owner.shared_as = shared_as or owner.stream.instance_id

    @_changing
    def unregister(self, publisher: PublisherId, /) -> int:
        removed = self.clear(publisher)
        gone = self._publishers.pop(publisher)
        del self._ids[gone.stream, gone.dp_rank]
        return removed

    @_changing
    def clear(self, publisher: PublisherId, /) -> int:
        owner = self._publishers[publisher]
        removed = -owner.aliases
        owner.has_base, owner.sparse_blocks, owner.unheld_removed = False, None, 0
        owner.unruled = False
        for scope in {entry.scope: None for entry in owner.entries.values()}:
            removed += self._clear_scope(publisher, scope)
            change = Change(0, 0, owner.dp_rank, 0, Op.CLEAR, 0)
            self._record(owner.context(scope), change)
        self._counters["cleared"] += removed
        return removed

    def release_left(self, entries: int, /) -> int:
        return 0  # nothing is ever left

    def _clear_scope(self, publisher: PublisherId, scope: PrefixScope) -> int:
        owner = self._publishers[publisher]
        gone = list(owner.live(scope))
        for change in gone:
            self._set_count(publisher, scope, change._replace(holds=0))
        return len(gone)

    # Events

    @_changing
    def apply(self, publisher: PublisherId, events: bytes, after: int, /) -> int | None:
        owner = self._publishers[publisher]
        cleared: int | None = None
        decoded = read_events(events)
        moves = Moves(decoded)
        for event in decoded:
            if event.sequence <= after:
                continue
            moves.begin(event.sequence)
            if isinstance(event, StoredBlocks):
                self._store(publisher, owner, event, moves)
            elif isinstance(event, RemovedBlocks):
                self._remove(publisher, owner, event, moves)
            elif event.is_whole:
                self._clear_blocks(publisher, owner)
                cleared = event.sequence
            else:
                self._clear_tiers(publisher, owner, cleared_tiers(event), moves)
        return cleared

    def _clear_blocks(self, publisher: PublisherId, owner: _Publisher) -> None:
        """The publisher holds nothing any more, but for what another owns. Which groups it has
        stays known, and what of others it has removed from pools.
        """
        kept = owner.has_base, owner.sparse_blocks, owner.unruled
        entries = sorted(owner.entries.items(), key=lambda item: item[0])
        lasting = [
            (scope, key, entry.prefix, min(tier for tier, n in enumerate(entry.counts) if n), 1)
            for scope in owner.lasting
            for key, entry in entries
            if entry.scope == scope
        ]
        lasting += [
            (entry.scope, key, entry.prefix, tier, entry.counts[tier])
            for key, entry in entries
            if entry.scope not in owner.lasting
            for tier in range(OWNED, TIER_COUNT)
            if entry.counts[tier]
        ]
        self.clear(publisher)
        owner.has_base, owner.sparse_blocks, owner.unruled = kept
        for scope, key, prefix, tier, count in lasting:
            change = Change(key, prefix, owner.dp_rank, tier, Op.SET, count)
            self._change(publisher, owner, scope, change)

    def _clear_tiers(
        self, publisher: PublisherId, owner: _Publisher, tiers: Sequence[int], moves: Moves
    ) -> None:
        if GPU_TIER in tiers:
            owner.unheld_removed = 0
        for tier in tiers:
            held = {
                key: one
                for key, one in owner.entries.items()
                if one.counts[tier]
                and one.scope not in owner.lasting
                and not is_aliases(one.scope.lora_name)
            }
            for key, entry in sorted(held.items()):
                self._counters["cleared"] += 1
                self._lower(publisher, owner, key, tier, 0)
                self._forget_aliases(publisher, owner, entry, moves)

    def check_events(self, events: bytes, /) -> None:
        read_events(events)

    def _store(
        self, publisher: PublisherId, owner: _Publisher, event: StoredBlocks, moves: Moves
    ) -> None:
        if event.reported and owner.rules:
            # Whatever was registered: a prompt is computed again where one group has lost a block.
            event = structs.replace(event, reported=False, undecided=True)
        hashes = _u64s(event.hashes)
        # Objects have names of their own: their group is the shard of a block that they are.
        group = 0 if event.aliases else event.group
        keys = [engine_key(value, group) for value in hashes]
        refusal = _refusal(owner, event, len(hashes), self.seed)
        if _shows_group(event, refusal):
            owner.has_base |= bool(event.aliases)  # there is a first shard, though it is not here
            self._note_group(publisher, owner, event.group)
        if refusal:
            self._refuse(publisher, owner, event, keys, refusal)
            return
        if is_placeholder(event):
            self._store_placeholders(publisher, owner, event, keys, moves)
            self._place_sparse(publisher, owner, event)
            return
        if event.aliases:
            for key, alias in zip(keys, _u64s(event.aliases), strict=True):
                self._store_object(publisher, owner, event, key, alias, moves)
            return
        scope = owner.scope(event.lora_name)
        if event.by_hash:
            for key, prefix in zip(keys, hashes, strict=True):
                self._hold(publisher, owner, event, key, scope, prefix)
            self._place_sparse(publisher, owner, event)
            return
        if not self._store_tokens(publisher, owner, event, keys, moves):
            return
        if event.group == 0:
            for value in hashes:
                self._join(owner.domain, scope, value)
        self._place_sparse(publisher, owner, event)

    # Blocks of sparse groups; see `streams.kernel.sparse_groups`

    def _is_ruled(self, publisher: PublisherId, owner: _Publisher, event: StoredBlocks) -> bool:
        """Whether the event's blocks are kept: those of a group whose rule is known, as are those
        of all groups that the engine needs.
        """
        if event.spec_kind not in NEEDED_SPEC_KINDS:
            return False
        owner.sparse_blocks = (owner.sparse_blocks or 0) + len(event.hashes) // 8
        tier = tier_of_event(event)
        size = owner.stream.block_size
        if tier != GPU_TIER:
            is_kept = not owner.unruled and event.group in owner.rules and not event.left_out
            return is_kept and not event.shared and event.block_size in (0, size)
        known = owner.rules.get(event.group)
        is_new = known is None and event.last_blocks > 0 and event.group <= GROUP_MAX
        fits = (is_new or known == event.last_blocks) and event.block_size == size
        if owner.unruled or not fits or event.left_out:
            self._unrule(publisher, owner)
            return False
        if is_new:
            key = RULES_MASK ^ event.group
            if key in owner.entries:  # an engine has named a block so
                self._unrule(publisher, owner)
                return False
            change = Change(key, event.last_blocks, owner.dp_rank, 0, Op.SET, 1)
            self._change(publisher, owner, owner.scope(RULES), change)
        return True

    def _unrule(self, publisher: PublisherId, owner: _Publisher) -> None:
        """A group that the engine needs has no known rule."""
        owner.unruled = True
        if owner.held[owner.scope(RULES)] and UNRULED_KEY not in owner.entries:
            change = Change(UNRULED_KEY, UNRULED_KEY, owner.dp_rank, 0, Op.SET, 1)
            self._change(publisher, owner, owner.scope(RULES), change)

    def _store_sparse(
        self, publisher: PublisherId, owner: _Publisher, event: StoredBlocks, keys: list[int]
    ) -> None:
        """A report names all blocks of a prefix, of which the group may have but the last ones that
        it needs: of an event that may be one what is not held may be a further copy, or not held.
        """
        tier = tier_of_event(event)
        entries = [owner.entries.get(key) for key in keys]
        held = [
            entry is not None and is_sparse(entry.scope.lora_name) and bool(entry.counts[tier])
            for entry in entries
        ]
        may_be_report = (
            event.undecided
            and len(event.tokens) == 4 * event.block_size * len(keys)
            and all(held[max(0, len(held) - owner.rules[event.group]) :])
        )
        for key, value, is_held in zip(keys, _u64s(event.hashes), held, strict=True):
            if may_be_report and not is_held:
                self._leave_out(publisher, owner, event, [key], COPIES_UNKNOWN)
                continue
            entry = owner.entries.get(key)
            if entry is not None and is_sparse(entry.scope.lora_name):
                place = entry.scope, entry.prefix
            else:
                place = self._sparse_place(publisher, owner, event.group, value)
            self._hold(publisher, owner, event, key, *place)

    def _sparse_place(
        self, publisher: PublisherId, owner: _Publisher, group: int, value: int
    ) -> tuple[PrefixScope, int]:
        for one in owner.prefix_groups:
            entry = owner.entries.get(engine_key(value, one))
            if entry is not None and not is_hidden(entry.scope.lora_name):
                scope = sparse_scope(entry.scope)
                if scope is not None:
                    return scope, engine_key(entry.prefix, group)
                self._unrule(publisher, owner)
        return owner.scope(UNPLACED), value

    def _place_sparse(self, publisher: PublisherId, owner: _Publisher, event: StoredBlocks) -> None:
        """Full attention has been stored: it says which blocks those of its names are."""
        unplaced = owner.scope(UNPLACED)
        if not owner.held[unplaced]:
            return
        groups = owner.all_rules
        for value in _u64s(event.hashes):
            block = owner.entries.get(engine_key(value, event.group))
            for group in groups:
                key = engine_key(value, group)
                entry = owner.entries.get(key)
                is_waiting = entry is not None and (entry.scope, entry.prefix) == (unplaced, value)
                if block is None or is_hidden(block.scope.lora_name):
                    continue
                if entry is None or not is_waiting:
                    continue
                scope = sparse_scope(block.scope)
                if scope is None:
                    self._unrule(publisher, owner)
                    continue
                held = [(tier, count) for tier, count in enumerate(entry.counts) if count]
                place = scope, engine_key(block.prefix, group)
                for (to, prefix), is_left in (((unplaced, value), True), (place, False)):
                    for tier, count in held:
                        holds = 0 if is_left else count
                        change = Change(key, prefix, owner.dp_rank, tier, Op.SET, holds)
                        self._change(publisher, owner, to, change)

    def _refuse(
        self,
        publisher: PublisherId,
        owner: _Publisher,
        event: StoredBlocks,
        keys: list[int],
        refusal: str,
    ) -> None:
        """The blocks are not put where a prefix is found."""
        is_skipped = refusal == "skipped_group"
        if is_skipped and self._is_ruled(publisher, owner, event):
            self._store_sparse(publisher, owner, event, keys)
            return
        self._counters[refusal] += len(keys)
        if not is_skipped:
            self._leave_out(publisher, owner, event, keys, REASONS[refusal])
        elif event.group <= GROUP_MAX:
            owner.skipped_groups.add(event.group)

    def _store_tokens(
        self,
        publisher: PublisherId,
        owner: _Publisher,
        event: StoredBlocks,
        keys: list[int],
        moves: Moves,
    ) -> bool:
        """False where the blocks follow on one that the publisher does not hold, nor has moved."""
        scope = owner.scope(event.lora_name)
        previous: int | None = None
        if event.parent is not None:
            key = engine_key(event.parent, event.group)
            entry = owner.entries.get(key)
            parent = moves.find(key) if entry is None else (entry.scope, entry.prefix)
            if parent is None or parent[0] != scope:
                self._counters["unknown_parent"] += len(keys)
                self._leave_out(publisher, owner, event, keys, REASONS["unknown_parent"])
                return False
            previous = parent[1]
        for key, local in zip(keys, self._locals(event), strict=True):
            previous = chained(previous, local, self.seed)
            self._hold(publisher, owner, event, key, scope, previous)
        return True

    def _note_group(self, publisher: PublisherId, owner: _Publisher, group: int) -> None:
        """A group forms prefixes. What is held before the first entry of one is group 0's."""
        owner.has_base |= group == 0
        scope, known = owner.scope(GROUPS), owner.groups
        if GROUPS_MASK ^ group in owner.entries or not (group or known) or known > GROUP_MAX:
            return
        shown = (count for one, count in owner.held.items() if not is_hidden(one.lora_name))
        with_base = not known and (owner.has_base or any(shown))
        for one in (0, group) if with_base else (group,):
            key = GROUPS_MASK ^ one
            if key in owner.entries:  # an engine has named a block so
                continue
            self._change(publisher, owner, scope, Change(key, key, owner.dp_rank, 0, Op.SET, 1))

    def _locals(self, event: StoredBlocks) -> Iterator[int]:
        """The hash of each block alone."""
        if event.token_hashes:
            yield from _u64s(event.token_hashes)
            return
        block_bytes = 4 * event.block_size
        for i in range(len(event.hashes) // 8):
            content = event.tokens[i * block_bytes : (i + 1) * block_bytes]
            if event.extra_keys:
                content += event.extra_keys[i]
            yield self._hash(content)

    def _store_placeholders(
        self,
        publisher: PublisherId,
        owner: _Publisher,
        event: StoredBlocks,
        keys: list[int],
        moves: Moves,
    ) -> None:
        for key in keys:
            entry = owner.entries.get(key)
            block = moves.find(key) if entry is None else (entry.scope, entry.prefix)
            if block is None:
                self._counters["unresolved"] += 1
                self._leave_out(publisher, owner, event, [key], REASONS["unresolved"])
            else:
                self._hold(publisher, owner, event, key, *block)

    def _store_object(
        self,
        publisher: PublisherId,
        owner: _Publisher,
        event: StoredBlocks,
        key: int,
        alias: int,
        moves: Moves,
    ) -> None:
        tier = tier_of_event(event)
        scope = owner.scope(event.lora_name)
        waiting = waiting_scope(scope)
        entry = owner.entries.get(key)
        if entry is not None:
            block: tuple[PrefixScope | None, int] = entry.scope, entry.prefix
            fits = block == (scope, alias) if event.by_hash else entry.scope == scope
            if not fits and (event.by_hash or block != (waiting, alias)):
                self._counters["hash_conflict"] += 1
                self._leave_out(publisher, owner, event, [key], REASONS["hash_conflict"])
                return
            if entry.counts[tier]:
                self._counters["stored"] += 1
                self._counters["repeated"] += 1
                return
        elif event.by_hash:
            block = scope, alias
        else:
            found = self._prefix_of(owner.domain, scope, alias, moves)
            block = (waiting, alias) if found is None else (scope, found)
        found_in, prefix = block
        if found_in != scope:
            if found_in is None or owner.held[found_in] >= self._waiting_max:
                self._counters["waiting_overflow"] += 1
                self._leave_out(publisher, owner, event, [key], REASONS["waiting_overflow"])
                return
            self._counters["waiting"] += 1
        self._hold(publisher, owner, event, key, found_in, prefix)
        if entry is None and found_in == scope and not event.by_hash:
            self._keep_alias(publisher, owner, scope, alias, prefix)

    def _prefix_of(
        self, domain: int, scope: PrefixScope, alias: int, moves: Moves | None = None
    ) -> int | None:
        """The block that the engines of a scope and a domain call by this hash, which they have
        announced with its tokens, or had when a pool stored an object of it that it still has, or
        has had before in this batch; None where none holds one, or they hold different ones.
        """
        aliases, key = aliases_scope(scope), alias ^ ALIASES_MASK
        found = set()
        for owner in self._publishers.values():
            if owner.domain == domain:
                entry, known = owner.entries.get(alias), owner.entries.get(key)
                # One that was named by its prefix hash says no tokens.
                if entry is not None and entry.scope == scope and entry.prefix != alias:
                    found.add(entry.prefix)
                if known is not None and known.scope == aliases:
                    found.add(known.prefix)
        forgotten = None if moves is None else moves.forgotten(key)
        if forgotten is not None and forgotten[0] == aliases:
            found.add(forgotten[1])
        return found.pop() if len(found) == 1 else None

    def _keep_alias(
        self,
        publisher: PublisherId,
        owner: _Publisher,
        scope: PrefixScope,
        alias: int,
        prefix: int,
    ) -> None:
        """The pool has an object of the block that engines call so."""
        aliases, key = aliases_scope(scope), alias ^ ALIASES_MASK
        if aliases is not None and key not in owner.entries:
            has_other = (aliases, prefix) in owner.named
            change = Change(key, prefix, owner.dp_rank, SHARED, Op.SET, 1)
            self._change(publisher, owner, aliases, change)
            if has_other:
                self._note_apart(publisher, owner, HASHES_DIFFER, alias ^ HASHES_MASK, SHARED)

    def _forget_aliases(
        self, publisher: PublisherId, owner: _Publisher, gone: _Entry, moves: Moves
    ) -> None:
        """An entry was removed: where it was the last one of its block, nothing is remembered of
        what engines call that.
        """
        aliases = aliases_scope(gone.scope)
        known = owner.named.get((aliases, gone.prefix)) if aliases is not None else None
        if aliases is None or known is None:
            return
        scope = self._scopes.get(gone.scope)
        holders = None if scope is None else scope.blocks.get(gone.prefix)
        if holders is not None and any(one == publisher for one, _ in holders):
            return
        for key in sorted(known):
            moves.forget(key, aliases, gone.prefix)
            for tier, count in enumerate(list(owner.entries[key].counts)):
                if count:
                    self._lower(publisher, owner, key, tier, 0)
            mark = key ^ ALIASES_MASK ^ HASHES_MASK
            entry = owner.entry_on(mark, SHARED)
            if entry is not None and entry.scope == owner.scope(LEFT_OUT + HASHES_DIFFER):
                self._lower(publisher, owner, mark, SHARED, 0)

    def _join(self, domain: int, scope: PrefixScope, alias: int) -> None:
        """Gives the block that an engine has announced to the objects that wait for it."""
        waiting = waiting_scope(scope)
        if waiting is None or waiting not in self._scopes:
            return
        if alias not in self._scopes[waiting].blocks:
            return
        prefix = self._prefix_of(domain, scope, alias)
        if prefix is None:
            return
        of_domain = [item for item in self._publishers.items() if item[1].domain == domain]
        for publisher, owner in sorted(of_domain, key=lambda item: item[0]):
            keys = sorted(owner.named.get((waiting, alias), ()))
            for key in keys:
                counts = list(enumerate(owner.entries[key].counts))
                held = [(tier, count) for tier, count in counts if count]
                for block, is_left in (((waiting, alias), True), ((scope, prefix), False)):
                    for tier, count in held:
                        holds = 0 if is_left else count
                        change = Change(key, block[1], owner.dp_rank, tier, Op.SET, holds)
                        self._set_count(publisher, block[0], change)
                        self._record(owner.context(block[0]), change)
                self._counters["joined"] += len(held)
            if keys:
                self._keep_alias(publisher, owner, scope, alias, prefix)

    def _hold(
        self,
        publisher: PublisherId,
        owner: _Publisher,
        event: StoredBlocks,
        key: int,
        scope: PrefixScope,
        prefix: int,
    ) -> None:
        tier = tier_of_event(event)
        entry = owner.entries.get(key)
        if entry is not None and (entry.scope, entry.prefix) != (scope, prefix):
            self._counters["hash_conflict"] += 1
            self._leave_out(publisher, owner, event, [key], REASONS["hash_conflict"])
            return
        count = entry.counts[tier] if entry is not None else 0
        is_sure = self._is_sure_again(publisher, owner, key, tier)
        if count and event.reported and not event.aliases:
            self._counters["reported"] += 1
            owner.unheld_removed = None  # it may be a copy
            return
        self._counters["stored"] += 1
        is_set = tier >= OWNED
        if count and (is_sure or is_set or (event.undecided and not event.aliases)):
            self._counters["repeated"] += 1
            if not (is_sure or is_set):
                self._note_repeated(publisher, owner, key, tier)
            return
        if count == HOLD_COUNT_MAX:
            self._counters["hold_count_overflow"] += 1
            self._leave_out(publisher, owner, event, [key], REASONS["hold_count_overflow"])
            return
        if count:
            self._counters["repeated"] += 1
        self._change(
            publisher, owner, scope, Change(key, prefix, owner.dp_rank, tier, Op.SET, count + 1)
        )
        if not count:
            self._take_in(publisher, owner, event, key)

    def _leave_out(
        self,
        publisher: PublisherId,
        owner: _Publisher,
        event: StoredBlocks,
        keys: list[int],
        reason: str,
    ) -> None:
        """Keeps that the publisher holds these, and that no answer counts them: until it removes
        them, clears, or announces them so that they can be used.
        """
        tier = tier_of_event(event)
        if event.left_out:
            is_short = len(event.left_out.encode()) <= LEFT_OUT_REASON_BYTES_MAX
            reason = event.left_out if is_short else "other"
        elif reason == REASONS["block_size_mismatch"]:
            reason = f"{reason}:{event.block_size}" if tier == GPU_TIER else CHUNKS_DIFFER
        for key in keys:
            key ^= LEFT_OUT_MASK
            entry = owner.entries.get(key)
            scope = owner.scope(LEFT_OUT + reason) if entry is None else entry.scope
            if entry is None and not self._has_room(scope, owner.left_out()):
                self._note_overflow(publisher, owner, tier)
                continue
            count = entry.counts[tier] if entry is not None else 0
            if count and (event.reported or tier >= OWNED or count == HOLD_COUNT_MAX):
                owner.unheld_removed = None  # likewise
                continue
            prefix = key if entry is None else entry.prefix
            change = Change(key, prefix, owner.dp_rank, tier, Op.SET, count + 1)
            self._change(publisher, owner, scope, change)

    def _take_in(
        self, publisher: PublisherId, owner: _Publisher, event: StoredBlocks, key: int
    ) -> None:
        """The block is found now: what was left out of it may be further copies, as an engine has
        them that removes each. Not so of a conflict, which is another block of this name. Where
        nothing but its name was known on other tiers, it is held there, too.
        """
        tier = tier_of_event(event)
        self._end_pool_removal(publisher, owner, key, tier)
        left_out = owner.entries.get(key ^ LEFT_OUT_MASK)
        if left_out is None or left_out.scope.lora_name == LEFT_OUT + REASONS["hash_conflict"]:
            return
        if left_out.scope.lora_name == LEFT_OUT + REASONS["unresolved"] and not event.aliases:
            self._resolve(publisher, owner, key, tier)
        times = left_out.counts[tier]
        if not times:
            return
        self._lower(publisher, owner, key ^ LEFT_OUT_MASK, tier, 0)
        if event.aliases or tier >= OWNED:  # held once
            return
        self._note_repeated(publisher, owner, key, tier, times - event.reported)

    def _resolve(self, publisher: PublisherId, owner: _Publisher, key: int, found_on: int) -> None:
        """What is left out of a block on other tiers than this one is known by its name now."""
        block, left_out = owner.entries[key], owner.entries[key ^ LEFT_OUT_MASK]
        for tier, times in enumerate(list(left_out.counts)):
            if times and tier != found_on and not block.counts[tier]:
                self._end_pool_removal(publisher, owner, key, tier)
                self._lower(publisher, owner, key ^ LEFT_OUT_MASK, tier, 0)
                self._lower(publisher, owner, key, tier, times)

    # Copies that there may be; see REPEATED_MASK

    def _is_sure_again(
        self, publisher: PublisherId, owner: _Publisher, key: int, tier: int
    ) -> bool:
        """Whether it was not known whether the block is held, which its announcement now says."""
        key = _repeated_key(key, tier)
        entry = owner.entry_on(key, tier)
        if entry is None or entry.scope.lora_name == REPEATED:
            return False
        self._move(publisher, owner, key, tier, owner.scope(REPEATED))
        return True

    def _note_repeated(
        self, publisher: PublisherId, owner: _Publisher, key: int, tier: int, times: int = 1
    ) -> None:
        key = _repeated_key(key, tier)
        entry = owner.entry_on(key, tier)
        before = entry.counts[tier] if entry is not None else 0
        count = min(before + times, HOLD_COUNT_MAX)  # there are no more copies than that
        is_other = entry is None and key in owner.entries
        if count > before and not is_other:
            prefix = key if entry is None else entry.prefix
            scope = owner.scope(REPEATED) if entry is None else entry.scope
            change = Change(key, prefix, owner.dp_rank, tier, Op.SET, count)
            self._change(publisher, owner, scope, change)

    def _keep_copies(self, publisher: PublisherId, owner: _Publisher, key: int, tier: int) -> bool:
        """A copy is removed of a block of which at most one surely is held: whether it is counted
        all the same, since further ones may be left.
        """
        key = _repeated_key(key, tier)
        entry = owner.entries[key]
        count = entry.counts[tier]
        if entry.scope.lora_name != REPEATED:
            self._lower(publisher, owner, key, tier, count - 1)
            return count > 1
        scope, left_out = owner.scope(LEFT_OUT + COPIES_UNKNOWN), owner.left_out()
        if not self._has_room(scope, left_out):
            self._lower(publisher, owner, key, tier, 0)
            self._note_overflow(publisher, owner, tier, count)
            return False
        self._move(publisher, owner, key, tier, scope)
        return left_out.get(scope, 0) < self._left_out_max // COPIES_KEPT_SHARE

    # What others have stored in a pool; see POOL_MASK

    def _pool_removal(self, owner: _Publisher, key: int, tier: int) -> _Entry | None:
        entry = owner.entry_on(_pool_key(key, tier), tier)
        is_one = entry is not None and entry.scope == owner.scope(LEFT_OUT + POOL_REMOVED)
        return entry if is_one else None

    def _end_pool_removal(
        self, publisher: PublisherId, owner: _Publisher, key: int, tier: int
    ) -> None:
        """The publisher stores such a block there."""
        if self._pool_removal(owner, key, tier) is not None:
            self._lower(publisher, owner, _pool_key(key, tier), tier, 0)

    def _note_pool_removal(
        self, publisher: PublisherId, owner: _Publisher, key: int, tier: int
    ) -> None:
        """An engine has removed a block from a pool, and had not stored it there."""
        self._note_apart(publisher, owner, POOL_REMOVED, _pool_key(key, tier), tier)

    def _note_apart(
        self, publisher: PublisherId, owner: _Publisher, reason: str, key: int, tier: int
    ) -> None:
        """Something is so of a block, which has a key of its own."""
        scope = owner.scope(LEFT_OUT + reason)
        if key in owner.entries:
            return
        if not self._has_room(scope, owner.left_out()):
            self._note_overflow(publisher, owner, tier, HOLD_COUNT_MAX + 1)
            return
        self._change(publisher, owner, scope, Change(key, key, owner.dp_rank, tier, Op.SET, 1))

    def _has_room(self, scope: PrefixScope, left_out: dict[PrefixScope, int]) -> bool:
        """Whether there is room for another block in this scope of what is left out."""
        is_full = sum(left_out.values()) >= self._left_out_max
        return not is_full and (scope in left_out or len(left_out) < LEFT_OUT_REASONS_MAX)

    def _note_overflow(
        self, publisher: PublisherId, owner: _Publisher, tier: int, times: int = 1
    ) -> None:
        """Something has no room that so many removals end; more than can be counted: none."""
        self._counters["left_out_overflow"] += 1
        scope = owner.scope(LEFT_OUT + OVERFLOW)
        entry = owner.entries.get(OVERFLOWED_KEY)
        count = times + (entry.counts[tier] if entry is not None else 0)
        if count > HOLD_COUNT_MAX:
            if OVERFLOW_KEY not in owner.entries:
                change = Change(OVERFLOW_KEY, OVERFLOW_KEY, owner.dp_rank, 0, Op.SET, 1)
                self._change(publisher, owner, scope, change)
            return
        prefix = OVERFLOWED_KEY if entry is None else entry.prefix
        change = Change(OVERFLOWED_KEY, prefix, owner.dp_rank, tier, Op.SET, count)
        # An engine may have named a block so.
        self._change(publisher, owner, scope if entry is None else entry.scope, change)

    def _lower_overflow(self, publisher: PublisherId, owner: _Publisher, tier: int) -> bool:
        """What is removed was one of those without room; False where there is none."""
        entry = owner.entries.get(OVERFLOWED_KEY)
        count = entry.counts[tier] if entry is not None else 0
        if count:
            self._lower(publisher, owner, OVERFLOWED_KEY, tier, count - 1)
        return bool(count)

    def _move(
        self, publisher: PublisherId, owner: _Publisher, key: int, tier: int, scope: PrefixScope
    ) -> None:
        """Moves an entry, which is on one tier alone, to another scope."""
        change = Change(key, key, owner.dp_rank, tier, Op.SET, owner.entries[key].counts[tier])
        self._lower(publisher, owner, key, tier, 0)
        self._change(publisher, owner, scope, change)

    def _lower(
        self, publisher: PublisherId, owner: _Publisher, key: int, tier: int, count: int
    ) -> None:
        entry = owner.entries[key]
        change = Change(key, entry.prefix, owner.dp_rank, tier, Op.SET, count)
        self._change(publisher, owner, entry.scope, change)

    def _change(
        self, publisher: PublisherId, owner: _Publisher, scope: PrefixScope, change: Change
    ) -> None:
        self._set_count(publisher, scope, change)
        self._record(owner.context(scope), change)

    def _remove(
        self, publisher: PublisherId, owner: _Publisher, event: RemovedBlocks, moves: Moves
    ) -> None:
        tier = tier_of_event(event)
        remove = self._set_left if event.whole or event.left else self._remove_one
        for value in _u64s(event.hashes):
            key = engine_key(value, event.group)
            entry = owner.entries.get(key)
            held = entry.counts[tier] if entry is not None else 0
            if remove(publisher, owner, event, key):
                counter = "removed" if held else "left_out_removed"
            else:
                skipped = event.group in owner.skipped_groups
                counter = "skipped_group" if skipped else "unknown_removed"
                if event.shared and owner.routable and not skipped:
                    self._note_pool_removal(publisher, owner, key, tier)
                if tier == GPU_TIER and not (event.whole or event.left):
                    self._note_unheld(owner, key, event.group)
            self._counters[counter] += 1
            if entry is not None and held:
                moves.note(key, entry.scope, entry.prefix)
                self._forget_aliases(publisher, owner, entry, moves)

    def _note_unheld(self, owner: _Publisher, key: int, group: int) -> None:
        """A block was removed from the GPU that is not held there: where it is held nowhere else,
        the publisher's events contradict one another.
        """
        is_known = key in owner.entries or key ^ LEFT_OUT_MASK in owner.entries
        if owner.unheld_removed is not None and not is_known and owner.forms_prefix(group):
            owner.unheld_removed += 1

    def _remove_one(
        self, publisher: PublisherId, owner: _Publisher, event: RemovedBlocks, key: int
    ) -> bool:
        """One copy less; False where there is none."""
        tier = tier_of_event(event)
        entry = owner.entries.get(key)
        held = entry.counts[tier] if entry is not None else 0
        may_be_more = held <= 1 and owner.entry_on(_repeated_key(key, tier), tier) is not None
        if may_be_more and (self._keep_copies(publisher, owner, key, tier) or not held):
            return True
        left_out = owner.entries.get(key ^ LEFT_OUT_MASK)
        if held:
            self._lower(publisher, owner, key, tier, held - 1)
        elif left_out is not None and left_out.counts[tier]:
            self._lower(publisher, owner, key ^ LEFT_OUT_MASK, tier, left_out.counts[tier] - 1)
        else:
            is_skipped = event.group in owner.skipped_groups
            return not is_skipped and self._lower_overflow(publisher, owner, tier)
        return True

    def _set_left(
        self, publisher: PublisherId, owner: _Publisher, event: RemovedBlocks, key: int
    ) -> bool:
        """So many copies are left, which the publisher says: of what it surely holds, else of what
        it may hold, else of what is left out. What is left out beside what it holds stays where
        copies are left: it may be of another block.
        """
        tier = tier_of_event(event)
        again, left_out = _repeated_key(key, tier), key ^ LEFT_OUT_MASK
        names = [key, again, left_out]
        if owner.entry_on(again, tier) is None:
            names.remove(again)
        known = [one for one in names if one in owner.entries and owner.entries[one].counts[tier]]
        left = 0 if event.whole else event.left
        left = min(left, 1) if tier >= OWNED else left
        for one in known:
            if one == known[0]:
                self._lower(publisher, owner, one, tier, left)
            elif one == again or not left:
                self._lower(publisher, owner, one, tier, 0)
        return bool(known)

    def _set_count(self, publisher: PublisherId, scope: PrefixScope, change: Change) -> None:
        """Brings one entry to the count of the change, and the index with it."""
        owner = self._publishers[publisher]
        entry = owner.entries.get(change.engine_key)
        if entry is None:
            if not change.holds:
                return
            entry = owner.put_entry(change.engine_key, scope, change.prefix)
        before = entry.counts[change.tier]
        entry.counts[change.tier] = change.holds
        blocks = self._scopes.setdefault(scope, _Scope())
        holder = (publisher, change.tier)
        if change.holds and not before:
            blocks.hold(entry.prefix, holder)
            owner.own[scope] += not is_shared(change.tier)
            owner.held[scope] += 1
        elif before and not change.holds:
            blocks.release(entry.prefix, holder)
            owner.own[scope] -= not is_shared(change.tier)
            owner.held[scope] -= 1
            if not blocks.blocks:
                del self._scopes[scope]
        if not any(entry.counts):
            owner.drop_entry(change.engine_key)

    # Rows

    def _record(self, context: ModelContext, change: Change) -> None:
        self._changes.setdefault(context, bytearray()).extend(change.encode())

    @_locked
    def note_position(self, partition: int, offset: int, /) -> None:
        self._positions[partition] = offset
        self._writes_noted = self._writes

    @_locked
    def settled(self) -> tuple[int, list[tuple[int, int]]] | None:
        if self._writes_noted != self._writes or not self._positions:
            return None
        return self._writes, sorted(self._positions.items())

    def audit_into(self, queue: AuditQueue, /) -> None:
        """See `Kernel`; nothing is answered by one call."""

    @_locked
    def take_changes(self) -> list[tuple[ModelContext, bytes]]:
        taken = [(context, bytes(changes)) for context, changes in self._changes.items()]
        self._changes.clear()
        return taken

    @_locked
    def pending_changes(self) -> int:
        return sum(len(changes) for changes in self._changes.values()) // CHANGE_BYTES

    @_locked
    def pending_contexts(self) -> int:
        return len(self._changes)

    @_changing
    def load(self, context: ModelContext, changes: bytes, /) -> None:
        context = ModelContext(*context)
        for change in list(decode_changes(changes)):
            publisher = self.open_publisher(context.stream, change.dp_rank)
            if change.op == Op.CLEAR:
                self._clear_scope(publisher, context.scope)
                continue
            entry = self._publishers[publisher].entries.get(change.engine_key)
            if entry is not None and (entry.scope, entry.prefix) != (context.scope, change.prefix):
                if not change.holds:
                    continue
                self._drop_entry(publisher, change.engine_key, entry)
            self._set_count(publisher, context.scope, change)

    def _drop_entry(self, publisher: PublisherId, key: int, entry: _Entry) -> None:
        for tier in range(TIER_COUNT):
            change = Change(key, entry.prefix, 0, tier, Op.SET, 0)
            self._set_count(publisher, entry.scope, change)

    @_locked
    def dump(self, context: ModelContext, entries_max: int, /) -> list[bytes]:
        context = ModelContext(*context)
        encoded = b"".join(change.encode() for change in self._context_entries(context))
        size = CHANGE_BYTES * entries_max
        return [encoded[start : start + size] for start in range(0, len(encoded), size)]

    @_locked
    def open_dump(self, context: ModelContext, /) -> ReferenceDump:
        context = ModelContext(*context)
        keys = [
            (publisher, key)
            for publisher, owner in self._publishers.items()
            if owner.stream == context.stream
            for key in owner.entries
        ]
        return ReferenceDump(keys, partial(self._dumped, context.scope))

    @_locked
    def _dumped(self, scope: PrefixScope, publisher: PublisherId, key: int) -> list[bytes]:
        owner = self._publishers.get(publisher)
        if owner is None or key not in owner.entries:
            return []
        return [change.encode() for change in owner.live_of(key, scope)]

    def _context_entries(self, context: ModelContext) -> Iterator[Change]:
        for owner in self._publishers.values():
            if owner.stream == context.stream:
                yield from owner.live(context.scope)

    # Queries

    @_locked
    def query(
        self,
        scope: PrefixScope,
        tokens: bytes,
        keys: Sequence[bytes],
        instance_id: str | None,
        /,
    ) -> list[InstanceMatch]:
        matches = self._match(scope, self._prefixes(scope, tokens, keys), instance_id)
        if not self._has_pairs(scope, tokens, keys):
            return matches
        paired = self._prefixes(scope, tokens, keys, pairs=True)
        return list(map(further, matches, self._match(scope, paired, instance_id)))

    def _prefixes(
        self, scope: PrefixScope, tokens: bytes, keys: Sequence[bytes], *, pairs: bool = False
    ) -> Iterator[int]:
        size = PrefixScope(*scope).block_size
        return prefix_hashes(tokens, size, seed=self.seed, keys=keys, pairs=pairs)

    def _has_pairs(self, scope: PrefixScope, tokens: bytes, keys: Sequence[bytes]) -> bool:
        """Whether somebody holds the prompt's first block as one of pairs."""
        known = self._scopes.get(PrefixScope(*scope))
        first = next(self._prefixes(scope, tokens, keys, pairs=True), None)
        return known is not None and first in known.blocks

    @_locked
    def query_by_hash(
        self, scope: PrefixScope, hashes: bytes, instance_id: str | None, /
    ) -> list[InstanceMatch]:
        return self._match(scope, iter(_u64s(hashes)), instance_id)

    @_locked
    def has_rules(self) -> bool:
        return any(owner.rules for owner in self._publishers.values())

    @_locked
    def limiting_groups(
        self, scope: PrefixScope, hashes: bytes, instance_id: str | None, /
    ) -> list[tuple[str, int]]:
        found = self._limited(scope, iter(_u64s(hashes)), instance_id)
        return [(match.instance_id, group) for match, group in found if group is not None]

    @_locked
    def query_by_engine_hash(
        self, tenant_id: str, model_name: str | None, hashes: bytes, /
    ) -> list[EngineMatch]:
        keys = _u64s(hashes)
        matches = [
            EngineMatch(publisher, sum(1 for _ in takewhile(owner.holds, keys)))
            for publisher, owner in self._publishers.items()
            if owner.stream.tenant_id == tenant_id and model_name in (None, owner.stream.model_name)
        ]
        return sorted(match for match in matches if match.blocks)

    @_locked
    def engine_hashes(
        self, scope: PrefixScope, hashes: bytes, instance_id: str, dp_rank: int, /
    ) -> bytes:
        names: dict[int, int] = {}
        for owner in self._publishers.values():
            if (owner.stream.instance_id, owner.dp_rank) == (instance_id, dp_rank):
                own = (key for key in owner.entries if owner.holds(key))
                names |= {
                    owner.entries[key].prefix: key
                    for key in own
                    if owner.entries[key].scope == scope
                }
        held = takewhile(names.__contains__, _u64s(hashes))
        return b"".join(names[prefix].to_bytes(8, "little") for prefix in held)

    @_locked
    def publisher(self, publisher: PublisherId, /) -> PublisherKey | None:
        owner = self._publishers.get(publisher)
        return None if owner is None else PublisherKey(owner.stream, owner.dp_rank)

    def _match(
        self, scope: PrefixScope, prefixes: Iterator[int], instance_id: str | None
    ) -> list[InstanceMatch]:
        return [match for match, _ in self._limited(scope, prefixes, instance_id)]

    def _limited(
        self, scope: PrefixScope, prefixes: Iterator[int], instance_id: str | None
    ) -> list[tuple[InstanceMatch, int | None]]:
        """Each match, and the sparse group that has cut it."""
        scope = PrefixScope(*scope)
        participants = self._participants(scope)
        if instance_id is not None:
            ranks = participants.get(instance_id)
            participants = {instance_id: ranks} if ranks else {}
        if not participants:
            return []
        blocks = self._scopes[scope].blocks if scope in self._scopes else {}
        held: list[set[Holder]] = []
        walked: list[int] = []
        for prefix in prefixes:
            holders = blocks.get(prefix)
            if not holders:
                break
            held.append({(one, answered_tier(tier)) for one, tier in holders})
            walked.append(prefix)
        matches: list[tuple[InstanceMatch, int | None]] = []
        for instance, ranks in sorted(participants.items()):
            owners = [self._publishers[one] for one in ranks.values()]
            is_sharded = any(one.is_shard and one.takes_part(scope) for one in owners)
            match = match_shards if is_sharded else match_instance
            found = match(instance, ranks, self._read_by(ranks), held, scope.block_size)
            sparse = self._sparse_ranks(scope, ranks, walked)
            if sparse:
                size = scope.block_size
                matches.append(limited(found, sparse, size, is_sharded=is_sharded))
            else:
                matches.append((found, None))
        return matches

    def _read_by(self, ranks: dict[int, PublisherId]) -> dict[int, set[PublisherId]]:
        """Whose shared blocks each of these ranks can read, of whatever scope."""
        owners = {dp_rank: self._publishers[one] for dp_rank, one in ranks.items()}
        return {
            dp_rank: {one for one, other in self._publishers.items() if owner.can_read(other)}
            for dp_rank, owner in owners.items()
        }

    def _sparse_ranks(
        self, scope: PrefixScope, ranks: dict[int, PublisherId], prefixes: list[int]
    ) -> dict[int, SparseRank]:
        """Those of an instance that have sparse groups; none where one has some without a rule."""
        found: dict[int, SparseRank] = {}
        beside = sparse_scope(scope)
        known = self._scopes.get(beside) if beside is not None else None
        blocks = known.blocks if known is not None else {}
        for dp_rank, publisher in ranks.items():
            owner = self._publishers[publisher]
            if owner.has_unruled:
                return {}
            if rules := owner.rules:

                def holds(
                    medium: int, group: int, place: int, one: PublisherId = publisher
                ) -> bool:
                    holders = blocks.get(engine_key(prefixes[place], group), ())
                    return (one, medium) in {(by, answered_tier(tier)) for by, tier in holders}

                found[dp_rank] = SparseRank(rules, holds)
        return found

    def _participants(self, scope: PrefixScope) -> dict[str, dict[int, PublisherId]]:
        found: defaultdict[str, dict[int, PublisherId]] = defaultdict(dict)
        for publisher, owner in self._publishers.items():
            if owner.scope(scope.lora_name) != scope:
                continue
            if owner.takes_part(scope) or owner.own[scope] > 0:
                found[owner.stream.instance_id][owner.dp_rank] = publisher
        return dict(found)

    @_locked
    def knows(self, scope: PrefixScope, /) -> bool:
        return bool(self._participants(PrefixScope(*scope)))

    def scan_query(self, body: bytes, /) -> ScannedQuery | None:
        return scan_query(bytes(body))

    def answer(
        self,
        body: bytes,
        form: int = BodyForm.JSON,
        by_hash: bool = False,
        url_query: bytes | None = None,
        /,
    ) -> None:
        """See `Kernel`: each step has a call of its own."""

    @_locked
    def prefix_hashes(
        self, scope: PrefixScope, tokens: bytes, keys: Sequence[bytes], most: int, /
    ) -> bytes:
        known = self._scopes.get(PrefixScope(*scope))
        first = next(self._prefixes(scope, tokens, keys), None)
        is_plain = known is not None and first in known.blocks
        pairs = not is_plain and self._has_pairs(scope, tokens, keys)
        hashes = self._prefixes(scope, tokens, keys, pairs=pairs)
        return _packed(islice(hashes, most))

    def hash_blocks(
        self, tokens: bytes, block_size: int, keys: Sequence[bytes], pairs: bool, /
    ) -> bytes:
        hashes = prefix_hashes(tokens, block_size, seed=self.seed, keys=keys, pairs=pairs)
        return _packed(hashes)

    def chain_hashes(self, token_hashes: bytes, /) -> bytes:
        previous: int | None = None
        prefixes = []
        for local in _u64s(token_hashes):
            previous = chained(previous, local, self.seed)
            prefixes.append(previous)
        return _packed(prefixes)

    # Views

    @_locked
    def left_out(self, publisher: PublisherId, /) -> list[tuple[str, int]]:
        owner = self._publishers[publisher]
        held = owner.left_out().items()
        found = [(scope.lora_name.removeprefix(LEFT_OUT), n) for scope, n in held]
        for reason, n in ((GROUPS_DIFFER, owner.uneven()), (OBJECTS_WAIT, owner.waiting)):
            found += [(reason, n)] * (n > 0)
        return sorted(found)

    @_locked
    def wait_together(self, publishers: Sequence[PublisherId], /) -> bool:
        wanted = set(publishers)
        return any(
            wanted <= {publisher for publisher, _ in holders}
            for scope, waiting in self._scopes.items()
            if is_waiting(scope.lora_name)
            for holders in waiting.blocks.values()
        )

    @_locked
    def without_adapter(self, scope: PrefixScope, /) -> list[str]:
        scope = PrefixScope(*scope)
        owners = self._publishers.values()
        pools = [owner for owner in owners if owner.held[scope] > owner.own[scope]]
        if not scope.lora_name:
            return []
        base = scope._replace(lora_name="")
        registered = {
            owner.stream.instance_id
            for owner in owners
            if owner.takes_part(base) and owner.scope("") == base
            if any(map(owner.can_read, pools))
        }
        return sorted(registered - self._participants(scope).keys())

    @_locked
    def scopes(self) -> list[ScopeView]:
        scopes = {scope for scope in self._scopes if not is_hidden(scope.lora_name)}
        for owner in self._publishers.values():
            if owner.registered_lora is not None and owner.routable:
                scopes.add(owner.scope(owner.registered_lora))
        views = []
        for scope in sorted(scopes):
            blocks = len(self._scopes[scope].blocks) if scope in self._scopes else 0
            ranks = {
                instance: sorted(publishers)
                for instance, publishers in sorted(self._participants(scope).items())
            }
            views.append(ScopeView(scope, blocks, ranks))
        return views

    @_locked
    def contexts(self) -> list[ContextView]:
        entries: defaultdict[ModelContext, list[Change]] = defaultdict(list)
        for owner in self._publishers.values():
            for scope in {entry.scope for entry in owner.entries.values()}:
                entries[owner.context(scope)].extend(owner.live(scope))
        return [
            ContextView(context, digest_of(live), len(live))
            for context, live in sorted(entries.items())
        ]

    @_locked
    def counters(self) -> dict[str, int]:
        return dict(self._counters)

    @_locked
    def stats(self) -> dict[str, int]:
        keys = [entry for owner in self._publishers.values() for entry in owner.entries.values()]
        entries = sum(1 for entry in keys for count in entry.counts if count)
        entries -= sum(
            owner.groups + owner.aliases + owner.held[owner.scope(RULES)]
            for owner in self._publishers.values()
        )
        blocks = [
            holders
            for key, scope in self._scopes.items()
            if not is_hidden(key.lora_name)
            for holders in scope.blocks.values()
        ]
        waiting = [entry for entry in keys if is_waiting(entry.scope.lora_name)]
        return {
            "blocks": len(blocks),
            "entries": entries,
            "publishers": len(self._publishers),
            "scopes": len(self.scopes()),
            "holder_sets": len({frozenset(holders) for holders in blocks}),
            # Measured on CPython 3.11: dict slots, one Counter a block, one entry object a holder.
            "waiting": sum(1 for entry in waiting for count in entry.counts if count),
            "left_out": sum(sum(one.left_out().values()) for one in self._publishers.values()),
            "memory_bytes": 300 * len(blocks) + 250 * len(keys),
        }

    # Hashing

    def _hash(self, content: bytes) -> int:
        return xxhash.xxh3_64_intdigest(content, self.seed)


def _repeated_key(key: int, tier: int) -> int:
    return key ^ (REPEATED_MASK + tier)


def _pool_key(key: int, tier: int) -> int:
    return key ^ (POOL_MASK + tier)


def _packed(hashes: Iterable[int]) -> bytes:
    return b"".join(one.to_bytes(8, "little") for one in hashes)


def _u64s(encoded: bytes) -> list[int]:
    return [int.from_bytes(encoded[i : i + 8], "little") for i in range(0, len(encoded) - 7, 8)]


def _shows_group(event: StoredBlocks, refusal: str | None) -> bool:
    """Whether a stored event shows that its group forms prefixes, though it may not be usable: not
    one whose tokens do not cover its blocks, as those of a sparse group may not.
    """
    is_sparse = refusal in ("skipped_group", "token_count_mismatch")
    return not (is_sparse or is_placeholder(event))


def _refusal(owner: _Publisher, event: StoredBlocks, blocks: int, seed: int) -> str | None:
    """The counter under which a stored event is dropped, or None."""
    if event.spec_kind in SPARSE_SPEC_KINDS:
        return "skipped_group"
    if event.left_out:
        return "unusable"
    if is_placeholder(event) and not event.block_size:
        return None
    if event.block_size != owner.stream.block_size:
        return "block_size_mismatch"
    if is_placeholder(event):
        return None
    if event.by_hash or event.aliases:
        return "token_count_mismatch" if event.tokens or event.token_hashes else None
    if event.token_hashes:
        if event.tokens or len(event.token_hashes) != 8 * blocks:
            return "token_count_mismatch"
        if event.extra_keys:
            return "extra_keys_mismatch"
        return None if seed == TOKEN_HASH_SEED else "seed_mismatch"
    if len(event.tokens) != 4 * blocks * event.block_size:
        return "token_count_mismatch"
    if event.extra_keys and len(event.extra_keys) != blocks:
        return "extra_keys_mismatch"
    return None
