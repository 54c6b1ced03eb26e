"""How far a table's answers can be trusted, by scope; see `schemas.answer_states`.

Kept up to date as publishers change, so that an answer's state costs a look at its scope, however
many publishers there are. One writer; other threads may read: what they read is replaced whole.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from schemas.answer_states import LOST_BATCHES, AnswerState, Doubt, Standing, Verdict
from schemas.identities import OBJECTS_WAIT, UNSURE, PrefixScope, PublisherKey, StreamKey
from schemas.positions import (
    CPU_CLEARED,
    DISK_CLEARED,
    POOL_CLEARED,
    REUSES_IN_PART,
    SAYS_ALL_GONE,
    Confirmation,
    PublisherState,
    never_taken_back,
)
from schemas.registration import Registration

Scope = tuple[str, str, int, str]
"""Tenant, model, block size, salt: what the publishers of a query's scope have in common."""


class ConfirmationSource(NamedTuple):
    """Who confirms publishers of one partition of the log: a bridge, by its heartbeats there."""

    partition: int
    bridge: str


FreshUntil = Mapping[ConfirmationSource, float]
"""Until when the last heartbeat of each source counts; the clock is the caller's."""


class Contradiction(NamedTuple):
    """Outcomes say that an engine does not hold what the table says.

    Attributes:
        since: when that was known, Unix seconds.
        is_below_gpu: whether what it did not find was on none of its GPUs.
    """

    since: float
    is_below_gpu: bool = False


class Contradictions(NamedTuple):
    """Publishers of whose engines outcomes say so, and the scopes of these; never changed."""

    publishers: Mapping[PublisherKey, Contradiction]
    scopes: frozenset[Scope]


NO_CONTRADICTIONS: Final = Contradictions(MappingProxyType({}), frozenset())


class _PublisherFacts(NamedTuple):
    """What is known of one publisher.

    Attributes:
        stated: whether the table has a state of it.
        degraded_at: since when it is degraded, Unix seconds; None where it is not.
        loss: why it is degraded.
        unsure: why it may hold blocks or not, or its engine not use them (`UNSURE`), but for what
            it never removes; "" where that is known.
        unsure_at: since when, likewise.
        unsure_below: the same of what says less than that.
        media, passed_over: of its state, and see `Registration.passed_over_media`.
        confirmation: what its bridge last said.
        registered: whether the table says so.
        listed: whether the registry says so, where there is one beside the table.
        other_ranks: of which events came in its stream, or at its address, as its bridge says.
        said_ranks: that its engine names over HTTP.
        is_hybrid: whether that says so, too.
        lacks_rank: whether one of either is not registered.
        partition: of the log.
        is_pool: whether it is no instance, and its blocks are for those of the scope.
        is_unread: whether none of these reads them.
        http_url, shared_as, reads: see `Registration`.
        doubt: see `Registration.doubt`; "" where there is none.
        groups_open: whether its registration says nothing of its cache groups.
        reloads_adapters: see `Registration.reloads_adapters`.
        says_all: whether its events say all that it drops, or none came yet.
    """

    stated: bool = False
    degraded_at: float | None = None
    loss: str = ""
    unsure: str = ""
    unsure_at: float = 0.0
    unsure_below: str = ""
    media: int = 0
    passed_over: int = 0
    confirmation: Confirmation | None = None
    registered: bool = False
    listed: bool = False
    other_ranks: tuple[int, ...] = ()
    said_ranks: tuple[int, ...] = ()
    is_hybrid: bool = False
    lacks_rank: bool = False
    http_url: str = ""
    partition: int = 0
    is_pool: bool = False
    is_unread: bool = False
    shared_as: str = ""
    reads: tuple[str, ...] | None = None
    doubt: str = ""
    groups_open: bool = False
    reloads_adapters: bool = False
    says_all: bool = True

    @property
    def first_unsure(self) -> str:
        """Why its events do not say what it holds; "" where they do."""
        if not self.unsure and never_taken_back(self.media & ~self.passed_over):
            return Doubt.NEVER_REMOVED
        return self.unsure or self.unsure_below

    @property
    def doubted(self) -> str:
        """What its kind, or its model, does without an event, and may be so of it; or ""."""
        if self.doubt and not (self.doubt == Doubt.DROPS_UNSAID and self.says_all):
            return self.doubt
        return Doubt.GROUPS_UNKNOWN if self.is_hybrid and self.groups_open else ""

    @property
    def read_names(self) -> frozenset[str | None]:
        """What its instance reads, by name; None among them: all. Of a pool, or of one that is not
        registered, nothing.
        """
        if self.is_pool or not self.registered:
            return frozenset()
        names: tuple[str | None, ...] = (None,)
        if self.reads is not None:
            names = (self.shared_as, *self.reads)
        return frozenset(names)

    def can_read(self, pool: "_PublisherFacts") -> bool:
        """Whether a pool's blocks are for its instance."""
        return self.reads is None or pool.shared_as in self.reads

    @property
    def is_nothing(self) -> bool:
        return not (self.stated or self.registered or self.listed)


