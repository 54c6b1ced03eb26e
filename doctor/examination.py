"""All that is known of each instance, gathered from where it is known. Reads; changes nothing."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from doctor.document import AskedExamination
from query_api.ports import Health, ServiceView, View
from query_api.unknown_scopes import ScopeMismatch, UnknownScope, UnknownScopes
from routing.decisions.router import Router
from routing.observed.hot_prefixes import view as hot_view
from routing.observed.promise_totals import NOT_SERVED, RecentTotals, ServedInstance, Totals
from schemas.engine_facts import EngineFacts
from schemas.identities import (
    MEDIA,
    Medium,
    ModelContext,
    PrefixScope,
    StreamKey,
    is_hidden,
)
from schemas.limits import OUTCOMES_MIN
from schemas.registration import Registration
from schemas.routing_records import DecidedScope, Target
from schemas.troubles import NO_TROUBLES, Troubles
from streams.kernel.changes import CHANGE_BYTES, SHARED
from streams.kernel.interface import ReadOnlyKernel
from streams.table.scope_states import Scope, scope_of
from tokens.engine_questions import UnansweredModel

DOCTOR_OUTCOMES_S: Final = 900.0  # older ones say nothing
DOCTOR_ENTRIES_MAX: Final = 65_536  # that are looked at of a context, to tell its tiers apart

_TIER_AT: Final = 20
_GPU: Final = MEDIA.index(Medium.GPU)

NOTHING_UNSAID: Final[Mapping[str, int]] = {}
"""Where there is no gateway."""


_Contexts = list[tuple[ModelContext, int]]


class Patient(NamedTuple):
    """One instance with one model.

    Attributes:
        ranks: its publishers, by rising rank.
        entries: blocks that the index has of it, over all ranks.
        on_gpu: which share of them is on its GPUs; looks at all of them.
        capacity_blocks: that its engine has room for, over all ranks; 0 where that is not known.
        ranks_at_url: that are registered of it, or of the engine at its HTTP address, by whatever
            names.
        unknown_adapters: of which a pool has blocks, and nothing says whether it has loaded them.
        adapters: of which it has blocks itself, sorted.
        recent: what the latest outcomes say, as many as are needed to judge by.
        unsaid: its latest answers at the gateway that did not say what it found in its cache,
            though something was promised; 0 where that is no pattern.
        unknown_reads: whom it is registered to read, and nobody of its scope is called so, sorted.
    """

    stream: StreamKey
    ranks: list[ServiceView]
    entries: int
    on_gpu: Callable[[], float]
    capacity_blocks: int
    ranks_at_url: frozenset[int]
    unknown_adapters: tuple[str, ...]
    adapters: tuple[str, ...]
    recent: RecentTotals
    unsaid: int = 0
    unknown_reads: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Of its publishers."""
        return self.ranks[0].registration.kind

    @property
    def has_events(self) -> bool:
        """Whether any of its publishers is one of events."""
        return any(one.registration.has_events for one in self.ranks)

    @property
    def served(self) -> Totals:
        """What the latest outcomes say."""
        return self.recent.totals

    @property
    def is_judged(self) -> bool:
        """Whether there are as many outcomes as a finding needs."""
        return self.served.reported >= OUTCOMES_MIN

    @property
    def asked(self) -> AskedExamination:
        """What was asked of it, for people."""
        served = self.served
        return AskedExamination(
            reported=served.reported,
            prompt_tokens=served.prompt,
            promised_tokens=served.promised,
            cached_tokens=served.actual,
            unpromised_tokens=served.unpromised,
            missing_tokens=served.index,
            miscounted=served.miscounted,
        )


class UnheldBlock(NamedTuple):
    """A first block that prompts have again and again, and no engine ever.

    Attributes:
        asked: how many had it.
        found_nothing: of these, those that were sent where an earlier one was, and of which the
            engine said that it found nothing.
        last_asked: Unix seconds.
        entries: blocks that the index has in this scope.
    """

    scope: DecidedScope
    asked: int
    found_nothing: int
    last_asked: float
    entries: int


