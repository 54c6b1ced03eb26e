"""One publisher that a bridge owns."""

import asyncio

from schemas.registration import Registration


class Followed:
    """One publisher of ours."""

    __slots__ = ("home", "links", "live", "registration", "repair")

    def __init__(self, registration: Registration, home: int) -> None:
        self.registration = registration
        self.home = home
        self.live = False  # its cursor is known, and step 4 has begun
        self.links = 0  # how often its link had come up when its engine was last asked
        self.repair: asyncio.Task[None] | None = None

    def cancel_repair(self) -> None:
        """Ends the repair under way, if there is one; what waits goes on waiting."""
        if self.repair is not None:
            self.repair.cancel()
            self.repair = None
