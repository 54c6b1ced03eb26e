"""A module whose mutants are known: see test_mutants.py."""


class Window:
    """What a lower bound leaves."""

    def __init__(self) -> None:
        self.first = 2
        self.seen: list[int] = []

    @property
    def size(self) -> int:
        """How many were seen."""
        return len(self.seen)

    def take(self, number: int) -> bool:
        """Whether the number is within."""
        if number < self.first:
            return False
        self.seen.append(number)
        return True

    def hint(self) -> None:
        """Nobody calls it."""
        self.seen.clear()
