"""Regret by hand."""

from lab.miss_ratio.regret import Regret, Regrets, RegretWindow
from schemas.events import BlockEvent, ClearedBlocks
from schemas.identities import Medium, PublisherKey
from tests.building import BLOCK, STREAM, removed, stored

A = PublisherKey(STREAM, 0)
B = PublisherKey(STREAM._replace(instance_id="b"), 0)


def put(*hashes: int, medium: Medium = Medium.GPU) -> BlockEvent:
    return stored(0, hashes, list(range(BLOCK * len(hashes))), medium=medium)


def results(regrets: Regrets) -> dict[Medium, Regret]:
    return {one.scope.medium: one for one in regrets.results()}


def gone(*hashes: int, medium: Medium = Medium.GPU) -> BlockEvent:
    return removed(0, hashes, medium=medium)


def test_blocks_that_come_back_are_counted_by_how_soon() -> None:
    regrets = Regrets("f", [300, 60])
    regrets.take(A, put(1, 2, 3, 4), 0.0)
    regrets.take(A, gone(1, 2, 3, 4), 100.0)
    regrets.take(A, put(1), 160.0)
    regrets.take(A, put(2), 160.5)
    regrets.take(A, put(3), 401.0)
    regrets.take(A, put(1), 402.0)  # it is there: nothing came back
    [regret] = regrets.results()
    assert (regret.scope.source, regret.scope.tenant, regret.scope.model) == ("f", "default", "m")
    assert (regret.removed, regret.stored) == (4, 8)
    assert regret.within == (
        RegretWindow(seconds=60, stored_again=1, open=0, share=0.25),
        RegretWindow(seconds=300, stored_again=2, open=0, share=0.5),
    )


def test_what_the_end_cuts_off_is_open() -> None:
    regrets = Regrets("f", [60, 300])
    regrets.take(A, gone(1), 0.0)
    regrets.take(A, gone(2), 200.0)
    regrets.take(A, gone(3), 250.0)
    regrets.take(A, put(3), 250.0)
    [regret] = regrets.results()
    assert [(one.stored_again, one.open) for one in regret.within] == [(1, 1), (1, 2)]
    [again] = regrets.results()
    assert again == regret, "results may be asked for twice"


def test_publishers_media_and_groups_are_apart() -> None:
    regrets = Regrets("f", [60])
    regrets.take(A, gone(1), 0.0)
    regrets.take(B, put(1), 1.0)
    regrets.take(A, put(1, medium=Medium.CPU), 1.0)
    regrets.take(A, gone(1, medium=Medium.CPU), 2.0)
    regrets.take(A, put(1, medium=Medium.CPU), 3.0)
    found = results(regrets)
    assert found[Medium.GPU].within[0].stored_again == 0
    assert found[Medium.CPU].within[0].stored_again == 1
    assert found[Medium.GPU].stored == 1


def test_what_would_have_gone_anyway_is_not_regretted() -> None:
    regrets = Regrets("f", [60])
    regrets.take(A, gone(1), 0.0)
    regrets.take(A, ClearedBlocks(sequence=1), 1.0)
    regrets.take(A, put(1), 2.0)
    regrets.take(A, gone(2), 3.0)
    regrets.forget(A)
    regrets.take(A, put(2), 4.0)
    [regret] = regrets.results()
    assert (regret.removed, regret.within[0].stored_again, regret.within[0].open) == (2, 0, 2)


def test_a_clear_of_one_medium_forgets_that_one() -> None:
    regrets = Regrets("f", [60])
    regrets.take(A, gone(1), 0.0)
    regrets.take(A, gone(1, medium=Medium.CPU), 0.0)
    regrets.take(A, ClearedBlocks(sequence=1, medium=Medium.CPU), 1.0)
    regrets.take(A, put(1), 2.0)
    regrets.take(A, put(1, medium=Medium.CPU), 2.0)
    found = results(regrets)
    assert found[Medium.GPU].within[0].stored_again == 1
    assert found[Medium.CPU].within[0].stored_again == 0


def test_a_second_removal_counts_from_then() -> None:
    regrets = Regrets("f", [60])
    regrets.take(A, gone(1), 0.0)
    regrets.take(A, gone(1), 50.0)
    regrets.take(A, put(1), 100.0)
    [regret] = regrets.results()
    assert (regret.removed, regret.within[0].stored_again) == (2, 1)


def test_what_waits_is_bounded_by_time_and_by_number() -> None:
    regrets = Regrets("f", [10], blocks_max=100)
    for at in range(1000):
        regrets.take(A, gone(at), float(at))
        assert regrets._count == sum(map(len, regrets._waiting.values())) <= 12
    assert regrets.forgotten == 0
    regrets.take(A, gone(*range(1000, 1101)), 1000.0)
    assert regrets._count <= 100
    assert regrets.forgotten > 0
