"""What requests and answers take that are kept while another engine may be tried."""

from typing import Final

from gateway.bounds import GATEWAY_HELD_BYTES_MAX
from gateway.errors import GatewayError

GATEWAY_ROOM_RETRY_S: Final = 1  # what a client is told for whose request there is no room


class HeldBytes:
    """Counts them. One loop.

    Args:
        bytes_max: of all together.

    Attributes:
        size_bytes: that are kept now.
    """

    def __init__(self, bytes_max: int = GATEWAY_HELD_BYTES_MAX) -> None:
        self.size_bytes = 0
        self._bytes_max = bytes_max

    def take(self, size_bytes: int) -> None:
        """Takes room for a request; whatever comes of it, `give_back` follows.

        Raises:
            GatewayError: there is none.
        """
        self.size_bytes += size_bytes
        if self.size_bytes > self._bytes_max:
            text = "Too many large requests are under way at once; try again"
            headers = {"retry-after": str(GATEWAY_ROOM_RETRY_S)}
            raise GatewayError(503, "no_room", text, headers=headers)

    def has_room(self, size_bytes: int) -> bool:
        """Whether an answer of that size may be kept on top."""
        return self.size_bytes + size_bytes <= self._bytes_max

    def give_back(self, size_bytes: int) -> None:
        """It is not kept any more."""
        self.size_bytes -= size_bytes
