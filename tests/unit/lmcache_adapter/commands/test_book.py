"""The fold of commands: each ends once, whatever comes in which order."""

import itertools
from typing import Any

import msgspec
import pytest

from lmcache_adapter.bounds import COMMANDS_KEPT_MAX
from lmcache_adapter.commands import book as book_module
from lmcache_adapter.commands.book import CommandBook
from schemas import limits
from schemas.command_records import (
    AnyCommandRecord,
    ClosedRecord,
    CommandAction,
    CommandOutcome,
    CommandRecord,
    CommandState,
    CommandWorker,
    ResultRecord,
)


def command(name: str = "c", workers: int = 2) -> CommandRecord:
    return CommandRecord(
        command_id=name,
        action=CommandAction.PIN,
        instance_id="a",
        location="L",
        tokens=bytes(12),
        workers=tuple(CommandWorker(rank) for rank in range(workers)),
        issued_at=1.0,
    )


def result(rank: int, outcome: CommandOutcome = CommandOutcome.OK, name: str = "c") -> ResultRecord:
    return ResultRecord(command_id=name, worker_id=rank, outcome=outcome, at=2.0 + rank)


def closed(name: str = "c") -> ClosedRecord:
    return ClosedRecord(command_id=name, reason="why", at=9.0)


def folded(*records: AnyCommandRecord) -> CommandBook:
    book = CommandBook()
    for record in records:
        book.take(record)
    return book


def state(book: CommandBook, name: str = "c") -> CommandState:
    found = book.find(name)
    assert found is not None
    return found.state


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([CommandOutcome.OK, CommandOutcome.OK], CommandState.DONE),
        ([CommandOutcome.OK, CommandOutcome.TIMEOUT], CommandState.PARTIAL),
        ([CommandOutcome.REFUSED, CommandOutcome.OK], CommandState.PARTIAL),
        ([CommandOutcome.UNSUPPORTED, CommandOutcome.TIMEOUT], CommandState.FAILED),
    ],
)
def test_the_last_result_ends_a_command(
    outcomes: list[CommandOutcome], expected: CommandState
) -> None:
    book = folded(command(), result(0, outcomes[0]))
    assert state(book) is CommandState.PENDING
    ended = book.take(result(1, outcomes[1]))
    assert ended is not None
    assert (ended.state, ended.closed_at, ended.reason) == (expected, 3.0, "")
    assert [one.outcome for one in ended.results] == outcomes
    assert book.ended == {expected: 1}


def test_a_closed_one_is_ended_by_that_and_what_is_missing_was_not_done() -> None:
    assert state(folded(command(), closed())) is CommandState.FAILED
    book = folded(command(), result(0), closed())
    found = book.find("c")
    assert found is not None
    assert (found.state, found.reason, found.closed_at) == (CommandState.PARTIAL, "why", 9.0)


def test_what_comes_after_the_end_changes_nothing_and_is_counted() -> None:
    book = folded(command(), result(0), closed())
    before = book.find("c")
    assert [book.take(one) for one in (result(1), closed(), result(0))] == [None] * 3
    assert book.find("c") == before
    assert book.ignored == {"late": 3}
    assert sum(book.ended.values()) == 1


def test_a_second_result_and_one_of_another_worker_do_not_count() -> None:
    book = folded(command(), result(0, CommandOutcome.TIMEOUT), result(0), result(7))
    assert book.ignored == {"repeated": 1, "strange_worker": 1}
    assert state(book) is CommandState.PENDING
    assert state(folded(command(), result(0, CommandOutcome.TIMEOUT), result(0), result(1))) is (
        CommandState.PARTIAL
    )


def test_a_command_that_is_read_twice_is_one() -> None:
    book = folded(command(), result(0), command(), result(1))
    assert state(book) is CommandState.DONE
    assert (book.issued, book.ignored) == ({"pin": 1}, {"repeated": 1})


def test_the_end_is_the_same_whenever_the_command_itself_is_read() -> None:
    """Its topic and that of results have no common order."""
    others: list[AnyCommandRecord] = [result(0), closed(), result(1)]
    views = []
    for place in range(4):
        records = [*others[:place], command(), *others[place:]]
        views.append(folded(*records).find("c"))
    assert views[0] is not None
    assert views == views[:1] * 4


def test_every_order_of_results_ends_it_once() -> None:
    records: list[AnyCommandRecord] = [result(0), result(1), result(2), closed()]
    for order in itertools.permutations(records):
        book = CommandBook()
        ends = [book.take(command(workers=3)), *map(book.take, order)]
        assert sum(one is not None for one in ends) == 1


def test_its_tokens_are_counted_and_not_kept() -> None:
    found = folded(command()).find("c")
    assert found is not None
    assert (found.tokens, found.command.tokens) == (3, None)


def test_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "COMMANDS_KEPT_MAX", 2)
    book = folded(command("a"), command("b"), command("c"))
    assert book.find("a") is None
    assert (len(book), book.forgotten, book.pending()) == (2, 1, ["b", "c"])
    assert book.is_closed("a")


def test_results_whose_command_never_comes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "COMMANDS_EARLY_MAX", 3)
    book = folded(*(result(0, name=str(number)) for number in range(5)))
    assert book.ignored == {"early": 2}
    book.take(command("4", workers=1))
    book.take(command("0", workers=1))
    assert (state(book, "4"), state(book, "0")) == (CommandState.DONE, CommandState.PENDING)


def test_the_bounds_hold_what_is_under_way() -> None:
    assert limits.COMMANDS_WAITING_MAX < COMMANDS_KEPT_MAX


def test_the_latest_come_first_of_whom_and_since_when_is_asked_for() -> None:
    commands = [
        msgspec.structs.replace(command(str(number)), issued_at=float(number), origin=origin)
        for number, origin in enumerate(("", "advice", "", "advice"))
    ]
    book = folded(*commands)

    def names(limit: int = 9, **wanted: Any) -> str:
        return "".join(one.command.command_id for one in book.latest(limit, **wanted))

    assert (names(), names(2)) == ("3210", "32")
    assert (names(origin="advice"), names(1, origin="advice"), names(origin="")) == (
        "31",
        "3",
        "20",
    )
    assert (names(since=2.0), names(since=2.0, origin="advice")) == ("32", "3")