class Examination(NamedTuple):
    """A service at a moment.

    Attributes:
        at: Unix seconds.
        patients: by tenant, model and instance.
        unknown: what was asked that nobody has, and why nobody does; the latest first.
        never_held: of each scope at most one, by scope.
        unanswered: models of whose prompts engines make no tokens in time.
    """

    at: float
    health: Health
    patients: list[Patient]
    unknown: list[tuple[UnknownScope, ScopeMismatch]]
    never_held: list[UnheldBlock]
    unanswered: Sequence[UnansweredModel] = ()


def examine(
    view: View,
    router: Router | None,
    now: float,
    admits: Callable[[str], bool] = lambda tenant_id: True,
    unknown: UnknownScopes | None = None,
    unsaid: Mapping[str, int] = NOTHING_UNSAID,
    unanswered: Sequence[UnansweredModel] = (),
) -> Examination:
    """All that may be shown. Cost O(publishers + contexts + rows of promises), and O(publishers)
    for each adapter that a pool has blocks of; may run in a thread.

    Args:
        router: likewise; None where it decides nothing.
        now: Unix seconds.
        admits: whether a tenant may be shown.
        unknown: has what was asked that nobody has; None: nobody keeps that.
        unsaid: of `Patient`, by the base URL of the engine.
        unanswered: of `Examination`, of all tenants.
    """
    kernel = view.kernel
    entries = _entries(kernel)
    served = served_by(router, now)
    capacities = _capacities(router)
    adapters = _unknown_adapters(kernel)
    at_url: dict[str, set[int]] = {}
    for registration in view.registered():
        if registration.http_url:
            at_url.setdefault(registration.http_url, set()).add(registration.dp_rank)
    groups: dict[StreamKey, list[ServiceView]] = {}
    sharers: dict[Scope, set[str]] = {}
    for one in view.services():
        sharers.setdefault(scope_of(one.registration.stream), set()).add(
            one.registration.instance_id
        )
        if admits(one.registration.tenant_id):
            groups.setdefault(one.registration.stream, []).append(one)
    patients = [
        Patient(
            stream,
            sorted(ranks, key=lambda one: one.registration.dp_rank),
            sum(count for _, count in entries.get(stream, ())),
            partial(gpu_share, kernel, entries.get(stream, ())),
            _capacity_blocks(ranks, capacities),
            frozenset(_ranks_of_engine(ranks, at_url)),
            tuple(adapters.get(stream, ())),
            _adapters(entries.get(stream, ())),
            served.get(
                ServedInstance(stream.tenant_id, stream.model_name, stream.instance_id), NOT_SERVED
            ),
            unsaid.get(_base_url(ranks[0].registration), 0),
            _unknown_reads(ranks, sharers[scope_of(stream)]),
        )
        for stream, ranks in sorted(groups.items())
    ]
    asked = [] if unknown is None else unknown.asked(admits)
    return Examination(
        now,
        view.health(),
        patients,
        asked,
        _never_held(kernel, entries, router, now, admits),
        [one for one in unanswered if admits(one.tenant_id)],
    )


def _ranks_of_engine(ranks: list[ServiceView], at_url: Mapping[str, set[int]]) -> Iterator[int]:
    for one in (rank.registration for rank in ranks):
        yield one.dp_rank
        yield from at_url.get(one.http_url, ())


def _base_url(one: Registration) -> str:
    """As the gateway sends requests there."""
    return (one.http_url or one.url).rstrip("/")


def served_by(router: Router | None, now: float) -> Mapping[ServedInstance, RecentTotals]:
    """What outcomes say of each instance: the latest minutes with enough of them to judge by."""
    if router is None:
        return {}
    since = now - DOCTOR_OUTCOMES_S
    return router.folded.read_all(lambda fold: fold.observations.totals.latest(OUTCOMES_MIN, since))


def _never_held(
    kernel: ReadOnlyKernel,
    contexts: Mapping[StreamKey, _Contexts],
    router: Router | None,
    now: float,
    admits: Callable[[str], bool],
) -> list[UnheldBlock]:
    """What prompts begin with that are not tokenized as the engines do it, or salted otherwise."""
    if router is None:
        return []
    scopes = router.folded.read_all(lambda fold: hot_view(fold.observations.hot, now))
    entries: Counter[PrefixScope] = Counter()
    for context, count in chain.from_iterable(contexts.values()):
        entries[context.scope] += count
    found = []
    for decided, hot in sorted(scopes.items()):
        scope = PrefixScope(*decided)
        for one in hot.prefixes:
            if (
                admits(scope.tenant_id)
                and one.blocks == 1
                and one.last_asked > now - DOCTOR_OUTCOMES_S
                and one.checked >= OUTCOMES_MIN
                and not one.confirmed
                and entries[scope]
                and not _is_held(kernel, scope, one.prefix)
            ):
                found.append(
                    UnheldBlock(decided, one.asked, one.checked, one.last_asked, entries[scope])
                )
                break
    return found


