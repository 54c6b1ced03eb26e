"""The candidates of a request: who may be chosen, with all that is known of each."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from routing.bounds import REQUEST_STAY_S
from routing.costs import Costs
from routing.decisions.decoding import DecodeCandidate
from routing.decisions.interface import OfferedCandidate, PostedLoad, RouteRequest
from routing.decisions.live_load import LiveLoad, TargetLoad
from routing.decisions.targets import KnownTarget, RankKey, Roster, Targets
from routing.decisions.unbooked_load import TypicalRequest
from routing.interface import Candidate
from schemas.routing_records import DecidedScope, LoadSample, LoadSource, Phase, Target
from streams.kernel.interface import InstanceMatch

LOAD_FUTURE_S: Final = 5.0  # a clock may run ahead by so much: reason="in_the_future"

MEAN_PROMPT_TOKENS: Final = 4096
"""Of those that wait, before there was a decision that says what they take."""

_FIRST_RANK: Final = frozenset({0})
_ROLES: Final = {
    Phase.COMBINED: ("combined",),
    Phase.PREFILL: ("combined", "prefill"),
    Phase.DECODE: ("combined", "decode"),
    Phase.PAIR: ("combined", "prefill"),
}


class Candidates(NamedTuple):
    """In the order of instance and rank.

    Attributes:
        found: as a policy takes them.
        known: what is registered of them.
        roles: which phases they take.
        output_tokens: that a request is expected to have.
        output_token_s: seconds for each of them.
    """

    found: list[Candidate]
    endpoints: tuple[str, ...]
    carried: list[TargetLoad]
    known: Sequence[KnownTarget]
    roles: Sequence[str]
    output_tokens: int
    output_token_s: float

    def longest(self, held: int) -> int:
        """Tokens of the longest match: in the index, or where only decisions say that it is."""
        return max(held, max((one.cached for one in self.found if one.predicted), default=0))

    def places(self) -> list[DecodeCandidate]:
        """As candidates for decoding."""
        return [
            DecodeCandidate(one, known, load, known.decode_terms, role)
            for one, known, load, role in zip(
                self.found, self.known, self.carried, self.roles, strict=True
            )
        ]


def gather(
    asked: RouteRequest, targets: Targets, live: LiveLoad, costs: Costs, now: float
) -> Candidates:
    """All of them, by instance and rank. Cost O(candidates).

    Args:
        costs: what things are set to take.
        now: Unix seconds.
    """
    tenant = asked.scope.tenant_id
    by_instance = {match.instance_id: match for match in asked.matches}
    roster, offered = roster_of_request(asked, targets, by_instance)
    said = {}
    for key, one in offered.items():
        if one.load is not None:
            target = Target(tenant, *key)
            said[target] = sample_of(target, one.load, LoadSource.REQUEST, now)
    usual = live.usual(tenant, asked.scope.model_name, usual_of(costs, roster))
    carried = live.carried(roster.targets, now, usual, said)
    if said and asked.reserve:  # who only asks, changes nothing
        live.note(said.values())
    predicted = live.predicted(DecidedScope(*asked.scope), asked.prefixes, now)
    failing = live.left_out(roster.targets, now)
    wanted = _ROLES[asked.phase]
    roles, endpoints = places_of(roster, offered)
    found: list[Candidate] = []
    size, prompt = asked.scope.block_size, asked.prompt_tokens
    for key, target, load, known, role in zip(
        roster.keys, roster.targets, carried, roster.entries, roles, strict=True
    ):
        soon = predicted.get(target, 0) * size
        if soon > prompt:
            soon = prompt
        match = by_instance.get(key[0])
        candidate = _candidate(key, match, load, known, role in wanted, soon)
        if target in failing:
            candidate = candidate._replace(is_failing=True)
        found.append(candidate)
    return Candidates(
        found,
        endpoints,
        carried,
        roster.entries,
        roles,
        roster.output_tokens,
        roster.output_token_s,
    )


def usual_of(costs: Costs, roster: Roster | None = None) -> TypicalRequest:
    """A request before there was a decision that says what they take."""
    compute_s = costs.prefill_s(MEAN_PROMPT_TOKENS, 0)
    stay_s = REQUEST_STAY_S if roster is None else roster.stay_s
    return TypicalRequest(compute_s, MEAN_PROMPT_TOKENS, compute_s / MEAN_PROMPT_TOKENS, stay_s)


Offered = dict[RankKey, OfferedCandidate]
"""The candidates that a request names."""


def roster_of_request(
    asked: RouteRequest, targets: Targets, by_instance: Mapping[str, InstanceMatch]
) -> tuple[Roster, Offered]:
    """Who may be chosen, and what the request says of them.

    Args:
        by_instance: who is in the index, with what each holds of its prompt.
    """
    tenant, model = asked.scope.tenant_id, asked.scope.model_name
    roster = targets.of_model(tenant, model)
    if asked.candidates is None and by_instance.keys() <= roster.ranks.keys():
        return roster, {}
    keys, offered = _offered(asked, roster, by_instance)
    labels = tuple(
        (key, tuple(sorted(one.labels.items())))
        for key, one in offered.items()
        if one.labels is not None
    )
    return targets.offered(tenant, model, keys, labels), offered


def places_of(
    roster: Roster, offered: Mapping[RankKey, OfferedCandidate]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Roles and endpoints, in the order of the keys: as the request says, or as registered."""
    roles, endpoints = roster.roles, roster.endpoints
    if any(one.role or one.endpoint for one in offered.values()):
        said = [offered.get(key) for key in roster.keys]
        roles = tuple((one and one.role) or role for one, role in zip(said, roles, strict=True))
        endpoints = tuple(
            (one and one.endpoint) or known for one, known in zip(said, endpoints, strict=True)
        )
    return roles, endpoints


