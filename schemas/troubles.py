"""What a bridge could not use or reach of a publisher, as the bridge writes it into the log."""

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from schemas.identities import Rank, Text
from schemas.limits import DP_RANK_MAX, OTHER_RANKS_MAX

TROUBLE_DETAIL_MAX: Final = 256  # characters of what a bridge says against a publisher

Times = Annotated[int, Meta(ge=0, le=2**53)]


class Troubles(msgspec.Struct, frozen=True, array_like=True):
    """Of one publisher, since the bridge follows it. "", 0 and False: there is no such trouble.

    Attributes:
        dropped: messages, batches and events that were dropped.
        reason: of the last of them, a `DropReason`.
        detail: what was expected there and what came, in the words of the log.
        repeats: batches that came one after the other under the number of the first of them.
        number: that number.
        has_dead_replay: whether its replay socket was asked, and has never answered.
        link: why no link comes up, in the words of the system.
        http: what its HTTP address answers that no engine does.
        other_ranks: that publish at its address, each by numbers of its own.
    """

    dropped: Times = 0
    reason: Text = ""
    detail: Text = ""
    repeats: Times = 0
    number: Times = 0
    has_dead_replay: bool = False
    link: Text = ""
    http: Text = ""
    other_ranks: Annotated[tuple[Rank, ...], Meta(max_length=OTHER_RANKS_MAX)] = ()

    @property
    def kind(self) -> "Troubles":
        """The same, as far as a difference is worth a record: a number that rises is one as it
        doubles.
        """
        if self is NO_TROUBLES:  # as nearly all are
            return self
        return msgspec.structs.replace(
            self, dropped=self.dropped.bit_length(), repeats=self.repeats.bit_length(), detail=""
        )


NO_TROUBLES = Troubles()


def registrable(ranks: Iterable[int]) -> tuple[int, ...]:
    """Those ranks, as many as are told: one that cannot be registered is as good as the last one
    that can.
    """
    known = {rank if 0 <= rank <= DP_RANK_MAX else DP_RANK_MAX for rank in ranks}
    return tuple(sorted(known)[:OTHER_RANKS_MAX])


def shortened(words: str) -> str:
    """As much of a text as is kept: what an engine sent may be in it."""
    return words[:TROUBLE_DETAIL_MAX]