class _Summary(NamedTuple):
    """The publishers of one scope, but for pools that nobody reads: how many are degraded, how many
    are certainly not confirmed, how many may have loaded adapters again, and how many each source
    confirms.
    """

    degraded: int
    unconfirmed: int
    reloading: int
    confirmed: dict[ConfirmationSource, int]


_UNSURE_OF_MEDIA = (
    Doubt.LENDER_GONE,
    Doubt.POOL_CLEARED,
    Doubt.TIERS_CLEARED,
    Doubt.NEVER_REMOVED,
    Doubt.CHUNKS_UNKNOWN,
    Doubt.PARTIAL_REUSE,
)
_UNKNOWN = _PublisherFacts()
_NEVER = float("-inf")
_EMPTY = _Summary(0, 0, 0, {})


class ScopeStates:
    """See the module.

    Args:
        has_registry: whether a registry beside the table says, too, who is to be followed (`list`).

    Attributes:
        on_change: called after a scope's publishers have changed.
    """

    def __init__(self, *, has_registry: bool = False) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._has_registry = has_registry
        self._known: dict[PublisherKey, _PublisherFacts] = {}
        self._publishers: dict[Scope, dict[PublisherKey, None]] = {}
        self._summaries: dict[Scope, _Summary] = {}
        # Those that have named other ranks, by stream and by URL; the ranks that are registered of
        # an engine by its URL, each as often.
        self._sharing: dict[StreamKey | str, dict[PublisherKey, None]] = {}
        self._ranks_at: dict[str, Counter[int]] = {}
        self._pools: dict[Scope, dict[PublisherKey, None]] = {}
        self._reads: dict[Scope, Counter[str | None]] = {}  # how many read them, by name

    # Writing, O(1) each

    def put(
        self,
        publisher: PublisherKey,
        state: PublisherState | None,
        partition: int = 0,
        *,
        waits: bool = True,
    ) -> None:
        """The table has this of the publisher; None for nothing any more. Where not `waits`, what
        waits at this member of a pool is found at another one.
        """
        known = self._known.get(publisher, _UNKNOWN)
        if state is None:
            known = known._replace(
                stated=False,
                degraded_at=None,
                unsure="",
                unsure_at=0.0,
                unsure_below="",
                media=0,
                other_ranks=(),
                said_ranks=(),
                is_hybrid=False,
                says_all=True,
            )
            self._replace(publisher, known._replace(loss="", confirmation=None))
            return
        loss, degraded_at = _loss_of(state)
        doubts = (one for one in UNSURE if one in state.left_out)
        unsure = next((one for one in doubts if waits or one != OBJECTS_WAIT), "")
        unsure_at = state.left_out_at if unsure else 0.0
        if not unsure and state.may_lack_memory:
            unsure, unsure_at = Doubt.LENDER_GONE, state.lender_gone or 0.0
        if not unsure and state.media & POOL_CLEARED:
            unsure = Doubt.POOL_CLEARED
        has_tiers = state.media & (CPU_CLEARED | DISK_CLEARED) or state.tiers_unheard is not None
        if not unsure and has_tiers:
            unsure = Doubt.TIERS_CLEARED
        below = ""
        if state.may_have_chunks:
            below = Doubt.CHUNKS_UNKNOWN
        elif state.media & REUSES_IN_PART:
            below = Doubt.PARTIAL_REUSE
        elif state.is_attention_only:
            below = Doubt.ATTENTION_ONLY
        elif state.contradicts_itself:
            below = Doubt.UNHELD_REMOVED
        says_all = state.sequence < 0 or state.media & SAYS_ALL_GONE != 0
        told = (loss, degraded_at, unsure, unsure_at, below, state.media)
        ranks, said = state.other_ranks, state.confirmation
        if said is not None and said.troubles.other_ranks:
            ranks = tuple(sorted({*ranks, *said.troubles.other_ranks}))
        is_known = known.stated and (*told, ranks, says_all) == (
            *(known.loss, known.degraded_at, known.unsure, known.unsure_at, known.unsure_below),
            *(known.media, known.other_ranks, known.says_all),
        )
        if is_known and known.confirmation is state.confirmation:
            return  # with almost every record
        if is_known and _is_as_good(known, state):
            # Kept all the same, so that the next records find the same object.
            self._known[publisher] = known._replace(confirmation=state.confirmation)
            return
        said_ranks, is_hybrid = _said_over_http(state.confirmation)
        self._replace(
            publisher,
            known._replace(
                stated=True,
                degraded_at=degraded_at,
                loss=loss,
                unsure=unsure,
                unsure_at=unsure_at,
                unsure_below=below,
                media=state.media,
                confirmation=state.confirmation,
                other_ranks=ranks,
                said_ranks=said_ranks,
                is_hybrid=is_hybrid,
                partition=partition,
                says_all=says_all,
            ),
        )

    def register(
        self, publisher: PublisherKey, registered: bool, registration: Registration | None = None
    ) -> None:
        """The table says whether the publisher is registered, and as what."""
        known = self._known.get(publisher, _UNKNOWN)._replace(registered=registered)
        self._replace(
            publisher,
            known._replace(
                is_pool=registration is not None and registration.is_pool,
                http_url="" if registration is None else registration.http_url,
                shared_as="" if registration is None else registration.shared_as,
                reads=None if registration is None else registration.reads,
                doubt="" if registration is None else registration.doubt or "",
                groups_open=registration is not None and not registration.kv_cache_groups,
                reloads_adapters=registration is not None and registration.reloads_adapters,
                passed_over=0 if registration is None else registration.passed_over_media,
            ),
        )

    def list(self, publisher: PublisherKey, listed: bool) -> None:
        """The registry says whether the publisher is registered."""
        known = self._known.get(publisher, _UNKNOWN)
        self._replace(publisher, known._replace(listed=listed))

    def _replace(self, publisher: PublisherKey, known: _PublisherFacts) -> None:
        before = self._known.get(publisher, _UNKNOWN)
        scope = scope_of(publisher.stream)
        known = known._replace(
            lacks_rank=self._lacks_rank(publisher, known),
            is_unread=known.is_pool and self._is_unread(scope, known),
        )
        if known == before:
            return
        if known.is_nothing:
            self._known.pop(publisher, None)
            publishers = self._publishers.get(scope, {})
            publishers.pop(publisher, None)
            if not publishers:
                self._publishers.pop(scope, None)
        else:
            self._known[publisher] = known
            self._publishers.setdefault(scope, {})[publisher] = None
        self._count(scope, before, -1)
        self._count(scope, known, 1)
        self._share(publisher.stream, publisher, bool(known.other_ranks or known.said_ranks))
        if before.http_url != known.http_url:
            self._share(before.http_url, publisher, False)
        self._share(known.http_url, publisher, bool(known.http_url and known.said_ranks))
        self._read(publisher, scope, before, known)
        was, now = self._is_registered(before), self._is_registered(known)
        changed: list[StreamKey | str] = [publisher.stream] if was != now else []
        if (was, before.http_url) != (now, known.http_url):
            if was and self._count_rank(before.http_url, publisher.dp_rank, -1):
                changed.append(before.http_url)
            if now and self._count_rank(known.http_url, publisher.dp_rank, 1):
                changed.append(known.http_url)
        for named in changed:
            for other in list(self._sharing.get(named, ())):
                self._replace(other, self._known[other])
        self.on_change()

    def _share(self, named: StreamKey | str, publisher: PublisherKey, shares: bool) -> None:
        if shares:
            self._sharing.setdefault(named, {})[publisher] = None
        elif (sharing := self._sharing.get(named)) is not None:
            sharing.pop(publisher, None)
            if not sharing:
                del self._sharing[named]

    def _count_rank(self, url: str, dp_rank: int, change: int) -> bool:
        """Returns whether the rank is the first, or was the last of its number there."""
        if not url:
            return False
        ranks = self._ranks_at.setdefault(url, Counter())
        ranks[dp_rank] += change
        is_other = ranks[dp_rank] == max(change, 0)
        if not ranks[dp_rank]:
            del ranks[dp_rank]
        if not ranks:
            del self._ranks_at[url]
        return is_other

    def _is_unread(self, scope: Scope, pool: _PublisherFacts) -> bool:
        """Whether instances are registered in the scope, and none of them reads the pool."""
        reads = self._reads.get(scope)
        return reads is not None and not (reads[None] or reads[pool.shared_as])

    def _read(
        self, publisher: PublisherKey, scope: Scope, before: _PublisherFacts, known: _PublisherFacts
    ) -> None:
        pools = self._pools.setdefault(scope, {})
        pools.pop(publisher, None)
        if known.is_pool and not known.is_nothing:
            pools[publisher] = None
        elif not pools:
            del self._pools[scope]
        was, now = before.read_names, known.read_names
        if was == now:
            return
        reads = self._reads.setdefault(scope, Counter())
        reads.update(now)
        reads.subtract(was)
        reads += Counter()  # without those that nobody reads
        if not reads:
            del self._reads[scope]
        for pool in list(pools):
            self._replace(pool, self._known[pool])

    def _is_registered(self, known: _PublisherFacts) -> bool:
        return known.registered and (known.listed or not self._has_registry)

    def _lacks_rank(self, publisher: PublisherKey, known: _PublisherFacts) -> bool:
        """An engine's own word counts for all that are registered at its URL, by whatever names."""
        at_url: Mapping[int, int] = self._ranks_at.get(known.http_url, {})
        named = (*known.other_ranks, *(one for one in known.said_ranks if one not in at_url))
        others = (publisher._replace(dp_rank=rank) for rank in named if rank != publisher.dp_rank)
        return not all(self._is_registered(self._known.get(one, _UNKNOWN)) for one in others)

    def _count(self, scope: Scope, known: _PublisherFacts, change: int) -> None:
        if known.is_nothing or known.is_unread:
            return
        degraded, unconfirmed, reloading, confirmed = self._summaries.get(scope, _EMPTY)
        degraded += change * (known.degraded_at is not None)
        reloading += change * known.reloads_adapters
        source = self._source_of(known)
        if isinstance(source, Doubt):
            unconfirmed += change
        else:
            confirmed = confirmed | {source: confirmed.get(source, 0) + change}
            if not confirmed[source]:
                del confirmed[source]
        if degraded or unconfirmed or reloading or confirmed:
            self._summaries[scope] = _Summary(degraded, unconfirmed, reloading, confirmed)
        else:
            self._summaries.pop(scope, None)

    def _source_of(self, known: _PublisherFacts) -> ConfirmationSource | Doubt:
        """Who confirms the publisher, or why nobody does."""
        confirmation = known.confirmation
        if not self._is_registered(known) or confirmation is None:
            return Doubt.NOT_FOLLOWED
        if not confirmation.reason and known.lacks_rank:
            return Doubt.RANK_MISSING
        if not confirmation.reason and known.first_unsure:
            return Doubt(known.first_unsure)
        if not confirmation.reason and known.doubted:
            return Doubt(known.doubted)
        if not confirmation.reason:
            return ConfirmationSource(known.partition, confirmation.bridge)
        try:
            return Doubt(confirmation.reason)
        except ValueError:  # of a newer bridge
            return Doubt.CATCHING_UP

    # Reading

    def is_degraded(self, scope: PrefixScope) -> bool:
        """Whether a publisher of the scope has lost batches."""
        summary = self._summaries.get(common_scope(scope))
        return summary is not None and summary.degraded > 0

    def verdict(
        self,
        scope: PrefixScope,
        fresh_until: FreshUntil,
        now: float,
        contradictions: Contradictions = NO_CONTRADICTIONS,
    ) -> Verdict:
        """The worst of the scope's publishers; `exact` where there is none. Cost O(sources)."""
        summary = self._summaries.get(common_scope(scope))
        if summary is None:
            return Verdict(AnswerState.EXACT)
        if summary.degraded:
            return Verdict(AnswerState.DEGRADED)
        if summary.unconfirmed or common_scope(scope) in contradictions.scopes:
            return Verdict(AnswerState.UNCONFIRMED)
        if summary.reloading and scope.lora_name:
            return Verdict(AnswerState.UNCONFIRMED)
        until = min(
            (fresh_until.get(source, _NEVER) for source in summary.confirmed), default=math.inf
        )
        if now >= until:
            return Verdict(AnswerState.UNCONFIRMED)
        return Verdict(AnswerState.EXACT, until)

    def standing(
        self,
        publisher: PublisherKey,
        fresh_until: FreshUntil,
        now: float,
        contradictions: Contradictions = NO_CONTRADICTIONS,
    ) -> Standing:
        """The state of one publisher."""
        known = self._known.get(publisher, _UNKNOWN)
        if known.degraded_at is not None:
            return Standing(AnswerState.DEGRADED, known.loss, known.degraded_at)
        said = known.confirmation
        since = 0.0 if said is None else said.since
        source = self._source_of(known)
        is_said = said is not None and said.reason  # by its bridge, as of a worker of LMCache
        is_unsure = source == known.first_unsure and source in (*UNSURE, *_UNSURE_OF_MEDIA)
        if is_unsure and not is_said:
            since = known.unsure_at
        if isinstance(source, Doubt):
            return Standing(AnswerState.UNCONFIRMED, source, since)
        contradiction = self._contradiction(publisher, known, contradictions)
        if contradiction is not None:
            return Standing(AnswerState.UNCONFIRMED, Doubt.OUTCOMES_DIFFER, contradiction.since)
        if now >= fresh_until.get(source, _NEVER):
            return Standing(AnswerState.UNCONFIRMED, Doubt.NO_HEARTBEAT, 0.0)
        return Standing(AnswerState.EXACT, "", since)

    def reloads_adapters(self, publisher: PublisherKey) -> bool:
        """Whether it may have loaded an adapter again, and finds none of its blocks."""
        return self._known.get(publisher, _UNKNOWN).reloads_adapters

    def publishers(self, scope: PrefixScope) -> tuple[PublisherKey, ...]:
        """Those of the scope."""
        return tuple(self._publishers.get(common_scope(scope), ()))

    def _contradiction(
        self, publisher: PublisherKey, known: _PublisherFacts, contradictions: Contradictions
    ) -> Contradiction | None:
        """What outcomes contradict of the publisher. What an instance should have found below its
        GPU is a pool's, where it reads one: each that does finds less by what the pool lost.
        """
        scope = scope_of(publisher.stream)
        if scope not in contradictions.scopes:
            return None
        if known.is_pool:
            return min(
                (
                    one
                    for other, one in contradictions.publishers.items()
                    if one.is_below_gpu and scope_of(other.stream) == scope
                    if self._known.get(other, _UNKNOWN).can_read(known)
                ),
                default=None,
            )
        found = contradictions.publishers.get(publisher)
        if found is None or not found.is_below_gpu:
            return found
        pools = (self._known.get(one, _UNKNOWN) for one in tuple(self._pools.get(scope, ())))
        return None if any(map(known.can_read, pools)) else found


