"""Both kernels say who holds a prefix of which only the hash is known."""

import pytest

from routing.http.models import PrefixHolder
from routing.http.prefix_holders import holders_in
from schemas.events import RemovedBlocks, StoredBlocks, encode_events
from schemas.identities import Medium
from schemas.routing_records import DecidedScope
from streams.kernel import Kernel, native_available, open_kernel
from tests.building import SCOPE, STREAM, prefix_hashes, removed, stored

TOKENS = list(range(12))
ONE, TWO, THREE = prefix_hashes(TOKENS)
DECIDED = DecidedScope(*SCOPE)
NAMES = ["reference", *(["rust"] if native_available() else [])]


@pytest.fixture(params=NAMES)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return open_kernel(1337, name=request.param)


def apply(kernel: Kernel, instance: str, rank: int, *events: StoredBlocks | RemovedBlocks) -> None:
    publisher = kernel.open_publisher(STREAM._replace(instance_id=instance), rank)
    kernel.register(publisher, "", True)
    kernel.apply(publisher, encode_events([*events]), -1)


def test_those_are_named_who_have_its_last_block_with_the_fastest_tier(kernel: Kernel) -> None:
    whole = stored(0, [1, 2, 3], TOKENS)
    on_disk = stored(0, [1, 2], TOKENS[:8], medium=Medium.DISK)
    on_cpu = stored(1, [1], TOKENS[:4], medium=Medium.CPU)
    apply(kernel, "a", 0, whole)
    apply(kernel, "b", 1, on_disk, on_cpu)
    holders_of = holders_in(kernel)
    a = PrefixHolder(instance_id="a", dp_rank=0, medium="GPU")
    b = PrefixHolder(instance_id="b", dp_rank=1, medium="CPU")
    assert list(holders_of(DECIDED, ONE)) == [a, b]
    assert list(holders_of(DECIDED, TWO)) == [
        a,
        PrefixHolder(instance_id="b", dp_rank=1, medium="DISK"),
    ]
    assert list(holders_of(DECIDED, THREE)) == [a]


def test_who_has_dropped_the_tail_holds_it_no_more(kernel: Kernel) -> None:
    apply(kernel, "a", 0, stored(0, [1, 2, 3], TOKENS), removed(1, [3]))
    holders_of = holders_in(kernel)
    assert [one.instance_id for one in holders_of(DECIDED, TWO)] == ["a"]
    assert list(holders_of(DECIDED, THREE)) == []


def test_of_a_scope_or_a_prefix_that_nobody_knows_there_are_no_holders(kernel: Kernel) -> None:
    apply(kernel, "a", 0, stored(0, [1], TOKENS[:4]))
    assert list(holders_in(kernel)(DECIDED._replace(model_name="other"), ONE)) == []
    assert list(holders_in(kernel)(DECIDED, 2**64 - 1)) == []
