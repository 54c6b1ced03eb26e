"""Answers of the last ROUTE_REPEAT_S that a client may ask for again, by the id of its request."""

from collections import Counter, OrderedDict
from typing import Final, NamedTuple

import msgspec

from routing.bounds import ROUTE_REPEAT_S
from routing.decisions.interface import RoutedDecision, RouteRequest
from routing.request_names import RequestNames
from routing.sizes import decision_bytes, text_bytes
from schemas.limits import MIB

ROUTE_ANSWERS_MAX: Final = 16_384  # kept for that, about 1 KiB each; the oldest goes:
# reprise_routing_forgotten_total{of="answers"}
ROUTE_CANDIDATES_KEPT: Final = 65_536  # with them, some 500 bytes each; likewise
ROUTE_ANSWERS_BYTES_MAX: Final = 64 * MIB  # of them, with all names: likewise
ROUTE_EXPLAINED_MAX: Final = 256  # candidates of an answer that is given again with all of them


class _KeptAnswer(NamedTuple):
    routed: RoutedDecision
    question: tuple[object, ...]
    size_bytes: int


class KeptAnswers:
    """Bounded in number, in candidates and in bytes; the oldest goes."""

    def __init__(self, forgotten: Counter[str] | None = None) -> None:
        """Args:
        forgotten: counts as `answers` those that found no room for as long as they were to be
            given again.
        """
        self._forgotten = Counter() if forgotten is None else forgotten
        self._answers: OrderedDict[tuple[str, str], _KeptAnswer] = OrderedDict()
        self._numbers: RequestNames[int] = RequestNames()
        self._candidates = self._bytes = 0

    def find(self, asked: RouteRequest, now: float) -> tuple[RoutedDecision, bool] | None:
        """What was answered to a request of that id, and whether it asked for the same."""
        found = self._answers.get((asked.scope.tenant_id, asked.request_id))
        if found is None or now - found.routed.decision.time > ROUTE_REPEAT_S:
            return None
        return found.routed, found.question == _question_of(asked)

    def keep(self, asked: RouteRequest, routed: RoutedDecision) -> None:
        """For when the request comes again; what is too old goes, as does what has no room."""
        now, decision = routed.decision.time, routed.decision
        if not asked.explain or len(decision.candidates) > ROUTE_EXPLAINED_MAX:
            routed = _without_others(routed)
        name = (asked.scope.tenant_id, decision.request_id)
        self._forget(name)
        size = _size_of(routed)
        self._answers[name] = _KeptAnswer(routed, _question_of(asked), size)
        self._bytes += size
        self._numbers.put(name[1], name[0], decision.number)
        self._candidates += len(routed.decision.candidates)
        while len(self._answers) > 1:
            oldest, first = next(iter(self._answers.items()))
            is_old = now - first.routed.decision.time > ROUTE_REPEAT_S
            if not (is_old or self._is_over):
                break
            self._forget(oldest)
            self._forgotten["answers"] += not is_old

    @property
    def _is_over(self) -> bool:
        if len(self._answers) > ROUTE_ANSWERS_MAX or self._bytes > ROUTE_ANSWERS_BYTES_MAX:
            return True
        return self._candidates > ROUTE_CANDIDATES_KEPT

    def number_of(self, request_id: str, tenant_id: str | None) -> int | None:
        """The decision of that request; of no tenant: whosever it is, if it is one tenant's."""
        return self._numbers.find(request_id, tenant_id)

    def has(self, request_id: str) -> bool:
        """Whether an answer to that request is kept, whosever it is."""
        return bool(self._numbers.by_tenant(request_id))

    def forget_number(self, number: int) -> None:
        """That decision is not given again. Cost O(answers that are kept)."""
        for name, kept in self._answers.items():
            if kept.routed.decision.number == number:
                self._forget(name)
                return

    def _forget(self, name: tuple[str, str]) -> None:
        kept = self._answers.pop(name, None)
        if kept is None:
            return
        self._candidates -= len(kept.routed.decision.candidates)
        self._bytes -= kept.size_bytes
        self._numbers.discard(name[1], name[0], kept.routed.decision.number)


def _size_of(routed: RoutedDecision) -> int:
    """Bytes, about."""
    return decision_bytes(routed.decision) + text_bytes(*routed.endpoints)


def _question_of(asked: RouteRequest) -> tuple[object, ...]:
    """What makes two requests of one id the same."""
    names = None
    if asked.candidates is not None:
        names = hash(tuple((one.instance_id, one.dp_rank) for one in asked.candidates))
    return asked.scope, asked.prompt_tokens, asked.prefixes[-8:], asked.phase, names


def _without_others(routed: RoutedDecision) -> RoutedDecision:
    """With the candidates alone that were chosen: what the answer needs without `explain`."""
    decision = routed.decision
    places = sorted({place for place in (decision.chosen, decision.decode) if place >= 0})
    decision = msgspec.structs.replace(
        decision,
        candidates=tuple(decision.candidates[place] for place in places),
        chosen=places.index(decision.chosen) if decision.chosen >= 0 else -1,
        decode=places.index(decision.decode) if decision.decode >= 0 else -1,
        marks=(),
    )
    endpoints = tuple(routed.endpoints[place] for place in places)
    return routed._replace(decision=decision, endpoints=endpoints)
