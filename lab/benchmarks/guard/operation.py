"""What is guarded."""

from collections.abc import Callable
from typing import NamedTuple


class Operation(NamedTuple):
    """Something that is done so many times by one call of what `prepare` makes anew."""

    name: str
    times: int
    prepare: Callable[[], Callable[[], object]]
