"""A condition of one part that several things can be wrong with."""

from schemas.conditions import Conditions


class SharedCondition:
    """Is set while any of them is, by the first that is. On one thread."""

    def __init__(self, conditions: Conditions, part: str) -> None:
        """Args:
        part: which of them this is.
        """
        self._conditions = conditions
        self._part = part
        self._problems: dict[str, tuple[str, str, bool]] = {}

    def note(self, name: str, reason: str, problem: str, *, logged: bool = True) -> None:
        """That one does not work; see `Conditions.set`."""
        self._problems[name] = (reason, problem, logged)
        self._show()

    def clear(self, name: str) -> None:
        """That one works."""
        if self._problems.pop(name, None) is not None:
            self._show()

    def _show(self) -> None:
        for reason, problem, logged in self._problems.values():
            self._conditions.set(self._part, reason, problem, logged=logged)
            return
        self._conditions.clear(self._part)
