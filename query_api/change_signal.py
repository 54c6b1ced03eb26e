"""That the state of answers may be another than before: what notes it tells whom it concerns."""

from collections.abc import Callable


class ChangeSignal:
    """Has one listener, which may come later than what notes changes."""

    def __init__(self) -> None:
        self._listener: Callable[[], None] | None = None

    def tell(self, listener: Callable[[], None]) -> None:
        """Calls a listener from now on, in place of another."""
        self._listener = listener

    def changed(self) -> None:
        """Something that verdicts depend on is another than before. Any thread may call it."""
        if self._listener is not None:
            self._listener()
