"""What a role is made of."""

from typing import Protocol


class Service(Protocol):
    """What is run beside the HTTP server."""

    def start(self) -> None:
        """Starts what the service does besides answering; returns at once."""
        ...

    def stop(self) -> None:
        """Ends it, in order, within a bound."""
        ...
