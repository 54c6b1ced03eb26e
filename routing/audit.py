"""Proof of decisions: each is derived again from its record alone, and compared bit for bit.

A record has what the policy saw: the request, each candidate with its match and its load, the cost
models, the policy and its parameters. What left candidates out stands in their reasons, as a word:
that is taken as it is. What the policy made of the others is computed anew: who was left out by the
policy or by the objective, keys, terms, order, the choice.

Who decodes (`phase` decode or pair) hangs on more than a record has: there the candidates for the
prompt are derived, and of the choice what follows from these.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from logs.interface import LogEntry
from routing.costs import Costs
from routing.interface import Candidate, Choice, Request
from routing.log.declaration import ROUTING
from routing.policies.decide import (
    DecisionRequest,
    DecisionResult,
    DegradedPolicy,
    Rules,
    costs_of_model,
    decide,
    terms_of,
    total_s,
    with_terms,
)
from routing.policies.ranking import tie_of
from routing.policies.table import PolicyError, find_policy, parse_policy
from schemas.codec import decode_routing
from schemas.errors import DamagedError, RecordError, StorageError
from schemas.identities import Offset
from schemas.limits import AUDIT_SHOWN_MAX
from schemas.routing_records import (
    CandidateRecord,
    Decision,
    DecisionsRecord,
    Phase,
    Reason,
    Refusal,
    decision_id,
)

_ENDLESS: Final = float("inf")
_FLOAT: Final = struct.Struct("<d")
_DECODES: Final = frozenset({Phase.DECODE, Phase.PAIR})


class Difference(NamedTuple):
    """One value of a record that is not what follows from the others.

    Attributes:
        field: which; `candidates[2].key`.
        said, found: in the record, and derived again.
    """

    field: str
    said: object
    found: object


class DecisionDisagreement(NamedTuple):
    """A decision that does not follow from its record.

    Attributes:
        name: its `decision_id`.
        policy: that it names.
        differences: at least one.
    """

    name: str
    offset: int
    policy: str
    differences: list[Difference]


class VerifiedDecisions:
    """What came of all decisions.

    Attributes:
        decisions: that were read.
        agreed, disagreed: of these.
        decoding: of those that agreed, whose choice of a decoder is taken as it stands.
        unreadable: records that are none, or a newer Reprise's; and the first one's reason.
        shown: those that disagree, at most `AUDIT_SHOWN_MAX`.
    """

    def __init__(self) -> None:
        self.decisions = self.agreed = self.disagreed = self.decoding = self.unreadable = 0
        self.unreadable_reason = ""
        self.shown: list[DecisionDisagreement] = []

    @property
    def is_proven(self) -> bool:
        """Whether nothing disagrees, and everything could be read."""
        return not self.disagreed and not self.unreadable

    def take(self, entry: LogEntry) -> None:
        """Verifies the decisions of one record of the routing log. Cost O(its candidates)."""
        try:
            record = decode_routing(entry.value)
        except RecordError as error:
            self.unreadable += 1
            reason = f"record {entry.offset} of the routing log: {error}"
            self.unreadable_reason = self.unreadable_reason or reason
            return
        if not isinstance(record, DecisionsRecord):
            return
        for decision in record.decisions:
            self._take(record.run, decision, entry.offset)

    def cut(self, start: int, end: int, error: StorageError) -> None:
        """The records from `start` to before `end` cannot be read, by what the log says."""
        self.unreadable += max(end - start, 1)
        reason = f"from record {start} of the routing log on: {error}"
        self.unreadable_reason = self.unreadable_reason or reason

    def _take(self, run: int, decision: Decision, offset: int) -> None:
        self.decisions += 1
        try:
            differences = differences_of(run, decision)
        except (ArithmeticError, ValueError, LookupError) as error:  # no service has written that
            differences = [
                Difference("record", "a decision", f"nothing follows from it: {error!r}")
            ]
        if not differences:
            self.agreed += 1
            self.decoding += decision.phase in _DECODES
            return
        self.disagreed += 1
        if len(self.shown) < AUDIT_SHOWN_MAX:
            name = decision_id(run, decision.number)
            found = DecisionDisagreement(name, offset, decision.policy, differences)
            self.shown.append(found)


def differences_of(run: int, decision: Decision) -> list[Difference]:
    """What of a record does not follow from the rest of it; [] for a decision that is proven.

    Args:
        run: of the service that decided.
        decision: as its record has it.

    Cost: of the decision.
    """
    tie = tie_of(run, decision.number)
    if decision.tie != tie:
        return [Difference("tie", decision.tie, tie)]
    try:
        name, parameters = parse_policy(decision.policy)
    except PolicyError as error:
        return [Difference("policy", decision.policy, str(error))]
    wrong = _unusable(decision)
    if wrong is not None:
        return [wrong]
    policy = find_policy(name)
    asked = DecisionRequest(
        Request(
            decision.number,
            decision.prompt_tokens,
            decision.tie,
            decision.class_tokens,
            decision.is_hot,
        ),
        policy.rank,
        parameters,
        decision.ttft_slo_s,
        last=decision.last,
        in_seconds=policy.in_seconds,
    )
    models = [costs_of_model(model) for model in decision.costs]
    candidates = [_candidate(one, models) for one in decision.candidates]
    found: list[Difference] = []
    for degraded in _possible(decision.degraded):
        rules = Rules(degraded, kv_usage_max=0.5, wait_max_s=_ENDLESS, waiting_max=0)
        for seen in _as_seen(decision, candidates):
            decided = decide(asked._replace(rules=rules), seen, models[0])
            found = list(_differences(decision, decided, candidates, models[0]))
            if not found:
                return []
    return found


def _unusable(decision: Decision) -> Difference | None:
    """What no decision can be derived from."""
    models, count = len(decision.costs), len(decision.candidates)
    if not models:
        return Difference("costs", 0, "at least one")
    for place, one in enumerate(decision.candidates):
        if one.costs >= models:
            return Difference(f"candidates[{place}].costs", one.costs, f"below {models}")
    for field in ("chosen", "decode"):
        if getattr(decision, field) >= count:
            return Difference(field, getattr(decision, field), f"below {count}")
    if decision.degraded and decision.degraded not in tuple(DegradedPolicy):
        return Difference("degraded", decision.degraded, f"one of {', '.join(DegradedPolicy)}")
    return None


def _possible(degraded: str) -> Iterable[DegradedPolicy]:
    """What was made of candidates that had lost something; all, where a record does not say."""
    return (DegradedPolicy(degraded),) if degraded else tuple(DegradedPolicy)


def _as_seen(decision: Decision, candidates: list[Candidate]) -> Iterable[Sequence[Candidate]]:
    """The candidates as the policy may have seen them. Where the one that decodes also computes the
    prompt, its record has no reasons: it may have been left out, or have lost something.
    """
    yield candidates
    place = decision.chosen
    if decision.phase is Phase.PAIR and place >= 0 and decision.decode < 0:
        one = candidates[place]
        for changed in (one._replace(is_allowed=False), one._replace(is_degraded=True)):
            yield [*candidates[:place], changed, *candidates[place + 1 :]]


def _candidate(one: CandidateRecord, models: Sequence[Costs]) -> Candidate:
    """As the policy saw it."""
    return Candidate(
        one.instance_id,
        one.cached,
        one.gpu,
        one.wait_s,
        one.cached - one.cpu,
        one.requests,
        one.pending,
        one.active,
        one.shared,
        models[one.costs] if one.costs else None,
        one.dp_rank,
        int(Reason.QUEUE_FULL in one.reasons),
        float(Reason.MEMORY in one.reasons),
        Reason.NOT_ALLOWED not in one.reasons,
        Reason.UNREACHABLE not in one.reasons,
        Reason.DEGRADED in one.reasons,
        one.predicted,
        Reason.FAILING in one.reasons,
        one.others,
    )


def _differences(
    decision: Decision, decided: DecisionResult, candidates: Sequence[Candidate], costs: Costs
) -> Iterable[Difference]:
    decodes = decision.phase in _DECODES
    derived = list(decided.candidates)
    chosen, predicted = decided.chosen, decided.predicted_s
    if decision.phase is Phase.PAIR and chosen >= 0 and decision.chosen not in (-1, chosen):
        # The one that decodes computes the prompt itself.
        chosen = decision.chosen
        one = candidates[chosen]
        terms = terms_of(Choice(0.0, one, one.cached), decision.prompt_tokens, one.costs or costs)
        derived[chosen] = with_terms(derived[chosen], one.cached, terms)
        predicted = total_s(terms)
    for place, (said, found) in enumerate(zip(decision.candidates, derived, strict=True)):
        yield from _of_candidate(place, said, found, with_tbt=not decodes)
    if decided.costs != decision.costs:
        yield Difference("costs", decision.costs, decided.costs)
    if not _same(decision.predicted_s, predicted):
        yield Difference("predicted_s", decision.predicted_s, predicted)
    if decodes:
        yield from _of_decoding(decision, decided)
        return
    if decision.chosen != chosen:
        yield Difference("chosen", decision.chosen, chosen)
    if decision.refused != decided.refused:
        yield Difference("refused", decision.refused.value, decided.refused.value)
    if decision.decode != -1:
        yield Difference("decode", decision.decode, -1)


def _of_candidate(
    place: int, said: CandidateRecord, found: CandidateRecord, *, with_tbt: bool
) -> Iterable[Difference]:
    for field in CandidateRecord.__struct_fields__:
        if field == "tbt_s" and not with_tbt:
            continue
        one, other = getattr(said, field), getattr(found, field)
        if not _same(one, other):
            yield Difference(f"candidates[{place}].{field}", one, other)


def _of_decoding(decision: Decision, decided: DecisionResult) -> Iterable[Difference]:
    """What is known of a decision by which somebody decodes."""
    if decision.phase is Phase.DECODE:
        if decision.chosen != -1:
            yield Difference("chosen", decision.chosen, -1)
    elif decided.chosen < 0 and (decision.chosen, decision.decode) != (-1, -1):
        yield Difference("chosen", decision.chosen, -1)
    elif decided.chosen < 0 and decision.refused != decided.refused:
        yield Difference("refused", decision.refused.value, decided.refused.value)
    somebody = decision.chosen >= 0 or decision.decode >= 0
    if somebody != (decision.refused is Refusal.NO):
        yield Difference("refused", decision.refused.value, "one where nobody was chosen")


def _same(one: object, other: object) -> bool:
    """Whether they are equal bit for bit: 0.0 is not -0.0."""
    if isinstance(one, float) and isinstance(other, float):
        return _FLOAT.pack(one) == _FLOAT.pack(other)
    return one == other


def verify_decisions(
    data: Path, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> VerifiedDecisions:
    """Verifies the decisions in a data directory, beside a running service or not. One that has no
    routing log has none.

    Raises:
        StorageError: it is in no state to be opened. What is damaged of it is `unreadable`.
    """
    verified = VerifiedDecisions()
    if not ROUTING.path_in(data).exists():
        return verified
    try:
        log = ROUTING.read_only(data)
    except DamagedError as error:
        verified.cut(0, 1, error)
        return verified
    with closing(log):
        following = log.complete_from
        try:
            for entry in log.read(Offset(0)):
                verified.take(entry)
                following = Offset(entry.offset + 1)
                on_progress(following, log.end_offset)
        except StorageError as error:
            verified.cut(following, log.end_offset, error)
    return verified
