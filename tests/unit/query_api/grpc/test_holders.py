"""What routers call publishers: read again in time, and not at each answer."""

import msgspec

from query_api.grpc.holders import GRPC_URLS_S
from schemas.identities import PrefixScope
from schemas.registration import PublisherKind
from streams.kernel.interface import PublisherId
from streams.kernel.reference import ReferenceKernel
from tests.unit.query_api.grpc.conftest import Index


def handle_of(index: Index, instance: str) -> PublisherId:
    [publisher] = [one for one in index.table.registrations if one.stream.instance_id == instance]
    return index.table.kernel.open_publisher(*publisher)


def urls(index: Index, instance: str) -> tuple[str, dict[int, str]]:
    """What is found by the handle of the first rank, and by the name of the instance."""
    holder = index.holders.find(HANDLES[instance])
    ranks = index.holders.ranks(SCOPE, instance)
    return holder.url if holder else "", {rank: one.url for rank, one in ranks.items()}


SCOPE = PrefixScope("default", "m", "", 4, "")
HANDLES: dict[str, PublisherId] = {}


def test_an_unknown_publisher_is_looked_for_once_and_then_when_it_is_time(index: Index) -> None:
    index.add("a", 1, url="u")
    HANDLES["a"] = handle_of(index, "a")
    index.holders.refresh()
    assert urls(index, "a") == ("u", {0: "u"})
    [(publisher, registered)] = index.table.registrations.items()
    del index.table.registrations[publisher]
    index.holders.refresh()
    assert index.holders.is_followed("u")
    index.now = GRPC_URLS_S
    index.holders.refresh()
    assert not index.holders.is_followed("u")
    assert urls(index, "a") == ("", {})
    index.table.registrations[publisher] = registered
    assert urls(index, "a") == ("", {})
    index.now = 2 * GRPC_URLS_S
    index.holders.refresh()
    assert urls(index, "a") == ("u", {0: "u"})


def test_handles_of_another_kernel_are_others(index: Index) -> None:
    index.add("a", 1, url="u")
    index.add("b", 1, url="v")
    index.holders.refresh()
    handle = handle_of(index, "a")
    found = index.holders.find(handle)
    assert found is not None
    assert found.url == "u"
    fresh = ReferenceKernel(4)
    other = next(one for one in index.table.registrations if one.stream.instance_id == "b")
    assert fresh.open_publisher(*other) == handle
    index.table._kernel = fresh
    assert index.holders.refresh() is fresh
    found = index.holders.find(handle)
    assert found is not None
    assert found.url == "v"


def test_a_pool_is_no_worker(index: Index) -> None:
    index.add("a", 1, url="u")
    HANDLES["a"] = handle_of(index, "a")
    [(publisher, known)] = index.table.registrations.items()
    pool = msgspec.structs.replace(known, kind=PublisherKind("Mooncake"))
    index.table.registrations[publisher] = pool
    index.holders.refresh()
    assert urls(index, "a") == ("", {})
    assert not index.holders.is_followed("u")
