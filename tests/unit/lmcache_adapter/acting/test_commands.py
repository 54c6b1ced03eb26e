"""What the log of commands says of what was done by advice."""

from typing import Any

import msgspec

from lmcache_adapter.acting.commands import act_of
from lmcache_adapter.commands.book import CommandBook
from routing.advice.acting import Act
from schemas.command_records import (
    BlockPlace,
    ClosedRecord,
    CommandAction,
    CommandOutcome,
    CommandRecord,
    CommandWorker,
    ResultRecord,
)

COPY = CommandRecord(
    command_id="Move1",
    action=CommandAction.MOVE,
    instance_id="a",
    tokens=b"\1\0\0\0",
    target=BlockPlace("b", "LocalCPUBackend"),
    copy=True,
    workers=(CommandWorker(0), CommandWorker(1)),
    issued_at=100.0,
    origin="advice",
    prefix=5,
)


def act(*records: ResultRecord | ClosedRecord, **changes: Any) -> Act:
    book = CommandBook()
    book.take(msgspec.structs.replace(COPY, **changes))
    for record in records:
        book.take(record)
    view = book.find("Move1")
    assert view is not None
    found = act_of(view)
    assert found is not None
    return found


def result(
    worker_id: int, outcome: CommandOutcome = CommandOutcome.OK, **fields: Any
) -> ResultRecord:
    return ResultRecord(
        command_id="Move1", worker_id=worker_id, outcome=outcome, at=101.0 + worker_id, **fields
    )


def test_what_was_not_given_by_advice_is_none_of_it() -> None:
    book = CommandBook()
    book.take(msgspec.structs.replace(COPY, origin=""))
    view = book.find("Move1")
    assert view is not None
    assert act_of(view) is None


def test_a_copy_has_brought_what_the_worker_with_the_fewest_says() -> None:
    found = act(result(0, tokens=64), result(1, tokens=48))
    assert (found.action, found.source, found.target, found.prefix) == ("copy", "a", "b", 5)
    assert (found.result, found.tokens, found.reason) == ("done", 48, "")
    assert (found.at, found.ended_at) == (100.0, 102.0)


def test_a_pin_is_where_it_is_executed() -> None:
    found = act(action=CommandAction.PIN, target=BlockPlace())
    assert (found.action, found.source, found.target, found.result) == ("pin", "a", "a", "pending")


def test_what_brought_nothing_is_empty_and_not_done() -> None:
    found = act(result(0, tokens=64), result(1, tokens=0))
    assert (found.result, found.is_done, found.tokens) == ("empty", False, 0)
    assert "no token was copied" in found.reason


def test_each_worker_that_failed_is_named_with_its_reason() -> None:
    closed = ClosedRecord(command_id="Move1", reason="not answered", at=105.0)
    found = act(result(1, CommandOutcome.REFUSED, detail="no room"), closed)
    assert found.reason == "worker 1: refused: no room; worker 0: not answered"
    assert (found.result, found.ended_at, found.tokens) == ("failed", 105.0, 0)
    assert act(result(0, tokens=9), closed).result == "partial"


def test_of_many_workers_the_first_eight_are_named() -> None:
    workers = tuple(map(CommandWorker, range(10)))
    results = [result(rank, CommandOutcome.REFUSED, detail="no") for rank in range(10)]
    found = act(*results, workers=workers)
    assert found.reason.count("worker ") == 8
    assert found.reason.endswith("worker 7: refused: no; and 2 more")
