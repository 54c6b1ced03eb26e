from lmcache_adapter.losses import Losses
from lmcache_adapter.settings import Model
from schemas.identities import PublisherKey

A, B, C = (PublisherKey(Model().stream(name), 0) for name in "abc")


def test_each_service_is_handed_its_own_whoever_asks_first() -> None:
    lost = [[A, B, C], [A]]
    losses = Losses(lambda: lost.pop(0) if lost else [])
    first = losses.share(lambda: {A})
    second = losses.share(lambda: {B})
    assert second() == [B]
    assert first() == [A]
    assert (first(), second()) == ([], [])
