from lmcache_adapter.wire.locations import SYNCED
from lmcache_adapter.wire.messages import Operation
from lmcache_adapter.worker.numbering import Numbering

DISK = "LocalDiskBackend"


def operations(*numbers: int) -> list[Operation]:
    return [Operation(op_type="admit", key=1, seq_num=number) for number in numbers]


def test_numbers_of_a_location_follow_on_from_0() -> None:
    numbering = Numbering(is_new=True)
    assert numbering.follows(SYNCED, operations(0, 1))
    assert numbering.follows(DISK, operations(0))
    assert numbering.follows(SYNCED, operations(2))
    assert set(numbering) == {SYNCED, DISK}


def test_a_jump_is_told_once_whichever_way_it_goes() -> None:
    for numbers in ((3,), (1,), (2, 4), (2, 1)):
        numbering = Numbering(is_new=True)
        numbering.follows(SYNCED, operations(0, 1))
        assert not numbering.follows(SYNCED, operations(*numbers)), numbers
        assert numbering.follows(SYNCED, operations(numbers[-1] + 1))


def test_a_new_process_begins_with_0() -> None:
    assert not Numbering(is_new=True).follows(SYNCED, operations(1))


def test_whoever_was_there_before_may_be_at_any_number_where_a_full_sync_tells_the_rest() -> None:
    numbering = Numbering()
    assert numbering.follows(SYNCED, operations(17))
    assert not numbering.follows(SYNCED, operations(19))
    assert not numbering.follows(DISK, operations(17))
    assert Numbering().follows(DISK, operations(0))


def test_after_a_cut_the_next_number_proves_that_nothing_was_lost() -> None:
    numbering = Numbering(is_new=True)
    numbering.follows(SYNCED, operations(0))
    numbering.follows(DISK, operations(0))
    numbering.cut()
    assert numbering.unproven == {SYNCED, DISK}
    assert numbering.follows(SYNCED, operations(1))
    assert numbering.unproven == {DISK}
    numbering.prove(DISK)
    assert numbering.unproven == frozenset()


def test_after_a_cut_a_first_number_proves_nothing() -> None:
    numbering = Numbering()
    numbering.prove(SYNCED)
    assert set(numbering) == set(), "what it holds is known, but no number"
    numbering.cut()
    assert numbering.unproven == {SYNCED}
    assert not numbering.follows(SYNCED, operations(5))
    assert numbering.unproven == frozenset()
    assert numbering.follows(SYNCED, operations(6))


def test_without_a_cut_a_first_number_is_the_first() -> None:
    numbering = Numbering()
    numbering.prove(SYNCED)
    assert numbering.follows(SYNCED, operations(5))
    numbering.cut()
    assert numbering.follows(SYNCED, operations(6))
