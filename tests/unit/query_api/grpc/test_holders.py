"""What routers call publishers: read again in time, and not at each answer."""

import msgspec

from schemas.identities import PublisherKey
from schemas.limits import GRPC_URLS_S
from schemas.registration import PublisherKind
from tests.unit.query_api.grpc.conftest import Index


def publisher(index: Index, instance: str) -> PublisherKey:
    return next(one for one in index.table.registrations if one.stream.instance_id == instance)


def test_an_unknown_publisher_is_looked_for_once_and_then_when_it_is_time(index: Index) -> None:
    index.add("a", 1, url="u")
    index.holders.refresh()
    asked = publisher(index, "a")
    found = index.holders.find(asked)
    assert found is not None
    assert found.url == "u"
    registered = index.table.registrations.pop(asked)
    index.holders.refresh()
    assert index.holders.is_followed("u")
    index.now = GRPC_URLS_S
    index.holders.refresh()
    assert not index.holders.is_followed("u")
    assert index.holders.find(asked) is None
    index.table.registrations[asked] = registered
    assert index.holders.find(asked) is None
    index.now = 2 * GRPC_URLS_S
    index.holders.refresh()
    assert index.holders.find(asked) is not None


def test_a_pool_is_no_worker(index: Index) -> None:
    index.add("a", 1, url="u")
    asked = publisher(index, "a")
    known = index.table.registrations[asked]
    index.table.registrations[asked] = msgspec.structs.replace(
        known, kind=PublisherKind("Mooncake")
    )
    index.holders.refresh()
    assert index.holders.find(asked) is None
    assert not index.holders.is_followed("u")
