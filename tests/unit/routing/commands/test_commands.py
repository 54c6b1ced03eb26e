"""`reprise promises`, `reprise prefixes` and `reprise advice` against a service."""

import json
from collections.abc import Iterator, Sequence

import msgspec
import pytest
from click.testing import CliRunner, Result

from reprise.cli.main import main
from routing.advice.acting import Act, SuppressionReason
from routing.advice.advice import AdviceRules, AdvisedAction, HeldPrefix, Instance, advise
from routing.http.models import PrefixHolder
from routing.http.views_documents import (
    advice_document,
    prefixes_document,
    promises_document,
)
from routing.observed.hot_prefixes import view
from routing.observed.observations import Observations
from routing.observed.promise_totals import GroupBy
from schemas.command_records import CommandState
from schemas.routing_records import DecidedScope, OutcomeEvent, Target
from tests.unit.reprise.cli.answering import Handler, answering
from tests.unit.routing.observed.records import (
    RUN,
    a_decision,
    an_outcome,
    marks_of,
)

A, B = Target("default", "a", 0), Target("default", "b", 1)


@pytest.fixture
def url() -> Iterator[str]:
    with answering() as url:
        yield url


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def seen() -> Observations:
    found = Observations()
    for number in range(200):
        found.decided(
            RUN,
            a_decision(
                number,
                prompt=2000,
                cached=480,
                held=640,
                predicted_s=0.5,
                marks=marks_of((1, 11), (64, 12)),
            ),
        )
    outcome = an_outcome(0, OutcomeEvent.COMPLETED, cached_tokens=160, ttft_s=0.75)
    found.reported(RUN, outcome)
    found.decided(RUN, a_decision(1000, chosen=-1))
    return found


def holders_of(scope: DecidedScope, prefix: int) -> Sequence[PrefixHolder]:
    return [PrefixHolder(instance_id="a", dp_rank=0, medium="GPU")]


def words(line: str) -> list[str]:
    return line.split()


def test_promises_are_a_table_with_what_is_left_out_below(url: str) -> None:
    Handler.answer = 200, msgspec.json.encode(promises_document(seen(), GroupBy.POLICY))
    result = run("promises", "--url", url, "--by", "policy", "--since", "60")
    header, row, note = result.output.splitlines()
    assert words(header)[:4] == ["TENANT", "NAME", "DECISIONS", "REPORTED"]
    assert words(row) == [
        *("default", "wait-and-work", "201", "1"),
        *("24.0", "%", "8.0", "%", "68.0", "%", "8.0", "%", "16.0", "%"),
        *("750", "ms", "500", "ms", "0", "%"),
    ]
    assert note == "199 decisions are under way"
    assert Handler.asked == [("/promises?by=policy&since=60.0", "application/json")]


def test_decisions_that_chose_nobody_have_a_line_of_their_own(url: str) -> None:
    Handler.answer = 200, msgspec.json.encode(promises_document(seen(), GroupBy.INSTANCE))
    _, refused, of_a, _ = run("promises", "--url", url).output.splitlines()
    assert words(refused) == ["default", "(refused)", "1", "0", *("-" * 8)]
    assert words(of_a)[1] == "a"


def test_prefixes_are_a_table_for_each_scope(url: str) -> None:
    document = prefixes_document(view(seen().hot, 0.0), holders_of, hot=5)
    Handler.answer = 200, msgspec.json.encode(document)
    result = run("prefixes", "--url", url, "--hot", "5", "--depth", "16", "--instance", "a")
    scope, header, first, second = result.output.splitlines()
    assert scope == "default / llama /  / 16 / "
    assert words(header)[0] == "PREFIX"
    assert words(first) == ["11", "16", "3.570", "200", "1", "200", "1", "1", "16", "0"]
    assert words(second)[:2] == ["12", "1,024"]
    assert Handler.asked[0][0] == "/prefixes?hot=5&depth=16&instance=a"


def advice() -> bytes:
    (scope,) = view(seen().hot, 0.0).values()
    held = [HeldPrefix(one, (A,)) for one in scope.prefixes]
    found = advise(held, [Instance(A, 9.0), Instance(B, 1.0)], 1.0, AdviceRules())
    return msgspec.json.encode(advice_document(found))


def test_an_advice_names_the_request_that_would_do_it(url: str) -> None:
    Handler.answer = 200, advice()
    first, second, command, last = run("advice", "--url", url).output.splitlines()
    assert first == (
        "copy to b rank 1 (overload): prefix 12 of 1,024 tokens, 3.570 a second, model llama"
    )
    assert second.startswith("  held by a; saves ")
    assert command.startswith('  POST /move {"prefix_hash":"12"')
    assert last == "2 hot prefixes, 1 to be copied or pinned"


def test_what_was_done_is_shown_and_why_the_rest_was_not(url: str) -> None:
    (scope,) = view(seen().hot, 0.0).values()
    held = [HeldPrefix(one, (A,)) for one in scope.prefixes]
    found = advise(held, [Instance(A, 9.0), Instance(B, 1.0)], 1.0, AdviceRules())
    done = Act("M2", AdvisedAction.COPY, 13, "a", "b", 60.0, CommandState.DONE, "", 61.0, 1024)
    failed = Act("P1", AdvisedAction.PIN, 12, "a", "a", 0.0, CommandState.FAILED, "no room", 1.0)
    held_back = {(one.prefix.scope, one.prefix.prefix): SuppressionReason.REPEATED for one in found}
    Handler.answer = 200, msgspec.json.encode(advice_document(found, [done, failed], held_back))
    lines = run("advice", "--url", url, "--all").output.splitlines()
    assert lines.count("  not done at the last look: repeated") == 1, "none of what is `none`"
    assert lines[-2:] == [
        "1970-01-01T00:01:00Z copy a to b: prefix 13: done, 1,024 tokens: /commands/M2",
        "1970-01-01T00:00:00Z pin at a: prefix 12: failed (no room): /commands/P1",
    ]


def test_all_hot_prefixes_are_shown_where_that_is_asked_for(url: str) -> None:
    Handler.answer = 200, advice()
    output = run("advice", "--url", url, "--all").output
    assert "none (covered): prefix 11 of 16 tokens" in output


@pytest.mark.parametrize(
    ("command", "document"),
    [
        ("promises", promises_document(Observations(), GroupBy.MODEL)),
        ("prefixes", prefixes_document({}, holders_of, hot=1)),
        ("advice", advice_document([])),
    ],
)
def test_json_is_the_document_and_nothing_at_all_is_no_error(
    url: str, command: str, document: object
) -> None:
    Handler.answer = 200, msgspec.json.encode(document)
    result = run(command, "--url", url, "--json")
    assert json.loads(result.output) == msgspec.to_builtins(document)
    assert run(command, "--url", url).exit_code == 0


@pytest.mark.parametrize("command", ["promises", "prefixes", "advice"])
def test_a_service_that_refuses_is_an_error(url: str, command: str) -> None:
    Handler.answer = 404, b"not found"
    result = run(command, "--url", url)
    assert (result.exit_code, "not found" in result.output) == (1, True)
