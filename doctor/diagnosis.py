"""What a diagnosis says of an instance, and the words that several of them use. Pure."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from doctor.document import Code
from doctor.examination import Patient
from query_api.ports import ServiceView
from schemas.answer_states import Doubt

DOCTOR_SETTLE_S: Final = 10.0  # a doubt that is younger may pass by itself

CLEAR: Final = (
    "clear its cache (vLLM: POST /reset_prefix_cache, SGLang: POST /flush_cache) or restart it"
)
"""What makes an engine and the index agree again."""


class Diagnosis(NamedTuple):
    """A finding of one instance; see `Finding`.

    Attributes:
        is_property: it is so of the model, and there is nothing to mend.
    """

    code: Code
    cause: str
    remedy: str
    expected: str = ""
    got: str = ""
    since: float = 0.0
    ranks: tuple[int, ...] = ()
    is_property: bool = False


Look = Callable[[Patient, float], Iterator[Diagnosis]]
"""Looks at an instance for one kind of mistake; the number is now, Unix seconds."""


def is_settled(one: ServiceView, now: float) -> bool:
    """Whether what is doubted of it has been for so long that it does not pass by itself; and it is
    not about to be followed.
    """
    _, reason, since = one.standing
    is_begun = reason == Doubt.NOT_FOLLOWED and bool(one.activity[0])
    return since < now - DOCTOR_SETTLE_S and not is_begun


def has_published(one: ServiceView) -> bool:
    """Whether anything of it has ever come."""
    return one.state.incarnation > 0


def ranks_of(views: Sequence[ServiceView]) -> tuple[int, ...]:
    """Their numbers."""
    return tuple(one.registration.dp_rank for one in views)


def endpoints_of(views: Sequence[ServiceView]) -> str:
    """Where they publish, as registered."""
    registrations = (one.registration for one in views)
    return ", ".join(one.endpoint or one.http_url for one in registrations)


def is_wildcard(endpoint: str) -> bool:
    """Whether vLLM binds the address; it connects to any other one, but for ipc."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    return host in ("", "*", "::", "0.0.0.0")


def switch_on(one: ServiceView) -> str:
    """How its engine publishes events where it is registered."""
    registration = one.registration
    places = [f'"endpoint": "{_bound(registration.endpoint) or "tcp://*:5557"}"']
    if replay := _bound(registration.replay_endpoint):
        places.append(f'"replay_endpoint": "{replay}"')
    return (
        'start vLLM with --kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq",'
        f" {', '.join(places)}}}', SGLang with --kv-events-config"
        f' \'{{"publisher": "zmq", {", ".join(places)}}}\''
    )


def _bound(endpoint: str) -> str:
    """What an engine binds that is reached there; "" where the address does not say it."""
    port = endpoint.rpartition(":")[2]
    return f"tcp://*:{port}" if endpoint.startswith("tcp://") and port.isdigit() else ""


def named(patient: Patient, dp_rank: int) -> str:
    """The body of POST /unregister of one rank."""
    tenant_id, _, _, _, instance_id = patient.stream
    return f'{{"instance_id": "{instance_id}", "tenant_id": "{tenant_id}", "dp_rank": {dp_rank}}}'


def register_again(patient: Patient, change: str) -> str:
    """How to register it otherwise."""
    rank = patient.ranks[0].registration.dp_rank
    each = ", each rank," if len(patient.ranks) > 1 else ""
    return f"POST /unregister {named(patient, rank)}{each} and POST /register again with {change}"


def follows(cause: str, code: str) -> str:
    """The cause of a finding that may be explained by another one, of this code."""
    words = cause.partition(" The likeliest cause:")[0].rstrip(".")
    return words if code in words else f"{words}. This may well follow from `{code}`"
