"""Makes the answer of `GET /doctor` of what was examined. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from doctor.diagnoses import diagnose
from doctor.diagnosis import follows
from doctor.document import (
    Code,
    DoctorDocument,
    EngineSays,
    Finding,
    InstanceExamination,
    RankExamination,
)
from doctor.examination import (
    Examination,
    Patient,
    UnheldBlock,
    clock_of,
    facts_of,
    troubles_of,
)
from query_api.ports import Health, ServiceView, positions_text
from query_api.unknown_scopes import BLOCK_SIZE, MODEL, SALT, TENANT, ScopeMismatch, UnknownScope
from schemas.conditions import Condition, Part
from schemas.engine_facts import EngineFacts
from schemas.limits import STALE_RECORDS, STALE_S, TOKENIZE_WAIT_S
from tokens.engine_questions import UnansweredModel
from tokens.local_model import INSTALL_TEXT
from tokens.prompt import NoTokens

_SAID_OF_INSTANCES: Final = frozenset({Part.ENGINES, Part.OUTCOMES})
_DISK: Final = "disk"
_HELP: Final[Mapping[str, str]] = {
    Part.KAFKA: "look whether the brokers are up, and whether this host reaches them",
    Part.RECOVERY: "wait: it reads its log; GET /ready says when it is done",
    Part.LOSS: "`reprise repair --data DIR` says what is damaged",
    Part.DATA: "look whether the data directory is still there, and this process may write there",
    Part.MEMORY: "look at memory.dir",
    Part.ENGINE_KEYS: "write the key that each of them wants (its `--api-key`) into the file of"
    " `engines.keys`, which is read again within a second",
    Part.REQUESTS: "see what is found of these engines, and the log of each; one that answers again"
    " is used again by itself",
    Part.TOKENS: "name the files that the engines serve in `tokens`, and start again",
}


_REGISTERED_OTHERWISE: Final[Mapping[str, Code]] = {
    Code.ASKED_MODEL: Code.MODEL_NAME,
    Code.ASKED_BLOCK_SIZE: Code.BLOCK_SIZE,
}
"""What is asked that nobody has, and what is wrong where an engine has it after all."""


class _Words(NamedTuple):
    code: Code
    noun: str
    remedy: str


_ASKED: Final = {
    TENANT: _Words(
        Code.ASKED_TENANT,
        "the tenant",
        "ask with the `tenant_id` that the engines are registered with, or register them with this",
    ),
    MODEL: _Words(
        Code.ASKED_MODEL,
        "the model",
        "ask with the `model` that the engines are registered with, or register them with this"
        " `modelname`: it is compared letter for letter",
    ),
    BLOCK_SIZE: _Words(
        Code.ASKED_BLOCK_SIZE,
        "the block size",
        "ask with the `block_size` that the engines have",
    ),
    SALT: _Words(
        Code.ASKED_SALT,
        "the salt",
        "ask with the `cache_salt` that is the engines' `additionalsalt`; or register them without",
    ),
}


def doctor_document(examined: Examination, *, sees_all: bool = True) -> DoctorDocument:
    """The answer. Cost O(instances).

    Args:
        sees_all: whether every tenant may be shown, so that what is not there is known.
    """
    findings = [*_of_service(examined, sees_all=sees_all)]
    notes: list[Finding] = []
    instances = []
    for patient in examined.patients:
        found = diagnose(patient, examined.at)
        findings += found.findings
        notes += found.notes
        instances.append(_examination(patient, found.findings))
    findings = _causes_first(findings)
    health = examined.health
    return DoctorDocument(
        at=examined.at,
        role=health.role,
        position=positions_text(health.positions),
        findings=findings,
        notes=notes,
        instances=instances,
    )


def _causes_first(findings: list[Finding]) -> list[Finding]:
    """Where an engine is what was asked for, and is registered otherwise, the question is right: it
    follows from the registration. So do other tokens that are found from a salt that nobody has.
    """
    causes = {(one.tenant_id, one.code, one.got): one for one in findings}
    salts = {
        (one.tenant_id, one.model_name): one for one in findings if one.code == Code.ASKED_SALT
    }
    first, following = [], []
    for one in findings:
        because = _REGISTERED_OTHERWISE.get(one.code)
        cause = None if because is None else causes.get((one.tenant_id, because, one.got))
        if one.code == Code.MATCHES_NOTHING:
            cause = salts.get((one.tenant_id, one.model_name))
        if cause is None:
            first.append(one)
        else:
            following.append(_following(one, cause))
    return first + following


def _following(one: Finding, cause: Finding) -> Finding:
    return msgspec.structs.replace(
        one,
        cause=follows(one.cause, cause.code),
        remedy=f"mend `{cause.code}` first, and look again",
    )


def _of_service(examined: Examination, *, sees_all: bool) -> Iterator[Finding]:
    health = examined.health
    conditions = [one for one in health.conditions if one.part not in _SAID_OF_INSTANCES]
    if full := [one for one in conditions if _is_disk(one)]:
        yield _of_disk(full)
    yield from (_of_condition(one) for one in conditions if not _is_disk(one))
    yield from _behind(health)
    yield from map(_of_unknown, _first_of_each(examined.unknown))
    yield from map(_of_never_held, examined.never_held)
    yield from map(_of_unanswered, examined.unanswered)
    if sees_all and not examined.patients and health.ready:
        yield Finding(
            code=Code.NOTHING_REGISTERED.value,
            cause="no engine is registered, so every answer is empty",
            expected="at least one",
            got="none",
            remedy="POST /register each engine: docs/run.md, `Register an engine`, has the command",
        )


def _first_of_each(
    unknown: list[tuple[UnknownScope, ScopeMismatch]],
) -> list[tuple[UnknownScope, ScopeMismatch]]:
    """One of each name that differs: the latest question. An adapter may have no blocks yet."""
    found: dict[tuple[str, ScopeMismatch], tuple[UnknownScope, ScopeMismatch]] = {}
    for asked, why in unknown:
        if why.field in _ASKED:
            found.setdefault((asked.scope.tenant_id, why), (asked, why))
    return list(found.values())


def _of_unknown(one: tuple[UnknownScope, ScopeMismatch]) -> Finding:
    asked, why = one
    words = _ASKED[why.field]
    known = ", ".join(name or '""' for name in why.known)
    shown = why.asked or '""'
    return Finding(
        code=words.code.value,
        tenant_id=asked.scope.tenant_id,
        model_name=asked.scope.model_name,
        cause=f"{asked.times} times it was asked for {words.noun} {shown}, which no engine is"
        " registered with: such answers are empty",
        expected=known,
        got=shown,
        remedy=words.remedy,
        since=asked.at,
    )


def _of_never_held(one: UnheldBlock) -> Finding:
    scope = one.scope
    return Finding(
        code=Code.ASKED_TOKENS.value,
        tenant_id=scope.tenant_id,
        model_name=scope.model_name,
        cause=f"{one.asked} prompts began with the same {scope.block_size} tokens, and no engine"
        f" has announced them, though the index has {one.entries} blocks of this model: the tokens"
        " that are asked about are not those that the engines compute, from the first on. The"
        " tokenizer or the chat template differs, or one of the two puts a BOS before the prompt;"
        " or the requests have a `cache_salt` or an adapter that is not in what is asked. Outcomes"
        f" say that {one.found_nothing} of them found nothing in the cache",
        expected="a block of these tokens",
        got="none",
        remedy="compare POST /tokenize of the engine with the `token_ids` that are asked about,"
        " from the first on; give POST /route and /query the `cache_salt`, `lora_name` and `media`"
        " that the request has. Where the engine does find prefixes: start vLLM with"
        " --enable-prompt-tokens-details, SGLang with --enable-cache-report, so that it says so",
        since=one.last_asked,
    )


def _of_unanswered(one: UnansweredModel) -> Finding:
    return Finding(
        code=Code.TOKENS_LATE.value,
        tenant_id=one.tenant_id,
        model_name=one.model,
        cause=f"of the last {one.asked} prompts that an engine was asked to make tokens of,"
        f" {one.unanswered} got none in time, since the engine is busy or away: such requests are"
        " routed by load, and conversations leave their caches",
        expected=f"tokens within {TOKENIZE_WAIT_S:g} s",
        got="none",
        remedy=f"have them made here: {INSTALL_TEXT}, name the directory of the model's files"
        f" (`--set tokens={one.model}=DIRECTORY`), and start again. Where that is done, see the"
        " condition `tokens`",
        since=one.last,
    )


def _is_disk(condition: Condition) -> bool:
    return condition.reason == _DISK or "no space left" in condition.message


def _of_disk(conditions: list[Condition]) -> Finding:
    """One disk is one finding, whatever cannot be written there."""
    parts = ", ".join(one.part for one in conditions[1:])
    return Finding(
        code=Code.DISK.value,
        cause=f"{conditions[0].part}: {conditions[0].message.rstrip('.')}"
        + (f"; likewise: {parts}" if parts else "")
        + ". Answers are of what was known before, and what comes meanwhile is not written",
        remedy="free space on that disk, or mend it; the service goes on by itself then. What is"
        " refused meanwhile is counted as lost",
        since=min(one.since for one in conditions),
    )


def _of_condition(condition: Condition) -> Finding:
    return Finding(
        code=Code.CONDITION.value,
        cause=f"{condition.part}: {condition.message}",
        got=condition.reason,
        remedy=_remedy_of(condition),
        since=condition.since,
    )


def _remedy_of(condition: Condition) -> str:
    if condition.part is Part.TOKENS and condition.reason == NoTokens.NO_LIBRARY:
        return f"{INSTALL_TEXT}, and start again"
    return _HELP.get(condition.part, "see docs/observe.md, `Health`")


def _behind(health: Health) -> Iterator[Finding]:
    lag = health.lag
    if lag is None or not health.ready:
        return
    records = lag.table_records + lag.source_records
    if lag.reachable and lag.seconds <= STALE_S and records <= STALE_RECORDS:
        return
    if lag.reachable:
        got = f"{lag.seconds:.0f} s and {records:,} records"
        cause = f"its table is {got} behind the log: answers say `stale`"
        remedy = (
            "look at GET /health of the workers (`reprise streams`): are they up, and is there one"
            " for each partition? Then at the CPU of this host"
        )
    else:
        got = "Kafka is not reached"
        cause = "it cannot reach Kafka, so how far its table is behind is not known"
        remedy = _HELP[Part.KAFKA]
    yield Finding(
        code=Code.BEHIND.value,
        cause=cause,
        expected=f"at most {STALE_S:g} s",
        got=got,
        remedy=remedy,
    )


def _examination(patient: Patient, found: list[Finding]) -> InstanceExamination:
    tenant_id, model_name, block_size, additional_salt, instance_id = patient.stream
    return InstanceExamination(
        tenant_id=tenant_id,
        instance_id=instance_id,
        model_name=model_name,
        block_size=block_size,
        additional_salt=additional_salt,
        type=patient.kind,
        ranks=[_rank(one) for one in patient.ranks],
        indexed_blocks=patient.entries,
        capacity_blocks=patient.capacity_blocks,
        asked=patient.asked,
        verdict="; ".join(one.cause for one in found) or "healthy",
    )


def _rank(one: ServiceView) -> RankExamination:
    registration, facts, troubles = one.registration, facts_of(one), troubles_of(one)
    return RankExamination(
        dp_rank=registration.dp_rank,
        endpoint=registration.endpoint,
        replay_endpoint=registration.replay_endpoint,
        http_endpoint=registration.http_url,
        state=one.standing.state.value,
        reason=str(one.standing.reason),
        activity=one.activity[0],
        incarnation=one.state.incarnation,
        received=one.state.sequence,
        left_out=dict(one.state.uncounted),
        dropped=troubles.dropped,
        last_drop=f"{troubles.reason}: {troubles.detail}" if troubles.dropped else "",
        clock_s=clock_of(one),
        engine=None if facts is None else EngineSays(**_fields(facts)),
    )


def _fields(facts: EngineFacts) -> dict[str, Any]:
    found = msgspec.structs.asdict(facts)
    return found | {"models": list(facts.models), "ranks": list(facts.ranks)}
