"""Chunk hashes of tokens. The expected ones were made by `cbor2`'s canonical form and hashlib."""

import pytest

from lmcache_adapter.http.hashes import chunk_hashes
from query_api.http.errors import RequestError
from schemas.registration import HashProfile

TOKENS = list(range(100, 110))


def profile(algorithm: str = "sha256_cbor", seed: str = "") -> HashProfile:
    return HashProfile(
        strategy="lmcache",
        algorithm=algorithm,
        python_hash_seed=seed,
        index_projection="first_8_bytes_big_endian",
    )


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        ("", [12036274733675222352, 5937557458361313318, 8305366568993649464]),
        ("0", [9022303884076447760, 8803788008135940425, 10913464800948779058]),
        ("42", [9188065346206813624, 10327449594831872340, 5582426259614750440]),
    ],
)
def test_sha256_of_cbor_is_chained_from_the_hash_of_the_seed(
    seed: str, expected: list[int]
) -> None:
    assert chunk_hashes(TOKENS, 4, profile(seed=seed)) == expected


def test_integers_of_every_length_are_in_their_shortest_form() -> None:
    tokens = [0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1]
    found = chunk_hashes(tokens, 4, profile(seed="none_hash:0"))
    assert found == [13495791524016025158, 6289778418279354931]


def test_pythons_own_hash_is_chained_from_0_or_from_the_number_that_is_given() -> None:
    found = chunk_hashes([1, 2, 3, 4, 5, 6, 7, 8], 4, profile("builtin"))
    assert found == [4965923915475442220, -6292915440479534054 % 2**64]
    given = chunk_hashes([1, 2, 3, 4], 4, profile("builtin", "none_hash:0"))
    assert given == found[:1]
    assert chunk_hashes([1], 4, profile("builtin", "none_hash:-7")) != chunk_hashes(
        [1], 4, profile("builtin", "none_hash:7")
    )


def test_no_tokens_have_no_hashes() -> None:
    assert chunk_hashes([], 4, profile()) == []


@pytest.mark.parametrize(
    ("algorithm", "seed", "text"),
    [
        ("md5", "", "sha256_cbor or builtin, got: md5"),
        ("builtin", "0", "NONE_HASH"),
        ("sha256_cbor", "none_hash:x", "number behind none_hash:"),
    ],
)
def test_what_is_missing_is_told(algorithm: str, seed: str, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        chunk_hashes([1], 4, profile(algorithm, seed))