def sample_of(target: Target, posted: PostedLoad, source: LoadSource, now: float) -> LoadSample:
    """What a client says of a target, as of a moment that is not in the future."""
    at = now if posted.observed_at is None else min(posted.observed_at, now)
    return LoadSample(
        target,
        at,
        source,
        posted.running,
        posted.waiting,
        posted.prefill_tokens,
        posted.kv_usage,
        posted.kv_capacity_tokens,
    )


def is_in_the_future(seconds: float | None, now: float) -> bool:
    """Whether a client's time is more than a clock may be wrong ahead of ours."""
    return seconds is not None and seconds > now + LOAD_FUTURE_S


def _offered(
    asked: RouteRequest, roster: Roster, by_instance: Mapping[str, InstanceMatch]
) -> tuple[tuple[RankKey, ...], dict[RankKey, OfferedCandidate]]:
    """The targets that may be chosen, where these are not just those of the model: those that the
    request names, with what it says of them; or holders that nobody has registered, too.
    """
    ranks = dict(roster.ranks)
    for name, match in by_instance.items():
        ranks[name] = ranks.get(name, frozenset()) | {rank.dp_rank for rank in match.ranks}
    offered: dict[RankKey, OfferedCandidate] = {}
    if asked.candidates is None:
        return tuple((name, rank) for name, each in ranks.items() for rank in sorted(each)), offered
    for one in asked.candidates:
        if one.dp_rank is not None:
            offered[one.instance_id, one.dp_rank] = one
            continue
        for rank in ranks.get(one.instance_id, _FIRST_RANK):
            offered[one.instance_id, rank] = one
    return tuple(offered), offered


def _candidate(
    key: RankKey,
    match: InstanceMatch | None,
    carried: TargetLoad,
    target: KnownTarget,
    is_allowed: bool,
    soon: int,
) -> Candidate:
    name, number = key
    cached = gpu = disk = 0
    if match is not None:
        for dp_rank, matched, on_gpu, on_cpu, on_disk in match.ranks:
            if dp_rank == number:
                # What lies on tiers in turns is longer than a walk down the tiers.
                cached = matched if matched > on_disk else on_disk
                gpu, disk = on_gpu, on_disk - on_cpu
                break
    predicted = 0
    if soon > cached:  # it is being computed there, for its GPU
        predicted, gpu, disk, cached = soon - cached, soon, 0, soon
    wait, requests, pending, active, sample, _, _, others = carried
    waiting, usage, is_there = target.with_sample(sample)
    return Candidate(
        name,
        cached,
        gpu,
        wait,
        disk,
        requests,
        pending,
        active,
        0,
        target.costs,
        number,
        waiting,
        usage,
        is_allowed,
        is_there,
        target.is_degraded,
        predicted,
        False,
        others,
    )
