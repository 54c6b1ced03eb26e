"""The number of a link: what the parts of the bridge call one connection to a publisher's socket.

The links of a publisher are counted by who receives from it, from 1; a link ends with the process
at its other end. So what came over one link is of one process, and numbers tell which came first.
"""

from typing import Final, NewType

LinkNumber = NewType("LinkNumber", int)
"""One connection to a publisher's socket, by its number."""

NO_LINK: Final = LinkNumber(0)
"""There is none, or it is not known which one."""


def next_of(link: LinkNumber) -> LinkNumber:
    """The one after it, once that is up."""
    return LinkNumber(link + 1)
