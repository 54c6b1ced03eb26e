from page.heatmap import HEATMAP_ROWS_MAX, bin_bounds, heatmap_document
from routing.decisions.recent_decisions import RecentDecision
from tests.unit.routing.sample_decisions import candidate, decision


def recent(*decisions: tuple[int, tuple[tuple[str, int, int], ...]]) -> list[RecentDecision]:
    return [
        RecentDecision(
            place,
            1,
            decision(
                place,
                prompt_tokens=prompt,
                candidates=tuple(candidate(name, rank, cached=held) for name, rank, held in some),
            ),
            (),
        )
        for place, (prompt, some) in enumerate(decisions)
    ]


def test_bins_are_powers_of_two_from_256_tokens_to_a_mebitoken() -> None:
    bounds = bin_bounds()
    assert bounds[:3] == [0, 256, 512]
    assert bounds[-1] == 1 << 20


def test_shares_are_of_the_tokens_in_each_bin() -> None:
    """600 tokens are 256, 256 and 88; 300 of them are 256 and 44."""
    document = heatmap_document(recent((600, (("a", 0, 300), ("b", 0, 0)))))
    assert document.decisions == 1
    a, b = document.rows
    assert a.shares[:4] == [1.0, 44 / 256, 0.0, None]
    assert b.shares[:3] == [0.0, 0.0, 0.0]


def test_decisions_are_summed_and_the_best_rank_counts() -> None:
    document = heatmap_document(
        recent((256, (("a", 0, 0), ("a", 1, 128))), (256, (("a", 0, 256), ("a", 1, 0))))
    )
    (row,) = document.rows
    assert row.shares[0] == (128 + 256) / 512


def test_without_decisions_there_are_no_rows() -> None:
    document = heatmap_document([])
    assert (document.decisions, document.rows, document.left_out) == (0, [], 0)


def test_rows_are_bounded_and_those_beyond_are_counted() -> None:
    many = tuple((f"i-{number:05}", 0, 0) for number in range(HEATMAP_ROWS_MAX + 3))
    document = heatmap_document(recent((10, many)))
    assert (len(document.rows), document.left_out) == (HEATMAP_ROWS_MAX, 3)


def test_more_than_the_prompt_is_never_held() -> None:
    (row,) = heatmap_document(recent((100, (("a", 0, 1 << 40),)))).rows
    assert row.shares[0] == 1.0
