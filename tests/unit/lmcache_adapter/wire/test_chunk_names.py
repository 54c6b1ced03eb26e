"""BLAKE3 of the bytes of its own test vectors, as LMCache has them of the `blake3` package 1.0.11.

Chains of it are held against LMCache's own in `coordinator/test_recorded.py`.
"""

import pytest
from blake3 import blake3

from lmcache_adapter.wire.chunk_names import chunk_names

DIGESTS = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    64: "4eed7141ea4a5cd4b788606bd23f46e212af9cacebacdc7d1f4c6dc7f2511b98",
    65: "de1e5fa0be70df6d2be8fffd0e99ceaa8eb6e8c93a63f2d8d1c30ecb6b263dee",
    1023: "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11",
    1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
    1025: "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
    2048: "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a",
    2049: "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030",
    3073: "7124b49501012f81cc7f11ca069ec9226cecb8a2c850cfe644e327d22d3e1cd3",
    5120: "9cadc15fed8b5d854562b26a9536d9707cadeda9b143978f319ab34230535833",
}


@pytest.mark.parametrize("size", DIGESTS)
def test_digests_are_those_of_the_package(size: int) -> None:
    assert blake3(bytes(at % 251 for at in range(size))).hexdigest() == DIGESTS[size]


def test_a_chunk_that_is_not_full_has_no_name_and_each_names_all_before_it() -> None:
    tokens = list(range(1, 10))
    names = list(chunk_names(tokens, 4))
    assert len(names) == 2
    assert list(chunk_names(tokens[:8], 4)) == names
    assert list(chunk_names([0, *tokens[1:8]], 4))[1] != names[1]
    assert list(chunk_names(tokens[:3], 4)) == []
