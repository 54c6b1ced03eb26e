"""Texts that are cut have the tokens of the whole, by tokenizers of every make."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers", reason="the extra `text` is not installed")

from tests.model_directories import SPECIAL, all_makes
from tokens.pieces import AddedToken, cuts, pieces_of

CUT = "<|im_start|>"
NAMES = [name for name, _ in all_makes()]
UNCUT = {"whole words", "overlapping", "in the middle", "greedy"}

WORDS = [
    "<mask>",
    "<sep>",
    "hello",
    "lazy",
    "fox",
    "x",
    "a",
    "b",
    "s",
    "q",
    "<|im_",
    "the",
    "é",
    "é",
    "ﬁ",
    "▁",
    "🙂",
]
SPACES = (" ", "  ", "\n", "\n\n", "\t", " dog")
TEXTS = st.lists(
    st.one_of(st.sampled_from([*SPECIAL, *WORDS, *SPACES]), st.text(max_size=6)), max_size=14
).map("".join)


@cache
def makes() -> dict[str, object]:
    return dict(all_makes())


def ids(made: object, text: str) -> list[int]:
    found: list[int] = made.encode(text, add_special_tokens=False).ids  # type: ignore[attr-defined]
    return found


def cuts_of(made: object) -> list[str]:
    added = made.get_added_tokens_decoder().values()  # type: ignore[attr-defined]
    return cuts(
        AddedToken(one.content, one.normalized, one.lstrip, one.single_word) for one in added
    )


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_the_pieces_have_the_tokens_of_the_whole(name: str, text: str) -> None:
    made = makes()[name]
    for cut in cuts_of(made):
        pieces = pieces_of(text, cut)
        assert "".join(pieces) == text
        assert [one for piece in pieces for one in ids(made, piece)] == ids(made, text)


@pytest.mark.parametrize("name", NAMES)
def test_a_token_is_no_cut_where_something_hides_it(name: str) -> None:
    assert (CUT in cuts_of(makes()[name])) is (name not in UNCUT)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("whole words", f"a fox{CUT}b"),
        ("overlapping", f"x{CUT}b"),
        ("in the middle", f"a{CUT}b"),
        ("greedy", f"the {CUT}q"),
    ],
)
def test_what_is_no_cut_would_be_wrong_as_one(name: str, text: str) -> None:
    """But whole words, of which the neighbours decide: there it is only not proven."""
    made = makes()[name]
    apart = [one for piece in pieces_of(text, CUT) for one in ids(made, piece)]
    assert (apart == ids(made, text)) is (name == "whole words")
