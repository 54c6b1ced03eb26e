"""Until when may be written, of what the group has given and of what is kept for its next owner."""

from bridge.delivery.lease import Lease
from schemas.clock import REAL_CLOCK
from tests.fakes import registration

ONE, TWO = (registration(name).publisher for name in ("a", "b"))


class Held:
    """A lease, and the time as it sees it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.lease = Lease(REAL_CLOCK._replace(monotonic=lambda: self.now))

    def at(self, now: float) -> tuple[bool, bool]:
        """Whether it is held then, and whether anything may be written."""
        self.now = now
        return self.lease.is_held, self.lease.may_write


def test_a_writer_to_which_no_group_gives_anything_may_always_write() -> None:
    held = Held()
    assert held.at(1e9) == (True, True)
    held.lease.begin(owns=False)
    assert held.at(2e9) == (True, True)


def test_what_the_group_has_given_is_ours_until_the_lease_ends() -> None:
    held = Held()
    held.lease.begin(owns=True)
    assert held.at(100.0) == (False, False)
    held.lease.renew(110.0)
    assert held.at(109.9) == (True, True)
    assert held.at(110.0) == (False, False)
    held.lease.renew(120.0)
    assert held.at(119.9) == (True, True)
    held.lease.end()
    assert held.at(130.0) == (True, True)
    held.lease.begin(owns=True)
    assert held.at(119.9) == (False, False), "what was proven before says nothing of it"


def test_nothing_is_written_while_anything_of_a_kept_publisher_may_not_be_any_more() -> None:
    held = Held()
    held.lease.keep(ONE, 110.0)
    held.lease.keep(TWO, 120.0)
    assert held.at(109.9) == (True, True)
    assert held.at(110.0) == (True, False)
    held.lease.give_up(ONE)
    assert held.at(110.0) == (True, True)
    assert held.at(120.0) == (True, False)
    held.lease.give_up(TWO)
    held.lease.give_up(TWO)
    assert held.at(1e9) == (True, True)
