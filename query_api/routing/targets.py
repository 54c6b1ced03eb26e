"""Which instances there are for a model, and what is known of them."""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from query_api.ports import ServiceView, View
from schemas.answer_states import AnswerState, Doubt
from schemas.limits import TARGETS_KEPT_S
from schemas.registration import Registration
from schemas.routing_records import Target

_AWAY: Final = frozenset({Doubt.LINK_DOWN, Doubt.ENGINE_AWAY, Doubt.NO_ENDPOINT})
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
    """

    endpoint: str = ""
    role: str = "combined"
    labels: Mapping[str, str] = _NO_LABELS
    is_reachable: bool = True
    is_degraded: bool = False


UNKNOWN: Final = KnownTarget()
"""A candidate that nobody has registered."""


class Roster(NamedTuple):
    """The targets of one model.

    Attributes:
        known: by instance and rank.
        ranks: of each instance.
        keys: sorted.
        targets: in the order of the keys.
    """

    known: Mapping[RankKey, KnownTarget]
    ranks: Mapping[str, frozenset[int]]
    keys: tuple[RankKey, ...]
    targets: tuple[Target, ...]


def roster_of(tenant_id: str, known: Mapping[RankKey, KnownTarget]) -> Roster:
    """The roster of these. Cost O(targets log(targets))."""
    keys = tuple(sorted(known))
    ranks: dict[str, set[int]] = {}
    for name, rank in keys:
        ranks.setdefault(name, set()).add(rank)
    return Roster(
        known,
        {name: frozenset(each) for name, each in ranks.items()},
        keys,
        tuple(Target(tenant_id, *key) for key in keys),
    )


class Targets:
    """All registered targets by model; looked at again after TARGETS_KEPT_S, which costs
    O(publishers).
    """

    def __init__(self, view: View, clock: Callable[[], float]) -> None:
        """Args:
        view: that knows them.
        clock: monotonic seconds.
        """
        self._view = view
        self._clock = clock
        self._until = float("-inf")
        self._by_model: dict[ModelKey, Roster] = {}

    def of_model(self, tenant_id: str, model_name: str) -> Roster:
        """Those of a model."""
        now = self._clock()
        if now >= self._until:
            found = _by_model(self._view.services())
            self._by_model = {key: roster_of(key[0], known) for key, known in found.items()}
            self._until = now + TARGETS_KEPT_S
        return self._by_model.get((tenant_id, model_name), _EMPTY)


_EMPTY: Final = roster_of("", {})


def _by_model(services: list[ServiceView]) -> dict[ModelKey, dict[RankKey, KnownTarget]]:
    found: dict[ModelKey, dict[RankKey, KnownTarget]] = {}
    for service in services:
        one = service.registration
        if one.is_pool or not _is_engine(one):
            continue
        ranks = found.setdefault((one.tenant_id, one.model_name), {})
        key = (one.instance_id, one.dp_rank)
        known = _known(service)
        before = ranks.get(key)
        if before is not None:  # of another block size or salt: the same engine
            known = known._replace(
                is_reachable=known.is_reachable or before.is_reachable,
                is_degraded=known.is_degraded or before.is_degraded,
            )
        ranks[key] = known
    return found


def _is_engine(registration: Registration) -> bool:
    """Whether requests can be sent to it: stores and workers of LMCache take none."""
    return not registration.peer_url and not registration.registered_at


def _known(service: ServiceView) -> KnownTarget:
    one, standing = service.registration, service.standing
    away = service.connected is False or standing.reason in _AWAY
    return KnownTarget(
        one.http_url,
        is_reachable=not away,
        is_degraded=standing.state is AnswerState.DEGRADED,
    )
