"""The registry topic in memory."""

import msgspec
import pytest

from query_api.replica.registry_table import RegistryTable
from schemas.errors import EntryError, RegistrationConflictError, RegistrationError
from schemas.limits import PUBLISHERS_MAX
from schemas.registration import NO_EVENTS, is_new
from schemas.topics import encode_publisher, encode_registration
from tests.building import registration

ONE = registration("a")
MOVED = registration("a", port=6000)
KEY = encode_publisher(ONE.publisher)


@pytest.fixture
def registry() -> RegistryTable:
    return RegistryTable(lambda publisher, registered: None)


def test_the_last_entry_of_a_publisher_counts(registry: RegistryTable) -> None:
    registry.put(0, KEY, encode_registration(ONE))
    registry.put(1, KEY, encode_registration(MOVED))
    assert registry.registrations == {ONE.publisher: MOVED}
    registry.put(2, KEY, None)
    registry.put(3, KEY, None)
    assert registry.registrations == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"\xa1\xff", encode_registration(ONE)),
        (KEY, b"\x81\xa8endpoint\xa1\xff"),
        (KEY, b"\x80"),
        (KEY, encode_registration(registration("b"))),
    ],
)
def test_an_entry_that_cannot_be_read_is_skipped_and_counted(
    registry: RegistryTable, key: bytes, value: bytes
) -> None:
    registry.put(0, KEY, encode_registration(ONE))
    with pytest.raises(EntryError):
        registry.put(1, key, value)
    assert registry.skipped.total() == 1
    assert registry.registrations == {ONE.publisher: ONE}


def test_removing_an_entry_that_could_not_be_read_is_no_fault(registry: RegistryTable) -> None:
    registry.put(0, b"no key", None)
    assert registry.skipped.total() == 0


def test_what_was_written_here_counts_before_it_is_read_and_over_what_was_before_it(
    registry: RegistryTable,
) -> None:
    registry.put_written(5, ONE.publisher, ONE)
    assert registry.registrations == {ONE.publisher: ONE}
    registry.put(4, KEY, encode_registration(MOVED))
    assert registry.registrations == {ONE.publisher: ONE}
    registry.put(5, KEY, encode_registration(ONE))
    registry.put(6, KEY, encode_registration(MOVED))
    assert registry.registrations == {ONE.publisher: MOVED}


def test_a_tombstone_written_here_counts_in_the_same_way(registry: RegistryTable) -> None:
    registry.put(0, KEY, encode_registration(ONE))
    registry.put_written(2, ONE.publisher, None)
    registry.put(1, KEY, encode_registration(MOVED))
    assert registry.registrations == {}
    registry.put(2, KEY, None)
    registry.put(3, KEY, encode_registration(ONE))
    assert registry.registrations == {ONE.publisher: ONE}


def test_repeating_a_registration_is_no_change_and_contradicting_one_is_refused() -> None:
    others = {ONE.publisher: ONE}
    assert not is_new(ONE, others)
    assert is_new(registration("b", port=6000), others)
    with pytest.raises(RegistrationConflictError, match=r"for service key: a\|default\|0$"):
        is_new(MOVED, others)
    with pytest.raises(RegistrationConflictError, match=r"for endpoint: tcp://127.0.0.1:5557$"):
        is_new(registration("b"), others)


def test_there_is_a_bound_on_publishers() -> None:
    others = {}
    for number in range(PUBLISHERS_MAX):
        one = registration(f"i{number}", port=number)
        others[one.publisher] = one
    with pytest.raises(RegistrationError, match=f"at most {PUBLISHERS_MAX}"):
        is_new(registration("more", port=70_000), others)
    assert not is_new(registration("i7", port=7), others)


def test_an_engine_without_events_is_known_and_no_publisher_of_the_table() -> None:
    told: list[bool] = []
    table = RegistryTable(lambda publisher, registered: told.append(registered))
    silent = msgspec.structs.replace(ONE, endpoint="", kind=NO_EVENTS)
    table.put(0, KEY, encode_registration(ONE))
    table.put(1, KEY, encode_registration(silent))
    assert table.registrations == {ONE.publisher: silent}
    assert told == [True, False]
