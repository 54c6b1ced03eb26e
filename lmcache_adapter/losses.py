"""Who is to write anew what a sink has dropped: several services share one sink."""

from collections.abc import Callable, Container, Sequence

from schemas.identities import PublisherKey

TakeLost = Callable[[], Sequence[PublisherKey]]


class Losses:
    """Hands each service the publishers that are its own; for the loop of the sink.

    Args:
        take_lost: those of which the sink has dropped something; each is named once.
    """

    def __init__(self, take_lost: TakeLost) -> None:
        self._take_lost = take_lost
        self._lost: list[dict[PublisherKey, None]] = []
        self._owners: list[Callable[[], Container[PublisherKey]]] = []

    def share(self, owned: Callable[[], Container[PublisherKey]]) -> TakeLost:
        """The same for whoever has these publishers."""
        place = len(self._lost)
        self._lost.append({})
        self._owners.append(owned)

        def take() -> Sequence[PublisherKey]:
            for publisher in self._take_lost():
                for lost, owner in zip(self._lost, self._owners, strict=True):
                    if publisher in owner():
                        lost[publisher] = None
            mine, self._lost[place] = self._lost[place], {}
            return list(mine)

        return take
