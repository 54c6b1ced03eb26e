"""What is wrong by what outcomes say: the silent zero, and its likeliest cause. Pure."""

from collections.abc import Iterator

from doctor.diagnosis import CLEAR, Diagnosis, has_published, switch_on
from doctor.document import Code
from doctor.examination import Patient
from schemas.answer_states import Doubt


def is_contradicted(patient: Patient) -> bool:
    """Whether enough outcomes say so of this one: of who publishes no events, only decisions say
    what it holds.
    """
    served = patient.served
    is_sure = patient.has_events or served.has_surprises or served.has_misses
    return patient.recent.contradict and is_sure


def likeliest_cause(patient: Patient) -> tuple[Code, str]:
    """Of an instance that is contradicted: how, and why."""
    if not patient.recent.find_more:
        return Code.MATCHES_MORE, _more(patient)[0]
    code = Code.MATCHES_NOTHING if patient.served.is_nothing else Code.MATCHES_LESS
    return code, _less(patient)[0]


def outcomes(patient: Patient, now: float) -> Iterator[Diagnosis]:
    """Whether it matches less or more than its engine finds, once enough outcomes say so."""
    served = patient.served
    if not is_contradicted(patient):
        return
    if patient.recent.find_more:
        code, cause = likeliest_cause(patient)
        promised = 0 if served.is_nothing else served.actual - served.unpromised
        more = _percent(served.actual - promised, served.prompt)
        yield Diagnosis(
            code,
            f"of the last {served.reported} requests that it served, {more} of the tokens were in"
            " its cache and not promised by what the index has of it. The likeliest cause:"
            f" {cause}",
            _less(patient)[1],
            f"{promised} cached tokens",
            f"{served.actual} cached tokens",
        )
    if served.has_misses:
        cause, remedy = _more(patient)
        promised, missing = served.promised - served.predicted, served.missing
        yield Diagnosis(
            Code.MATCHES_MORE,
            f"of the last {served.reported} requests that it served,"
            f" {_percent(missing, served.prompt)} of the tokens were promised and not in its cache."
            f" The likeliest cause: {cause}",
            remedy,
            f"{promised} cached tokens",
            f"{max(promised - missing, 0)} of these",
        )


def cache_reports(patient: Patient, now: float) -> Iterator[Diagnosis]:
    """Whether its answers leave out what it found in its cache."""
    if patient.unsaid:
        yield Diagnosis(
            Code.CACHE_UNSAID,
            f"its last {patient.unsaid} answers at the gateway to prompts that it was said to hold"
            " in part had a `usage` without cached tokens: whether promises are kept is not known",
            "start vLLM with --enable-prompt-tokens-details, SGLang with --enable-cache-report",
            "`prompt_tokens_details.cached_tokens`",
            "none",
        )


def _less(patient: Patient) -> tuple[str, str]:
    """Why an engine finds more than it is said to hold, and what to do."""
    states = [one.state for one in patient.ranks]
    if not patient.has_events:
        return (
            "it publishes no events, and only what was sent there by POST /route is known",
            f"{switch_on(patient.ranks[0])}, and register it with its kind in place of `none`",
        )
    if any(state.left_out for state in states):
        return "blocks that it announces are left out", "see that finding"
    if not any(map(has_published, patient.ranks)):
        return "no events of it have come", switch_on(patient.ranks[0])
    if any(state.degraded_since is not None for state in states):
        return "batches of it are lost", f"{CLEAR}"
    if not patient.entries:
        return (
            "the index has no block of it: all that it announced was removed or cleared, or its"
            " events are of another cache than its requests use",
            f"register the address of the engine that serves them; or {CLEAR}",
        )
    served = patient.served
    if 2 * served.miscounted > served.reported:
        return (
            "the tokens that are asked about are not those that it computes: it counts another"
            " number of them. The chat template or the tokenizer differs",
            "tokenize as the engine does: vLLM's and SGLang's POST /tokenize of the same messages",
        )
    if served.is_nothing:
        return (
            "the prompts differ from what it announces from the first block on: its requests have"
            " a `cache_salt` (or an adapter, or images) that is not in what is asked, or the"
            " reverse; or the tokenizer or the chat template differs",
            "give POST /route and /query the `cache_salt`, `lora_name` and `media` that it has;"
            " compare its POST /tokenize with the `token_ids` that are asked about, from the first"
            " on (a BOS that one of them has); POST /explain says what became of a block",
        )
    return (
        "some of its prompts are asked about with other tokens, salts or adapters than it computes,"
        " or some of its events do not come",
        "compare its POST /tokenize with the `token_ids` that are asked about; `reprise gaps"
        f" --instance {patient.stream.instance_id}` says what was lost",
    )


def _more(patient: Patient) -> tuple[str, str]:
    """Why an engine finds less than it is said to hold, and what to do."""
    served = patient.served
    if any(one.state.degraded_since is not None for one in patient.ranks):
        return "batches of it are lost, with the removals that they had", CLEAR
    if _may_reload(patient):
        return (
            "adapters were loaded again, which finds none of their blocks: no answer was `exact`"
            " that tested this",
            "see `adapter_reloaded`",
        )
    if not served.actual:
        return (
            "it uses no cached prefix at all: prefix caching is switched off, it was put to sleep"
            " or cleared without saying so, or it does not report what it found",
            "start vLLM with --enable-prefix-caching and --enable-prompt-tokens-details, SGLang"
            " without --disable-radix-cache and with --enable-cache-report",
        )
    if served.evicted * 2 > served.index:
        return (
            "it removes blocks between a decision and its request: its cache is too small for what"
            " is sent there; or it does not say what it removes",
            "POST /explain of such a prompt names the record that removed it; give it more memory,"
            " or spread its sessions",
        )
    return "answers were not `exact`", "see docs/routing.md, `lost.index`"


def _may_reload(patient: Patient) -> bool:
    """Whether it has blocks under adapters, of which alone outcomes found less: those that tested
    what is sure of it do not contradict that.
    """
    ranks = patient.ranks
    return bool(patient.adapters) and any(
        one.registration.reloads_adapters and one.standing.reason != Doubt.OUTCOMES_DIFFER
        for one in ranks
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"
