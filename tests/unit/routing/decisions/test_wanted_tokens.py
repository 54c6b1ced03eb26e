"""Tokens are kept of the prefixes that are wanted, and of no others."""

import struct

from routing.decisions.wanted_tokens import ACT_PREFIXES_MAX, ACT_TOKENS_MAX, WantedTokens
from schemas.identities import PrefixScope
from schemas.routing_records import DecidedScope

SCOPE = DecidedScope("t", "m", "", 2, "")
ASKED = PrefixScope(*SCOPE)
TOKENS = struct.pack("<6I", 1, 2, 3, 4, 5, 6)
PREFIXES = struct.pack("<3Q", 11, 12, 13)


def test_a_wanted_prefix_gets_its_tokens_from_the_next_prompt_that_has_it() -> None:
    wanted = WantedTokens()
    wanted.note(ASKED, PREFIXES, TOKENS)
    wanted.want({(SCOPE, 12): 2, (SCOPE, 13): 3, (SCOPE, 99): 1})
    assert wanted.find((SCOPE, 12)) is None
    wanted.note(ASKED, PREFIXES, TOKENS)
    assert wanted.find((SCOPE, 12)) == TOKENS[:16]
    assert wanted.find((SCOPE, 13)) == TOKENS
    assert wanted.find((SCOPE, 99)) is None
    wanted.want({(SCOPE, 12): 2})
    assert (wanted.find((SCOPE, 12)), wanted.find((SCOPE, 13))) == (TOKENS[:16], None)


def test_prompts_of_others_without_tokens_or_too_short_say_nothing() -> None:
    wanted = WantedTokens()
    wanted.want({(SCOPE, 13): 3})
    wanted.note(ASKED._replace(tenant_id="u"), PREFIXES, TOKENS)
    wanted.note(ASKED, PREFIXES, b"")
    wanted.note(ASKED, PREFIXES[:16], TOKENS)
    wanted.note(ASKED, struct.pack("<3Q", 13, 13, 12), TOKENS)  # at another depth
    assert wanted.find((SCOPE, 13)) is None


def test_what_is_kept_is_bounded() -> None:
    wanted = WantedTokens()
    many = {(SCOPE, number): 1 for number in range(ACT_PREFIXES_MAX + 5)}
    wanted.want(many)
    for number in range(ACT_PREFIXES_MAX + 5):
        wanted.note(ASKED, struct.pack("<Q", number), TOKENS)
    assert sum(wanted.find(key) is not None for key in many) == ACT_PREFIXES_MAX
    long = ACT_TOKENS_MAX // 2 // 2
    wanted.want({(SCOPE, 1): long, (SCOPE, 2): long, (SCOPE, 3): 1})
    prefixes = b"\0" * 8 * (long - 1) + struct.pack("<Q", 2)
    wanted.note(ASKED, prefixes, b"\1" * 8 * long)
    wanted.note(ASKED, struct.pack("<Q", 3), TOKENS)
    assert wanted.find((SCOPE, 2)) is not None
    assert wanted.find((SCOPE, 3)) is None
