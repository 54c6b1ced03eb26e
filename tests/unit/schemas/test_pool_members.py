"""A pool is a publisher in each partition of a log, and one thing for whoever registers it."""

from collections import Counter

import msgspec
import pytest

from brokers.clients import partition_of
from schemas.errors import RegistrationConflictError, RegistrationError
from schemas.identities import PublisherKey
from schemas.limits import NAME_BYTES_MAX
from schemas.registration import (
    LMCACHE,
    NO_EVENTS,
    PublisherKind,
    Registration,
    Unregistration,
    is_new,
    pool_members,
    replaced_by,
)
from schemas.topics import encode_stream
from tests.building import registration

POOL = registration("pool", kind="Mooncake", port=7000)
PARTITIONS = 8


def members(pool: Registration = POOL, partitions: int = PARTITIONS) -> list[Registration]:
    return pool_members(pool, partitions, lambda one: partition_of(encode_stream(one), partitions))


def registered(*those: Registration) -> dict[PublisherKey, Registration]:
    return {one.publisher: one for one in those}


@pytest.mark.parametrize("partitions", [3, 64])
def test_there_is_one_member_in_each_partition(partitions: int) -> None:
    found = members(partitions=partitions)
    places = Counter(partition_of(encode_stream(one.stream), partitions) for one in found)
    assert places == Counter(range(partitions))
    assert len(registered(*found)) == partitions
    assert found == members(partitions=partitions), "each process names the same ones"


def test_a_log_of_one_partition_has_the_pool_itself() -> None:
    assert members(partitions=1) == [POOL]


def test_members_are_the_pool_but_for_their_name() -> None:
    for one in members():
        assert one.as_registered == POOL
        assert (one.endpoint, one.is_pool, one.pool) == (POOL.endpoint, True, "pool")
        assert one.instance_id.startswith("pool#")
        assert Unregistration(POOL.tenant_id, "pool", 0).matches(one)
    assert POOL.as_registered is POOL


def test_a_member_is_not_unregistered_by_its_own_name() -> None:
    one = members()[0]
    assert not Unregistration(one.tenant_id, one.instance_id, 0).matches(one)


def test_a_name_has_to_leave_room() -> None:
    with pytest.raises(RegistrationError, match="leaves room"):
        members(msgspec.structs.replace(POOL, instance_id="p" * NAME_BYTES_MAX))
    with pytest.raises(RegistrationError, match="leaves room"):
        pool_members(POOL, 3, lambda stream: 0)


def test_members_do_not_take_one_anothers_endpoint() -> None:
    first, *others = members()
    known = registered(first)
    assert all(is_new(one, known) for one in others)
    assert not is_new(first, known)
    assert all(not is_new(one, registered(*members())) for one in members())


def test_a_pool_of_another_model_shares_the_endpoint_and_an_engine_does_not() -> None:
    known = registered(*members())
    other = msgspec.structs.replace(POOL, model_name="n")
    assert all(is_new(one, known) for one in members(other))
    engine = msgspec.structs.replace(POOL, kind=PublisherKind("vLLM"), instance_id="a")
    with pytest.raises(RegistrationConflictError, match="endpoint"):
        is_new(engine, known)
    with pytest.raises(RegistrationConflictError, match="endpoint"):
        is_new(members()[0], registered(engine))


def test_a_pool_and_an_engine_do_not_share_a_name() -> None:
    engine = registration("pool", port=7001)
    with pytest.raises(RegistrationConflictError, match=r"service key: pool\|"):
        is_new(engine, registered(*members()))
    with pytest.raises(RegistrationConflictError, match=r"service key: pool\|"):
        is_new(members()[3], registered(engine))


def test_another_registration_of_the_pool_is_in_conflict() -> None:
    other = members(msgspec.structs.replace(POOL, endpoint="tcp://127.0.0.1:7002"))
    with pytest.raises(RegistrationConflictError):
        is_new(other[0], registered(*members()))


def test_a_conflict_names_the_first_field_that_differs_with_both_values() -> None:
    one = msgspec.structs.replace(members()[0], pool="")
    other = msgspec.structs.replace(one, endpoint="tcp://b:1")
    with pytest.raises(RegistrationConflictError) as raised:
        is_new(other, registered(one))
    assert raised.value.differs == f"endpoint is {one.endpoint}, got: tcp://b:1"


def resized(one: Registration, **fields: object) -> Registration:
    other = msgspec.structs.replace(one, block_size=64, endpoint="tcp://b:1")
    return msgspec.structs.replace(other, **fields)


def test_an_engine_has_one_block_size_for_a_model() -> None:
    engine = registration("a")
    with pytest.raises(RegistrationConflictError, match=r"service key: a\|default\|0") as raised:
        is_new(resized(engine), registered(engine))
    assert raised.value.differs == f"block_size is {engine.block_size}, got: 64"
    assert replaced_by(resized(engine), registered(engine)) == [engine]


@pytest.mark.parametrize(
    "fields",
    [
        {"model_name": "n"},
        {"additional_salt": "fp8"},
        {"tenant_id": "other"},
        {"instance_id": "b"},
        {"dp_rank": 1},
        {"kind": NO_EVENTS, "endpoint": ""},
        {"kind": PublisherKind("Mooncake")},
        {"kind": LMCACHE},
    ],
)
def test_another_model_rank_or_tenant_may_have_another_one(fields: dict[str, object]) -> None:
    engine = registration("a")
    other = resized(engine, **fields)
    assert is_new(other, registered(engine))
    assert is_new(engine, registered(other))
    assert replaced_by(other, registered(engine)) == []
