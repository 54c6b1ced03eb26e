"""Answers of the last ROUTE_REPEAT_S that a client may ask for again, by the id of its request."""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple, Self

import msgspec

from routing.bounds import ROUTE_ANSWERS_BYTES_MAX, ROUTE_ANSWERS_MAX, ROUTE_REPEAT_S
from routing.decisions.fetch_hint import KvHints
from routing.decisions.interface import OfferedCandidate, RoutedDecision, RouteRequest
from routing.fold.booking import DecisionKey
from routing.policies.chunk_plan import ChunkPlan
from routing.request_names import RequestNames
from routing.sizes import decision_bytes, text_bytes
from schemas.identities import PrefixScope
from schemas.routing_records import Decision, Phase

ROUTE_CANDIDATES_KEPT: Final = 65_536  # with them, some 500 bytes each; of="answers"
ROUTE_EXPLAINED_MAX: Final = 256  # candidates of an answer that is given again with all of them


class Question(msgspec.Struct, frozen=True, gc=False):
    """What makes two requests of one id the same.

    Attributes:
        prefix: hash of the prompt's last whole block, u64 LE.
        names: a hash of the candidates that it names; None: it names none.
    """

    scope: PrefixScope
    prompt_tokens: int
    prefix: bytes
    phase: Phase
    names: int | None


class _Encoded(NamedTuple):
    decision: Decision
    retry_after_s: float
    load_age_s: float | None
    endpoints: tuple[str, ...]


class _KeptAnswer(msgspec.Struct, frozen=True, gc=False):
    """Encoded: of 16,384 that are twenty objects each, the garbage collector holds up all threads
    for 200 ms when it comes to look at them.
    """

    key: DecisionKey
    time: float
    candidates: int
    question: Question
    size_bytes: int
    encoded: bytes
    plan: ChunkPlan | None
    hint: KvHints | None

    @classmethod
    def of(cls, routed: RoutedDecision, question: Question) -> Self:
        """As it is kept."""
        run, decision, after_s, age_s, endpoints, plan, hint = routed
        return cls(
            (run, decision.number),
            decision.time,
            len(decision.candidates),
            question,
            decision_bytes(decision) + text_bytes(*endpoints),
            _encode(_Encoded(decision, after_s, age_s, endpoints)),
            plan,
            hint,
        )

    @property
    def routed(self) -> RoutedDecision:
        """As it was answered. Cost of decoding it, some us."""
        return RoutedDecision(self.key[0], *_decode(self.encoded), self.plan, self.hint)


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Encoded).decode


class KeptAnswers:
    """Bounded in number, in candidates and in bytes; the oldest goes. O(1) each.

    Attributes:
        when_dropped: called with tenant and id of each request whose answer found no room.
    """

    def __init__(self, forgotten: Counter[str] | None = None) -> None:
        """Args:
        forgotten: counts as `answers` those that found no room for as long as they were to be
            given again.
        """
        self._forgotten = Counter() if forgotten is None else forgotten
        self._answers: OrderedDict[tuple[str, str], _KeptAnswer] = OrderedDict()
        self._names: dict[DecisionKey, tuple[str, str]] = {}
        self._numbers: RequestNames[DecisionKey] = RequestNames()
        self._candidates = self._bytes = 0
        self.when_dropped: Callable[[str, str], None] = lambda tenant_id, request_id: None

    def find(self, asked: RouteRequest, now: float) -> tuple[RoutedDecision, bool] | None:
        """What was answered to a request of that id, and whether it asked for the same."""
        found = self._answers.get((asked.scope.tenant_id, asked.request_id))
        if found is None or now - found.time > ROUTE_REPEAT_S:
            return None
        return found.routed, found.question == _question_of(asked)

    def keep(self, asked: RouteRequest, routed: RoutedDecision) -> None:
        """For when the request comes again; what is too old goes, as does what has no room."""
        if not asked.explain or len(routed.decision.candidates) > ROUTE_EXPLAINED_MAX:
            routed = _without_others(routed)
        self._keep(_question_of(asked), routed)

    def keep_chosen(
        self,
        question: Question,
        run: int,
        decision: Decision,
        endpoint: str,
        load_age_s: float | None,
    ) -> None:
        """The same of a decision of the kernel, which has chosen one that computes and decodes: it
        has that one alone.
        """
        self._keep(question, RoutedDecision(run, decision, 0.0, load_age_s, (endpoint,)))

    def _keep(self, question: Question, routed: RoutedDecision) -> None:
        now, decision = routed.decision.time, routed.decision
        name = (decision.scope.tenant_id, decision.request_id)
        self._forget(name)
        self._answers[name] = kept = _KeptAnswer.of(routed, question)
        self._bytes += kept.size_bytes
        self._numbers.put(name[1], name[0], kept.key)
        self._names[kept.key] = name
        self._candidates += kept.candidates
        while len(self._answers) > 1:
            oldest, first = next(iter(self._answers.items()))
            is_old = now - first.time > ROUTE_REPEAT_S
            if not (is_old or self._is_over):
                break
            self._forget(oldest)
            if not is_old:
                self._forgotten["answers"] += 1
                self.when_dropped(*oldest)

    @property
    def _is_over(self) -> bool:
        if len(self._answers) > ROUTE_ANSWERS_MAX or self._bytes > ROUTE_ANSWERS_BYTES_MAX:
            return True
        return self._candidates > ROUTE_CANDIDATES_KEPT

    def key_of(self, request_id: str, tenant_id: str | None) -> DecisionKey | None:
        """The decision of that request; of no tenant: whosever it is, if it is one tenant's."""
        return self._numbers.find(request_id, tenant_id)

    def has(self, request_id: str) -> bool:
        """Whether an answer to that request is kept, whosever it is."""
        return bool(self._numbers.by_tenant(request_id))

    def forget(self, key: DecisionKey) -> tuple[str, str] | None:
        """That decision is not given again; tenant and id of its request, where it was kept."""
        name = self._names.get(key)
        if name is not None:
            self._forget(name)
        return name

    def _forget(self, name: tuple[str, str]) -> None:
        kept = self._answers.pop(name, None)
        if kept is None:
            return
        self._candidates -= kept.candidates
        self._bytes -= kept.size_bytes
        del self._names[kept.key]
        self._numbers.discard(name[1], name[0], kept.key)


def names_of(candidates: tuple[OfferedCandidate, ...] | None) -> int | None:
    """A hash of candidates that a request names; see `Question`."""
    if candidates is None:
        return None
    return hash(tuple((one.instance_id, one.dp_rank) for one in candidates))


def _question_of(asked: RouteRequest) -> Question:
    names = names_of(asked.candidates)
    return Question(asked.scope, asked.prompt_tokens, asked.prefixes[-8:], asked.phase, names)


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
