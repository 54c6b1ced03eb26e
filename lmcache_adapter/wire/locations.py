"""LMCache's names of storage backends, as tiers of the index.

Source: lmcache 0.5.6, `lmcache/v1/storage_backend/`: `str()` of each backend. Only the first two
report operations by themselves; the others are here for whoever makes them.
"""

from typing import Final, NamedTuple

from schemas.identities import Medium


class Tier(NamedTuple):
    """Where blocks of a location are; `shared`: in a pool that every instance reads."""

    medium: Medium
    shared: bool = False


SYNCED: Final = "LocalCPUBackend"
"""The only location whose keys a full sync has."""

_TIERS: Final = {
    SYNCED: Tier(Medium.CPU),
    "LocalDiskBackend": Tier(Medium.DISK),
    "GdsBackend": Tier(Medium.DISK),
    "RemoteBackend": Tier(Medium.DISK, shared=True),
    "MaruBackend": Tier(Medium.CPU, shared=True),
}


def tier_of(location: str) -> Tier:
    """The tier of a location; one that is not known is a disk of its own."""
    return _TIERS.get(location, Tier(Medium.DISK))
