"""What is wrong by what an engine says of itself over HTTP, and by its clock. Pure."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from doctor.diagnosis import Diagnosis, ranks_of, register_again, switch_on
from doctor.document import Code
from doctor.examination import Patient, clock_of, facts_of
from query_api.ports import ServiceView
from schemas.answer_states import Doubt
from schemas.engine_facts import EngineFacts


def _those(patient: Patient, holds: Callable[[EngineFacts], bool]) -> list[ServiceView]:
    """The ranks whose engine says so."""
    return [one for one in patient.ranks if (facts := facts_of(one)) is not None and holds(facts)]


class _Fault(NamedTuple):
    """What an engine says of its settings that is wrong whatever else is known.

    Attributes:
        holds: whether the engine says so.
        cause, expected, got: see `Diagnosis`.
        remedy: the same, of a rank whose engine says so.
    """

    code: Code
    holds: Callable[[EngineFacts], bool]
    cause: str
    remedy: Callable[[ServiceView], str]
    expected: str
    got: str


_FAULTS: Final = (
    _Fault(
        Code.EVENTS_OFF,
        lambda facts: facts.publishes is False,
        "it says that it publishes no events: nothing of it can be known",
        switch_on,
        expected="events",
        got="none",
    ),
    _Fault(
        Code.PREFIX_CACHING_OFF,
        lambda facts: facts.caches is False,
        "it says that prefix caching is switched off: it computes each prompt whole",
        lambda one: "start vLLM with --enable-prefix-caching, SGLang without --disable-radix-cache",
        expected="on",
        got="off",
    ),
    _Fault(
        Code.ASLEEP,
        lambda facts: facts.is_asleep is True,
        "it was put to sleep: it serves nothing, and has given up its cache without saying so to"
        " the index",
        lambda one: (
            "wake it (vLLM: POST /wake_up), and clear its cache (POST /reset_prefix_cache); or"
            " unregister it until then"
        ),
        expected="awake",
        got="asleep",
    ),
)


def _faults(patient: Patient, now: float) -> Iterator[Diagnosis]:
    for fault in _FAULTS:
        if ranks := _those(patient, fault.holds):
            yield Diagnosis(
                fault.code,
                fault.cause,
                fault.remedy(ranks[0]),
                expected=fault.expected,
                got=fault.got,
                ranks=ranks_of(ranks),
            )


def _model_name(patient: Patient, now: float) -> Iterator[Diagnosis]:
    registered = patient.stream.model_name
    others = _those(patient, lambda facts: bool(facts.models) and registered not in facts.models)
    is_changed = any(one.standing.reason == Doubt.MODEL_CHANGED for one in others)
    if not others or (patient.served.decisions and not is_changed):
        return  # a name of the router's own, which it asks for
    facts = facts_of(others[0])
    assert facts is not None
    names = ", ".join(facts.models)
    yield Diagnosis(
        Code.MODEL_NAME,
        f"it is registered with the model name {registered}, and serves {names}: who asks for"
        f" {facts.models[0]} finds nothing of it",
        register_again(patient, f'"modelname": "{facts.models[0]}"')
        + f'; or ask with "model": "{registered}"',
        expected=registered,
        got=names,
        ranks=ranks_of(others),
    )


def _ranks(patient: Patient, now: float) -> Iterator[Diagnosis]:
    said = {rank for one in _those(patient, lambda facts: True) for rank in _ranks_said(one)}
    missing = sorted(said - patient.ranks_at_url)
    if missing:
        shown = ", ".join(map(str, missing))
        yield Diagnosis(
            Code.RANKS,
            f"it publishes events for ranks that are not registered: {shown}. What these hold is in"
            " no answer",
            f"POST /register each of them with its `dp_rank` and its `endpoint` (the base port plus"
            f" the rank): {shown}",
            expected=", ".join(map(str, sorted(said))),
            got=", ".join(map(str, sorted(patient.ranks_at_url))),
        )


def _ranks_said(one: ServiceView) -> tuple[int, ...]:
    facts = facts_of(one)
    return () if facts is None else facts.ranks


def _clock(patient: Patient, now: float) -> Iterator[Diagnosis]:
    far = [one for one in patient.ranks if clock_of(one)]
    if far:
        behind_s = clock_of(far[0])
        where = "behind" if behind_s > 0 else "ahead of"
        yield Diagnosis(
            Code.CLOCK,
            f"its clock is about {abs(behind_s):,.0f} s {where} its bridge's: times in its"
            " events and its log are not those of this service",
            "set the clocks of both hosts by NTP (`timedatectl`), and restart the engine",
            expected="less than 30 s",
            got=f"{-behind_s:+,.0f} s",
            ranks=ranks_of(far),
        )


SAID: Final = (_faults, _model_name, _ranks, _clock)
"""What of it is looked at."""
