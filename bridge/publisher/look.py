"""What the pump sees of a publisher that it follows: of its link, its messages and its records."""

from typing import NamedTuple

from schemas.answer_states import Doubt


class Look(NamedTuple):
    """What is seen of a publisher at one moment.

    Attributes:
        connected: whether its link is up.
        links: how often it has come up.
        is_silent: whether it is up, and its engine's socket does not answer.
        messages: how many have been decoded.
        unplaced: see `Sequencer.unplaced`.
        proven_link: see `Sequencer.proven_link`.
        is_doubted: see `Sequencer.is_doubted`.
        received_until: all that had been sent by then, and had arrived, has been decoded; never
            later than the look before, for this process may have been paused since, and the system
            may not have handed over yet what came meanwhile.
        is_waiting: whether something that has arrived has not been decoded.
        late_s: see `Sequencer.late_s`.
        has_waiting: whether records of it have not reached the log.
        behind_s: see `Sequencer.behind_s`.
    """

    connected: bool
    links: int
    is_silent: bool
    messages: int
    unplaced: int
    proven_link: int
    is_doubted: bool
    received_until: float
    is_waiting: bool
    late_s: float
    has_waiting: bool
    behind_s: float = 0.0

    @property
    def incomplete(self) -> Doubt | None:
        """Why what was received of it is not all that there is in the log of its instance."""
        return Doubt.SPOOLED if self.has_waiting else None
