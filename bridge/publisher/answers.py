"""How a request to an engine's replay socket ends, and how the repair of which it is a part."""

from enum import Enum
from typing import NamedTuple

from schemas.answer_states import Doubt


class Repaired(NamedTuple):
    """How a repair has ended.

    Attributes:
        doubt: why it does not confirm the publisher; None where it does.
        heard_all: whether the engine was heard to the end of what it has: of one that goes on where
            a live batch waits no more is read, and what its socket has dropped behind that one is
            not known.
    """

    doubt: Doubt | None
    heard_all: bool


class Answer(Enum):
    """What became of one request."""

    MORE = "more"  # go on reading
    ASK = "ask"  # ask again, from `start`
    DONE = "done"  # nothing more is needed, or available
