"""What is found wrong by what outcomes say of the tokens that engines had."""

import pytest

from schemas.positions import PublisherState
from schemas.routing_records import PrefixMark
from tests.building import prefix_hashes
from tests.unit.doctor.conftest import Clinic
from tokens.engine_questions import UnansweredModel

MARKS = (PrefixMark(1, 77), PrefixMark(2, 78))
"""Of prompts that begin with a block that no engine has."""


def store(clinic: Clinic) -> None:
    one = next(iter(clinic.table.registered()))
    publisher = clinic.table.kernel.open_publisher(one.stream, one.dp_rank)
    clinic.table.store(publisher, range(8), hashes=[1, 2])


@pytest.mark.parametrize(
    ("promised", "cached", "codes"),
    [
        (0, 0, []),  # prompts with nothing in common
        (800, 800, []),
        (800, 900, []),
        (800, 1200, ["matches_less"]),
        (0, 1200, ["matches_nothing"]),
        (800, 700, []),
        (800, 0, ["matches_more"]),
        (1200, 400, ["matches_more"]),
    ],
)
def test_matches_are_judged_by_enough_outcomes(
    clinic: Clinic, promised: int, cached: int, codes: list[str]
) -> None:
    clinic.register()
    store(clinic)
    clinic.serves(19, promised=promised, cached=cached)
    assert clinic.codes() == []
    clinic.serves(1, promised=promised, cached=cached)
    assert clinic.codes() == codes
    asked = clinic.document().instances[0].asked
    assert (asked.reported, asked.prompt_tokens) == (20, 32_000)
    assert (asked.promised_tokens, asked.cached_tokens) == (20 * promised, 20 * cached)


def test_the_figures_are_of_what_is_said(clinic: Clinic) -> None:
    """Some requests found more than was promised, and others less."""
    clinic.register()
    store(clinic)
    clinic.serves(15, promised=800, cached=1600)
    clinic.serves(15, promised=800, cached=0)
    less, more = clinic.findings()
    assert (less.code, less.expected, less.got) == (
        "matches_less",
        "12000 cached tokens",
        "24000 cached tokens",
    )
    assert "25 % of the tokens were in its cache and not promised" in less.cause
    assert (more.code, more.expected, more.got) == (
        "matches_more",
        "24000 cached tokens",
        "12000 of these",
    )
    assert "25 % of the tokens were promised and not in its cache" in more.cause


def cause(clinic: Clinic) -> str:
    (found,) = [one for one in clinic.findings() if one.code == "matches_nothing"]
    return found.cause.partition("The likeliest cause: ")[2]


def test_the_likeliest_cause_of_a_silent_zero_is_what_is_known_to_be_wrong(clinic: Clinic) -> None:
    one = clinic.register()
    clinic.serves(20, promised=0, cached=1200)
    assert "no block of it" in cause(clinic)
    store(clinic)
    assert "from the first block on" in cause(clinic)
    clinic.has(one, PublisherState(incarnation=1, degraded_since=0))
    assert "batches of it are lost" in cause(clinic)
    clinic.has(one, PublisherState(incarnation=1, left_out={"block_size:32": 1}))
    assert "follow from `block_size`" in next(
        one.cause for one in clinic.findings() if one.code == "matches_nothing"
    )
    clinic.has(one, PublisherState())
    assert "no events" in cause(clinic)


def test_prompts_of_another_length_are_of_another_template(clinic: Clinic) -> None:
    clinic.register()
    store(clinic)
    clinic.serves(20, promised=0, cached=1200, counted=1607)
    assert "chat template" in cause(clinic)


def test_who_finds_nothing_of_what_was_promised_caches_no_prefix(clinic: Clinic) -> None:
    clinic.register()
    clinic.serves(20, promised=1200, cached=0)
    (found,) = clinic.findings()
    assert "prefix caching is switched off" in found.cause


def test_predictions_do_not_hide_that_the_index_has_nothing(clinic: Clinic) -> None:
    """In a burst of new prompts they are all there is; a minute later they are a silent zero."""
    clinic.register()
    clinic.serves(50, promised=1200, predicted=1200, cached=1200)
    assert clinic.codes() == []
    clinic.minute += 1
    clinic.serves(1, promised=1200, predicted=1200, cached=1200)
    assert clinic.codes() == ["matches_nothing"]
    clinic.serves(1, promised=1200, cached=1200)
    assert clinic.codes() == []


def test_a_first_block_that_comes_again_and_is_never_announced_is_of_other_tokens(
    clinic: Clinic,
) -> None:
    """Also where outcomes say that nothing was found."""
    clinic.register()
    clinic.serves(20, promised=1200, predicted=1200, cached=0, marks=MARKS)
    assert "asked_tokens" not in clinic.codes()  # the index has nothing: another finding says why
    store(clinic)
    (found,) = [one for one in clinic.findings() if one.code == "asked_tokens"]
    assert (found.tenant_id, found.model_name) == ("default", "m")
    assert "20 prompts began with the same 4 tokens" in found.cause
    assert "--enable-prompt-tokens-details" in found.remedy
    clinic.serves(1, promised=1200, predicted=1200, cached=1200, marks=MARKS)
    assert "asked_tokens" not in clinic.codes()


def test_a_first_block_that_an_engine_holds_is_asked_about_rightly(clinic: Clinic) -> None:
    clinic.register()
    store(clinic)
    held = prefix_hashes(range(4), 4)[0]
    clinic.serves(20, promised=1200, predicted=1200, cached=0, marks=(PrefixMark(1, held),))
    assert "asked_tokens" not in clinic.codes()


def test_answers_without_cached_tokens_are_a_finding_with_the_flag(clinic: Clinic) -> None:
    one = clinic.register(http_endpoint="http://a:8000")
    assert clinic.codes() == []
    found = clinic.document(unsaid={f"{one.http_url}": 7, "http://b:8000": 9}).findings
    assert [one.code for one in found] == ["cache_unsaid"]
    assert "its last 7 answers" in found[0].cause
    assert "--enable-prompt-tokens-details" in found[0].remedy


def test_prompts_that_get_no_tokens_in_time_are_a_finding_of_their_tenant(clinic: Clinic) -> None:
    clinic.register()
    late = [
        UnansweredModel("default", "m", 100, 19, 9990.0),
        UnansweredModel("other", "n", 9, 9, 9990.0),
    ]
    found = clinic.document(lambda tenant_id: tenant_id == "default", unanswered=late).findings
    assert [(one.code, one.model_name, one.since) for one in found] == [
        ("tokens_late", "m", 9990.0)
    ]
    assert "of the last 100 prompts" in found[0].cause
    assert "19 got none in time" in found[0].cause
    assert "--set tokens=m=DIRECTORY" in found[0].remedy
