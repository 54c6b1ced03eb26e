"""Which instances there are for a model, and what is known of them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from query_api.ports import SegmentView, ServiceView, View
from routing.bounds import REQUEST_STAY_S, TARGETS_KEPT_S
from routing.costs import Costs
from routing.decisions.folded_routing import FoldedRouting
from routing.estimates.classes import CLASS_LABEL, ClassKey
from routing.estimates.decode import (
    OUTPUT_TOKEN_SECONDS_FIRST,
    OUTPUT_TOKENS_FIRST,
    DecodeTerms,
)
from routing.fold.fold import RoutingFold
from schemas.answer_states import DAMAGED_ROWS, LOST_BATCHES, AnswerState, Doubt
from schemas.identities import PublisherKey
from schemas.memory_segments import SegmentStanding
from schemas.registration import Registration
from schemas.routing_records import LoadSample, Target, UnregisteredEngine

ROSTERS_KEPT: Final = 256  # lists of candidates that requests have named, for TARGETS_KEPT_S

_AWAY: Final = frozenset({Doubt.LINK_DOWN, Doubt.LINK_SILENT, Doubt.ENGINE_AWAY, Doubt.NO_ENDPOINT})
OUTPUT_TOKENS: Final = round(OUTPUT_TOKENS_FIRST)
"""What a request is expected to have, where nothing is known."""

_NO_LABELS: Final[Mapping[str, str]] = {}

ModelKey = tuple[str, str]
"""Tenant and model."""

RankKey = tuple[str, int]
"""Instance and data-parallel rank."""


class KnownTarget(NamedTuple):
    """A rank of an instance, as registered.

    Attributes:
        endpoint: where its requests go, or "".
        role: which phases it takes: `combined`, `prefill` or `decode`.
        labels: of its registration.
        is_reachable: whether its publisher is there.
        is_degraded: whether it has lost something.
        is_sure: whether nothing is doubted of what it holds, but what outcomes contradict: its own
            publisher, and those that say something of all instances of the model, are confirmed.
        doubts_adapters: whether what it holds under an adapter is doubted all the same.
        class_name: who takes the same time for the same work; "" for one of its own.
        kv_bytes: of a token; 0 where that is not known.
        requests_max: that it computes at once; 0 where that is not known.
        capacity_tokens: of its KV cache; likewise.
        costs: what things take there, as outcomes have taught; None: as is set.
        p90: see `routing.estimates.estimates.Estimates.p90`.
        decode_terms: what decoding takes there.
        is_approximate: whether only decisions say what it holds: it publishes no events, or nobody
            has registered it.
        pressure: of the memory that its KV cache is in, as kvcached says; 1 is full.
    """

    endpoint: str = ""
    role: str = "combined"
    labels: Mapping[str, str] = _NO_LABELS
    is_reachable: bool = True
    is_degraded: bool = False
    class_name: str = ""
    kv_bytes: int = 0
    requests_max: int = 0
    capacity_tokens: int = 0
    costs: Costs | None = None
    p90: float = 1.0
    decode_terms: DecodeTerms = DecodeTerms()
    is_approximate: bool = False
    pressure: float = 0.0
    is_sure: bool = False
    doubts_adapters: bool = False

    def with_sample(self, sample: LoadSample | None) -> tuple[int, float, bool]:
        """How many wait there, the share of its KV cache that is used, and whether it is there: as
        registered, and by its own word.
        """
        if sample is None:
            return 0, self.pressure, self.is_reachable
        usage = max(self.pressure, sample.kv_usage or 0.0)
        return sample.waiting or 0, usage, self.is_reachable and not sample.is_away


UNKNOWN: Final = KnownTarget(is_approximate=True)
"""A candidate that nobody has registered."""


class Roster(NamedTuple):
    """The targets of one model.

    Attributes:
        known: by instance and rank.
        keys: sorted.
        targets, entries, endpoints, roles: in the order of the keys.
        output_tokens: that a request of the model is expected to have.
        output_token_s: seconds for each of them.
        stay_s: how long it is there behind its first token, as outcomes say.
    """

    known: Mapping[RankKey, KnownTarget]
    ranks: Mapping[str, frozenset[int]]
    keys: tuple[RankKey, ...]
    targets: tuple[Target, ...]
    entries: tuple[KnownTarget, ...]
    endpoints: tuple[str, ...]
    roles: tuple[str, ...]
    output_tokens: int = OUTPUT_TOKENS
    output_token_s: float = OUTPUT_TOKEN_SECONDS_FIRST
    stay_s: float = REQUEST_STAY_S


def roster_of(
    tenant_id: str,
    known: Mapping[RankKey, KnownTarget],
    output_tokens: int = OUTPUT_TOKENS,
    output_token_s: float = OUTPUT_TOKEN_SECONDS_FIRST,
    stay_s: float = REQUEST_STAY_S,
) -> Roster:
    """The roster of these. Cost O(targets log(targets))."""
    keys = tuple(sorted(known))
    entries = tuple(known[key] for key in keys)
    ranks: dict[str, set[int]] = {}
    for name, rank in keys:
        ranks.setdefault(name, set()).add(rank)
    return Roster(
        known,
        {name: frozenset(each) for name, each in ranks.items()},
        keys,
        tuple(Target(tenant_id, *key) for key in keys),
        entries,
        tuple(one.endpoint for one in entries),
        tuple(one.role for one in entries),
        output_tokens,
        output_token_s,
        stay_s,
    )


LabelOverrides = tuple[tuple[RankKey, tuple[tuple[str, str], ...]], ...]
"""Labels of candidates, as a request has them, sorted."""


class Targets:
    """All registered targets by model; looked at again after TARGETS_KEPT_S, which costs
    O(publishers).
    """

    def __init__(
        self, view: View, folded: FoldedRouting, costs: Costs, clock: Callable[[], float]
    ) -> None:
        """Args:
        folded: that has learned what things take.
        costs: what things are set to take.
        clock: monotonic seconds.
        """
        self._view = view
        self._folded = folded
        self._costs = costs
        self._clock = clock
        self._until = float("-inf")
        self._by_model: dict[ModelKey, Roster] = {}
        self._offered: dict[tuple[ModelKey, tuple[RankKey, ...], LabelOverrides], Roster] = {}

    def of_model(self, tenant_id: str, model_name: str) -> Roster:
        """Those of a model."""
        now = self._clock()
        if now >= self._until:
            found = _by_model(self._view.services(), _pressures(self._view.memory()))
            self._by_model = self._folded.read(
                lambda fold: {key: self._learned(key, one, fold) for key, one in found.items()}
            )
            self._offered.clear()
            self._until = now + TARGETS_KEPT_S
        return self._by_model.get((tenant_id, model_name), _EMPTY)

    def offered(
        self, tenant_id: str, model_name: str, keys: tuple[RankKey, ...], said: LabelOverrides = ()
    ) -> Roster:
        """Of these alone, some of whom nobody may have registered. Cost O(1) where they were asked
        for within TARGETS_KEPT_S. What is `said` are labels of some of them, which count in place
        of those that were registered.
        """
        of_model = self.of_model(tenant_id, model_name)
        name = ((tenant_id, model_name), keys, said)
        found = self._offered.get(name)
        if found is None:
            anew = {key: UNKNOWN for key in keys if key not in of_model.known}
            for key, pairs in said:
                labels = dict(pairs)
                one = of_model.known.get(key, UNKNOWN)
                anew[key] = one._replace(labels=labels, class_name=labels.get(CLASS_LABEL, ""))
            learned = self._folded.read(lambda fold: self._learned(name[0], anew, fold))
            known = {key: learned.known.get(key) or of_model.known[key] for key in keys}
            means = (learned.output_tokens, learned.output_token_s, learned.stay_s)
            found = roster_of(tenant_id, known, *means)
            if len(self._offered) < ROSTERS_KEPT:
                self._offered[name] = found
        return found

    def _learned(
        self, model: ModelKey, known: dict[RankKey, KnownTarget], fold: RoutingFold
    ) -> Roster:
        """With what is learned of each class."""
        estimates, links = fold.estimates, fold.estimates.links(model[0])
        for rank, one in known.items():
            key = ClassKey(*model, one.class_name or rank[0])
            costs = estimates.costs(key, self._costs)
            if one.kv_bytes:
                costs = links.costs(costs, one.kv_bytes)
            known[rank] = one._replace(
                costs=None if costs == self._costs else costs,
                p90=estimates.p90(key),
                decode_terms=estimates.decode_terms(key, DecodeTerms()),
            )
        tokens, token_s = estimates.output_tokens(*model), estimates.output_token_s(*model)
        stay_s = estimates.known_decode_s(*model)
        stay_s = REQUEST_STAY_S if stay_s is None else stay_s
        return roster_of(model[0], known, round(tokens), token_s, stay_s)


_EMPTY: Final = roster_of("", {})


def _pressures(segments: list[SegmentView]) -> dict[PublisherKey, float]:
    """Of the publishers whose memory was read not long ago."""
    found: dict[PublisherKey, float] = {}
    for segment in segments:
        if segment.standing is SegmentStanding.LIVE:
            for one in segment.instances:
                known = found.get(one.publisher, 0.0)
                found[one.publisher] = max(known, segment.state.pressure)
    return found


def _by_model(
    services: list[ServiceView], pressures: Mapping[PublisherKey, float]
) -> dict[ModelKey, dict[RankKey, KnownTarget]]:
    found: dict[ModelKey, dict[RankKey, KnownTarget]] = {}
    shared: dict[ModelKey, dict[str, bool]] = {}  # who shares blocks, and whether that is sure
    doubted: set[ModelKey] = set()  # of which somebody doubts what others share
    for service in filter(_concerns_all, services):
        of_model = shared.setdefault(_model_of(service), {})
        name, is_sure = service.registration.shared_as, _is_sure(service)
        of_model[name] = of_model.get(name, True) and is_sure
        if service.state.doubts_others and not is_sure:
            doubted.add(_model_of(service))
    sure = {model: all(of_model.values()) for model, of_model in shared.items()}
    for service in services:
        one = service.registration
        if not _is_engine(one):
            continue
        ranks = found.setdefault(_model_of(service), {})
        key = (one.instance_id, one.dp_rank)
        known = _known(service, pressures.get(one.publisher, 0.0))
        of_model, is_sure = shared.get(_model_of(service), {}), sure.get(_model_of(service), True)
        if one.reads is not None:
            names = of_model.keys() & {one.instance_id, *one.reads}
            of_model = {name: of_model[name] for name in names}
            is_sure = all(of_model.values()) and not (of_model and _model_of(service) in doubted)
        known = known._replace(
            is_sure=known.is_sure and is_sure,
            # Which adapters of a pool's blocks it has loaded is not known.
            doubts_adapters=known.doubts_adapters or (not one.lora_name and bool(of_model)),
        )
        before = ranks.get(key)
        if before is not None:  # of another block size or salt: the same engine
            known = known._replace(
                is_reachable=known.is_reachable or before.is_reachable,
                is_degraded=known.is_degraded or before.is_degraded,
                is_approximate=known.is_approximate and before.is_approximate,
                is_sure=known.is_sure and before.is_sure,
                doubts_adapters=known.doubts_adapters or before.doubts_adapters,
            )
        ranks[key] = known
    return found


def _model_of(service: ServiceView) -> ModelKey:
    return service.registration.tenant_id, service.registration.model_name


def _concerns_all(service: ServiceView) -> bool:
    """Whether instances may hold what it says, or does not say."""
    return service.state.concerns_all or not _is_engine(service.registration)


def _is_sure(service: ServiceView) -> bool:
    standing = service.standing
    return standing.state is AnswerState.EXACT or standing.reason == Doubt.OUTCOMES_DIFFER


def _is_engine(registration: Registration) -> bool:
    """Whether requests can be sent to it: stores and workers of LMCache take none."""
    one = registration
    return not (one.is_pool or one.peer_url or one.registered_at)


def unregistered_of(
    gone: Iterable[Registration], registered: Iterable[Registration]
) -> list[UnregisteredEngine]:
    """Which engines serve a model no more: what was sent there counts no more, for it may be
    another process that is registered under that name next.

    Args:
        gone: what was unregistered.
        registered: what is, which may have those still: an engine may be registered for other
            block sizes and salts, too.
    """
    gone = list(gone)
    publishers = {one.publisher for one in gone}
    left = {_serving(one) for one in registered if one.publisher not in publishers}
    found = dict.fromkeys(_serving(one) for one in gone if _is_engine(one))
    return [one for one in found if one not in left]


def _serving(one: Registration) -> UnregisteredEngine:
    return UnregisteredEngine(Target(one.tenant_id, one.instance_id, one.dp_rank), one.model_name)


def _known(service: ServiceView, pressure: float) -> KnownTarget:
    one, standing = service.registration, service.standing
    away = service.connected is False or standing.reason in _AWAY
    labels = {label.name: label.value for label in one.labels}
    return KnownTarget(
        one.http_url or one.url,
        one.role,
        labels,
        is_reachable=not away,
        # Blocks that are left out make it hold more than is known, never less.
        is_degraded=standing.reason in (LOST_BATCHES, DAMAGED_ROWS),
        class_name=labels.get(CLASS_LABEL, ""),
        kv_bytes=one.kv_bytes_per_token,
        requests_max=one.max_num_seqs,
        capacity_tokens=one.kv_capacity_tokens,
        is_approximate=not one.has_events,
        pressure=pressure,
        is_sure=_is_sure(service),
        doubts_adapters=one.reloads_adapters,
    )
