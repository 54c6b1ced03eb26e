"""Cases of which each is tried in one wire form: what they are about does not look at it."""

import itertools
from typing import Any

from query_api.http.wire import Wire


def in_turn(*cases: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Each case behind a wire form, its neighbours behind the other."""
    return [(wire, *case) for wire, case in zip(itertools.cycle(Wire), cases, strict=False)]
