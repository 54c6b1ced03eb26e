"""What is wrong by what comes of an instance's publishers, or does not. Pure."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from doctor.diagnosis import (
    CLEAR,
    Diagnosis,
    endpoints_of,
    has_published,
    is_settled,
    is_wildcard,
    named,
    ranks_of,
    register_again,
    switch_on,
)
from doctor.document import Code
from doctor.examination import Patient, facts_of
from query_api.ports import ServiceView
from schemas.answer_states import Activity, Doubt
from schemas.identities import UNSURE
from schemas.limits import DOCTOR_OVERFULL, UNREACHED_S

_BLOCK_SIZE: Final = "block_size"
_BESIDE: Final = (
    "leave it registered as it is: what answers count is right. Smaller blocks are the ends of"
    " prompts, as vLLM keeps them since 0.24, and larger ones another cache group's: no query asks"
    " for them. Its answers are `exact` again once it has removed them"
)
"""Of blocks of another size, where those of the registered size come, too."""

_BINDS: Final = (
    "vLLM binds only wildcard and ipc endpoints, and connects to any other: one whose own endpoint"
    " is `tcp://127.0.0.1:PORT` publishes to nobody"
)


class _Words(NamedTuple):
    """Of a doubt that does not pass by itself."""

    code: Code
    cause: str
    remedy: str


_DOUBTS: Final[Mapping[str, _Words]] = MappingProxyType(
    {
        Doubt.NO_ENDPOINT: _Words(
            Code.NO_ENDPOINT,
            "its HTTP address does not say that it publishes events for this rank with this block"
            " size: events are switched off, or its release does not say where it publishes",
            "switch them on (vLLM, SGLang: --kv-events-config); or register the `tcp://` address"
            " that it publishes at as `endpoint`",
        ),
        Doubt.ENGINE_AWAY: _Words(
            Code.ENGINE_AWAY,
            "its link is up, and its HTTP address does not answer: the engine hangs or starts, or"
            " `http_endpoint` is another's",
            "look at its log: `curl -m 2 HTTP_ENDPOINT/health`",
        ),
        Doubt.LINK_SILENT: _Words(
            Code.ENGINE_AWAY,
            "its link is up, and its socket does not answer: its process is stopped or gets no"
            " core, or its host or the network is gone",
            "look whether its process runs, and what else its host computes",
        ),
        Doubt.PROCESS_CHANGED: _Words(
            Code.PROCESS_CHANGED,
            "its HTTP address names another process than before over the same link: a load balancer"
            " stands there",
            "register the engine's own address as `http_endpoint`",
        ),
        Doubt.REPLAY_SILENT: _Words(
            Code.REPLAY,
            "its replay socket does not answer: nothing listens at `replay_endpoint`",
            "register the address that its --kv-events-config names as `replay_endpoint`, or none",
        ),
        Doubt.REPLAY_BROKEN: _Words(
            Code.REPLAY,
            "its replay breaks off",
            "look at the bridge's log for the reason; a restart of the engine empties its buffer",
        ),
        Doubt.REPLAY_DIFFERS: _Words(
            Code.REPLAY,
            "its replay socket has other batches than it publishes: `replay_endpoint` is another"
            " engine's or another rank's (the base port plus the rank)",
            "register this rank's own address as `replay_endpoint`",
        ),
        Doubt.SPOOLED: _Words(
            Code.SPOOLED,
            "what it publishes waits on its bridge's disk: Kafka does not take it",
            "look at the bridge's GET /health, and at Kafka",
        ),
        Doubt.COPIES_UNKNOWN: _Words(
            Code.REPORT_MODE,
            "it has removed blocks that it had announced more often: copies, some of which are"
            " left, or reports of hits (kv_cache_report_mode=full)",
            "unregister it, and register it again with the `kv_cache_report_mode` that its requests"
            " ask for, `incremental` where none does",
        ),
        Doubt.OBJECTS_WAIT: _Words(
            Code.OBJECTS_WAIT,
            "it is a pool, and has objects of which no registered engine has said, with tokens,"
            " which blocks they are: no answer counts these",
            "register every engine that stores into it, and let all hash alike (one"
            " PYTHONHASHSEED); one is found once an engine announces its block again, and no longer"
            " waits once the pool drops it",
        ),
        Doubt.RANK_MISSING: _Words(
            Code.RANKS,
            "its stream has events of a data-parallel rank that is not registered",
            "register each rank with the same endpoint and its `dp_rank`; its bridge's log names"
            " the missing one",
        ),
        Doubt.NOT_FOLLOWED: _Words(
            Code.NOT_FOLLOWED,
            "no bridge follows it",
            "start `reprise bridge`, or look at GET /health of those that run",
        ),
        Doubt.NO_HEARTBEAT: _Words(
            Code.NOT_FOLLOWED,
            "its bridge has not been heard of for seconds, or is far behind",
            "look at GET /health of the bridges and of the workers (`reprise streams`)",
        ),
    }
)


def _block_size(patient: Patient, now: float) -> Iterator[Diagnosis]:
    registered = patient.stream.block_size
    said = {facts.block_size for one in patient.ranks if (facts := facts_of(one)) is not None}
    sizes: dict[str, tuple[int, float, list[int]]] = {}
    for one in patient.ranks:
        for reason, blocks in one.state.left_out.items():
            kind, _, size = reason.partition(":")
            if kind == _BLOCK_SIZE:
                before, since, ranks = sizes.setdefault(size, (0, one.state.left_out_at, []))
                ranks.append(one.registration.dp_rank)
                sizes[size] = before + blocks, since, ranks
    for size, (blocks, since, ranks) in sorted(sizes.items()):
        if patient.entries:  # with another size these would be left out
            beside = f"{patient.entries} blocks of {registered}, which answers count"
            cause = f"beside {beside}, it publishes blocks of {size} tokens: {blocks} are left out"
            remedy = _BESIDE
        else:
            cause = (
                f"it publishes blocks of {size} tokens, and is registered with {registered}:"
                f" {blocks} blocks are left out"
            )
            remedy = register_again(patient, f'"block_size": {size}')
            remedy += f"; and ask POST /query with {size}"
        yield Diagnosis(Code.BLOCK_SIZE, cause, remedy, str(registered), size, since, tuple(ranks))
    others = sorted(said - {0, registered})
    if others and not sizes and not patient.entries:  # before the first block has come
        yield Diagnosis(
            Code.BLOCK_SIZE,
            f"it says that its blocks have {others[0]} tokens, and is registered with {registered}",
            register_again(patient, f'"block_size": {others[0]}')
            + f"; and ask POST /query with {others[0]}",
            str(registered),
            str(others[0]),
        )


def _left_out(patient: Patient, now: float) -> Iterator[Diagnosis]:
    reasons: dict[str, int] = {}
    since, ranks = 0.0, []
    for one in patient.ranks:
        others = {
            reason: blocks
            for reason, blocks in one.state.left_out.items()
            if reason.partition(":")[0] not in (_BLOCK_SIZE, *UNSURE)
        }
        for reason, blocks in others.items():
            reasons[reason] = reasons.get(reason, 0) + blocks
        if others:
            since = since or one.state.left_out_at
            ranks.append(one.registration.dp_rank)
    if reasons:
        got = ", ".join(f"{reason} ({blocks})" for reason, blocks in sorted(reasons.items()))
        yield Diagnosis(
            Code.LEFT_OUT,
            f"blocks that it announces cannot be used, and no answer counts them: {got}",
            f"look the reason up in docs/observe.md, `left out`; to begin anew, {CLEAR}",
            got=got,
            since=since,
            ranks=tuple(ranks),
        )


def _lost_batches(patient: Patient, now: float) -> Iterator[Diagnosis]:
    lost = [one for one in patient.ranks if one.state.degraded_since is not None]
    if lost:
        name = patient.stream.instance_id
        yield Diagnosis(
            Code.LOST_BATCHES,
            "batches of it are lost: blocks may be missing, and evicted ones may still be listed",
            f"`reprise gaps --instance {name}` says when and why; {CLEAR}; with a"
            " `replay_endpoint` registered, what is missed is asked for again",
            since=min(one.state.degraded_at for one in lost),
            ranks=ranks_of(lost),
        )


# What does not come


def _is_down(one: ServiceView, now: float) -> bool:
    activity, since = one.acting
    if one.standing.reason == Doubt.NO_ENDPOINT:  # said as such
        return False
    return activity == Activity.DISCONNECTED and 0 < since < now - UNREACHED_S


def _unreached(patient: Patient, now: float) -> Iterator[Diagnosis]:
    down = [one for one in patient.ranks if _is_down(one, now)]
    never = [one for one in down if not has_published(one)]
    if never:
        yield Diagnosis(
            Code.UNREACHED,
            f"no link to it has come up, and nothing of it has ever come: {_why_unreached(never)}",
            f"{switch_on(never[0])}; or register the address that this host reaches it at",
            expected=endpoints_of(never),
            got="no answer",
            since=min(one.acting[1] for one in never),
            ranks=ranks_of(never),
        )
    gone = [one for one in down if has_published(one)]
    if gone:
        yield Diagnosis(
            Code.DISCONNECTED,
            "its link is down: the engine has ended, or the network is cut",
            "start it again; or POST /unregister"
            f" {named(patient, gone[0].registration.dp_rank)}, where it is gone for good",
            expected=endpoints_of(gone),
            got="no answer",
            since=min(one.acting[1] for one in gone),
            ranks=ranks_of(gone),
        )


def _why_unreached(never: list[ServiceView]) -> str:
    for one in never:
        facts = facts_of(one)
        said = "" if facts is None else facts.endpoint
        if said and not said.startswith("ipc://") and not is_wildcard(said):
            return (
                f"it says that it publishes at {said}, which it connects to and does not bind, so"
                f" nobody hears it. {_BINDS}"
            )
    if any(facts_of(one) is not None for one in never):
        return (
            "the engine answers over HTTP, so it is up, and its events are not there: it publishes"
            f" elsewhere, or connects where it is to bind, or its events are off. {_BINDS}"
        )
    return f"it is not up, or does not listen there. {_BINDS}"


def _doubted(patient: Patient, now: float) -> Iterator[Diagnosis]:
    by_reason: dict[str, list[ServiceView]] = {}
    for one in patient.ranks:
        if one.registration.has_events and is_settled(one, now):
            by_reason.setdefault(str(one.standing.reason), []).append(one)
    for reason, ranks in sorted(by_reason.items()):
        words = _DOUBTS.get(reason)
        if words is not None:
            since = min(one.standing.since for one in ranks)
            yield Diagnosis(
                words.code,
                words.cause,
                words.remedy,
                got=reason,
                since=since,
                ranks=ranks_of(ranks),
            )


def _no_events(patient: Patient, now: float) -> Iterator[Diagnosis]:
    silent = [
        one
        for one in patient.ranks
        if one.registration.has_events
        and not has_published(one)
        and one.acting[0] in (Activity.SILENT, Activity.ACTIVE)
    ]
    if silent and patient.is_judged:
        yield Diagnosis(
            Code.NO_EVENTS,
            f"it has served {patient.served.reported} requests, its link is up, and it has"
            " published nothing: events are switched off, or prefix caching is, or another process"
            " listens at that address",
            switch_on(silent[0]),
            expected="events",
            got="none",
            ranks=ranks_of(silent),
        )


def _never_removes(patient: Patient, now: float) -> Iterator[Diagnosis]:
    capacity = patient.capacity_blocks
    if not capacity or patient.entries <= DOCTOR_OVERFULL * capacity:
        return
    on_gpu = round(patient.entries * patient.on_gpu())
    if on_gpu > DOCTOR_OVERFULL * capacity:
        yield Diagnosis(
            Code.NEVER_REMOVES,
            f"the index has {on_gpu} blocks of it on its GPUs, and it has room for {capacity}: it"
            " does not say which blocks it removes, and the index lists ghosts",
            f"{CLEAR}; look whether its events have BlockRemoved (`reprise tail`), and whether a"
            " relay or proxy between drops them",
            expected=f"at most {capacity}",
            got=str(on_gpu),
        )


RECEIVED: Final = (
    _block_size,
    _left_out,
    _lost_batches,
    _unreached,
    _doubted,
    _no_events,
    _never_removes,
)
"""What of it is looked at, causes before what comes of them."""
