"""Who executes what is advised: LMCache's workers that are linked. Pure."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from query_api.ports import ServiceView
from routing.advice.acting import PastActs, SuppressionReason, source_of
from routing.advice.advice import Advice, AdvisedAction
from schemas.answer_states import Doubt
from schemas.limits import COMMAND_TOKENS_MAX
from schemas.registration import LMCACHE, Registration
from schemas.routing_records import DecidedScope

_AWAY: Final = frozenset({Doubt.LINK_DOWN, Doubt.WORKER_SILENT, Doubt.NOT_FOLLOWED})

Model = tuple[str, str, str]
"""Tenant, model and namespace."""


class Workers(NamedTuple):
    """LMCache's workers, as far as this service can tell.

    Attributes:
        registrations: of all workers, linked or not.
        able: instances all of whose workers are linked, by model.
        takes: of these, those to which others copy.
    """

    registrations: list[Registration]
    able: Mapping[Model, frozenset[str]]
    takes: Mapping[Model, frozenset[str]]


def workers_of(services: list[ServiceView]) -> Workers:
    """Of all services. An instance one of whose workers is away executes nothing whole."""
    found = [one for one in services if one.registration.kind == LMCACHE]
    able: dict[Model, set[str]] = {}
    away: dict[Model, set[str]] = {}
    no_peers: dict[Model, set[str]] = {}
    for one in found:
        registration = one.registration
        model = (registration.tenant_id, registration.model_name, registration.additional_salt)
        able.setdefault(model, set()).add(registration.instance_id)
        if one.connected is False or one.standing.reason in _AWAY:
            away.setdefault(model, set()).add(registration.instance_id)
        if not registration.peer_url:
            no_peers.setdefault(model, set()).add(registration.instance_id)
    linked = {model: frozenset(names - away.get(model, set())) for model, names in able.items()}
    takes = {model: names - no_peers.get(model, set()) for model, names in linked.items()}
    return Workers([one.registration for one in found], linked, takes)


def model_of(scope: DecidedScope) -> Model:
    """Of LMCache's workers that have prompts of the scope; none where that is of an adapter."""
    model = scope.model_name if not scope.lora_name else ""
    return (scope.tenant_id, model, scope.additional_salt)


def executor_of(advice: Advice, past: PastActs, workers: Workers) -> str | SuppressionReason:
    """The instance that is to execute it; or why there is none."""
    target = advice.targets[0].instance_id
    able = workers.able.get(model_of(advice.prefix.scope), frozenset())
    if advice.prefix.tokens > COMMAND_TOKENS_MAX:
        return SuppressionReason.TOO_LONG
    if advice.action is AdvisedAction.COPY:
        return source_of([one.instance_id for one in advice.sources], target, past, able)
    return target if target in able else SuppressionReason.NO_WORKER
