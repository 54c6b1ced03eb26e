"""Both shapes of a query's answer, from any match."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from query_api.http.answers import encode_matches
from query_api.http.wire import Wire
from streams.kernel.interface import InstanceMatch, RankMatch

depths = st.integers(0, 2**40)
ranks = st.builds(RankMatch, st.integers(0, 2**31 - 1), depths, depths, depths, depths)
matches = st.builds(
    InstanceMatch,
    st.text(min_size=1),
    *(depths, depths, depths, depths),
    st.lists(ranks, max_size=3, unique_by=lambda rank: rank.dp_rank),
)


@given(tenant=st.text(), found=st.lists(matches, max_size=4, unique_by=lambda match: match[0]))
def test_the_published_shape_says_what_the_match_says(
    tenant: str, found: list[InstanceMatch]
) -> None:
    plain = {
        match.instance_id: {
            "longest_matched": match.longest,
            "GPU": match.gpu,
            "CPU": match.cpu,
            "DISK": match.disk,
            "DP": {str(rank.dp_rank): rank.matched for rank in match.ranks},
        }
        for match in found
    }
    expected = msgspec.json.encode({tenant: plain} if found else {})
    assert encode_matches(tenant, found, Wire.JSON) == expected


def test_an_instance_without_ranks_has_zeros_in_the_walk() -> None:
    body = encode_matches("t", [InstanceMatch("a", 4, 4, 4, 4, [])], Wire.MSGPACK)
    walk = {"longest_matched": 0, "dp": {}, "rank_matches": {}, "gpu": 0, "cpu": 0, "disk": 0}
    assert msgspec.msgpack.decode(body) == {"instances": {"a": walk}}
