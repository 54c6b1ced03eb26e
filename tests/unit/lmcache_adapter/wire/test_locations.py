import pytest

from lmcache_adapter.wire.locations import SYNCED, Tier, tier_of
from schemas.identities import Medium


@pytest.mark.parametrize(
    ("location", "tier"),
    [
        (SYNCED, Tier(Medium.CPU)),
        ("LocalDiskBackend", Tier(Medium.DISK)),
        ("RemoteBackend", Tier(Medium.DISK, shared=True)),
        ("MaruBackend", Tier(Medium.CPU, shared=True)),
        ("nobody knows", Tier(Medium.DISK)),
    ],
)
def test_a_location_is_a_tier(location: str, tier: Tier) -> None:
    assert tier_of(location) == tier