def _loss_of(state: PublisherState) -> tuple[str, float | None]:
    """Why the publisher is degraded, and since when; None where it is not."""
    if state.degraded_since is not None:
        return LOST_BATCHES, state.degraded_at
    reasons = state.left_out.keys() - set(UNSURE)
    if reasons:
        return min(reasons).partition(":")[0], state.left_out_at
    return "", None


def _is_as_good(known: _PublisherFacts, state: PublisherState) -> bool:
    """Whether what its bridge said of the publisher says no other of how far it can be trusted."""
    before, now = known.confirmation, state.confirmation
    if before is None or now is None:
        return before is now
    if (known.said_ranks, known.is_hybrid) != _said_over_http(now):
        return False
    return (before.bridge, before.reason, before.since) == (now.bridge, now.reason, now.since)


def _said_over_http(said: Confirmation | None) -> tuple[tuple[int, ...], bool]:
    """Which ranks its engine names, and whether its model is hybrid."""
    if said is None or said.facts is None:
        return (), False
    return said.facts.ranks, said.facts.is_hybrid is True


def scope_of(stream: StreamKey) -> Scope:
    """The scope that the stream's publishers share."""
    return (stream.tenant_id, stream.model_name, stream.block_size, stream.additional_salt)


def common_scope(scope: PrefixScope) -> Scope:
    """The scope of the publishers that a query in this one depends on."""
    tenant_id, model_name, _, block_size, additional_salt = scope
    return (tenant_id, model_name, block_size, additional_salt)
