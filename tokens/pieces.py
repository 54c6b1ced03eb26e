"""A text cut where its tokens cannot depend on what is before: at one added token of the model.

A tokenizer first looks for the tokens that were added to its vocabulary, from left to right, the
longest at each place; what is between two of them is normalized, split and made tokens of alone.
So a text may be cut before an occurrence of an added token, and the tokens of the pieces are those
of the whole, whatever model, normalizer and pre-tokenizer there is, if that occurrence is found as
one in the whole:

- the token is looked for in the text as it came (`normalized` is false for it), and by itself, not
  as a word (`single_word` of no added token, for which the neighbours of a place count);
- it takes no space before it (`lstrip` of it, and of added tokens that begin with it);
- no other added token has it in the middle, ends where it begins, or has it at its end.

Source: tokenizers 0.23 (`added_vocabulary.rs`, `extract_and_normalize`). The unit tests hold it
against the whole, for many tokenizers.
"""

from collections.abc import Iterable
from typing import NamedTuple


class AddedToken(NamedTuple):
    """See tokenizers' own; these are its attributes that count."""

    content: str
    normalized: bool
    lstrip: bool
    single_word: bool


def cuts(added: Iterable[AddedToken]) -> list[str]:
    """The added tokens before which a text may be cut, in the order given."""
    added = [one for one in added if one.content]
    if any(one.single_word for one in added):
        return []
    found = [one for one in added if not one.normalized]  # one pass of the tokenizer
    return [one.content for one in found if all(_leaves(other, one.content) for other in found)]


def _leaves(other: AddedToken, token: str) -> bool:
    """Whether no match of the other one, which may be itself, hides where the token begins."""
    text = other.content
    if text.startswith(token) and other.lstrip:
        return False
    if text.find(token, 1) >= 0:
        return False
    return not any(text.endswith(token[:length]) for length in range(1, len(token)))


def pieces_of(text: str, cut: str) -> list[str]:
    """The text in pieces, each but the first with the cut's token at its beginning."""
    first, *others = text.split(cut)
    return [first, *(cut + one for one in others)] if first else [cut + one for one in others]