def _is_held(kernel: ReadOnlyKernel, scope: PrefixScope, prefix: int) -> bool:
    return any(
        one.longest for one in kernel.query_by_hash(scope, prefix.to_bytes(8, "little"), None)
    )


def facts_of(one: ServiceView) -> EngineFacts | None:
    """What its engine says of itself, as its bridge has told; None where that is not known."""
    said = one.state.confirmation
    return None if said is None else said.facts


def troubles_of(one: ServiceView) -> Troubles:
    """What of it its bridge could not use or reach."""
    said = one.state.confirmation
    return NO_TROUBLES if said is None else said.troubles


def clock_of(one: ServiceView) -> float:
    """How far its clock is behind its bridge's, seconds; 0 where that is not far."""
    said = one.state.confirmation
    return 0.0 if said is None else said.clock_s


def _unknown_adapters(kernel: ReadOnlyKernel) -> dict[StreamKey, list[str]]:
    """By instance, the adapters of which it is not known whether it has loaded them, sorted."""
    found: dict[StreamKey, list[str]] = {}
    for view in kernel.scopes():
        scope = PrefixScope(*view.scope)
        for instance_id in kernel.without_adapter(scope):
            context = ModelContext(*scope, instance_id)
            found.setdefault(context.stream, []).append(scope.lora_name)
    return found


def _entries(kernel: ReadOnlyKernel) -> dict[StreamKey, _Contexts]:
    """The contexts of each stream, with how many entries they have."""
    found: dict[StreamKey, _Contexts] = {}
    for view in kernel.contexts():
        context = ModelContext(*view.context)
        if is_hidden(context.lora_name):  # what no answer counts
            continue
        found.setdefault(context.stream, []).append((context, view.entries))
    return found


def _adapters(contexts: Iterable[tuple[ModelContext, int]]) -> tuple[str, ...]:
    """Those of which there are entries, sorted."""
    return tuple(sorted({context.lora_name for context, entries in contexts if entries} - {""}))


def _unknown_reads(ranks: Iterable[ServiceView], known: Set[str]) -> tuple[str, ...]:
    names = chain.from_iterable(one.registration.reads or () for one in ranks)
    return tuple(sorted(set(names) - known))


def gpu_share(kernel: ReadOnlyKernel, contexts: Iterable[tuple[ModelContext, int]]) -> float:
    """Which share of the entries is on the instance's own GPUs, of the first DOCTOR_ENTRIES_MAX of
    each context. Cost O(entries).
    """
    seen = on_gpu = 0
    for context, _ in contexts:
        dump = kernel.open_dump(context)
        while dump.gather(DOCTOR_ENTRIES_MAX) >= DOCTOR_ENTRIES_MAX:
            pass
        tiers = dump.take(DOCTOR_ENTRIES_MAX)[_TIER_AT::CHANGE_BYTES]
        seen += len(tiers)
        on_gpu += tiers.count(_GPU)
    return on_gpu / seen if seen else 0.0


def _capacities(router: Router | None) -> dict[Target, int]:
    """Tokens that fit into the cache of each rank, as far as its engine has said."""
    if router is None:
        return {}
    return {
        target: carried.sample.kv_capacity_tokens
        for target, carried in router.carried()
        if carried.sample is not None and carried.sample.kv_capacity_tokens
    }


def _capacity_blocks(ranks: Iterable[ServiceView], said: Mapping[Target, int]) -> int:
    total = 0
    for one in ranks:
        registration, facts = one.registration, facts_of(one)
        if facts is not None and facts.blocks:
            total += facts.blocks
            continue
        target = Target(registration.tenant_id, registration.instance_id, registration.dp_rank)
        tokens = said.get(target, registration.kv_capacity_tokens)
        if not tokens:
            return 0
        total += tokens // registration.block_size
    return total


assert SHARED > _GPU, "the tier of an instance's own GPU is below those of shared pools"
